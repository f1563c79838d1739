"""Spark's own state store driven with state accesses, from where a user of PySpark asks it: ``transformWithStateInPandas``.

Spark's Python API serves that with its RocksDB store alone. All accesses go to one map state of one key, so that they keep
their order; map states cannot be appended to, so a merge reads the value and writes it again.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from forebay.errors import InvalidArgument
from forebay.harness.access import SCHEMA
from forebay.harness.evaluator import Measured, evaluate
from forebay.harness.stores.connector import Connector
from forebay.spark.driver.configure import PARTITIONS, PROVIDER, ROCKSDB

_SETTINGS = {PROVIDER: ROCKSDB, PARTITIONS: "1"}
_NUMBER, _KEY, _RESULT = "number", "one", "measured"


def replay(spark: SparkSession, batches: Iterable[pa.RecordBatch]) -> Measured:
    """Drive Spark's state store with accesses in one task, and measure each.

    Parameters
    ----------
    spark : SparkSession
        The session, whose settings are as before in the end.
    batches : iterable of pyarrow.RecordBatch
        The accesses, as `forebay.harness.access` has them. All must fit into the memory of the task.

    Raises
    ------
    InvalidArgument
        There are no accesses.

    Returns
    -------
    Measured
        As `forebay.harness.evaluator.evaluate` gives it. Values are written as in all runs of the harness. The memory is
        that of the Python worker alone.

    Examples
    --------
    >>> from forebay.harness.access import GET, PUT, accesses
    >>> measured = replay(spark.newSession(), [accesses([(PUT, 0, 7, 0, 0, 8, 0), (GET, 0, 7, 0, 0, 0, 0)])])
    >>> measured.accesses, measured.found
    (2, 1)
    """
    table = _numbered(batches)
    if not table.num_rows:
        raise InvalidArgument("there are no accesses to drive a store with")
    before = {name: spark.conf.get(name, None) for name in _SETTINGS}
    with tempfile.TemporaryDirectory(prefix="forebay-replay-") as place:
        path = Path(place) / "accesses.parquet"
        pq.write_table(table, path)
        try:
            for name, value in _SETTINGS.items():
                spark.conf.set(name, value)
            keyed = spark.read.parquet(f"file://{path}").withColumn(_KEY, F.lit(0)).groupBy(_KEY)
            run = keyed.transformWithStateInPandas(_Replay(), f"{_RESULT} binary", "append", "none")
            measured: Measured = pickle.loads(run.collect()[0][_RESULT])  # noqa: S301  # our own task has written it
        finally:
            for name, earlier in before.items():
                if earlier is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, earlier)
    return measured


def _numbered(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(list(batches), SCHEMA)
    return table.append_column(_NUMBER, pa.array(range(table.num_rows), pa.int64()))


class _MapState(Connector):
    """A map state of Spark's as a store."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def get(self, key: bytes) -> bytes | None:
        found = self._state.getValue((key,))
        return None if found is None else bytes(found[0])

    def put(self, key: bytes, value: bytes) -> None:
        self._state.updateValue((key,), (value,))

    def merge(self, key: bytes, value: bytes) -> None:
        self.put(key, (self.get(key) or b"") + value)

    def delete(self, key: bytes) -> None:
        self._state.removeKey((key,))


class _Replay(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._store = _MapState(handle.getMapState("state", "key binary", "value binary"))

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        frame = pd.concat(rows).sort_values(_NUMBER)
        accesses = pa.Table.from_pandas(frame[SCHEMA.names], SCHEMA, preserve_index=False).combine_chunks()
        yield pd.DataFrame({_RESULT: [pickle.dumps(evaluate(self._store, accesses.to_batches()))]})

    def close(self) -> None:
        """Nothing is kept."""
