"""Aligned windows and the slices they are stored as. All times are int64 microseconds since the epoch.

A tumbling or sliding window function cuts time into *slices*, the longest intervals that no window boundary divides.
Their length is the greatest common divisor of size and slide, and every window is a whole number of slices. A row is
stored once, in its slice, whatever the number of windows that contain it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class AlignedWindows:
    """Windows ``[offset + k * slide, offset + k * slide + size)`` for every integer ``k``.

    Parameters
    ----------
    size, slide, offset : int
        Microseconds; ``0 < slide <= size``. A tumbling window has ``slide == size``.

    Examples
    --------
    >>> hopping = AlignedWindows(size=10, slide=4)
    >>> hopping.slice_length
    2
    >>> hopping.slice_starts(np.array([-1, 0, 3]))
    array([-2,  0,  2])
    >>> hopping.windows_of(np.array([0])).tolist()
    [[0, -4, -8]]
    """

    size: int
    slide: int
    offset: int = 0

    @property
    def slice_length(self) -> int:
        return math.gcd(self.size, self.slide)

    def slice_starts(self, times: Times) -> Times:
        """Start of the slice of each instant; instants before the epoch and before ``offset`` included."""
        length = self.slice_length
        return (times - self.offset) // length * length + self.offset

    def last_window(self, slices: Times) -> Times:
        """Start of the latest window that contains each slice."""
        return (slices - self.offset) // self.slide * self.slide + self.offset

    def first_window(self, slices: Times) -> Times:
        """Start of the earliest window that contains each slice."""
        before = slices + self.slice_length - self.size - self.offset
        return -(-before // self.slide) * self.slide + self.offset

    def windows_of(self, slices: Times) -> npt.NDArray[np.int64]:
        """Starts of all windows that contain each slice, latest first, one row per slice.

        When ``size`` is no multiple of ``slide``, some slices are in one window less than others; the surplus entry then
        names a window that does not contain the slice, so compare with `first_window`.
        """
        most = -(-self.size // self.slide)
        return self.last_window(slices)[:, None] - np.arange(most, dtype=np.int64) * self.slide

    def windows_between(self, slices: Times, after: int, until: int) -> list[int]:
        """Starts of the windows over any of ``slices`` whose end is in ``(after, until]``, earliest first."""
        slices = slices[self.first_window(slices) + self.size <= until]
        starts = self.windows_of(slices)
        ends = starts + self.size
        due = (starts >= self.first_window(slices)[:, None]) & (ends > after) & (ends <= until)
        return [int(start) for start in np.unique(starts[due])]
