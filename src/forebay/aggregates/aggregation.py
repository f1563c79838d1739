"""The aggregates of one operator, bound to columns: rows to partial aggregates, partials merged, partials to results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay.aggregates import counted, holistic, incremental, sketches
from forebay.aggregates.bound import BoundAggregate
from forebay.aggregates.grouping import Groups
from forebay.aggregates.parts import Function, Part

ROWS = "rows"
"""The column of a partial aggregate that counts the rows in it."""

_ROWS = incremental.number_of(None)
_NUMBER = "number"

FUNCTIONS = {**incremental.FUNCTIONS, **sketches.FUNCTIONS, **holistic.FUNCTIONS}


@dataclass(frozen=True)
class Aggregation:
    """Aggregates by key.

    Parameters
    ----------
    keys : sequence of str
        The key columns.
    aggregates : sequence of BoundAggregate
        What is computed, in the order of the result columns.
    carried : sequence of str
        Columns that are equal in all rows of a group, and are kept. Where a number says which key a row has, the key columns
        are carried, which is cheaper than to group by them.

    Examples
    --------
    >>> total = BoundAggregate("total", "sum", ("x",), (pa.int64(),), pa.int64())
    >>> sums = Aggregation(("k",), (total,))
    >>> rows = pl.DataFrame({"k": ["a", "a", "b"], "x": [1, 2, 3]})
    >>> one, two = sums.partial(rows), sums.partial(rows)
    >>> merged = sums.merge(pl.concat([one, two]))
    >>> [column.to_pylist() for column in sums.finish(merged)]
    [[6, 6]]
    """

    keys: tuple[str, ...]
    aggregates: tuple[BoundAggregate, ...]
    carried: tuple[str, ...] = ()
    _parts: Mapping[str, Part] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts: dict[str, Part] = {}
        for aggregate in self.aggregates:
            parts |= _function(aggregate).parts(aggregate)
        parts |= {name: incremental.first_of(name) for name in self.carried}
        object.__setattr__(self, "_parts", parts)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of partial aggregates."""
        return (*self.keys, ROWS, *self._parts)

    @property
    def result_bytes(self) -> int:
        """How many bytes results have, at least, whatever their partial aggregates have."""
        return sum(_function(aggregate).result_bytes(aggregate) for aggregate in self.aggregates)

    def partial(self, rows: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
        """Partial aggregates, one row per key (and per value of ``by``) in order of arrival, with a `ROWS` column."""
        parts = {ROWS: _ROWS, **self._parts}
        expressions = {name: part.partial for name, part in parts.items() if part.partial is not None}
        groups, columns = Groups.of(rows, [*by, *self.keys], expressions)
        columns |= {name: part.looped(groups, rows) for name, part in parts.items() if part.loop}
        return pl.DataFrame(columns).select(*by, *self.columns)

    def merge(self, partials: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
        """Partial aggregates merged, one row per key (and per value of the columns ``by``), in order of arrival."""
        parts = {ROWS: _ROWS, **self._parts}
        expressions = {name: part.merged(name) for name, part in parts.items() if not part.merge_loop}
        groups, columns = Groups.of(partials, [*by, *self.keys], expressions)
        columns |= {name: part.merge_looped(groups, partials, name) for name, part in parts.items() if part.merge_loop}
        return pl.DataFrame(columns).select(*by, *self.columns)

    def running(self, partials: pl.DataFrame, groups: npt.NDArray[np.integer[Any]]) -> pl.DataFrame:
        """Each partial aggregate merged with all those before it in its group; those of a group are together, in order.

        They are merged over distances of 1, 2, 4 and so on, all at once, so that the cost is that of as many merges.

        Examples
        --------
        >>> total = BoundAggregate("total", "sum", ("x",), (pa.int64(),), pa.int64())
        >>> sums = Aggregation((), (total,))
        >>> each = sums.partial(pl.DataFrame({"row": [0, 1, 2, 3], "x": [1, 2, 3, 9]}), ("row",)).drop("row")
        >>> [column.to_pylist() for column in sums.finish(sums.running(each, np.array([0, 0, 0, 1])))]
        [[1, 3, 6, 9]]
        """
        first = np.maximum.accumulate(np.where(np.diff(groups, prepend=-1) != 0, np.arange(len(groups)), 0))
        before = np.arange(len(groups)) - first
        found, distance = partials.select(self.columns), 1
        while distance <= before.max(initial=0):
            later = np.flatnonzero(before >= distance)
            pairs = pl.concat([found[later - distance], found[later]]).with_columns(pl.Series(_NUMBER, np.tile(later, 2)))
            merged = self.merge(pairs, (_NUMBER,))
            rest = found.with_row_index(_NUMBER).filter(before < distance).with_columns(pl.col(_NUMBER).cast(pl.Int64))
            found = pl.concat([rest.select(merged.columns), merged]).sort(_NUMBER).drop(_NUMBER)
            distance *= 2
        return found

    def finish(self, partials: pl.DataFrame) -> list[pa.Array]:
        """One array of results per aggregate, aligned with the rows of ``partials``."""
        return [_function(aggregate).finish(aggregate, partials) for aggregate in self.aggregates]

    def __getstate__(self) -> dict[str, Any]:
        names = ("keys", "aggregates", "carried")
        return {name: getattr(self, name) for name in names}  # expressions are made again where it arrives

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
        self.__post_init__()


def _function(aggregate: BoundAggregate) -> Function:
    return (counted.FUNCTIONS if aggregate.counted else FUNCTIONS)[aggregate.function]
