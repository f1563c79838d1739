"""Holistic aggregates: they need all rows of a window. Their parts have no merge."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.aggregates import percentages
from forebay.aggregates.bound import BoundAggregate
from forebay.aggregates.grouping import Groups
from forebay.aggregates.parts import Function, Part, Parts, to_arrow, with_one_zero
from forebay.aggregates.percentages import percentages_of, result_bytes
from forebay.aggregates.sorting import interpolated, sort_runs


def _values(aggregate: BoundAggregate) -> pl.Expr:
    return pl.col(aggregate.inputs[0]).drop_nulls()


# median and percentile -------------------------------------------------------------------------------------------------


def _all_name(aggregate: BoundAggregate) -> str:
    return f"{aggregate.inputs[0]}.all"


def _all(aggregate: BoundAggregate) -> Parts:
    return {_all_name(aggregate): Part(loop=Groups.lists, columns=aggregate.inputs)}


def _percentile_result(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    """Values are sorted here, all groups in one call: polars would set up a sort for every group."""
    lists = arrow.of(partials[_all_name(aggregate)])
    offsets = lists.offsets.to_numpy()
    ends = offsets[1:] - offsets[0]
    values = lists.values.slice(offsets[0], offsets[-1] - offsets[0]).to_numpy().copy()
    sort_runs(values, ends)
    return percentiles(aggregate, np.diff(offsets), lambda percentage: interpolated(values, ends, percentage))


def percentiles(
    aggregate: BoundAggregate, sizes: npt.NDArray[np.int64], of: Callable[[float], npt.NDArray[np.float64]]
) -> pa.Array:
    """The percentiles that an aggregate asks for, where groups have so many values, and ``of`` gives one of each group."""
    return percentages.results(aggregate, np.stack([*map(of, percentages_of(aggregate))], axis=1), sizes == 0)


# the others ------------------------------------------------------------------------------------------------------------


def _mode(aggregate: BoundAggregate) -> Parts:
    ties = _values(aggregate).mode(maintain_order=True)
    ordered = not pa.types.is_nested(aggregate.input_types[0])
    return {_name(aggregate): Part(ties.min() if ordered else ties.first())}


def _list(aggregate: BoundAggregate) -> Parts:
    return {_name(aggregate): Part(loop=Groups.lists, columns=aggregate.inputs)}


def _set(aggregate: BoundAggregate) -> Parts:
    return {_name(aggregate): Part(_values(aggregate).unique(maintain_order=True).implode())}


def _distinct(aggregate: BoundAggregate) -> Parts:
    columns = list(dict.fromkeys(aggregate.inputs))
    if len(columns) == 1 and not pa.types.is_nested(aggregate.input_types[0]):
        rows = _values(aggregate)  # polars hashes a struct in more time
    else:
        rows = pl.struct(columns).filter(pl.all_horizontal(pl.col(name).is_not_null() for name in columns))
    return {_name(aggregate): Part(rows.n_unique().cast(pl.Int64))}


def _name(aggregate: BoundAggregate) -> str:
    return f"{','.join(aggregate.inputs)}.{aggregate.function}"


def _result(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    return to_arrow(partials[_name(aggregate)], aggregate.result)


def _compared(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    """A result of values that were compared with others."""
    return to_arrow(with_one_zero(partials[_name(aggregate)]), aggregate.result)


_percentile = Function(_all, _percentile_result, result_bytes)

FUNCTIONS = {
    "median": _percentile,
    "percentile": _percentile,
    "mode": Function(_mode, _compared),
    "collect_list": Function(_list, _result),
    "collect_set": Function(_set, _compared),
    "count_distinct": Function(_distinct, _result),
}
