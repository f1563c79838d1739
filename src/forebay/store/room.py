"""When a table of Python rows is full: sizes are estimated from some rows, and seldom."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

_FIRST, _MOST_UNSEEN, _LEAST_SHARE = 16, 1 << 16, 64
"""Rows that come before a table looks at its size: at first, at most, and at least as a fraction of the rows that it has."""


class Room:
    """Memory that rows may fill.

    Whoever adds a row takes 1 from `left`, and asks `full` when that is negative.

    Parameters
    ----------
    budget : int
        Bytes.
    """

    __slots__ = ("_budget", "_granted", "left")

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._granted = self.left = _FIRST

    @property
    def given(self) -> int:
        """How many rows were added."""
        return self._granted - self.left

    def full(self, entries: int, entry_bytes: float) -> bool:
        """Whether that many entries of that size are too many; if not, `left` says how many more may come."""
        room = self._budget - entries * entry_bytes
        if room <= 0:
            return True
        step = max(1 + entries // _LEAST_SHARE, min(_MOST_UNSEEN, int(room / max(1.0, entry_bytes) / 2)))
        self._granted += step - self.left
        self.left = step
        return False


def mean_bytes(values: Iterable[Any]) -> float:
    """What a Python object takes on average, with the reference to it."""
    sizes = [sys.getsizeof(value) + 8 for value in values]
    return sum(sizes) / max(1, len(sizes))
