"""Python workers that start while a user's program is still busy with other things.

Spark starts the daemon that it forks workers from when a task first needs a worker. The first micro-batch of a session would
wait until the daemon has loaded what workers need. A job of one value has it started meanwhile.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Mapping

from py4j.clientserver import ClientServer
from pyspark import SparkContext
from pyspark.sql import SparkSession

from forebay.spark.driver.masters import cores_of, is_local

DAEMON = "spark.python.daemon.module"
LOADED = "forebay.spark.worker.daemon"

GROUP = "forebay-early"
"""The job group of that job, and the name of the thread."""

_begun: weakref.WeakSet[SparkContext] = weakref.WeakSet()


class Builder(SparkSession.Builder):
    """A builder whose sessions start the daemon at once, if there is a core to spare for that job."""

    def getOrCreate(self) -> SparkSession:
        """The session."""
        return _started(super().getOrCreate())

    def create(self) -> SparkSession:
        """A session of its own."""
        return _started(super().create())


def _started(session: SparkSession) -> SparkSession:
    if isinstance(session, SparkSession) and cores_of(session.sparkContext.master or "") != 1:  # it may be one of Connect
        start(session)
    return session


def begin_with(builder: SparkSession.Builder) -> None:
    """Make a builder such a one, unless it has a way of its own to make sessions."""
    if type(builder) is SparkSession.Builder:
        builder.__class__ = Builder


def start(session: SparkSession) -> None:
    """Have Spark start the daemon of `forebay.configure` in local mode, unless that has been done."""
    context = session.sparkContext
    if context in _begun:
        return
    _begun.add(context)
    if _wanted(dict(context.getConf().getAll())):
        threading.Thread(target=_run, args=[context], name=GROUP, daemon=True).start()


def _wanted(conf: Mapping[str, str]) -> bool:
    if not is_local(conf["spark.master"]) or conf.get(DAEMON) != LOADED:
        return False
    if sys.platform != "linux" or conf.get("spark.python.use.daemon", "true") != "true":
        return False
    # Elsewhere a thread has the job group of any other one (PYSPARK_PIN_THREAD=false).
    return isinstance(SparkContext._gateway, ClientServer)


def _run(context: SparkContext) -> None:
    """Run the job, which is none of SQL: that would load what the program may still want to configure.

    The context may be stopped meanwhile, for which pyspark has many errors. A query tells what is wrong with its workers.
    """
    with contextlib.suppress(Exception):
        context.setJobGroup(GROUP, "start of the Python workers")
        context.parallelize([None], 1).count()
