"""Deduplication: of a key only the first row counts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay import arrow
from forebay.aggregates.aggregation import ROWS
from forebay.engine.by_key import ByKeyInstance
from forebay.engine.instance import Opening
from forebay.engine.plan import NEVER, NO_TIME, WindowPlan
from forebay.engine.results import conforming
from forebay.errors import UnsupportedConfiguration
from forebay.store.spill import Spill
from forebay.store.unaligned import UnalignedStore
from forebay.windows import END, HIGH, LOW, START


class DedupeInstance(ByKeyInstance):
    """Rows of keys that are not known. A key is known from its first row until the watermark reaches that row's end.

    If that row has no time, the key is known until the next firing, as in Spark. What is partial is a row that may stand for
    others of its key after it, too, none of which is late; or one that may be late itself, and has no number of rows.
    """

    def __init__(self, plan: WindowPlan, opening: Opening, store: UnalignedStore | None = None) -> None:
        self._fresh = Spill(opening.directory, plan.options.write_buffer_bytes)
        super().__init__(plan, opening, store)

    def _take(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        times = batch[START].to_numpy()
        late = (times <= self._fired_until) & (times != NO_TIME)
        shares = batch[ROWS] if partial else pa.nulls(batch.num_rows, pa.int64())
        if late[np.asarray(shares.is_valid())].any():
            raise UnsupportedConfiguration(
                "rows were left out before the shuffle by the watermark of an earlier micro-batch. A thread of "
                "foreachBatch that is used again has the number of another micro-batch. Start it anew each time, with "
                "pyspark.InheritableThread."
            )
        self._count(rows_in=pc.sum(pc.fill_null(shares, 1), min_count=0).as_py(), rows_late=late.sum())
        batch = arrow.where(batch, ~late)
        slots, first = self._store.index.place_first(batch[HIGH].to_numpy(), batch[LOW].to_numpy())
        ends = np.maximum(batch[END].to_numpy(), NEVER + 1)
        self._store.index.schedule(slots[first], ends[first])
        # What waits is copied, as the rest of the batch would stay in memory with it.
        self._fresh.append(batch.select(self._plan.packed.names).filter(pa.array(first)))

    def _due(self) -> int:
        return self._store.index.earliest_estimate()

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        for batch in self._fresh.drain():
            self._count(rows_out=batch.num_rows)
            yield conforming(batch.columns, self._plan.schema)
        forgotten = self._store.index.due_by_estimate(watermark)
        self._store.remove(forgotten)
        self._count(windows_fired=len(forgotten))
        self._fired_until = max(self._fired_until, watermark)

    def close(self) -> None:
        self._fresh.close()
        super().close()
