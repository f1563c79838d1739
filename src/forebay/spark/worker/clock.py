"""Which clock an operator follows."""

from __future__ import annotations

from enum import Enum

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
