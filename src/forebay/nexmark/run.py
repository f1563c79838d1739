"""Running a query over generated events, and what it took: throughput, latency of events, size of state."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import forebay as fb
from forebay.errors import InvalidArgument
from forebay.nexmark.queries import QUERIES
from forebay.nexmark.source import register
from forebay.spark.driver.query import MARK, plan_of

WARM_UP = 0.25
"""The share of the micro-batches, the first ones, that is not measured."""


@dataclass(frozen=True)
class Measured:
    """What a run took.

    Attributes
    ----------
    events : int
        Events that were timed, of all kinds that the query reads; those of the warm-up are left out.
    seconds : float
        Wall time that they took, from the beginning of their first micro-batch to the end of the one after the last, which
        fires windows.
    span : float
        Seconds of event time that the whole run covered.
    latency : dict
        Quantiles of the latency of events in seconds. An event's latency is the time from its arrival to the end of the
        micro-batch that had it. With ``realTime`` events arrive at their rate; otherwise when the micro-batch begins.
    state_rows, state_bytes, rows_late : int
        State at the end, and rows dropped as late; 0 for queries without an operator of forebay.
    """

    events: int
    seconds: float
    span: float
    latency: Mapping[float, float]
    state_rows: int = 0
    state_bytes: int = 0
    rows_late: int = 0

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.seconds if self.seconds else 0.0


def session(cores: int = 2) -> SparkSession:
    """A local Spark session with what forebay needs."""
    spark = (
        fb.configure(SparkSession.builder.master(f"local[{cores}]"))
        .appName("nexmark")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.numRecentProgressUpdates", "100000")
        .getOrCreate()
    )
    register(spark)
    return spark


def results(spark: SparkSession, query: str, options: Mapping[str, str], delay: str = "4 seconds") -> DataFrame:
    """The results of a query over generated streams.

    Parameters
    ----------
    spark : SparkSession
        A session.
    query : str
        A name in `QUERIES`.
    options : mapping
        Options of the source, see `forebay.nexmark.register`.
    delay : str
        The watermark's delay.
    """
    if query not in QUERIES:
        raise InvalidArgument(f"there is no query {query!r}; there are {', '.join(QUERIES)}")
    function = QUERIES[query]
    streams = [
        spark.readStream.format("nexmark").options(**{**options, "type": name.removesuffix("s")}).load()
        for name in inspect.signature(function).parameters
    ]
    return function(*(stream.withWatermark("dateTime", delay) for stream in streams))


def run(
    df: DataFrame,
    directory: Path,
    *,
    rate: int | None = None,
    timeout: float | None = None,
    watch: Callable[[StreamingQuery], object] = lambda _: None,
) -> Measured:
    """Run a streaming DataFrame until its source ends, or for ``timeout`` seconds, writing parquet.

    Parameters
    ----------
    df : DataFrame
        From `results`.
    directory : Path
        Gets ``out`` with the results, and ``checkpoint``.
    rate : int, optional
        Events per second of wall time, if the source was told ``realTime``.
    timeout : float, optional
        Seconds. Without it the source must have an end, and the query no trigger by the clock.
    watch : callable
        Called with the query once a second.
    """
    writer = df.writeStream.format("parquet").option("checkpointLocation", str(directory / "checkpoint"))
    if timeout is None:
        writer = writer.trigger(availableNow=True)
    query = writer.start(str(directory / "out"))
    until = time.monotonic() + (timeout or float("inf"))
    try:
        while not query.awaitTermination(1) and time.monotonic() < until:
            watch(query)
        measured = measure([json.loads(batch.json) for batch in query.recentProgress], rate)
        if not MARK.search(plan_of(query)):
            return measured
        state = fb.progress(query)
        return replace(measured, state_rows=state.stateRows, state_bytes=state.stateBytes, rows_late=state.rowsLate)
    finally:
        query.stop()


def measure(batches: Sequence[Mapping[str, Any]], rate: int | None = None) -> Measured:
    """Throughput and latency from a query's progress reports. The first quarter of the micro-batches is left out.

    Time runs on until the micro-batch after the last event has ended, which fires windows.
    """
    filled = [batch for batch in batches if batch["numInputRows"]]
    timed = filled[max(1, int(len(filled) * WARM_UP)) :] or filled
    if not timed:
        known = f"none of the last {len(batches)} micro-batches had rows" if batches else "no micro-batch has ended yet"
        raise InvalidArgument(
            f"{known}: there is nothing to measure. Run the query for longer, or have Spark remember more micro-batches by "
            "spark.sql.streaming.numRecentProgressUpdates"
        )
    latencies = np.concatenate([_latencies(batch, rate) for batch in timed])
    last = batches[min(batches.index(filled[-1]) + 1, len(batches) - 1)]  # the one after the last event fires windows
    times = [instant(b["eventTime"][bound]) for b in filled for bound in ("min", "max") if bound in b.get("eventTime", {})]
    return Measured(
        events=sum(batch["numInputRows"] for batch in timed),
        seconds=ended(last) - instant(timed[0]["timestamp"]),
        span=max(times) - min(times) if times else 0.0,
        latency={share: float(np.quantile(latencies, share)) for share in (0.5, 0.95, 0.99)},
    )


def instant(text: str) -> float:
    """Seconds since 1970 of an instant in a progress report."""
    return datetime.fromisoformat(text).timestamp()


def ended(batch: Mapping[str, Any]) -> float:
    """When a micro-batch was over, in seconds since 1970."""
    return instant(batch["timestamp"]) + float(batch["batchDuration"]) / 1000


def offset(batch: Mapping[str, Any], bound: str = "endOffset") -> Mapping[str, int]:
    """Where a micro-batch ended, or began, in the first stream that its query reads."""
    found = batch["sources"][0][bound]
    return {"number": 0} if found is None else json.loads(found) if isinstance(found, str) else found


def _latencies(batch: Mapping[str, Any], rate: int | None) -> npt.NDArray[np.float64]:
    """The latencies of events of a micro-batch, of one in a thousand of them."""
    count = -(-batch["numInputRows"] // 1000)
    if rate is None:
        return np.full(count, ended(batch) - instant(batch["timestamp"]))
    begin, end = offset(batch, "startOffset"), offset(batch)
    arrived = end["start"] / 1e6 + np.linspace(begin["number"], end["number"], count) / rate
    latencies: npt.NDArray[np.float64] = ended(batch) - arrived
    return latencies
