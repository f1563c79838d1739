"""Incremental aggregates: a small state per key that rows are merged into.

A state consists of named *parts*. Each part is a column: how rows give it, and how several of it give one. Aggregates that
need the same parts of the same input share them, as ``sum`` and ``avg`` do. Semantics are Spark's: NULLs do not
count, NaN is larger than any number, a sum that leaves its type is an error under ANSI and wraps (integers) or is NULL
(decimals) otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa

from forebay.aggregates import hyperloglog
from forebay.aggregates.bound import BoundAggregate
from forebay.aggregates.grouping import Groups
from forebay.aggregates.parts import Function, Loop, Part, Parts, to_arrow
from forebay.aggregates.wide import LIMBS, Flags, Words, beyond, decimals_of, is_wide, limb, words_of, words_of_limbs
from forebay.errors import ArithmeticOverflow


def _column(aggregate: BoundAggregate) -> str:
    return aggregate.inputs[0]


# count ---------------------------------------------------------------------------------------------------------------


def _count_name(aggregate: BoundAggregate) -> str:
    return f"{','.join(aggregate.inputs) or '*'}.count"


def _count(aggregate: BoundAggregate) -> Parts:
    return {_count_name(aggregate): number_of(aggregate.inputs[0] if aggregate.inputs else None)}


def _counted(aggregate: BoundAggregate, name: str) -> Parts:
    """The number of values in other parts. Each family has its own, so that none has values without their number."""
    return {f"{_column(aggregate)}.{name}": number_of(_column(aggregate))}


def number_of(column: str | None) -> Part:
    """How many values a column has; of no column, how many rows there are."""
    return Part(loop=Groups.counts, merge_loop=Groups.sums, columns=() if column is None else (column,))


def first_of(column: str) -> Part:
    """The value of a column that is equal in all rows of a group."""
    return Part(loop=Groups.first, merge_loop=Groups.first, columns=(column,))


def _count_result(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    return to_arrow(partials[_count_name(aggregate)], aggregate.result)


# sum and mean --------------------------------------------------------------------------------------------------------


def _sum(aggregate: BoundAggregate) -> Parts:
    """Integers and decimals are summed in 128 bits, and decimals that could leave those in four parts of 32 bits each."""
    name, kind = _column(aggregate), aggregate.input_types[0]
    counted = _counted(aggregate, "summed")
    if is_wide(kind):
        sums = {
            f"{name}.sum{kind.scale}.{place}": Part(loop=partial(_limb_sums, place), merge_loop=Groups.sums, columns=(name,))
            for place in range(LIMBS)
        }
        return sums | counted
    loop = Groups.sums if pa.types.is_floating(kind) else _wide_sums
    return {f"{name}.sum": Part(loop=loop, merge_loop=loop, columns=(name,))} | counted


def _limb_sums(place: int, groups: Groups, values: pl.Series) -> pl.Series:
    return groups.sums(limb(place, values.fill_null(0)))


def _wide_sums(groups: Groups, values: pl.Series) -> pl.Series:
    """Sums of integers and decimals, in 128 bits."""
    values = values.fill_null(0) if values.null_count() else values
    if isinstance(values.dtype, pl.Decimal):
        (low, high), scale = words_of(values), values.dtype.scale
    else:
        low, scale = values.to_numpy().astype(np.int64, copy=False), 0
        high = low >> 63
    low, high = groups.wide_sums(low, high)
    return pl.Series(decimals_of(low, high, np.zeros(len(low), np.bool_), pa.decimal128(38, scale)))


def _sum_result(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    name, kind = _column(aggregate), aggregate.input_types[0]
    empty = (partials[f"{name}.summed"] == 0).to_numpy()
    if pa.types.is_floating(kind):
        return pa.array(partials[f"{name}.sum"].to_numpy(), mask=empty)
    low, high, lost = _exact_sum(aggregate, partials)
    overflown = (high != low >> 63) if pa.types.is_integer(kind) else lost | beyond(low, high, aggregate.result.precision)
    if overflown.any() and aggregate.options["ansi"]:
        raise _overflow(aggregate)
    if pa.types.is_integer(kind):
        return pa.array(low, mask=empty)
    return decimals_of(low, high, empty | overflown, aggregate.result)


def _mean_result(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    name, kind = _column(aggregate), aggregate.input_types[0]
    counts = partials[f"{name}.summed"].to_numpy()
    empty = counts == 0
    divisor = np.where(empty, 1, counts)
    if pa.types.is_floating(kind):
        return pa.array(partials[f"{name}.sum"].to_numpy() / divisor, mask=empty)
    low, high, lost = _exact_sum(aggregate, partials)
    sums = (high.astype(object) << 64) + low.view(np.uint64).astype(object)
    if kind.precision <= _DIGITS_OF_MEANS_IN_DOUBLES:
        means = sums.astype(np.float64) / divisor / 10.0**kind.scale
        unit = Decimal(1).scaleb(-aggregate.result.scale)
        rounded = [Decimal(repr(mean)).quantize(unit, ROUND_HALF_UP) for mean in means.tolist()]
        return pa.array(rounded, aggregate.result, mask=empty)
    # exact division, rounded half up as Spark does; one Python integer per key and window, not per row
    scaled = sums * 10 ** (aggregate.result.scale - kind.scale)
    absolute = (abs(scaled) * 2 + divisor) // (2 * divisor.astype(object))
    lost |= (absolute >= 10**aggregate.result.precision).astype(np.bool_)
    lost |= (abs(sums) >= 10 ** min(_MOST_DIGITS, kind.precision + _DIGITS_OF_A_SUM)).astype(np.bool_)
    if lost.any() and aggregate.options["ansi"]:
        raise _overflow(aggregate)
    quotient = np.where(lost, 0, np.where(scaled < 0, -absolute, absolute))
    low = (quotient & (2**64 - 1)).astype(np.uint64).view(np.int64)
    high = (quotient >> 64).astype(np.int64)
    return decimals_of(low, high, empty | lost, aggregate.result)


_MOST_DIGITS, _DIGITS_OF_A_SUM = 38, 10
"""Spark has a decimal's mean from a sum of so many digits more, and has none where that sum has more than it can have."""

_DIGITS_OF_MEANS_IN_DOUBLES = 11
"""Spark's optimizer has means of decimals of at most so many digits computed in doubles (its rule DecimalAggregates)."""


def _exact_sum(aggregate: BoundAggregate, partials: pl.DataFrame) -> tuple[Words, Words, Flags]:
    """The low and high words of each sum, and where even those did not suffice."""
    name = _column(aggregate)
    if not is_wide(aggregate.input_types[0]):
        low, high = words_of(partials[f"{name}.sum"])
        return low, high, np.zeros(len(low), np.bool_)
    scale = aggregate.input_types[0].scale
    return words_of_limbs([partials[f"{name}.sum{scale}.{place}"].to_numpy() for place in range(LIMBS)])


def _overflow(aggregate: BoundAggregate) -> ArithmeticOverflow:
    return ArithmeticOverflow(
        f"{aggregate.label} left the range of {aggregate.result}. Aggregate a wider type, for example "
        "cast(... as decimal(38, 0)), or as double where that is too narrow, too; or set spark.sql.ansi.enabled to false to "
        "get Spark's result without ANSI."
    )


# variance ------------------------------------------------------------------------------------------------------------


def _moments(aggregate: BoundAggregate) -> Parts:
    """Count, mean and the sum of squared deviations, merged as Chan, Golub and LeVeque do."""
    name = _column(aggregate)
    counts, means = f"{name}.varied", f"{name}.mean"
    return {
        **_counted(aggregate, "varied"),
        means: Part(loop=_means, merge_loop=_merged_means, columns=(name,), beside=(counts,)),
        f"{name}.m2": Part(loop=_squares, merge_loop=_merged_squares, columns=(name,), beside=(counts, means)),
    }


def _means(groups: Groups, values: pl.Series) -> pl.Series:
    return _merged_means(groups, values, _each(values))


def _squares(groups: Groups, values: pl.Series) -> pl.Series:
    return _merged_squares(groups, values - values, _each(values), values)  # NaN of what is infinite


def _each(values: pl.Series) -> pl.Series:
    return values.is_not_null().cast(pl.Int64)


def _merged_means(groups: Groups, means: pl.Series, counts: pl.Series) -> pl.Series:
    found, _ = groups.moments(counts, means, means)  # squares are of no account
    return found.set(groups.sums(counts) == 0, None)


def _merged_squares(groups: Groups, squares: pl.Series, counts: pl.Series, means: pl.Series) -> pl.Series:
    _, found = groups.moments(counts, means, squares)
    return found


def _variance_result(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    name = _column(aggregate)
    degrees = partials[f"{name}.varied"].to_numpy() - (0 if aggregate.function.endswith("_pop") else 1)
    squares = partials[f"{name}.m2"].fill_null(0.0).to_numpy()
    squares = np.where(squares < 0, np.nan, squares)  # values so large that what was added up is no number
    null = degrees <= 0
    values = squares / np.where(null, 1, degrees)
    return pa.array(np.sqrt(values) if aggregate.function.startswith("stddev") else values, mask=null)


# extremes, first and last ----------------------------------------------------------------------------------------------


def _extreme(take: str) -> Callable[[BoundAggregate], Parts]:
    def parts(aggregate: BoundAggregate) -> Parts:
        column = _column(aggregate)
        return {f"{column}.{take}": _extreme_of(take, column, aggregate.input_types[0])}

    return parts


def _extreme_of(take: str, column: str, kind: pa.DataType) -> Part:
    of_numbers = Groups.least if take == "min" else Groups.most
    loop: Loop | None = None
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        loop = of_numbers
    elif pa.types.is_decimal(kind) and kind.precision <= _DIGITS_OF_A_WORD:
        loop = partial(_extremes_of_words, of_numbers, kind)
    if loop:
        return Part(loop=loop, merge_loop=loop, columns=(column,))
    extreme = pl.Expr.min if take == "min" else pl.Expr.max
    return Part(extreme(pl.col(column)), extreme)


_DIGITS_OF_A_WORD = 18


def _extremes_of_words(of_numbers: Loop, kind: pa.DataType, groups: Groups, values: pl.Series) -> pl.Series:
    """Extremes of decimals that 64 bits are enough for."""
    words = pl.Series(words_of(values.fill_null(0))[0])
    found = of_numbers(groups, words.set(values.is_null(), None) if values.null_count() else words)
    low = found.fill_null(0).to_numpy()
    return pl.Series(decimals_of(low, low >> 63, found.is_null().to_numpy(), kind))


def _end(aggregate: BoundAggregate) -> Parts:
    column, first = _column(aggregate), aggregate.function == "first"

    def end(values: pl.Expr) -> pl.Expr:
        return values.drop_nulls().first() if first else values.drop_nulls().last()

    if aggregate.options["ignorenulls"]:
        return {_end_name(aggregate): Part(end(pl.col(column)), end)}
    loop = Groups.first if first else Groups.last
    return {_end_name(aggregate): Part(loop=loop, merge_loop=loop, columns=(column,))}


def _current(aggregate: BoundAggregate) -> Parts:
    """The value in the last row; windows in which the current row can be another one do not come here."""
    column = _column(aggregate)
    return {f"{column}.current": Part(loop=Groups.last, merge_loop=Groups.last, columns=(column,))}


def _end_name(aggregate: BoundAggregate) -> str:
    return f"{_column(aggregate)}.{aggregate.function}{'_value' if aggregate.options['ignorenulls'] else ''}"


def _part_result(suffix: str) -> Callable[[BoundAggregate, pl.DataFrame], pa.Array]:
    return lambda aggregate, partials: to_arrow(partials[f"{_column(aggregate)}.{suffix}"], aggregate.result)


# max_by and min_by -----------------------------------------------------------------------------------------------------


def _by(aggregate: BoundAggregate) -> Parts:
    """The chosen value and what it was chosen by."""
    value, order = aggregate.inputs
    largest = aggregate.function == "max_by"
    name = _by_name(aggregate)
    floating = pa.types.is_floating(aggregate.input_types[1])

    def pick(values: pl.Expr, by: pl.Expr) -> pl.Expr:
        by = by.map_batches(_ranked, pl.Int64, is_elementwise=True) if floating else by
        return values.max_by(by) if largest else values.min_by(by)

    return {
        name: Part(pick(pl.col(value), pl.col(order)), lambda part: pick(part, pl.col(f"{name}.order"))),
        f"{name}.order": _extreme_of("max" if largest else "min", order, aggregate.input_types[1]),
    }


def _ranked(numbers: pl.Series) -> pl.Series:
    """Integers in the order of floats, in which zeros are equal and NaN is the largest."""
    values = numbers.cast(pl.Float64).fill_null(0.0).to_numpy() + 0.0  # -0.0 + 0.0 is 0.0
    bits, most = values.view(np.int64), np.iinfo(np.int64).max
    ranks = np.where(np.isnan(values), most, bits ^ (bits >> 63 & most))  # of what is negative all bits but the sign change
    return pl.Series(ranks).set(numbers.is_null(), None)


def _by_name(aggregate: BoundAggregate) -> str:
    return f"{aggregate.inputs[0]}.{aggregate.function}.{aggregate.inputs[1]}"


# all_max_by ------------------------------------------------------------------------------------------------------------


def _all_by(aggregate: BoundAggregate) -> Parts:
    """The list of values that tie, and what they tie at."""
    value, order = aggregate.inputs
    name = _by_name(aggregate)
    floating = pa.types.is_floating(aggregate.input_types[1])

    def ties(values: pl.Expr, by: pl.Expr) -> pl.Expr:
        return values.filter(by == (by.nan_max() if floating else by.max()))

    return {
        name: Part(
            ties(pl.col(value), pl.col(order)).drop_nulls(),
            lambda part: ties(part, pl.col(f"{name}.order")).list.explode().drop_nulls(),
        ),
        f"{name}.order": _extreme_of("max", order, aggregate.input_types[1]),
    }


# approx_count_distinct -------------------------------------------------------------------------------------------------


def _sketch_name(aggregate: BoundAggregate) -> str:
    return f"{_column(aggregate)}.registers{aggregate.options['precision']}"


def _sketch(aggregate: BoundAggregate) -> Parts:
    loop = partial(_states, aggregate.options["precision"])
    return {_sketch_name(aggregate): Part(loop=loop, merge_loop=hyperloglog.merged, columns=(_column(aggregate),))}


def _states(precision: int, groups: Groups, hashes: pl.Series) -> pl.Series:
    return hyperloglog.states(groups, hyperloglog.codes(hashes, precision))


def _sketch_result(aggregate: BoundAggregate, partials: pl.DataFrame) -> pa.Array:
    tables = aggregate.options["tables"]
    return pa.array(hyperloglog.estimate(partials[_sketch_name(aggregate)], aggregate.options["precision"], tables))


_variance = Function(_moments, _variance_result)
_mean = Function(_sum, _mean_result)

FUNCTIONS = {
    "count": Function(_count, _count_result),
    "sum": Function(_sum, _sum_result),
    "avg": _mean,
    "mean": _mean,
    "min": Function(_extreme("min"), _part_result("min")),
    "max": Function(_extreme("max"), _part_result("max")),
    "bool_and": Function(_extreme("min"), _part_result("min")),
    "bool_or": Function(_extreme("max"), _part_result("max")),
    **dict.fromkeys(("stddev", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop"), _variance),
    **dict.fromkeys(("first", "last"), Function(_end, lambda a, partials: to_arrow(partials[_end_name(a)], a.result))),
    "current": Function(_current, _part_result("current")),
    **dict.fromkeys(("max_by", "min_by"), Function(_by, lambda a, partials: to_arrow(partials[_by_name(a)], a.result))),
    "all_max_by": Function(_all_by, lambda a, partials: to_arrow(partials[_by_name(a)], a.result)),
    "approx_count_distinct": Function(_sketch, _sketch_result),
}
