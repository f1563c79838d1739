"""What keys and sizes are drawn from: distributions that make a whole block of numbers at a time.

A distribution is a description that does not change. Its ``sampler`` is where the drawing is, and keeps what has to be kept
from one block to the next. Equal seeds, and blocks of equal lengths, give equal numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forebay.errors import InvalidArgument

Numbers = npt.NDArray[np.int64]
Sampler = Callable[[int], Numbers]
"""Gives so many numbers, the next ones at each call."""


class Distribution(Protocol):
    """Anything that whole numbers can be drawn from."""

    def sampler(self, random: np.random.Generator) -> Sampler:
        """A source of numbers that begins anew."""


@dataclass(frozen=True)
class Constant:
    """One number always.

    Examples
    --------
    >>> draw(Constant(10), 3).tolist()
    [10, 10, 10]
    """

    value: int

    def __post_init__(self) -> None:
        _require(self.value >= 0, f"constant: value is {self.value}; it must be at least 0")

    def sampler(self, random: np.random.Generator) -> Sampler:
        """A source of numbers that begins anew."""
        return lambda count: np.full(count, self.value, np.int64)


@dataclass(frozen=True)
class Uniform:
    """Every number from ``low`` to ``high``, both included, equally often.

    Examples
    --------
    >>> sorted(set(draw(Uniform(5, 7), 100).tolist()))
    [5, 6, 7]
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        _require(0 <= self.low <= self.high, f"uniform: low is {self.low} and high is {self.high}; write 0 <= low <= high")

    def sampler(self, random: np.random.Generator) -> Sampler:
        """A source of numbers that begins anew."""
        return lambda count: self.low + (random.random(count) * (self.high - self.low + 1)).astype(np.int64)


@dataclass(frozen=True)
class Normal:
    """A bell around ``mean``; what would be below 0 is 0.

    Examples
    --------
    >>> 99 < draw(Normal(100, 5), 1000).mean() < 101
    np.True_
    """

    mean: float
    deviation: float

    def __post_init__(self) -> None:
        for name in ("mean", "deviation"):
            value = getattr(self, name)
            _require(0 <= value < 1 << 40, f"normal: {name} is {value}; it must be at least 0, and below a terabyte")

    def sampler(self, random: np.random.Generator) -> Sampler:
        """A source of numbers that begins anew."""
        return lambda count: np.maximum(np.rint(random.normal(self.mean, self.deviation, count)), 0).astype(np.int64)


@dataclass(frozen=True)
class Ecdf:
    """An empirical cumulative distribution function: ``values`` in rising order, each with the share at or below it.

    Examples
    --------
    >>> sorted(set(draw(Ecdf((1, 5, 9), (0.5, 0.9, 1.0)), 1000).tolist()))
    [1, 5, 9]
    """

    values: Sequence[int]
    shares: Sequence[float]

    def __post_init__(self) -> None:
        _require(len(self.values) == len(self.shares) > 0, "ecdf: give as many shares as values, and one at least")
        _require(min(self.values) >= 0, "ecdf: values must be at least 0")
        rising = all(a < b for a, b in zip(self.values, self.values[1:], strict=False))
        rising = rising and all(a <= b for a, b in zip(self.shares, self.shares[1:], strict=False))
        _require(
            rising and self.shares[0] >= 0, "ecdf: values and shares must rise; a share is that of all values up to its own"
        )
        _require(abs(self.shares[-1] - 1) < 1e-9, f"ecdf: the last share is {self.shares[-1]}; it must be 1")

    @classmethod
    def of(cls, sample: npt.ArrayLike) -> Ecdf:
        """The function that a sample has."""
        values, counts = np.unique(np.asarray(sample, np.int64), return_counts=True)
        return cls(tuple(values.tolist()), tuple((counts.cumsum() / counts.sum()).tolist()))

    def sampler(self, random: np.random.Generator) -> Sampler:
        """A source of numbers that begins anew."""
        values, shares = np.array(self.values, np.int64), np.array(self.shares)
        shares[-1] = 1.0
        return lambda count: values[np.searchsorted(shares, random.random(count), side="right")]


@dataclass(frozen=True)
class Zipfian:
    """Keys from 0 to before ``keys``; the key ``n`` occurs in proportion to ``1 / (n + 1) ** exponent``.

    Drawn by rejection inversion (Hörmann and Derflinger, 1996), which needs no table of keys.

    Examples
    --------
    >>> counts = np.bincount(draw(Zipfian(10, 1.0), 10_000))
    >>> bool(1.7 < counts[0] / counts[1] < 2.3)
    True
    """

    keys: int
    exponent: float = 0.99

    def __post_init__(self) -> None:
        _require_keys("zipfian", self.keys)
        _require(0 < self.exponent <= 20, f"zipfian: exponent is {self.exponent}; it must be above 0, and at most 20")

    def sampler(self, random: np.random.Generator) -> Sampler:
        """A source of numbers that begins anew."""
        left, right = self._integral(1.5) - 1.0, self._integral(self.keys + 0.5)
        squeeze = 2.0 - float(self._inverse(self._integral(2.5) - 2.0**-self.exponent))

        def draw(count: int) -> Numbers:
            ranks, wanted = np.empty(count, np.int64), np.arange(count)
            while len(wanted):
                height = right + random.random(len(wanted)) * (left - right)
                x = self._inverse(height)
                rank = np.clip(np.floor(x + 0.5), 1, self.keys)
                taken = (rank - x <= squeeze) | (height >= self._integral(rank + 0.5) - rank**-self.exponent)
                ranks[wanted[taken]] = rank[taken].astype(np.int64) - 1
                wanted = wanted[~taken]
            return ranks

        return draw

    def _integral(self, x: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The area below ``x ** -exponent``, from 1 on."""
        logarithm = np.log(x)
        power: npt.NDArray[np.float64] = (1.0 - self.exponent) * logarithm
        with np.errstate(divide="ignore", invalid="ignore"):
            area = np.where(np.abs(power) > 1e-9, np.expm1(power) / power, 1 + power / 2)
        return np.asarray(area * logarithm)

    def _inverse(self, area: npt.ArrayLike) -> npt.NDArray[np.float64]:
        power = np.maximum(np.asarray(area, np.float64) * (1.0 - self.exponent), -1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.where(np.abs(power) > 1e-9, np.log1p(power) / power, 1 - power / 2)
        return np.asarray(np.exp(slope * area))


@dataclass(frozen=True)
class Hotspot:
    """A share ``hot_share`` of draws goes to the first ``hot_keys`` of the keys, a share too; the rest to the others.

    Examples
    --------
    >>> draws = draw(Hotspot(100, hot_keys=0.1, hot_share=0.9), 10_000)
    >>> bool(0.88 < (draws < 10).mean() < 0.92)
    True
    """

    keys: int
    hot_keys: float = 0.2
    hot_share: float = 0.8

    def __post_init__(self) -> None:
        _require_keys("hotspot", self.keys)
        for name in ("hot_keys", "hot_share"):
            _require(0 <= getattr(self, name) <= 1, f"hotspot: {name} is {getattr(self, name)}; it must be from 0 to 1")

    def sampler(self, random: np.random.Generator) -> Sampler:
        """A source of numbers that begins anew."""
        hot = min(max(int(self.keys * self.hot_keys), 1), self.keys)

        def draw(count: int) -> Numbers:
            chosen, place = random.random((count, 2)).T
            is_hot = (chosen < self.hot_share) | (hot == self.keys)
            keys: Numbers = np.where(is_hot, place * hot, hot + place * (self.keys - hot)).astype(np.int64)
            return keys

        return draw


@dataclass(frozen=True)
class Sequential:
    """Keys one after the other, and from the first one again.

    Examples
    --------
    >>> draw(Sequential(3), 5).tolist()
    [0, 1, 2, 0, 1]
    """

    keys: int

    def __post_init__(self) -> None:
        _require_keys("sequential", self.keys)

    def sampler(self, random: np.random.Generator) -> Sampler:
        """A source of numbers that begins anew."""
        position = 0

        def draw(count: int) -> Numbers:
            nonlocal position
            position += count
            return np.arange(position - count, position, dtype=np.int64) % self.keys

        return draw


@dataclass(frozen=True)
class Exponential:
    """Low keys often: as in YCSB, a share ``share`` of an exponential curve is above the first ``within`` of the keys.

    What the curve has beyond the last key is not drawn.

    Examples
    --------
    >>> draws = draw(Exponential(1000), 10_000)
    >>> bool(0.97 < (draws < 857).mean() < 0.99)
    True
    """

    keys: int
    share: float = 0.95
    within: float = 0.8571428571

    def __post_init__(self) -> None:
        _require_keys("exponential", self.keys)
        _require(0 < self.share < 1, f"exponential: share is {self.share}; it must be between 0 and 1")
        _require(self.within > 0, f"exponential: within is {self.within}; it must be above 0")

    def sampler(self, random: np.random.Generator) -> Sampler:
        """A source of numbers that begins anew."""
        mean = self.keys * self.within / -np.log(1 - self.share)
        below = -np.expm1(-self.keys / mean)
        return lambda count: np.minimum(-np.log1p(-below * random.random(count)) * mean, self.keys - 1).astype(np.int64)


@dataclass(frozen=True)
class Latest:
    """New keys keep coming, a share ``fresh`` of draws, and new ones are the most frequent: Zipfian from the newest back.

    Examples
    --------
    >>> draw(Latest(1, fresh=1.0), 3).tolist()
    [1, 2, 3]
    """

    keys: int
    """How many there are at the beginning, and how far back draws reach."""
    fresh: float = 0.05
    exponent: float = 0.99

    def __post_init__(self) -> None:
        _require(0 <= self.fresh <= 1, f"latest: fresh is {self.fresh}; it must be from 0 to 1")
        Zipfian(self.keys, self.exponent)

    def sampler(self, random: np.random.Generator) -> Sampler:
        """A source of numbers that begins anew."""
        chance, back = random.spawn(2)
        older = Zipfian(self.keys, self.exponent).sampler(back)
        newest = self.keys - 1

        def draw(count: int) -> Numbers:
            nonlocal newest
            fresh = chance.random(count) < self.fresh
            newest_at = newest + np.cumsum(fresh)
            newest = int(newest_at[-1]) if count else newest
            return np.where(fresh, newest_at, newest_at - older(count)).astype(np.int64)

        return draw


def draw(distribution: Distribution, count: int, seed: int = 0) -> Numbers:
    """Some numbers of a distribution.

    Examples
    --------
    >>> draw(Sequential(2), 3).tolist()
    [0, 1, 0]
    """
    return distribution.sampler(np.random.default_rng(seed))(count)


def _require_keys(name: str, keys: int) -> None:
    _require(keys >= 1, f"{name}: keys is {keys}; it must be at least 1")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidArgument(message)
