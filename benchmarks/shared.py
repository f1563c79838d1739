"""What patterns over the same events cost, with one state for all of them and with a state for each.

    python benchmarks/shared.py [--quick] [--patterns 1 2 4 8 16] [--engines shared separate spark] [--events 60000]

Card transactions as in the paper "Exploring Shared State in Key-Value Store for Window-Based Multi-Pattern Streaming
Analytics" (section 5.1): of twelve kinds, with date, merchant, amount, card type and customer, and a text, together 330
bytes. They are generated from a seed.
Patterns are sliding, tumbling and session windows by card, with a median and the number of different texts, so that all of
an event is needed when a window fires.

The first pattern has the longest windows, so what further ones add to the state is what they cost.

shared    fb.patterns: one operator
separate  one fb.groupBy for each pattern, in one query
spark     Spark's own windows with RocksDB, one operator for each pattern, in one query

In each micro-batch is one file. The first quarter of the micro-batches is left out. Table and chart go to
``bench/shared``, the table also into ``docs/patterns.md``.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import math
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import report

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from session import spark_session

import forebay as fb

ROOT = Path(__file__).parents[1]
SCHEMA = (
    "type string, time timestamp, merchant string, amount double, card_type string, customer string, card long, text string"
)
KINDS = 12
MINUTE = 60_000_000
BEGIN = 1_704_067_200_000_000
DELAY = "1 minute"


@dataclass(frozen=True)
class Size:
    """How much is generated: micro-batches, events in each, the minutes that they are of, and cards."""

    files: int
    events: int
    minutes: int
    cards: int


FULL, QUICK = Size(16, 60_000, 5, 20_000), Size(6, 10_000, 5, 2_000)


@dataclass(frozen=True)
class Asked:
    """A pattern: minutes of its windows, and of their slide; or of the gap of its sessions."""

    name: str
    size: int
    slide: int | None = None

    @property
    def session(self) -> bool:
        return self.slide is None

    @property
    def ours(self) -> Any:
        if self.session:
            return fb.session_window("time", f"{self.size} minutes")
        return fb.window("time", f"{self.size} minutes", f"{self.slide} minutes")

    @property
    def sparks(self) -> Column:
        if self.session:
            return F.session_window("time", f"{self.size} minutes")
        return F.window("time", f"{self.size} minutes", f"{self.slide} minutes")


def asked(count: int) -> list[Asked]:
    """So many patterns: by turns long sliding windows, the first the longest, sessions, tumbling and short sliding ones."""
    made = [
        lambda turn: Asked(f"long {turn}", 60 - 10 * turn, 10),
        lambda turn: Asked(f"visits {turn}", 1 + turn),
        lambda turn: Asked(f"tumbling {turn}", 5 * (turn + 1), 5 * (turn + 1)),
        lambda turn: Asked(f"sliding {turn}", 10 + 5 * turn, 5),
    ]
    return [made[number % 4](number // 4) for number in range(count)]


AGGREGATES = [fb.median("amount").alias("median"), fb.count_distinct("text").alias("texts")]


def shared(stream: DataFrame, patterns: list[Asked]) -> DataFrame:
    together = functools.reduce(
        lambda made, each: made.add(each.name, each.ours, *AGGREGATES), patterns, fb.patterns(stream, "card")
    )
    return together.results()


def separate(stream: DataFrame, patterns: list[Asked]) -> DataFrame:
    return _united(fb.groupBy(stream, each.ours, "card").agg(*AGGREGATES) for each in patterns)


def sparks(stream: DataFrame, patterns: list[Asked]) -> DataFrame:
    aggregates = F.median("amount").alias("median"), F.size(F.collect_set("text")).alias("texts")
    return _united(stream.groupBy(each.sparks, "card").agg(*aggregates) for each in patterns)


def _united(results: Iterator[DataFrame]) -> DataFrame:
    return functools.reduce(DataFrame.union, (result.select("card", "median", "texts") for result in results))


ENGINES: dict[str, Callable[[DataFrame, list[Asked]], DataFrame]] = {
    "shared": shared,
    "separate": separate,
    "spark": sparks,
}


def generate(directory: Path, size: Size) -> None:
    """A file of transactions for each micro-batch, with disorder of half a minute."""
    random = np.random.default_rng(7)
    for file in range(size.files):
        n, begin = size.events, BEGIN + file * size.minutes * MINUTE
        times = begin + np.sort(random.integers(0, size.minutes * MINUTE, n)) + random.integers(-MINUTE // 2, MINUTE // 2, n)
        texts = random.integers(0, 1 << 62, (n, 14))
        table = pa.table(
            {
                "type": pa.array([f"kind {kind}" for kind in random.integers(0, KINDS, n)]),
                "time": pa.array(times, pa.timestamp("us", "UTC")),
                "merchant": pa.array([f"merchant {merchant}" for merchant in random.integers(0, 1000, n)]),
                "amount": pa.array(np.round(random.lognormal(3, 1, n), 2)),
                "card_type": pa.array([("debit", "credit")[kind] for kind in random.integers(0, 2, n)]),
                "customer": pa.array([f"customer {customer}" for customer in random.integers(0, size.cards, n)]),
                "card": pa.array(random.integers(0, size.cards, n)),
                "text": pa.array(["".join(f"{word:019d}" for word in words) for words in texts]),
            }
        )
        pq.write_table(table, directory / f"{file:03d}.parquet")


def run(spark: SparkSession, data: Path, size: Size, engine: str, count: int) -> dict[str, Any]:
    """Drive an engine with so many patterns through all files; what was measured."""
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(data))
    results = ENGINES[engine](stream.withWatermark("time", DELAY), asked(count))
    with tempfile.TemporaryDirectory() as directory:
        writer = results.writeStream.format("noop").option("checkpointLocation", directory).trigger(availableNow=True)
        sizes = Sizes(Path(directory))
        query = writer.start()
        query.awaitTermination()
        most = sizes.most()
        batches = [json.loads(progress.json) for progress in query.recentProgress]
        with_rows = [batch for batch in batches if batch["numInputRows"]]
        warm = with_rows[math.ceil(len(with_rows) / 4) :]
        millis = [batch["durationMs"]["triggerExecution"] for batch in warm]
        state, memory, events = _state(query, engine, batches)
        return {
            "engine": engine,
            "patterns": count,
            "events per second": round(1000 * size.events * len(warm) / sum(millis)),
            "p95 of a micro-batch (s)": round(float(np.quantile(millis, 0.95)) / 1000, 2),
            "state (MB)": round(state / 1e6, 1),
            "stored events": events,
            "memory (MB)": round(memory / 1e6, 1),
            "checkpoint (MB)": round(most / 1e6, 1),
            "results": sum(batch["sink"]["numOutputRows"] for batch in batches),
        }


class Sizes:
    """The most that a directory has had, looked at every second."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._most, self._ended = directory, 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(1):
            self._most = max(self._most, _size(self._directory))

    def most(self) -> int:
        self._ended.set()
        self._thread.join()
        return max(self._most, _size(self._directory))


def _size(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def _state(query: StreamingQuery, engine: str, batches: list[dict[str, Any]]) -> tuple[int, int, int | None]:
    """The most bytes of state on disk, and in memory, after a micro-batch; and the most events stored, if that is known."""
    if engine == "spark":
        used = [sum(each["memoryUsedBytes"] for each in batch["stateOperators"]) for batch in batches]
        files = [
            sum(each["customMetrics"].get("rocksdbSstFileSize", 0) for each in batch["stateOperators"]) for batch in batches
        ]
        return max(files), max(used), None
    told = [batch["operators"] for batch in fb.recentMetrics(query)]
    state, memory = (
        max(int(sum(each[name] for each in operators)) for operators in told) for name in ("stateLiveBytes", "memoryBytes")
    )
    events = max(int(sum(each["storedEvents"] for each in operators)) for operators in told)
    return state, memory, events if engine == "shared" else None


def chart(frame: pl.DataFrame) -> bytes:
    """Throughput, latency and state over the number of patterns."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(12, 3.6))
    for axes, measure in zip(panels, ("events per second", "p95 of a micro-batch (s)", "state (MB)"), strict=True):
        for engine in frame["engine"].unique(maintain_order=True):
            part = frame.filter(pl.col("engine") == engine)
            axes.plot(part["patterns"], part[measure], marker="o", label=engine)
        axes.set_title(measure, fontsize=10)
        axes.set_xlabel("patterns")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=100)
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few events, and 1, 4 and 16 patterns")
    parser.add_argument("--patterns", type=int, nargs="+", help="how many patterns")
    parser.add_argument("--events", type=int, help="events in a micro-batch")
    parser.add_argument("--files", type=int, help="micro-batches")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    arguments = parser.parse_args()
    size = QUICK if arguments.quick else FULL
    size = replace(size, files=arguments.files or size.files, events=arguments.events or size.events)
    counts = arguments.patterns or ([1, 4, 16] if arguments.quick else [1, 2, 4, 8, 16])
    rows = []
    spark = spark_session()
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory)
        generate(data, size)
        for engine in arguments.engines:
            run(spark, data, size, engine, 1)  # workers start, and code is compiled
            for count in counts:
                rows.append(run(spark, data, size, engine, count))
                print(rows[-1], flush=True)
    spark.stop()
    _require_same(rows)
    frame = pl.DataFrame(rows)
    out = ROOT / "bench" / "shared"
    out.mkdir(parents=True, exist_ok=True)
    frame.write_csv(out / "results.csv")
    (out / "shared.png").write_bytes(chart(frame))
    about = (
        f"{size.files} micro-batches of {size.events:,} events of {size.cards:,} cards, one run, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}."
    )
    report.replace(ROOT / "docs" / "patterns.md", "shared", f"{about}\n\n{report.markdown(frame.drop('results'))}")


def _require_same(rows: list[dict[str, Any]]) -> None:
    """All engines give as many results for the same patterns, or they did not do the same."""
    for count in {row["patterns"] for row in rows}:
        results = {row["engine"]: row["results"] for row in rows if row["patterns"] == count}
        if len(set(results.values())) > 1:
            raise SystemExit(f"the engines do not give as many results with {count} patterns: {results}")


if __name__ == "__main__":
    main()
