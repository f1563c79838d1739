"""Durations as users write them, in microseconds and as text."""

from __future__ import annotations

import datetime

from py4j.java_gateway import get_field
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from forebay.errors import InvalidArgument

_MOST_DAYS = 36_525_000
"""A hundred thousand years: times that are later than the year 148,000 have no windows."""
_MICROS_PER_DAY = 86_400_000_000

Duration = str | datetime.timedelta
"""A duration, as Spark writes it (``"10 minutes"``, ``"1 day 12 hours"``) or as Python does."""


def seconds(microseconds: int) -> str:
    return f"{microseconds} us" if microseconds % 1_000_000 else f"{microseconds // 1_000_000} s"


def as_text(duration: Duration) -> str:
    """A duration as Spark writes it.

    Examples
    --------
    >>> as_text(datetime.timedelta(minutes=1.5)), as_text("90 seconds")
    ('90000000 microseconds', '90 seconds')
    """
    if isinstance(duration, datetime.timedelta):
        return f"{duration // datetime.timedelta(microseconds=1)} microseconds"
    return duration


def microseconds(session: SparkSession, name: str, duration: Duration) -> int:
    """A duration in microseconds; ``name`` is for the message when it is malformed."""
    days, micros = _days_and_microseconds(session, name, duration)
    return days * _MICROS_PER_DAY + micros


def fixed_microseconds(session: SparkSession, name: str, duration: Duration) -> int | None:
    """A duration in microseconds; None if it has days, which are longer or shorter where clocks change."""
    days, micros = _days_and_microseconds(session, name, duration)
    return None if days else micros


def _days_and_microseconds(session: SparkSession, name: str, duration: Duration) -> tuple[int, int]:
    example = "write for example '10 minutes' or '1 day 12 hours', or a timedelta"
    if not isinstance(duration, str | datetime.timedelta):
        raise InvalidArgument(f"{name} is {duration!r}, neither a string nor a timedelta; {example}")
    jvm = session._jvm
    assert jvm is not None
    try:
        utf8 = jvm.org.apache.spark.unsafe.types.UTF8String.fromString(as_text(duration))
        interval = jvm.org.apache.spark.sql.catalyst.util.IntervalUtils.stringToInterval(utf8)
    except PySparkException as error:
        raise InvalidArgument(f"{name} {duration!r} is not a duration; {example}") from error
    if get_field(interval, "months"):
        raise InvalidArgument(f"{name} {duration!r} has months or years, whose length varies; use days")
    days, micros = int(get_field(interval, "days")), int(get_field(interval, "microseconds"))
    if abs(days + micros // _MICROS_PER_DAY) > _MOST_DAYS:
        raise InvalidArgument(
            f"{name} {duration!r} is too long: times that are so far away have no results. Give at most {_MOST_DAYS} days."
        )
    return days, micros


def positive_microseconds(session: SparkSession, name: str, duration: Duration) -> int:
    """A duration of at least a microsecond, as `microseconds`."""
    value = microseconds(session, name, duration)
    if value <= 0:
        raise InvalidArgument(f"{name} {duration!r} is not positive")
    return value
