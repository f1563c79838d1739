"""Spark's own windows, with the RocksDB or the in-memory state store. ``percentile`` is its exact median."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pyspark.sql import functions as F

from peers.common import Result, Workload, main
from peers.session import MEMORY, ROCKSDB, bids, spark_session, timed


def run(workload: Workload, data: Path, output: Path | None, arguments: Namespace) -> Result:
    spark = spark_session(ROCKSDB if arguments.state == "rocksdb" else MEMORY)
    window = {
        "tumbling": lambda: F.window("ts", f"{workload.size} seconds"),
        "sliding": lambda: F.window("ts", f"{workload.size} seconds", f"{workload.slide} seconds"),
        "session": lambda: F.session_window("ts", f"{workload.size} seconds"),
    }[workload.kind]()
    aggregate = F.percentile("price", 0.5) if workload.function == "median" else F.count("*")
    results = bids(spark, data).groupBy(window, workload.key).agg(aggregate.alias("value"))
    return timed(results, workload, output)


if __name__ == "__main__":
    main(run, ("--state", {"choices": ("rocksdb", "memory"), "default": "rocksdb"}))
