"""``fb.dedupe``: the first row of each key."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from forebay.errors import InvalidArgument
from forebay.spark.groupby import ready, require_classic, run
from forebay.spark.timewindows import interval, microseconds, quoted, text_of


def dedupe(df: DataFrame, keys: str | Column | Sequence[str | Column], within: str) -> DataFrame:
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
    within : str
        How long a key is remembered, for example ``"1 hour"``.

    Returns
    -------
    DataFrame
        The rows that are kept, with the columns of ``df``. The event time keeps its watermark, so windows can follow. Rows
        at or before the watermark of the previous micro-batch are late, and are dropped; so are rows of a stream without an
        event time.

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
    from forebay.patterns import Choice, Pattern
    from forebay.spark.binding import BoundOperator, analysis, arrow_schema, time_of
    from forebay.spark.inputs import identity, require_supported
    from forebay.windowing import WindowPlan
    from forebay.windows import END, HIGH, LOW, TIME, FirstRows

    require_classic("dedupe()", df)
    columns = [F.col(key) if isinstance(key, str) else key for key in ([keys] if isinstance(keys, str | Column) else keys)]
    if not columns:
        raise InvalidArgument("dedupe() needs at least one key")
    conf = ready(df)
    duration = microseconds(df.sparkSession, "within", within)
    if duration <= 0:
        raise InvalidArgument(f"within {within!r} is not positive")
    time = F.timestamp_micros(F.lit(0))
    with analysis():
        fields = df.select(*columns).schema.fields
        if df.isStreaming:
            time = time_of(df, None)
    for field in (*fields, *df.schema.fields):
        require_supported(field.dataType, field.name)
    high, low = identity(columns, [field.dataType for field in fields])
    rows = [F.col(quoted(name)).alias(f"a{place}") for place, name in enumerate(df.columns)]
    names = tuple(f"k{place}" for place in range(len(columns)))
    with analysis():
        schema, packed = (arrow_schema(each.schema) for each in (df, df.select(*rows)))
    bound = BoundOperator(
        projection=[
            time.alias(TIME),
            high.alias(HIGH),
            low.alias(LOW),
            (time + interval(duration)).alias(END),
            *(column.alias(name) for name, column in zip(names, columns, strict=True)),
            *rows,
        ],
        plan=WindowPlan(
            FirstRows(), packed, (), Aggregation((), ()), Pattern.RMW, schema, conf.options, identified_by=names
        ),
        schema=df.schema,
        layout={
            "window": f"dedupe(within {duration} us)",
            "keys": [f"{text_of(key)} {field.dataType.simpleString()}" for key, field in zip(columns, fields, strict=True)],
            "aggregates": {"first row": {}},
            "pattern": Pattern.RMW.name,
            "instancesPerPartition": conf.instances_per_partition,
        },
        choice=Choice(Pattern.RMW, "that a key is known is all that is kept of it"),
    )
    return run(df, bound, conf)
