"""Rows that are so narrow that Spark need not add up their bytes.

Spark ends the Arrow batches that go to Python by rows and by bytes, and adds up the bytes of all columns once for each row.
Where as many rows as a batch may have can never have as many bytes as it may have, that sum decides nothing, so it is left
out for the query. The batches of blobs that go to the operator have no bound of bytes then; see
`forebay.spark.worker.blobs.ballast`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from forebay.spark.driver.query import MARK, Planned
from forebay.spark.driver.trees import elements
from forebay.spark.properties import BYTES, MOST_ROWS, NO_BOUND

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

_LEAST_BYTES = 16 << 20
"""Whoever has set a lower bound has set it for the sake of memory, and batches for the operator become larger."""

_log = logging.getLogger("forebay")


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
    return None if _calls_python(rows._jdf.queryExecution().analyzed()) else width(rows.schema)


def leave_sums_out(execution: Any, operators: Collection[Planned]) -> None:
    """Have Spark not add up the bytes of each row of a query that is about to begin, if that can decide nothing.

    That is so if only forebay's functions in Python run in it. What ``foreachBatch`` runs is not known, and a sink in Python
    gets rows in batches, too. If a plan cannot be read the bound stays.
    """
    try:
        conf = execution.sparkSessionForStream().sessionState().conf()
        rows, size = conf.arrowMaxRecordsPerBatch(), conf.arrowMaxBytesPerBatch()
        widths = [operator.row_bytes for operator in operators]
        if not widths or not 0 < rows <= MOST_ROWS or any(each is None or each * rows > size for each in widths):
            return
        sink = execution.sink()
        told = f"{sink.getClass().getName()} {sink.toString()}".lower()
        known = size >= _LEAST_BYTES and "python" not in told and "foreachbatch" not in told
        if known and not _runs_python(execution.analyzedPlan()):
            conf.setConfString(BYTES, NO_BOUND)
    except Exception:
        _log.debug("a query keeps its bound of bytes, for its plan cannot be read", exc_info=True)


def _runs_python(plan: Any) -> bool:
    """Whether functions in Python run over the results of forebay's operators, or beside these, in a plan of the JVM."""
    nodes = [plan]
    while nodes:
        node = nodes.pop()
        if _OPERATOR in node.nodeName() and MARK.search(node.output().mkString(" ")):
            continue
        if any(map(_calls_python, elements(node.expressions()))):
            return True
        nodes += elements(node.children())
    return False


def _calls_python(tree: Any) -> bool:
    """Whether a plan or an expression has a function in Python, or one that makes tables, which may be in Python."""
    assert SparkContext._jvm is not None
    patterns = SparkContext._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    return bool(tree.containsPattern(patterns.PYTHON_UDF()) or tree.containsPattern(patterns.GENERATOR()))
