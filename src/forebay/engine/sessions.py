"""Sessions and custom windows: they end in event time, each key's at a time of its own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from forebay import arrow
from forebay.engine.by_key import ByKeyInstance
from forebay.engine.instance import Opening
from forebay.engine.observer import windows_left
from forebay.engine.plan import WindowPlan
from forebay.store.filenames import Version
from forebay.store.unaligned import UnalignedStore
from forebay.windows import END, ETT, HIGH, LOW, START, CustomWindows


class SessionInstance(ByKeyInstance):
    """Sessions and custom windows: they end in event time, each key's at a time of its own."""

    def __init__(self, plan: WindowPlan, opening: Opening, store: UnalignedStore | None = None) -> None:
        self._waiting: dict[bool, list[pa.RecordBatch]] = {False: [], True: []}
        """Rows, and partial aggregates."""
        self._waiting_bytes = 0
        self._merging = not isinstance(plan.windows, CustomWindows) or plan.windows.merging
        super().__init__(plan, opening, store)

    def _take(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        late = batch[END].to_numpy() <= self._fired_until
        sizes = self._sizes(batch, partial=partial)
        self._count(rows_in=sizes.sum(), rows_late=sizes[late].sum())
        batch = arrow.where(batch, ~late)
        if batch.num_rows:
            self._waiting[partial].append(batch)
            self._waiting_bytes += batch.nbytes
        if self._waiting_bytes > self._plan.options.write_buffer_bytes // 2:
            self._place()

    def commit(self, batch: int | None = None) -> Version | None:
        self._place()
        return super().commit(batch)

    def _place(self) -> None:
        """Place the rows that wait, all at once, so that those of one session are combined before they are stored."""
        for partial, waiting in self._waiting.items():
            if waiting:
                self._place_all(pa.concat_batches(waiting), partial=partial)
                waiting.clear()
        self._waiting_bytes = 0

    def _place_all(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        index, rows = self._store.index, np.arange(batch.num_rows)
        if self._observer is None:
            rows = index.neighbours_together(batch[LOW].to_numpy())
        high, low, start, end = (batch[name].to_numpy()[rows] for name in (HIGH, LOW, START, END))
        ett = batch[ETT].to_numpy()[rows] if ETT in batch.schema.names else end
        if self._observer is None:
            slots = (index.place_merging if self._merging else index.place_exact)(high, low, start, end, ett)
        elif self._merging:
            steps = index.place_in_steps(high, low, start, end, ett)
            slots = steps.slots
            self._observer.merges(batch, start, end, steps, index)
        else:
            slots = index.place_exact(high, low, start, end, ett)
            self._observer.enters(batch, rows, start, end)
        self._append(self._stored_columns(batch, rows, partial=partial), slots, partial=partial)

    def _due(self) -> int:
        return self._store.index.earliest()

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        self._place()
        index = self._store.index
        due = index.due(watermark)
        for slots in self._loadable(due):
            rows, found = self._window_results(slots)
            if self._observer is not None:
                self._ended(slots, rows, windows_left(index, slots) if self._merging else None)
            yield from found
            self._store.remove(slots)
        self._count(windows_fired=len(due))
        self._fired_until = max(self._fired_until, watermark)
