"""forebay, with the memory that it has by default; or with so much that state stays in memory."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import forebay as fb
from peers.common import Result, Workload, main
from peers.session import bids, spark_session, timed


def run(workload: Workload, data: Path, output: Path | None, arguments: Namespace) -> Result:
    spark = spark_session()
    if arguments.state == "memory":
        spark.conf.set("spark.forebay.memoryMB", "4096")
    window = {
        "tumbling": lambda: fb.window("ts", f"{workload.size} seconds"),
        "sliding": lambda: fb.window("ts", f"{workload.size} seconds", f"{workload.slide} seconds"),
        "session": lambda: fb.session_window("ts", f"{workload.size} seconds"),
    }[workload.kind]()
    aggregate = fb.median("price") if workload.function == "median" else fb.count("*")
    results = fb.groupBy(bids(spark, data), window, workload.key).agg(aggregate.alias("value"))
    return timed(results, workload, output)


if __name__ == "__main__":
    main(run, ("--state", {"choices": ("disk", "memory"), "default": "disk"}))
