"""What is put off when something has happened, but not for good when it happens again and again."""

from __future__ import annotations

_LONGEST = 2
"""Something is put off for so many times as long as after one event, at most."""


class Delay:
    """Until when something is put off.

    Attributes
    ----------
    until : float
        When it ends, or has ended, in seconds.

    Examples
    --------
    >>> delay = Delay()
    >>> ends = []
    >>> for now in range(0, 100, 10):
    ...     delay.begin(now, 15)
    ...     ends.append(delay.until)
    >>> ends
    [15, 25, 30, 45, 55, 60, 75, 85, 90, 105]
    """

    def __init__(self) -> None:
        self._first = self.until = 0.0

    def begin(self, now: float, seconds: float) -> None:
        """Something has happened, after which so many seconds are waited."""
        if now >= self.until:
            self._first = now
        self.until = min(now + seconds, self._first + _LONGEST * seconds)
