"""A streaming query in a process of its own, for tests that kill parts of it.

    python job_to_kill.py KIND MASTER DIRECTORY

It reads ``DIRECTORY/source``, a file per micro-batch, to the end, and writes ``DIRECTORY/out``.
"""

import sys
from pathlib import Path

import polars as pl
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession

import forebay as fb

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def attempt():
    """Which attempt at a task of the first partition this is, from the third micro-batch on; None in other tasks."""
    context = TaskContext.get()
    late = int(context.getLocalProperty("streaming.sql.batchId")) >= 3
    return context.attemptNumber() if late and context.partitionId() == 0 else None


def failing(key, rows: pl.DataFrame) -> pl.DataFrame:
    if attempt() == 0:
        raise OSError("on purpose")
    if attempt():
        Path(MARK).touch()
    return rows.select(value=pl.len().cast(pl.Int64))


KINDS = {
    "AAR": lambda df: fb.groupBy(df, fb.window("ts", "10 seconds"), "key").agg(fb.median("x").alias("value")),
    "AUR": lambda df: fb.groupBy(df, fb.session_window("ts", "2 seconds"), "key").agg(fb.median("x").alias("value")),
    "RMW": lambda df: fb.groupBy(df, fb.window("ts", "10 seconds", "5 seconds"), "key").agg(fb.sum("x").alias("value")),
    "sessions": lambda df: fb.groupBy(df, fb.session_window("ts", "2 seconds"), "key").agg(fb.count("*").alias("value")),
    "failing": lambda df: fb.groupBy(df, fb.window("ts", "10 seconds"), "key").agg(fb.apply(failing, "value long")),
}


MARK = ""
"""A file that says that some task was tried again."""


def main(kind, master, directory):
    global MARK
    MARK = f"{directory}/tried again"
    cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    builder = SparkSession.builder.master(master)
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "1g",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.log.level": "ERROR",
        **({"spark.forebay.localDirectory": f"{directory}/node"} if kind in ("AUR", "RMW") else {}),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    df = spark.readStream.schema("ts timestamp, key long, x long").option("maxFilesPerTrigger", 1)
    stream = df.parquet(f"{directory}/source").withWatermark("ts", "1 second")
    writer = KINDS[kind](stream).writeStream.format("parquet").option("checkpointLocation", f"{directory}/checkpoint")
    query = writer.trigger(availableNow=True).start(f"{directory}/out")
    query.awaitTermination()
    Path(directory, "done").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
