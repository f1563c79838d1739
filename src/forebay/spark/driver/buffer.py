"""``fb.buffer``: rows of a key that go on together."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.access_patterns import Choice, Pattern
from forebay.errors import InvalidArgument
from forebay.spark.driver.analysis import analysis, arrow_schema, require_columns, require_one_value
from forebay.spark.driver.columns import LARGEST_BOUND, Keys, column_of, fields_of, keys_of, quoted, text_of
from forebay.spark.driver.conf import Conf, ready, require_classic
from forebay.spark.driver.durations import Duration, microseconds, seconds
from forebay.spark.driver.inputs import Inputs, nullable_within, require_supported
from forebay.spark.driver.planner import Call, Key, Windowing, planned
from forebay.spark.driver.vehicle import run, run_within_tasks
from forebay.state.layout import key_names
from forebay.windows import TIME, Buffered

if TYPE_CHECKING:
    from forebay.aggregates.processor import Processor


def buffer(
    df: DataFrame,
    *keys: Keys,
    interval: Duration | None = None,
    maxRows: int = 100_000,
    maxBytes: int = 16 << 20,
    processor: Callable[[Any], Any] | None = None,
    schema: T.StructType | str | None = None,
) -> DataFrame:
    """Have rows of a key go on together, reduced by a function, so that a stateful operator after it has fewer rows to take.

    Without an interval rows wait for each other within a task of a micro-batch alone. That needs no shuffle and no state,
    and no row waits beyond its micro-batch. With an interval, what is beyond a micro-batch is state like any other: a key's
    rows go on at most once in an interval of wall time, all that came meanwhile together. A row that comes when none of its
    key have gone on for that long goes on at once, so that nothing waits while traffic is low. And rows go on when there
    are ``maxRows`` of their key, or ``maxBytes``.

    The order of a key's rows is kept. Restarts and another number of state partitions neither lose nor repeat a row.

    Parameters
    ----------
    df : DataFrame
        A stream, or a batch DataFrame, of which all rows go on at its end.
    *keys : Column or str
        Key columns or expressions, or lists of them. NULL is a key like any other.
    interval : str or timedelta, optional
        How long rows wait at most, for example ``"10 seconds"``. Spark then runs micro-batches all the time, data or not,
        so ``trigger(availableNow=True)`` does not end by itself. Give the watermark after the buffer, with a delay that is
        longer than the interval.
    maxRows, maxBytes : int
        So many rows and about so many bytes of a key, by the mean size of a row, go on together at most.
    processor : callable, optional
        ``processor(rows)``. ``rows`` has all columns of the DataFrame, as the type that the parameter is annotated with:
        ``polars.DataFrame`` (also without annotation), ``pandas.DataFrame`` or ``pyarrow.Table``. It has the rows of many
        keys, those of one key next to each other in the order in which they came. So it groups by the key itself, as a
        function of a whole table is much faster than a call for each key. It returns rows as any of the three. Without
        a processor rows go on as they are.
    schema : StructType or str, optional
        The columns that the processor returns; those of the DataFrame unless given.

    Returns
    -------
    DataFrame
        What the processor returns.

    Raises
    ------
    ForebayError
        Whatever could not run, with what to change. If the processor raises an error, or returns other columns than its
        schema has, the query stops with `ProcessorFailed`, which names the processor and the key; no row is lost.

    Examples
    --------
    >>> import forebay as fb
    >>> import polars as pl
    >>> views = spark.createDataFrame([("a", 1), ("b", 5), ("a", 2)], "tweet string, seconds int").coalesce(1)
    >>> def totals(rows: pl.DataFrame) -> pl.DataFrame:
    ...     return rows.group_by("tweet", maintain_order=True).agg(pl.len().alias("views"), pl.col("seconds").sum())
    >>> reduced = fb.buffer(views, "tweet", processor=totals, schema="tweet string, views long, seconds long")
    >>> reduced.orderBy("tweet").show()
    +-----+-----+-------+
    |tweet|views|seconds|
    +-----+-----+-------+
    |    a|    2|      3|
    |    b|    1|      5|
    +-----+-----+-------+
    <BLANKLINE>

    With an interval rows of a stream wait for each other beyond their micro-batch, those of a batch DataFrame until it ends:

    >>> calm = fb.buffer(views, "tweet", interval="10 seconds", maxRows=1000, processor=totals, schema=reduced.schema)
    >>> calm.orderBy("tweet").collect() == reduced.orderBy("tweet").collect()
    True
    """
    require_classic("buffer()", df)
    named = keys_of("buffer()", keys)
    if not named:
        raise InvalidArgument("buffer() needs at least one key: it says which rows go on together, in their order")
    for name, bound in (("maxRows", maxRows), ("maxBytes", maxBytes)):
        if isinstance(bound, bool) or not isinstance(bound, Integral) or not 1 <= bound <= LARGEST_BOUND:
            raise InvalidArgument(f"buffer() got {name}={bound!r}; a bound is a positive integer, {LARGEST_BOUND:,} at most")
    if processor is None and schema is not None:
        raise InvalidArgument("buffer() got a schema without a processor; without one, rows keep their columns")
    require_columns(df, named)
    conf = ready(df)
    found = df.schema.fields if schema is None else fields_of("buffer()", schema, "tweet string, views long")
    fields = T.StructType(list(map(nullable_within, found)))
    for field in fields:
        require_supported(field.dataType, f"the column {field.name} that leaves the buffer")
    wait = None if interval is None else microseconds(df.sparkSession, "interval", interval)
    if wait is not None and wait <= 0:
        raise InvalidArgument(f"interval {interval!r} is not positive; leave it out for a buffer within each micro-batch")
    return _bound(df, conf, named, wait, int(maxRows), int(maxBytes), processor, fields)


def _bound(
    df: DataFrame,
    conf: Conf,
    keys: tuple[Column | str, ...],
    wait: int | None,
    rows: int,
    size: int,
    function: Callable[[Any], Any] | None,
    fields: T.StructType,
) -> DataFrame:
    from forebay.aggregates.processor import Processor  # imports polars, which a worker must not do early

    columns = list(map(column_of, keys))
    inputs = Inputs(df)
    with analysis():
        require_one_value(df, columns)
        kinds = [field.dataType for field in df.select(*columns).schema.fields]
        shown = tuple(zip(inputs.add([F.col(quoted(name)) for name in df.columns]), df.columns, strict=True))
    for key, kind in zip(keys, kinds, strict=True):
        require_supported(kind, f"the key {text_of(key)}")
    names = key_names(len(keys))
    processor = Processor(function, names, shown, arrow_schema(fields), rows, size)
    call = Call(
        windowing=Windowing(Buffered(wait or 0, rows, size), "buffer", "buffer"),
        keys=[Key(text_of(key), column, kind) for key, column, kind in zip(keys, columns, kinds, strict=True)],
        times={TIME: F.timestamp_micros(F.lit(0))},
        packed=inputs.columns,
        aggregation=processor,
        reads={"rows": dict(inputs.types)},
        schema=fields,
        choice=Choice(Pattern.AUR, _reason(wait, processor)),
    )
    bound = planned(df, conf, call)
    return run_within_tasks(df, bound) if wait is None else run(df, bound, conf)


def _reason(wait: int | None, processor: Processor) -> str:
    return f"rows of a key wait for at most {seconds(wait or 0)}, {processor.rows} rows or {processor.size} bytes"
