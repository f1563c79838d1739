"""``fb.join``: two streams joined within windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame

from forebay.errors import InvalidArgument, UnknownColumn
from forebay.spark.driver.analysis import analysis
from forebay.spark.driver.assignments import CustomWindow, SessionWindow, TimeWindow
from forebay.spark.driver.columns import got, quoted, text_of
from forebay.spark.driver.conf import ready
from forebay.spark.driver.sides import TIME, WINDOWS, join_type, require_joinable, times_of, united
from forebay.spark.driver.vehicle import run


def join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    window: TimeWindow | SessionWindow | CustomWindow,
    how: str = "inner",
    suffix: str = "_right",
) -> DataFrame:
    """Join two streams: rows meet that have equal keys and are in the same window.

    Results of a window are emitted once, when it fires, in append mode. Sessions are those of the rows of both sides
    together. The watermark is Spark's for a query with several sources, the earliest of them unless
    ``spark.sql.streaming.multipleWatermarkPolicy`` is ``max``; so a side that is behind makes the other one wait in state.

    Parameters
    ----------
    left, right : DataFrame
        Streams whose time columns have watermarks, or two batch DataFrames.
    on : str or sequence of str
        Key columns that both sides have, with the same types. NULL equals nothing, as in SQL.
    window : Window
        `window`, `session_window` with a fixed gap, or `custom_window`. Its time column is looked up in both sides.
    how : str
        ``inner``, ``left``, ``right``, ``full``, ``semi`` or ``anti``, or what Spark calls them besides; an outer join gives
        rows without a partner in their window when it fires.
    suffix : str
        What is appended to names of right columns that the left side has too.

    Returns
    -------
    DataFrame
        The window, the keys, the other columns of the left side, those of the right side (but for ``semi`` and ``anti``).
        Columns ``window`` and ``session_window`` of either side give way to the window of the join.

    Raises
    ------
    ForebayError
        Whatever could not run, with what to change.

    Examples
    --------
    >>> import forebay as fb
    >>> offers = [("10:00:01", 1, "lamp"), ("10:00:03", 2, "sofa")]
    >>> offers = spark.createDataFrame(offers, "time string, id int, item string")
    >>> bids = [("10:00:02", 1, 30), ("10:00:04", 1, 35), ("10:05:00", 2, 99)]
    >>> bids = spark.createDataFrame(bids, "time string, id int, price int")
    >>> offers, bids = (df.selectExpr("to_timestamp('2024-05-01 ' || time) at", "*") for df in (offers, bids))
    >>> sold = fb.join(offers, bids, on="id", window=fb.window("at", "1 minute"), how="left")
    >>> sold.orderBy("id", "price").select("window.start", "id", "item", "price").show()
    +-------------------+---+----+-----+
    |              start| id|item|price|
    +-------------------+---+----+-----+
    |2024-05-01 10:00:00|  1|lamp|   30|
    |2024-05-01 10:00:00|  1|lamp|   35|
    |2024-05-01 10:00:00|  2|sofa| NULL|
    +-------------------+---+----+-----+
    <BLANKLINE>
    """
    from forebay.spark.driver.binding import bind  # imports polars, which a worker must not do too early

    keys, kind = require_joinable("join()", left, right, on, WINDOWS), join_type("join()", how)
    if not isinstance(window, TimeWindow | SessionWindow | CustomWindow):
        raise InvalidArgument(f"join() got {got(window)} for its window; write for example fb.window('time', '1 hour')")
    if isinstance(window, SessionWindow) and isinstance(window.gap_duration, Column):
        raise InvalidArgument("join() needs a session_window with one gap for both sides, such as '5 minutes'")
    conf = ready(left)
    try:
        times = times_of(left, right, window.time_column, window.time_column)
    except UnknownColumn as error:
        raise UnknownColumn(f"{error}. The window's time has one name on both sides; rename one") from None
    with analysis():
        both, sides = united(left, right, keys, times, kind, suffix)
    bound = bind(
        both, replace(window, time_column=TIME), [key if key.isidentifier() else quoted(key) for key in keys], sides, conf
    )
    shown = bound.layout["window"].replace(TIME, " = ".join(dict.fromkeys(map(text_of, times))))
    return run(both, replace(bound, layout={**bound.layout, "window": shown}, rows=sides.rows(keys)), conf)
