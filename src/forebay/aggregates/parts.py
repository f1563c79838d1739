"""What the state of an aggregate is made of: its parts, which are columns, and the functions over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.aggregates.bound import BoundAggregate
from forebay.aggregates.grouping import Groups

Parts = dict[str, "Part"]
Loop = Callable[..., pl.Series]
"""A method of `Groups`, or another function of groups and columns."""


@dataclass(frozen=True)
class Part:
    """One column of a state: how it comes from rows, and how several of it are one.

    Attributes
    ----------
    partial : polars.Expr, optional
        It, from the rows of a group; None where ``loop`` gives it.
    merge : callable, optional
        Maps the column to the expression that merges it; None where ``merge_loop`` does, or where it cannot be merged.
    loop, merge_loop : callable, optional
        The same for all groups at once, without polars.
    columns : tuple of str
        What ``loop`` takes.
    beside : tuple of str
        The parts that ``merge_loop`` takes beside the part itself.
    """

    partial: pl.Expr | None = None
    merge: Callable[[pl.Expr], pl.Expr] | None = None
    loop: Loop | None = None
    merge_loop: Loop | None = None
    columns: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    def looped(self, groups: Groups, rows: pl.DataFrame) -> pl.Series:
        """The column, from rows in groups."""
        assert self.loop is not None
        return self.loop(groups, *(rows[name] for name in self.columns))

    def merge_looped(self, groups: Groups, partials: pl.DataFrame, name: str) -> pl.Series:
        """The column of that name, from partials in groups."""
        assert self.merge_loop is not None
        return self.merge_loop(groups, *(partials[each] for each in (name, *self.beside)))

    def merged(self, name: str) -> pl.Expr:
        if self.merge is None:
            raise TypeError(f"{name} belongs to a holistic aggregate, which has no partial results to merge")
        return self.merge(pl.col(name))


@dataclass(frozen=True)
class Function:
    """An aggregate function.

    Attributes
    ----------
    parts : callable
        The parts of its state.
    finish : callable
        Its results, from those columns of a frame of partials.
    result_bytes : callable
        How many bytes each result has whatever its state has, as a table of counters does of which few were counted.
    """

    parts: Callable[[BoundAggregate], Parts]
    finish: Callable[[BoundAggregate, pl.DataFrame], pa.Array]
    result_bytes: Callable[[BoundAggregate], int] = lambda aggregate: 0


def to_arrow(values: pl.Series, result: pa.DataType) -> pa.Array:
    """A column as one Arrow array of the result's type."""
    array = arrow.of(values)
    return array if array.type.equals(result) else array.cast(result)


def unsigned(number: pl.Expr) -> pl.Expr:
    """Floats in which zeros have no sign."""
    return pl.when(number == 0).then(0.0).otherwise(number)  # polars takes the sum with 0 for the value itself


def with_one_zero(values: pl.Series) -> pl.Series:
    """Values, or lists of them, in which zeros have no sign: Spark has one zero where it compares values."""
    nested = isinstance(values.dtype, pl.List)
    kind = values.dtype.inner if isinstance(values.dtype, pl.List) else values.dtype
    if not kind.is_float():
        return values
    shown = unsigned(pl.element() if nested else pl.col(""))
    return values.list.eval(shown) if nested else values.to_frame("").select(shown.alias(values.name)).to_series()
