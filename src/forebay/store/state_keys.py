"""State keys: a key with a window, under which rows are given and asked for one at a time."""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.store.key_index import KeyIndex, Slots

Window = tuple[int, int]
StateKey = tuple[Any, Window]

_TWO_NUMBERS = struct.Struct("=qq")

_SHORT = 128
"""Of texts that are no longer hashes are kept."""


def bounds_of(names: Sequence[StateKey]) -> npt.NDArray[np.int64]:
    """The windows of state keys, a row ``start, end`` each."""
    instants = itertools.chain.from_iterable(window for _, window in names)
    return np.fromiter(instants, np.int64, 2 * len(names)).reshape(-1, 2)


def placed(index: KeyIndex, keys: pa.Array, bounds: npt.NDArray[np.int64], etts: npt.NDArray[np.int64] | None) -> Slots:
    """The windows of rows in the index, by their keys and by bounds ``start, end``; new ones are opened."""
    distinct = keys.dictionary_encode(null_encoding="encode")
    hashes = [identity_of(plain(key)) for key in distinct.dictionary.to_pylist()]
    named = np.array(hashes, np.int64).reshape(-1, 2)[distinct.indices.to_numpy()]
    high, low, start, end = (np.ascontiguousarray(column) for column in (*named.T, *bounds.T))
    return index.place_exact(high, low, start, end, etts)


def identity_of(key: Any) -> tuple[int, int]:
    """The 128-bit identity of a key: there are no hashes from Spark."""
    text = repr(key)
    return _hashed(text) if len(text) <= _SHORT else _hashed.__wrapped__(text)


@lru_cache(1 << 13)
def _hashed(text: str) -> tuple[int, int]:
    """The 128-bit hash of a text. They are kept, since a batch mostly writes the keys that it has read."""
    high, low = _TWO_NUMBERS.unpack(hashlib.blake2b(text.encode(), digest_size=16).digest())
    return high, low


def plain(key: Any) -> Any:
    """A key such that keys are equal in Python if they are equal in Arrow: there is one NaN, one zero, and one time zone."""
    if isinstance(key, float):
        return math.nan if math.isnan(key) else key + 0.0
    if isinstance(key, datetime) and key.tzinfo is not None:
        return key.astimezone(UTC)
    return key
