"""Streams of events: generated, or read from a trace, and merged if there are several sources (Gadget, section 5.1).

An event has a key, the time at which it occurred (its event time) and the time at which it arrives. Most arrive when they
occur; late ones arrive later. Watermarks travel with events: the watermark of an event holds from just after that event on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.errors import InvalidArgument
from forebay.harness.arrivals import Arrivals, Poisson
from forebay.harness.distributions import Constant, Distribution, Uniform

Times = npt.NDArray[np.int64]

BLOCK = 1 << 16
"""How many events of a source are in memory at one time."""

BEGINNING, END = -(1 << 62), 1 << 62
"""The watermark before the first one, and that of a source that has ended."""


@dataclass(frozen=True, eq=False)
class Events:
    """A block of events in the order in which they arrive. All times are microseconds.

    Attributes
    ----------
    key : array of int64
        The key of each event.
    time, arrival : array of int64
        When it occurred, and when it arrived. Arrivals never fall.
    size : array of int64
        Bytes of its value.
    side : array of int8
        The number of its source.
    final : array of bool
        Whether it ends what its key has stood for, as the last event of a job does.
    watermark : array of int64
        The watermark that holds after it: what occurred before that instant has arrived, but for late events.
    """

    key: Times
    time: Times
    arrival: Times
    size: Times
    side: npt.NDArray[np.int8]
    final: npt.NDArray[np.bool_]
    watermark: Times

    def __len__(self) -> int:
        return len(self.key)

    def part(self, rows: slice | npt.NDArray[np.integer]) -> Events:
        """Some of the events."""
        return Events(*(getattr(self, each.name)[rows] for each in fields(self)))

    def batch(self) -> pa.RecordBatch:
        """The events as a record batch."""
        return pa.record_batch({each.name: getattr(self, each.name) for each in fields(self)})

    @classmethod
    def joined(cls, parts: Sequence[Events]) -> Events:
        """Blocks one after the other."""
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))


@dataclass(frozen=True)
class Watermarks:
    """How often a source sends a watermark: after ``events`` events, or when ``interval`` microseconds have passed.

    A watermark is the latest event time so far less ``delay``. With ``behind`` it is sent when the next one is due, as in
    micro-batches: what has come before one of these holds after its last event.

    Examples
    --------
    >>> time = np.array([0, 10, 20, 15, 40])
    >>> Watermarks(events=2, delay=5).follower()(time, np.maximum.accumulate(time)).tolist()[1:]
    [5, 5, 15, 15]
    >>> Watermarks(events=2, delay=5, behind=True).follower()(time, np.maximum.accumulate(time)).tolist()[3:]
    [5, 5]
    """

    events: int | None = None
    interval: int | None = None
    delay: int = 0
    behind: bool = False

    def __post_init__(self) -> None:
        if (self.events is None) == (self.interval is None):
            raise InvalidArgument("watermarks: say either after how many events they come, or after how much time")
        if (self.events or self.interval or 0) < 1 or self.delay < 0:
            raise InvalidArgument(f"watermarks: {self} cannot be; events or interval must be above 0, delay at least 0")

    def follower(self) -> _Follower:
        """What tells the watermarks of a stream from its blocks."""
        return _Follower(self)


class _Follower:
    def __init__(self, watermarks: Watermarks) -> None:
        self._watermarks, self._seen, self._latest, self._sent = watermarks, 0, BEGINNING, BEGINNING
        self._due = BEGINNING
        self._first: int | None = None

    def __call__(self, time: Times, arrival: Times) -> Times:
        """The watermark after each of the events that come next."""
        if not len(time):
            return time
        if self._watermarks.interval is None:
            assert self._watermarks.events is not None
            period = np.arange(self._seen + 1, self._seen + len(time) + 1) // self._watermarks.events
            before = self._seen // self._watermarks.events
            self._seen += len(time)
        else:
            self._first = int(arrival[0]) if self._first is None else self._first
            period, before = (arrival - self._first) // self._watermarks.interval, self._seen
            self._seen = int(period[-1])
        latest = np.maximum.accumulate(np.maximum(time, self._latest))
        due = np.diff(period, prepend=before) > 0
        sent = np.where(due, latest - self._watermarks.delay, self._sent)
        if self._watermarks.behind and due.any():
            reached = sent[due]
            sent[due] = [self._due, *reached[:-1]]
            self._due = int(reached[-1])
        watermark: Times = np.maximum.accumulate(sent)
        self._latest, self._sent = int(latest[-1]), int(watermark[-1])
        return watermark


class Stream(Protocol):
    """Anything that gives blocks of events, again at each call."""

    def blocks(self) -> Iterator[Events]:
        """The events from the first on; their ``side`` is set by whoever merges several streams."""


@dataclass(frozen=True)
class Source:
    """A stream that is generated.

    Attributes
    ----------
    events : int
        How many there are.
    arrivals : Arrivals
        When they arrive.
    keys, sizes : Distribution
        What their keys, and the bytes of their values, are drawn from.
    watermarks : Watermarks
        How often a watermark follows.
    late, bound : float, int
        The share of events that arrive late, and by how many microseconds at most; from 1 up to that, all equally often.
    final : float
        The share of events that are final.
    start : int
        The arrival of the first instant, in microseconds.
    seed : int
        Another seed gives other events.

    Examples
    --------
    >>> source = Source(events=1000, keys=Uniform(0, 9), late=0.1, bound=3_000_000, seed=1)
    >>> block = next(source.blocks())
    >>> len(block), bool(0.05 < (block.time < block.arrival).mean() < 0.15)
    (1000, True)
    """

    events: int
    arrivals: Arrivals = field(default_factory=lambda: Poisson(1000))
    keys: Distribution = field(default_factory=lambda: Uniform(0, 999))
    sizes: Distribution = field(default_factory=lambda: Constant(8))
    watermarks: Watermarks = field(default_factory=lambda: Watermarks(events=100))
    late: float = 0.0
    bound: int = 0
    final: float = 0.0
    start: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.events < 0:
            raise InvalidArgument(f"source: events is {self.events}; it must be at least 0")
        for name in ("late", "final"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidArgument(f"source: {name} is {getattr(self, name)}; it must be from 0 to 1")
        if self.bound < 0 or (self.late > 0 and not self.bound):
            raise InvalidArgument(f"source: bound is {self.bound}; late events need one above 0, in microseconds")

    def blocks(self) -> Iterator[Events]:
        """The events from the first on."""
        of_arrivals, of_keys, of_sizes, of_lateness, of_ends = np.random.default_rng(self.seed).spawn(5)
        arrivals, keys = self.arrivals.sampler(of_arrivals), self.keys.sampler(of_keys)
        sizes, follow = self.sizes.sampler(of_sizes), self.watermarks.follower()
        for begin in range(0, self.events, BLOCK):
            count = min(BLOCK, self.events - begin)
            arrival = arrivals(count) + self.start
            time = arrival
            if self.late:
                chosen, by = of_lateness.random((count, 2)).T
                time = np.where(
                    chosen < self.late, np.maximum(arrival - 1 - (by * self.bound).astype(np.int64), self.start), arrival
                )
            final = of_ends.random(count) < self.final if self.final else np.zeros(count, np.bool_)
            side = np.zeros(count, np.int8)
            yield Events(keys(count), time, arrival, sizes(count), side, final, follow(time, arrival))


def merged(streams: Sequence[Stream]) -> Iterator[Events]:
    """The events of one or more streams in the order of arrival, each with the number of its stream as its side.

    The watermark is the lowest one of the streams, as in every stream processor. A stream that has ended holds nothing back.

    Examples
    --------
    >>> left, right = Source(events=100, seed=1), Source(events=50, seed=2)
    >>> sum(len(block) for block in merged([left, right]))
    150
    """
    sources = [filter(len, stream.blocks()) for stream in streams]
    if len(sources) == 1:
        yield from sources[0]
        return
    waiting = [next(source, None) for source in sources]
    reached = np.full(len(streams), BEGINNING, np.int64)
    while any(block is not None for block in waiting):
        horizon = min(int(block.arrival[-1]) for block in waiting if block is not None)
        parts = []
        for number, block in enumerate(waiting):
            if block is None:
                reached[number] = END
                continue
            until = int(np.searchsorted(block.arrival, horizon, side="right"))
            part = block.part(slice(0, until))
            part.side[:] = number
            parts.append(part)
            waiting[number] = block.part(slice(until, None)) if until < len(block) else next(sources[number], None)
        yield _in_order(Events.joined(parts), reached)


def _in_order(events: Events, reached: Times) -> Events:
    """Events sorted by arrival, with the lowest watermark of all sources; ``reached`` has the one of each so far."""
    events = events.part(np.argsort(events.arrival, kind="stable"))
    lowest = np.full(len(events), END, np.int64)
    for number in range(len(reached)):
        own = np.maximum.accumulate(np.where(events.side == number, events.watermark, reached[number]))
        reached[number] = own[-1]
        np.minimum(lowest, own, out=lowest)
    events.watermark[:] = lowest
    return events
