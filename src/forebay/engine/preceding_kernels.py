"""What is compiled of windows that precede each row: which rows fire, which rows their windows have, which stay."""

from __future__ import annotations

import numpy as np

from forebay.compiling import compiled


@compiled
def frames(owners, times, after, until, span, rows):
    """The rows with a time after one watermark and until another, and where the window of each begins and ends.

    Rows are ordered by owner and by time. A window goes ``span`` back, unless that is negative. Where ``rows`` are not 0 it
    ends with its own row and has so many at the most; otherwise it has all rows of the last instant.
    """
    fired = np.empty(len(times), np.int64)
    begins, ends = np.empty(len(times), np.int64), np.empty(len(times), np.int64)
    count = first = begin = end = 0
    for row in range(len(times)):
        if row == 0 or owners[row] != owners[row - 1]:
            first = begin = end = row
        if times[row] > after and times[row] <= until:
            if span >= 0:
                while times[begin] < times[row] - span:
                    begin += 1
            if rows > 0:
                begin, end = max(first, begin, row - rows + 1), row + 1
            else:
                end = max(end, row)
                while end < len(times) and owners[end] == owners[row] and times[end] == times[row]:
                    end += 1
            fired[count], begins[count], ends[count] = row, begin, end
            count += 1
    return fired[:count], begins[:count], ends[:count]


@compiled
def needed(owners, times, until, span, rows):
    """Which rows wait, or are in windows that are still to fire."""
    found = np.zeros(len(times), np.bool_)
    following = 0
    for row in range(len(times) - 1, -1, -1):
        if row == len(times) - 1 or owners[row] != owners[row + 1]:
            following = 0
        if times[row] > until:
            found[row] = True
        else:
            following += 1
            found[row] = (rows == 0 or following < rows) and (span < 0 or times[row] > until - span)
    return found
