"""Rows that are so narrow that Spark need not add up their bytes.

Spark ends the Arrow batches that go to Python by rows and by bytes, and adds up the bytes of all columns once for each row.
Where as many rows as a batch may have can never have as many bytes as it may have, that sum decides nothing, so it is left
out for the query. The batches of blobs that go to the operator have no bound of bytes then; see
`forebay.spark.worker.blobs.ballast`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from forebay.spark.driver.query import Planned
from forebay.spark.driver.trees import elements
from forebay.spark.properties import BYTES, NO_BOUND

_WIDTHS: dict[type[T.DataType], int] = {
    T.BooleanType: 1,
    T.ByteType: 1,
    T.ShortType: 2,
    T.IntegerType: 4,
    T.LongType: 8,
    T.FloatType: 4,
    T.DoubleType: 8,
    T.DecimalType: 16,
    T.DateType: 4,
    T.TimestampType: 8,
    T.TimestampNTZType: 8,
    T.DayTimeIntervalType: 8,
}

_OPERATOR = "TransformWithState"


def width(schema: T.StructType) -> int | None:
    """The most bytes that a row takes in Arrow, a byte for each column that says whether it is NULL; None if any number.

    Examples
    --------
    >>> width(T.StructType().add("n", "long").add("t", "timestamp")), width(T.StructType().add("text", "string"))
    (18, None)
    """
    widths = [
        width(field.dataType) if isinstance(field.dataType, T.StructType) else _WIDTHS.get(type(field.dataType))
        for field in schema.fields
    ]
    known = [each for each in widths if each is not None]
    return sum(known) + len(known) if len(known) == len(widths) else None


def row_bytes(rows: DataFrame) -> int | None:
    """The `width` of rows that are handed to pack; None, too, if functions in Python have made them of wider ones."""
    analyzed = rows._jdf.queryExecution().analyzed()
    return None if analyzed.containsPattern(_python()) else width(rows.schema)


def leave_sums_out(execution: Any, operators: Collection[Planned]) -> None:
    """Have Spark not add up the bytes of each row of a query that is about to begin, if that can decide nothing.

    That is so if only forebay's functions in Python run in it. What ``foreachBatch`` runs is not known.
    """
    conf = execution.sparkSessionForStream().sessionState().conf()
    rows, size = conf.arrowMaxRecordsPerBatch(), conf.arrowMaxBytesPerBatch()
    widths = [operator.row_bytes for operator in operators]
    if not widths or rows <= 0 or any(each is None or each * rows > size for each in widths):
        return
    if "ForeachBatch" not in str(execution.sink().toString()) and not _runs_python(execution.analyzedPlan()):
        conf.setConfString(BYTES, NO_BOUND)


def _runs_python(node: Any) -> bool:
    """Whether functions in Python run over the results of operators, or beside these, in a plan of the JVM."""
    if _OPERATOR in node.nodeName():
        return False
    found = any(expression.containsPattern(_python()) for expression in elements(node.expressions()))
    return found or any(map(_runs_python, elements(node.children())))


def _python() -> Any:
    assert SparkContext._jvm is not None
    return SparkContext._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
