"""Windows that fire more than once: before they end, and again when late rows come.

Each firing gives a *pane*. Windows are kept by key, whatever their kind, and the key index says when each is to fire next:
its estimated trigger time (ETT) is exact here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from forebay.engine.by_key import ByKeyInstance
from forebay.engine.instance import Opening
from forebay.engine.plan import WindowPlan
from forebay.engine.results import WINDOW
from forebay.store.key_index import Slots
from forebay.store.partitions import SLICE
from forebay.store.unaligned import SLOT, UnalignedStore
from forebay.windows import END, ENDLESS, HIGH, LOW, START, AlignedWindows, CustomWindows, Times


class PaneInstance(ByKeyInstance):
    """Aligned windows, sessions and custom windows, each key's for itself, with early and late firings."""

    def __init__(self, plan: WindowPlan, opening: Opening, store: UnalignedStore | None = None) -> None:
        assert plan.firing is not None
        self._firing, self._windows = plan.firing, plan.windows
        windows = self._windows
        self._most = windows.most if isinstance(windows, AlignedWindows) else 1
        self._merging = windows.merging if isinstance(windows, CustomWindows) else not isinstance(windows, AlignedWindows)
        super().__init__(plan, opening, store)

    def _take(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        for some in self._parts(batch, self._most):
            self._take_part(some, partial=partial)

    def _take_part(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        rows, starts, ends = self._windows_of(batch)
        open_ = ends > self._fired_until - self._firing.allowed_lateness  # a window may end at the last time of all
        self._count_late(batch, rows, open_, partial=partial)
        if not open_.any():
            return
        rows, starts, ends = rows[open_], starts[open_], ends[open_]
        slots = self._place(batch[HIGH].to_numpy()[rows], batch[LOW].to_numpy()[rows], starts, ends)
        self._append(self._stored_columns(batch, rows, partial=partial), slots, partial=partial)
        touched = np.unique(self._store.index.roots(slots))
        self._store.index.schedule(touched, self._firing.next(self._store.index.ends(touched), self._fired_until))

    def _due(self) -> int:
        index = self._store.index
        return min(index.earliest_estimate(), index.earliest() + self._firing.allowed_lateness)

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        due = self._store.index.due_by_estimate(watermark)
        for slots in self._loadable(due):
            yield from self._panes(slots, watermark)
        self._count(windows_fired=len(due))
        self._store.remove(self._store.index.due(watermark - self._firing.allowed_lateness))
        self._fired_until = max(self._fired_until, watermark)

    def _panes(self, slots: Slots, watermark: int) -> Iterator[pa.RecordBatch]:
        """The panes of windows, and what is left of these."""
        rows = self._store.get(slots)
        if rows.height:
            rows = self._merge(rows) if self._incremental else rows
            yield from self._results(rows.rename({SLOT: WINDOW}), merged=self._incremental)
        if self._incremental or not self._firing.accumulating:  # the same windows once more; absorbed ones are gone then
            windows, before = (*self._store.index.identities(slots), *self._store.index.bounds(slots)), slots
            self._store.remove(slots)
            slots = self._place(*windows)
            if self._firing.accumulating and rows.height:
                order = np.argsort(before)
                owners = slots[order][np.searchsorted(before[order], rows[SLOT].to_numpy())]
                self._append(rows.drop(SLOT), owners, partial=True)
        ends = self._store.index.ends(slots)
        self._store.index.schedule(slots, np.where(ends > watermark, ends, ENDLESS))

    def _windows_of(self, batch: pa.RecordBatch) -> tuple[Times, Times, Times]:
        """Each row's number, once for every window that it is in, and the bounds of these windows."""
        if not isinstance(self._windows, AlignedWindows):
            return np.arange(batch.num_rows), batch[START].to_numpy(), batch[END].to_numpy()
        rows, starts = self._windows.placements(batch[SLICE].to_numpy())
        return rows, starts, starts + self._windows.size

    def _place(self, high: Times, low: Times, starts: Times, ends: Times) -> Slots:
        index = self._store.index
        return (index.place_merging if self._merging else index.place_exact)(high, low, starts, ends)
