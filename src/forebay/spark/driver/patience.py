"""How long a handover may take."""

from __future__ import annotations

import time
from datetime import timedelta
from math import inf, isnan
from numbers import Real

from forebay.errors import InvalidArgument

STALLED_SECONDS = 600.0
"""A handover is given up when its hosts have got no more of the state for so long, and as long as a partition takes: what
counts as there is whole."""


class Patience:
    """Until a time, or as long as there is less and less to copy.

    Parameters
    ----------
    timeout : float or timedelta, optional
        Seconds, or a time, that it may take whatever is copied; `InvalidArgument` for anything else.

    Attributes
    ----------
    deadline : float
        When it ends, by the monotonic clock.

    Examples
    --------
    >>> patience = Patience(None)
    >>> first = patience.deadline
    >>> patience.renew(0)
    >>> second = patience.deadline
    >>> patience.renew(1000)
    >>> first < second == patience.deadline
    True
    >>> patience.allow(3 * STALLED_SECONDS)
    >>> second + 600 < patience.deadline
    True
    """

    def __init__(self, timeout: float | timedelta | None) -> None:
        if isinstance(timeout, timedelta):
            timeout = timeout.total_seconds()
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, Real) or isnan(timeout)):
            raise InvalidArgument(f"a handover got timeout={timeout!r}; it is a number of seconds, or a timedelta")
        self.deadline = time.monotonic() + (STALLED_SECONDS if timeout is None else timeout)
        self._given, self._least = timeout is not None, inf

    def allow(self, seconds: float) -> None:
        """Go on for so long at least, unless a timeout was given."""
        if not self._given:
            self.deadline = max(self.deadline, time.monotonic() + seconds)

    def renew(self, missing: int, seconds: float = 0.0) -> None:
        """Go on if fewer bytes are missing than ever before, of which the next that counts may take so many seconds."""
        if missing < self._least:
            self._least = missing
            self.allow(STALLED_SECONDS + seconds)
