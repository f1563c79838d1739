"""Joins, deduplication and aggregates without windows: forebay against Spark's own operators on RocksDB.

    python benchmarks/joins.py [--quick] [--only window interval ...]

Two streams have 20,000 rows each per second of event time, of keys that are drawn evenly, with a number and a text of 34
characters. A micro-batch has 200,000 rows of each, which are 10 s of it. A row meets two others on average.

window         rows of both streams in the same window of 10 s (`fb.join`)
interval       rows of the right stream up to 10 s after one of the left (`fb.intervalJoin`)
...-left       the same with the rows of the left stream that meet none (left outer)
deduplication  the rows of one stream whose key has not been seen for 10 s (`fb.dedupe`, ``dropDuplicatesWithinWatermark``)
rolling        a count and a sum for each key of one stream, whenever they change (`fb.rolling`, update mode)

Before anything is timed, both engines answer a small input, and their answers must be equal, of joins those to the first
half of it. Then each query runs three times in a session, and the last run counts, without the first quarter of its
micro-batches. There are 12 of them, and 4 for Spark's joins, which take 7 to 11 s each.

The table goes to ``bench/joins`` and, when nothing was left out, into ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from common import Result
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from session import measured, spark_session

import forebay as fb
import report

SECONDS = 10
"""Event time of a micro-batch, of a window and of an interval."""
DELAY = "1 second"
TEXTS = 1000
BEGIN = 1_700_000_000_000_000
SIDES = ("left", "right")
RUNS = 3


@dataclass(frozen=True)
class Streams:
    """Two streams: rows of each in a micro-batch, keys, and micro-batches."""

    rows: int
    keys: int
    batches: int


CHECK = Streams(2_000, 1_000, 6)
TIMED, SLOW = Streams(200_000, 100_000, 12), Streams(200_000, 100_000, 4)
"""For most queries, and for Spark's joins."""
QUICK = Streams(50_000, 25_000, 4)


def generate(directory: Path, streams: Streams) -> None:
    """Write a file of each stream for each micro-batch."""
    drawn = np.random.default_rng(1)
    texts = pa.array([f"a note of one row, number {number:08}" for number in range(TEXTS)])
    for batch in range(streams.batches):
        times = BEGIN + (np.arange(streams.rows) * SECONDS * 1_000_000 // streams.rows) + batch * SECONDS * 1_000_000
        for side in SIDES:
            columns = {
                "time": pa.array(times, pa.timestamp("us", "UTC")),
                "key": drawn.integers(0, streams.keys, streams.rows),
                side: drawn.integers(0, 1_000_000, streams.rows),
                f"{side}_note": texts.take(pa.array(drawn.integers(0, TEXTS, streams.rows))),
            }
            (directory / side).mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(columns), directory / side / f"{batch:03}.parquet")


@dataclass(frozen=True)
class Sources:
    """The streams over the files of a directory."""

    spark: SparkSession
    directory: Path

    def stream(self, side: str, delay: str | None = DELAY) -> DataFrame:
        schema = f"time timestamp, key long, {side} long, {side}_note string"
        files = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        rows = files.parquet(str(self.directory / side))
        return rows if delay is None else rows.withWatermark("time", delay)

    @property
    def left(self) -> DataFrame:
        return self.stream("left")

    @property
    def right(self) -> DataFrame:
        return self.stream("right")


def window(sources: Sources, how: str = "inner") -> DataFrame:
    return fb.join(sources.left, sources.right, "key", fb.window("time", f"{SECONDS} seconds"), how)


def window_of_spark(sources: Sources, how: str = "inner") -> DataFrame:
    """The window has the watermark; a second column with one is refused by Spark."""
    of, plain = F.window("time", f"{SECONDS} seconds"), F.timestamp_micros(F.unix_micros("time"))
    left, right = (stream.withColumn("window", of).withColumn("time", plain) for stream in (sources.left, sources.right))
    return left.join(right.withColumnRenamed("time", "time_right"), ["window", "key"], how)


def interval(sources: Sources, how: str = "inner") -> DataFrame:
    return fb.intervalJoin(sources.left, sources.right, "key", "0 seconds", f"{SECONDS} seconds", how).drop("event_time")


def interval_of_spark(sources: Sources, how: str = "inner") -> DataFrame:
    right = sources.right.withColumnsRenamed({"time": "time_right", "key": "key_right"})
    near = F.expr(f"key = key_right AND time_right BETWEEN time AND time + INTERVAL {SECONDS} SECONDS")
    return sources.left.join(right, near, how).drop("key_right")


def rolling_of_spark(sources: Sources) -> DataFrame:
    return sources.stream("left", None).groupBy("key").agg(F.count("*").alias("n"), F.sum("left").alias("total"))


def rolling(sources: Sources) -> DataFrame:
    return fb.rolling(sources.stream("left", None), "key").agg(fb.count("*").alias("n"), fb.sum("left").alias("total"))


def deduplication(sources: Sources) -> DataFrame:
    return fb.dedupe(sources.stream("left", f"{SECONDS} seconds"), "key", f"{SECONDS} seconds")


def deduplication_of_spark(sources: Sources) -> DataFrame:
    return sources.stream("left", f"{SECONDS} seconds").dropDuplicatesWithinWatermark(["key"])


Query = Callable[[Sources], DataFrame]
QUERIES: dict[str, dict[str, Query]] = {
    "window": {"forebay": window, "spark": window_of_spark},
    "window-left": {"forebay": lambda of: window(of, "left"), "spark": lambda of: window_of_spark(of, "left")},
    "interval": {"forebay": interval, "spark": interval_of_spark},
    "interval-left": {"forebay": lambda of: interval(of, "left"), "spark": lambda of: interval_of_spark(of, "left")},
    "deduplication": {"forebay": deduplication, "spark": deduplication_of_spark},
    "rolling": {"forebay": rolling, "spark": rolling_of_spark},
}


def run(name: str, engine: str, sources: Sources, answer: str | None = None) -> Result:
    """Run a query to the end of its input: into a table of that name, or into Spark's noop sink."""
    results = QUERIES[name][engine](sources)
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = results.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writer = writer.outputMode("update" if (name, engine) == ("rolling", "spark") else "append")
        writer = writer.format("memory").queryName(answer) if answer else writer.format("noop")
        query = writer.start()
        query.awaitTermination()
        return measured(query)


def check(name: str, sources: Sources) -> int:
    """Both engines' answers must be equal, of joins those to rows that can meet no others; how many rows they have."""
    tables = []
    met = F.col("time") < F.timestamp_micros(F.lit(BEGIN + (CHECK.batches - 3) * SECONDS * 1_000_000))
    for engine in QUERIES[name]:
        run(name, engine, sources, "answer")
        rows = sources.spark.table("answer")
        rows = rows.where(met) if "time_right" in rows.columns else rows
        tables.append(rows.select(*sorted(rows.columns)).collect())
    ours, theirs = (sorted(map(repr, rows)) for rows in tables)
    if ours != theirs or not ours:
        raise SystemExit(f"{name}: {len(ours)} rows of forebay, {len(theirs)} of Spark, which are not the same")
    return len(ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=QUERIES, default=list(QUERIES))
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows, and fewer micro-batches")
    arguments = parser.parse_args()
    spark = spark_session()
    with tempfile.TemporaryDirectory() as scratch:
        made: dict[Streams, Sources] = {}
        for streams in (CHECK, QUICK) if arguments.quick else (CHECK, TIMED, SLOW):
            directory = Path(scratch) / f"{streams.rows} x {streams.batches}"
            generate(directory, streams)
            made[streams] = Sources(spark, directory)
        rows = []
        for name in arguments.only:
            print(f"check {name:16} {check(name, made[CHECK]):>10,} rows equal", flush=True)
            rates = {}
            for engine in QUERIES[name]:
                slow = engine == "spark" and name.startswith(("window", "interval"))
                for _ in range(RUNS):
                    result = run(name, engine, made[QUICK if arguments.quick else SLOW if slow else TIMED])
                rates[engine] = round(result.events / result.seconds)
                print(f"      {name:16} {engine:8} {rates[engine]:>10,} rows/s", flush=True)
            rows.append({"query": name, **report.compared(rates, 1)})
    spark.stop()
    report.keep(rows, "joins", told=not arguments.quick and arguments.only == list(QUERIES))


if __name__ == "__main__":
    main()
