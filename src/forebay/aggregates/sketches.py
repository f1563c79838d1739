"""Sketches as incremental aggregates: partial ones travel and are merged; a result is what Spark's functions read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from functools import partial

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay.aggregates import frequent, hll_sketch, hyperloglog, kll, percentages
from forebay.aggregates.bound import BoundAggregate
from forebay.aggregates.count_min import Table
from forebay.aggregates.grouping import Groups
from forebay.aggregates.incremental import number_of
from forebay.aggregates.parts import Function, Loop, Part, Parts, to_arrow, unsigned
from forebay.aggregates.percentages import Mask, percentages_of, result_bytes


def _name(aggregate: BoundAggregate, what: str) -> str:
    return f"{aggregate.inputs[0]}.{what}"


def _each(of: Callable[[pl.Series], pl.Series], values: pl.Series) -> pl.Series:
    """What a function of values that are not NULL, which is one of each of them, gives of all values."""
    if not values.null_count():
        return of(values)
    there = values.is_not_null().to_numpy()
    places = pl.Series(np.cumsum(there) - 1).set(pl.Series(~there), None)
    return of(values.drop_nulls()).gather(places)


# KLL -------------------------------------------------------------------------------------------------------------------


def _kll(aggregate: BoundAggregate) -> Parts:
    """The sketch, and the least and largest value, which it may have lost. NaN is no value, as in DataSketches."""
    k, column = aggregate.options["k"], aggregate.inputs[:1]
    loops: dict[str, tuple[Loop, Loop]] = {
        "": (partial(kll.states, k), partial(kll.merged, k)),
        "_least": (Groups.least, Groups.least),
        "_most": (Groups.most, Groups.most),
    }
    return {
        _name(aggregate, f"kll{k}{what}"): Part(loop=partial(_of_numbers, loop), merge_loop=merge_loop, columns=column)
        for what, (loop, merge_loop) in loops.items()
    }


def _of_numbers(loop: Loop, groups: Groups, values: pl.Series) -> pl.Series:
    return loop(groups, values.fill_nan(None) if values.dtype.is_float() else values)


def earlier_name(name: str, stored: Sequence[str]) -> str:
    """What a part is called in partial aggregates with these columns: sketches of all sizes once had the same extremes."""
    extreme = re.fullmatch(r"(.*\.kll)[0-9]+(_least|_most)", name, re.DOTALL)
    if name in stored or extreme is None or name.removesuffix(extreme[2]) not in stored:
        return name
    return extreme[1] + extreme[2]


def _kll_result(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    k = aggregate.options["k"]
    sketches, least, most = (partials[_name(aggregate, f"kll{k}{what}")] for what in ("", "_least", "_most"))
    return pa.array(kll.serialized(sketches, least, most, k), aggregate.result)


def _percentile_result(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    name = _name(aggregate, f"kll{aggregate.options['k']}")
    sketches, least, most = (partials[f"{name}{what}"] for what in ("", "_least", "_most"))
    ranks = percentages_of(aggregate)
    found = kll.quantiles(sketches, ranks)
    for place, rank in enumerate(ranks):
        if rank in (0, 1):
            found[:, place] = (most if rank else least).to_numpy()
    empty = (sketches.list.len() == 0).to_numpy()
    kind = aggregate.result.value_type if pa.types.is_list(aggregate.result) else aggregate.result
    return percentages.results(aggregate, found, empty, partial(_as_values, kind))


def _as_values(kind: pa.DataType, found: npt.NDArray[np.float64], empty: Mask | None) -> pa.Array:
    """Numbers as values of the column's type; the doubles of its largest and smallest ones may be beyond them."""
    if pa.types.is_decimal(kind):
        there = np.full(len(found), True) if empty is None else ~empty
        return pa.array(_decimals(kind, found, there), kind)
    if not pa.types.is_integer(kind):
        return pa.array(found, mask=empty).cast(kind, safe=False)
    largest = np.iinfo(kind.to_pandas_dtype()).max
    above = found >= float(largest)
    whole = np.where(above | np.isnan(found), 0, found).astype(np.int64)
    whole[above] = largest
    return pa.array(whole, mask=empty).cast(kind)


def _decimals(kind: pa.Decimal128Type, found: npt.NDArray[np.float64], there: Mask) -> list[Decimal | None]:
    """The decimals with the fewest digits that are these doubles: values of the column, if they have 15 digits at most."""
    digits, unit = Context(prec=2 * kind.precision + kind.scale), Decimal(1).scaleb(-kind.scale)
    most = Decimal(10**kind.precision - 1).scaleb(-kind.scale, digits)
    least = most.copy_negate()

    def decimal(number: float) -> Decimal:
        return max(least, min(most, Decimal(repr(number)).quantize(unit, context=digits)))

    return [decimal(number) if some else None for number, some in zip(found.tolist(), there.tolist(), strict=True)]


# HyperLogLog of DataSketches -------------------------------------------------------------------------------------------


def _hll_name(aggregate: BoundAggregate) -> str:
    return _name(aggregate, f"coupons{aggregate.options['lgConfigK']}")


def _hll(aggregate: BoundAggregate) -> Parts:
    loop = partial(_states, partial(hll_sketch.codes, lg_k=aggregate.options["lgConfigK"]))
    return {_hll_name(aggregate): Part(loop=loop, merge_loop=hyperloglog.merged, columns=(aggregate.inputs[0],))}


def _states(codes: Callable[[pl.Series], pl.Series], groups: Groups, values: pl.Series) -> pl.Series:
    return hyperloglog.states(groups, _each(codes, values))


def _hll_result(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    return hll_sketch.serialized(partials[_hll_name(aggregate)], aggregate.options["lgConfigK"])


# the most frequent values ----------------------------------------------------------------------------------------------


def _top_name(aggregate: BoundAggregate) -> str:
    return _name(aggregate, f"top{aggregate.options['maxItemsTracked']}")


def _top(aggregate: BoundAggregate) -> Parts:
    most = aggregate.options["maxItemsTracked"]
    loop, merge_loop = partial(frequent.states, most=most), partial(frequent.merged, most=most)
    return {_top_name(aggregate): Part(loop=loop, merge_loop=merge_loop, columns=aggregate.inputs[:1])}


def _top_result(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    top = partials[_top_name(aggregate)].list.head(aggregate.options["k"])
    if pa.types.is_floating(aggregate.input_types[0]):
        item = unsigned(pl.field(frequent.ITEM)).alias(frequent.ITEM)
        top = top.list.eval(pl.element().struct.with_fields(item))
    return to_arrow(top, aggregate.result)


# count-min -------------------------------------------------------------------------------------------------------------


def _table(aggregate: BoundAggregate) -> Table:
    return Table.of(*(aggregate.options[name] for name in ("eps", "confidence", "seed")))


def _cells_name(aggregate: BoundAggregate) -> str:
    table = _table(aggregate)
    return _name(aggregate, f"cells{table.depth}x{table.width}s{table.seed}")


def _cells(aggregate: BoundAggregate) -> Parts:
    loop = partial(_counted_cells, _table(aggregate))
    return {
        _cells_name(aggregate): Part(loop=loop, merge_loop=frequent.merged, columns=aggregate.inputs[:1]),
        # Cells say how many values there were. But an earlier release has stored this, and a count of the column that is
        # added would have the values of then and none of those since.
        _name(aggregate, "count"): number_of(aggregate.inputs[0]),
    }


def _counted_cells(table: Table, groups: Groups, values: pl.Series) -> pl.Series:
    owners = np.repeat(groups.numbers[values.is_not_null().to_numpy()], table.depth)
    return frequent.counted(owners, pl.Series(table.cells(values.drop_nulls()).reshape(-1)), len(groups))


def _cells_result(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    return _table(aggregate).serialized(partials[_cells_name(aggregate)])


_kll_sketch = Function(_kll, _kll_result)

FUNCTIONS = {
    "kll_sketch_agg_double": _kll_sketch,
    "kll_sketch_agg_bigint": _kll_sketch,
    "approx_percentile": Function(_kll, _percentile_result, result_bytes),
    "hll_sketch_agg": Function(_hll, _hll_result, lambda aggregate: 1 << aggregate.options["lgConfigK"]),
    "approx_top_k": Function(_top, _top_result),
    "count_min_sketch": Function(_cells, _cells_result, lambda aggregate: _table(aggregate).size),
}
