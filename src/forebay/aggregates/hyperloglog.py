"""HyperLogLog++ as Spark computes ``approx_count_distinct``, register for register.

The input is Spark's own 64-bit hash of the value (``xxhash64``), or NULL for a NULL value. A register's *code* is its index
times 64 plus its rank; a state is the highest code of each register seen, small while few values were seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.aggregates.grouping import Groups, Integers

_INVERSE = 2.0 ** -np.arange(65)

_RANK_BITS, _CODE_BITS = 6, 32


@dataclass(frozen=True)
class Tables:
    """The empirical constants of one precision: linear-counting threshold, raw estimates and their biases."""

    threshold: float
    estimates: tuple[float, ...]
    biases: tuple[float, ...]
    neighbours: int


def precision_of(rsd: float) -> int:
    """Bits of the register index for a relative standard deviation.

    Examples
    --------
    >>> precision_of(0.05)
    9
    """
    return math.ceil(2.0 * math.log(1.106 / rsd) / math.log(2.0))


def codes(hashes: pl.Series, precision: int) -> pl.Series:
    """The code of each hash, NULL where that is NULL.

    Examples
    --------
    >>> codes(pl.Series([0b0011 << 60 | 1 << 58, None]), 4).to_list() == [3 * 64 + 2, None]
    True
    """
    unsigned = hashes.fill_null(0).to_numpy().view(np.uint64)
    rest = unsigned << precision | 1 << (precision - 1)
    rank = pl.Series(rest).bitwise_leading_zeros().to_numpy() + 1
    found = (unsigned >> (64 - precision)).astype(np.uint32) * 64 + rank.astype(np.uint32)
    return pl.Series(found).set(hashes.is_null(), None)


def states(groups: Groups, codes: pl.Series) -> pl.Series:
    """The state of each group of rows with codes, of which some may be NULL.

    Examples
    --------
    >>> groups, _ = Groups.of(pl.DataFrame({"key": [7, 3, 7, 7]}), ["key"])
    >>> states(groups, pl.Series([2 * 64 + 1, 5, 64 + 3, 64 + 9], dtype=pl.UInt32)).to_list()
    [[73, 129], [5]]
    """
    numbers, ordered = np.repeat(np.arange(len(groups)), groups.ends - groups.begins), codes.gather(groups.order)
    if codes.null_count():
        numbers = numbers[ordered.is_not_null().to_numpy()]
    return _highest(numbers, ordered.drop_nulls(), len(groups))


def merged(groups: Groups, states: pl.Series) -> pl.Series:
    """States merged by group."""
    codes, sizes = arrow.elements(states)
    return _highest(np.repeat(groups.numbers, sizes), codes, len(groups))


def _highest(groups: Integers, codes: pl.Series, count: int) -> pl.Series:
    """The highest code of each register in each of some groups, in order of the registers."""
    ordered = np.sort(groups << _CODE_BITS | codes.to_numpy(), kind="stable")  # which is quick where some are in order
    last = np.diff(ordered >> _RANK_BITS, append=-1) != 0
    found = ordered[last]
    ends = np.cumsum(np.bincount(found >> _CODE_BITS, minlength=count))
    return arrow.lists(pa.array(found.astype(np.uint32)), ends)


def estimate(states: pl.Series, precision: int, tables: Tables) -> npt.NDArray[np.int64]:
    """The number of distinct values that each state (a list of codes) has seen."""
    registers = 1 << precision
    codes, sizes = arrow.elements(states)
    ranks = codes.to_numpy() & 63
    owners, zeros = np.repeat(np.arange(len(states)), sizes), registers - sizes
    inverse = zeros + np.bincount(owners, _INVERSE[ranks], len(states))
    raw = _alpha(registers) * registers * registers / inverse
    linear = registers * np.log(registers / np.maximum(zeros, 1))
    small = (zeros > 0) & ((linear <= tables.threshold) | (raw <= 2.5 * registers))
    corrected = raw - _bias(raw, tables) if tables.estimates else raw
    result = np.where(small, linear, np.where(raw < 5.0 * registers, corrected, raw))
    rounded: npt.NDArray[np.int64] = np.floor(result + 0.5).astype(np.int64)
    return rounded


def _alpha(registers: int) -> float:
    known = {16: 0.673, 32: 0.697, 64: 0.709}
    return known.get(registers, 0.7213 / (1.0 + 1.079 / registers))


def _bias(raw: npt.NDArray[np.float64], tables: Tables) -> npt.NDArray[np.float64]:
    """Mean bias of the estimates nearest to each value: a run of neighbours, moved up while its upper end is nearer."""
    estimates, biases = np.array(tables.estimates), np.array(tables.biases)
    last = len(estimates)
    low = np.maximum(np.searchsorted(estimates, raw) - tables.neighbours + 1, 0)
    high = np.minimum(low + tables.neighbours, last)
    while True:
        nearer = np.abs(raw - estimates[np.minimum(high, last - 1)]) < np.abs(raw - estimates[low])
        move = nearer & (high < last)
        if not move.any():
            break
        low, high = low + move, high + move
    total = np.zeros(len(raw))
    for step in range(tables.neighbours):
        at = low + step
        total += np.where(at < high, biases[np.minimum(at, last - 1)], 0.0)
    return np.asarray(total / (high - low))
