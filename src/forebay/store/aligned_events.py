"""Aligned windows over events that several patterns share: they are read straight from the event log, and have no state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.store.event_slices import Integers
from forebay.store.events import EventLog, Mask
from forebay.store.extent_log import LogPart
from forebay.store.filenames import Version
from forebay.store.manifest import Counters, Manifest
from forebay.store.metrics import Metrics
from forebay.store.options import Options
from forebay.store.partitions import partitions_of
from forebay.windows import TIME, AlignedWindows, Times


class AlignedEvents:
    """The events as one pattern's aligned windows see them: by slices of its own. Nothing is stored here.

    Parameters
    ----------
    events : EventLog
        The events.
    log : LogPart
        A part of the log, for the pattern's counters.
    windows : AlignedWindows
        The pattern's windows.
    columns : sequence of str
        The columns of events that the pattern reads.
    keys : sequence of str
        Those that are keys.
    options : Options
        Limits.
    fired_until : int
        Windows that end by then (microseconds) have fired.
    """

    def __init__(
        self,
        events: EventLog,
        log: LogPart,
        windows: AlignedWindows,
        columns: Sequence[str],
        keys: Sequence[str],
        options: Options,
        fired_until: int,
    ) -> None:
        self._events, self._log, self._windows = events, log, windows
        self._columns, self._keys, self._options = list(columns), list(keys), options
        self._open_from = windows.open_from(fired_until)
        self._found: tuple[int, Times, Integers] = (-1, np.empty(0, np.int64), np.empty(0, np.int64))
        self._straddling: dict[int, tuple[int, Times]] = {}
        self._counts = Metrics()

    @property
    def base(self) -> Manifest:
        """The version that was opened."""
        return self._log.base

    @property
    def slices(self) -> Times:
        """Starts of the pattern's slices that have events which some window needs that has not fired, ascending."""
        return np.unique(self._lying[0])

    @property
    def _lying(self) -> tuple[Times, Integers]:
        """Starts of the pattern's slices, ascending, and with each a slice of the log that has some of its events."""
        changes, starts, numbers = self._found
        if changes != self._events.changes:
            slices = self._events.slices
            slices = slices[self.needs(slices["last"])]
            first, last = (self._windows.slice_starts(slices[name]) for name in ("first", "last"))
            apart, lengths = np.flatnonzero(first != last), np.ones(len(slices), np.int64)
            several = [self._starts(int(each["number"]), int(each["events"])) for each in slices[apart]]
            lengths[apart] = [len(own) for own in several]
            starts, begins = np.repeat(first, lengths), np.cumsum(lengths) - lengths
            for begin, own in zip(begins[apart].tolist(), several, strict=True):
                starts[begin : begin + len(own)] = own
            order = np.argsort(starts, kind="stable")
            starts, numbers = starts[order], np.repeat(slices["number"], lengths)[order]
        begin = np.searchsorted(starts, self._open_from)
        self._found = self._events.changes, starts[begin:], numbers[begin:]
        return self._found[1:]

    def _starts(self, number: int, events: int) -> Times:
        """The pattern's slices that have events of a slice of the log that is in several of them."""
        known = self._straddling.get(number)
        if known is None or known[0] != events:
            own = [np.unique(self._windows.slice_starts(batch[TIME].to_numpy())) for batch in self._events.rows(number)]
            known = self._straddling[number] = events, np.unique(np.concatenate(own))
        return known[1]

    def needs(self, times: Times) -> Mask:
        """Whether some window over each instant has not fired."""
        return times >= self._open_from

    def append_slices(self, batch: pa.RecordBatch, starts: Times, begins: Times, ends: Times) -> None:
        """Nothing: events are in the event log before their patterns see them."""

    def get_window(self, slices: Sequence[int]) -> Iterator[pl.DataFrame]:
        """The events of some slices, as `forebay.store.aligned.AlignedStore.get_window` gives rows."""
        batches = ((start, batch) for start in slices for batch in self._rows(start))
        size, directory = int(self._events.sizes_of_slices(self._numbers(slices)).sum()), self._events.directory
        for part in partitions_of(batches, self._keys, size, self.window_bytes, directory):
            self._counts.reads += part.height
            yield part

    def _rows(self, start: int) -> Iterator[pa.RecordBatch]:
        length = self._windows.slice_length
        for number in self._numbers([start]).tolist():
            for batch in self._events.rows(number):
                times = batch[TIME].to_numpy()
                inside = (times >= start) & (times < start + length)
                own = batch.select(self._columns)
                yield arrow.where(own, inside)

    def _numbers(self, slices: Sequence[int]) -> Integers:
        """The slices of the log that have events of some slices."""
        starts, numbers = self._lying
        if len(slices) == 1:
            begin, end = np.searchsorted(starts, [slices[0], slices[0] + 1])
            return numbers[begin:end]
        return np.unique(numbers[np.isin(starts, slices)])

    def sizes_of(self, slices: Times) -> Integers:
        """Size of the events of each of some slices; those of a slice of the log that is in several are counted in each."""
        starts, numbers = self._lying
        begins, ends = (np.searchsorted(starts, slices, side=side) for side in ("left", "right"))
        first = begins.min(initial=len(starts))
        known, places = np.unique(numbers[first : ends.max(initial=0)], return_inverse=True)
        sizes = np.cumsum(np.append(0, self._events.sizes_of_slices(known)[places]))
        return sizes[ends - first] - sizes[begins - first]

    @property
    def window_bytes(self) -> int:
        """Events of this size can be loaded and grouped within the memory budget."""
        return self._options.load_bytes

    def drop(self, slices: Sequence[int]) -> None:
        """Note that the windows over some slices have fired: of the last one, and so of all before."""
        if slices:
            last = int(self._windows.last_window(np.array(slices[-1:]))[0])
            self._open_from = max(self._open_from, last + self._windows.slide)

    def commit(self, fired_until: int | None, counters: Counters, batch: int | None = None) -> Version:
        """Have these counters in the next version of the whole log; that version."""
        return self._log.commit(fired_until, counters, batch)

    @property
    def metrics(self) -> Metrics:
        """What was read."""
        return self._counts

    def close(self) -> None:
        """Nothing: files are the event log's."""
