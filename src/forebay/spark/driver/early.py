"""Python workers that start while a query is still being planned.

Spark starts the daemon that it forks workers from when a task first needs a worker. The first micro-batch of a session would
wait until the daemon has loaded what workers need. A job of one row has it started meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from forebay.spark.driver.configure import DAEMON, LOADED, wanted

GROUP = "forebay-early"
"""The job group of that job."""

_begun: weakref.WeakSet[SparkContext] = weakref.WeakSet()


def start(session: SparkSession) -> None:
    """Have Spark start the daemon of `configure` in local mode, unless that has been done."""
    context = session.sparkContext
    conf = dict(context.getConf().getAll())
    if context in _begun or conf.get(DAEMON) != LOADED or DAEMON not in wanted(conf):
        return
    _begun.add(context)
    threading.Thread(target=_run, args=[session], name="forebay-early", daemon=True).start()


def _run(session: SparkSession) -> None:
    with contextlib.suppress(PySparkException, Py4JError, OSError):  # it was stopped, or the query will tell
        session.sparkContext.setJobGroup(GROUP, "start of the Python workers")
        session.range(1, numPartitions=1).mapInArrow(_same, "id long").collect()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches
