"""Buffers: the rows of a key wait for each other, and go on together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.aggregates.processor import Processor
from forebay.engine.by_key import ByKeyInstance
from forebay.engine.instance import Opening
from forebay.engine.plan import NEVER, WindowPlan
from forebay.engine.results import in_order
from forebay.store.key_index import Slots
from forebay.store.unaligned import SLOT, UnalignedStore
from forebay.windows import HIGH, LOW, Buffered


class BufferInstance(ByKeyInstance):
    """One window per key, numbered by its rows. Its estimated trigger time is when its rows may go on.

    A key that has gone on stays known for the interval, without rows, so that what comes next waits; and is then forgotten.
    """

    def __init__(self, plan: WindowPlan, opening: Opening, store: UnalignedStore | None = None) -> None:
        assert isinstance(plan.windows, Buffered)
        assert isinstance(plan.aggregation, Processor)
        self._buffered, self._processor = plan.windows, plan.aggregation
        super().__init__(plan, opening, store)
        self._width, self._rows = arrow.row_width(plan.packed), self._buffered.rows
        if self._width:
            self._rows = min(self._rows, -(-self._buffered.size // self._width))
        self._touched: list[Slots] = []

    def _take(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        self._count(rows_in=batch.num_rows)
        slots, numbers = self._store.index.place_counting(batch[HIGH].to_numpy(), batch[LOW].to_numpy())
        self._store.index.schedule(slots[numbers == 0], NEVER)  # keys that have been quiet do not wait
        self._append(pl.DataFrame(batch.select(self._plan.packed.names)), slots)
        start, end = self._store.index.bounds(slots)
        self._store.index.schedule(slots[end - start >= self._rows], NEVER)  # nor do keys that are full
        if self._width is None:
            self._touched.append(slots)

    def _due(self) -> int:
        return self._store.index.earliest_estimate()

    def fire(self, now: int) -> Iterator[pa.RecordBatch]:
        index = self._store.index
        if self._touched:
            touched = np.unique(np.concatenate(self._touched))
            index.schedule(self._store.larger(touched, self._buffered.size), NEVER)
            self._touched.clear()
        due = index.due_by_estimate(now)
        start, end = index.bounds(due)
        going = due[end > start]
        for slots in self._loadable(going):
            rows = in_order(self._store.get(slots), SLOT)  # whatever was read ahead of time
            for batch in self._processor.results(rows, [SLOT]):
                self._count(rows_out=batch.num_rows)
                yield batch
            index.restart(slots)
            self._store.renew(slots)
            index.schedule(slots, now + self._buffered.interval)
        self._count(windows_fired=len(going))
        self._store.remove(due[start == end])
        self._fired_until = max(self._fired_until, now)


def passing(batches: Iterator[pa.RecordBatch], processor: Processor) -> Iterator[pa.RecordBatch]:
    """What becomes of rows that wait for each other within record batches alone, so that nothing is kept."""
    for batch in batches:
        yield from processor.results(pl.DataFrame(batch), processor.keys)
