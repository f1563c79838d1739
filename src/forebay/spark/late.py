"""``fb.late``: the rows that an operator drops because they come too late."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.errors import InvalidArgument
from forebay.spark import checkpoint, worker
from forebay.spark.timewindows import quoted

if TYPE_CHECKING:
    from forebay.spark.binding import BoundOperator

LATE_BY = "late_by"

_operators: weakref.WeakKeyDictionary[DataFrame, tuple[DataFrame, BoundOperator]] = weakref.WeakKeyDictionary()
"""The input and the operator of each DataFrame of results."""

_MARKED = "forebay_" + "0" * 12
"""A column of this name makes a query's tasks know its checkpoint, see `checkpoint.MARK`."""


def late(results: DataFrame) -> DataFrame:
    """The rows that an operator drops because all their windows have fired when they arrive, as a stream of its own.

    Write them beside the results, in the same query, so that both see the same watermark: see the example. What comes before
    the operator then runs twice, once for each: the source is read twice, and an operator between has its state twice. No
    state is kept for late rows. To another operator over event time they are late, too.
    Where the operator reads the results of a join of Spark's own, whose watermark is an earlier one, too many are given.

    Parameters
    ----------
    results : DataFrame
        What ``agg()``, a join or ``dedupe()`` has returned, before ``select()`` and the like.

    Returns
    -------
    DataFrame
        The columns of the operator's input and ``late_by``, an interval: how far the watermark had passed the end of the
        row's last window (of ``dedupe`` and of joins without windows: its time) in the micro-batch before. Had the delay of
        the watermark been longer by more than that, the row would have been in time. Of a join, rows of both sides, with
        the columns that its results have: those of the other side are NULL. Nothing is late in a batch DataFrame.

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
    if results not in _operators:
        raise InvalidArgument(
            "late() needs the very DataFrame that agg(), a join or dedupe() of forebay has returned; take its late rows "
            "before select(), where() and the like"
        )
    from forebay.spark.binding import analysis
    from forebay.spark.operator import Clock, clock_of
    from forebay.windows import END, TIME

    df, bound = _operators[results]
    if bound.plan.idle_timeout is not None:
        raise InvalidArgument("late() cannot tell what an operator with idleTimeout drops, which goes by the wall clock")
    if clock_of(bound.plan) is not Clock.WATERMARK:
        raise InvalidArgument(f"no row is ever late for {bound.layout['window']}, which does not depend on event time")
    columns = bound.rows or [F.col(quoted(name)) for name in df.columns]
    with analysis():
        fields = df.select(*columns).schema.fields
    if LATE_BY in (field.name.lower() for field in fields):
        raise InvalidArgument(f"the rows have a column {LATE_BY!r} already; rename it before they reach the operator")
    schema = T.StructType([*fields, T.StructField(LATE_BY, T.DayTimeIntervalType())])
    numbered = [f"c{place}" for place in range(len(columns))]
    placed = df.select(*bound.projection, *(column.alias(name) for column, name in zip(columns, numbered, strict=True)))
    times = [name for name in (TIME, END) if name in placed.columns]
    nested = placed.select(*times, *numbered).mapInArrow(
        _only_late(worker.dumps(bound.plan), schema.names, streaming=df.isStreaming), _nested(schema)
    )
    return nested.select(f"{_MARKED}.*")


def remember(results: DataFrame, df: DataFrame, bound: BoundOperator) -> DataFrame:
    """Note what the results of an operator are made of; the results."""
    _operators[results] = df, bound
    return results


def _nested(schema: T.StructType) -> T.StructType:
    return T.StructType([T.StructField(_MARKED, schema)])


def _only_late(
    pickled: bytes, names: list[str], *, streaming: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def only_late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batch = worker.local_property("streaming.sql.batchId")
        fired_until = checkpoint.watermark(int(batch) - 1) if streaming and batch else None
        if fired_until is None:
            return
        plan = worker.loads(pickled)
        from forebay.spark.pack import ends
        from forebay.windows import TIME

        for rows in (each.filter(each[TIME].is_valid()) for each in batches):
            by = fired_until * 1000 - ends(rows, plan)
            if (by >= 0).any():
                late = rows.filter(pa.array(by >= 0))
                by_how_much = pa.array(by[by >= 0]).cast(pa.duration("us"))
                columns = [late[f"c{place}"] for place in range(len(names) - 1)]
                whole = pa.StructArray.from_arrays([*columns, by_how_much], names)
                yield pa.record_batch([whole], [_MARKED])

    return only_late
