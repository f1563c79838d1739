"""Counts of durations in buckets whose width is at most a thousandth of what they hold, as in HdrHistogram."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_BITS = 11
"""Numbers below two to this power have buckets of their own; above, each doubling has half as many."""
_EXACT, _HALF = 1 << _BITS, 1 << (_BITS - 1)


class Histogram:
    """Numbers from 0 on, such as nanoseconds, in memory that does not grow with how many there are.

    Examples
    --------
    >>> latencies = Histogram()
    >>> latencies.record([100, 200, 300, 100_000])
    >>> latencies.percentile(50), latencies.percentile(100), latencies.count
    (200, 100000, 4)
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_EXACT + (63 - _BITS) * _HALF, np.int64)
        self.most = 0

    @property
    def count(self) -> int:
        """How many numbers were recorded."""
        return int(self._counts.sum())

    def record(self, numbers: npt.ArrayLike) -> None:
        """Count some numbers."""
        values = np.asarray(numbers, np.int64)
        if not len(values):
            return
        shift = np.maximum(np.frexp(values.astype(np.float64))[1] - _BITS, 0)
        places = np.where(shift == 0, values, _EXACT + (shift - 1) * _HALF + (values >> shift) - _HALF)
        counts = np.bincount(places)
        self._counts[: len(counts)] += counts
        self.most = max(self.most, int(values.max()))

    def percentile(self, share: float) -> int:
        """The number that ``share`` percent are not above, or one that is a thousandth larger; 0 if there is none."""
        reached = np.cumsum(self._counts)
        if not reached[-1]:
            return 0
        place = int(np.searchsorted(reached, max(np.ceil(reached[-1] * share / 100), 1)))
        if place < _EXACT:
            return min(place, self.most)
        shift, rest = divmod(place - _EXACT, _HALF)
        return min(((rest + _HALF + 1) << (shift + 1)) - 1, self.most)

    def add(self, other: Histogram) -> None:
        """Count what another one has counted too.

        Examples
        --------
        >>> one, other = Histogram(), Histogram()
        >>> one.record([1, 2]); other.record([3])
        >>> one.add(other)
        >>> one.count, one.most
        (3, 3)
        """
        self._counts += other._counts
        self.most = max(self.most, other.most)
