"""Estimated trigger times (ETT): when a window will be read, as far as its window function tells (FlowKV, section 4.2).

A predictor maps starts and ends of windows and the timestamps of their rows, int64 arrays of one length, to estimates. The
store keeps the latest estimate of each window. All times are microseconds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from forebay.windows import Times

Predictor = Callable[[Times, Times, Times], Times]


def at_end(start: Times, end: Times, timestamp: Times) -> Times:
    """Tumbling and sliding windows are read when they end.

    Examples
    --------
    >>> at_end(np.array([0]), np.array([10]), np.array([3])).tolist()
    [10]
    """
    return end


def session(gap: int) -> Predictor:
    """Sessions are read a gap after their newest row, and never before.

    Examples
    --------
    >>> session(5)(np.array([0]), np.array([5]), np.array([3])).tolist()
    [8]
    """

    def after_newest(start: Times, end: Times, timestamp: Times) -> Times:
        return timestamp + gap

    return after_newest


def count(clock: int, rows: Times, missing: Times) -> Times:
    """When keys will have ``missing`` more rows, if rows keep coming at the average rate. Unreliable: rates change.

    Parameters
    ----------
    clock : int
        How many rows all keys together have had.
    rows : array
        How many rows each key has had; at least 1.
    missing : array
        How many more complete its window.

    Returns
    -------
    array
        Estimates on the same clock: the number of rows of all keys.

    Examples
    --------
    >>> count(100, np.array([50, 1]), np.array([1, 1])).tolist()
    [102, 200]
    """
    return clock + missing * clock // np.maximum(1, rows)
