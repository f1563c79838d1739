"""Update mode: a micro-batch emits every aggregate that it has changed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from forebay.engine.by_key import ByKeyInstance
from forebay.engine.instance import Opening
from forebay.engine.plan import WindowPlan
from forebay.store.key_index import Slots
from forebay.store.partitions import SLICE
from forebay.store.unaligned import SLOT, UnalignedStore
from forebay.windows import HIGH, LOW, AlignedWindows


class UpdateInstance(ByKeyInstance):
    """Aligned windows of incremental aggregates in update mode: a micro-batch emits every aggregate that it has changed."""

    predicted = False

    def __init__(self, plan: WindowPlan, opening: Opening, store: UnalignedStore | None = None) -> None:
        assert isinstance(plan.windows, AlignedWindows)
        self._windows = plan.windows
        self._touched: list[Slots] = []
        super().__init__(plan, opening, store)

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
            if self._observer is not None:
                self._observer.enters(batch, rows, starts, starts + self._windows.size)
            self._append(self._stored_columns(batch, rows, partial=partial), slots, partial=partial)
            self._touched.append(np.unique(slots))

    def _due(self) -> int:
        return self._store.index.earliest()

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        touched = np.unique(np.concatenate(self._touched)) if self._touched else np.empty(0, np.int32)
        for slots in self._loadable(touched):
            merged, found = self._window_results(slots)
            yield from found
            self._store.renew(slots)
            self._append(merged.drop(SLOT), merged[SLOT].to_numpy(), partial=True)
        self._touched.clear()
        due = self._store.index.due(watermark)
        if self._observer is not None and len(due):
            self._ended(due, self._store.get(due), read=False)
        self._store.remove(due)
        self._count(windows_fired=len(due))
        self._fired_until = max(self._fired_until, watermark)
