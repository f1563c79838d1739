"""Rows by key and then by time. Keys are numbers, and rows of a key nearly in order, so it takes less time than sorting."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from forebay.aggregates.grouping import Integers, arranged
from forebay.compiling import compiled, read_only

_SPARSE = 4
"""Numbers of keys may go up to so many times the number of rows: there is a counter for each."""

Keys = npt.NDArray[np.integer]


def ordered(keys: Keys, times: Integers, count: int) -> tuple[Integers, Integers]:
    """Positions of rows by their keys, which are below ``count``, then their times, then arrival; and where each key's end.

    Examples
    --------
    >>> order, ends = ordered(np.array([2, 0, 2, 2]), np.array([5, 9, 4, 5]), 3)
    >>> order.tolist(), ends.tolist()
    ([1, 2, 0, 3], [1, 1, 4])
    """
    found: tuple[Integers, Integers] = _ordered(read_only(keys.astype(np.int64, copy=False)), read_only(times), count)
    return found


def close_together(*keys: Keys) -> tuple[list[Keys], int]:
    """The same keys in the same order, by numbers that are not much larger than there are rows; and one above all of them.

    Examples
    --------
    >>> keys, count = close_together(np.array([1 << 40, 7]), np.array([9, 7]))
    >>> [each.tolist() for each in keys], count
    ([[2, 0], [1, 0]], 3)
    """
    rows = [len(each) for each in keys]
    count = 1 + max(int(each.max(initial=-1)) for each in keys)
    if count <= _SPARSE * sum(rows):
        return list(keys), count
    known, numbers = np.unique(np.concatenate(keys), return_inverse=True)
    return np.split(numbers, np.cumsum(rows)[:-1]), len(known)


@compiled
def _ordered(keys, times, count):
    """What `ordered` gives."""
    order, ends = arranged(keys, count)
    begin = 0
    for end in ends:
        for place in range(begin + 1, end):
            if times[order[place]] < times[order[place - 1]]:
                rows = order[begin:end].copy()
                order[begin:end] = rows[np.argsort(times[rows], kind="mergesort")]
                break
        begin = end
    return order, ends
