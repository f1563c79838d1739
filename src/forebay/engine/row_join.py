"""What joins have in common whose rows wait for each other in windows of their keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.aggregates.grouping import first_rows, numbered
from forebay.cutting import together
from forebay.engine.by_key import ByKeyInstance
from forebay.engine.instance import Opening
from forebay.engine.meeting import ranges
from forebay.engine.ordering import close_together, ordered
from forebay.engine.plan import NO_TIME, WindowPlan
from forebay.engine.portions import PORTION_BYTES, PORTION_ROWS, widths
from forebay.engine.results import assemble
from forebay.engine.window_join import WindowJoin
from forebay.store.unaligned import UnalignedStore
from forebay.windows import HIGH, INSTANT, LOW, START, Times

ROW = "__row"
"""The column that is stored with a row beside its time: its number. A mark has ``-1 - number`` of the row that it is for."""

MET = 1 << 62
"""Added to the number of a row that had met somebody before it was stored."""

ONCE = ("semi", "anti")
"""Joins in which a left row counts once, whatever it meets."""

_MOST_PARTS = 8
"""In so many parts a micro-batch is joined, at most."""

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
    until = np.cumsum(ends - begins)  # how many pairs there are up to each of ours, its own included
    count = int(until[-1]) if len(until) else 0
    for first in range(0, count, PORTION_ROWS):
        last = min(first + PORTION_ROWS, count)
        begin, end = np.searchsorted(until, [first, last - 1], side="right")
        mine = np.repeat(np.arange(begin, end + 1), np.diff(np.minimum(until[begin : end + 1], last), prepend=first))
        yield mine, order[ends[mine] - until[mine] + np.arange(first, last)]


def has_partner(ours: Rows, theirs: Rows, lower: int, upper: int) -> npt.NDArray[np.bool_]:
    """Which of our rows are in `pairs`."""
    _, begins, ends = _ranges(ours, theirs, lower, upper)
    partnered: npt.NDArray[np.bool_] = ends > begins
    return partnered


def _ranges(ours: Rows, theirs: Rows, lower: int, upper: int) -> tuple[Places, Places, Places]:
    """An order of their rows, and where in it those begin and end that each of ours meets."""
    nothing = np.zeros(1, np.int64)
    (_, mine, other), count = close_together(nothing, ours.keys + 1, theirs.keys + 1)
    order, ends = ordered(other, theirs.times, count)
    first, last = ranges(mine, ours.times + lower, ours.times + upper, ends, theirs.times[order])
    return order, first, last


class JoinInstance(ByKeyInstance):
    """What joins have in common whose rows wait in windows of their keys."""

    slices = (INSTANT, ROW)
    predicted = False

    def __init__(self, plan: WindowPlan, opening: Opening, store: UnalignedStore | None = None) -> None:
        assert isinstance(plan.aggregation, WindowJoin)
        self._join = plan.aggregation
        self._fresh: list[pa.RecordBatch] = []
        self._timeless: list[pa.RecordBatch] = []
        super().__init__(plan, opening, store)

    def _take(self, batch: pa.RecordBatch, *, partial: bool) -> None:
        times = batch[START].to_numpy()
        timeless = times == NO_TIME
        late = (times <= self._fired_until) & ~timeless
        numbers = self.counters.rows_in + np.arange(batch.num_rows)
        self._count(rows_in=batch.num_rows, rows_late=int(np.count_nonzero(late)))
        batch = batch.append_column(ROW, pa.array(numbers))
        self._fresh.append(arrow.where(batch, ~late & ~timeless))
        if timeless.any():
            self._timeless.append(batch.filter(pa.array(timeless)))

    def _arrived(self) -> list[pl.DataFrame]:
        """The rows of this micro-batch, with columns `INSTANT`, `ROW`, `HIGH`, `LOW` and `END`; they are forgotten.

        They are in parts of about as many bytes as may be loaded, and in few, since each reads what it may meet. A batch is
        not divided.
        """
        fresh, self._fresh = self._fresh, []
        sizes = np.array([batch.nbytes for batch in fresh])
        parts = together(sizes, max(self._store.options.load_bytes, sizes.sum() / _MOST_PARTS))
        return [pl.concat(list(map(pl.DataFrame, fresh[part]))).rename({START: INSTANT}) for part in parts]

    def _numbered(self, frame: pl.DataFrame) -> tuple[tuple[Places, Places], Places]:
        """The identities of the keys of rows, each once, and the position of each row's among them: -1 with a NULL in it."""
        high, low = frame[HIGH].to_numpy(), frame[LOW].to_numpy()
        keys, count = numbered(high, low)
        first = first_rows(keys, count)
        nothing = frame.select(pl.any_horizontal(pl.col(self._plan.keys).is_null())).to_series().to_numpy()
        return (high[first], low[first]), np.where(nothing, np.int64(-1), keys)

    def _split(self, frame: pl.DataFrame, keys: Places) -> tuple[Rows, Rows]:
        """Rows by side, none of whom has met anybody."""
        of_right = frame[self._join.side].to_numpy()

        def rows(mine: npt.NDArray[np.bool_]) -> Rows:
            return Rows(frame.filter(mine), keys[mine], np.zeros(np.count_nonzero(mine), bool))

        return rows(~of_right), rows(of_right)

    def _meet(self, left: Rows, right: Rows, lower: int, upper: int) -> Iterator[pa.RecordBatch]:
        """The results of the rows that meet, who are noted; only the left ones where these count once."""
        if self._join.how in ONCE:
            left.met |= has_partner(left, right, lower, upper)
            return
        ours = left.frame[[*dict.fromkeys((*self._plan.keys, *self._join.left))]]
        theirs = right.frame[[*dict.fromkeys((*self._plan.keys, *self._join.right))]]  # it may have no column but those
        of_left, of_right = widths(ours), widths(theirs)
        for lefts, rights in pairs(left, right, lower, upper):
            left.met[lefts] = right.met[rights] = True
            instants = np.maximum(left.times[lefts], right.times[rights])
            for some in together(of_left[lefts] + of_right[rights], PORTION_BYTES):
                yield self._result(pa.array(instants[some]), ours[lefts[some]], theirs[rights[some]])

    def _as_stored(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.select(*self._plan.packed.names, *self.slices)

    def _result(self, instants: pa.Array, left: pl.DataFrame | None, right: pl.DataFrame | None) -> pa.RecordBatch:
        keyed = left if left is not None else right
        assert keyed is not None
        wanted = [(keyed, self._plan.keys), (left, self._join.left), (right, self._join.right)]
        fields = iter(list(self._plan.schema)[1:])
        columns: list[pa.Array] = [instants]
        for frame, names in wanted:
            for name, field in zip(names, fields, strict=False):
                if frame is None:
                    columns.append(pa.nulls(len(instants), field.type))
                else:
                    columns.append(arrow.of(frame[name]))
        self._count(rows_out=len(instants))
        return assemble(self._plan, np.empty((0, 2), np.int64), columns)
