"""Windows that precede each row: after each row of a key, aggregates of its last rows, or of its last hour.

All rows of a key are in one window of the `UnalignedStore`. They wait there until the watermark passes them, then fire in
the order of their times, and stay for as long as rows that are still to come have them in their windows. A key's rows are
written again only when at least half of those that were read are needed no more.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.aggregates.moving import Frames, Places
from forebay.engine import preceding_kernels as kernels
from forebay.engine.by_key import ByKeyInstance
from forebay.engine.framed import framed
from forebay.engine.instance import Opening
from forebay.engine.ordering import close_together, ordered
from forebay.engine.plan import WindowPlan
from forebay.engine.results import assemble
from forebay.store.key_index import Slots
from forebay.store.unaligned import SLOT, UnalignedStore
from forebay.windows import HIGH, INSTANT, LOW, START, Preceding, Times


class PrecedingInstance(ByKeyInstance):
    """A window for each row, which fires when the watermark passes the row.

    In the key index ``start`` of a key is ``end``, the number of its rows, if none of them waits; ``ett`` is the time of the
    first row that waits, or else the watermark from which on no row is needed.
    """

    slices = (INSTANT,)
    predicted = False

    def __init__(self, plan: WindowPlan, opening: Opening, store: UnalignedStore | None = None) -> None:
        assert isinstance(plan.windows, Preceding)
        self._windows = plan.windows
        self._bounds = -1 if plan.windows.span is None else plan.windows.span, plan.windows.rows or 0
        super().__init__(plan, opening, store)

    def _take(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        late = batch[START].to_numpy() <= self._fired_until
        self._count(rows_in=batch.num_rows, rows_late=int(np.count_nonzero(late)))
        rows = pl.DataFrame(arrow.where(batch, ~late)).rename({START: INSTANT})
        if not rows.height:
            return
        index, times = self._store.index, rows[INSTANT].to_numpy()
        slots, _ = index.place_counting(rows[HIGH].to_numpy(), rows[LOW].to_numpy())
        touched, owners, arrived = np.unique(slots, return_inverse=True, return_counts=True)
        first = np.full(len(touched), np.iinfo(np.int64).max)
        np.minimum.at(first, owners, times)
        start, end = index.bounds(touched)
        waited = end - arrived > start
        index.schedule(touched, np.where(waited, np.minimum(first, index.estimates(touched)), first))
        self._append(rows.select(*self._plan.packed.names, INSTANT), slots)

    def _due(self) -> int:
        return self._store.index.earliest_estimate()

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        index = self._store.index
        due = index.due_by_estimate(watermark)
        start, end = index.bounds(due)
        self._store.remove(due[start == end])
        waiting = due[start < end]
        for slots in self._loadable(waiting):
            yield from self._fire(slots, watermark)
        self._fired_until = max(self._fired_until, watermark)

    def _fire(self, slots: Slots, watermark: int) -> Iterator[pa.RecordBatch]:
        """Fire the windows of rows that the watermark has passed, and keep what later ones need."""
        rows = self._store.get(slots)
        (keys,), count = close_together(rows[SLOT].to_numpy())
        rows = rows[ordered(keys, rows[INSTANT].to_numpy(), count)[0]]
        owners, times = rows[SLOT].to_numpy(), rows[INSTANT].to_numpy()
        fired, begins, ends = kernels.frames(owners, times, self._fired_until, watermark, *self._bounds)
        self._count(windows_fired=len(fired))
        yield from self._computed(rows, times, Frames(fired, begins, ends))
        self._keep(rows, owners, times, watermark)

    def _keep(self, rows: pl.DataFrame, owners: Slots, times: Times, watermark: int) -> None:
        """Say when keys are due next; forget those of which nothing is needed, and rows where most are not."""
        needed = kernels.needed(owners, times, watermark, *self._bounds)
        begins = np.flatnonzero(np.diff(owners, prepend=-1))
        keys, sizes = owners[begins], np.diff(begins, append=len(owners))
        kept = np.add.reduceat(needed.astype(np.int64), begins)
        passed = np.add.reduceat((times <= watermark).astype(np.int64), begins)
        wait = passed < sizes
        first = times[np.minimum(begins + passed, len(times) - 1)]
        self._store.index.schedule(keys, np.where(wait, first, self._windows.forgotten(times[begins + sizes - 1])))
        self._store.index.restart(keys[~wait])
        self._store.remove(keys[kept == 0])
        thinned = (kept > 0) & (sizes >= 2 * kept)
        if thinned.any():
            self._store.renew(keys[thinned])
            staying = rows.filter(needed & np.repeat(thinned, sizes))
            self._append(staying.drop(SLOT), staying[SLOT].to_numpy())

    def _computed(self, rows: pl.DataFrame, times: Times, frames: Frames) -> Iterator[pa.RecordBatch]:
        """Results of rows that fire, with their times and windows before the keys."""
        instants = times[frames.current]
        span, most = self._bounds
        starts = times[frames.begins] if most else instants - span
        windows = pa.StructArray.from_arrays([pa.array(starts), pa.array(instants)], ["start", "end"])

        def assembled(ids: Places, columns: list[pa.Array]) -> pa.RecordBatch:
            window = windows.take(pa.array(ids)).cast(self._plan.schema.field(1).type)
            batch = assemble(self._plan, np.empty((0, 2), np.int64), [pa.array(instants[ids]), window, *columns])
            self._count(rows_out=batch.num_rows)
            return batch

        yield from framed(self._plan, rows, frames, assembled)
