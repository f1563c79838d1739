"""The Spark session and the stream that all peers on Spark have, and how their queries are timed."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
from common import DELAY_SECONDS, Result, Workload
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import forebay as fb
from forebay.nexmark.run import measure

PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
ROCKSDB = PROVIDERS + "RocksDBStateStoreProvider"
MEMORY = PROVIDERS + "HDFSBackedStateStoreProvider"


def spark_session(provider: str = ROCKSDB, master: str = "local[2]", partitions: int = 2, **confs: str) -> SparkSession:
    """A session with the settings of `fb.configure`, whichever peer it is for."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "6g",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.sql.streaming.stateStore.providerClass": provider,
        "spark.log.level": "OFF",
        **{name.replace("__", "."): value for name, value in confs.items()},
    }
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return fb.configure(builder).getOrCreate()


def bids(spark: SparkSession, data: Path) -> DataFrame:
    """The input as a stream: in each micro-batch the files of a pair, of which there may be one."""
    schema = "ts timestamp, auction long, bidder long, price long"
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", len([*data.glob("00000-?.parquet")]))
    return source.parquet(str(data / "*.parquet")).withWatermark("ts", f"{DELAY_SECONDS} second")


def timed(results: DataFrame, workload: Workload, output: Path | None) -> Result:
    """Run a query to the end of its input: with ``output`` into that file, otherwise into Spark's noop sink."""
    with tempfile.TemporaryDirectory() as directory:
        writer = results.writeStream.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
        query = writer.format("parquet").start(f"{directory}/out") if output else writer.format("noop").start()
        query.awaitTermination()
        if output:
            window = "session_window" if workload.kind == "session" else "window"
            bounds = [F.unix_micros(F.col(f"{window}.{bound}")).alias(bound) for bound in ("start", "end")]
            columns = [*bounds, F.col(workload.key).alias("key"), F.col("value").cast("double").alias("value")]
            frame = results.sparkSession.read.schema(results.schema).parquet(f"{directory}/out")
            pq.write_table(frame.select(*columns).toArrow(), output)
        return measured(query)


def measured(query: StreamingQuery) -> Result:
    """The first quarter of the micro-batches warms up; time runs on until the last one has ended."""
    batches = [json.loads(batch.json) for batch in query.recentProgress]
    run = measure(batches)
    return Result(run.events, run.seconds, sum(batch["sink"]["numOutputRows"] for batch in batches))
