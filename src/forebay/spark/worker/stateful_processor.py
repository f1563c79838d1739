"""What Spark runs as the operator of a stream, for which `forebay.spark.worker.operator` does the work.

When a query starts, Spark's planning waits for a process of Python that makes the processor of each operator and asks which
state it has. So nothing is imported here that this does not need.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from forebay.spark.worker.startup import Shipped

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

    from forebay.spark.worker.operator import WindowOperator

STATE = "version"
"""The name under which Spark's state has the token of a virtual node."""


class WindowProcessor(StatefulProcessor):
    """Has a `WindowOperator` run for each virtual node.

    Parameters
    ----------
    work : Shipped
        The `Work` of the operator.
    idle : bool
        Whether its plan has a timeout for streams that fall silent.
    """

    def __init__(self, work: Shipped, *, idle: bool) -> None:
        self._work, self._idle = work, idle
        self._operator: WindowOperator | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle, self._moved = handle, None
        self._state = handle.getValueState(STATE, _schema(token=StringType(), fired_until=LongType(), timer=LongType()))
        if self._idle:
            self._moved = handle.getValueState("moved", _schema(watermark=LongType(), wall=LongType(), seen=LongType()))

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues) -> Iterator[pd.DataFrame]:
        yield from self._begun().run(key[0], rows, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        yield from self._begun().run(key[0], iter(()), timerValues, expired=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        """Make durable what the task has committed, before Spark commits the tokens of it."""
        if self._operator is not None:
            self._operator.settle()

    def _begun(self) -> WindowOperator:
        if self._operator is None:
            work = self._work.load()
            from forebay.spark.worker.operator import WindowOperator

            self._operator = WindowOperator(work, self._handle, self._state, self._moved)
        return self._operator


def _schema(**fields: DataType) -> StructType:
    """A type of state. Given as text it would be parsed by the JVM, twice in each task."""
    return StructType([StructField(name, kind) for name, kind in fields.items()])
