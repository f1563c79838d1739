"""The interval join: rows of two sides meet when their keys are equal and their times are close (Gadget, section 2.2).

A row waits in the `UnalignedStore` for partners that are still to come, in a window of its key that ends when none can come
any more. Windows end some time apart, so a key has few, and expiry ends whole windows without reading them. An outer join
has to know which of the rows that wait have met somebody: a *mark* beside them says so, as rows are never written twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay.joins import WindowJoin
from forebay.store import kernels
from forebay.store.key_index import Slots
from forebay.store.unaligned import SLOT
from forebay.unaligned_windowing import UnalignedInstance
from forebay.windowing import WindowPlan, assemble
from forebay.windows import END, HIGH, LOW, START, Intervals, Times

INSTANT, ROW = "__instant", "__row"
"""Columns that are stored with a row: its time, and its number. A mark has ``-1 - number`` of the row that it is for."""

MET = 1 << 62
"""Added to the number of a row that had met somebody before it was stored."""

_PAIRS = 1 << 16
"""Results are handed on about so many at a time."""

_LEFT, _RIGHT = 0, 1
_AWAITED = {"left": (_LEFT,), "right": (_RIGHT,), "full": (_LEFT, _RIGHT), "anti": (_LEFT,)}
"""The sides whose rows are emitted when they have met nobody."""
_ONCE = ("semi", "anti")
"""Joins in which a left row counts once, whatever it meets."""

Places = npt.NDArray[np.int64]


@dataclass
class Rows:
    """Rows of one side: their columns, which key each has (a number, -1 if nothing equals it), and who has met somebody."""

    frame: pl.DataFrame
    keys: Places
    met: npt.NDArray[np.bool_]

    @property
    def times(self) -> Times:
        return self.frame[INSTANT].to_numpy()


def pairs(ours: Rows, theirs: Rows, lower: int, upper: int) -> Iterator[tuple[Places, Places]]:
    """Positions of the rows that meet: they have the same key, and their time is ours plus ``lower`` to ``upper``.

    Examples
    --------
    >>> def rows(keys, times):
    ...     return Rows(pl.DataFrame({INSTANT: times}), np.array(keys), np.zeros(len(keys), bool))
    >>> [[places.tolist() for places in some] for some in pairs(rows([0, 1], [5, 5]), rows([1, 0, 0], [5, 9, 4]), 0, 4)]
    [[[0, 1], [1, 0]]]
    """
    order, begins, ends = _ranges(ours, theirs, lower, upper)
    counts = ends - begins
    meeting = np.flatnonzero(counts)
    parts = np.cumsum(counts[meeting]) // _PAIRS
    for some in np.split(meeting, np.flatnonzero(np.diff(parts)) + 1) if len(meeting) else ():
        many = counts[some]
        yield np.repeat(some, many), order[np.repeat(begins[some] - np.cumsum(many) + many, many) + np.arange(many.sum())]


def has_partner(ours: Rows, theirs: Rows, lower: int, upper: int) -> npt.NDArray[np.bool_]:
    """Which of our rows are in `pairs`."""
    _, begins, ends = _ranges(ours, theirs, lower, upper)
    partnered: npt.NDArray[np.bool_] = ends > begins
    return partnered


def _ranges(ours: Rows, theirs: Rows, lower: int, upper: int) -> tuple[Places, Places, Places]:
    """An order of their rows, and where in it those begin and end that each of ours meets."""
    order = np.lexsort((theirs.times, theirs.keys))
    begins, ends = kernels.ranges(ours.keys, ours.times + lower, ours.times + upper, theirs.keys[order], theirs.times[order])
    return order, begins, ends


class JoinInstance(UnalignedInstance):
    """What joins have in common whose rows wait in windows of their keys."""

    slices = (INSTANT, ROW)

    def __init__(self, plan: WindowPlan, *place: Any) -> None:
        assert isinstance(plan.aggregation, WindowJoin)
        self._join = plan.aggregation
        self._fresh: list[pa.RecordBatch] = []
        # Which windows are read next depends on the rows that come, not on when the windows end.
        super().__init__(replace(plan, options=replace(plan.options, read_batch_ratio=0)), *place)

    def _take(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        late = batch[START].to_numpy() <= self._fired_until
        numbers = self.counters.rows_in + np.arange(batch.num_rows)
        self._count(rows_in=batch.num_rows, rows_late=int(np.count_nonzero(late)))
        self._fresh.append(batch.append_column(ROW, pa.array(numbers)).filter(pa.array(~late)))

    def _arrived(self) -> pl.DataFrame:
        """The rows of this micro-batch, with columns `INSTANT`, `ROW`, `HIGH`, `LOW` and `END`; they are forgotten."""
        frame = pl.DataFrame(pa.concat_batches(self._fresh)).rename({START: INSTANT})
        self._fresh.clear()
        return frame

    def _numbered(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, Places]:
        """The keys of rows, each once, and the position of each row's among them: -1 if there is a NULL in it."""
        known = frame.select(HIGH, LOW).unique(maintain_order=True).with_row_index("key")
        keys = frame.join(known, on=[HIGH, LOW], how="left", maintain_order="left")["key"].cast(pl.Int64).to_numpy()
        nothing = frame.select(pl.any_horizontal(pl.col(self._plan.keys).is_null())).to_series().to_numpy()
        return known, np.where(nothing, -1, keys)

    def _split(self, frame: pl.DataFrame, keys: Places) -> tuple[Rows, Rows]:
        """Rows by side, none of whom has met anybody."""
        of_right = frame[self._join.side].to_numpy()

        def rows(mine: npt.NDArray[np.bool_]) -> Rows:
            return Rows(frame.filter(mine), keys[mine], np.zeros(np.count_nonzero(mine), bool))

        return rows(~of_right), rows(of_right)

    def _meet(self, left: Rows, right: Rows, lower: int, upper: int) -> Iterator[pa.RecordBatch]:
        """The results of the rows that meet, who are noted; only the left ones where these count once."""
        if self._join.how in _ONCE:
            left.met |= has_partner(left, right, lower, upper)
            return
        for lefts, rights in pairs(left, right, lower, upper):
            left.met[lefts] = right.met[rights] = True
            instants = np.maximum(left.times[lefts], right.times[rights])
            yield self._result(instants, left.frame[lefts], right.frame[rights])

    def _as_stored(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.select(*self._plan.packed.names, *self.slices)

    def _result(self, instants: Times, left: pl.DataFrame | None, right: pl.DataFrame | None) -> pa.RecordBatch:
        keyed = left if left is not None else right
        assert keyed is not None
        wanted = [(keyed, self._plan.keys), (left, self._join.left), (right, self._join.right)]
        fields = iter(list(self._plan.schema)[1:])
        columns: list[pa.Array] = [pa.array(instants)]
        for frame, names in wanted:
            for name, field in zip(names, fields, strict=False):
                if frame is None:
                    columns.append(pa.nulls(len(instants), field.type))
                else:
                    columns.append(frame[name].to_arrow(compat_level=pl.CompatLevel.oldest()))
        self._count(rows_out=len(instants))
        return assemble(self._plan, np.empty((0, 2), np.int64), columns)


class IntervalJoinInstance(JoinInstance):
    """Rows of two sides. A pair is emitted in the micro-batch in which the second of its rows arrives."""

    def __init__(self, plan: WindowPlan, *place: Any) -> None:
        assert isinstance(plan.windows, Intervals)
        self._windows = plan.windows
        super().__init__(plan, *place)

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        if self._fresh:
            yield from self._arrive(self._arrived(), watermark)
        due = self._store.index.due(watermark)
        waiting = due[np.isin(self._sides(due), _AWAITED.get(self._join.how, ()))]
        for slots in self._fitting(waiting) if len(waiting) else ():
            rows = self._stored(slots, np.zeros(len(slots), np.int64))
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
        slots, owners = self._store.index.windows_of(known[HIGH].to_numpy(), known[LOW].to_numpy())
        waiting = self._sides(slots)
        for side, rows in enumerate(sides):
            wanted = (waiting != side) & np.isin(owners, rows.keys)
            for some in self._fitting(slots[wanted]) if wanted.any() else ():
                stored = self._stored(some, owners[np.searchsorted(slots, some)])
                before = stored.met.copy()
                yield from self._meet(*((rows, stored) if side == _LEFT else (stored, rows)), *bounds)
                yield from self._have_met(stored.frame.filter(stored.met & ~before), 1 - side)
        for side, rows in enumerate(sides):
            yield from self._wait(side, rows, watermark)

    def _have_met(self, rows: pl.DataFrame, side: int) -> Iterator[pa.RecordBatch]:
        """Rows of a side that wait have met somebody for the first time."""
        semi = self._join.how == "semi" and side == _LEFT
        if rows.height and (semi or side in _AWAITED.get(self._join.how, ())):
            if semi:
                yield from self._alone(rows)
            nothing = (pl.lit(None, rows[name].dtype).alias(name) for name in self._plan.packed.names)
            self._append(self._as_stored(rows.with_columns(*nothing, (-1 - pl.col(ROW)).alias(ROW))), rows[SLOT].to_numpy())

    def _wait(self, side: int, rows: Rows, watermark: int) -> Iterator[pa.RecordBatch]:
        """Rows that have arrived wait for partners that are still to come; or that is all."""
        frame, how = rows.frame, self._join.how
        ends = frame[END].to_numpy()
        settled = rows.met & (how in _ONCE and side == _LEFT)
        waits = (ends > watermark) & (rows.keys >= 0) & ~settled
        if how == "semi" and side == _LEFT:
            yield from self._alone(frame.filter(rows.met))
        if side in _AWAITED.get(how, ()):
            yield from self._alone(frame.filter(~waits & ~rows.met))
        if waits.any():
            high, low = (frame[name].to_numpy()[waits] for name in (HIGH, LOW))
            slots = self._store.index.place_exact(high, low, *self._windows.windows(ends[waits], side))
            numbered = frame.with_columns(pl.col(ROW) + pl.Series(rows.met).cast(pl.Int64) * MET)
            self._append(self._as_stored(numbered.filter(waits)), slots)

    # rows that wait -------------------------------------------------------------------------------------------------

    def _sides(self, slots: Slots) -> npt.NDArray[np.int64]:
        """The side whose rows windows have."""
        return self._windows.sides(*self._store.index.windows(slots).T)

    def _stored(self, slots: Slots, keys: Places) -> Rows:
        """The rows of windows, whose keys have these numbers."""
        found = self._store.get(slots)
        marks, frame = found.filter(pl.col(ROW) < 0), found.filter(pl.col(ROW) >= 0)
        met = (frame[ROW] >= MET) | frame[ROW].is_in((-1 - marks[ROW]).implode())
        owners = frame[SLOT].to_numpy()
        order = np.argsort(slots)
        ends = pl.Series(END, self._store.index.columns.end[owners])
        return Rows(frame.with_columns(ends), keys[order][np.searchsorted(slots[order], owners)], met.to_numpy().copy())

    # results --------------------------------------------------------------------------------------------------------

    def _alone(self, rows: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        """Rows of either side without those of the other."""
        for some in rows.iter_slices(_PAIRS):
            for side in (_LEFT, _RIGHT):
                mine = some.filter(pl.col(self._join.side) == bool(side))
                if mine.height:
                    yield self._result(mine[END].to_numpy(), *((mine, None) if side == _LEFT else (None, mine)))
