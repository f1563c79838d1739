"""How fast files that nobody waits for are copied, so that the micro-batches that go on beside it keep their time."""

from __future__ import annotations

import time


class Pace:
    """A bound on the bytes of a copy in each second.

    What changes while a copy is made has to be copied after it. Where that is hardly less than what was copied before, the
    next round may be twice as fast, so a copy comes to an end however much changes.

    Parameters
    ----------
    rate : float
        Bytes in a second.

    Examples
    --------
    >>> pace = Pace(1e9)
    >>> pace.took(1000)
    >>> pace.faster().rate
    2000000000.0
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._due = time.monotonic()

    def took(self, size: int) -> None:
        """Wait as long as so many bytes may take. What was not taken in time is not made up for."""
        now = time.monotonic()
        self._due = max(self._due, now) + size / self.rate
        time.sleep(self._due - now)

    def faster(self) -> Pace:
        """The pace of the next round."""
        return Pace(2 * self.rate)
