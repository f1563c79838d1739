"""``fb.join``: two streams joined within windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from forebay.errors import InvalidArgument, UnknownColumn
from forebay.spark.groupby import ready, require_classic, run
from forebay.spark.timewindows import CustomWindow, SessionWindow, TimeWindow, quoted, text_of

JoinType = Literal["inner", "left", "right", "full", "semi", "anti"]

WINDOWS = ("window", "session_window")
"""Columns of either side that give way to the window of the join."""


def join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    window: TimeWindow | SessionWindow | CustomWindow,
    how: JoinType = "inner",
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
        ``inner``, ``left``, ``right``, ``full``, ``semi`` or ``anti``; an outer join gives rows without a partner in
        their window when it fires.
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
    from forebay.spark.binding import analysis, bind, time_of  # imports polars, which a worker must not do too early
    from forebay.spark.sides import TIME, united

    keys = require_joinable("join()", left, right, on, how, WINDOWS)
    if not isinstance(window, TimeWindow | SessionWindow | CustomWindow):
        raise InvalidArgument(f"join() got {window!r} for its window; write for example fb.window('time', '1 hour')")
    if isinstance(window, SessionWindow) and isinstance(window.gap_duration, Column):
        raise InvalidArgument("join() needs a session_window with one gap for both sides, such as '5 minutes'")
    conf = ready(left)
    times = time_of(left, window.time_column), time_of(right, window.time_column)
    require_same_type("the time", *(df.select(time.alias("time")) for df, time in zip((left, right), times, strict=True)))
    with analysis():
        both, sides = united(left, right, keys, times, how, suffix)
    bound = bind(
        both, replace(window, time_column=TIME), [key if key.isidentifier() else quoted(key) for key in keys], sides, conf
    )
    shown = bound.layout["window"].replace(TIME, " = ".join(dict.fromkeys(map(text_of, times))))
    return run(both, replace(bound, layout={**bound.layout, "window": shown}, rows=sides.rows(keys)), conf)


def require_joinable(
    name: str, left: DataFrame, right: DataFrame, on: str | Sequence[str], how: str, reserved: Sequence[str]
) -> list[str]:
    """The keys of a join that can be; `InvalidArgument` or `UnknownColumn` if it cannot."""
    for df in (left, right):
        require_classic(name, df)
    keys = [on] if isinstance(on, str) else list(on)
    if how not in get_args(JoinType):
        raise InvalidArgument(f"{name} got how={how!r}; it can be {', '.join(get_args(JoinType))}")
    if left.isStreaming != right.isStreaming:
        raise InvalidArgument(
            f"{name} got a stream and a batch DataFrame. Join them with DataFrame.join: Spark needs no state for that."
        )
    if not keys:
        raise InvalidArgument(f"{name} needs at least one key column in on=")
    for key in keys:
        for df, side in ((left, "left"), (right, "right")):
            if key not in df.columns:
                raise UnknownColumn(f"the {side} side has no column {key!r}; it has {', '.join(df.columns)}")
        if key.lower() in reserved:
            raise InvalidArgument(f"the result has a column {key!r} of its own; leave it out of on=, or rename it")
        require_same_type(f"the key {key!r}", *(df.select(F.col(quoted(key))) for df in (left, right)))
    return keys


def require_same_type(what: str, left: DataFrame, right: DataFrame) -> None:
    """`InvalidArgument` unless the only columns of two DataFrames, that are ``what``, have one type."""
    kinds = [df.schema.fields[0].dataType.simpleString() for df in (left, right)]
    if kinds[0] != kinds[1]:
        raise InvalidArgument(f"{what} is {kinds[0]} on the left side and {kinds[1]} on the right; cast one of them")
