"""What is compiled of joins: which rows of a key are how far apart in time."""

from __future__ import annotations

import numpy as np

from forebay.compiling import compiled, in_place


@compiled
def ranges(keys, lower, upper, begins, times):
    """For each row, where the rows with its key and a time between bounds begin and end among sorted ones.

    ``begins`` tells where those of each key begin, and where the last ones end.
    """
    first, last = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    for row in range(len(keys)):
        key = keys[row]
        if key >= 0:
            first[row] = below(times, begins[key], begins[key + 1], lower[row])
            last[row] = below(times, first[row], begins[key + 1], upper[row] + 1)
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
