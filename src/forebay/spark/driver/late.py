"""``fb.late``: the rows that an operator drops because they come too late."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.errors import InvalidArgument
from forebay.spark.driver.analysis import analysis
from forebay.spark.driver.columns import quoted
from forebay.spark.driver.conf import require_classic
from forebay.spark.driver.plans import uppermost
from forebay.spark.worker import stages
from forebay.spark.worker.clock import Clock, clock_of
from forebay.spark.worker.startup import Shipped
from forebay.state.layout import result_names
from forebay.windows import END, TIME, SharedWindows

if TYPE_CHECKING:
    from forebay.spark.driver.planner import BoundOperator

LATE_BY = "late_by"

_streams: OrderedDict[str, tuple[DataFrame, BoundOperator]] = OrderedDict()
"""The inputs and the operators of results, by the column of blobs that is in their plans; the newest ones."""

_batches: OrderedDict[str, tuple[T.StructType, BoundOperator]] = OrderedDict()
"""The same of batch DataFrames, but for what they are: one may be a micro-batch, whose rows Spark would keep."""

_REMEMBERED = 100
"""So many operators of each kind, as each keeps its input from being forgotten."""

_MARKED = "forebay_" + "0" * 12
"""A column of this name makes a query's tasks know its checkpoint, see `query.MARK`."""


def late(results: DataFrame) -> DataFrame:
    """The rows that an operator drops because all their windows have fired when they arrive, as a stream of its own.

    Write them beside the results, in the same query, so that both see the same watermark: see the example. What comes before
    the operator then runs twice, once for each: the source is read twice, and an operator between has its state twice. No
    state is kept for late rows. To another operator over event time they are late, too.
    Where the operator reads the results of a join of Spark's own, whose watermark is an earlier one, too many are given.

    Parameters
    ----------
    results : DataFrame
        What ``agg()``, a join or ``dedupe()`` has returned, or a DataFrame made of that.

    Returns
    -------
    DataFrame
        The columns of the operator's input and ``late_by``, an interval: how far the watermark had passed the end of the
        row's last window (of ``dedupe``, ``preceding`` and joins without windows: its time) in the micro-batch before. Had
        the delay of the watermark been longer by more than that, the row would have been in time. Of a join, rows of both
        sides, with the columns that its results have: those of the other side are NULL. Nothing is late in a batch
        DataFrame.

    Raises
    ------
    InvalidArgument
        If the DataFrame is not of such a kind, or if its windows do not depend on event time.

    Examples
    --------
    >>> import forebay as fb
    >>> from pyspark.sql import functions as F
    >>> ticks = spark.readStream.format("rate").load().withWatermark("timestamp", "10 seconds")
    >>> counts = fb.groupBy(ticks, fb.window("timestamp", "1 minute")).agg(fb.count("*").alias("n"))
    >>> late = fb.late(counts)
    >>> late.columns
    ['timestamp', 'value', 'late_by']
    >>> both = counts.select(F.struct("*").alias("count")).unionByName(
    ...     late.select(F.struct("*").alias("late")), allowMissingColumns=True)
    >>> def write(batch, number):
    ...     batch.persist()
    ...     batch.where("count is not null").select("count.*").write.mode("append").parquet("counts")
    ...     batch.where("late is not null").select("late.*").write.mode("append").parquet("late")
    ...     batch.unpersist()
    >>> writer = both.writeStream.foreachBatch(write)  # .option("checkpointLocation", ...).start()
    """
    require_classic("late()", results)
    found = [column for column in uppermost(_plan(results)) if not column.startswith(_MARKED)]
    if len(found) != 1:
        raise InvalidArgument(
            f"late() got a DataFrame made of the results of {len(found)} operators of forebay; take the late rows of what "
            "one of them has returned, or of what was made of that"
        )
    known, bound = _streams.get(found[0]) or _batches.get(found[0]) or (None, None)
    if known is None or bound is None:
        raise InvalidArgument(
            f"late() knows the newest {_REMEMBERED} operators of this session, and the one of these results is not among "
            "them; call late() sooner after it"
        )
    df = results.sparkSession.createDataFrame([], known) if isinstance(known, T.StructType) else known
    if isinstance(bound.plan.windows, SharedWindows):
        raise InvalidArgument(
            "late() cannot tell what an operator of several patterns drops: an event may be late for one and in time for "
            "another. Take late(fb.groupBy(...).agg(...)) of the pattern that matters."
        )
    if bound.plan.idle_timeout is not None:
        raise InvalidArgument("late() cannot tell what an operator with idleTimeout drops, which goes by the wall clock")
    if clock_of(bound.plan) is not Clock.WATERMARK:
        raise InvalidArgument(f"no row is ever late for {bound.layout['window']}, which does not depend on event time")
    columns = bound.rows or [F.col(quoted(name)) for name in df.columns]
    with analysis():
        fields = df.select(*columns).schema.fields
    if LATE_BY in (field.name.lower() for field in fields):
        raise InvalidArgument(f"the rows have a column {LATE_BY!r} already; rename it before they reach the operator")
    if not df.isStreaming:  # nothing is late in it
        return df.select(*columns, F.lit(None).cast(T.DayTimeIntervalType()).alias(LATE_BY))
    schema = T.StructType([*fields, T.StructField(LATE_BY, T.DayTimeIntervalType())])
    numbered = result_names(len(columns))
    placed = df.select(*bound.projection, *(column.alias(name) for column, name in zip(columns, numbered, strict=True)))
    times = [name for name in (TIME, END) if name in placed.columns]
    nested = placed.select(*times, *numbered).mapInArrow(
        stages.only_late(Shipped(bound.plan), schema.names, _MARKED), _nested(schema)
    )
    return nested.select(f"{_MARKED}.*")


def remember(results: DataFrame, df: DataFrame, bound: BoundOperator) -> DataFrame:
    """Note what the results of an operator are made of; the results."""
    for column in uppermost(_plan(results)):
        for known in (_streams, _batches):
            known.pop(column, None)  # it is the newest one again
        if df.isStreaming:
            _streams[column] = df, bound
        else:
            _batches[column] = df.schema, bound
    for known in (_streams, _batches):
        while len(known) > _REMEMBERED:
            known.popitem(last=False)
    return results


def _plan(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().analyzed().toString())


def _nested(schema: T.StructType) -> T.StructType:
    return T.StructType([T.StructField(_MARKED, schema)])
