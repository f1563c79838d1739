"""What is compiled of watching the key index: windows that merge, row by row."""

from __future__ import annotations

import numpy as np

from forebay.compiling import compiled
from forebay.store.index_kernels import LATEST, find, place_merging


@compiled
def place_in_steps(c, directory, free, dirty, earliest, scalars, high, low, start, end, ett):
    """Place rows one by one, and compare the windows of the key before and after each of them."""
    rows = len(low)
    slots, changed = np.empty(rows, np.int32), np.ones(rows, np.bool_)
    windows, absorbed = np.empty(rows, np.int64), np.zeros(rows, np.int64)
    others, count = np.empty(16, np.int32), 0
    found = np.empty(1, np.int32)
    for row in range(rows):
        before = find(c, directory, high[row], low[row])
        bounds = np.empty((len(before), 2), np.int64)
        for place in range(len(before)):
            bounds[place, 0], bounds[place, 1] = c[before[place]].start, c[before[place]].end
        one = (high[row : row + 1], low[row : row + 1], start[row : row + 1], end[row : row + 1], ett[row : row + 1])
        place_merging(c, directory, free, dirty, earliest, scalars, one[0], one[1], one[2], one[3], one[4], LATEST, found)
        slot = found[0]
        for place in range(len(before)):
            other = before[place]
            if other == slot:
                changed[row] = c[slot].start != bounds[place, 0] or c[slot].end != bounds[place, 1]
            elif c[other].parent >= 0:
                if count == len(others):
                    others = np.append(others, np.empty_like(others))
                others[count] = other
                count += 1
                absorbed[row] += 1
        slots[row] = slot
        windows[row] = len(find(c, directory, high[row], low[row]))
    return slots, changed, windows, absorbed, others[:count]
