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

_INVERSE = 2.0 ** -np.arange(65)


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


def codes(hashes: pl.Expr, precision: int) -> pl.Expr:
    """The code of each hash, NULLs left out."""
    rest_bits = 64 - precision
    unsigned = hashes.drop_nulls().reinterpret(signed=False)
    padded = (unsigned % 2**rest_bits) * 2**precision | 2 ** (precision - 1)
    rank = padded.bitwise_leading_zeros().cast(pl.UInt32) + 1
    index: pl.Expr = (unsigned // 2**rest_bits).cast(pl.UInt32)
    code: pl.Expr = index * 64 + rank
    return code


def highest(codes: pl.Expr) -> pl.Expr:
    """The highest code of each register."""
    ordered = codes.sort()
    highest: pl.Expr = ordered.filter((ordered // 64).ne_missing((ordered // 64).shift(-1)))
    return highest


def estimate(states: pl.Series, precision: int, tables: Tables) -> npt.NDArray[np.int64]:
    """The number of distinct values that each state (a list of codes) has seen."""
    registers = 1 << precision
    results = np.empty(len(states), np.int64)
    step = max(1, (1 << 20) // registers)  # a few MB of dense registers at a time
    for begin in range(0, len(states), step):
        part = states.slice(begin, step)
        dense = np.zeros((len(part), registers), np.uint8)
        flat = part.explode(empty_as_null=False, keep_nulls=False).to_numpy()
        rows = np.repeat(np.arange(len(part)), part.list.len().fill_null(0).to_numpy())
        np.maximum.at(dense, (rows, flat >> 6), (flat & 63).astype(np.uint8))
        results[begin : begin + len(part)] = _estimate(dense, registers, tables)
    return results


def _estimate(dense: npt.NDArray[np.uint8], registers: int, tables: Tables) -> npt.NDArray[np.int64]:
    inverse = _INVERSE[dense].sum(axis=1)
    zeros = (dense == 0).sum(axis=1)
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
