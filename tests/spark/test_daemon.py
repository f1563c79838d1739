"""The workers of a local session: where they come from, and what they have when they begin."""

import copy
import os
import subprocess
import sys
import threading
import time
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession
from streams import generate, run

import forebay as fb
from forebay.spark.driver import early
from forebay.spark.driver.early import DAEMON, LOADED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="fb.configure gives no daemon there")


@pytest.mark.thorough
def test_all_workers_come_from_one_process_which_has_loaded_what_they_need(spark, tmp_path):
    def parent(key, rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"daemon": [os.getppid()]})

    def about(batches):
        time.sleep(1)  # so that a worker cannot take both tasks
        for _ in batches:
            loaded = "polars" in sys.modules and "forebay.engine.open" in sys.modules
            process = {"daemon": [os.getppid()], "worker": [os.getpid()], "source": [pyspark.__file__]}
            yield pa.record_batch(process | {"drawn": [np.random.random()], "loaded": [loaded]})

    assert spark.conf.get(DAEMON) == LOADED
    schema = "daemon long, worker long, source string, drawn double, loaded boolean"
    seen = spark.range(2, numPartitions=2).mapInArrow(about, schema).collect()
    assert [row.loaded for row in seen] == [True, True]
    assert {row.source for row in seen} == {pyspark.__file__}  # and not the one in Spark's zip, which has no bytecode
    assert len({row.worker for row in seen}) == len({row.drawn for row in seen}) == 2
    stream = generate(spark, tmp_path, keys=6, rows=100, files=2)
    windows = fb.groupBy(stream.streaming("0 seconds"), fb.window("ts", "1 second"), "key")
    run(windows.agg(fb.apply(parent, "daemon long")), tmp_path / "checkpoint", "daemons")
    daemons = {row.daemon for row in spark.table("daemons").collect()}
    assert daemons == {row.daemon for row in seen} and len(daemons) == 1


def test_the_process_is_started_when_a_session_is_made_and_once(spark):
    for thread in threading.enumerate():
        if thread.name == early.GROUP:
            thread.join()
    jobs, begun = spark.sparkContext.statusTracker(), set(spark.sparkContext.statusTracker().getJobIdsForGroup(early.GROUP))
    early._begun.discard(spark.sparkContext)
    for _ in range(2):
        assert fb.configure(SparkSession.builder).getOrCreate().sparkContext is spark.sparkContext
    deadline = time.monotonic() + 60
    while [jobs.getJobInfo(job).status for job in set(jobs.getJobIdsForGroup(early.GROUP)) - begun] != ["SUCCEEDED"]:
        assert time.monotonic() < deadline, "no such job has ended, or more than one"
        time.sleep(0.1)


def test_a_session_may_be_stopped_at_once():
    """In a process of its own, whose only session it is; no other one is made by what starts the workers."""
    program = (
        "import threading\n"
        "from pyspark import SparkContext\n"
        "from pyspark.sql import SparkSession\n"
        "import forebay as fb\n"
        "session = fb.configure(SparkSession.builder.master('local[2]').config('spark.ui.enabled', 'false')).getOrCreate()\n"
        "session.stop()\n"
        "[each.join() for each in threading.enumerate() if each.name == 'forebay-early']\n"
        "print(SparkContext._active_spark_context, SparkSession.getActiveSession())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "None None\n"
    assert "Traceback" not in done.stderr


def test_a_builder_of_another_class_stays_one():
    class Own(SparkSession.Builder):
        pass

    ours, own = SparkSession.builder.config("x", "1"), Own()
    for builder in (ours, own):
        early.begin_with(builder)
    assert (type(ours), type(own)) == (early.Builder, Own)
    copied = copy.deepcopy(ours).config("y", "2")
    assert (type(copied), copied._options) == (early.Builder, {"x": "1", "y": "2"})
    assert ours._options == {"x": "1"}


def test_with_a_single_core_nothing_runs_before_the_first_query(monkeypatch):
    started = []
    monkeypatch.setattr(early, "start", started.append)
    sessions = [Mock(SparkSession) for _ in range(2)]
    for session, master in zip(sessions, ("local[1]", "local[2]"), strict=True):
        session.sparkContext.master = master
        early._started(session)
    early._started("a session of Connect")
    assert started == sessions[1:]


def test_a_worker_whose_connection_spark_has_closed_ends_without_a_traceback():
    script = """
import socket
from forebay.spark.worker import daemon
ours, theirs = socket.socketpair()
theirs.close()
print(daemon.{name}(ours, True))
"""
    environment = {**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "true"}  # which Spark sets

    def ended(name):
        command = [sys.executable, "-c", script.format(name=name)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    assert "BrokenPipeError" in ended("_serve").stderr
    assert ended("serve").stdout == "1\n"
    assert "Traceback" not in ended("serve").stderr
