"""forebay, with the memory that it has by default; or with so much that state stays in memory."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from common import Result, Workload, main
from session import bids, spark_session, timed

import forebay as fb
from forebay.aggregates.functions import Aggregate
from forebay.spark.driver.assignments import Window


def run(workload: Workload, data: Path, output: Path | None, arguments: Namespace) -> Result:
    spark = spark_session(master=f"local[{arguments.cores}]", partitions=arguments.cores)
    if arguments.state == "memory":
        spark.conf.set("spark.forebay.memoryMB", "4096")
    window, value = window_of(workload), aggregate_of(workload)
    results = fb.groupBy(bids(spark, data), window, workload.key).agg(value.alias("value"))
    return timed(results, workload, output)


def window_of(workload: Workload) -> Window:
    if workload.kind == "session":
        return fb.session_window("ts", f"{workload.size} seconds")
    return fb.window("ts", f"{workload.size} seconds", f"{workload.slide} seconds")


def aggregate_of(workload: Workload) -> Aggregate:
    return fb.median("price") if workload.function == "median" else fb.count("*")


if __name__ == "__main__":
    main(
        run,
        ("--state", {"choices": ("disk", "memory"), "default": "disk"}),
        ("--cores", {"type": int, "default": 2}),
    )
