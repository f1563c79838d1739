"""The vehicle of an operator: a chain of stock Spark operators, over a stream or over a batch DataFrame.

source rows -> pack (mapInArrow) -> shuffle of blobs -> operator (transformWithStateInPandas) -> unpack (mapInArrow)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from forebay.spark.driver import listener, metrics, query, replicas
from forebay.spark.driver.conf import WATERMARK, Conf
from forebay.spark.driver.late import remember
from forebay.spark.driver.query import Planned
from forebay.spark.worker import stages, startup
from forebay.spark.worker.clock import Clock, clock_of
from forebay.spark.worker.operator import EVENT_TIME, WindowOperator
from forebay.spark.worker.stages import PAYLOAD, VNODE
from forebay.windows import FirstRows

if TYPE_CHECKING:
    from forebay.spark.driver.planner import BoundOperator


def run(df: DataFrame, bound: BoundOperator, conf: Conf) -> DataFrame:
    """The results of an operator over a stream, or over a batch DataFrame."""
    return remember(_stream(df, bound, conf) if df.isStreaming else _batch(df, bound, conf), df, bound)


def run_within_tasks(df: DataFrame, bound: BoundOperator) -> DataFrame:
    """The results of a buffer that keeps nothing from one micro-batch to the next: no shuffle, and no state."""
    read = [*bound.plan.packed.names]
    results = df.select(*bound.projection).select(*read).mapInArrow(stages.buffer(startup.dumps(bound.plan)), bound.schema)
    times = {field.name: field.metadata for field in df.schema.fields if WATERMARK in field.metadata}
    placed = [f"c{place}" for place in range(len(bound.schema))]  # names may be repeated, or have dots in them
    columns = [
        F.col(name).alias(field.name, **({"metadata": times[field.name]} if field.name in times else {}))
        for name, field in zip(placed, bound.schema.fields, strict=True)
    ]
    return results.toDF(*placed).select(*columns)


def _stream(df: DataFrame, bound: BoundOperator, conf: Conf) -> DataFrame:
    plan = startup.dumps(bound.plan)
    place = replicas.place_of(df.sparkSession, conf)
    chained = bool(query.MARK.search(df._jdf.queryExecution().logical().toString()))
    output = query.note(Planned(bound.layout, bound.choice, place, chained, clock_of(bound.plan)))
    listener.watch(df.sparkSession)
    reporter = metrics.reporter(df.sparkSession)
    operator = WindowOperator(plan, bound.layout, place, output, reporter, idle=bound.plan.idle_timeout is not None)
    packed = df.select(*bound.projection).mapInArrow(
        stages.packer(plan, place, bound.layout, streaming=True, reporter=reporter), f"{VNODE} int, {PAYLOAD} binary"
    )
    clock = clock_of(bound.plan)
    event_time = EVENT_TIME if clock is Clock.WATERMARK else ""
    emitted = packed.groupBy(VNODE).transformWithStateInPandas(
        operator, f"{output} binary, {EVENT_TIME} timestamp", "append", clock.value, eventTimeColumnName=event_time
    )
    results = emitted.mapInArrow(stages.unpack, bound.schema)
    return _with_time(results, bound)


def _with_time(results: DataFrame, bound: BoundOperator) -> DataFrame:
    """The results with what marks a column as a window or an event time, and its watermark, for whatever reads them."""
    if clock_of(bound.plan) is not Clock.WATERMARK:
        return results
    fields = bound.schema.fields
    passing = len(fields) if isinstance(bound.plan.windows, FirstRows) else 1
    told = [field.metadata if place < passing else None for place, field in enumerate(fields)]
    placed = [f"c{place}" for place in range(len(fields))]  # names may be repeated, or have dots in them
    columns = [
        F.col(name).alias(field.name, **({"metadata": metadata} if metadata else {}))
        for name, field, metadata in zip(placed, fields, told, strict=True)
    ]
    return results.toDF(*placed).select(*columns)


def _batch(df: DataFrame, bound: BoundOperator, conf: Conf) -> DataFrame:
    plan = startup.dumps(bound.plan)
    output = query.note_batch(Planned(bound.layout, bound.choice, conf.place))
    results = (
        df.select(*bound.projection)
        .mapInArrow(stages.packer(plan, conf.place, bound.layout, streaming=False), f"{VNODE} int, {PAYLOAD} binary")
        .groupBy(VNODE)
        .applyInArrow(stages.batch_operator(plan, conf.place, output), f"{output} binary")
        .mapInArrow(stages.unpack, bound.schema)
    )
    return _with_time(results, bound)
