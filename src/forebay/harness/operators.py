"""The eleven workloads: what each streaming operator of Gadget (section 6.3, after Flink's) does to its state.

All times are microseconds. Windows expire when the watermark reaches their end and as much again as events may be late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from forebay.errors import InvalidArgument
from forebay.harness.access import DELETE, GET, MERGE, PUT
from forebay.harness.driver import NEVER, Assigned, Operator, Request, Step
from forebay.harness.durations import SECOND
from forebay.harness.events import Events


def each_key(events: Events) -> Assigned:
    """A state machine for each event key, which never expires."""
    count = len(events)
    none = np.zeros(count, np.int64)
    return Assigned(np.arange(count), none, none, np.full(count, NEVER), none.astype(np.int32))


def each_window(events: Events, size: int, slide: int, lateness: int) -> Assigned:
    """A state machine for each event key and window, newest window first; a slide as long as windows makes these tumble.

    Examples
    --------
    >>> from forebay.harness.events import Source
    >>> from forebay.harness.arrivals import ConstantRate
    >>> block = next(Source(events=1, arrivals=ConstantRate(1), start=12).blocks())
    >>> each_window(block, size=10, slide=5, lateness=0).start.tolist()
    [10, 5]
    """
    most = -(-size // slide)
    event = np.repeat(np.arange(len(events)), most)
    start = np.repeat(events.time // slide * slide, most) - np.tile(np.arange(most) * slide, len(events))
    if size % slide:
        within = start + size > events.time[event]
        event, start = event[within], start[within]
    return Assigned(event, start, start + size, start + size + lateness, np.zeros(len(event), np.int32))


def each_session(events: Events, gap: int, lateness: int) -> Assigned:
    """A window from each event on, until the gap has passed; those that touch are merged by the driver."""
    end = events.time + gap
    return Assigned(np.arange(len(events)), events.time, end, end + lateness, np.zeros(len(events), np.int32))


@dataclass(frozen=True)
class Aggregation(Operator):
    """A value per key that every event reads and writes again."""

    def assign_state_machines(self, events: Events) -> Assigned:
        """One machine per key."""
        return each_key(events)

    def run(self, state: Any, side: int, final: bool) -> tuple[Step, None]:
        """Read, then write."""
        return [GET, PUT], None


@dataclass(frozen=True)
class _Incremental(Operator):
    """An aggregate that every event reads and writes again, and that is read and deleted at the end (Figure 9)."""

    def run(self, state: Any, side: int, final: bool) -> tuple[Step, None]:
        """Read, then write."""
        return [GET, PUT], None

    def terminate(self, state: Any) -> Step:
        """Read a last time, then delete."""
        return [GET, DELETE]


@dataclass(frozen=True)
class _Holistic(Operator):
    """A bucket that events are appended to, and that is read and deleted at the end."""

    def run(self, state: Any, side: int, final: bool) -> tuple[Step, None]:
        """Append."""
        return [MERGE], None

    def terminate(self, state: Any) -> Step:
        """Read, then delete."""
        return [GET, DELETE]


@dataclass(frozen=True)
class _Windows(Operator):
    size: int = 5 * SECOND
    lateness: int = 0

    def __post_init__(self) -> None:
        _require_above_zero(self, "size")
        _require_lateness(self.lateness)


@dataclass(frozen=True)
class _Tumbling(_Windows):
    def assign_state_machines(self, events: Events) -> Assigned:
        """One window per event."""
        return each_window(events, self.size, self.size, self.lateness)


@dataclass(frozen=True)
class _Sliding(_Windows):
    slide: int = SECOND

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_above_zero(self, "slide")
        if self.slide > self.size:
            raise InvalidArgument(f"slide is {self.slide} and size {self.size}; windows must not leave gaps")

    def assign_state_machines(self, events: Events) -> Assigned:
        """As many windows per event as the slide fits into their size."""
        return each_window(events, self.size, self.slide, self.lateness)


@dataclass(frozen=True)
class _Session(Operator):
    """Sessions also keep, per key, which windows were merged into which, and write it anew whenever that changes."""

    merging: ClassVar[bool] = True
    gap: int = 120 * SECOND
    lateness: int = 0

    def __post_init__(self) -> None:
        _require_above_zero(self, "gap")
        _require_lateness(self.lateness)

    def assign_state_machines(self, events: Events) -> Assigned:
        """A window per event, which merges with those that it touches."""
        return each_session(events, self.gap, self.lateness)


class TumblingIncremental(_Tumbling, _Incremental):
    """Windows of equal size, side by side, with an aggregate each."""


class TumblingHolistic(_Tumbling, _Holistic):
    """Windows of equal size, side by side, with all their events."""


class SlidingIncremental(_Sliding, _Incremental):
    """Windows of equal size that overlap, with an aggregate each."""


class SlidingHolistic(_Sliding, _Holistic):
    """Windows of equal size that overlap, with all their events each."""


class SessionIncremental(_Session, _Incremental):
    """Windows that end when a key has had no event for a while, with an aggregate each."""


class SessionHolistic(_Session, _Holistic):
    """Windows that end when a key has had no event for a while, with all their events."""


class TumblingJoin(_Tumbling, _Holistic):
    """The events of two streams within windows side by side. Both are in the same bucket, as in Flink."""

    inputs = 2


class SlidingJoin(_Sliding, _Holistic):
    """The events of two streams within windows that overlap. Both are in the same bucket, as in Flink."""

    inputs = 2


@dataclass(frozen=True)
class IntervalJoin(Operator):
    """Events of the right stream from ``lower`` to ``upper`` after one of the left.

    Each side has a list per key and instant, which every event reads and writes again. A list is deleted when no event can
    match it any more.
    """

    inputs = 2
    lower: int = -120 * SECOND
    upper: int = 180 * SECOND

    def __post_init__(self) -> None:
        if self.lower > self.upper:
            raise InvalidArgument(f"lower is {self.lower} and upper {self.upper}; nothing would match")

    def assign_state_machines(self, events: Events) -> Assigned:
        """A machine per side, key and instant."""
        side = np.minimum(events.side, 1).astype(np.int32)
        expiry = events.time + np.where(side == 0, max(self.upper, 0), max(-self.lower, 0)) + 1
        return Assigned(np.arange(len(events)), events.time, events.time, expiry, side)

    def run(self, state: Any, side: int, final: bool) -> tuple[Step, int]:
        """Read the side's list, then write it with one event more."""
        return [Request(GET, side), Request(PUT, side, whole=True)], side

    def terminate(self, state: Any) -> Step:
        """Delete the list."""
        return [Request(DELETE, state or 0)]


@dataclass(frozen=True)
class ContinuousJoin(Operator):
    """What stands for a key in the left stream until a final event, joined with the right stream: jobs with their tasks.

    An event of the left that is not final replaces the one before. An event of the right waits in a list if the left has
    nothing for its key. A final event of the left deletes both.

    With ``totals`` the right stream is gathered until a final event, which gives out its total: fares of taxi rides. Every
    event of the left writes what stands anew. One of the right is appended to a list, which a final event reads and deletes.
    """

    inputs = 2
    totals: bool = False

    def assign_state_machines(self, events: Events) -> Assigned:
        """A machine per key."""
        return each_key(events)

    def run(self, state: Any, side: int, final: bool) -> tuple[Step, str | None]:
        """Replace, end, match or wait."""
        if self.totals:
            return self._gather(side, final), None
        if side == 0 and final:
            return [DELETE, Request(DELETE, 1)], None
        if side == 0:
            return [GET, DELETE, PUT], "matches"
        return ([GET] if state == "matches" else [GET, Request(MERGE, 1)]), state

    def _gather(self, side: int, final: bool) -> Step:
        if side == 1:
            return [GET, Request(MERGE, 1)]
        return [Request(GET, 1), Request(DELETE, 1), PUT] if final else [GET, PUT]


WORKLOADS: dict[str, type[Operator]] = {
    "tumbling-incremental": TumblingIncremental,
    "tumbling-holistic": TumblingHolistic,
    "sliding-incremental": SlidingIncremental,
    "sliding-holistic": SlidingHolistic,
    "session-incremental": SessionIncremental,
    "session-holistic": SessionHolistic,
    "tumbling-join": TumblingJoin,
    "sliding-join": SlidingJoin,
    "interval-join": IntervalJoin,
    "continuous-join": ContinuousJoin,
    "aggregation": Aggregation,
}


def _require_above_zero(operator: Operator, name: str) -> None:
    if getattr(operator, name) <= 0:
        raise InvalidArgument(f"{name} is {getattr(operator, name)}; it must be above 0, in microseconds")


def _require_lateness(lateness: int) -> None:
    if lateness < 0:
        raise InvalidArgument(f"lateness is {lateness}; it must be at least 0, in microseconds")
