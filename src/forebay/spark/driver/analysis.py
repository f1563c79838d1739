"""What Spark's analysis says of columns: whether they exist, which one is the event time, and what is refused."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from forebay.errors import InvalidArgument, MissingWatermark, UnknownColumn, UnsupportedType
from forebay.spark.driver.columns import column_of, quoted, same_expression, shown
from forebay.spark.driver.conf import WATERMARK
from forebay.spark.driver.plans import count, redefined
from forebay.spark.driver.trees import elements, subtree

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


_PART = re.compile(r"`((?:[^`]|``)*)`|([^`.]+)")
"""A part of a name, in backticks or without."""


def require_columns(df: DataFrame, arguments: Sequence[Column | str]) -> None:
    """Names must be columns, or begin with one as a struct's field does. Expressions are left to Spark's analysis."""
    known = {name.lower() for name in df.columns}
    for name in arguments:
        if isinstance(name, str) and name != "*":
            parts = [(inside or outside).replace("``", "`").lower() for inside, outside in _PART.findall(name)]
            if not known.intersection((parts[0] if parts else name, ".".join(parts))) and not _is_known(df, name):
                raise UnknownColumn(f"there is no column {name!r}; the DataFrame has {', '.join(df.columns)}")


def _is_known(df: DataFrame, name: str) -> bool:
    """Whether Spark knows a name that is none of the columns': it may begin with an alias, or be of a hidden column."""
    try:
        with analysis():
            df.select(name)
    except UnknownColumn:
        return False
    return True


_TIMESTAMPS = (T.TimestampType, T.TimestampNTZType)


def watermarked(df: DataFrame) -> str:
    """The column with the watermark; a timestamp rather than the window that it is the time of."""
    marked = [field for field in df.schema.fields if WATERMARK in field.metadata]
    if marked:
        return quoted(next((field for field in marked if isinstance(field.dataType, _TIMESTAMPS)), marked[0]).name)
    fix = 'Write df.withWatermark("the time", "10 minutes") with the delay you accept'
    if f'"{WATERMARK}"' in df.schema.json():
        fix = "A field of one has: select it as a column of its own"
    raise MissingWatermark(
        f"none of the columns {', '.join(df.columns)} has a watermark, so it is not known which one is the event time. "
        f"{fix if df.isStreaming else 'Name it with timeColumn='}."
    )


def time_of(df: DataFrame, column: Column | str | None) -> Column:
    """The time column: this one, or the one with the watermark. On a stream it must have a watermark."""
    if column is None:
        column = watermarked(df)
    time = column_of(column)
    with analysis():
        if isinstance(column, Column):
            require_one_value(df, [column], "time")
        field = df.select(time).schema.fields[0]
    require_timestamp(field)
    if df.isStreaming:
        _require_watermark(df, field)
    return time


def _require_watermark(df: DataFrame, time: T.StructField) -> None:
    """`MissingWatermark` unless a time column has the only watermark that there can be."""
    plan = df._jdf.queryExecution().analyzed().toString()
    column = redefined(plan)
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
    place = " Write it after operators that do not go by event time: their results have none." if count(plan) else ""
    raise MissingWatermark(
        f"the time column {time.name} has no watermark, so its windows would never fire. "
        f'Write df.withWatermark("{time.name}", "10 minutes") with the delay you accept.{place}'
    )


def resolved_alike(df: DataFrame, one: Column, other: Column) -> bool:
    """Whether two columns are the same expression over a DataFrame: ``df.x`` and ``F.col("x")`` are."""
    plan = df.select(one, other)._jdf.queryExecution().analyzed()
    if plan.nodeName() != "Project" or plan.projectList().length() != 2:
        return False
    first, second = (each.child() if each.nodeName() == "Alias" else each for each in elements(plan.projectList()))
    return bool(first.semanticEquals(second))


def require_told_apart(what: str, texts: Sequence[str], same: Callable[[int, int], bool]) -> None:
    """`InvalidArgument` if two things read alike and are not the same: at a restart one would have the state of the other.

    Whether they are is asked of ``same`` with their places. Variables of lambda functions are others each time.
    """
    first: dict[str, int] = {}
    for place, text in enumerate(texts):
        known = first.setdefault(text, place)
        if known != place and "->" not in text and not same(known, place):
            raise InvalidArgument(
                f"two {what} read alike, {text}, and are of different columns or functions, which a checkpoint could not "
                "tell apart. Give one of these columns another name, with withColumnRenamed or withColumn."
            )


def require_alike(df: DataFrame, what: str, texts: Sequence[str], columns: Sequence[Column]) -> None:
    """`InvalidArgument` if two columns of a DataFrame read alike and are different expressions."""

    def same(first: int, second: int) -> bool:
        one, other = columns[first], columns[second]
        return same_expression(one, other) or resolved_alike(df, one, other)

    with analysis():
        require_told_apart(what, texts, same)


_FIXED = ("InputFileName", "InputFileBlockStart", "InputFileBlockLength", "SparkPartitionID")
"""Expressions that Spark takes for nondeterministic, and that have one value for a row."""


def require_deterministic(df: DataFrame, columns: Sequence[Column | str], what: str = "key") -> None:
    """`InvalidArgument` for a column that has another value each time that it is computed, which is more than once."""
    plan = df.select(*columns)._jdf.queryExecution().analyzed() if columns else None
    if plan is None or plan.nodeName() != "Project":
        return
    for column, expression in zip(columns, elements(plan.projectList()), strict=True):
        if _changes(expression):
            raise InvalidArgument(
                f"the {what} {shown(column)} has another value each time that it is computed. Make it a column of its own "
                "first, with withColumn, and name that."
            )


def require_one_value(df: DataFrame, columns: Sequence[Column | str], what: str = "key") -> None:
    """`InvalidArgument` for a column of which a row may have several values or none, or another one each time.

    Where rows are not grouped by it, it would double or lose them.
    """
    given = df._jdf.queryExecution().analyzed()
    for column in columns:
        plan = df.select(column)._jdf.queryExecution().analyzed()
        projects = plan.nodeName() == "Project" and plan.child().fastEquals(given)
        if not projects and _besides_projections(plan) != _besides_projections(given):
            raise InvalidArgument(
                f"of the {what} {shown(column)} a row may have several values, or none: F.window, F.session_window, "
                "F.explode and aggregates are so. Make it a column of its own first, with withColumn, and name that."
            )
    require_deterministic(df, columns, what)


def _besides_projections(plan: Any) -> Counter[str]:
    return Counter(node.nodeName() for node in subtree(plan) if node.nodeName() != "Project")


def _changes(expression: Any) -> bool:
    """Whether an expression has another value each time that it is computed for a row."""
    if expression.deterministic():
        return False
    others = [child for child in elements(expression.children()) if not child.deterministic()]
    return any(map(_changes, others)) if others else expression.nodeName() not in _FIXED


def joins_streams(df: DataFrame) -> bool:
    """Whether rows come from a join of two streams that is Spark's own, whose results have an earlier watermark.

    Where event times must be equal the results have the watermark of the rows.
    """
    jvm = df.sparkSession._jvm
    assert jvm is not None
    equal = getattr(getattr(jvm.org.apache.spark.sql.catalyst.planning, "ExtractEquiJoinKeys$"), "MODULE$")
    for node in subtree(df._jdf.queryExecution().analyzed()):
        if node.nodeName() == "Join" and all(child.isStreaming() for child in elements(node.children())):
            found = equal.unapply(node)
            keys = [*elements(found.get()._2()), *elements(found.get()._3())] if found.isDefined() else []
            columns = [column for key in keys for column in elements(key.references().toSeq())]
            if not any(column.metadata().contains(WATERMARK) for column in columns):
                return True
    return False


def require_timestamp(field: T.StructField) -> None:
    """`UnsupportedType` unless a time column is a timestamp."""
    if isinstance(field.dataType, T.StructType):
        raise UnsupportedType(
            f"the time column {field.name} is a {field.dataType.simpleString()}; a timestamp is needed. Of the window of "
            f'another result take its time: fb.window(F.window_time("{field.name}"), "1 hour"). Where no window is given, '
            f'say timeColumn=F.window_time("{field.name}"), or select it: F.window_time("{field.name}").alias("time").'
        )
    if not isinstance(field.dataType, _TIMESTAMPS):
        raise UnsupportedType(
            f"the time column {field.name} is a {field.dataType.simpleString()}; a timestamp is needed. "
            "Convert it with pyspark.sql.functions.to_timestamp before withWatermark."
        )


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """A schema as Arrow has it."""
    return pa.schema(list(to_arrow_schema(schema, timezone="UTC")))
