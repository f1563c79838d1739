"""HyperLogLog sketches of Apache DataSketches, which Spark's ``hll_sketch_estimate`` and ``hll_union`` read.

A state is as in `forebay.aggregates.hyperloglog`: a code for each register that was set, its index times 64 plus its rank.
The registers are those of DataSketches, which hashes values otherwise than Spark's ``approx_count_distinct`` does.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.aggregates.murmur import coupons, each

Codes = npt.NDArray[np.uint32]

_SEED = 9001
_FAMILY = 7
_COMPACT, _EMPTY, _OUT_OF_ORDER = 8, 4, 16
_LIST_MODE, _HLL_MODE, _EIGHT_BITS = 0, 2, 2 << 2
_BELOW = 32
"""Ranks below it are added up apart from the others, so that no digit is lost."""


def codes(values: pl.Series, lg_k: int) -> pl.Series:
    """The code of each value: integers, strings or binaries without NULLs. An empty string is no value: its code is NULL."""
    found = each(values, coupons, _SEED)
    coded = pl.Series(values.name, (found & (1 << lg_k) - 1) << 6 | found >> 26, pl.UInt32)
    if values.dtype in (pl.String, pl.Binary):
        coded = coded.set(values.cast(pl.Binary).bin.size() == 0, None)
    return coded


def serialized(states: pl.Series, lg_k: int) -> pa.Array:
    """Sketches with a byte for each register, in the format of DataSketches."""
    empty = struct.pack("<BBBBBBBB", 2, 1, _FAMILY, lg_k, 3, _EMPTY | _COMPACT, 0, _LIST_MODE | _EIGHT_BITS)
    codes, sizes = arrow.elements(states)
    there = sizes > 0
    count = int(there.sum())
    found = _dense(codes.to_numpy(), np.repeat(np.arange(count), sizes[there]), count, lg_k)
    if there.all():
        return found
    return pa.concat_arrays([found, pa.array([empty])]).take(pa.array(np.where(there, np.cumsum(there) - 1, count)))


def _dense(codes: Codes, owners: npt.NDArray[np.int64], count: int, lg_k: int) -> pa.Array:
    """So many sketches, of codes of which each has an owner."""
    head = struct.pack("<BBBBBBBB", 10, 1, _FAMILY, lg_k, 0, _OUT_OF_ORDER, 0, _HLL_MODE | _EIGHT_BITS)
    sums = [("all", "<f8"), ("low", "<f8"), ("high", "<f8"), ("zeros", "<i4"), ("rest", "<i4")]
    sketches = np.zeros(count, np.dtype([("head", np.uint8, 8), *sums, ("registers", np.uint8, 1 << lg_k)]))
    ranks = codes & 63
    low, inverse = ranks < _BELOW, 2.0 ** -ranks.astype(np.float64)
    zeros = (1 << lg_k) - np.bincount(owners, minlength=count)
    sketches["head"] = np.frombuffer(head, np.uint8)
    sketches["low"] = zeros + np.bincount(owners[low], inverse[low], count)
    sketches["high"] = np.bincount(owners[~low], inverse[~low], count)
    sketches["zeros"] = zeros
    sketches["registers"][owners, codes >> 6] = ranks
    return arrow.binaries(sketches)
