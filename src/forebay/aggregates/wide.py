"""Integers and decimals of 128 bits, as the words and limbs that NumPy can add.

A *word* is one half of such a number, a *limb* is a quarter of it. The highest of either has the sign.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

Words = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LIMBS = 4
"""So many limbs has a number, of 32 bits each."""


def is_wide(kind: pa.DataType) -> bool:
    """Whether the sum of a practical number of such values could leave 128 bits."""
    return bool(pa.types.is_decimal(kind) and kind.precision > 28)


def words_of(decimals: pl.Series) -> tuple[Words, Words]:
    """The low and high words of decimals."""
    array = decimals.to_arrow()
    words = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array))]
    return words[0::2].copy(), words[1::2].copy()


def limb(place: int, decimals: pl.Series) -> pl.Series:
    """One of the limbs of decimals, the lowest first."""
    word = words_of(decimals)[place // 2]
    return pl.Series(word >> 32 if place == LIMBS - 1 else (word >> 32 * (place % 2)) & 0xFFFFFFFF)


def words_of_limbs(limbs: Sequence[Words]) -> tuple[Words, Words, Flags]:
    """The low and high words of numbers whose limbs are sums, and which of them do not fit into 128 bits."""
    carried = [each.copy() for each in limbs]
    for place in range(LIMBS - 1):
        carried[place + 1] += carried[place] >> 32  # an arithmetic shift: the carry
        carried[place] &= 0xFFFFFFFF
    lost = carried[-1] != carried[-1].astype(np.int32)
    return carried[1] << 32 | carried[0], carried[3] << 32 | carried[2], lost


def decimals_of(low: Words, high: Words, null: Flags, result: pa.DataType) -> pa.Array:
    """Decimals of such words."""
    words = np.empty(2 * len(low), np.int64)
    words[0::2], words[1::2] = low, high
    valid = pa.array(~null).buffers()[1]
    return pa.Array.from_buffers(result, len(low), [valid, pa.py_buffer(words)])


def beyond(low: Words, high: Words, precision: int) -> Flags:
    """Which numbers have more than ``precision`` digits."""
    bound_high, bound_low = divmod(10**precision, 2**64)
    unsigned = low.view(np.uint64)
    above = (high > bound_high) | ((high == bound_high) & (unsigned >= np.uint64(bound_low)))
    floor_high, floor_low = divmod(-(10**precision), 2**64)
    below = (high < floor_high) | ((high == floor_high) & (unsigned <= np.uint64(floor_low)))
    return np.asarray(above | below)
