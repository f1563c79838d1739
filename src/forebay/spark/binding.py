"""Binding: window, keys and aggregates of a call to the columns and types of a DataFrame.

Spark itself analyses the equivalent batch query. So names, types and NULL rules of the result are Spark's, and what Spark
refuses is refused here with Spark's reason.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import HOLISTIC
from forebay.aggregates.functions import Aggregate, Apply
from forebay.aggregates.user_defined import UserFunction
from forebay.errors import InvalidArgument, MissingWatermark, UnknownColumn, UnsupportedType
from forebay.joins import WindowJoin
from forebay.patterns import Choice, Pattern, choose
from forebay.spark.conf import WATERMARK, Conf
from forebay.spark.inputs import Inputs, identity, nullable_within, require_supported
from forebay.spark.layout import APPLY, Layout
from forebay.spark.sides import SIDE, Sides
from forebay.spark.timewindows import CustomWindow, Window, quoted, seconds, text_of
from forebay.spark.watermarks import redefined
from forebay.windowing import WindowPlan
from forebay.windows import HIGH, LOW, TIME, AlignedWindows, Firing, GlobalWindow


@dataclass(frozen=True)
class BoundOperator:
    """A planned operator: the columns that pack reads, what the operator does, what comes out, and why it is so.

    ``rows`` are the columns that its input has for the user, if they are not all that there are.
    """

    projection: list[Column]
    plan: WindowPlan
    schema: T.StructType
    layout: Layout
    choice: Choice
    rows: Sequence[Column] = ()


def bind(
    df: DataFrame,
    window: Window,
    keys: Sequence[Column | str],
    aggregates: Sequence[Aggregate | Apply] | Sides,
    conf: Conf,
    firing: Firing | None = None,
    idle_timeout: int | None = None,
) -> BoundOperator:
    """Bind a call to its DataFrame; an error of ours for everything that could not run."""
    sides, aggregates = (aggregates, ()) if isinstance(aggregates, Sides) else (None, aggregates)
    apply = None if sides else _only_apply(aggregates)
    named = [aggregate for aggregate in aggregates if isinstance(aggregate, Aggregate)]
    times = [] if window.time_column is None else [window.time_column]
    _require_columns(df, [*times, *keys, *(argument for each in named for argument in each.arguments)])
    time = time_of(df, window.time_column) if window.in_event_time else F.timestamp_micros(F.lit(0))
    assignment = window.bind(df.sparkSession, time)
    windows = assignment.windows
    if df.isStreaming and windows == GlobalWindow():
        raise InvalidArgument(
            "the global window of a stream never ends. Give it a trigger: fb.global_window(fb.every('10 seconds')) or "
            "fb.global_window(fb.every_rows(100))"
        )
    aligned = isinstance(windows, AlignedWindows) or (isinstance(window, CustomWindow) and window.hint == "aligned")
    aligned = aligned and firing is None  # each key's windows fire for themselves when rows come
    key_columns = [F.col(key) if isinstance(key, str) else key for key in keys]
    with analysis():
        spark_columns = [_spark_column(aggregate) for aggregate in named]
        grouped = ([] if assignment.result is None else [assignment.result]) + key_columns
        schema = df.groupBy(*grouped).agg(*(spark_columns or [F.count("*")])).schema
    windowed = len(grouped) - len(keys)
    fields = [*schema.fields[:windowed], *map(nullable_within, schema.fields[windowed:])]
    window_and_keys, results = fields[: len(grouped)], fields[len(grouped) :]
    key_fields = window_and_keys[windowed:]
    for field in key_fields:
        require_supported(field.dataType, f"the key {field.name}")
    key_names = tuple(f"k{position}" for position in range(len(keys)))

    inputs = Inputs(df)
    aggregation: Aggregation | UserFunction | WindowJoin
    reads: dict[str, tuple[str, ...]]
    if apply:
        results = _own_fields(apply)
        with analysis():
            shown = tuple((inputs.add(F.col(quoted(name))), name) for name in df.columns)
        aggregation = UserFunction(apply.function, shown, arrow_schema(T.StructType(results)))
        holistic = [f"apply({getattr(apply.function, '__name__', type(apply.function).__name__)})"]
        reads = {APPLY: tuple(column for column, _ in shown)}
    elif sides:
        results = sides.fields
        side, columns = inputs.add(F.col(SIDE)), {name: inputs.add(F.col(name)) for name in sides.columns}
        left, right = (tuple(columns[name] for name, _ in each) for each in (sides.left, sides.right))
        aggregation = WindowJoin(sides.how, side, left, right)
        holistic = [f"join({sides.how})"]
        reads = {text: (side, *(columns[name] for name in names)) for text, names in sides.reads.items()}
    else:
        with analysis():
            bound = tuple(inputs.bind(aggregate, field) for aggregate, field in zip(named, results, strict=True))
        aggregation = Aggregation(key_names, bound)
        texts = [text_of(_unnamed(aggregate)) for aggregate in named]
        holistic = [text for text, aggregate in zip(texts, named, strict=True) if aggregate.function in HOLISTIC]
        reads = {text: aggregate.inputs for text, aggregate in zip(texts, bound, strict=True)}
    choice = choose(holistic, aligned=aligned)
    if isinstance(window, CustomWindow) and window.hint == "rmw" and holistic:
        raise InvalidArgument(f"the window's hint is 'rmw', but {choice.reason}; leave the hint out")
    schema = T.StructType([*window_and_keys, *results])
    high, low = identity(key_columns, [field.dataType for field in key_fields])
    placed = {} if choice.pattern is Pattern.AAR else {LOW: low}
    kept = [*(column.alias(name) for name, column in zip(key_names, key_columns, strict=True)), *inputs.columns]
    kept = kept or [F.lit(True).alias("a_")]  # a batch without columns would have no rows either
    return BoundOperator(
        projection=[
            *(column.alias(name) for name, column in {TIME: time, HIGH: high, **placed, **assignment.columns}.items()),
            *kept,
        ],
        plan=WindowPlan(
            windows,
            pa.schema([(field.name, field.type) for field in arrow_schema(df.select(*kept).schema)]),
            key_names,
            aggregation,
            choice.pattern,
            arrow_schema(schema),
            conf.options,
            firing,
            idle_timeout,
        ),
        schema=schema,
        layout={
            "window": assignment.text,
            **({} if firing is None else {"firing": _told(firing)}),
            **({} if idle_timeout is None else {"time": "the wall clock's when idle"}),
            "keys": [f"{text_of(k)} {f.dataType.simpleString()}" for k, f in zip(keys, key_fields, strict=True)],
            "aggregates": {text: {name: inputs.types[name] for name in names} for text, names in reads.items()},
            "pattern": choice.pattern.name,
            "instancesPerPartition": conf.instances_per_partition,
        },
        choice=choice,
    )


def _told(firing: Firing) -> str:
    """When windows fire, in words."""
    every = [] if firing.every is None else [f"every {seconds(firing.every)}"]
    late = [f"late for {seconds(firing.allowed_lateness)}"] if firing.allowed_lateness else []
    return ", ".join([*every, *late, "accumulating" if firing.accumulating else "discarding"])


def _require_columns(df: DataFrame, arguments: Sequence[Column | str]) -> None:
    """Names must be columns, or begin with one as a struct's field does. Expressions are left to Spark's analysis."""
    known = {name.lower() for name in df.columns}
    for name in arguments:
        if isinstance(name, str) and name != "*":
            plain = name.replace("`", "").lower()
            if plain not in known and plain.partition(".")[0] not in known:
                raise UnknownColumn(f"there is no column {name!r}; the DataFrame has {', '.join(df.columns)}")


_TIMESTAMPS = (T.TimestampType, T.TimestampNTZType)


def watermarked(df: DataFrame) -> str:
    """The column with the watermark; a timestamp rather than the window that it is the time of."""
    marked = [field for field in df.schema.fields if WATERMARK in field.metadata]
    if marked:
        return quoted(next((field for field in marked if isinstance(field.dataType, _TIMESTAMPS)), marked[0]).name)
    raise MissingWatermark(
        "no column has a watermark, so it is not known which one is the event time. Write df.withWatermark(...), or name "
        "the column with timeColumn= where there is such a parameter."
    )


def time_of(df: DataFrame, column: Column | str | None) -> Column:
    """The time column: this one, or the one with the watermark. On a stream it must have a watermark."""
    if column is None:
        column = watermarked(df)
    time = F.col(column) if isinstance(column, str) else column
    with analysis():
        field = df.select(time).schema.fields[0]
    require_timestamp(field)
    if df.isStreaming:
        _require_watermark(df, field)
    return time


def _require_watermark(df: DataFrame, time: T.StructField) -> None:
    """`MissingWatermark` unless a time column has the only watermark that there can be."""
    column = redefined(df._jdf.queryExecution().analyzed().toString())
    if column is not None:
        raise InvalidArgument(
            f"withWatermark on {column} gives the results of an operator of forebay another watermark, with which no window "
            "would ever fire. Leave it out: the results have the watermark of what they were made of, on their window or on "
            "event_time."
        )
    if WATERMARK in time.metadata:
        return
    others = [field.name for field in df.schema.fields if WATERMARK in field.metadata]
    if others:
        raise MissingWatermark(
            f"the time column {time.name} has no watermark, so its windows would never fire. The watermark of this "
            f"DataFrame is on {others[0]}: window over that column instead."
        )
    raise MissingWatermark(
        f"the time column {time.name} has no watermark, so its windows would never fire. "
        f'Write df.withWatermark("{time.name}", "10 minutes") with the delay you accept.'
    )


def require_timestamp(field: T.StructField) -> None:
    """`UnsupportedType` unless a time column is a timestamp."""
    if not isinstance(field.dataType, _TIMESTAMPS):
        raise UnsupportedType(
            f"the time column {field.name} is a {field.dataType.simpleString()}; a timestamp is needed. "
            "Convert it with pyspark.sql.functions.to_timestamp before withWatermark; of a window take window_time."
        )


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


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """A schema as Arrow has it."""
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
    if aggregate.function == "all_max_by":  # Spark lacks it; a list of the same values has its type
        value, order = aggregate.arguments
        return F.collect_list(value).alias(f"all_max_by({text_of(value)}, {text_of(order)})")
    function = getattr(F, aggregate.function)
    column: Column = function(*aggregate.arguments, **aggregate.options)
    return column


_NO_COLUMN = ("UNRESOLVED_COLUMN", "MISSING_ATTRIBUTES", "CANNOT_RESOLVE_DATAFRAME_COLUMN")
"""How the conditions of errors begin that say that there is no such column."""


@contextlib.contextmanager
def analysis() -> Iterator[None]:
    """What Spark's analysis refuses becomes an error of ours, without the stack trace that Spark would log."""
    _quiet.depth = getattr(_quiet, "depth", 0) + 1
    try:
        yield
    except PySparkException as error:
        reason = error.getMessage().partition("SQLSTATE")[0].strip()
        kind = UnknownColumn if (error.getCondition() or "").startswith(_NO_COLUMN) else InvalidArgument
        raise kind(f"Spark refuses this expression: {reason}") from error
    finally:
        _quiet.depth -= 1


_quiet = threading.local()
"""How many `analysis` blocks a thread is in."""

for _name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
    PySparkLogger.getLogger(_name).addFilter(lambda record: not getattr(_quiet, "depth", 0))
