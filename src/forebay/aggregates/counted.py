"""Aggregates that need all values of a window, from how often each value came: such counts merge, as those of rows do not.

So they are incremental: a hot key is counted by all tasks before the shuffle, and what meets in one task is one count for
each different value. This is the value-wise form of local and global aggregation, and its results are exact.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from forebay.aggregates import frequent
from forebay.aggregates.bound import BoundAggregate
from forebay.aggregates.frequent import COUNT, ITEM, PLACE
from forebay.aggregates.grouping import Groups
from forebay.aggregates.holistic import percentiles
from forebay.aggregates.parts import Function, Part, Parts, to_arrow, with_one_zero
from forebay.aggregates.percentages import result_bytes
from forebay.aggregates.sorting import interpolated_counts


def _name(aggregate: BoundAggregate) -> str:
    return f"{aggregate.inputs[0]}.counts"


def _counts(aggregate: BoundAggregate) -> Parts:
    return {_name(aggregate): Part(loop=_states, merge_loop=frequent.merged, columns=aggregate.inputs[:1])}


def _states(groups: Groups, values: pl.Series) -> pl.Series:
    """Counts of the values that are not NULL."""
    return frequent.counted(groups.numbers[values.is_not_null().to_numpy()], values.drop_nulls(), len(groups))


def _percentile_result(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    lists = partials[_name(aggregate)]
    flat = frequent.exploded(lists).sort(PLACE, ITEM)
    sizes = lists.list.len().to_numpy().astype(np.int64)
    values, counts, ends = flat[ITEM].to_numpy(), flat[COUNT].to_numpy(), np.cumsum(sizes)
    return percentiles(aggregate, sizes, lambda percentage: interpolated_counts(values, counts, ends, percentage))


def _mode_result(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    lists = partials[_name(aggregate)]
    most = frequent.exploded(lists).sort(PLACE, -pl.col(COUNT), ITEM).group_by(PLACE, maintain_order=True).first()
    rows = pl.DataFrame({PLACE: pl.int_range(len(lists), dtype=pl.Int64, eager=True)})
    items = rows.join(most, on=PLACE, how="left", maintain_order="left")[ITEM]
    return to_arrow(with_one_zero(items), aggregate.result)


def _set_result(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    return to_arrow(with_one_zero(partials[_name(aggregate)].list.eval(pl.element().struct.field(ITEM))), aggregate.result)


def _distinct_result(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    return to_arrow(partials[_name(aggregate)].list.len().cast(pl.Int64), aggregate.result)


_percentile = Function(_counts, _percentile_result, result_bytes)

FUNCTIONS = {
    "median": _percentile,
    "percentile": _percentile,
    "mode": Function(_counts, _mode_result),
    "collect_set": Function(_counts, _set_result),
    "count_distinct": Function(_counts, _distinct_result),
}
