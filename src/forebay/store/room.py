"""When a table of Python rows is full: sizes are estimated from some rows, and seldom."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from forebay.store.options import Options

Item = TypeVar("Item")

LAST = 8
"""So many values of an entry are looked at for the size of all."""

PART_BYTES = 64 << 20
"""Python's size of the rows that become one batch, whose columns must stay below 2 GiB."""

_SAMPLED = 64
_FIRST, _MOST_UNSEEN, _LEAST_SHARE = 16, 1 << 14, 64
"""Rows that come before a table looks at its size: at first, at most, and at least as a fraction of the rows that it has."""


class Room:
    """Memory that rows may fill.

    Whoever adds a row takes 1 from `left`, and asks `full` when that is negative.

    Parameters
    ----------
    options : Options
        A half of the memory is the table's, or less if the write buffer is smaller than a quarter of it.
    """

    __slots__ = ("_budget", "_each", "_given", "left")

    def __init__(self, options: Options) -> None:
        self._budget, self._each = min(2 * options.write_buffer_bytes, options.memory_bytes // 2), 1.0
        self._given = self.left = _FIRST

    @property
    def given(self) -> int:
        """How many rows were added, but those that were `read`."""
        return self._given - self.left

    def read(self, rows: int) -> bool:
        """Add rows that come back from the store; whether to ask `full`."""
        self.left -= rows
        self._given -= rows
        return self.left < 0

    def full(self, used: float, rows: int) -> bool:
        """Whether rows that take so many bytes are too many; if not, `left` says how many more may come."""
        room = self._budget - used
        if room <= 0:
            return True
        if rows:
            self._each = max(1.0, used / rows)
        step = max(1 + rows // _LEAST_SHARE, min(_MOST_UNSEEN, int(room / self._each / 2)))
        self._given += step - self.left
        self.left = step
        return False


def sample(items: Collection[Item]) -> list[Item]:
    """Some of the items, evenly over all of them."""
    return list(islice(items, 0, None, -(-len(items) // _SAMPLED) or 1))


def mean_bytes(values: Iterable[Any]) -> float:
    """What a Python object takes on average, with what is in it and the reference to it."""
    sizes = [_bytes(value) for value in values]
    return sum(sizes) / max(1, len(sizes))


def each_bytes(values: Sequence[Any]) -> npt.NDArray[np.int64]:
    """What each of some Python objects takes, as in `mean_bytes`."""
    plain = {dict, list, tuple}.isdisjoint(map(type, values))
    return np.fromiter(map(sys.getsizeof if plain else _bytes, values), np.int64, len(values)) + 8 * plain


def _bytes(value: Any) -> int:
    size = sys.getsizeof(value) + 8
    if isinstance(value, dict):
        return size + sum(map(_bytes, value.values()))
    if isinstance(value, list | tuple):
        return size + sum(map(_bytes, value))
    return size
