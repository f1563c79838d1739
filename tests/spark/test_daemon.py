"""The workers of a local session: where they come from, and what they have when they begin."""

import os
import sys
import threading
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession
from streams import generate, run

import forebay as fb
from forebay.spark.driver import early
from forebay.spark.driver.configure import DAEMON, LOADED

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
