"""Where the time of a query goes: the same stream through more and more of forebay, each step a query of its own.

    python benchmarks/breakdown.py [tumbling-median ...]

Every step does what the one before it does, and one thing more; the difference is what that costs. Wall time per event and
micro-batch on two cores, after a warm-up; CPU time of the JVM and of the Python workers beside it. The input is the
race's (``benchmarks/race.py``). The table goes to ``bench/breakdown.csv`` and into ``docs/performance.md``.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa

import report

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import vehicle_peer
from common import WORKLOADS, Workload
from forebay_peer import aggregate_of, window_of
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from session import bids, spark_session

import forebay as fb
from forebay.spark import worker
from forebay.spark.binding import bind
from forebay.spark.conf import Conf
from forebay.spark.groupby import _VNODE, _packer
from forebay.spark.operator import PAYLOAD
from race import BENCH, ROOT, part

cloudpickle.register_pickle_by_value(vehicle_peer)  # workers cannot import it
WHOLE = "store, windows, aggregates, results to rows"
PACKED = f"{_VNODE} int, {PAYLOAD} binary"


def steps(spark: SparkSession, workload: Workload, data: Path) -> dict[str, Callable[[], DataFrame]]:
    stream = bids(spark, data)
    bound = bind(stream, window_of(workload), (workload.key,), (aggregate_of(workload),), Conf.of(spark))
    projected = stream.select(*bound.projection)
    plan = worker.dumps(bound.plan)

    def forget(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        return iter(())

    def packed() -> DataFrame:
        return projected.mapInArrow(_packer(plan, Conf.of(spark), streaming=False), PACKED)

    def whole() -> DataFrame:
        return fb.groupBy(stream, window_of(workload), workload.key).agg(aggregate_of(workload).alias("value"))

    return {
        "scan, project, hash keys": lambda: projected,
        "rows to Arrow, to Python": lambda: projected.mapInArrow(forget, PACKED),
        "pack": packed,
        "shuffle, operator that only decodes": lambda: (
            packed().groupBy(_VNODE).transformWithStateInPandas(vehicle_peer.Empty(), "rows long", "append", "none")
        ),
        WHOLE: whole,
    }


def main() -> None:
    rows = []
    for name in sys.argv[1:] or ("tumbling-median", "session-median", "tumbling-count"):
        spark = spark_session()
        queries = steps(spark, WORKLOADS[name], part("bids", 8))
        cost(spark, queries[WHOLE]())  # compiles what the steps have in common
        before = {"wall": 0.0, "jvm": 0.0, "python": 0.0}
        for step, query in queries.items():
            now = cost(spark, query())
            more = {kind: round(now[kind] - before[kind]) for kind in now}
            rows.append({"workload": name, "step": step, **{f"{kind} ns/event": value for kind, value in more.items()}})
            print(rows[-1], {kind: round(value) for kind, value in now.items()}, flush=True)
            before = now
        spark.stop()
    table = pl.DataFrame(rows)
    table.write_csv(BENCH / "breakdown.csv")
    report.replace(ROOT / "docs" / "performance.md", "breakdown", report.markdown(table))


def cost(spark: SparkSession, df: DataFrame) -> dict[str, float]:
    """Nanoseconds per event: median wall time of a micro-batch after the first two, and CPU time in all of those."""
    java = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    with tempfile.TemporaryDirectory() as directory:
        query = df.writeStream.format("noop").option("checkpointLocation", directory).trigger(availableNow=True).start()
        begun: tuple[int, dict[str, float]] | None = None
        while not query.awaitTermination(0.05):
            last = query.lastProgress
            if begun is None and last and last.batchId >= 1:
                begun = last.batchId, cpu(java)
        assert begun
        batches = [batch for batch in query.recentProgress if batch.numInputRows and batch.batchId > begun[0]]
        rows = sum(batch.numInputRows for batch in batches)
        wall = statistics.median(batch.batchDuration * 1e6 / batch.numInputRows for batch in batches)
        used = {name: (seconds - begun[1].get(name, 0.0)) * 1e9 / rows for name, seconds in cpu(java).items()}
    return {"wall": wall, **used}


def cpu(java: int) -> dict[str, float]:
    """Seconds of CPU so far: of the JVM, and of all its descendants."""
    times, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        process = int(path.parent.name)
        parents[process] = int(fields[1])
        times[process] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # with those of children that have ended
    workers = {process for process in times if process != java and java in _ancestors(process, parents)}
    return {"jvm": times[java], "python": sum(times[process] for process in workers)}


def _ancestors(process: int, parents: dict[int, int]) -> set[int]:
    found: set[int] = set()
    while process in parents and process not in found:
        found.add(process)
        process = parents[process]
    return found


if __name__ == "__main__":
    main()
