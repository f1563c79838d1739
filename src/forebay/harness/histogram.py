"""Durations, counted in an HdrHistogram."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.errors import InvalidArgument

_LONGEST = 24 * 3600 * 10**9
"""A day in nanoseconds. What takes longer is counted as a day."""
_DIGITS = 3


class Histogram:
    """Numbers from 0 on, such as nanoseconds, in memory that does not grow with how many there are.

    Raises
    ------
    InvalidArgument
        hdrhistogram is not installed; the extra ``harness`` brings it.

    Examples
    --------
    >>> latencies = Histogram()
    >>> latencies.record([100, 200, 300, 100_000])
    >>> latencies.percentile(50), latencies.percentile(100), latencies.count
    (200, 100031, 4)
    """

    def __init__(self) -> None:
        try:
            from hdrh.histogram import HdrHistogram
        except ModuleNotFoundError:
            raise InvalidArgument("latencies need hdrhistogram; pip install '.[harness]' in a clone of forebay") from None
        self._histogram: Any = HdrHistogram(1, _LONGEST, _DIGITS)

    def __getstate__(self) -> bytes:
        encoded: bytes = self._histogram.encode()
        return encoded

    def __setstate__(self, encoded: bytes) -> None:
        from hdrh.histogram import HdrHistogram

        self._histogram = HdrHistogram.decode(encoded)

    @property
    def count(self) -> int:
        """How many numbers were recorded."""
        return int(self._histogram.get_total_count())

    @property
    def most(self) -> int:
        """The largest number, or one that is a thousandth larger; 0 if there is none."""
        return int(self._histogram.get_max_value())

    def record(self, numbers: npt.ArrayLike) -> None:
        """Count some numbers. Those that are equal are counted together, since one call costs a microsecond."""
        values, counts = np.unique(np.minimum(np.asarray(numbers, np.int64), _LONGEST), return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            self._histogram.record_value(value, count)

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
        self._histogram.add(other._histogram)

    def percentile(self, share: float) -> int:
        """The number that ``share`` percent are not above, or one that is a thousandth larger; 0 if there is none."""
        return int(self._histogram.get_value_at_percentile(share))
