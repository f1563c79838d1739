"""What is compiled of joins: which rows of a key are how far apart in time."""

from __future__ import annotations

import numpy as np

from forebay.compiling import compiled, in_place


@compiled
def ranges(keys, lower, upper, ends, times):
    """For each row, where the rows with its key and a time between bounds begin and end among sorted ones.

    ``ends`` tells where those of each key end. Rows of the key 0 meet nothing.
    """
    first, last = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    for row in range(len(keys)):
        key = keys[row]
        if key > 0:
            first[row] = below(times, ends[key - 1], ends[key], lower[row])
            last[row] = below(times, first[row], ends[key], upper[row] + 1)
    return first, last


@in_place
def below(times, first, last, time):
    """The place of the first row of a range that does not come before a time."""
    while first < last:
        middle = (first + last) // 2
        if times[middle] < time:
            first = middle + 1
        else:
            last = middle
    return first
