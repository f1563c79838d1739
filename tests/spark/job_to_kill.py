"""A streaming query in a process of its own, for tests that kill parts of it.

    python job_to_kill.py KIND MASTER DIRECTORY

It reads ``DIRECTORY/source``, a file per micro-batch, to the end, and writes ``DIRECTORY/out``.
"""

import os
import signal
import sys
import time
from pathlib import Path

import polars as pl
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession

import forebay as fb


def executor():
    """The executor that has started this Python worker."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


def applied(disturb):
    """A function for ``fb.apply`` that counts rows. It is disturbed once, and notes when its task begins again.

    A task whose number of attempts begins at 0 again is part of a new attempt at its stage.
    """

    def count(key, rows: pl.DataFrame) -> pl.DataFrame:
        context, disturbed = TaskContext.get(), Path(MARK + " because of")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if int(batch) >= 3 and context.partitionId() == 0:
            if not disturbed.exists():
                disturbed.write_text(batch)
                disturb()
            elif disturbed.read_text() == batch:
                with Path(MARK).open("a") as mark:
                    mark.write("task " if context.attemptNumber() else "stage ")
        return rows.select(value=pl.len().cast(pl.Int64))

    return lambda df: fb.groupBy(df, fb.window("ts", "10 seconds"), "key").agg(fb.apply(count, "value long"))


def fail():
    raise OSError("on purpose")


def kill_executor():
    os.kill(executor(), signal.SIGKILL)


def dawdle():
    """Until another attempt has begun, and on for a while."""
    until = time.monotonic() + 100
    while time.monotonic() < until and not Path(MARK).exists():
        time.sleep(0.05)
    time.sleep(0.5)


KINDS = {
    "AAR": lambda df: fb.groupBy(df, fb.window("ts", "10 seconds"), "key").agg(fb.median("x").alias("value")),
    "AUR": lambda df: fb.groupBy(df, fb.session_window("ts", "2 seconds"), "key").agg(fb.median("x").alias("value")),
    "RMW": lambda df: fb.groupBy(df, fb.window("ts", "10 seconds", "5 seconds"), "key").agg(fb.sum("x").alias("value")),
    "sessions": lambda df: fb.groupBy(df, fb.session_window("ts", "2 seconds"), "key").agg(fb.count("*").alias("value")),
    "preceding": lambda df: fb.groupBy(df, fb.preceding("ts", "2 seconds"), "key").agg(fb.sum("x").alias("value")),
    "failing": applied(fail),
    "losing": applied(kill_executor),
    "slow": applied(dawdle),
}


MARK = ""
"""A file that tells what was tried again."""


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
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.speculation": str(kind == "slow").lower(),
        "spark.speculation.quantile": "0.5",
        **({"spark.forebay.localDirectory": f"{directory}/node"} if kind in ("AUR", "RMW") else {}),
    }.items():
        builder = builder.config(name, value)
    spark = fb.configure(builder).getOrCreate()
    df = spark.readStream.schema("ts timestamp, key long, x long").option("maxFilesPerTrigger", 1)
    stream = df.parquet(f"{directory}/source").withWatermark("ts", "1 second")
    writer = KINDS[kind](stream).writeStream.format("parquet").option("checkpointLocation", f"{directory}/checkpoint")
    query = writer.trigger(availableNow=True).start(f"{directory}/out")
    query.awaitTermination()
    Path(directory, "done").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
