"""The generator as a data source of Spark: ``spark.readStream.format("nexmark")``, or ``spark.read`` with ``events`` set."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from forebay.errors import InvalidArgument
from forebay.nexmark.config import NexmarkConfig
from forebay.spark.driver.conf import require_forebay_in_workers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

ROWS = 1 << 16
"""Events that are generated at a time."""


def register(spark: SparkSession) -> None:
    """Make ``format("nexmark")`` known to a session.

    Its options are the attributes of `NexmarkConfig` in camelCase, and

    * ``numPartitions``: tasks that generate in parallel, 2 unless set,
    * ``maxEventsPerTrigger``: events of a micro-batch at most, 500,000 unless set,
    * ``realTime``: with ``true``, a stream gives ``rate`` events per second of wall time, and an event's time is when it is
      due; otherwise micro-batches are always full.

    Examples
    --------
    >>> register(spark)
    >>> spark.read.format("nexmark").option("events", 1000).load().count()
    1000
    >>> spark.read.format("nexmark").option("type", "auction").option("events", 1000).load().count()
    60
    """
    require_forebay_in_workers(spark)
    spark.dataSource.register(NexmarkSource)


class NexmarkSource(DataSource):
    """See `register`."""

    @classmethod
    def name(cls) -> str:
        return "nexmark"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        from forebay.nexmark.generator import SCHEMAS

        return from_arrow_schema(SCHEMAS[NexmarkConfig.of(self.options).type])

    def reader(self, schema: StructType) -> DataSourceReader:
        config = NexmarkConfig.of(self.options)
        if not config.events:
            raise InvalidArgument("nexmark: a batch needs an end; set the option events")
        return _Reader(config, self._option("numPartitions", 2))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        most = self._option("maxEventsPerTrigger", 500_000)
        real_time = self.options.get("realTime", "false").lower() == "true"
        return _StreamReader(NexmarkConfig.of(self.options), self._option("numPartitions", 2), most, real_time=real_time)

    def _option(self, name: str, default: int) -> int:
        text = self.options.get(name)
        if text is not None and (not text.isdigit() or int(text) == 0):
            raise InvalidArgument(f"nexmark: {name} is {text!r}; it must be a whole number of at least 1")
        return int(text or default)


class _Range(InputPartition):
    """Events from ``begin`` to before ``end``; the first event of all is at ``start``."""

    def __init__(self, begin: int, end: int, start: int) -> None:
        self.begin, self.end, self.start = begin, end, start


class _Reader(DataSourceReader):
    def __init__(self, config: NexmarkConfig, partitions: int) -> None:
        self._config, self._partitions = config, partitions

    def partitions(self) -> list[InputPartition]:
        return _split(0, self._config.events, self._partitions, self._config.start)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(self._config, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is the number of the next event, and the event time of the first one."""

    def __init__(self, config: NexmarkConfig, partitions: int, most: int, *, real_time: bool) -> None:
        self._config, self._partitions, self._most, self._real_time = config, partitions, most, real_time

    def initialOffset(self) -> dict[str, int]:
        return {"number": 0, "start": _now() if self._real_time else self._config.start}

    def prepareForTriggerAvailableNow(self) -> None:
        if not self._config.events or self._real_time:
            raise InvalidArgument("nexmark: Trigger.AvailableNow needs an end: the option events, and no realTime")

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        begin, most = start["number"], limit.max_rows if isinstance(limit, ReadMaxRows) else self._most
        end = min(begin + most, self._config.events or begin + most)
        if self._real_time:
            end = min(end, (_now() - start["start"]) * self._config.rate // 1_000_000)
        return {**start, "number": max(begin, end)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return _split(start["number"], end["number"], self._partitions, start["start"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(self._config, partition)

    def commit(self, end: dict[str, int]) -> None:
        pass

    def stop(self) -> None:
        pass


def _now() -> int:
    return time.time_ns() // 1000


def _split(begin: int, end: int, partitions: int, start: int) -> list[InputPartition]:
    """A range in so many parts of about the same size."""
    count = min(partitions, end - begin)
    cuts = [begin + (end - begin) * part // count for part in range(count + 1)] if count else []
    return [_Range(*cut, start) for cut in itertools.pairwise(cuts)]


def _batches(config: NexmarkConfig, part: InputPartition) -> Iterator[pa.RecordBatch]:
    from forebay.nexmark.generator import generate

    assert isinstance(part, _Range)
    config = replace(config, start=part.start)
    for begin in range(part.begin, part.end, ROWS):
        yield generate(config, begin, min(begin + ROWS, part.end))
