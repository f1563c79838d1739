"""The events that several patterns share: each is stored once, and patterns have references to it.

A reference is an integer: the number of the event's slice, the event's number within that slice, its *ordinal*, and about
how large it is (`forebay.store.event_references`). How many references there are to the events of a slice, and how many
bytes these events have, is counted, and stored with each version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay.errors import CorruptState, LayoutChanged
from forebay.restoring import RESTORE
from forebay.store import event_references as refs
from forebay.store.aligned import AlignedStore
from forebay.store.event_references import References
from forebay.store.event_slices import EventSlices, Records
from forebay.store.extent_log import LEAST_COMPACTED, ExtentLog
from forebay.store.form import Form
from forebay.store.manifest import EVENTS, SLICES, UNWEIGHED_SLICES
from forebay.store.metrics import Metrics
from forebay.store.options import Options
from forebay.store.segment import Extent
from forebay.windows import TIME, AlignedWindows, Times

Mask = npt.NDArray[np.bool_]

EVENT = "event"
"""The column of references to events."""

ORDINAL = "ordinal"
"""The column that has the number of an event within its slice. Beside it and a user's columns is `TIME`, in microseconds."""

_ROWS = 1 << 16
"""Slices by arrival have so many events."""


class EventLog:
    """Events by slice, in a part of a log.

    Parameters
    ----------
    directory : Path
        The instance's own directory.
    log : ExtentLog
        The log of the instance.
    slicing : AlignedWindows or None
        Tumbling windows that are the slices; without them, events lie in slices by arrival.
    options : Options
        Limits.
    form : Form, optional
        What events are to be like, where some may have been stored otherwise.

    Examples
    --------
    >>> import tempfile
    >>> directory = Path(tempfile.mkdtemp())
    >>> events = EventLog(directory, ExtentLog(directory, None, Options()), AlignedWindows(10, 10), Options())
    >>> references = events.append(np.array([12, 3, 15]), pa.record_batch({"price": [5, 6, 7]}))
    >>> events.take(references[[2, 0]], ["price"]).rows()
    [(7,), (5,)]
    >>> events.retain(references[:1])
    >>> events.slices[["start", "events", "references"]].tolist()
    [(0, 1, 0), (10, 2, 1)]
    """

    def __init__(
        self,
        directory: Path,
        log: ExtentLog,
        slicing: AlignedWindows | None,
        options: Options,
        form: Form | None = None,
    ) -> None:
        self.directory, self._slicing, self._options, self._form = directory, slicing, options, form
        self._lasts: dict[int, dict[Extent, int]] = {}
        self.changes = 0
        self.follow(log)

    def follow(self, log: ExtentLog) -> None:
        """Become what a log has, of a later version, too, which another process has made."""
        self._log, self._part = log, log.part(EVENTS)
        self._store = AlignedStore(self.directory, None, [], self._options, form=self._form, log=self._part)
        self._slices = EventSlices.of(rows for group in (SLICES, UNWEIGHED_SLICES) for rows in log.read(group))
        slices = self.slices
        if (slices["number"] >= refs.NUMBERS).any():
            raise LayoutChanged(
                f"slices of patterns in {self.directory} have numbers from {refs.NUMBERS:,} on, which this release of "
                "forebay cannot put into references. The state is whole: go on with the release that wrote it, or start "
                "with a new checkpoint location."
            )
        if log.rows_of([UNWEIGHED_SLICES]):
            self._take_for_even()
        self._written = slices.copy()
        some = slices[self._go_on(slices)]
        self._open = dict(zip(some["start"].tolist(), some["number"].tolist(), strict=True))
        numbers = set(slices["number"].tolist())
        self._lasts = {number: lasts for number, lasts in self._lasts.items() if number in numbers}
        self.changes += 1

    def _take_for_even(self) -> None:
        """Take all events of each slice for equally large, where a release wrote the slices that kept no sizes."""
        for each in self.slices:
            numbers = [int(each["number"])]
            rows = self._part.rows_of(numbers)
            each["unknown"] = self._part.bytes_of(numbers) // max(1, rows)
            each["size"], each["live"] = rows * each["unknown"], each["references"] * each["unknown"]

    def _go_on(self, slices: Records) -> Mask:
        """Which slices take further events: some are full, and some were begun maybe by another form of the query."""
        slicing = self._slicing
        if slicing is None:
            return (slices["length"] == 0) & (slices["events"] < _ROWS)
        even = (slices["start"] - slicing.offset) % slicing.size == 0
        return (slices["length"] == slicing.size) & (slices["events"] < refs.MOST_EVENTS) & even

    @property
    def slices(self) -> Records:
        """The slices that there are, see `forebay.store.event_slices.EventSlices.records`."""
        return self._slices.records

    @property
    def stored(self) -> int:
        """How many events are stored."""
        return self._part.rows_of(self.slices["number"].tolist()) + self._store.buffered_rows

    def append(self, times: Times, batch: pa.RecordBatch) -> References:
        """Store events; references to them."""
        self.changes += 1
        if not batch.num_rows:
            return np.empty(0, np.int64)
        order, begins, numbers = self._placed(times)
        if order is not None:
            times, batch = times[order], batch.take(pa.array(order))
        lengths = np.diff(begins, append=batch.num_rows)
        slices, touched = self.slices, self._slices.places(numbers)
        ordinals = np.arange(batch.num_rows) + np.repeat(slices["events"][touched] - begins, lengths)
        columns = [*batch.columns, pa.array(times), pa.array(ordinals.astype(np.uint32))]
        schema = pa.schema([*batch.schema, (TIME, pa.int64()), (ORDINAL, pa.uint32())])
        stored = pa.RecordBatch.from_arrays(columns, schema=schema)
        widths = refs.widths_of(stored)
        self._slices.narrow(touched, frozenset(batch.schema.names))
        slices["events"][touched] += lengths
        slices["first"][touched] = np.minimum(slices["first"][touched], np.minimum.reduceat(times, begins))
        slices["last"][touched] = np.maximum(slices["last"][touched], np.maximum.reduceat(times, begins))
        slices["size"][touched] += np.add.reduceat(refs.BYTES[widths], begins)
        self._store.append_slices(stored, numbers, begins, begins + lengths)
        ordered = refs.made(np.repeat(numbers, lengths), ordinals, widths)
        if order is None:
            return ordered
        references = np.empty_like(ordered)
        references[order] = ordered
        return references

    def _placed(self, times: Times) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """How to order events by slice (None: as they are), where each slice begins in that order, and its number."""
        if self._slicing is None:
            return None, *self._by_arrival(len(times))
        starts = self._slicing.slice_starts(times)
        order = None if (starts[1:] >= starts[:-1]).all() else np.argsort(starts, kind="stable")
        starts = starts if order is None else starts[order]
        begins = np.flatnonzero(np.append(True, starts[1:] > starts[:-1]))
        starts, lengths = starts[begins], np.diff(begins, append=len(times))
        numbers = np.array([self._open.get(start, -1) for start in starts.tolist()])
        places = self._slices.places(numbers)
        begun = places < 0
        # Where ordinals would not fit into references, a further slice of the same interval begins.
        begun[~begun] = self.slices["events"][places[~begun]] + lengths[~begun] > refs.MOST_EVENTS
        numbers[begun] = self._begin(starts[begun], self._slicing.size)
        return order, begins, numbers

    def _by_arrival(self, rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where each slice begins in so many events in order of arrival, and the slices' numbers."""
        goes_on = self._open.get(0, -1)
        (place,) = self._slices.places(np.array([goes_on]))
        room = 0 if place < 0 else _ROWS - int(self.slices["events"][place])
        begins = np.arange(room, rows, _ROWS)
        numbers = self._begin(np.zeros(len(begins), np.int64), 0)
        if room:
            begins, numbers = np.append([0], begins), np.append([goes_on], numbers)
        if (rows - room) % _ROWS == 0:
            del self._open[0]
        return begins, numbers

    def _begin(self, starts: Times, length: int) -> npt.NDArray[np.int64]:
        numbers = self._slices.begin(starts, length)
        self._open.update(zip(starts.tolist(), numbers.tolist(), strict=True))
        return numbers

    # reading ---------------------------------------------------------------------------------------------------------

    def rows(self, number: int) -> Iterator[pa.RecordBatch]:
        """The events of a slice, batch by batch, in order of their ordinals."""
        yield from self._store.rows(number)

    @property
    def columns(self) -> frozenset[str]:
        """The columns with which all stored events were stored."""
        return self._slices.columns

    def everything(self) -> Iterator[tuple[References, pa.RecordBatch]]:
        """References to all events, and these with their `TIME`: slice by slice in event time, in order of arrival there."""
        slices = self.slices
        for number in slices["number"][np.argsort(slices["start"], kind="stable")].tolist():
            for batch in self.rows(number):
                yield refs.made(number, batch[ORDINAL].to_numpy(), refs.widths_of(batch)), batch

    def sizes_of_slices(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Size of the events of each of some slices."""
        return self._store.sizes_of(numbers)

    @property
    def referenced_bytes(self) -> int:
        """Size of all events that patterns refer to, once for each reference."""
        return int(self.slices["live"].sum())

    def sizes_of(self, references: References) -> npt.NDArray[np.int64]:
        """About how many bytes each of the events has that references name."""
        widths = refs.width(references)
        sizes: npt.NDArray[np.int64] = refs.BYTES[widths]
        unknown = np.flatnonzero(widths == 0)
        places = self._slices.places(refs.numbers(references[unknown]))
        sizes[unknown[places >= 0]] = self.slices["unknown"][places[places >= 0]]
        return sizes

    def take(self, references: References, columns: Sequence[str]) -> pl.DataFrame:
        """Columns of the events that references name, in their order."""
        places = refs.places(references)
        order = np.argsort(places, kind="stable")
        ascending = places[order]
        numbers, ordinals = refs.numbers(ascending), refs.ordinals_of(ascending)
        found: list[pa.RecordBatch] = []
        for some in np.split(np.arange(len(order)), np.flatnonzero(np.diff(numbers)) + 1):
            found += self._take(int(numbers[some[0]]), ordinals[some], columns)
        rows = pl.DataFrame(pa.Table.from_batches(found))  # whose texts may be larger than one array of Arrow's
        if np.array_equal(ascending, places):
            return rows
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return rows[back]

    def _take(self, number: int, ordinals: References, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Columns of events of a slice, by ascending ordinals, from those of its extents that may have some of them."""
        known = self._lasts.get(number, {})
        lasts: dict[Extent, int] = {}
        begin = 0

        def has_some(extent: Extent) -> bool:
            if extent in known:
                lasts[extent] = known[extent]
            return begin < len(ordinals) and (extent not in known or ordinals[begin] <= known[extent])

        for extent, batch in self._store.rows_where(number, has_some):
            there = batch[ORDINAL].to_numpy()
            last = int(there[-1])
            if extent is not None:
                lasts[extent] = last
            upto = begin + int(np.searchsorted(ordinals[begin:], last, side="right"))
            if upto > begin:
                places = np.searchsorted(there, ordinals[begin:upto])
                if not np.array_equal(there[places], ordinals[begin:upto]):
                    break
                yield batch.select(list(columns)).take(pa.array(places))
            begin = upto
        self._lasts[number] = lasts
        if begin < len(ordinals):
            raise CorruptState(
                f"a window refers to event {int(ordinals[begin])} of slice {number}, which is not stored. {RESTORE}"
            )

    # references ------------------------------------------------------------------------------------------------------

    def retain(self, references: References) -> None:
        """Count references that a pattern has from now on."""
        self._count(references, 1)

    def release(self, references: References) -> None:
        """Count references that a pattern does not have any more."""
        self._count(references, -1)

    def _count(self, references: References, sign: int) -> None:
        numbers, owners, counts = np.unique(refs.numbers(references), return_inverse=True, return_counts=True)
        sizes = np.bincount(owners, self.sizes_of(references), len(numbers)).astype(np.int64)
        slices, places = self.slices, self._slices.places(numbers)
        if (places < 0).any():
            raise CorruptState(f"windows refer to events of slice {numbers[places < 0][0]}, which is not stored. {RESTORE}")
        slices["references"][places] += sign * counts
        slices["live"][places] += sign * sizes
        if sign < 0:
            slices["released"][places] += np.where(slices["released"][places] >= 0, sizes, 0)

    # versions --------------------------------------------------------------------------------------------------------

    def write(self, needed: Callable[[Times], Mask], holders: int, referenced: Callable[[], References]) -> None:
        """Let go of events that nobody needs, and write the others into the log, for its next version.

        Parameters
        ----------
        needed : callable
            Whether all events are needed of slices whose last events are of these times.
        holders : int
            How many patterns have references.
        referenced : callable
            All references that there are.
        """
        slices = self.slices
        over = (slices["references"] == 0) & ~needed(slices["last"])
        numbers = slices["number"][over].tolist()
        for start, number in zip(slices["start"][over].tolist(), numbers, strict=True):
            self._lasts.pop(number, None)
            if self._open.get(start) == number:
                del self._open[start]
        self._slices.keep(~over)
        self.changes += 1
        self._store.drop(numbers)
        self._store.flush()
        self._thin_out(needed, holders, referenced)
        self._store.flush()
        if np.array_equal(self.slices, self._written):
            return  # to write it anew would leave a file to remove, and so make a version for that, and so on
        self._log.drop([SLICES, UNWEIGHED_SLICES])
        self._written = self.slices.copy()
        if len(self.slices):
            self._log.append(SLICES, self._slices.to_batch())

    def _thin_out(self, needed: Callable[[Times], Mask], holders: int, referenced: Callable[[], References]) -> None:
        """Rewrite slices that are kept for few of their bytes, if that frees a good share of all.

        Several patterns may refer to other events, or to the same. So what is stored is looked at again when references were
        given back to as much as is to be freed.
        """
        most, slices = self._options.max_space_amplification, self.slices
        size, live, released = slices["size"], slices["live"], slices["released"]
        sparse = ~needed(slices["last"]) & (live * most < size * holders)
        sparse &= (released < 0) | (released * most >= size * (most - 1))
        idle = int((size - live // max(1, holders))[sparse].sum())
        if not sparse.any() or idle < LEAST_COMPACTED or idle * most < int(size.sum()) * (most - 1):
            return
        references = referenced()
        places, first = np.unique(refs.places(references), return_index=True)
        numbers, sizes = refs.numbers(places), self.sizes_of(references[first])
        for place in np.flatnonzero(sparse).tolist():
            released[place] = 0
            number = int(slices["number"][place])
            low, high = np.searchsorted(numbers, [number, number + 1])
            left = int(sizes[low:high].sum())
            if left * most < size[place]:
                size[place] = left
                self._keep(number, refs.ordinals_of(places[low:high]))

    def _keep(self, number: int, ordinals: References) -> None:
        """Of a slice, write some events again in place of all."""
        batches = list(self.rows(number))
        self._store.drop([number])
        for batch in batches:
            mask = np.isin(batch[ORDINAL].to_numpy(), ordinals)
            if mask.any():
                self._store.append(number, batch.filter(pa.array(mask)))

    @property
    def metrics(self) -> Metrics:
        """What the store has done since it was opened."""
        found = self._store.metrics
        return replace(found, live_bytes=found.live_bytes + self._log.bytes_of([SLICES]))

    @property
    def memory_bytes(self) -> int:
        """Size of what is in memory."""
        return self._store.metrics.memory_bytes
