"""Count windows: windows over the rows of a key, numbered in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.moving import Frames, Places
from forebay.cutting import together
from forebay.engine.by_key import ByKeyInstance
from forebay.engine.framed import framed
from forebay.engine.instance import Opening
from forebay.engine.plan import END_OF_TIME, WindowPlan
from forebay.engine.portions import Sizes, alike, widths
from forebay.engine.results import WINDOW, assemble
from forebay.store import predictors
from forebay.store.key_index import Slots
from forebay.store.partitions import SLICE
from forebay.store.unaligned import SLOT, UnalignedStore
from forebay.windows import HIGH, LOW, CountWindows

_REPEATED = 1 << 20
"""Rows of count windows are aggregated about so many at a time, each counted once for every window."""

_MERGED_BYTES, _MOST_RUNNING = 8 << 20, 1 << 14
"""Partial aggregates are merged about so many bytes at a time, which takes several times as much memory. Those of all rows
before each row are no more at a time than so many, where it is not known beforehand how long they become."""

_MOST_PIECES = 16
"""Rows of a window may lie in so many places on disk: where few keys of many have rows at a time, each is read by itself."""


class CountInstance(ByKeyInstance):
    """Count windows: they end with the rows of their key. Rows are stored by slice, as those of aligned windows are."""

    slices = (SLICE,)
    predicted = False

    def __init__(self, plan: WindowPlan, opening: Opening, store: UnalignedStore | None = None) -> None:
        assert isinstance(plan.windows, CountWindows)
        self._windows = plan.windows
        self._touched: list[Slots] = []
        super().__init__(plan, opening, store)

    def _take(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        self._count(rows_in=batch.num_rows)
        slots, numbers = self._store.index.place_counting(batch[HIGH].to_numpy(), batch[LOW].to_numpy())
        if self._observer is not None:
            nothing = np.zeros(batch.num_rows, np.int64)
            self._observer.enters(batch, np.arange(batch.num_rows), nothing, nothing)
        slices = pl.Series(SLICE, self._windows.slice_starts(numbers))
        self._append(pl.DataFrame(batch).select(self._plan.packed.names).with_columns(slices), slots)
        touched = np.unique(slots)
        self._touched.append(touched)
        rows = self._store.index.ends(touched)
        missing = self._windows.bounds(self._windows.complete(rows))[:, 1] - rows
        self._store.index.schedule(touched, predictors.count(self.counters.rows_in, rows, missing))

    def _due(self) -> int:
        return END_OF_TIME

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        if self._touched:
            touched = np.unique(np.concatenate(self._touched))
            before, now = self._windows.complete(self._store.index.windows(touched)).T
            due = touched[now > before]
            for slots in self._loadable(due):
                yield from self._fire(slots)
            self._touched.clear()
        self._fired_until = max(self._fired_until, watermark)

    def _loadable(self, slots: Slots) -> Iterator[Slots]:
        """Windows as others' fit, and few enough that their rows fit once for every window that they are in."""
        size = self._windows.size // (self._windows.slice_length if self._incremental else 1)
        for some in super()._loadable(slots):
            before, now = self._windows.complete(self._store.index.windows(some)).T
            rows = (now - before) * size
            yield from map(some.__getitem__, together(rows, _REPEATED))

    def _merge(self, partials: pl.DataFrame) -> pl.DataFrame:
        return super()._merge(partials).sort(SLICE)  # for first and last, which go by the order of rows

    def _fire(self, slots: Slots) -> Iterator[pa.RecordBatch]:
        """Fire the windows of keys that have become complete, and put back the rows that later ones need."""
        rows = self._store.get(slots)
        if not self._incremental:
            yield from self._fire_rows(rows, slots)
        elif self._windows.accumulating:
            yield from self._fire_running(rows, slots)
        else:
            yield from self._fire_slices(rows, slots)

    def _fire_rows(self, rows: pl.DataFrame, slots: Slots) -> Iterator[pa.RecordBatch]:
        """Windows are ranges of a key's rows, which are all there from the first one of a slice on."""
        rows = rows[np.argsort(rows[SLOT].to_numpy(), kind="stable")]
        begins = np.flatnonzero(np.diff(rows[SLOT].to_numpy(), prepend=-1))
        owners, first = rows[SLOT].to_numpy()[begins], rows[SLICE].to_numpy()[begins]
        before, complete = self._windows.complete(self._store.index.windows(owners)).T
        times = complete - before
        windows = np.repeat(before - np.cumsum(times) + times, times) + np.arange(times.sum())
        bounds = self._windows.bounds(windows)
        start, end = (bounds + np.repeat(begins - first, times)[:, None]).T

        def assembled(ids: Places, columns: list[pa.Array]) -> pa.RecordBatch:
            batch = assemble(self._plan, bounds[ids], columns)
            self._count(rows_out=batch.num_rows)
            return batch

        yield from framed(self._plan, rows, Frames(end - 1, start, end), assembled)
        self._count(windows_fired=len(windows))
        self._store.index.restart(slots)
        if not self._windows.accumulating:
            last = self._windows.last_window(rows[SLICE].to_numpy())
            self._keep(slots, rows, last >= np.repeat(complete, np.diff(begins, append=rows.height)))

    def _fire_running(self, partials: pl.DataFrame, slots: Slots) -> Iterator[pa.RecordBatch]:
        """Windows that all begin with row 0: each is the one before it and a slice more."""
        aggregation = self._plan.aggregation
        assert isinstance(aggregation, Aggregation)
        partials = self._merge(partials).sort(SLOT, SLICE)
        owners = partials[SLOT].to_numpy()
        before, complete = self._windows.complete(self._store.index.windows(owners)).T
        windows = np.maximum(self._windows.first_window(partials[SLICE].to_numpy()), before)
        last = np.diff(owners, append=-1) != 0
        due = (last | (np.diff(windows, append=-1) != 0)) & (windows < complete)
        ended = []
        for place, running in _running(aggregation, partials, owners):
            some = slice(place, place + running.height)
            fired = running.filter(due[some]).with_row_index(WINDOW)
            yield from self._results(fired, self._windows.bounds(windows[some][due[some]]), merged=True)
            ended.append(running.filter(last[some]))
        self._count(windows_fired=int(np.count_nonzero(due)))
        self._store.index.restart(slots)
        kept = partials.select(SLOT, pl.lit(0, pl.Int64).alias(SLICE)).filter(last)
        self._put_back(slots, pl.concat([kept, pl.concat(ended)], how="horizontal"))

    def _fire_slices(self, partials: pl.DataFrame, slots: Slots) -> Iterator[pa.RecordBatch]:
        """Windows are made of slices, each of which is taken once for every window that it is in."""
        owners, slices = partials[SLOT].to_numpy(), partials[SLICE].to_numpy()
        before, complete = self._windows.complete(self._store.index.windows(owners)).T
        first = np.maximum(self._windows.first_window(slices), before)
        last = np.minimum(self._windows.last_window(slices), complete - 1)
        times = np.maximum(0, last - first + 1)
        positions = np.repeat(np.arange(len(times)), times)
        windows = np.repeat(first - np.cumsum(times) + times, times) + np.arange(len(positions))
        pairs = pl.DataFrame({SLOT: owners[positions], WINDOW: windows})
        distinct = pairs.unique(maintain_order=True).with_row_index("number")
        numbers = pairs.join(distinct, on=[SLOT, WINDOW], how="left", maintain_order="left")["number"].to_numpy()
        bounds = self._windows.bounds(distinct[WINDOW].to_numpy())
        for some in together(np.bincount(numbers, widths(partials)[positions]), _MERGED_BYTES):
            here = (numbers >= some.start) & (numbers < some.stop)
            fired = partials[positions[here]].drop(SLOT, SLICE)
            yield from self._results(fired.with_columns(pl.Series(WINDOW, numbers[here].astype(np.int64))), bounds)
        self._count(windows_fired=distinct.height)
        self._store.index.restart(slots)
        self._keep(slots, partials, self._windows.last_window(slices) >= complete)

    def _keep(self, slots: Slots, rows: pl.DataFrame, needed: npt.NDArray[np.bool_]) -> None:
        """Windows, in order, go on with the rows that they need.

        Where these are most of what they have, and do not lie scattered, all stay as they are.
        """
        owners = np.searchsorted(slots, rows[SLOT].to_numpy())
        had, need = (np.bincount(some, minlength=len(slots)) for some in (owners, owners[needed]))
        worn = (2 * need <= had) | (self._store.pieces_of(slots) > _MOST_PIECES)
        self._put_back(slots[worn], rows.filter(needed & worn[owners]))

    def _put_back(self, slots: Slots, kept: pl.DataFrame) -> None:
        """Windows go on with what they keep alone."""
        self._store.renew(slots)
        if kept.height:
            self._append(kept.drop(SLOT), kept[SLOT].to_numpy(), partial=True)


def _running(aggregation: Aggregation, partials: pl.DataFrame, owners: Slots) -> Iterator[tuple[int, pl.DataFrame]]:
    """Partial aggregates with all those before them in their group, some at a time, and the place of the first.

    Those of a group are together. The last one goes on into what comes next.
    """
    partials = partials.select(aggregation.columns)
    if alike(partials):
        yield 0, aggregation.running(partials, owners)
        return
    place, before = 0, partials.clear()
    while place < partials.height:
        rows = pl.concat([before, partials.slice(place, _MOST_RUNNING)])
        groups = owners[place - before.height :][: rows.height]
        most = int(np.searchsorted(np.cumsum(_grown(rows, groups)), _MERGED_BYTES, side="right"))
        most = max(before.height + 1, most)
        running = aggregation.running(rows[:most], groups[:most])
        found, before = running[before.height :], running[-1:]
        yield place, found
        place += found.height


def _grown(rows: pl.DataFrame, groups: Slots) -> Sizes:
    """No fewer bytes, about, than each row takes that is merged with those before it in its group.

    Lists become no longer than all of them; other values, no wider than one of them.
    """
    names = [name for name, kind in rows.schema.items() if isinstance(kind, pl.List)]
    lists = widths(rows.select(names)) if names else np.zeros(rows.height)
    before = np.concatenate([[0.0], np.cumsum(lists)])
    begins = np.flatnonzero(np.diff(groups, prepend=-1))
    longest = before[1:] - np.repeat(before[begins], np.diff(begins, append=len(groups)))
    grown: Sizes = longest + np.maximum.accumulate(widths(rows.drop(names)))
    return grown
