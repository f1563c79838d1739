"""What a micro-batch costs however small it is: forebay beside Spark's own windows, in one session with the same settings.

    python benchmarks/latency.py [rows] [chain] [partitions] [cold] [--quick]

``--quick`` has fewer sizes and micro-batches. Medians of the times of micro-batches (Spark's ``triggerExecution``), by the
age of the process, by rows in a micro-batch, by state partitions, and by operators in a chain, of tumbling medians and
counts of 10 seconds; the two engines take turns, so that both meet the same machine. By the time that rows are varied, Java
has compiled what each micro-batch runs. Then the start of a process, in processes of their own: the first micro-batches,
and the time until the first one has ended; with Spark's classes as ``forebay warmup`` keeps them, and read anew. State is
in RocksDB, results go to Spark's noop sink. Tables go to ``bench/latency-*.csv`` and into ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import report

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from session import spark_session

import forebay as fb
from forebay.spark.driver.shared_classes import OPTIONS
from race import BENCH, ROOT

ENGINES = ("forebay", "spark")
PARTS = ("rows", "chain", "partitions", "cold")
SECONDS = 2
"""Of event time in a micro-batch: every fifth one fires a window."""
WARMING = 5
"""Micro-batches of each query that are not measured."""
AGES = (1, 4, 16)
"""Which queries of each engine and aggregate are told, counted from the start of the process."""


def written(rows: int, files: int) -> Path:
    """A directory with files of so many rows, two for each key, which a stream takes one by one."""
    directory = BENCH / "data" / f"latency-{rows}-{files}"
    if not (directory / "done").exists():
        directory.mkdir(parents=True, exist_ok=True)
        numbers = np.random.default_rng(1)
        for file in range(files):
            times = np.sort(numbers.integers(file * SECONDS * 1_000_000, (file + 1) * SECONDS * 1_000_000, rows))
            columns = {"ts": pa.array(times, pa.timestamp("us", "UTC")), "key": numbers.integers(0, max(1, rows // 2), rows)}
            path = directory / f"{file:05}.parquet"
            pq.write_table(pa.table({**columns, "x": numbers.random(rows)}), path)
            os.utime(path, (1_600_000_000 + file, 1_600_000_000 + file))  # the order in which the stream takes them
        (directory / "done").touch()
    return directory


def chained(spark: SparkSession, engine: str, function: str, data: Path, operators: int) -> DataFrame:
    """So many operators, each over the results of the one before."""
    source = spark.readStream.schema("ts timestamp, key long, x double").option("maxFilesPerTrigger", 1)
    found = source.parquet(str(data / "*.parquet")).withWatermark("ts", "1 second")
    at = "ts"
    for _ in range(operators):
        if engine == "forebay":
            ours = fb.median("x") if function == "median" else fb.count("*")
            found = fb.groupBy(found, fb.window(at, "10 seconds"), "key").agg(ours.alias("x"))
        else:
            theirs = F.percentile("x", 0.5) if function == "median" else F.count("*")
            found = found.groupBy(F.window(at, "10 seconds"), "key").agg(theirs.alias("x"))
        found, at = found.select(F.window_time("window").alias("at"), "key", F.col("x").cast("double").alias("x")), "at"
    return found


def durations(df: DataFrame) -> list[dict[str, int]]:
    """The durations of a query's micro-batches with rows, in milliseconds."""
    with tempfile.TemporaryDirectory() as directory:
        query = df.writeStream.format("noop").option("checkpointLocation", directory).trigger(availableNow=True).start()
        query.awaitTermination()
        return [
            batch["durationMs"]
            for batch in (json.loads(each.json) for each in query.recentProgress)
            if batch["numInputRows"]
        ]


def compared(spark: SparkSession, function: str, data: Path, operators: int, rounds: int) -> dict[str, object]:
    """Medians of both engines, who take turns."""
    times: dict[str, list[dict[str, int]]] = {engine: [] for engine in ENGINES}
    for _ in range(rounds):
        for engine in ENGINES:
            times[engine] += durations(chained(spark, engine, function, data, operators))[WARMING:]
    told = {engine: statistics.median(each["triggerExecution"] for each in times[engine]) for engine in ENGINES}
    planning = {engine: statistics.median(each["queryPlanning"] for each in times[engine]) for engine in ENGINES}
    return {
        "forebay ms": round(told["forebay"]),
        "Spark ms": round(told["spark"]),
        "ratio": round(told["forebay"] / told["spark"], 2),
        "planning ms": round(planning["forebay"]),
        "Spark planning ms": round(planning["spark"]),
    }


def aged(spark: SparkSession, files: int, ages: Sequence[int]) -> list[dict[str, object]]:
    """Queries of both engines, one after the other in a new process; those are told whose numbers are among the ages."""
    rows = []
    for age in range(1, ages[-1] + 1):
        for function in ("median", "count"):
            found = compared(spark, function, written(1000, files), 1, 1)
            if age in ages:
                rows.append({"query": age, "aggregate": function, **found})
                print("age", rows[-1], flush=True)
    return rows


def first(engine: str, function: str) -> None:
    """In a process of its own: how long the first two micro-batches took, and when the first one ended; prints all."""
    spark = spark_session()
    df = chained(spark, engine, function, written(1000, 20), 1)
    with tempfile.TemporaryDirectory() as directory:
        query = df.writeStream.format("noop").option("checkpointLocation", directory).trigger(availableNow=True).start()
        while query.lastProgress is None:
            time.sleep(0.01)
        ended = time.time()
        query.awaitTermination()
        print(json.dumps([*(batch.durationMs["triggerExecution"] / 1000 for batch in query.recentProgress[:2]), ended]))
    spark.stop()


def started(engine: str, function: str, *, kept: bool) -> list[float]:
    """Seconds: of the first two micro-batches of a process, and from its start to the end of the first."""
    command = [sys.executable, __file__, "--first", engine, function]
    given = {} if kept else {OPTIONS: "-Xshare:auto"}
    if engine == "spark":  # which has no use for the workers that `fb.configure` has started
        given["spark.python.use.daemon"] = "false"
    arguments = " ".join(f"--conf {name}={value}" for name, value in given.items())
    env = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"{arguments} {os.environ.get('PYSPARK_SUBMIT_ARGS', 'pyspark-shell')}"}
    began = time.time()
    ended = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    *batches, at = json.loads(ended.stdout.splitlines()[-1])
    return [*batches, at - began]


def cold(rounds: int) -> list[dict[str, object]]:
    rows = []
    for function, kept in (("median", True), ("count", True), ("median", False)):
        found: dict[str, list[list[float]]] = {engine: [] for engine in ENGINES}
        for _ in range(rounds):
            for engine in ENGINES:
                found[engine].append(started(engine, function, kept=kept))
        told = {engine: [statistics.median(times) for times in zip(*found[engine], strict=True)] for engine in ENGINES}
        for place, name in enumerate(("first micro-batch", "second micro-batch", "from the start to the end of the first")):
            mine, theirs = (told[engine][place] for engine in ENGINES)
            row = {"aggregate": function, "Spark's classes": "kept" if kept else "read", "what": name}
            rows.append({**row, "forebay s": round(mine, 2), "Spark s": round(theirs, 2), "ratio": round(mine / theirs, 2)})
            print(rows[-1], flush=True)
    return rows


def warm(parts: list[str], *, quick: bool) -> dict[str, list[dict[str, object]]]:
    rounds, files = (1, 20) if quick else (3, 30)
    tables: dict[str, list[dict[str, object]]] = {part: [] for part in ("age", *parts)}

    def add(table: str, spark: SparkSession, what: dict[str, object], function: str, rows: int, operators: int = 1) -> None:
        data = written(rows, files if rows < 1_000_000 else 12)
        tables[table].append({**what, "aggregate": function, **compared(spark, function, data, operators, rounds)})
        print(table, tables[table][-1], flush=True)

    for partitions in ((2, 1) if quick else (2, 1, 4)) if "partitions" in parts else (2,):
        spark = spark_session(partitions=partitions)
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
        if tables["age"]:
            compared(spark, "median", written(1000, files), 1, 1)  # what a new session does once
        else:
            tables["age"] = aged(spark, files, AGES[:2] if quick else AGES)
        if partitions == 2 and "rows" in parts:
            for rows in (1000, 100_000) if quick else (1000, 10_000, 100_000, 1_000_000):
                for function in ("median", "count"):
                    add("rows", spark, {"rows": rows}, function, rows)
        if partitions == 2 and "chain" in parts:
            for operators in (1, 2) if quick else (1, 2, 3):
                add("chain", spark, {"operators": operators}, "count", 1000, operators)
        if "partitions" in parts:
            add("partitions", spark, {"partitions": partitions}, "median", 1000)
        spark.stop()
    return tables


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--first", nargs=2, metavar=("ENGINE", "AGGREGATE"))
    arguments = parser.parse_args()
    if arguments.first:
        first(*arguments.first)
        return
    parts = arguments.parts or list(PARTS)
    tables = warm([part for part in parts if part != "cold"], quick=arguments.quick) if parts != ["cold"] else {}
    if "cold" in parts:
        tables["cold"] = cold(1 if arguments.quick else 3)
    for name, rows in tables.items():
        table = pl.DataFrame(rows)
        table.write_csv(BENCH / f"latency-{name}.csv")
        report.replace(ROOT / "docs" / "benchmarks.md", f"latency-{name}", report.markdown(table))


if __name__ == "__main__":
    main()
