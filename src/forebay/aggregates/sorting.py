"""Sorting many short runs of one array, compiled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from forebay.compiling import compiled

SHORT = 24
"""Runs of at most so many values are sorted by insertion."""


def sort_runs(values: npt.NDArray[np.float64], ends: npt.NDArray[np.int64]) -> None:
    """Sort each run of an array in place, NaN last. A run begins where the one before it ends.

    Examples
    --------
    >>> values = np.array([3.0, 1.0, 2.0, np.nan, 0.0])
    >>> sort_runs(values, np.array([2, 2, 5]))
    >>> values
    array([ 1.,  3.,  0.,  2., nan])
    """
    _sort_runs(values, ends)


def interpolated(values: npt.NDArray[np.float64], ends: npt.NDArray[np.int64], percentage: float) -> npt.NDArray[np.float64]:
    """The value at the fractional position ``(n - 1) * percentage`` of each sorted run, with Spark's rounding.

    Examples
    --------
    >>> interpolated(np.array([1.0, 2.0, 5.0]), np.array([2, 2, 3]), 0.25)  # an empty run has 0
    array([1.25, 0.  , 5.  ])
    """
    found = np.zeros(len(ends))
    _interpolate(values, ends, percentage, found)
    return found


def interpolated_counts(
    values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], percentage: float
) -> npt.NDArray[np.float64]:
    """What `interpolated` gives where each value of a run is there so many times.

    Examples
    --------
    >>> interpolated_counts(np.array([1.0, 2.0, 5.0]), np.array([1, 3, 2]), np.array([2, 2, 3]), 0.25)
    array([1.75, 0.  , 5.  ])
    """
    found = np.zeros(len(ends))
    _interpolate_counts(values, counts, ends, percentage, found)
    return found


@compiled
def _interpolate_counts(values, counts, ends, percentage, found):
    begin = 0
    for run in range(len(ends)):
        end = ends[run]
        if end > begin:
            position = (counts[begin:end].sum() - 1) * percentage
            lower, upper = int(np.floor(position)), int(np.ceil(position))
            place, passed = begin, counts[begin]
            while passed <= lower:
                place += 1
                passed += counts[place]
            below = values[place]
            while passed <= upper:
                place += 1
                passed += counts[place]
            above = values[place]
            found[run] = below if below == above else below + (above - below) * (position - lower)
        begin = end


@compiled
def _interpolate(values, ends, percentage, found):
    begin = 0
    for run in range(len(ends)):
        if ends[run] > begin:
            position = (ends[run] - begin - 1) * percentage
            lower = int(np.floor(position))
            below, above = values[begin + lower], values[begin + int(np.ceil(position))]
            found[run] = below if below == above else below + (above - below) * (position - lower)
        begin = ends[run]


@compiled
def _sort_runs(values, ends):
    begin = 0
    for end in ends:
        if end - begin > SHORT:
            values[begin:end] = np.sort(values[begin:end])
        else:
            for place in range(begin + 1, end):
                value = values[place]
                hole = place
                while hole > begin and (values[hole - 1] > value or (np.isnan(values[hole - 1]) and not np.isnan(value))):
                    values[hole] = values[hole - 1]
                    hole -= 1
                values[hole] = value
        begin = end
