"""The vehicle of an operator: a chain of stock Spark operators, over a stream or over a batch DataFrame.

A stream: source rows -> pack (mapInArrow) -> shuffle of blobs -> operator (transformWithStateInPandas)

A batch DataFrame: source rows -> pack (mapInArrow) -> shuffle of blobs -> operator (applyInArrow) -> unpack (mapInArrow)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.errors import InvalidArgument
from forebay.spark.driver import early, listener, metrics, narrow, plans, query, replicas
from forebay.spark.driver.conf import WATERMARK, Conf
from forebay.spark.driver.late import remember
from forebay.spark.driver.query import Planned
from forebay.spark.worker import stages
from forebay.spark.worker.clock import Clock, clock_of
from forebay.spark.worker.emitted import EVENT_TIME
from forebay.spark.worker.operator import Work
from forebay.spark.worker.stages import PAYLOAD, VNODE
from forebay.spark.worker.startup import Shipped
from forebay.spark.worker.stateful_processor import WindowProcessor
from forebay.state.layout import result_names
from forebay.windows import FirstRows

if TYPE_CHECKING:
    from forebay.spark.driver.planner import BoundOperator


def run(df: DataFrame, bound: BoundOperator, conf: Conf, conditions: tuple[str, ...] = ()) -> DataFrame:
    """The results of an operator over a stream, or over a batch DataFrame; ``conditions`` are shown with it."""
    with _telling_what_cannot_be_sent():
        return remember((_stream if df.isStreaming else _batch)(df, bound, conf, conditions), df, bound)


def run_within_tasks(df: DataFrame, bound: BoundOperator) -> DataFrame:
    """The results of a buffer that keeps nothing from one micro-batch to the next: no shuffle, and no state."""
    read = [*bound.plan.packed.names]
    with _telling_what_cannot_be_sent():
        buffered = stages.buffer(Shipped(bound.plan))
        results = df.select(*bound.projection).select(*read).mapInArrow(buffered, _by_place(bound.schema))
    times = {field.name: field.metadata for field in df.schema.fields if WATERMARK in field.metadata}
    return _named(results, bound.schema, [times.get(name) for name in bound.schema.names])


@contextlib.contextmanager
def _telling_what_cannot_be_sent() -> Iterator[None]:
    """`InvalidArgument` in place of the `PicklingError` for a function that workers are to be sent."""
    try:
        yield
    except PicklingError as error:
        told = str(error).rstrip(".")
        raise InvalidArgument(
            f"a function of the query cannot be sent to Python workers: {told}. What it uses goes with it, so make locks, "
            "connections and sessions inside of it."
        ) from error


def _stream(df: DataFrame, bound: BoundOperator, conf: Conf, conditions: tuple[str, ...]) -> DataFrame:
    plan = Shipped(bound.plan)
    place = replicas.place_of(df.sparkSession, conf)
    chained = plans.count(df._jdf.queryExecution().analyzed().toString()) > 0
    clock = clock_of(bound.plan)
    rows = df.select(*bound.projection)
    output = query.note(Planned(bound.layout, bound.choice, place, chained, clock, conditions, narrow.row_bytes(rows)))
    listener.watch(df.sparkSession)
    reporter = metrics.reporter(df.sparkSession)
    # Tasks of an operator run in every micro-batch, and with them those of pack that read its results.
    timers = not (chained and clock is Clock.WATERMARK) or conf.chained_timers
    work = Shipped(Work(bound.plan, bound.layout, place, output, reporter, timers), stateful=True)
    processor = WindowProcessor(work, idle=bound.plan.idle_timeout is not None)
    packed = rows.mapInArrow(
        stages.packer(plan, place, bound.layout, streaming=True, reporter=reporter), f"{VNODE} int, {PAYLOAD} binary"
    )
    event_time = EVENT_TIME if clock is Clock.WATERMARK else ""
    beside = [T.StructField(output, T.BinaryType()), T.StructField(EVENT_TIME, T.TimestampType())]
    emitted = packed.groupBy(VNODE).transformWithStateInPandas(
        processor,
        T.StructType([*beside, *_by_place(bound.schema).fields]),
        "append",
        (clock if timers else Clock.NONE).value,
        eventTimeColumnName=event_time,
    )
    early.start(df.sparkSession)
    return _named(emitted, bound.schema, _told(bound))


def _told(bound: BoundOperator) -> list[dict[str, Any] | None]:
    """What is told of each column beside its type: that it is a window or an event time, and its watermark.

    Operators that go by the wall clock hand on no watermark.
    """
    fields, clock = bound.schema.fields, clock_of(bound.plan)
    if clock is Clock.WALL:
        return [{name: value for name, value in field.metadata.items() if name != WATERMARK} for field in fields]
    every = clock is not Clock.WATERMARK or isinstance(bound.plan.windows, FirstRows)
    return [field.metadata if every or place == 0 else None for place, field in enumerate(fields)]


def _named(results: DataFrame, schema: T.StructType, told: list[dict[str, Any] | None]) -> DataFrame:
    """The results with the user's names, and what is told of each column for whatever reads them."""
    columns = zip(result_names(len(told)), schema.names, told, strict=True)
    return results.select(
        *(F.col(column).alias(name, **({"metadata": metadata} if metadata else {})) for column, name, metadata in columns)
    )


def _by_place(schema: T.StructType) -> T.StructType:
    """A schema whose columns are called by their places: those of users may have the same name, or dots in it."""
    named = zip(result_names(len(schema)), schema.fields, strict=True)
    return T.StructType([T.StructField(name, field.dataType, field.nullable) for name, field in named])


def _batch(df: DataFrame, bound: BoundOperator, conf: Conf, conditions: tuple[str, ...]) -> DataFrame:
    plan = Shipped(bound.plan)
    output = query.note_batch(Planned(bound.layout, bound.choice, conf.place, conditions=conditions))
    results = (
        df.select(*bound.projection)
        .mapInArrow(stages.packer(plan, conf.place, bound.layout, streaming=False), f"{VNODE} int, {PAYLOAD} binary")
        .groupBy(VNODE)
        .applyInArrow(stages.batch_operator(plan, conf.place, output), f"{output} binary")
        .mapInArrow(stages.unpack, _by_place(bound.schema))
    )
    return _named(results, bound.schema, _told(bound))
