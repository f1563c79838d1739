"""What is compiled of joins: which rows of a key are how far apart in time."""

from __future__ import annotations

import numpy as np

from forebay.compiling import compiled, in_place


@compiled
def ranges(keys, lower, upper, sorted_keys, sorted_times):
    """For each row, where the rows with its key and a time between bounds begin and end among sorted ones."""
    begins, ends = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    for row in range(len(keys)):
        if keys[row] >= 0:
            begins[row] = below(sorted_keys, sorted_times, keys[row], lower[row])
            ends[row] = below(sorted_keys, sorted_times, keys[row], upper[row] + 1)
    return begins, ends


@in_place
def below(sorted_keys, sorted_times, key, time):
    """How many rows come before a key and a time."""
    first, last = 0, len(sorted_keys)
    while first < last:
        middle = (first + last) // 2
        if sorted_keys[middle] < key or (sorted_keys[middle] == key and sorted_times[middle] < time):
            first = middle + 1
        else:
            last = middle
    return first
