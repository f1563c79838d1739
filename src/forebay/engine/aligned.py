"""Aligned windows: tumbling and sliding ones, which fire for all keys at once (FlowKV, sections 4.1 and 4.3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import ROWS, Aggregation
from forebay.engine.instance import Counting, Opening, require_same_time
from forebay.engine.observer import ARRIVAL
from forebay.engine.plan import END_OF_TIME, NEVER, WindowPlan
from forebay.engine.results import WINDOW, results, window_column
from forebay.engine.stored_form import StoredForm
from forebay.store.aligned import AlignedStore, SliceStore
from forebay.store.archive import Archive
from forebay.store.disk import LOCAL, Disk
from forebay.store.extent_log import LogPart
from forebay.store.filenames import Version
from forebay.store.metrics import Metrics
from forebay.store.partitions import SLICE
from forebay.store.rmw import open_rmw
from forebay.windows import AlignedWindows, Times

_TOGETHER_BYTES = 1 << 18
"""Tumbling windows of this size are grouped one by one."""


class AlignedInstance(Counting):
    """Aligned windows, which fire for all keys at once.

    A ``store`` is one that it is to use, if not one of its own.
    """

    def __init__(self, plan: WindowPlan, opening: Opening, store: SliceStore | None = None) -> None:
        assert isinstance(plan.windows, AlignedWindows)
        self._observer = opening.observer
        self._plan, self._windows = plan, plan.windows
        self._store = store or aligned_store(plan, opening.directory, opening.version, opening.archive, opening.disk)
        if store is None:  # whoever lends a store has looked, and may hand over what came before
            require_same_time(self._store.base, opening)
        self._fired_until = opening.fired_until
        self.counters = self._store.base.counters

    def ingest(self, batch: pa.RecordBatch, *, partial: bool = False) -> None:
        """Take rows, or partial aggregates made before the shuffle, that are sorted by slice.

        Those whose last window has fired are dropped and counted. The others are never lost.
        """
        if self._observer is not None:
            rows, windows_of_rows = self._windows.placements(batch[SLICE].to_numpy())
            open_ = windows_of_rows + self._windows.size > self._fired_until
            starts = windows_of_rows[open_]
            self._observer.enters(batch, rows[open_], starts, starts + self._windows.size)
            batch = batch.drop_columns([ARRIVAL])
        if self._plan.pattern is Pattern.RMW and not partial:
            batch, partial = partial_batch(self._plan, pl.DataFrame(batch)), True
        windows = self._windows
        starts, begins = runs(batch[SLICE].to_numpy())
        ends = np.append(begins[1:], batch.num_rows)
        rows = np.add.reduceat(batch[ROWS].to_numpy(), begins) if partial else ends - begins
        late = windows.last_window(starts) + windows.size <= self._fired_until
        partly = ~late & (windows.first_window(starts) + windows.size <= self._fired_until)
        self._count(rows_in=rows.sum(), rows_late=rows[late].sum(), rows_partly_late=rows[partly].sum())
        batch, lengths = batch.drop_columns([SLICE]), ends - begins
        if 2 * lengths[late].sum() > batch.num_rows:  # a slice of it would keep all of it in memory
            batch = batch.filter(pa.array(np.repeat(~late, lengths)))
            ends = np.cumsum(np.where(late, 0, lengths))
            begins = ends - lengths
        self._store.append_slices(batch, starts[~late], begins[~late], ends[~late])

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Results of every window whose end is at or before ``watermark`` (microseconds) and that has not fired yet.

        Exhaust the iterator; each item holds the results of some keys of some windows.
        """
        slices = self._store.slices
        due = self._windows.windows_between(slices, self._fired_until, watermark)
        ends, dropped = self._windows.last_window(slices) + self._windows.size, 0
        for windows in self._loadable(due, slices):
            end = windows[-1] + self._windows.size
            first, last = np.searchsorted(slices, [windows[0], end])
            for part in self._store.get_window(slices[first:last].tolist()):
                for batch in self._results(windows, part):
                    self._count(rows_out=batch.num_rows)
                    yield batch
            self._count(windows_fired=len(windows))
            over = int(np.searchsorted(ends, end, side="right"))
            self._store.drop(slices[dropped:over].tolist())
            dropped = max(dropped, over)
        self._fired_until = max(self._fired_until, watermark)

    def commit(self, batch: int | None = None) -> Version | None:
        """Make the state after this micro-batch the next version; the same one when nothing has changed."""
        base = self._store.base
        if self.counters == base.counters and not base.stale:
            return base.version
        return self._store.commit(self._fired_until, self.counters, batch)

    @property
    def due(self) -> int:
        if self._store.base.stale:
            return NEVER
        slices = self._store.slices
        if not len(slices):
            return END_OF_TIME
        end = int(self._windows.first_window(slices[:1])[0]) + self._windows.size
        fired = max(0, (self._fired_until - end) // self._windows.slide + 1)  # windows of that slice
        return end + fired * self._windows.slide

    @property
    def metrics(self) -> Metrics:
        """What the store has done since it was opened."""
        return self._store.metrics

    def close(self) -> None:
        """Let go of files, whether the batch was committed or not."""
        self._store.close()

    def _loadable(self, due: list[int], slices: Times) -> Iterator[list[int]]:
        """Windows that fire, a few at a time: as many as fit into memory together, at least one.

        Of tumbling windows, which have no rows in common, only small ones are together: rows of one window are grouped by
        their keys alone, which takes half the time.
        """
        if not due:
            return
        tumbling = self._windows.slice_length == self._windows.size
        most = min(self._store.window_bytes, _TOGETHER_BYTES) if tumbling else self._store.window_bytes
        begins, ends = np.searchsorted(slices, due), np.searchsorted(slices, np.array(due) + self._windows.size)
        slices, begins, ends = slices[begins[0] : ends[-1]], begins - begins[0], ends - begins[0]
        sizes = np.cumsum(np.append(0, self._store.sizes_of(slices)))
        together: list[int] = []
        size = 0
        for start, more in zip(due, (sizes[ends] - sizes[begins]).tolist(), strict=True):
            if together and size + more > most:
                yield together
                together, size = [], 0
            together.append(start)
            size += more
        yield together

    def _results(self, windows: list[int], part: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        """Results of windows from the rows, or partial aggregates, of their slices."""
        aggregation, by = self._plan.aggregation, [WINDOW]
        if len(windows) == 1:
            part.drop_in_place(SLICE)  # it was read for this firing alone; a plan of polars would take longer
            by = []
        else:
            part = self._by_window(windows, part)
        placed = part if by or isinstance(aggregation, Aggregation) else part.with_columns(window_column(windows[0]))
        if self._observer is not None:
            told = (part if by else part.with_columns(window_column(windows[0]))).select(WINDOW, *self._plan.keys)
            fired = told.unique(maintain_order=True).sort(WINDOW, maintain_order=True)
            self._observer.leaves(fired, *self._bounds(fired[WINDOW].to_numpy()).T)
        partial = self._plan.pattern is Pattern.RMW
        yield from results(self._plan, placed, self._bounds, only=None if by else windows[0], partial=partial)

    def _bounds(self, starts: Times) -> npt.NDArray[np.int64]:
        return np.stack([starts, starts + self._windows.size], axis=1)

    def _by_window(self, windows: list[int], part: pl.DataFrame) -> pl.DataFrame:
        """Rows of slices as rows of windows: once for each of ``windows`` that contains their slice."""
        if self._windows.slice_length == self._windows.size:
            return part.rename({SLICE: WINDOW})
        slices = part[SLICE].unique().to_numpy()
        positions, starts = self._windows.placements(slices, (windows[0], windows[-1]))
        places = pl.DataFrame({SLICE: slices[positions], WINDOW: starts})
        return part.join(places, on=SLICE, maintain_order="left").drop(SLICE)


def aligned_store(
    plan: WindowPlan,
    directory: Path,
    version: Version | None,
    archive: Archive | None = None,
    disk: Disk = LOCAL,
    log: LogPart | None = None,
) -> AlignedStore:
    """The store of an operator with aligned windows."""
    if plan.pattern is Pattern.RMW:
        assert isinstance(plan.aggregation, Aggregation)
        form = StoredForm(plan.packed, plan.aggregation)
        return open_rmw(directory, version, plan.keys, plan.aggregation.merge, plan.options, archive, form, disk, log)
    form = StoredForm(plan.packed)
    return AlignedStore(directory, version, plan.keys, plan.options, archive=archive, form=form, disk=disk, log=log)


def partial_batch(plan: WindowPlan, rows: pl.DataFrame) -> pa.RecordBatch:
    """Partial aggregates of rows as they are stored and shuffled, sorted by slice."""
    assert isinstance(plan.aggregation, Aggregation)
    return arrow.batch_of(plan.aggregation.partial(rows, (SLICE,)).sort(SLICE))


def runs(slices: Times) -> tuple[Times, Times]:
    """The distinct values of sorted slices, and the position at which each begins."""
    begins = np.flatnonzero(np.diff(slices, prepend=slices[:1] - 1))
    return slices[begins], begins
