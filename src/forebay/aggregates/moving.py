"""Aggregates of frames that move over rows: each row enters a frame once and leaves once, however many frames it is in.

What can be subtracted is (counts; sums of integers and decimals, which are exact). What cannot be is kept in two stacks
(sums of floats, deviations) or in a queue (extremes). Ranks of rows in a tree give medians, percentiles and modes. All other
aggregates are computed from the rows of each frame by itself, which costs the sum of the frames' sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.aggregates import frame_kernels as kernels
from forebay.aggregates import percentages
from forebay.aggregates.aggregation import FUNCTIONS
from forebay.aggregates.bound import BoundAggregate
from forebay.aggregates.parts import with_one_zero
from forebay.aggregates.percentages import percentages_of
from forebay.aggregates.wide import LIMBS, decimals_of, is_wide, limb, words_of_limbs

Places = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Frames:
    """Ranges of rows, each for one of them: none empty, begins and ends never fall.

    Attributes
    ----------
    current : array
        The row that each is for.
    begins, ends : array
        Its first row, and the one after its last row.

    Examples
    --------
    >>> frames = Frames(np.array([0, 1, 2]), np.array([0, 0, 1]), np.array([1, 2, 3]))
    >>> [places.tolist() for places in frames.spread()]
    [[0, 0, 1, 1, 2], [0, 1, 1, 2, 2]]
    """

    current: Places
    begins: Places
    ends: Places

    def __getitem__(self, some: Places) -> Frames:
        """Some of them."""
        return Frames(self.current[some], self.begins[some], self.ends[some])

    @property
    def sizes(self) -> Places:
        """How many rows frames have."""
        return self.ends - self.begins

    def spread(self) -> tuple[Places, Places]:
        """Each row once for each frame that it is in, and the number of that frame, which order them."""
        sizes = self.sizes
        numbers = np.repeat(np.arange(len(sizes)), sizes)
        rows = np.repeat(self.begins - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
        return rows, numbers


def moves(aggregate: BoundAggregate) -> bool:
    """Whether an aggregate of frames that move costs no more than their rows."""
    nested = any(map(pa.types.is_nested, aggregate.input_types))
    return aggregate.function in _MOVING and not (nested and aggregate.function in ("mode", "count_distinct"))


def moving(aggregate: BoundAggregate, rows: pl.DataFrame, frames: Frames) -> Moved:
    """The results of an aggregate that `moves`, one for each frame.

    Examples
    --------
    >>> total = BoundAggregate("total", "sum", ("x",), (pa.int64(),), pa.int64(), {"ansi": True})
    >>> frames = Frames(np.array([0, 1, 2]), np.array([0, 0, 1]), np.array([1, 2, 3]))
    >>> moving(total, pl.DataFrame({"x": [3, 4, 5]}), frames).to_pylist()
    [3, 7, 9]
    """
    return _MOVING[aggregate.function](aggregate, rows, frames)


# count, sum and mean ---------------------------------------------------------------------------------------------------


def _differences(values: Places, frames: Frames) -> Places:
    """The exact sum of integers in each frame, which must not leave 64 bits."""
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    found: Places = sums[frames.ends] - sums[frames.begins]
    return found


def _valid(rows: pl.DataFrame, name: str) -> Flags:
    return rows[name].is_not_null().to_numpy()


def _counts(rows: pl.DataFrame, name: str, frames: Frames) -> pl.Series:
    return pl.Series(_differences(_valid(rows, name).astype(np.int64), frames))


def _count(aggregate: BoundAggregate, rows: pl.DataFrame, frames: Frames) -> pa.Array:
    counts = _counts(rows, aggregate.inputs[0], frames) if aggregate.inputs else pl.Series(frames.sizes)
    return pa.array(counts.to_numpy())


def _sum(aggregate: BoundAggregate, rows: pl.DataFrame, frames: Frames) -> pa.Array:
    """The parts of `forebay.aggregates.incremental`, and what it makes of them."""
    (name,), (kind,) = aggregate.inputs, aggregate.input_types
    values, summed = rows[name].fill_null(0), _counts(rows, name, frames)
    if pa.types.is_floating(kind):
        parts = {f"{name}.sum": pl.Series(kernels.sums(values.cast(pl.Float64).to_numpy(), frames.begins, frames.ends))}
    elif pa.types.is_integer(kind):
        words = values.cast(pl.Int64).to_numpy()
        low, high = (_differences(half, frames) for half in (words & 0xFFFFFFFF, words >> 32))
        high += low >> 32
        parts = {f"{name}.sum": _exact(high << 32 | low & 0xFFFFFFFF, high >> 32, 0)}
    else:
        limbs = [_differences(limb(place, values).to_numpy(), frames) for place in range(LIMBS)]
        if is_wide(kind):
            parts = {f"{name}.sum{kind.scale}.{place}": pl.Series(each) for place, each in enumerate(limbs)}
        else:
            low, high, _ = words_of_limbs(limbs)
            parts = {f"{name}.sum": _exact(low, high, kind.scale)}
    return FUNCTIONS[aggregate.function].finish(aggregate, pl.DataFrame({**parts, f"{name}.summed": summed}))


def _exact(low: Places, high: Places, scale: int) -> pl.Series:
    return pl.Series(pl.from_arrow(decimals_of(low, high, np.zeros(len(low), np.bool_), pa.decimal128(38, scale))))


def _variance(aggregate: BoundAggregate, rows: pl.DataFrame, frames: Frames) -> pa.Array:
    name = aggregate.inputs[0]
    values = rows[name].cast(pl.Float64).fill_null(0.0).to_numpy()
    counts, squares = kernels.moments(values, _valid(rows, name), frames.begins, frames.ends)
    parts = pl.DataFrame({f"{name}.varied": counts.astype(np.int64), f"{name}.m2": squares})
    return FUNCTIONS[aggregate.function].finish(aggregate, parts)


# rows that are chosen --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """Values that are those of some rows, NULL where a number is negative: there may be many more of them than rows."""

    values: pl.Series
    rows: Places
    type: pa.DataType

    def take(self, ids: pa.Array) -> pa.Array:
        """Those with some numbers."""
        rows = self.rows[ids.to_numpy()]
        taken = self._array.take(pa.array(rows, mask=rows < 0))
        return taken if taken.type.equals(self.type) else taken.cast(self.type)

    @functools.cached_property
    def _array(self) -> pa.Array:
        return arrow.of(self.values)


Moved: TypeAlias = pa.Array | Chosen


def _chosen(aggregate: BoundAggregate, rows: pl.DataFrame, found: Places) -> Chosen:
    """The values of the first input in some rows; NULL where there is no row."""
    return Chosen(rows[aggregate.inputs[0]], found, aggregate.result)


def _extreme(aggregate: BoundAggregate, rows: pl.DataFrame, frames: Frames) -> Chosen:
    """The largest or smallest value, or that of the row where another column is so."""
    order = aggregate.inputs[-1]
    codes = _ordered(rows[order])
    if aggregate.function in ("min", "min_by", "bool_and"):
        codes = ~codes
    return _chosen(aggregate, rows, kernels.extremes(codes, _valid(rows, order), frames.begins, frames.ends))


def _current(aggregate: BoundAggregate, rows: pl.DataFrame, frames: Frames) -> Chosen:
    return _chosen(aggregate, rows, frames.current)


def _end(aggregate: BoundAggregate, rows: pl.DataFrame, frames: Frames) -> Chosen:
    """The first or the last value. With ``ignorenulls`` the nearest row that has one, if the frame reaches there."""
    first = aggregate.function == "first"
    found = frames.begins if first else frames.ends - 1
    if aggregate.options["ignorenulls"]:
        places, valid = np.arange(rows.height), _valid(rows, aggregate.inputs[0])
        if first:
            nearest = np.minimum.accumulate(np.where(valid, places, rows.height)[::-1])[::-1][found]
            found = np.where(nearest < frames.ends, nearest, -1)
        else:
            nearest = np.maximum.accumulate(np.where(valid, places, -1))[found]
            found = np.where(nearest >= frames.begins, nearest, -1)
    return _chosen(aggregate, rows, found)


def _mode(aggregate: BoundAggregate, rows: pl.DataFrame, frames: Frames) -> Chosen:
    name = aggregate.inputs[0]
    ranks, firsts = _ranked(rows[name])
    codes = kernels.modes(ranks, _valid(rows, name), frames.begins, frames.ends, len(firsts))
    return _chosen(aggregate, rows.with_columns(with_one_zero(rows[name])), np.where(codes < 0, -1, firsts[codes]))


def _ordered(values: pl.Series) -> Places:
    """Integers in the order of values, whatever those of NULLs are."""
    kind = values.dtype
    if kind.is_float():
        bits = (values.cast(pl.Float64).fill_null(0.0).to_numpy() + 0.0).copy()  # one zero
        bits[np.isnan(bits)] = np.nan  # one NaN, the largest
        words = bits.view(np.int64)
        ordered: Places = words ^ ((words >> 63) & np.int64(2**63 - 1))
        return ordered
    if kind.is_integer() or kind == pl.Boolean or (kind.is_temporal()):
        return values.to_physical().cast(pl.Int64).fill_null(0).to_numpy()
    return _ranked(values)[0]


def _ranked(values: pl.Series) -> tuple[Places, Places]:
    """The rank of each value among the different ones, and a row that has the value of each rank; NULLs come last."""
    order = values.arg_sort(nulls_last=True).to_numpy()
    arranged = values.gather(order)
    begins = np.ones(len(order), np.bool_)
    begins[1:] = arranged.ne_missing(arranged.shift(1)).to_numpy()[1:]
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(begins) - 1
    return ranks, order[begins].astype(np.int64)


# medians, percentiles and distinct values ------------------------------------------------------------------------------


def _percentile(aggregate: BoundAggregate, rows: pl.DataFrame, frames: Frames) -> pa.Array:
    name = aggregate.inputs[0]
    ranks, firsts = _ranked(rows[name])
    values = rows[name].gather(firsts).cast(pl.Float64).fill_null(0.0).to_numpy()
    asked = np.array(percentages_of(aggregate))
    found, sizes = kernels.percentiles(ranks, _valid(rows, name), values, frames.begins, frames.ends, asked)
    return percentages.results(aggregate, found, sizes == 0)


def _distinct(aggregate: BoundAggregate, rows: pl.DataFrame, frames: Frames) -> pa.Array:
    names = list(dict.fromkeys(aggregate.inputs))
    first_alike = pl.col("code").cast(pl.Int64).first().over(names)
    codes = rows.select(names).with_row_index("code").select(first_alike)["code"].to_numpy()
    valid = rows.select(pl.all_horizontal(pl.col(names).is_not_null()).alias("valid"))["valid"].to_numpy()
    return pa.array(kernels.distinct(codes, valid, frames.begins, frames.ends))


_EXTREMES = ("min", "max", "min_by", "max_by", "bool_and", "bool_or")
_VARIANCES = ("stddev", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop")

_MOVING: dict[str, Callable[[BoundAggregate, pl.DataFrame, Frames], Moved]] = {
    "count": _count,
    **dict.fromkeys(("sum", "avg", "mean"), _sum),
    **dict.fromkeys(_VARIANCES, _variance),
    **dict.fromkeys(_EXTREMES, _extreme),
    **dict.fromkeys(("first", "last"), _end),
    "current": _current,
    "mode": _mode,
    **dict.fromkeys(("median", "percentile"), _percentile),
    "count_distinct": _distinct,
}
