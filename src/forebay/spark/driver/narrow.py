"""Rows that are so narrow that Spark need not add up their bytes.

Spark ends the Arrow batches that go to Python by rows and by bytes, and adds up the bytes of all columns once for each row.
Where as many rows as a batch may have can never have as many bytes as it may have, that sum decides nothing, so it is left
out for the query. The batches of blobs that go to the operator have no bound of bytes then; see
`forebay.spark.worker.blobs.ballast`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pyspark.sql import types as T

from forebay.spark.driver.query import Planned
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


def runs_python(jplan: Any, jvm: Any) -> bool:
    """Whether a plan, an object of the JVM, calls Python functions."""
    return bool(jplan.containsPattern(jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()))


def leave_sums_out(execution: Any, operators: Collection[Planned]) -> None:
    """Have Spark not add up the bytes of each row of a query that is about to begin, if that can decide nothing.

    Only if no Python functions but forebay's are known to run in it, those of ``foreachBatch`` included.
    """
    conf = execution.sparkSessionForStream().sessionState().conf()
    rows, size = conf.arrowMaxRecordsPerBatch(), conf.arrowMaxBytesPerBatch()
    widest = [operator.row_bytes for operator in operators]
    if not widest or rows <= 0 or any(each is None or each * rows > size for each in widest):
        return
    if "ForeachBatch" not in str(execution.sink().toString()):
        conf.setConfString(BYTES, NO_BOUND)
