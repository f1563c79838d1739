"""Window functions as the user writes them."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

from pyspark.sql import Column

from forebay.aggregates.functions import flag
from forebay.errors import InvalidArgument
from forebay.spark.driver.assignments import (
    CountWindow,
    CustomWindow,
    PrecedingWindow,
    SessionWindow,
    TimeWindow,
    WholeKey,
)
from forebay.spark.driver.columns import LARGEST_BOUND, require_column
from forebay.spark.driver.durations import Duration


def window(
    timeColumn: Column | str,
    windowDuration: Duration,
    slideDuration: Duration | None = None,
    startTime: Duration | None = None,
) -> TimeWindow:
    """Tumbling or sliding windows over event time, exactly as ``pyspark.sql.functions.window``.

    Parameters
    ----------
    timeColumn : Column or str
        The event time, a timestamp with a watermark if the DataFrame is a stream.
    windowDuration : str or timedelta
        Length of a window, for example ``"10 minutes"`` or ``"1 day 12 hours"``. No months.
    slideDuration : str or timedelta, optional
        A new window begins every so often; at most ``windowDuration``, which is the default.
    startTime : str or timedelta, optional
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
    require_column("window()", timeColumn)
    return TimeWindow(timeColumn, windowDuration, slideDuration, startTime)


def session_window(timeColumn: Column | str, gapDuration: Column | Duration) -> SessionWindow:
    """Sessions over event time, exactly as ``pyspark.sql.functions.session_window``.

    A session of a key lasts from its first row until no row has come for a gap. A late row can join sessions.

    Parameters
    ----------
    timeColumn : Column or str
        The event time, a timestamp with a watermark if the DataFrame is a stream.
    gapDuration : str, timedelta or Column
        The gap, for example ``"10 minutes"``, or an expression that gives one for each row. Rows whose gap is not positive
        are in no session.

    Returns
    -------
    SessionWindow
        For `forebay.groupBy`. The result column is ``session_window``, a struct of ``start`` and ``end``.

    Examples
    --------
    >>> import forebay as fb
    >>> visits = spark.createDataFrame(
    ...     [("2024-05-01 10:00:00", "ann", 3), ("2024-05-01 10:04:00", "ann", 8), ("2024-05-01 11:00:00", "ann", 1)],
    ...     "time string, user string, pages int",
    ... ).selectExpr("cast(time as timestamp) time", "user", "pages")
    >>> sessions = fb.groupBy(visits, fb.session_window("time", "5 minutes"), "user").agg(fb.sum("pages").alias("pages"))
    >>> sessions.orderBy("session_window").select("session_window.*", "user", "pages").show()
    +-------------------+-------------------+----+-----+
    |              start|                end|user|pages|
    +-------------------+-------------------+----+-----+
    |2024-05-01 10:00:00|2024-05-01 10:09:00| ann|   11|
    |2024-05-01 11:00:00|2024-05-01 11:05:00| ann|    1|
    +-------------------+-------------------+----+-----+
    <BLANKLINE>
    """
    require_column("session_window()", timeColumn)
    return SessionWindow(timeColumn, gapDuration)


def count_window(size: int, slide: int | None = None) -> CountWindow:
    """Windows of ``size`` rows of a key, in order of arrival.

    Window ``k`` has the rows ``k * slide`` to ``k * slide + size`` of its key, counted from 0. It fires when it is full.

    Parameters
    ----------
    size : int
        Rows in a window.
    slide : int, optional
        A new window begins every so many rows; at most ``size``, which is the default.

    Returns
    -------
    CountWindow
        For `forebay.groupBy`. The result column is ``count_window``, a struct of the row numbers ``start`` (inclusive) and
        ``end`` (exclusive). A stream needs no watermark.

    Examples
    --------
    >>> import forebay as fb
    >>> readings = spark.createDataFrame([("a", 1.0), ("a", 5.0), ("a", 2.0)], "sensor string, value double").coalesce(1)
    >>> pairs = fb.groupBy(readings, fb.count_window(2, 1), "sensor").agg(fb.max("value").alias("max"))
    >>> pairs.orderBy("count_window").show()
    +------------+------+---+
    |count_window|sensor|max|
    +------------+------+---+
    |      {0, 2}|     a|5.0|
    |      {1, 3}|     a|5.0|
    +------------+------+---+
    <BLANKLINE>
    """
    size = _rows("size", size)
    slide = size if slide is None else _rows("slide", slide)
    if slide > size:
        raise InvalidArgument(f"slide {slide} is larger than size {size}, so some rows would be in no window")
    return CountWindow(size, slide)


def preceding(timeColumn: Column | str, duration: Duration | None = None, rows: int | None = None) -> PrecedingWindow:
    """A window for each row: aggregates of the last rows of its key, or of those of the last hour, after every row.

    With ``duration`` the window of a row at time ``t`` has the rows of its key from ``t - duration`` to ``t``, both
    included, and so all those at ``t`` itself: in SQL ``OVER (PARTITION BY key ORDER BY time RANGE BETWEEN ... PRECEDING AND
    CURRENT ROW)``. With ``rows`` it has the row and those before it, so many in all, in order of event time and then of
    arrival: ``ROWS BETWEEN ... PRECEDING AND CURRENT ROW``. With both it has of these rows those that are in the time.

    A row of a stream waits until the watermark passes it, so that its window has all the rows that are not late. Rows at or
    before the watermark of the micro-batch before are late and dropped.

    Parameters
    ----------
    timeColumn : Column or str
        The event time, a timestamp with a watermark if the DataFrame is a stream.
    duration : str or timedelta, optional
        How far windows reach back, for example ``"1 hour"``. Rows are kept for so long.
    rows : int, optional
        How many rows windows have at the most. Without ``duration`` as many rows of every key are kept for ever.

    Returns
    -------
    PrecedingWindow
        For `forebay.groupBy`. There is one result for each row, with ``event_time``, the time of the row; and ``window``, a
        struct of ``start`` (the earliest time that the window can have, or with ``rows`` the one that it has) and ``end``
        (the row's time), both inclusive. Other columns of the row are those of `forebay.current`.

    Examples
    --------
    >>> import forebay as fb
    >>> payments = spark.createDataFrame(
    ...     [("10:00", "a", 30), ("10:20", "a", 50), ("10:50", "b", 10), ("11:15", "a", 20)],
    ...     "time string, card string, amount int",
    ... ).selectExpr("to_timestamp('2024-05-01 ' || time) time", "card", "amount")
    >>> after_each = fb.groupBy(payments, fb.preceding("time", "1 hour"), "card").agg(fb.sum("amount").alias("total"))
    >>> after_each.orderBy("event_time").select("event_time", "card", "total").show()
    +-------------------+----+-----+
    |         event_time|card|total|
    +-------------------+----+-----+
    |2024-05-01 10:00:00|   a|   30|
    |2024-05-01 10:20:00|   a|   80|
    |2024-05-01 10:50:00|   b|   10|
    |2024-05-01 11:15:00|   a|   70|
    +-------------------+----+-----+
    <BLANKLINE>
    """
    require_column("preceding()", timeColumn)
    if duration is None and rows is None:
        raise InvalidArgument(
            "preceding() got neither duration nor rows; give one of them, or both, as in fb.preceding('time', '1 hour') or "
            "fb.preceding('time', '1 day', rows=10)"
        )
    return PrecedingWindow(timeColumn, duration, None if rows is None else _rows("rows", rows))


def global_window(every: Duration | None = None, everyRows: int | None = None, accumulate: bool = True) -> WholeKey:
    """One window per key, that has all its rows.

    Parameters
    ----------
    every : str or timedelta, optional
        A result is emitted every so often in processing time, for keys that have had rows since the last one.
    everyRows : int, optional
        A result is emitted whenever a key has had so many more rows. A stream needs one of the two. A batch DataFrame has
        one result per key at its end, unless rows are counted.
    accumulate : bool
        Whether a result covers all rows of the key so far, or only those since the last result.

    Returns
    -------
    WholeKey
        For `forebay.groupBy`. The result has no window column. A stream needs no watermark.

    Examples
    --------
    >>> import forebay as fb
    >>> sales = spark.createDataFrame([("a", 1), ("a", 2), ("a", 3), ("a", 4)], "shop string, amount int").coalesce(1)
    >>> totals = fb.groupBy(sales, fb.global_window(everyRows=2), "shop").agg(fb.sum("amount").alias("total"))
    >>> totals.orderBy("total").show()
    +----+-----+
    |shop|total|
    +----+-----+
    |   a|    3|
    |   a|   10|
    +----+-----+
    <BLANKLINE>
    """
    if every is not None and everyRows is not None:
        raise InvalidArgument("global_window() got both every and everyRows; a window fires by the clock or by its rows")
    rows = None if everyRows is None else _rows("everyRows", everyRows)
    return WholeKey(every, rows, accumulate=flag("global_window", "accumulate", accumulate))


def custom_window(
    assigner: Callable[[Any], tuple[Any, Any]],
    merge: str | None = None,
    ett: Callable[[Any, Any, Any], Any] | None = None,
    hint: str | None = None,
    timeColumn: Column | str | None = None,
    incremental: bool = False,
) -> CustomWindow:
    """Windows of your own over event time. A window fires when the watermark passes its end.

    Parameters
    ----------
    assigner : callable
        Maps a NumPy int64 array of instants (microseconds since 1970-01-01 00:00:00 UTC) to two arrays, the start and the
        end of each instant's window.
    merge : str, optional
        ``"overlapping"``: windows of one key that overlap or touch become one, as sessions do. By default windows are
        apart unless both bounds are equal.
    ett : callable, optional
        Maps starts, ends and instants to estimated trigger times (microseconds), by which state is laid out and read ahead
        (FlowKV, section 4.2). By default the ends.
    hint : str, optional
        ``"unaligned"``: each key has windows of its own, the default. ``"aligned"``: few windows are shared by all keys.
    timeColumn : Column or str, optional
        The event time. By default the column with the watermark; a batch DataFrame needs it.
    incremental : bool
        Refuse aggregates that need all rows of a window, so that state stays small whatever the rows are.

    Returns
    -------
    CustomWindow
        For `forebay.groupBy`. The result column is ``window``, a struct of ``start`` and ``end``.

    Examples
    --------
    >>> import forebay as fb
    >>> def shifts(times):  # a day shift from 6 to 18 o'clock UTC, and a night shift
    ...     hour = 3_600_000_000
    ...     start = (times - 6 * hour) // (12 * hour) * (12 * hour) + 6 * hour
    ...     return start, start + 12 * hour
    >>> jobs = spark.createDataFrame([("2024-05-01 07:00:00", 3), ("2024-05-01 19:00:00", 4)], "time string, parts int")
    >>> jobs = jobs.selectExpr("cast(time as timestamp) time", "parts")
    >>> by_shift = fb.groupBy(jobs, fb.custom_window(shifts, timeColumn="time")).agg(fb.sum("parts").alias("parts"))
    >>> by_shift.orderBy("window").select("window.start", "parts").show()
    +-------------------+-----+
    |              start|parts|
    +-------------------+-----+
    |2024-05-01 06:00:00|    3|
    |2024-05-01 18:00:00|    4|
    +-------------------+-----+
    <BLANKLINE>
    """
    if not callable(assigner):
        raise InvalidArgument(
            f"custom_window() got the assigner {assigner!r}; it must be a function from instants to windows"
        )
    if merge not in (None, "overlapping"):
        raise InvalidArgument(f"custom_window() got merge={merge!r}; it can be 'overlapping', or None")
    if hint not in (None, "aligned", "unaligned"):
        raise InvalidArgument(f"custom_window() got hint={hint!r}; it can be 'aligned', 'unaligned', or None")
    if hint == "aligned" and merge:
        raise InvalidArgument("custom_window() got hint='aligned' for windows that merge; those are never aligned")
    return CustomWindow(assigner, merge, ett, hint, timeColumn, flag("custom_window", "incremental", incremental))


def _rows(name: str, rows: Any) -> int:
    """The number of rows, also one of numpy's."""
    if not isinstance(rows, Integral) or isinstance(rows, bool) or not 1 <= int(rows) <= LARGEST_BOUND:
        raise InvalidArgument(f"{name} is {rows!r}; it must be a whole number of rows (an int), from 1 to {LARGEST_BOUND:,}")
    return int(rows)
