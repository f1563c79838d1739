"""The global window: one for each key, which fires by the clock, or in every micro-batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from forebay.engine.by_key import ByKeyInstance
from forebay.engine.plan import END_OF_TIME, NEVER
from forebay.store.unaligned import SLOT
from forebay.windows import ENDLESS, HIGH, LOW, GlobalWindow

_DUE_NOW = 0
"""The estimated trigger time of windows that have rows since they last fired. Others are not expected to fire at all."""


class WholeKeyInstance(ByKeyInstance):
    """One window per key. It fires by the clock, which ``fire`` is given instead of the watermark."""

    def _take(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        self._count(rows_in=self._sizes(batch, partial=partial).sum())
        slots, _ = self._store.index.place_counting(batch[HIGH].to_numpy(), batch[LOW].to_numpy())
        self._store.index.schedule(slots, _DUE_NOW)
        if self._observer is not None:
            nothing = np.zeros(batch.num_rows, np.int64)
            self._observer.enters(batch, np.arange(batch.num_rows), nothing, nothing)
        every = np.arange(batch.num_rows)
        self._append(self._stored_columns(batch, every, partial=partial), slots, partial=partial)

    def _due(self) -> int:
        assert isinstance(self._plan.windows, GlobalWindow)
        every = self._plan.windows.every
        if self._store.index.earliest_estimate() > _DUE_NOW:
            return END_OF_TIME
        return (self._fired_until // every + 1) * every if every else NEVER

    def fire(self, now: int) -> Iterator[pa.RecordBatch]:
        assert isinstance(self._plan.windows, GlobalWindow)
        every, discarding = self._plan.windows.every, self._plan.windows.discarding
        if every and now // every <= self._fired_until // every:
            return
        index = self._store.index
        due = index.due_by_estimate(_DUE_NOW)
        start, end = index.bounds(due)
        index.schedule(due[start == end], ENDLESS)  # state of releases that did not tell them apart
        due = due[start < end]
        for slots in self._loadable(due):
            rows, found = self._window_results(slots)
            if self._observer is not None and not (self._incremental and every == 0):  # then it gives what it has just put
                nothing = np.zeros(len(slots), np.int64)
                keys = rows.unique(SLOT, keep="first", maintain_order=True)
                self._observer.leaves(keys, nothing, nothing, removed=discarding)
            yield from found
            if discarding:
                self._store.remove(slots)
                continue
            index.restart(slots)
            index.schedule(slots, ENDLESS)
            if self._incremental:
                self._store.renew(slots)
                self._append(rows.drop(SLOT), rows[SLOT].to_numpy(), partial=True)
        self._count(windows_fired=len(due))
        self._fired_until = now
