"""Aligned windows over events that several patterns share: they are read straight from the event log, and have no state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from forebay.store.events import EventLog
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
        self._found: tuple[int, dict[int, list[int]]] = (-1, {})
        self._straddling: dict[int, tuple[int, Times]] = {}
        self._counts = Metrics()

    @property
    def base(self) -> Manifest:
        """The version that was opened."""
        return self._log.base

    @property
    def slices(self) -> Times:
        """Starts of the pattern's slices that have events which some window needs that has not fired, ascending."""
        return np.array(list(self._numbers), dtype=np.int64)

    @property
    def _numbers(self) -> dict[int, list[int]]:
        """By the pattern's slices, ascending, the slices of the event log that have events in them."""
        changes, found = self._found
        if changes != self._events.changes:
            needed = [each for each in self._events.slices if self.needs(each.last)]
            times = np.array([(each.first, each.last) for each in needed], np.int64).reshape(-1, 2)
            found = {}
            for each, (first, last) in zip(needed, self._windows.slice_starts(times).tolist(), strict=True):
                for start in [first] if first == last else self._starts(each.number, each.events).tolist():
                    if self.needs(start):
                        found.setdefault(start, []).append(each.number)
            found = dict(sorted(found.items()))
            self._found = self._events.changes, found
        return found

    def _starts(self, number: int, events: int) -> Times:
        """The pattern's slices that have events of a slice of the log that is in several of them."""
        known = self._straddling.get(number)
        if known is None or known[0] != events:
            own = [np.unique(self._windows.slice_starts(batch[TIME].to_numpy())) for batch in self._events.rows(number)]
            known = self._straddling[number] = events, np.unique(np.concatenate(own))
        return known[1]

    def needs(self, time: int) -> bool:
        """Whether some window over an instant has not fired."""
        return time >= self._open_from

    def append_slices(self, batch: pa.RecordBatch, starts: Times, begins: Times, ends: Times) -> None:
        """Nothing: events are in the event log before their patterns see them."""

    def get_window(self, slices: Sequence[int]) -> Iterator[pl.DataFrame]:
        """The events of some slices, as `forebay.store.aligned.AlignedStore.get_window` gives rows."""
        batches = ((start, batch) for start in slices for batch in self._rows(start))
        directory = self._events.directory
        for part in partitions_of(batches, self._keys, self.bytes_of(slices), self.window_bytes, directory):
            self._counts.reads += part.height
            yield part

    def _rows(self, start: int) -> Iterator[pa.RecordBatch]:
        length = self._windows.slice_length
        for number in self._numbers.get(start, ()):
            for batch in self._events.rows(number):
                times = batch[TIME].to_numpy()
                inside = (times >= start) & (times < start + length)
                own = batch.select(self._columns)
                yield own if inside.all() else own.filter(pa.array(inside))

    def bytes_of(self, slices: Iterable[int]) -> int:
        """Size of the events of some slices."""
        numbers = self._numbers
        return self._events.bytes_of({number for start in slices for number in numbers.get(start, ())})

    @property
    def window_bytes(self) -> int:
        """Events of this size can be loaded and grouped within the memory budget."""
        return self._options.load_bytes

    def drop(self, slices: Sequence[int]) -> None:
        """Note that the windows over some slices have fired: of the last one, and so of all before."""
        if slices:
            last = int(self._windows.last_window(np.array(slices[-1:]))[0])
            self._open_from = max(self._open_from, last + self._windows.slide)
            _, found = self._found
            while found and not self.needs(first := next(iter(found))):
                del found[first]

    def commit(self, fired_until: int | None, counters: Counters, batch: int | None = None) -> Version:
        """Have these counters in the next version of the whole log; that version."""
        return self._log.commit(fired_until, counters, batch)

    @property
    def metrics(self) -> Metrics:
        """What was read."""
        return self._counts

    def close(self) -> None:
        """Nothing: files are the event log's."""
