"""What is compiled of windows that precede each row: which rows fire, which rows their windows have, which stay."""

from __future__ import annotations

import numpy as np

from forebay.compiling import compiled


@compiled
def frames(owners, times, after, until, span, rows):
    """The rows with a time after one watermark and until another, and where the window of each begins and ends.

    Rows are ordered by owner and by time. A window goes ``span`` back, and has all rows of the last instant; or, where that
    is negative, so many ``rows``.
    """
    fired = np.empty(len(times), np.int64)
    begins, ends = np.empty(len(times), np.int64), np.empty(len(times), np.int64)
    count = first = begin = end = 0
    for row in range(len(times)):
        if row == 0 or owners[row] != owners[row - 1]:
            first = begin = end = row
        if times[row] > after and times[row] <= until:
            if span < 0:
                begin, end = max(first, row - rows + 1), row + 1
            else:
                while times[begin] < times[row] - span:
                    begin += 1
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
        elif span < 0:
            following += 1
            found[row] = following < rows
        else:
            found[row] = times[row] > until - span
    return found
