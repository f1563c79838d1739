"""Where the time of a query goes: the same stream through more and more of forebay, each step a query of its own.

    python benchmarks/breakdown.py [tumbling-median ...]

Every step does what the one before it does, and one thing more; the difference is what that costs. Wall time per event and
micro-batch on two cores, after a warm-up; CPU time of the JVM and of the Python workers beside it. The input is the
race's (``benchmarks/race.py``). What results cost is shown by an operator that makes as many of them as the query, out of
the rows that it decodes. The table goes to ``bench/breakdown.csv`` and into ``docs/performance.md``.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa

import report

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import vehicle_peer
from common import WORKLOADS, Workload
from forebay_peer import aggregate_of, window_of
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StatefulProcessor
from session import bids, spark_session

import forebay as fb
from forebay.spark.driver.analysis import arrow_schema
from forebay.spark.driver.binding import bind
from forebay.spark.driver.conf import Conf
from forebay.spark.worker import blobs
from forebay.spark.worker.emitted import EVENT_TIME, as_columns
from forebay.spark.worker.stages import PAYLOAD, VNODE, packer
from forebay.spark.worker.startup import Shipped
from race import BENCH, ROOT, part

cloudpickle.register_pickle_by_value(vehicle_peer)  # workers cannot import it
PACKED = f"{VNODE} int, {PAYLOAD} binary"


class Some(vehicle_peer.Empty):
    """Decodes the blobs of a virtual node and makes results of a share of the rows, with a window, a key and a value."""

    def __init__(self, schema: pa.Schema, share: float) -> None:
        self._schema, self._share = schema, share

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        yield from as_columns(self._results(rows), PAYLOAD)
        self._seen.update((1,))

    def _results(self, rows: Iterator[pd.DataFrame]) -> Iterator[pa.RecordBatch]:
        window, _, value = self._schema
        for batch in (batch for frame in rows for blob in frame[PAYLOAD].dropna() for batch in blobs.read(blob)[0]):
            given = batch.slice(0, round(self._share * batch.num_rows))
            instants = pa.repeat(pa.scalar(0, window.type[0].type), given.num_rows)
            windows = pa.StructArray.from_arrays([instants, instants], fields=list(window.type))
            yield pa.RecordBatch.from_arrays([windows, given[0], given[1].cast(value.type)], schema=self._schema)


def whole(stream: DataFrame, workload: Workload) -> DataFrame:
    return fb.groupBy(stream, window_of(workload), workload.key).agg(aggregate_of(workload).alias("value"))


def steps(spark: SparkSession, stream: DataFrame, workload: Workload, share: float) -> dict[str, Callable[[], DataFrame]]:
    """The queries; ``share`` is how many results there are of a row."""
    bound = bind(stream, window_of(workload), (workload.key,), (aggregate_of(workload),), Conf.of(spark))
    projected = stream.select(*bound.projection)
    plan = Shipped(bound.plan)

    def forget(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        return iter(())

    def packed() -> DataFrame:
        conf = Conf.of(spark)
        return projected.mapInArrow(packer(plan, conf.place, bound.layout, streaming=False), PACKED)

    def operated(operator: StatefulProcessor, schema: str) -> DataFrame:
        return packed().groupBy(VNODE).transformWithStateInPandas(operator, schema, "append", "none")

    def resulting() -> DataFrame:
        columns = ", ".join(f"c{place} {field.dataType.simpleString()}" for place, field in enumerate(bound.schema.fields))
        return operated(Some(arrow_schema(bound.schema), share), f"{PAYLOAD} binary, {EVENT_TIME} timestamp, {columns}")

    return {
        "scan, project, hash keys": lambda: projected,
        "rows to Arrow, to Python": lambda: projected.mapInArrow(forget, PACKED),
        "pack": packed,
        "shuffle, operator that only decodes": lambda: operated(vehicle_peer.Empty(), "rows long"),
        "as many results, to rows": resulting,
        "store, windows, aggregates": lambda: whole(stream, workload),
    }


def main() -> None:
    rows = []
    for name in sys.argv[1:] or ("tumbling-median", "session-median", "tumbling-count"):
        spark = spark_session()
        workload = WORKLOADS[name]
        stream = bids(spark, part("bids", 12))
        share = cost(spark, whole(stream, workload))["results"]  # and compiles what the steps have in common
        before = {"wall": 0.0, "jvm": 0.0, "python": 0.0}
        for step, query in steps(spark, stream, workload, share).items():
            now = cost(spark, query())
            more = {f"{kind} ns/event": round(now[kind] - before[kind]) for kind in ("wall", "jvm", "python")}
            rows.append({"workload": name, "step": step, **more})
            print(rows[-1], {kind: round(value, 2) for kind, value in now.items()}, flush=True)
            before = now
        spark.stop()
    table = pl.DataFrame(rows)
    table.write_csv(BENCH / "breakdown.csv")
    report.replace(ROOT / "docs" / "performance.md", "breakdown", report.markdown(table))


def cost(spark: SparkSession, df: DataFrame) -> dict[str, float]:
    """Nanoseconds per event: median wall time of a micro-batch after the first two, and CPU time in all of those.

    And how many results there were of an event in those.
    """
    assert spark._jvm is not None
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    with tempfile.TemporaryDirectory() as directory:
        query = df.writeStream.format("noop").option("checkpointLocation", directory).trigger(availableNow=True).start()
        begun: tuple[int, dict[str, float]] | None = None
        while not query.awaitTermination(0.05):  # type: ignore[arg-type]  # it takes fractions
            last = query.lastProgress
            if begun is None and last and last.batchId >= 1:
                begun = last.batchId, cpu(java)
        assert begun
        batches = [batch for batch in query.recentProgress if batch.numInputRows and batch.batchId > begun[0]]
        rows = sum(batch.numInputRows for batch in batches)
        wall = statistics.median(batch.batchDuration * 1e6 / batch.numInputRows for batch in batches)
        used = {name: (seconds - begun[1].get(name, 0.0)) * 1e9 / rows for name, seconds in cpu(java).items()}
    results = sum(batch.sink.numOutputRows for batch in batches) / rows
    return {"wall": wall, **used, "results": results}


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
