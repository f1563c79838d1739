"""Time windows as the user writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from py4j.java_gateway import get_field
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from forebay.errors import InvalidArgument
from forebay.windows import AlignedWindows

if TYPE_CHECKING:
    from pyspark.sql import Column

_MICROS_PER_DAY = 86_400_000_000


@dataclass(frozen=True)
class TimeWindow:
    """A window function over event time that is not bound to a DataFrame yet. Made by `window`."""

    time_column: Column | str
    window_duration: str
    slide_duration: str | None = None
    start_time: str | None = None

    def spark_column(self) -> Column:
        """The same window in Spark's terms."""
        return F.window(self.time_column, self.window_duration, self.slide_duration, self.start_time)

    def aligned(self, session: SparkSession) -> AlignedWindows:
        """The durations in microseconds; `InvalidArgument` for those that make no window."""
        size = _positive(session, "windowDuration", self.window_duration)
        slide = size if self.slide_duration is None else _positive(session, "slideDuration", self.slide_duration)
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
        return AlignedWindows(size, slide, offset)


def window(
    timeColumn: Column | str, windowDuration: str, slideDuration: str | None = None, startTime: str | None = None
) -> TimeWindow:
    """Tumbling or sliding windows over event time, exactly as ``pyspark.sql.functions.window``.

    Parameters
    ----------
    timeColumn : Column or str
        The event time, a timestamp with a watermark if the DataFrame is a stream.
    windowDuration : str
        Length of a window, for example ``"10 minutes"`` or ``"1 day 12 hours"``. No months.
    slideDuration : str, optional
        A new window begins every so often; at most ``windowDuration``, which is the default.
    startTime : str, optional
        Offset of the first window from 1970-01-01 00:00:00 UTC, shorter than the slide.

    Returns
    -------
    TimeWindow
        For `forebay.groupBy`. The result column is ``window``, a struct of ``start`` (inclusive) and ``end`` (exclusive).

    Examples
    --------
    >>> window("ts", "1 hour", "10 minutes")
    TimeWindow(time_column='ts', window_duration='1 hour', slide_duration='10 minutes', start_time=None)
    """
    return TimeWindow(timeColumn, windowDuration, slideDuration, startTime)


def microseconds(session: SparkSession, name: str, text: str) -> int:
    """A duration of Spark's interval syntax in microseconds; ``name`` is for the message when it is malformed."""
    example = "write for example '10 minutes' or '1 day 12 hours'"
    if not isinstance(text, str):
        raise InvalidArgument(f"{name} is {text!r}, not a string; {example}")
    jvm = session._jvm
    assert jvm is not None
    try:
        utf8 = jvm.org.apache.spark.unsafe.types.UTF8String.fromString(text)
        interval = jvm.org.apache.spark.sql.catalyst.util.IntervalUtils.stringToInterval(utf8)
    except PySparkException as error:
        raise InvalidArgument(f"{name} {text!r} is not a duration; {example}") from error
    if get_field(interval, "months"):
        raise InvalidArgument(f"{name} {text!r} has months or years, whose length varies; use days")
    return int(get_field(interval, "days")) * _MICROS_PER_DAY + int(get_field(interval, "microseconds"))


def _positive(session: SparkSession, name: str, text: str) -> int:
    value = microseconds(session, name, text)
    if value <= 0:
        raise InvalidArgument(f"{name} {text!r} is not positive")
    return value
