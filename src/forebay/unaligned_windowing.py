"""Windows that each key has of its own: sessions, custom windows, count windows, one global window; and update mode.

All of them are a way to place rows in windows of the `UnalignedStore`, and a rule for when these fire.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay.aggregates.aggregation import ROWS, Aggregation
from forebay.errors import UnsupportedConfiguration
from forebay.evolution import StoredForm
from forebay.patterns import Pattern
from forebay.store import kernels, open_stores, predictors
from forebay.store.aligned import LOAD_FACTOR, SLICE
from forebay.store.archive import Archive
from forebay.store.filenames import Version
from forebay.store.identity import identities
from forebay.store.key_index import Slots
from forebay.store.metrics import Metrics
from forebay.store.unaligned import SLOT
from forebay.windowing import (
    NEVER,
    WINDOW,
    Instance,
    WindowPlan,
    counted,
    require_same_time,
    results,
)
from forebay.windows import (
    END,
    ETT,
    HIGH,
    LOW,
    START,
    AlignedWindows,
    CountWindows,
    CustomWindows,
    FirstRows,
    GlobalWindow,
    Intervals,
    Lives,
    Times,
)


def kind_of(plan: WindowPlan) -> Callable[..., Instance]:
    """The kind of instance for the windows of a plan."""
    if isinstance(plan.windows, CountWindows):
        return CountInstance
    if isinstance(plan.windows, FirstRows):
        return DedupeInstance
    if isinstance(plan.windows, Intervals):
        from forebay.interval_joining import IntervalJoinInstance

        return IntervalJoinInstance
    if isinstance(plan.windows, Lives):
        from forebay.continuous_joining import ContinuousJoinInstance

        return ContinuousJoinInstance
    return GlobalInstance if isinstance(plan.windows, GlobalWindow) else SessionInstance


_AT_ONCE = 1 << 16
"""Rows are placed about so many at a time, each counted once for every window that it is in."""

_REPEATED = 1 << 20
"""Rows of count windows are aggregated about so many at a time, each counted once for every window."""


class UnalignedInstance(ABC):
    """What the instances have in common; see `forebay.windowing.Instance`."""

    slices: tuple[str, ...] = ()
    """What divides the rows of a window that are aggregated apart."""

    def __init__(
        self,
        plan: WindowPlan,
        directory: Path,
        version: Version | None,
        fired_until: int = NEVER,
        archive: Archive | None = None,
    ) -> None:
        aggregation = plan.aggregation
        shared = isinstance(plan.windows, CustomWindows) and plan.windows.shared
        if isinstance(aggregation, Aggregation) and not shared:  # a window is of one key
            aggregation = replace(aggregation, keys=(), carried=plan.keys)
        self._plan = replace(plan, aggregation=aggregation)
        self._incremental = plan.pattern is Pattern.RMW
        merge = self._merge if self._incremental else None
        partial = aggregation if self._incremental and isinstance(aggregation, Aggregation) else None
        form = StoredForm(plan.packed, partial, self.slices, converted=True)
        self._store = open_stores.take(directory, version, plan.options, merge, archive, form)
        require_same_time(self._store.base, directory, fired_until)
        self._fired_until = fired_until
        self.counters = self._store.base.counters

    def ingest(self, batch: pa.RecordBatch, *, partial: bool = False) -> None:
        self._take(self._identified(batch), partial=partial)

    @abstractmethod
    def _take(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        """Take rows, or partial aggregates, that have the columns `HIGH` and `LOW`: the identity of their key."""

    def commit(self, batch: int | None = None) -> Version | None:
        base = self._store.base
        version = base.version
        if self.counters != base.counters or base.stale or self._store.changed:
            version = self._store.commit(self._fired_until, self.counters, batch)
        open_stores.keep(self._store)
        return version

    @property
    def metrics(self) -> Metrics:
        return self._store.metrics

    def close(self) -> None:
        self._store.close()

    def _identified(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch with the identities of its keys. State of format 3 goes on with those that pack has from Spark."""
        secret, windows = self._store.base.secret, self._plan.windows
        if secret is None:
            if HIGH not in batch.schema.names:
                raise UnsupportedConfiguration(
                    f"the state in {self._store.directory} was begun by an earlier release of forebay, which told keys "
                    "apart in another way, and the tasks of this query do not know that. Start the query from the session "
                    "that its DataFrame was defined in."
                )
            return batch
        shared = isinstance(windows, CustomWindows) and windows.shared
        columns = [] if shared else [batch[name] for name in self._plan.identity]
        high, low = identities(columns, batch.num_rows, secret)
        others = batch.select([name for name in batch.schema.names if name not in (HIGH, LOW)])
        return others.append_column(HIGH, pa.array(high)).append_column(LOW, pa.array(low))

    def _merge(self, partials: pl.DataFrame) -> pl.DataFrame:
        aggregation = self._plan.aggregation
        assert isinstance(aggregation, Aggregation)
        if self.slices:
            return aggregation.merge(partials, (SLOT, *self.slices))
        repeated = kernels.repeated(partials[SLOT].to_numpy(), self._store.index.capacity)
        if not repeated.any():
            return partials
        merged = aggregation.merge(partials.filter(repeated), (SLOT,))
        return pl.concat([partials.filter(~repeated).select(merged.columns), merged])

    def _append(self, rows: pl.DataFrame, slots: Slots, *, partial: bool = False) -> None:
        """Store rows, or partial aggregates of them if the aggregates have such."""
        if self._incremental and not partial:
            aggregation = self._plan.aggregation
            assert isinstance(aggregation, Aggregation)
            placed = rows.with_columns(pl.Series(SLOT, self._store.index.roots(slots)))
            rows = aggregation.partial(placed, (SLOT, *self.slices))
            rows = rows.sort(self.slices) if self.slices else rows
            slots = rows[SLOT].to_numpy()
        stored = rows.drop(SLOT, strict=False).to_arrow(compat_level=pl.CompatLevel.oldest())
        self._store.append(pa.concat_batches(stored.to_batches()), slots)

    def _count_late(self, batch: pa.RecordBatch, rows: Times, open_: npt.NDArray[np.bool_], *, partial: bool) -> None:
        """Count a batch's rows; ``rows`` has the number of each once for every window, ``open_`` which of those take it."""
        sizes = batch[ROWS].to_numpy() if partial else np.ones(batch.num_rows, np.int64)
        kept, all_ = (np.bincount(some, minlength=batch.num_rows) for some in (rows[open_], rows))
        late, partly = kept == 0, (kept > 0) & (kept < all_)
        self._count(rows_in=sizes.sum(), rows_late=sizes[late].sum(), rows_partly_late=sizes[partly].sum())

    def _stored_columns(self, batch: pa.RecordBatch, rows: Times, *, partial: bool) -> pl.DataFrame:
        """Rows of a batch with the columns that are stored of rows, or of partial aggregates."""
        aggregation = self._plan.aggregation
        names = aggregation.columns if partial and isinstance(aggregation, Aggregation) else self._plan.packed.names
        return pl.DataFrame(batch.select(list(names)))[rows]

    @staticmethod
    def _parts(batch: pa.RecordBatch, windows_of_a_row: int) -> Iterator[pa.RecordBatch]:
        """The rows of a batch, as many at a time as can be placed in so many windows each."""
        at_once = max(1, _AT_ONCE // windows_of_a_row)
        for begin in range(0, batch.num_rows, at_once):
            yield batch.slice(begin, at_once)

    def _fitting(self, slots: Slots) -> Iterator[Slots]:
        """Windows, a few at a time: as many as can be loaded and grouped within the memory budget."""
        sizes = np.cumsum(self._store.bytes_of(slots))
        parts = sizes // (self._plan.options.memory_bytes // LOAD_FACTOR)
        yield from np.split(slots, np.flatnonzero(np.diff(parts)) + 1)

    def _window_results(self, slots: Slots) -> tuple[pl.DataFrame, Iterator[pa.RecordBatch]]:
        """What the store has of windows, merged if it is partial aggregates; and their results."""
        rows = self._store.get(slots)
        if self._incremental:
            rows = self._merge(rows)
        return rows, self._results(rows.rename({SLOT: WINDOW}), merged=self._incremental)

    def _results(
        self, rows: pl.DataFrame, bounds: npt.NDArray[np.int64] | None = None, *, merged: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Results of rows by their `WINDOW`: a position in ``bounds``, or a slot of the store."""
        index = self._store.index
        find: Callable[[Any], npt.NDArray[np.int64]] = index.windows if bounds is None else bounds.__getitem__
        for batch in results(self._plan, rows, find, partial=self._incremental, merged=merged):
            self._count(rows_out=batch.num_rows)
            yield batch

    def _count(self, **more: int) -> None:
        self.counters = counted(self.counters, **more)


class SessionInstance(UnalignedInstance):
    """Sessions and custom windows: they end in event time, each key's at a time of its own."""

    def __init__(self, plan: WindowPlan, *place: Any) -> None:
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        super().__init__(plan, *place)

    def _take(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        late = batch[END].to_numpy() <= self._fired_until
        self._count(rows_in=batch.num_rows, rows_late=int(np.count_nonzero(late)))
        if late.any():
            batch = batch.filter(pa.array(~late))
        if batch.num_rows:
            self._waiting.append(batch)
            self._waiting_bytes += batch.nbytes
        if self._waiting_bytes > self._plan.options.write_buffer_bytes // 2:
            self._place()

    def commit(self, batch: int | None = None) -> Version | None:
        self._place()
        return super().commit(batch)

    def _place(self) -> None:
        """Place the rows that wait, all at once, so that those of one session are combined before they are stored."""
        if not self._waiting:
            return
        batch = pa.concat_batches(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        high, low, start, end = (batch[name].to_numpy() for name in (HIGH, LOW, START, END))
        ett = batch[ETT].to_numpy() if ETT in batch.schema.names else end
        windows, index = self._plan.windows, self._store.index
        merging = not isinstance(windows, CustomWindows) or windows.merging
        slots = (index.place_merging if merging else index.place_exact)(high, low, start, end, ett)
        self._append(pl.DataFrame(batch).select(self._plan.packed.names), slots)

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        self._place()
        due = self._store.index.due(watermark)
        for slots in self._fitting(due) if len(due) else ():
            _, found = self._window_results(slots)
            yield from found
            self._store.remove(slots)
        self._count(windows_fired=len(due))
        self._fired_until = max(self._fired_until, watermark)


class CountInstance(UnalignedInstance):
    """Count windows: they end with the rows of their key. Rows are stored by slice, as those of aligned windows are."""

    slices = (SLICE,)

    def __init__(self, plan: WindowPlan, *place: Any) -> None:
        assert isinstance(plan.windows, CountWindows)
        self._windows = plan.windows
        self._touched: list[Slots] = []
        super().__init__(plan, *place)

    def _take(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        self._count(rows_in=batch.num_rows)
        slots, numbers = self._store.index.place_counting(batch[HIGH].to_numpy(), batch[LOW].to_numpy())
        slices = pl.Series(SLICE, self._windows.slice_starts(numbers))
        self._append(pl.DataFrame(batch).select(self._plan.packed.names).with_columns(slices), slots)
        touched = np.unique(slots)
        self._touched.append(touched)
        columns = self._store.index.columns
        rows = columns.end[touched]
        missing = self._windows.bounds(self._windows.complete(rows))[:, 1] - rows
        columns.ett[touched] = predictors.count(self.counters.rows_in, rows, missing)

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        if self._touched:
            columns = self._store.index.columns
            touched = np.unique(np.concatenate(self._touched))
            complete = self._windows.complete(columns.end[touched])
            due = touched[complete > self._windows.complete(columns.start[touched])]
            for slots in self._fitting(due) if len(due) else ():
                yield from self._fire(slots)
            self._touched.clear()
        self._fired_until = max(self._fired_until, watermark)

    def _fitting(self, slots: Slots) -> Iterator[Slots]:
        """Windows as others' fit, and few enough that their rows fit once for every window that they are in."""
        columns, size = self._store.index.columns, self._windows.size
        for some in super()._fitting(slots):
            rows = (columns.end[some] - columns.start[some] + size) * -(-size // self._windows.slide)
            yield from np.split(some, np.flatnonzero(np.diff(np.cumsum(rows) // _REPEATED)) + 1)

    def _merge(self, partials: pl.DataFrame) -> pl.DataFrame:
        return super()._merge(partials).sort(SLICE)  # for first and last, which go by the order of rows

    def _fire(self, slots: Slots) -> Iterator[pa.RecordBatch]:
        """Fire the windows of keys that have become complete, and put back the rows that later ones need."""
        columns = self._store.index.columns
        rows = self._store.get(slots)
        owners, slices = rows[SLOT].to_numpy(), rows[SLICE].to_numpy()
        complete = self._windows.complete(columns.end[owners])
        first = np.maximum(self._windows.first_window(slices), self._windows.complete(columns.start[owners]))
        last = np.minimum(self._windows.last_window(slices), complete - 1)
        times = np.maximum(0, last - first + 1)
        positions = np.repeat(np.arange(len(times)), times)
        windows = np.repeat(first - np.cumsum(times) + times, times) + np.arange(len(positions))
        pairs = pl.DataFrame({SLOT: owners[positions], WINDOW: windows})
        distinct = pairs.unique(maintain_order=True).with_row_index("number")
        numbers = pairs.join(distinct, on=[SLOT, WINDOW], how="left", maintain_order="left")["number"]
        fired = rows[positions].drop(SLOT, SLICE).with_columns(numbers.cast(pl.Int64).alias(WINDOW))
        yield from self._results(fired, self._windows.bounds(distinct[WINDOW].to_numpy()))
        self._count(windows_fired=distinct.height)
        columns.start[slots] = columns.end[slots]
        if self._windows.accumulating and not self._incremental:
            self._store.index.touch(slots)
            return  # rows stay where they are
        self._store.renew(slots)
        kept = rows.filter(pl.Series(self._windows.last_window(slices) >= complete))
        if kept.height:
            if self._windows.accumulating and self._incremental:
                kept = self._merge(kept.with_columns(pl.lit(0, pl.Int64).alias(SLICE)))
            stored = [name for name in rows.columns if name != SLOT]
            self._append(kept.select(stored), kept[SLOT].to_numpy(), partial=True)


class GlobalInstance(UnalignedInstance):
    """One window per key. It fires by the clock, which ``fire`` is given instead of the watermark."""

    def _take(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        self._count(rows_in=batch.num_rows)
        slots, _ = self._store.index.place_counting(batch[HIGH].to_numpy(), batch[LOW].to_numpy())
        self._append(pl.DataFrame(batch).select(self._plan.packed.names), slots)

    def fire(self, now: int) -> Iterator[pa.RecordBatch]:
        assert isinstance(self._plan.windows, GlobalWindow)
        every, purging = self._plan.windows.every, self._plan.windows.purging
        if every and now // every <= self._fired_until // every:
            return
        columns = self._store.index.columns
        live = self._store.index.live()
        due = live[columns.end[live] > columns.start[live]]
        for slots in self._fitting(due) if len(due) else ():
            rows, found = self._window_results(slots)
            yield from found
            if purging:
                self._store.remove(slots)
                continue
            columns.start[slots] = columns.end[slots]
            if self._incremental:
                self._store.renew(slots)
                self._append(rows.drop(SLOT), rows[SLOT].to_numpy(), partial=True)
            else:
                self._store.index.touch(slots)
        self._count(windows_fired=len(due))
        self._fired_until = now


class DedupeInstance(UnalignedInstance):
    """Rows of keys that are not known. A key is known from its first row until the watermark reaches that row's end."""

    def __init__(self, plan: WindowPlan, *place: Any) -> None:
        self._fresh: list[pa.RecordBatch] = []
        super().__init__(plan, *place)

    def _take(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        late = batch[START].to_numpy() <= self._fired_until
        self._count(rows_in=batch.num_rows, rows_late=int(np.count_nonzero(late)))
        batch = batch.filter(pa.array(~late))
        slots, numbers = self._store.index.place_counting(batch[HIGH].to_numpy(), batch[LOW].to_numpy())
        first = numbers == 0
        self._store.index.columns.ett[slots[first]] = batch[END].to_numpy()[first]
        self._fresh.append(batch.filter(pa.array(first)).select(self._plan.packed.names))

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        for batch in self._fresh:
            self._count(rows_out=batch.num_rows)
            yield batch.rename_columns(self._plan.schema.names).cast(self._plan.schema)
        self._fresh.clear()
        live = self._store.index.live()
        forgotten = live[self._store.index.columns.ett[live] <= watermark]
        self._store.remove(forgotten)
        self._count(windows_fired=len(forgotten))
        self._fired_until = max(self._fired_until, watermark)


class UpdateInstance(UnalignedInstance):
    """Aligned windows of incremental aggregates in update mode: a micro-batch emits every aggregate that it has changed."""

    def __init__(self, plan: WindowPlan, *place: Any) -> None:
        assert isinstance(plan.windows, AlignedWindows)
        self._windows = plan.windows
        self._touched: list[Slots] = []
        super().__init__(plan, *place)

    def _take(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        for some in self._parts(batch, self._windows.most):
            self._take_part(some, partial=partial)

    def _take_part(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        rows, starts = self._windows.placements(batch[SLICE].to_numpy())
        open_ = starts + self._windows.size > self._fired_until
        self._count_late(batch, rows, open_, partial=partial)
        if open_.any():
            rows, starts = rows[open_], starts[open_]
            high, low = (batch[name].to_numpy()[rows] for name in (HIGH, LOW))
            slots = self._store.index.place_exact(high, low, starts, starts + self._windows.size)
            self._append(self._stored_columns(batch, rows, partial=partial), slots, partial=partial)
            self._touched.append(np.unique(slots))

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        touched = np.unique(np.concatenate(self._touched)) if self._touched else np.empty(0, np.int32)
        for slots in self._fitting(touched) if len(touched) else ():
            merged, found = self._window_results(slots)
            yield from found
            self._store.renew(slots)
            self._append(merged.drop(SLOT), merged[SLOT].to_numpy(), partial=True)
        self._touched.clear()
        due = self._store.index.due(watermark)
        self._store.remove(due)
        self._count(windows_fired=len(due))
        self._fired_until = max(self._fired_until, watermark)
