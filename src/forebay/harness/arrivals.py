"""When events arrive: instants in microseconds, a block at a time, in rising order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forebay.errors import InvalidArgument
from forebay.harness.durations import SECOND

Instants = npt.NDArray[np.int64]


class Arrivals(Protocol):
    """Anything that says when events arrive."""

    def sampler(self, random: np.random.Generator) -> Callable[[int], Instants]:
        """Gives the next so many instants at each call, counted from 0."""


@dataclass(frozen=True)
class ConstantRate:
    """``rate`` events per second, evenly.

    Examples
    --------
    >>> ConstantRate(4).sampler(np.random.default_rng(0))(3).tolist()
    [0, 250000, 500000]
    """

    rate: float

    def __post_init__(self) -> None:
        _require_rate("constant", self.rate)

    def sampler(self, random: np.random.Generator) -> Callable[[int], Instants]:
        """Gives the next so many instants at each call, counted from 0."""
        number = 0

        def draw(count: int) -> Instants:
            nonlocal number
            number += count
            return (np.arange(number - count, number) * (SECOND / self.rate)).astype(np.int64)

        return draw


@dataclass(frozen=True)
class Poisson:
    """``rate`` events per second on average, independent of each other.

    Examples
    --------
    >>> bool(95 < len(Poisson(100).sampler(np.random.default_rng(0))(1000)) / 10 < 105)
    True
    """

    rate: float

    def __post_init__(self) -> None:
        _require_rate("poisson", self.rate)

    def sampler(self, random: np.random.Generator) -> Callable[[int], Instants]:
        """Gives the next so many instants at each call, counted from 0."""
        last = 0.0

        def draw(count: int) -> Instants:
            nonlocal last
            instants = _running(last, random.exponential(SECOND / self.rate, count))
            last = float(instants[-1]) if count else last
            return instants.astype(np.int64)

        return draw


@dataclass(frozen=True)
class Bursty:
    """Bursts of events, with none between them; over all ``rate`` events per second.

    Attributes
    ----------
    rate : float
        Events per second on average.
    burst, pause : int
        How long bursts and pauses are on average, in microseconds; both are exponential.

    Examples
    --------
    >>> instants = Bursty(1000, burst=SECOND, pause=9 * SECOND).sampler(np.random.default_rng(0))(100_000)
    >>> bool(70 < instants[-1] / SECOND < 140)
    True
    """

    rate: float
    burst: int
    pause: int

    def __post_init__(self) -> None:
        _require_rate("bursty", self.rate)
        for name in ("burst", "pause"):
            if getattr(self, name) <= 0:
                raise InvalidArgument(f"bursty: {name} is {getattr(self, name)}; it must be above 0")

    def sampler(self, random: np.random.Generator) -> Callable[[int], Instants]:
        """Gives the next so many instants at each call, counted from 0.

        Events are a Poisson process of the time in bursts alone; then the pauses are put between.
        """
        gaps, lengths = random.spawn(2)
        busy = self.rate * (self.burst + self.pause) / self.burst
        last, ends, before = 0.0, np.array([lengths.exponential(self.burst)]), np.array([0.0])

        def draw(count: int) -> Instants:
            nonlocal last, ends, before
            instants = _running(last, gaps.exponential(SECOND / busy, count))
            last = float(instants[-1]) if count else last
            while ends[-1] < last:  # the ends of bursts in time of bursts, and all pauses before each
                drawn = lengths.exponential(1.0, (1 + int((last - ends[-1]) / self.burst), 2))
                ends = np.append(ends, ends[-1] + np.cumsum(drawn[:, 0] * self.burst))
                before = np.append(before, before[-1] + np.cumsum(drawn[:, 1] * self.pause))
            instants = instants + before[np.searchsorted(ends, instants)]
            kept = max(int(np.searchsorted(ends, last)) - 1, 0)
            ends, before = ends[kept:], before[kept:]
            whole: Instants = instants.astype(np.int64)
            return whole

        return draw


def _running(last: float, gaps: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Instants after gaps, added up one by one, so that they are the same in blocks of any length."""
    if len(gaps):
        gaps[0] += last
    return np.cumsum(gaps)


def _require_rate(name: str, rate: float) -> None:
    if not 0 < rate <= SECOND:
        raise InvalidArgument(f"{name}: rate is {rate}; it must be above 0, and at most a million events per second")
