"""How fast files that nobody waits for are copied, so that the micro-batches that go on beside it keep their time."""

from __future__ import annotations

import time
from collections.abc import Sized


class Pace:
    """A bound on the bytes of a copy in each second.

    What changes while a copy is made has to be copied after it. Each such round may be twice as fast as the one before, so a
    copy comes to an end however much changes.

    Parameters
    ----------
    rate : float
        Bytes in a second.
    copies : sized
        The copies that are under way and share the rate, this one included.

    Examples
    --------
    >>> copies = ["one", "another"]
    >>> pace = Pace(1e9, copies)
    >>> pace.took(1000)
    >>> pace.rate, pace.faster().rate
    (500000000.0, 1000000000.0)
    >>> del copies[1]
    >>> pace.rate
    1000000000.0
    """

    def __init__(self, rate: float, copies: Sized) -> None:
        self._rate, self._copies = rate, copies
        self._due = time.monotonic()

    @property
    def rate(self) -> float:
        """Bytes in a second at present."""
        return self._rate / max(1, len(self._copies))

    def took(self, size: int) -> None:
        """Wait as long as so many bytes may take. What was not taken in time is not made up for."""
        now = time.monotonic()
        self._due = max(self._due, now) + size / self.rate
        time.sleep(self._due - now)

    def faster(self) -> Pace:
        """The pace of the next round."""
        return Pace(2 * self._rate, self._copies)
