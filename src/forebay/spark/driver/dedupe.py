"""``fb.dedupe``: the first row of each key."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.access_patterns import Choice, Pattern
from forebay.errors import InvalidArgument
from forebay.spark.driver.analysis import analysis, require_one_value, time_of
from forebay.spark.driver.columns import column_of, interval, keys_of, lasting, quoted, text_of
from forebay.spark.driver.conf import ready, require_classic
from forebay.spark.driver.durations import Duration, positive_microseconds
from forebay.spark.driver.inputs import nullable_within, require_carried, require_supported
from forebay.spark.driver.planner import Call, Key, Windowing, planned
from forebay.spark.driver.vehicle import run
from forebay.windows import FirstRows


def dedupe(df: DataFrame, keys: str | Column | Sequence[str | Column], within: Duration) -> DataFrame:
    """The first row of each key, in order of arrival; the rows of that key that follow are dropped.

    A row is emitted in the micro-batch in which it arrives. Its key is known until the watermark reaches the row's event
    time plus ``within``, and what comes with that key meanwhile is dropped. So of rows that are less than ``within`` apart
    in event time only one is kept, and one that is further apart may be dropped while the watermark is behind. This is
    Spark's ``dropDuplicatesWithinWatermark`` with a duration of its own. State is the keys, not the rows; the rows that a
    micro-batch keeps must fit into the worker's memory.

    Parameters
    ----------
    df : DataFrame
        A stream with a watermark, or a batch DataFrame, of which the first row of each key is kept.
    keys : str, Column or sequence of them
        What rows are compared by. NULL is a value like any other.
    within : str or timedelta
        How long a key is remembered, for example ``"1 hour"``.

    Returns
    -------
    DataFrame
        The rows that are kept, with the columns of ``df``. The event time keeps its watermark, so windows can follow. Rows
        at or before the watermark of the previous micro-batch are late, and are dropped. Rows of a stream that have no event
        time never are; their keys are remembered until a micro-batch that has a watermark has ended, as in Spark.

    Raises
    ------
    ForebayError
        Whatever could not run, with what to change.

    Examples
    --------
    >>> import forebay as fb
    >>> visits = spark.createDataFrame([(1, "ann"), (2, "bob"), (3, "ann")], "id int, name string").coalesce(1)
    >>> fb.dedupe(visits, "name", within="1 hour").orderBy("id").select("id").show()
    +---+
    | id|
    +---+
    |  1|
    |  2|
    +---+
    <BLANKLINE>
    """
    from forebay.aggregates.aggregation import Aggregation  # imports polars, which a worker must not do early

    require_classic("dedupe()", df)
    columns = list(map(column_of, keys_of("dedupe()", [keys])))
    if not columns:
        raise InvalidArgument("dedupe() needs at least one key")
    conf = ready(df)
    duration = positive_microseconds(df.sparkSession, "within", within)
    time = F.timestamp_micros(F.lit(0))
    with analysis():
        require_one_value(df, columns)
        fields = df.select(*columns).schema.fields
        if df.isStreaming:
            time = time_of(df, None)
    for field in fields:
        require_supported(field.dataType, field.name)
    for field in df.schema.fields:
        require_carried(field.dataType, field.name)
    rows = [F.col(quoted(name)).alias(f"a{place}") for place, name in enumerate(df.columns)]
    call = Call(
        windowing=Windowing(FirstRows(), "dedupe", f"dedupe(within {duration} us)", event_time=text_of(time)),
        keys=[Key(text_of(column), column, field.dataType) for column, field in zip(columns, fields, strict=True)],
        times=lasting(time, interval(duration)),
        packed=rows,
        aggregation=Aggregation((), ()),
        reads={"first row": {}},
        schema=T.StructType([nullable_within(field) for field in df.schema.fields]),
        choice=Choice(Pattern.RMW, "that a key is known is all that is kept of it"),
        stored_keys=False,
    )
    return run(df, planned(df, conf, call), conf)
