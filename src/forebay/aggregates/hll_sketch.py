"""HyperLogLog sketches of Apache DataSketches, which Spark's ``hll_sketch_estimate`` and ``hll_union`` read.

A state is as in `forebay.aggregates.hyperloglog`: a code for each register that was set, its index times 64 plus its rank.
The registers are those of DataSketches, which hashes values otherwise than Spark's ``approx_count_distinct`` does.
"""

from __future__ import annotations

import struct

import numpy as np
import polars as pl

from forebay.aggregates.murmur import coupons, each

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


def serialized(states: pl.Series, lg_k: int) -> list[bytes]:
    """Sketches with a byte for each register, in the format of DataSketches."""
    return [_bytes(codes.to_numpy(), lg_k) for codes in states]


def _bytes(codes: np.ndarray[tuple[int], np.dtype[np.uint32]], lg_k: int) -> bytes:
    if not len(codes):
        return struct.pack("<BBBBBBBB", 2, 1, _FAMILY, lg_k, 3, _EMPTY | _COMPACT, 0, _LIST_MODE | _EIGHT_BITS)
    registers = np.zeros(1 << lg_k, np.uint8)
    registers[codes >> 6] = codes & 63
    inverse = 2.0 ** -registers.astype(np.float64)
    low = registers < _BELOW
    head = struct.pack("<BBBBBBBB", 10, 1, _FAMILY, lg_k, 0, _OUT_OF_ORDER, 0, _HLL_MODE | _EIGHT_BITS)
    sums = struct.pack("<dddii", 0.0, inverse[low].sum(), inverse[~low].sum(), int((registers == 0).sum()), 0)
    return head + sums + registers.tobytes()
