"""Python workers that start while a query is still being planned.

Spark starts the daemon that it forks workers from when a task first needs a worker. The first micro-batch of a session would
wait until the daemon has loaded what workers need. A job of one row has it started meanwhile.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping

import pyarrow as pa
from py4j.clientserver import ClientServer
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from forebay.spark.driver.configure import DAEMON, LOADED, is_local

GROUP = "forebay-early"
"""The job group of that job, and the name of the thread."""

_begun: weakref.WeakSet[SparkContext] = weakref.WeakSet()


def start(session: SparkSession) -> None:
    """Have Spark start the daemon of `configure` in local mode, unless that has been done."""
    context = session.sparkContext
    if context in _begun:
        return
    _begun.add(context)
    if _wanted(dict(context.getConf().getAll())):
        row = session.range(1, numPartitions=1).mapInArrow(_same, "id long")
        threading.Thread(target=_run, args=[context, row], name=GROUP, daemon=True).start()


def _wanted(conf: Mapping[str, str]) -> bool:
    if not is_local(conf["spark.master"]) or conf.get(DAEMON) != LOADED:
        return False
    if sys.platform != "linux" or conf.get("spark.python.use.daemon", "true") != "true":
        return False
    # Elsewhere a thread has the job group of any other one (PYSPARK_PIN_THREAD=false).
    return isinstance(SparkContext._gateway, ClientServer)


def _run(context: SparkContext, row: DataFrame) -> None:
    # The session may be stopped meanwhile, for which pyspark has many errors. A query tells what is wrong with its workers.
    with contextlib.suppress(Exception):
        context.setJobGroup(GROUP, "start of the Python workers")
        row.collect()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches
