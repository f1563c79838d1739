"""What the window functions of `windows` make: each binds to a session as an `Assignment`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from forebay.errors import InvalidArgument
from forebay.spark.driver.columns import interval, text_of
from forebay.spark.driver.durations import Duration, as_text, microseconds, positive_microseconds, seconds
from forebay.windows import (
    END,
    AlignedWindows,
    CountWindows,
    CustomWindows,
    GlobalWindow,
    Preceding,
    SessionWindows,
    Windows,
)


@dataclass(frozen=True)
class Assignment:
    """A window function bound to a session.

    Attributes
    ----------
    windows : Windows
        What the engine knows of it.
    kind : str
        The name of its function.
    text : str
        How it is shown and compared with what a checkpoint has.
    result : Column or None
        A column with the name and the type of the result's window; None when the result has none.
    columns : dict
        Columns that pack needs beside time, keys and inputs, by name.
    event_time : Column or None
        The first column of the result, where results have an event time that is not that of their window.
    """

    windows: Windows
    kind: str
    text: str
    result: Column | None
    columns: dict[str, Column] = field(default_factory=dict)
    event_time: Column | None = None


class Window(Protocol):
    """A window function that is not bound yet."""

    @property
    def time_column(self) -> Column | str | None:
        """The event time; None where there is none, or where the column with the watermark is meant."""

    @property
    def in_event_time(self) -> bool:
        """Whether its windows fire when the watermark passes their end."""

    def bind(self, session: SparkSession, time: Column) -> Assignment:
        """Bind to a session; `InvalidArgument` for what makes no window."""


@dataclass(frozen=True)
class TimeWindow:
    """Tumbling or sliding windows. Made by `window`."""

    time_column: Column | str
    window_duration: Duration
    slide_duration: Duration | None = None
    start_time: Duration | None = None
    in_event_time = True

    def bind(self, session: SparkSession, time: Column) -> Assignment:
        size = positive_microseconds(session, "windowDuration", self.window_duration)
        slide = size if self.slide_duration is None else positive_microseconds(session, "slideDuration", self.slide_duration)
        if slide > size:
            raise InvalidArgument(
                f"slideDuration {self.slide_duration!r} is longer than windowDuration {self.window_duration!r}, so some "
                "rows would be in no window; make it at most as long"
            )
        offset = 0 if self.start_time is None else microseconds(session, "startTime", self.start_time)
        if abs(offset) >= slide:
            raise InvalidArgument(
                f"startTime {self.start_time!r} must be shorter than the slide of the window, {slide} microseconds; "
                "a multiple of the slide changes nothing"
            )
        text = f"window({text_of(self.time_column)}, {seconds(size)}, every {seconds(slide)}, from {seconds(offset)})"
        # Spark plans a projection for each window that a row is in: two or three tell the type as well as thousands.
        few = None if slide == size else f"{max(slide, size // 2)} microseconds"
        result = F.window(self.time_column, f"{size} microseconds", few)
        return Assignment(AlignedWindows(size, slide, offset), "window", text, result)


@dataclass(frozen=True)
class SessionWindow:
    """Sessions. Made by `session_window`."""

    time_column: Column | str
    gap_duration: Column | Duration
    in_event_time = True

    def bind(self, session: SparkSession, time: Column) -> Assignment:
        gap = self.gap_duration
        if not isinstance(gap, Column):
            text, gap = seconds(positive_microseconds(session, "gapDuration", gap)), as_text(gap)
        else:
            text = text_of(gap)
        result = F.session_window(self.time_column, gap)
        end = F.session_window(time, gap).getField("end")
        return Assignment(
            SessionWindows(),
            "session_window",
            f"session_window({text_of(self.time_column)}, gap {text})",
            result,
            {END: end},
        )


@dataclass(frozen=True)
class CountWindow:
    """Windows of so many rows of a key. Made by `count_window`."""

    size: int
    slide: int
    time_column = None
    in_event_time = False

    def bind(self, session: SparkSession, time: Column) -> Assignment:
        text = f"count_window({self.size} rows, every {self.slide} rows)"
        numbers = F.struct(F.lit(0).cast("long").alias("start"), F.lit(0).cast("long").alias("end"))
        return Assignment(CountWindows(self.size, self.slide), "count_window", text, numbers.alias("count_window"))


@dataclass(frozen=True)
class PrecedingWindow:
    """A window for each row. Made by `preceding`."""

    time_column: Column | str
    duration: Duration | None = None
    rows: int | None = None
    in_event_time = True

    def bind(self, session: SparkSession, time: Column) -> Assignment:
        span = None if self.duration is None else positive_microseconds(session, "duration", self.duration)
        bounds = [*([] if self.rows is None else [f"{self.rows} rows"]), *([] if span is None else [seconds(span)])]
        plain = time + interval(0)  # without what marks the event time
        return Assignment(
            Preceding(span, self.rows),
            "preceding",
            f"preceding({', '.join([text_of(self.time_column), *bounds])})",
            F.struct(plain.alias("start"), plain.alias("end")).alias("window"),
            event_time=time.alias("event_time"),
        )


@dataclass(frozen=True)
class WholeKey:
    """One window per key, which fires by the clock, by the number of its rows, or in every micro-batch; or else at the end.

    Made by `global_window`.
    """

    every: Duration | None = None
    every_rows: int | None = None
    every_batch: bool = False
    accumulate: bool = True
    time_column = None
    in_event_time = False

    def bind(self, session: SparkSession, time: Column) -> Assignment:
        windows, fires = self._firing(session)
        kept = "" if fires == "at the end" else f", {'accumulating' if self.accumulate else 'discarding'}"
        return Assignment(windows, "global_window", f"global_window({fires}{kept})", None)

    def _firing(self, session: SparkSession) -> tuple[Windows, str]:
        if self.every_rows is not None:
            windows = CountWindows(self.every_rows, self.every_rows, accumulating=self.accumulate)
            return windows, f"every {self.every_rows} rows"
        if self.every is not None:
            every = positive_microseconds(session, "every", self.every)
            return GlobalWindow(every, discarding=not self.accumulate), f"every {seconds(every)}"
        return (GlobalWindow(0), "every micro-batch") if self.every_batch else (GlobalWindow(), "at the end")


@dataclass(frozen=True)
class CustomWindow:
    """Windows of the user's own. Made by `custom_window`."""

    assigner: Callable[[Any], tuple[Any, Any]]
    merge: str | None
    ett: Callable[[Any, Any, Any], Any] | None
    hint: str | None
    time_column: Column | str | None
    incremental: bool = False
    in_event_time = True

    def bind(self, session: SparkSession, time: Column) -> Assignment:
        name = getattr(self.assigner, "__name__", type(self.assigner).__name__)
        windows = CustomWindows(self.assigner, self.merge is not None, self.hint == "aligned", self.ett)
        of_windows = (
            f"{', overlapping windows merge' if self.merge else ''}{', shared by all keys' if windows.shared else ''}"
        )
        text = f"custom_window({name}{of_windows})"
        return Assignment(windows, "custom_window", text, F.window(time, "1 second"))
