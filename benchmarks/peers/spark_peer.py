"""Spark's own windows, with the RocksDB or the in-memory state store. ``percentile`` is its exact median."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from common import Result, Workload, main
from pyspark.sql import functions as F
from session import MEMORY, ROCKSDB, bids, spark_session, timed


def run(workload: Workload, data: Path, output: Path | None, arguments: Namespace) -> Result:
    provider = ROCKSDB if arguments.state == "rocksdb" else MEMORY
    spark = spark_session(provider, master=f"local[{arguments.cores}]", partitions=arguments.cores)
    size, slide = f"{workload.size} seconds", f"{workload.slide} seconds"
    window = F.session_window("ts", size) if workload.kind == "session" else F.window("ts", size, slide)
    aggregate = F.percentile("price", 0.5) if workload.function == "median" else F.count("*")
    results = bids(spark, data).groupBy(window, workload.key).agg(aggregate.alias("value"))
    return timed(results, workload, output)


if __name__ == "__main__":
    main(
        run,
        ("--state", {"choices": ("rocksdb", "memory"), "default": "rocksdb"}),
        ("--cores", {"type": int, "default": 2}),
    )
