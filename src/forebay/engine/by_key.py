"""What operators have in common whose windows belong to one key each: rows lie in an `UnalignedStore`, by window.

Each kind of them is a way to place rows in windows, and a rule for when these fire.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import ROWS, Aggregation
from forebay.cutting import together
from forebay.engine.instance import Counting, Opening, require_same_time
from forebay.engine.observer import window_ids
from forebay.engine.plan import END_OF_TIME, NEVER, WindowPlan
from forebay.engine.results import WINDOW, results
from forebay.engine.stored_form import StoredForm
from forebay.store import open_stores
from forebay.store.filenames import Version
from forebay.store.identity import identities
from forebay.store.key_index import Slots
from forebay.store.metrics import Metrics
from forebay.store.row_kernels import repeated
from forebay.store.unaligned import SLOT, UnalignedStore
from forebay.windows import HIGH, LOW, CustomWindows, Times

_AT_ONCE = 1 << 16
"""Rows are placed about so many at a time, each counted once for every window that it is in."""


class ByKeyInstance(Counting, ABC):
    """What the instances have in common; see `forebay.engine.instance.Instance`.

    A ``store`` is one that it is to use, if not one of its own. Then rows come with the identities of their keys, and it is
    not for the instance to keep the store.
    """

    slices: tuple[str, ...] = ()
    """What divides the rows of a window that are aggregated apart."""

    predicted = True
    """Whether windows are read when time passes. If they are when rows come, nothing is worth reading ahead of time."""

    def __init__(self, plan: WindowPlan, opening: Opening, store: UnalignedStore | None = None) -> None:
        self._observer = opening.observer
        if not self.predicted:
            plan = replace(plan, options=replace(plan.options, read_batch_ratio=0))
        self._plan = of_one_key(plan)
        self._incremental = plan.pattern is Pattern.RMW
        merge = self._merge if self._incremental else None
        self._lent = store is not None
        form = self.form_of(plan)
        self._store = store or open_stores.take(
            opening.directory, opening.version, plan.options, merge, opening.archive, form, opening.disk
        )
        self._store.merge = merge
        if not self._lent:  # whoever lends a store has looked, and may hand over what came before
            require_same_time(self._store.base, opening)
        self._fired_until = opening.fired_until
        self._committed = False
        self.counters = self._store.base.counters

    @classmethod
    def form_of(cls, plan: WindowPlan) -> StoredForm:
        """The form of what is stored."""
        aggregation = of_one_key(plan).aggregation if plan.pattern is Pattern.RMW else None
        partial = aggregation if isinstance(aggregation, Aggregation) else None
        return StoredForm(plan.packed, partial, cls.slices, converted=True)

    def ingest(self, batch: pa.RecordBatch, *, partial: bool = False) -> None:
        self._take(batch if self._lent else self._identified(batch), partial=partial)

    @abstractmethod
    def _take(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        """Take rows, or partial aggregates, that have the columns `HIGH` and `LOW`: the identity of their key."""

    def commit(self, batch: int | None = None) -> Version | None:
        base = self._store.base
        version = base.version
        if self.counters != base.counters or base.stale or self._store.changed:
            version = self._store.commit(self._fired_until, self.counters, batch)
        self._committed = True
        return version

    @property
    def due(self) -> int:
        return NEVER if self._store.base.stale else min(self._due(), END_OF_TIME)

    def _due(self) -> int:
        """See `forebay.engine.instance.Instance.due`, of an instance that has no files to remove."""
        return NEVER

    @property
    def metrics(self) -> Metrics:
        return self._store.metrics

    def close(self) -> None:
        self._store.close()
        if self._committed and not self._lent:
            open_stores.keep(self._store)

    def _identified(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch with the identities of its keys. State of format 3 goes on with those that pack has from Spark."""
        secret, windows = self._store.base.secret, self._plan.windows
        if secret is None:
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
        more = repeated(partials[SLOT].to_numpy(), self._store.index.capacity)
        if not more.any():
            return partials
        merged = aggregation.merge(partials.filter(more), (SLOT,))
        return pl.concat([partials.filter(~more).select(merged.columns), merged])

    def _append(self, rows: pl.DataFrame, slots: Slots, *, partial: bool = False) -> None:
        """Store rows, or partial aggregates of them if the aggregates have such."""
        if self._incremental and not partial:
            aggregation = self._plan.aggregation
            assert isinstance(aggregation, Aggregation)
            placed = rows.with_columns(pl.Series(SLOT, self._store.index.roots(slots)))
            rows = aggregation.partial(placed, (SLOT, *self.slices))
            rows = rows.sort(self.slices) if self.slices else rows
            slots = rows[SLOT].to_numpy()
        self._store.append(arrow.batch_of(rows, without=(SLOT,)), slots)

    def _count_late(self, batch: pa.RecordBatch, rows: Times, open_: npt.NDArray[np.bool_], *, partial: bool) -> None:
        """Count a batch's rows; ``rows`` has the number of each once for every window, ``open_`` which of those take it."""
        sizes = self._sizes(batch, partial=partial)
        kept, all_ = (np.bincount(some, minlength=batch.num_rows) for some in (rows[open_], rows))
        late, partly = kept == 0, (kept > 0) & (kept < all_)
        self._count(rows_in=sizes.sum(), rows_late=sizes[late].sum(), rows_partly_late=sizes[partly].sum())

    @staticmethod
    def _sizes(batch: pa.RecordBatch, *, partial: bool) -> Times:
        """How many rows there are in each row of a batch: more than one in partial aggregates."""
        sizes: Times = batch[ROWS].to_numpy() if partial else np.ones(batch.num_rows, np.int64)
        return sizes

    def _stored_columns(self, batch: pa.RecordBatch, rows: Times, *, partial: bool) -> pl.DataFrame:
        """Rows of a batch with the columns that are stored of rows, or of partial aggregates."""
        aggregation = self._plan.aggregation
        names = aggregation.columns if partial and isinstance(aggregation, Aggregation) else self._plan.packed.names
        return pl.DataFrame(batch.select(list(names)))[rows]

    def _parts(self, batch: pa.RecordBatch, windows_of_a_row: int) -> Iterator[pa.RecordBatch]:
        """The rows of a batch, as many at a time as can be placed in so many windows each, and written to these at once."""
        most = 1 / _AT_ONCE, arrow.row_bytes(batch.columns, batch.num_rows) / (self._plan.options.write_buffer_bytes / 4)
        for some in together(np.maximum(*most) * windows_of_a_row, 1.0):
            yield batch.slice(some.start, some.stop - some.start)

    def _loadable(self, slots: Slots) -> Iterator[Slots]:
        """Windows, a few at a time: as many as can be loaded and grouped within the memory budget."""
        yield from self._store.loadable(slots)

    def _window_results(self, slots: Slots) -> tuple[pl.DataFrame, Iterator[pa.RecordBatch]]:
        """What the store has of windows, merged if it is partial aggregates; and their results."""
        rows = self._store.get(slots)
        if self._incremental:
            rows = self._merge(rows)
        return rows, self._results(rows.rename({SLOT: WINDOW}), merged=self._incremental)

    def _ended(self, slots: Slots, rows: pl.DataFrame, left: Times | None = None, *, read: bool = True) -> None:
        """Tell the observer that windows have fired, of which these are the rows.

        ``left`` says of windows that merge how many others their keys have then.
        """
        if self._observer is None:
            return
        index = self._store.index
        order = pl.DataFrame({SLOT: slots}).with_row_index("place")
        keys = rows.select(SLOT, *self._plan.keys).unique(maintain_order=True)
        keys = keys.join(order, on=SLOT, how="left", maintain_order="left").sort("place", maintain_order=True)
        ended = keys[SLOT].to_numpy()
        merged = {} if left is None else {"ids": window_ids(index, ended), "left": left[keys["place"].to_numpy()]}
        self._observer.leaves(keys, *index.bounds(ended), read=read, **merged)

    def _results(
        self, rows: pl.DataFrame, bounds: npt.NDArray[np.int64] | None = None, *, merged: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Results of rows by their `WINDOW`: a position in ``bounds``, or a slot of the store."""
        index = self._store.index
        find: Callable[[Any], npt.NDArray[np.int64]] = index.windows if bounds is None else bounds.__getitem__
        for batch in results(self._plan, rows, find, partial=self._incremental, merged=merged, mixed=True):
            self._count(rows_out=batch.num_rows)
            yield batch


def of_one_key(plan: WindowPlan) -> WindowPlan:
    """The plan with aggregates that need not be grouped by keys, as a window is of one key; where it is."""
    aggregation = plan.aggregation
    shared = isinstance(plan.windows, CustomWindows) and plan.windows.shared
    if isinstance(aggregation, Aggregation) and not shared:
        return replace(plan, aggregation=replace(aggregation, keys=(), carried=plan.keys))
    return plan
