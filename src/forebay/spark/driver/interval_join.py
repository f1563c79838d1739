"""``fb.intervalJoin``: two streams, rows of which meet when they are close in time."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame

from forebay.errors import InvalidArgument
from forebay.spark.driver.durations import Duration, microseconds
from forebay.spark.driver.sides import join_type, require_joinable
from forebay.windows import Intervals

LEAST_GRANULARITY = 1_000_000
"""Rows wait at most a quarter of the interval too long, or this many microseconds."""


def intervalJoin(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    lower: Duration,
    upper: Duration,
    how: str = "inner",
    suffix: str = "_right",
    timeColumn: Column | str | tuple[Column | str, Column | str] | None = None,
) -> DataFrame:
    """Join two streams: rows meet that have equal keys and whose times are not too far apart.

    A left row at ``t`` meets the right rows from ``t + lower`` to ``t + upper``, both included. A pair is emitted in the
    micro-batch in which the second of its rows arrives, in append mode. A row is forgotten when no partner of it can come
    any more (Gadget, section 2.2; Flink's interval join).

    Parameters
    ----------
    left, right : DataFrame
        Streams with watermarks, or two batch DataFrames.
    on : str or sequence of str
        Key columns that both sides have, with the same types. NULL equals nothing, as in SQL.
    lower, upper : str or timedelta
        Bounds for the right row's time minus the left row's, such as ``"-2 minutes"`` and ``"3 minutes"``.
    how : str
        ``inner``, ``left``, ``right``, ``full``, ``semi`` or ``anti``, or what Spark calls them besides. Rows without a
        partner are emitted when they are forgotten; those without a time have none, and are emitted at once.
    suffix : str
        What is appended to names of right columns that the left side has too.
    timeColumn : str, Column or pair of them, optional
        The time column of both sides, or of each. The default is the one with the watermark; batch DataFrames have none.

    Returns
    -------
    DataFrame
        ``event_time``, the keys, the other columns of the left side, and (but for ``semi`` and ``anti``) of the right side.
        ``event_time`` is the later of the times of a pair. For a row by itself it is the time after which no partner can
        come, rounded up to a quarter of the interval, at least a second, or NULL if the row has no time. It has the
        watermark, so windows can follow. A column of that name of either side gives way to it.

    Raises
    ------
    ForebayError
        Whatever could not run, with what to change.

    Examples
    --------
    >>> import forebay as fb
    >>> orders = [("10:00:00", 1, "lamp"), ("10:00:05", 2, "sofa")]
    >>> orders = spark.createDataFrame(orders, "time string, id int, item string")
    >>> paid = [("10:01:00", 1, 30), ("10:09:00", 2, 99)]
    >>> paid = spark.createDataFrame(paid, "time string, id int, amount int")
    >>> orders, paid = (df.selectExpr("to_timestamp('2024-05-01 ' || time) at", "*") for df in (orders, paid))
    >>> joined = fb.intervalJoin(
    ...     orders, paid, on="id", lower="0 seconds", upper="5 minutes", how="left", timeColumn="at")
    >>> joined.orderBy("id").select("event_time", "id", "item", "amount").show()
    +-------------------+---+----+------+
    |         event_time| id|item|amount|
    +-------------------+---+----+------+
    |2024-05-01 10:01:00|  1|lamp|    30|
    |2024-05-01 10:06:15|  2|sofa|  NULL|
    +-------------------+---+----+------+
    <BLANKLINE>
    """
    from forebay.spark.driver.row_join import EVENT_TIME, RowJoin  # imports polars, which a worker must not do early

    keys, kind = require_joinable("intervalJoin()", left, right, on, (EVENT_TIME,)), join_type("intervalJoin()", how)
    bounds = [microseconds(left.sparkSession, name, text) for name, text in (("lower", lower), ("upper", upper))]
    if bounds[0] > bounds[1]:
        raise InvalidArgument(f"lower {lower!r} is more than upper {upper!r}, so no row would meet another")
    intervals = Intervals(bounds[0], bounds[1], max((bounds[1] - bounds[0]) // 4, LEAST_GRANULARITY))
    join = RowJoin(left, right, keys, kind, suffix, timeColumn)
    return join.run(
        lambda mark: intervals,
        "interval_join",
        f"interval of {bounds[0]} to {bounds[1]} us",
        "rows wait for partners, and those of a key are read when one comes",
        waits=(_wait(bounds[1], kind in ("left", "full", "semi", "anti")), _wait(-bounds[0], kind in ("right", "full"))),
    )


def _wait(partners: int, shown: bool) -> int:
    """For how long after its time a row waits; one that may be shown by itself has an event time not before its own."""
    return max(0, partners) if shown else partners
