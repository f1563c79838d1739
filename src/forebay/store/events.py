"""The events that several patterns share: each is stored once, and patterns have references to it.

A reference is an integer: the number of the event's slice, the event's number within that slice, its *ordinal*, and about
how large it is (`forebay.store.event_references`). How many references there are to the events of a slice, and how many
bytes these events have, is counted, and stored with each version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
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
from forebay.store.extent_log import LEAST_COMPACTED, ExtentLog
from forebay.store.form import Form
from forebay.store.manifest import EVENTS, SLICES, UNWEIGHED_SLICES
from forebay.store.metrics import Metrics
from forebay.store.options import Options
from forebay.store.segment import Extent
from forebay.windows import TIME, AlignedWindows, Times

EVENT = "event"
"""The column of references to events."""

ORDINAL = "ordinal"
"""The column that has the number of an event within its slice. Beside it and a user's columns is `TIME`, in microseconds."""

_ROWS = 1 << 16
"""Slices by arrival have so many events."""


@dataclass
class EventSlice:
    """Events that are stored together.

    Attributes
    ----------
    number : int
        What it is called in references.
    start, length : int
        The interval of time that it is of (microseconds); the length is 0 if it has events by their arrival.
    first, last : int
        The earliest and the latest time of its events.
    events : int
        How many it has been given; ordinals go on from there.
    references : int
        How many references patterns have to its events.
    size : int
        Bytes of the events that are stored.
    live : int
        Bytes of those to which there are references, once for each of these.
    released : int
        Bytes of those to which references were given back since it was last looked for events without any; -1 if it never
        was.
    unknown : int
        Bytes that those events are taken for whose references do not say how large they are.
    columns : frozenset of str
        Those with which all of its events were stored; none if that is not known. What is on disk does not tell: an event
        that is written again has all columns of now.
    """

    number: int
    start: int
    length: int
    first: int = 2**63 - 1
    last: int = -(2**63)
    events: int = 0
    references: int = 0
    size: int = 0
    live: int = 0
    released: int = -1
    unknown: int = 0
    columns: frozenset[str] = frozenset()


_NUMBERS_OF_SLICE = [field.name for field in fields(EventSlice) if field.name != "columns"]
_ROW = attrgetter(*_NUMBERS_OF_SLICE, "columns")


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
    >>> [(each.start, each.events, each.references) for each in events.slices]
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
        groups = SLICES, UNWEIGHED_SLICES
        self._slices = {each.number: each for group in groups for rows in log.read(group) for each in self._slices_in(rows)}
        if max(self._slices, default=0) >= refs.NUMBERS:
            raise LayoutChanged(
                f"slices of patterns in {self.directory} have numbers from {refs.NUMBERS:,} on, which this release of "
                "forebay cannot put into references. The state is whole: go on with the release that wrote it, or start "
                "with a new checkpoint location."
            )
        self._written = list(map(_ROW, self._slices.values()))
        self._numbers = {each.start: each.number for each in self._slices.values() if self._goes_on(each)}
        self._lasts = {number: lasts for number, lasts in self._lasts.items() if number in self._slices}
        self.changes += 1

    def _slices_in(self, batch: pa.RecordBatch) -> Iterator[EventSlice]:
        """Slices as they were written. Where no sizes were, all events of a slice are taken for equally large."""
        names = [name for name in _NUMBERS_OF_SLICE if name in batch.schema.names]
        texts = batch["columns"].to_pylist() if "columns" in batch.schema.names else [""] * batch.num_rows
        different = {text: frozenset(text.split(",") if text else ()) for text in set(texts)}
        for text, *row in zip(texts, *(batch[name].to_pylist() for name in names), strict=True):
            each = EventSlice(**dict(zip(names, row, strict=True)), columns=different[text])
            if "size" not in names:
                rows = self._part.rows_of([each.number])
                each.unknown = self._part.bytes_of([each.number]) // max(1, rows)
                each.size, each.live = rows * each.unknown, each.references * each.unknown
            yield each

    def _goes_on(self, each: EventSlice) -> bool:
        """Whether events of now belong into a slice that was begun maybe by another form of the query."""
        slicing = self._slicing
        if slicing is None:
            return each.length == 0 and each.events < _ROWS
        return (
            each.length == slicing.size
            and each.events < refs.MOST_EVENTS
            and (each.start - slicing.offset) % slicing.size == 0
        )

    @property
    def slices(self) -> list[EventSlice]:
        """The slices that there are."""
        return list(self._slices.values())

    @property
    def stored(self) -> int:
        """How many events are stored."""
        return self._part.rows_of(self._slices) + self._store.buffered_rows

    def append(self, times: Times, batch: pa.RecordBatch) -> References:
        """Store events; references to them."""
        self.changes += 1
        if not batch.num_rows:
            return np.empty(0, np.int64)
        names = frozenset(batch.schema.names)
        order, begins, slices = self._placed(times)
        if order is not None:
            times, batch = times[order], batch.take(pa.array(order))
        lengths = np.diff(begins, append=batch.num_rows)
        firsts = np.array([each.events for each in slices])
        numbers = np.array([each.number for each in slices])
        ordinals = np.arange(batch.num_rows) + np.repeat(firsts - begins, lengths)
        columns = [*batch.columns, pa.array(times), pa.array(ordinals.astype(np.uint32))]
        schema = pa.schema([*batch.schema, (TIME, pa.int64()), (ORDINAL, pa.uint32())])
        stored = pa.RecordBatch.from_arrays(columns, schema=schema)
        widths = refs.widths_of(stored)
        bounds = np.minimum.reduceat(times, begins), np.maximum.reduceat(times, begins)
        sizes = np.add.reduceat(refs.BYTES[widths], begins)
        counts = (column.tolist() for column in (lengths, *bounds, sizes))
        for each, events, first, last, size in zip(slices, *counts, strict=True):
            each.columns = each.columns & names if each.events else names
            each.events += events
            each.first, each.last = min(each.first, first), max(each.last, last)
            each.size += size
        self._store.append_slices(stored, numbers, begins, begins + lengths)
        ordered = refs.made(np.repeat(numbers, lengths), ordinals, widths)
        if order is None:
            return ordered
        references = np.empty_like(ordered)
        references[order] = ordered
        return references

    def _placed(self, times: Times) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int64], list[EventSlice]]:
        """How to order events by slice (None: as they are), where each slice begins in that order, and the slices."""
        if self._slicing is None:
            return None, *self._by_arrival(len(times))
        starts = self._slicing.slice_starts(times)
        order = None if (starts[1:] >= starts[:-1]).all() else np.argsort(starts, kind="stable")
        starts = starts if order is None else starts[order]
        begins = np.flatnonzero(np.append(True, starts[1:] > starts[:-1]))
        slices = []
        for start, rows in zip(starts[begins].tolist(), np.diff(begins, append=len(times)).tolist(), strict=True):
            if start in self._numbers and self._slices[self._numbers[start]].events + rows > refs.MOST_EVENTS:
                del self._numbers[start]  # ordinals would not fit into references: a further slice of the same interval
            slices.append(self._slice(start, self._slicing.size))
        return order, begins, slices

    def _by_arrival(self, rows: int) -> tuple[npt.NDArray[np.int64], list[EventSlice]]:
        """Where each slice begins in so many events in order of arrival, and the slices."""
        begins, slices, begin = [], [], 0
        while begin < rows:
            slices.append(self._slice(0, 0))
            begins.append(begin)
            begin += max(1, _ROWS - slices[-1].events)
            if begin <= rows:
                del self._numbers[0]
        return np.array(begins), slices

    def _slice(self, start: int, length: int) -> EventSlice:
        if start not in self._numbers:
            number = (next(reversed(self._slices), -1) + 1) % refs.NUMBERS
            while number in self._slices:
                number = (number + 1) % refs.NUMBERS
            self._numbers[start] = number
            self._slices[number] = EventSlice(number, start, length)
        return self._slices[self._numbers[start]]

    # reading ---------------------------------------------------------------------------------------------------------

    def rows(self, number: int) -> Iterator[pa.RecordBatch]:
        """The events of a slice, batch by batch, in order of their ordinals."""
        yield from self._store.rows(number)

    @property
    def columns(self) -> frozenset[str]:
        """The columns with which all stored events were stored."""
        return frozenset.intersection(*(each.columns for each in self._slices.values())) if self._slices else frozenset()

    def everything(self) -> Iterator[tuple[References, pa.RecordBatch]]:
        """References to all events, and these with their `TIME`: slice by slice in event time, in order of arrival there."""
        for each in sorted(self._slices.values(), key=attrgetter("start")):
            for batch in self.rows(each.number):
                yield refs.made(each.number, batch[ORDINAL].to_numpy(), refs.widths_of(batch)), batch

    def bytes_of(self, numbers: Iterable[int]) -> int:
        """Size of the events of some slices."""
        return self._store.bytes_of(numbers)

    @property
    def referenced_bytes(self) -> int:
        """Size of all events that patterns refer to, once for each reference."""
        return sum(each.live for each in self._slices.values())

    def sizes_of(self, references: References) -> npt.NDArray[np.int64]:
        """About how many bytes each of the events has that references name."""
        widths = refs.width(references)
        sizes: npt.NDArray[np.int64] = refs.BYTES[widths]
        unknown = np.flatnonzero(widths == 0)
        numbers, places = np.unique(refs.numbers(references[unknown]), return_inverse=True)
        known = [self._slices[number].unknown if number in self._slices else 0 for number in numbers.tolist()]
        sizes[unknown] = np.array(known, np.int64)[places]
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

        for extent, batch in self._store.rows_where(number, has_some) if number in self._slices else ():
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
        numbers, places, counts = np.unique(refs.numbers(references), return_inverse=True, return_counts=True)
        sizes = np.bincount(places, self.sizes_of(references)).astype(np.int64)
        for number, count, size in zip(numbers.tolist(), counts.tolist(), sizes.tolist(), strict=True):
            each = self._slices[number]
            each.references += sign * count
            each.live += sign * size
            if sign < 0 <= each.released:
                each.released += size

    # versions --------------------------------------------------------------------------------------------------------

    def write(self, needed: Callable[[EventSlice], bool], holders: int, referenced: Callable[[], References]) -> None:
        """Let go of events that nobody needs, and write the others into the log, for its next version.

        Parameters
        ----------
        needed : callable
            Whether a slice is needed as a whole.
        holders : int
            How many patterns have references.
        referenced : callable
            All references that there are.
        """
        over = [number for number, each in self._slices.items() if not each.references and not needed(each)]
        for number in over:
            del self._slices[number]
            self._lasts.pop(number, None)
        self._numbers = {start: number for start, number in self._numbers.items() if number in self._slices}
        self.changes += 1
        self._store.drop(over)
        self._store.flush()
        self._thin_out(needed, holders, referenced)
        self._store.flush()
        rows = list(map(_ROW, self._slices.values()))
        if rows == self._written:
            return  # to write it anew would leave a file to remove, and so make a version for that, and so on
        self._log.drop([SLICES, UNWEIGHED_SLICES])
        self._written = rows
        if rows:
            *numbers, known = zip(*rows, strict=True)
            columns = [pa.array(values, pa.int64()) for values in numbers]
            different = {each: ",".join(sorted(each)) for each in set(known)}
            columns.append(pa.array([different[each] for each in known], pa.string()))
            self._log.append(SLICES, pa.record_batch(columns, [*_NUMBERS_OF_SLICE, "columns"]))

    def _thin_out(self, needed: Callable[[EventSlice], bool], holders: int, referenced: Callable[[], References]) -> None:
        """Rewrite slices that are kept for few of their bytes, if that frees a good share of all.

        Several patterns may refer to other events, or to the same. So what is stored is looked at again when references were
        given back to as much as is to be freed.
        """
        most = self._options.max_space_amplification
        sparse = [
            each
            for each in self._slices.values()
            if not needed(each)
            and each.live * most < each.size * holders
            and (each.released < 0 or each.released * most >= each.size * (most - 1))
        ]
        idle = sum(each.size - each.live // max(1, holders) for each in sparse)
        total = sum(each.size for each in self._slices.values())
        if not sparse or idle < LEAST_COMPACTED or idle * most < total * (most - 1):
            return
        references = referenced()
        places, first = np.unique(refs.places(references), return_index=True)
        numbers, sizes = refs.numbers(places), self.sizes_of(references[first])
        for each in sparse:
            each.released = 0
            low, high = np.searchsorted(numbers, [each.number, each.number + 1])
            size = int(sizes[low:high].sum())
            if size * most < each.size:
                each.size = size
                self._keep(each.number, refs.ordinals_of(places[low:high]))

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
