"""The interval join: rows of two sides meet when their keys are equal and their times are close (Gadget, section 2.2).

A row waits in the `UnalignedStore` for partners that are still to come, in a window of its key that ends when none can come
any more. Windows end some time apart, so a key has few, and expiry ends whole windows without reading them. An outer join
has to know which of the rows that wait have met somebody: a *mark* beside them says so, as rows are never written twice.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.engine.instance import Opening
from forebay.engine.plan import WindowPlan
from forebay.engine.portions import PORTION_ROWS, portions
from forebay.engine.row_join import MET, ONCE, ROW, JoinInstance, Places, Rows
from forebay.engine.window_join import AWAITED, LEFT, RIGHT
from forebay.store.key_index import Slots
from forebay.store.row_kernels import looked_up
from forebay.store.unaligned import SLOT, UnalignedStore
from forebay.windows import END, HIGH, INSTANT, LOW, Intervals


class IntervalJoinInstance(JoinInstance):
    """Rows of two sides. A pair is emitted in the micro-batch in which the second of its rows arrives."""

    def __init__(self, plan: WindowPlan, opening: Opening, store: UnalignedStore | None = None) -> None:
        assert isinstance(plan.windows, Intervals)
        self._windows = plan.windows
        super().__init__(plan, opening, store)

    def _due(self) -> int:
        return self._store.index.earliest()

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        arrived = self._arrived()
        while arrived:
            part = arrived.pop(0)  # what is over waits, too, while a later part may have its partners
            yield from self._arrive(part, self._fired_until if arrived else watermark)
        if self._timeless:
            yield from self._without_time()
        due = self._store.index.due(watermark)
        self._tell_expired(due)
        waiting = due[np.isin(self._sides(due), AWAITED.get(self._join.how, ()))]
        for slots in self._loadable(waiting):
            rows = self._stored(np.sort(slots), np.zeros(len(slots), np.int64))
            yield from self._alone(rows.frame.filter(~rows.met))
        self._store.remove(due)
        self._count(windows_fired=len(due))
        self._fired_until = max(self._fired_until, watermark)

    # rows that arrive -----------------------------------------------------------------------------------------------

    def _arrive(self, frame: pl.DataFrame, watermark: int) -> Iterator[pa.RecordBatch]:
        """Rows meet the others that arrive, and those that wait; then they wait themselves."""
        known, keys = self._numbered(frame)
        frame = frame.with_columns(pl.Series(END, self._windows.ends(frame[END].to_numpy())))
        sides, bounds = self._split(frame, keys), (self._windows.lower, self._windows.upper)
        yield from self._meet(*sides, *bounds)
        slots, owners = self._store.index.windows_of(*known)
        waiting = self._sides(slots)
        for side, rows in enumerate(sides):
            wanted = (waiting != side) & np.isin(owners, rows.keys)
            for some in self._loadable(slots[wanted]):
                stored = self._stored(some, owners[np.searchsorted(slots, some)])
                before = stored.met.copy()
                yield from self._meet(*((rows, stored) if side == LEFT else (stored, rows)), *bounds)
                yield from self._have_met(stored.frame.filter(stored.met & ~before), 1 - side)
        for side, rows in enumerate(sides):
            yield from self._wait(side, rows, watermark)

    def _without_time(self) -> Iterator[pa.RecordBatch]:
        """Rows without a time meet nobody, so they are emitted at once where such rows are."""
        frame = pl.concat(list(map(pl.DataFrame, self._timeless))).with_columns(pl.lit(None, pl.Int64).alias(END))
        self._timeless.clear()
        awaited = [bool(side) for side in AWAITED.get(self._join.how, ())]
        yield from self._alone(frame.filter(pl.col(self._join.side).is_in(awaited)))

    def _have_met(self, rows: pl.DataFrame, side: int) -> Iterator[pa.RecordBatch]:
        """Rows of a side that wait have met somebody for the first time."""
        semi = self._join.how == "semi" and side == LEFT
        if rows.height and (semi or side in AWAITED.get(self._join.how, ())):
            if semi:
                yield from self._alone(rows)
            nothing = (pl.lit(None, rows[name].dtype).alias(name) for name in self._plan.packed.names)
            self._append(self._as_stored(rows.with_columns(*nothing, (-1 - pl.col(ROW)).alias(ROW))), rows[SLOT].to_numpy())

    def _wait(self, side: int, rows: Rows, watermark: int) -> Iterator[pa.RecordBatch]:
        """Rows that have arrived wait for partners that are still to come; or that is all."""
        frame, how = rows.frame, self._join.how
        ends = frame[END].to_numpy()
        settled = rows.met & (how in ONCE and side == LEFT)
        waits = (ends > watermark) & (rows.keys >= 0) & ~settled
        if how == "semi" and side == LEFT:
            yield from self._alone(frame.filter(rows.met))
        if side in AWAITED.get(how, ()):
            yield from self._alone(frame.filter(~waits & ~rows.met))
        if waits.any():
            high, low = (frame[name].to_numpy()[waits] for name in (HIGH, LOW))
            slots = self._store.index.place_exact(high, low, *self._windows.windows(ends[waits], side))
            if self._observer is not None:
                placed = arrow.batch_of(frame.filter(waits))
                instants = placed[INSTANT].to_numpy()
                self._observer.enters(placed, np.arange(placed.num_rows), instants, instants, side)
            numbered = frame.with_columns(pl.col(ROW) + pl.Series(rows.met).cast(pl.Int64) * MET)
            self._append(self._as_stored(numbered.filter(waits)), slots)

    # rows that wait -------------------------------------------------------------------------------------------------

    def _sides(self, slots: Slots) -> npt.NDArray[np.int64]:
        """The side whose rows windows have."""
        return self._windows.sides(*self._store.index.windows(slots).T)

    def _stored(self, slots: Slots, keys: Places) -> Rows:
        """The rows of windows, whose slots ascend, and whose keys have these numbers."""
        found = self._store.get(slots)
        marks, frame = found.filter(pl.col(ROW) < 0), found.filter(pl.col(ROW) >= 0)
        met = (frame[ROW] >= MET) | frame[ROW].is_in((-1 - marks[ROW]).implode())
        owners = frame[SLOT].to_numpy()
        ends = pl.Series(END, self._store.index.ends(owners))
        owned = looked_up(slots, keys, owners, self._store.index.capacity)
        return Rows(frame.with_columns(ends), owned, met.to_numpy().copy())

    def _tell_expired(self, slots: Slots) -> None:
        """Tell the observer which rows no partner can come for any more: a line per side, key and instant."""
        if self._observer is None or not len(slots):
            return
        rows = self._store.get(slots).filter(pl.col(ROW) >= 0)
        rows = rows.with_columns(pl.Series(END, self._store.index.ends(rows[SLOT].to_numpy())))
        sides = self._sides(rows[SLOT].to_numpy())
        for side in (LEFT, RIGHT):
            lists = rows.filter(sides == side).select(INSTANT, END, *self._plan.keys).unique(maintain_order=True)
            instants = lists[INSTANT].to_numpy()
            self._observer.leaves(lists, instants, instants, side=side, when=lists[END].to_numpy(), read=False)

    # results --------------------------------------------------------------------------------------------------------

    def _alone(self, rows: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        """Rows of either side without those of the other."""
        for some in portions(rows, PORTION_ROWS):
            for side in (LEFT, RIGHT):
                mine = some.filter(pl.col(self._join.side) == bool(side))
                if mine.height:
                    yield self._result(arrow.of(mine[END]), *((mine, None) if side == LEFT else (None, mine)))
