"""Internal: window functions. All times are int64 microseconds since the epoch.

A tumbling or sliding window function cuts time into *slices*, the longest intervals that no window boundary divides.
Their length is the greatest common divisor of size and slide, and every window is a whole number of slices. A row is
stored once, in its slice, whatever the number of windows that contain it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]

TIME = "time"
"""The column of event times that pack reads: a timestamp, or NULL."""

INSTANT = "__instant"
"""The column of a row's time that is stored with it where rows are joined, and where windows precede rows."""

ENDLESS = 2**63 - 2
"""The end of a window that has none, after every watermark."""

HIGH, LOW, START, END, ETT = "high", "low", "start", "end", "ett"
"""More columns beside the plan's: the identity of the key; bounds and estimated trigger time of the row's window."""


@dataclass(frozen=True)
class AlignedWindows:
    """Windows ``[offset + k * slide, offset + k * slide + size)`` for every integer ``k``.

    Parameters
    ----------
    size, slide, offset : int
        Microseconds; ``0 < slide <= size``. A tumbling window has ``slide == size``.

    Examples
    --------
    >>> hopping = AlignedWindows(size=10, slide=4)
    >>> hopping.slice_length
    2
    >>> hopping.slice_starts(np.array([-1, 0, 3]))
    array([-2,  0,  2])
    >>> hopping.placements(np.array([0, 2]))
    (array([0, 0, 0, 1, 1]), array([ 0, -4, -8,  0, -4]))
    """

    size: int
    slide: int
    offset: int = 0

    @property
    def slice_length(self) -> int:
        return math.gcd(self.size, self.slide)

    def slice_starts(self, times: Times) -> Times:
        """Start of the slice of each instant; instants before the epoch and before ``offset`` included."""
        length = self.slice_length
        return (times - self.offset) // length * length + self.offset

    def last_window(self, slices: Times) -> Times:
        """Start of the latest window that contains each slice."""
        return (slices - self.offset) // self.slide * self.slide + self.offset

    def first_window(self, slices: Times) -> Times:
        """Start of the earliest window that contains each slice."""
        before = slices + self.slice_length - self.size - self.offset
        return -(-before // self.slide) * self.slide + self.offset

    @property
    def most(self) -> int:
        """In how many windows an instant is at the most."""
        return -(-self.size // self.slide)

    def placements(self, slices: Times, among: tuple[int, int] | None = None) -> tuple[Times, Times]:
        """The position of each slice once for every window that contains it, and the starts of those windows, latest first.

        ``among`` leaves out windows before one and after another.
        """
        first, last = self.first_window(slices), self.last_window(slices)
        if among is not None:
            first, last = np.maximum(first, among[0]), np.minimum(last, among[1])
        times, back = _counted_up(first, last, self.slide)
        positions = np.repeat(np.arange(len(slices)), times)
        return positions, last[positions] - back * self.slide

    def windows_between(self, slices: Times, after: int, until: int) -> list[int]:
        """Starts of the windows over any of ``slices``, ascending, whose end is in ``(after, until]``; earliest first."""
        if not len(slices):
            return []
        first, last = self.first_window(slices), self.last_window(slices)
        earliest = max(self._last_ending_by(after) + self.slide, int(first[0]))
        latest = min(self._last_ending_by(until), int(last[-1]))
        if earliest > latest:
            return []
        begin = np.maximum(first, earliest)
        begin[1:] = np.maximum(begin[1:], last[:-1] + self.slide)  # the others are over the slice before
        times, forward = _counted_up(begin, np.minimum(last, latest), self.slide)
        starts: list[int] = (np.repeat(begin, times) + forward * self.slide).tolist()
        return starts

    def open_from(self, fired_until: int) -> int:
        """The earliest instant that is in a window which ends after another instant.

        Examples
        --------
        >>> AlignedWindows(size=10, slide=4).open_from(18)
        12
        """
        return self._last_ending_by(fired_until) + self.slide

    def _last_ending_by(self, instant: int) -> int:
        """Start of the last window that ends at an instant or before."""
        return (int(instant) - self.size - self.offset) // self.slide * self.slide + self.offset


def _counted_up(first: Times, last: Times, step: int) -> tuple[Times, Times]:
    """How many steps there are from each first to its last, that included; and their numbers from 0, one after another."""
    times = np.maximum(0, (last - first) // step + 1)
    return times, np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)


@dataclass(frozen=True)
class SessionWindows:
    """Sessions: rows of a key that are no further apart than a gap. Each row brings its own gap, so none is here."""


@dataclass(frozen=True)
class CustomWindows:
    """Windows of a user's own.

    Attributes
    ----------
    assigner : callable
        Maps instants (an int64 array of microseconds) to the start and the end of each instant's window.
    merging : bool
        Whether windows of one key that touch become one.
    shared : bool
        Whether windows are shared by all keys, and stored so.
    ett : callable or None
        Maps starts, ends and instants to estimated trigger times; None for the ends.
    """

    assigner: Callable[[Times], tuple[npt.ArrayLike, npt.ArrayLike]]
    merging: bool = False
    shared: bool = False
    ett: Callable[[Times, Times, Times], npt.ArrayLike] | None = None


@dataclass(frozen=True)
class CountWindows:
    """Windows over the rows of each key, which are numbered from 0 in order of arrival.

    Attributes
    ----------
    size, slide : int
        Window ``k`` has the rows ``[k * slide, k * slide + size)``.
    accumulating : bool
        All windows begin at row 0 instead, so each has the rows of those before it; ``slide`` is ``size`` then.

    Examples
    --------
    >>> windows = CountWindows(size=4, slide=2)
    >>> windows.complete(np.array([3, 4, 7])).tolist()
    [0, 1, 2]
    >>> windows.bounds(np.array([0, 1])).tolist()
    [[0, 4], [2, 6]]
    """

    size: int
    slide: int
    accumulating: bool = False

    @property
    def slice_length(self) -> int:
        return math.gcd(self.size, self.slide)

    def slice_starts(self, numbers: Times) -> Times:
        """The first row of the slice of each row."""
        return numbers // self.slice_length * self.slice_length

    def complete(self, rows: Times) -> Times:
        """How many windows are complete after so many rows."""
        return np.maximum(0, (rows - self.size) // self.slide + 1)

    def bounds(self, windows: Times) -> npt.NDArray[np.int64]:
        """First row, and the one after the last, of windows by number."""
        starts = np.zeros_like(windows) if self.accumulating else windows * self.slide
        return np.stack([starts, windows * self.slide + self.size], axis=1)

    def first_window(self, slices: Times) -> Times:
        """The first window that has the rows of each slice."""
        return np.maximum(0, -(-(slices + self.slice_length - self.size) // self.slide))

    def last_window(self, slices: Times) -> Times:
        """The last window that has the rows of each slice."""
        return np.full_like(slices, np.iinfo(np.int64).max) if self.accumulating else slices // self.slide


@dataclass(frozen=True)
class GlobalWindow:
    """One window per key, which never ends by itself.

    Attributes
    ----------
    every : int or None
        It fires every so many microseconds of processing time, for the keys that have had rows since; 0: in every
        micro-batch; None: at the end.
    discarding : bool
        Whether its rows go when it fires.
    """

    every: int | None = None
    discarding: bool = False


@dataclass(frozen=True)
class Preceding:
    """A window for each row, over the rows of its key that go before it in event time, and the row itself.

    Attributes
    ----------
    span : int or None
        How many microseconds older than the row the oldest one may be. Unless there are ``rows``, rows of the same instant
        are in each other's windows.
    rows : int or None
        How many rows the window has at the most. Rows of one instant are in order of arrival.

    Examples
    --------
    >>> Preceding(span=5).forgotten(np.array([10, 20])).tolist()
    [15, 25]
    """

    span: int | None = None
    rows: int | None = None

    def forgotten(self, times: Times) -> Times:
        """The watermarks from which on no later row can have rows of some instants in its window."""
        return np.full_like(times, ENDLESS) if self.span is None else times + self.span


@dataclass(frozen=True)
class Buffered:
    """No windows: the rows of a key wait for each other.

    Attributes
    ----------
    interval : int
        A key's rows go on at most once in so many microseconds of processing time, unless a bound is reached. What comes
        when none have gone on for so long does not wait.
    rows, size : int
        A key's rows go on when they are so many, or about so many bytes.
    """

    interval: int
    rows: int
    size: int


@dataclass(frozen=True)
class FirstRows:
    """No windows: of a key only the first row counts, and the key is forgotten at the end that the row brings."""


@dataclass(frozen=True)
class Intervals:
    """No windows of a user's: rows of two sides meet if they are so far apart in time. Each waits in a window of its key.

    Attributes
    ----------
    lower, upper : int
        A right row's time minus a left row's, in microseconds.
    granularity : int
        Windows in which rows wait end at multiples of it.

    Examples
    --------
    >>> intervals = Intervals(lower=-2, upper=3, granularity=10)
    >>> ends = intervals.ends(np.array([20, 21]))
    >>> intervals.windows(ends, 1)
    (array([11, 21]), array([20, 30]))
    >>> intervals.sides(*intervals.windows(ends, 1)).tolist()
    [1, 1]
    """

    lower: int
    upper: int
    granularity: int

    def ends(self, ends: Times) -> Times:
        """When the windows end of rows that have no partners after some instants."""
        return -(-ends // self.granularity) * self.granularity

    def windows(self, ends: Times, side: int) -> tuple[Times, Times]:
        """The windows of one side's rows that have some ends; those of the right side begin a microsecond later."""
        return ends - self.granularity + side, ends

    def sides(self, starts: Times, ends: Times) -> Times:
        """The sides of windows."""
        return starts - ends + self.granularity


@dataclass(frozen=True)
class Lives:
    """No windows of a user's: rows of a key are valid until a row ends the key's life.

    Attributes
    ----------
    until : str
        The column of a packed batch that is true in rows that do.
    granularity : int
        Rows that the watermark has not passed wait in windows of so many microseconds.
    """

    until: str
    granularity: int

    def waiting(self, times: Times) -> tuple[Times, Times]:
        """The windows in which rows wait."""
        ends = -(-times // self.granularity) * self.granularity
        return ends - self.granularity, ends

    def valid(self, sides: Times) -> tuple[Times, Times]:
        """The windows of rows of these sides that are valid: they have no end."""
        return 1 + sides, np.full(len(sides), ENDLESS)

    def sides(self, starts: Times) -> Times:
        """The sides whose rows are in windows of valid rows; -1 if those of both are, as in older state."""
        return starts - 1


@dataclass(frozen=True)
class SharedWindows:
    """The windows of several patterns over the same rows. Each pattern has a plan, and windows, of its own."""


def bound_of(column: str, position: int) -> str:
    """The column of a packed batch with bounds of the windows of the pattern at a position among all."""
    return f"{column}{position}"


@dataclass(frozen=True)
class Firing:
    """When windows fire beside the one time when the watermark reaches their end.

    Attributes
    ----------
    every : int or None
        Those that have had rows since they fired do so whenever the watermark passes a multiple of it, in microseconds.
    allowed_lateness : int
        For how many microseconds after their end late rows make them fire again.
    accumulating : bool
        Whether a pane has all rows of the window so far, or those since the last one.

    Examples
    --------
    >>> firing = Firing(every=10, allowed_lateness=5, accumulating=True)
    >>> firing.next(np.array([12, 30, 40]), watermark=17).tolist()
    [17, 20, 20]
    """

    every: int | None = None
    allowed_lateness: int = 0
    accumulating: bool = True

    def next(self, ends: Times, watermark: int) -> Times:
        """The watermark at which windows with new rows fire, by their ends; those that have ended do so at once."""
        early = ends if self.every is None else np.minimum(ends, (watermark // self.every + 1) * self.every)
        return np.where(ends <= watermark, watermark, early)


Windows = (
    AlignedWindows
    | SessionWindows
    | CustomWindows
    | CountWindows
    | GlobalWindow
    | Preceding
    | Buffered
    | FirstRows
    | Intervals
    | Lives
    | SharedWindows
)
