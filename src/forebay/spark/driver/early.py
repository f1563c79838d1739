"""Python workers that start while a user's program is still busy with other things.

Spark starts the daemon that it forks workers from when a task first needs a worker. The first micro-batch of a session would
wait until the daemon has loaded what workers need. A job of one row has it started meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

GROUP = "forebay-early"
"""The job group of that job, and the name of the thread."""

_begun: weakref.WeakSet[SparkContext] = weakref.WeakSet()


def start(session: SparkSession) -> None:
    """Have Spark start its daemon, unless that has been done for the context of this session."""
    if session.sparkContext not in _begun:
        _begun.add(session.sparkContext)
        threading.Thread(target=_run, args=[session], name=GROUP, daemon=True).start()


def _run(session: SparkSession) -> None:
    # The session may be stopped meanwhile, for which pyspark has many errors. A query tells what is wrong with its workers.
    with contextlib.suppress(Exception):
        session.sparkContext.setJobGroup(GROUP, "start of the Python workers")
        session.range(1, numPartitions=1).mapInArrow(_same, "id long").collect()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches
