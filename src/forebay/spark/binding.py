"""Binding: window, keys and aggregates of a call to the columns and types of a DataFrame.

Spark itself analyses the equivalent batch query. So names, types and NULL rules of the result are Spark's, and what Spark
refuses is refused here with Spark's reason.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import HOLISTIC
from forebay.aggregates.functions import Aggregate, Apply
from forebay.aggregates.user_defined import UserFunction
from forebay.errors import InvalidArgument, MissingWatermark, UnknownColumn, UnsupportedType
from forebay.patterns import Choice, choose
from forebay.spark.conf import Conf
from forebay.spark.inputs import Inputs, require_supported
from forebay.spark.layout import Layout
from forebay.spark.pack import HASH, TIME
from forebay.spark.timewindows import TimeWindow
from forebay.store.options import Options
from forebay.windowing import WindowPlan

WATERMARK = "spark.watermarkDelayMs"
"""The key under which Spark keeps a watermark's delay in its column's metadata."""


@dataclass(frozen=True)
class BoundOperator:
    """A planned operator: the columns that pack reads, what the operator does, what comes out, and why it is so."""

    projection: list[Column]
    plan: WindowPlan
    schema: T.StructType
    layout: Layout
    choice: Choice


def bind(
    df: DataFrame, window: TimeWindow, keys: Sequence[Column | str], aggregates: Sequence[Aggregate | Apply], conf: Conf
) -> BoundOperator:
    """Bind a call to its DataFrame; an error of ours for everything that could not run."""
    apply = _only_apply(aggregates)
    named = [aggregate for aggregate in aggregates if isinstance(aggregate, Aggregate)]
    _require_columns(df, [window.time_column, *keys, *(argument for each in named for argument in each.arguments)])
    windows = window.aligned(df.sparkSession)
    time = _time(df, window)
    key_columns = [F.col(key) if isinstance(key, str) else key for key in keys]
    with _analysis():
        spark_columns = [_spark_column(aggregate) for aggregate in named]
        schema = df.groupBy(window.spark_column(), *key_columns).agg(*(spark_columns or [F.count("*")])).schema
    window_and_keys, results = schema.fields[: 1 + len(keys)], schema.fields[1 + len(keys) :]
    for field in window_and_keys[1:]:
        require_supported(field.dataType, f"the key {field.name}")
    key_names = tuple(f"k{position}" for position in range(len(keys)))

    inputs = Inputs(df)
    aggregation: Aggregation | UserFunction
    if apply:
        results = _own_fields(apply)
        shown = tuple((inputs.add(F.col(f"`{name}`")), name) for name in df.columns)
        aggregation = UserFunction(apply.function, shown, _arrow(T.StructType(results)))
        choice = choose([f"apply({getattr(apply.function, '__name__', type(apply.function).__name__)})"])
    else:
        bound = tuple(inputs.bind(aggregate, field) for aggregate, field in zip(named, results, strict=True))
        aggregation = Aggregation(key_names, bound)
        choice = choose([_text(_unnamed(aggregate)) for aggregate in named if aggregate.function in HOLISTIC])
    schema = T.StructType([*window_and_keys, *results])
    hashed = F.xxhash64(*key_columns) if keys else F.lit(0).cast("long")
    kept = [*(column.alias(name) for name, column in zip(key_names, key_columns, strict=True)), *inputs.columns]
    kept = kept or [F.lit(True).alias("a0")]  # a batch without columns would have no rows either
    return BoundOperator(
        projection=[time.alias(TIME), hashed.alias(HASH), *kept],
        plan=WindowPlan(
            windows,
            pa.schema([(field.name, field.type) for field in _arrow(df.select(*kept).schema)]),
            key_names,
            aggregation,
            choice.pattern,
            _arrow(schema),
            Options(conf.memory_mb << 20, conf.retain_batches),
        ),
        schema=schema,
        layout={
            "window": f"window({_text(window.time_column)}, {_seconds(windows.size)}, every {_seconds(windows.slide)}, "
            f"from {_seconds(windows.offset)})",
            "keys": [f"{_text(k)} {f.dataType.simpleString()}" for k, f in zip(keys, window_and_keys[1:], strict=True)],
            "aggregates": [_text(_unnamed(aggregate)) for aggregate in named] or ["apply"],
            "inputs": inputs.types,
            "pattern": choice.pattern.name,
            "instancesPerPartition": conf.instances_per_partition,
        },
        choice=choice,
    )


def _require_columns(df: DataFrame, arguments: Sequence[Column | str]) -> None:
    """Names must be columns, or begin with one as a struct's field does. Expressions are left to Spark's analysis."""
    known = {name.lower() for name in df.columns}
    for name in arguments:
        if isinstance(name, str) and name != "*":
            plain = name.replace("`", "").lower()
            if plain not in known and plain.partition(".")[0] not in known:
                raise UnknownColumn(f"there is no column {name!r}; the DataFrame has {', '.join(df.columns)}")


def _time(df: DataFrame, window: TimeWindow) -> Column:
    """The time column. On a stream it must have a watermark."""
    time = F.col(window.time_column) if isinstance(window.time_column, str) else window.time_column
    with _analysis():
        field = df.select(time).schema.fields[0]
    if not isinstance(field.dataType, T.TimestampType | T.TimestampNTZType):
        raise UnsupportedType(
            f"the time column {field.name} is a {field.dataType.simpleString()}; fb.window needs a timestamp. "
            "Convert it with pyspark.sql.functions.to_timestamp before withWatermark."
        )
    if df.isStreaming and WATERMARK not in field.metadata:
        raise MissingWatermark(
            f"the time column {field.name} has no watermark, so its windows would never fire. "
            f'Write df.withWatermark("{field.name}", "10 minutes") with the delay you accept.'
        )
    return time


def _only_apply(aggregates: Sequence[Aggregate | Apply]) -> Apply | None:
    for aggregate in aggregates:
        if not isinstance(aggregate, Aggregate | Apply):
            raise InvalidArgument(
                f"agg() got a {type(aggregate).__name__}; it takes forebay's aggregates, for example fb.sum('price')"
            )
    if not aggregates:
        raise InvalidArgument("agg() needs at least one aggregate, for example fb.count('*')")
    applied = [aggregate for aggregate in aggregates if isinstance(aggregate, Apply)]
    if applied and len(aggregates) > 1:
        raise InvalidArgument("fb.apply returns whole rows, so it must be the only aggregate of its operator")
    return applied[0] if applied else None


def _arrow(schema: T.StructType) -> pa.Schema:
    return pa.schema(list(to_arrow_schema(schema, timezone="UTC")))


def _own_fields(apply: Apply) -> list[T.StructField]:
    try:
        schema = apply.schema if isinstance(apply.schema, T.StructType) else T.DataType.fromDDL(apply.schema)
    except PySparkException as error:
        raise InvalidArgument(f"fb.apply got the schema {apply.schema!r}, which Spark cannot parse") from error
    if not isinstance(schema, T.StructType):
        raise InvalidArgument(f"fb.apply got the schema {apply.schema!r}; name its columns, as in 'item string, n long'")
    for field in schema.fields:
        require_supported(field.dataType, f"the column {field.name} of fb.apply's schema")
    return list(schema.fields)


def _spark_column(aggregate: Aggregate) -> Column:
    column = _unnamed(aggregate)
    return column if aggregate.name is None else column.alias(aggregate.name)


def _unnamed(aggregate: Aggregate) -> Column:
    function = getattr(F, aggregate.function)
    column: Column = function(*aggregate.arguments, **aggregate.options)
    return column


def _seconds(microseconds: int) -> str:
    return f"{microseconds} us" if microseconds % 1_000_000 else f"{microseconds // 1_000_000} s"


def _text(column: Column | str) -> str:
    return column if isinstance(column, str) else str(column).removeprefix("Column<'").removesuffix("'>")


@contextlib.contextmanager
def _analysis() -> Iterator[None]:
    """What Spark's analysis refuses becomes an error of ours, without the stack trace that Spark would log."""
    logger = logging.getLogger("DataFrameQueryContextLogger")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    except PySparkException as error:
        reason = error.getMessage().partition("SQLSTATE")[0].strip()
        kind = UnknownColumn if (error.getCondition() or "").startswith("UNRESOLVED_COLUMN") else InvalidArgument
        raise kind(f"Spark refuses this aggregation: {reason}") from error
    finally:
        logger.disabled = disabled
