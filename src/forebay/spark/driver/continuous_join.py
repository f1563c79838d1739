"""``fb.continuousJoin``: two streams, rows of which meet while their key lives."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.errors import InvalidArgument, UnknownColumn
from forebay.spark.driver.analysis import analysis, require_one_value
from forebay.spark.driver.columns import text_of
from forebay.spark.driver.interval_join import LEAST_GRANULARITY
from forebay.spark.driver.sides import require_joinable
from forebay.windows import Lives

_UNTIL = "__until"


def continuousJoin(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    until: Column | str,
    suffix: str = "_right",
    timeColumn: Column | str | tuple[Column | str, Column | str] | None = None,
) -> DataFrame:
    """Join two streams: rows of a key meet until an event ends the key's life.

    A row is valid from its time to that of the first row of its key, of either side, for which ``until`` is true: the ride
    until the drop-off, the job until it has finished. Two rows of different sides meet if the earlier one is still valid at
    the time of the later one; the row that ends a life is the last one to meet what is valid. What comes after it begins a
    new life. A pair is emitted when the watermark has passed its later row, as only then all ends before it are known. State
    has the rows that are valid, so a key that never ends stays (Gadget, section 2.2).

    Parameters
    ----------
    left, right : DataFrame
        Streams with watermarks, or two batch DataFrames. Rows without a time are dropped.
    on : str or sequence of str
        Key columns that both sides have, with the same types. NULL equals nothing, as in SQL.
    until : Column or str
        A condition, as a column or as SQL, on columns of both sides or of one; the rows of the other side then end nothing.
    suffix : str
        What is appended to names of right columns that the left side has too.
    timeColumn : str, Column or pair of them, optional
        The time column of both sides, or of each. The default is the one with the watermark; batch DataFrames have none.

    Returns
    -------
    DataFrame
        ``event_time``, the later of the times of a pair; the keys, the other columns of the left side and of the right side.
        ``event_time`` has the watermark, so windows can follow. A column of that name of either side gives way to it.

    Raises
    ------
    ForebayError
        Whatever could not run, with what to change.

    Examples
    --------
    >>> import forebay as fb
    >>> rides = [("10:00", 1, "pick-up"), ("10:20", 1, "drop-off"), ("10:30", 1, "pick-up")]
    >>> rides = spark.createDataFrame(rides, "time string, taxi int, event string")
    >>> fares = [("10:05", 1, 12), ("10:25", 1, 7), ("10:31", 1, 5)]
    >>> fares = spark.createDataFrame(fares, "time string, taxi int, fare int")
    >>> rides, fares = (df.selectExpr("to_timestamp('2024-05-01 ' || time) at", "*") for df in (rides, fares))
    >>> paid = fb.continuousJoin(rides, fares, on="taxi", until="event = 'drop-off'", timeColumn="at")
    >>> paid.orderBy("event_time").select("event_time", "event", "fare").show()
    +-------------------+--------+----+
    |         event_time|   event|fare|
    +-------------------+--------+----+
    |2024-05-01 10:05:00| pick-up|  12|
    |2024-05-01 10:20:00|drop-off|  12|
    |2024-05-01 10:30:00| pick-up|   7|
    |2024-05-01 10:31:00| pick-up|   5|
    +-------------------+--------+----+
    <BLANKLINE>
    """
    from forebay.spark.driver.row_join import EVENT_TIME, RowJoin  # imports polars, which a worker must not do early

    keys = require_joinable("continuousJoin()", left, right, on, (EVENT_TIME,))
    ends, text = _ends(left, right, until)
    return RowJoin(left, right, keys, "inner", suffix, timeColumn).run(
        lambda marks: Lives(marks[_UNTIL], LEAST_GRANULARITY),
        "continuous_join",
        f"lives until {text}",
        "rows are valid until their key's life ends, and those of a key are read when another one comes",
        marks={_UNTIL: ends},
    )


def _ends(left: DataFrame, right: DataFrame, until: Column | str) -> tuple[tuple[Column, Column], str]:
    """The condition over rows of each side, false where a side lacks its columns; and its text."""
    if not isinstance(until, Column | str):
        raise InvalidArgument(f"continuousJoin() got until={until!r}; write a condition, such as \"event = 'end'\"")
    found: list[Column | None] = []
    errors: list[UnknownColumn] = []
    for df in (left, right):
        try:
            with analysis():
                condition = F.expr(until) if isinstance(until, str) else until
                require_one_value(df, [condition], "condition")
                kind = df.select(condition).schema.fields[0].dataType
            found.append(F.coalesce(condition, F.lit(False)))
        except UnknownColumn as error:
            errors.append(error)
            found.append(None)
            continue
        if not isinstance(kind, T.BooleanType):
            raise InvalidArgument(f"until is a {kind.simpleString()}, not a condition")
    if len(errors) == 2:
        raise errors[0]
    first, second = (F.lit(False) if condition is None else condition for condition in found)
    return (first, second), until if isinstance(until, str) else text_of(until)
