"""Which clock an operator follows, and what time it is where the stream has fallen silent."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from forebay.engine.plan import WindowPlan
from forebay.windows import Buffered, CountWindows, GlobalWindow, SharedWindows


class Clock(Enum):
    """What tells an operator that time has passed; the values are Spark's time modes."""

    WATERMARK = "eventTime"
    WALL = "processingTime"
    NONE = "none"


def clock_of(plan: WindowPlan) -> Clock:
    """The clock that the windows of a plan follow."""
    if plan.idle_timeout is not None:
        return Clock.WALL
    if isinstance(plan.windows, Buffered):
        return Clock.WALL
    if isinstance(plan.windows, GlobalWindow):
        return Clock.WALL if plan.windows.every else Clock.NONE
    if isinstance(plan.windows, SharedWindows):
        clocks = {clock_of(member.plan) for member in plan.members}
        return Clock.WATERMARK if Clock.WATERMARK in clocks else Clock.NONE
    return Clock.NONE if isinstance(plan.windows, CountWindows) else Clock.WATERMARK


class Silence(NamedTuple):
    """How long the watermark of a stream has not moved, in milliseconds; an operator keeps it in Spark's state.

    Attributes
    ----------
    watermark : int
        The watermark of the last micro-batch.
    since : int
        When it moved last, by the wall clock; later by the time for which the query was down since then.
    seen : int
        The wall clock's time in the last micro-batch.

    Examples
    --------
    >>> silence = Silence(1000, since=50_000, seen=50_000)
    >>> for wall in (53_000, 56_000, 90_000, 93_000):  # the query is down for 34 s
    ...     silence = silence.until(1000, wall, timeout=5000)
    ...     print(silence.event_time(timeout=5000))
    1000
    7000
    7000
    10000
    """

    watermark: int
    since: int
    seen: int

    def until(self, watermark: int, wall: int, timeout: int) -> Silence:
        """What is known in a micro-batch; nobody has listened to silence since the last one if that is a timeout ago."""
        since, passed = self.since, wall - self.seen
        if watermark > self.watermark:
            since = wall
        elif passed >= timeout:
            since += passed
        return Silence(watermark, min(since, wall), wall)  # a clock may be set back

    def event_time(self, timeout: int) -> int:
        """The watermark; when it has not moved for the timeout, plus the time since it did."""
        silent = self.seen - self.since
        return self.watermark + (silent if silent >= timeout else 0)
