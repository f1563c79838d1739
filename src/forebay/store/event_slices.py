"""What is known of the slices in which events lie that several patterns share: a record for each slice.

There may be thousands of slices, and a micro-batch touches few. So records are columns: what is asked of all of them takes
a few operations of numpy, whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.store.event_references import NUMBERS
from forebay.windows import Times

Integers = npt.NDArray[np.int64]
Records = npt.NDArray[np.void]

FIELDS = ("number", "start", "length", "first", "last", "events", "references", "size", "live", "released", "unknown")
"""See `EventSlices.records`."""

_RECORD = np.dtype([*((name, np.int64) for name in FIELDS), ("columns", np.int64)])
_BEGUN = {"first": 2**63 - 1, "last": -(2**63), "released": -1}


class EventSlices:
    """Slices of events, in the order in which they were begun.

    Attributes
    ----------
    records : numpy.ndarray
        A record for each slice. ``number`` is what it is called in references. ``start`` and ``length`` are the interval of
        time that it is of (microseconds); the length is 0 if it has events by their arrival. ``first`` and ``last`` are the
        earliest and the latest time of its events. ``events`` is how many it has been given; ordinals go on from there.
        ``references`` is how many references patterns have to its events. ``size`` is the bytes of the events that are
        stored, ``live`` of those to which there are references, once for each of these, and ``released`` of those to which
        references were given back since it was last looked for events without any; -1 if it never was. ``unknown`` is the
        bytes that those events are taken for whose references do not say how large they are. ``columns`` names one of the
        sets of columns, those that all its events were stored with.

    Examples
    --------
    >>> slices = EventSlices()
    >>> slices.begin(np.array([60, 70]), length=10).tolist()
    [0, 1]
    >>> slices.records["references"][slices.places(np.array([1]))] += 2
    >>> slices.records[["number", "start", "references"]].tolist(), slices.places(np.array([1, 2])).tolist()
    ([(0, 60, 0), (1, 70, 2)], [1, -1])
    """

    def __init__(self) -> None:
        self.records: Records = np.empty(0, _RECORD)
        self._columns: list[frozenset[str]] = []
        self._order: Integers | None = None

    @staticmethod
    def of(batches: Iterable[pa.RecordBatch]) -> EventSlices:
        """Slices as `to_batch` wrote them. Of columns that are not there, earlier releases have written none."""
        slices = EventSlices()
        for batch in batches:
            some = np.zeros(batch.num_rows, _RECORD)
            for name in FIELDS:
                some[name] = batch[name].to_numpy() if name in batch.schema.names else _BEGUN.get(name, 0)
            texts = batch["columns"].to_pylist() if "columns" in batch.schema.names else [""] * batch.num_rows
            named = {text: slices.named(frozenset(text.split(",") if text else ())) for text in set(texts)}
            some["columns"] = [named[text] for text in texts]
            slices.records = np.concatenate([slices.records, some])
        return slices

    def to_batch(self) -> pa.RecordBatch:
        """All slices as rows."""
        texts = pa.array([",".join(sorted(columns)) for columns in self._columns], pa.string())
        columns = [pa.array(np.ascontiguousarray(self.records[name])) for name in FIELDS]
        return pa.record_batch([*columns, texts.take(pa.array(self.records["columns"]))], [*FIELDS, "columns"])

    def __len__(self) -> int:
        return len(self.records)

    def places(self, numbers: Integers) -> Integers:
        """Which of the records slices have; -1 for those that are not there."""
        if not len(self.records):
            return np.full(len(numbers), -1)
        known = self.records["number"]
        if self._order is None:
            self._order = np.argsort(known)
        found = np.searchsorted(known, numbers, sorter=self._order)
        places = self._order[np.minimum(found, len(known) - 1)]
        return np.where(known[places] == numbers, places, -1)

    def begin(self, starts: Times, length: int) -> Integers:
        """Add slices that have no events yet; their numbers follow the last one that was given, and then the first ones."""
        if not len(starts):
            return np.empty(0, np.int64)
        last = int(self.records["number"][-1]) if len(self) else -1
        following = (last + 1 + np.arange(len(starts) + len(self))) % NUMBERS
        numbers = following[self.places(following) < 0][: len(starts)]
        new = np.zeros(len(starts), _RECORD)
        for name, values in {**_BEGUN, "number": numbers, "start": starts, "length": length}.items():
            new[name] = values
        new["columns"] = self.named(frozenset())
        self._have(np.concatenate([self.records, new]))
        return numbers

    def keep(self, kept: npt.NDArray[np.bool_]) -> None:
        """Forget all other slices."""
        self._have(self.records[kept])

    def _have(self, records: Records) -> None:
        self.records, self._order = records, None

    def named(self, columns: frozenset[str]) -> int:
        """What a set of columns is called in the records."""
        if columns not in self._columns:
            self._columns.append(columns)
        return self._columns.index(columns)

    def narrow(self, places: Integers, columns: frozenset[str]) -> None:
        """Note that events with these columns are coming to slices."""
        known, begun = self.records["columns"], self.records["events"][places] == 0
        known[places[begun]] = self.named(columns)
        places = places[~begun]
        before = known[places]
        for number in np.unique(before).tolist():
            known[places[before == number]] = self.named(self._columns[number] & columns)

    @property
    def columns(self) -> frozenset[str]:
        """Columns with which all events were stored; none if that is not known.

        What is on disk does not tell: an event that is written again has all columns of now.
        """
        sets = [self._columns[number] for number in np.unique(self.records["columns"]).tolist()]
        return frozenset.intersection(*sets) if sets else frozenset()
