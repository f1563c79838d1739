"""Throughput of windowed aggregates, side by side in one run: forebay and Spark's own operators with the RocksDB store.

Rows of an auction (time, bidder, price) in files, one file a micro-batch, sink ``noop``. Rows per second are those of a
micro-batch's whole duration, the median over the micro-batches after the first two. That both sides give the same is
tested in ``tests/spark``; here only the numbers of result rows are compared.

    python benchmarks/windows.py [--rows ROWS_PER_BATCH] [--batches N] [--keys KEYS] [--rate EVENTS_PER_SECOND]
"""

import argparse
import itertools
import statistics
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import forebay as fb

WARM_UP = 2
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--windows", nargs="*", choices=["tumbling", "sliding", "session"])
    arguments = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "6g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "64000")
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    span = arguments.rows * arguments.batches / arguments.rate
    print(f"{arguments.batches} x {arguments.rows:,} rows, {arguments.keys:,} keys, {span:.0f} s of event time")
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        write(work / "bids", arguments)
        stream = (
            spark.readStream.schema("ts timestamp, bidder long, price long")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(work / "bids"))
            .withWatermark("ts", "1 second")
        )
        windows = {
            "tumbling": (fb.window("ts", "10 seconds"), F.window("ts", "10 seconds")),
            "sliding": (fb.window("ts", "10 seconds", "5 seconds"), F.window("ts", "10 seconds", "5 seconds")),
            "session": (fb.session_window("ts", "5 seconds"), F.session_window("ts", "5 seconds")),
        }
        medians, means = (fb.median("price"), F.median("price")), (fb.avg("price"), F.avg("price"))
        for kind, (mine, theirs) in itertools.product(arguments.windows or windows, (medians, means)):
            name = f"{kind} {mine.function}"
            ours = fb.groupBy(stream, windows[kind][0], "bidder").agg(fb.count("*"), mine)
            spark_own = stream.groupBy(windows[kind][1], "bidder").agg(F.count("*"), theirs)
            rate, rows = race(ours, work / f"{name} forebay")
            spark_rate, spark_rows = race(spark_own, work / f"{name} spark")
            assert rows == spark_rows, (name, rows, spark_rows)
            print(f"{name:32} forebay {rate:>9,.0f}/s   spark {spark_rate:>9,.0f}/s   {rate / spark_rate:.1f}x", flush=True)
    spark.stop()


def write(path: Path, arguments: argparse.Namespace) -> None:
    path.mkdir()
    random = np.random.default_rng(1)
    for batch in range(arguments.batches):
        number = np.arange(batch * arguments.rows, (batch + 1) * arguments.rows)
        table = pa.table(
            {
                "ts": pa.array(number * 1_000_000 // arguments.rate, pa.timestamp("us", "UTC")),
                "bidder": random.integers(0, arguments.keys, arguments.rows),
                "price": random.integers(100, 100_000, arguments.rows),
            }
        )
        pq.write_table(table, path / f"{batch:03}.parquet")


def race(df: DataFrame, checkpoint: Path) -> tuple[float, int]:
    """Rows per second of a query, and the number of rows that it gave."""
    query = df.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [batch for batch in query.recentProgress if batch.numInputRows][WARM_UP:]
    rate = statistics.median(batch.numInputRows / batch.batchDuration * 1000 for batch in batches)
    return rate, sum(batch.sink.numOutputRows for batch in query.recentProgress)


if __name__ == "__main__":
    main()
