"""When a table of Python rows is full: sizes are estimated from some rows, and seldom; those of wide values are known."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Hashable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.arrow import has_offsets
from forebay.store.options import Options

Item = TypeVar("Item")

LAST = 8
"""So many values of an entry are looked at for the size of all."""

PART_BYTES = 64 << 20
"""Python's size of the rows that become one batch, whose columns must stay below 2 GiB."""

WIDE = 1 << 10
"""Values of more bytes are counted one by one: a sample of all may have none of them, and few of them fill the memory."""

_REFERENCE, _CHARACTER = 8, 4
"""Bytes of a reference, and of a character at most."""

_SAMPLED = 64
_FIRST, _MOST_UNSEEN, _LEAST_SHARE = 16, 1 << 14, 64
"""Rows that come before a table looks at its size: at first, at most, and at least as a fraction of the rows that it has."""


class Room:
    """Memory that rows may fill.

    Whoever adds a row takes 1 from `left`, tells `widened` of a value that may be wide, and asks `full` when `left` is
    negative.

    Parameters
    ----------
    options : Options
        A half of the memory is the table's, or less if the write buffer is smaller than a quarter of it.

    Attributes
    ----------
    wide : dict
        The bytes of the wide values of each entry that has some. An entry that goes is taken out.
    """

    __slots__ = ("_budget", "_each", "_given", "_unseen", "left", "wide")

    def __init__(self, options: Options) -> None:
        self._budget, self._each = min(2 * options.write_buffer_bytes, options.memory_bytes // 2), 1.0
        self._given = self.left = _FIRST
        self._unseen = self._budget / 2
        self.wide: dict[Hashable, int] = {}

    @property
    def given(self) -> int:
        """How many rows were added, but those that were `read`."""
        return self._given - self.left

    def read(self, rows: int) -> bool:
        """Add rows that come back from the store; whether to ask `full`."""
        self.left -= rows
        self._given -= rows
        return self.left < 0

    def widened(self, entry: Hashable, value: Any) -> None:
        """Count a value that an entry has got, if it is wide."""
        size = _bytes(value)
        if size > WIDE:
            self.wide[entry] = self.wide.get(entry, 0) + size
            self._unseen -= size
            if self._unseen < 0 <= self.left:
                self._given, self.left = self.given - 1, -1

    def full(self, used: float, rows: int) -> bool:
        """Whether rows that take so many bytes are too many; if not, `left` says how many more may come."""
        room = self._budget - used
        if room <= 0:
            return True
        if rows:
            self._each = max(1.0, used / rows)
        step = max(1 + rows // _LEAST_SHARE, min(_MOST_UNSEEN, int(room / self._each / 2)))
        self._given += step - self.left
        self.left, self._unseen = step, room / 2
        return False


def sample(items: Collection[Item]) -> list[Item]:
    """Some of the items, evenly over all of them."""
    return list(islice(items, 0, None, -(-len(items) // _SAMPLED) or 1))


def mean_bytes(values: Iterable[Any], most: float = math.inf) -> float:
    """What a Python object takes on average, with what is in it and the reference to it.

    That of one which takes more than ``most`` is the reference alone.
    """
    sizes = [_bytes(value) for value in values]
    return _REFERENCE + sum(size for size in sizes if size <= most) / max(1, len(sizes))


def longest(kind: pa.DataType) -> int | None:
    """How long a value of a type may be that takes no more than `WIDE` bytes for sure; None if all take about the same."""
    if pa.types.is_nested(kind):
        return 0
    return WIDE // _CHARACTER if has_offsets(kind) else None


def each_bytes(values: Sequence[Any]) -> npt.NDArray[np.int64]:
    """What each of some Python objects takes, as in `mean_bytes`."""
    plain = {dict, list, tuple}.isdisjoint(map(type, values))
    return np.fromiter(map(sys.getsizeof if plain else _bytes, values), np.int64, len(values)) + _REFERENCE


def _bytes(value: Any) -> int:
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(map(_bytes, value.values()))
    if isinstance(value, list | tuple):
        return size + sum(map(_bytes, value))
    return size
