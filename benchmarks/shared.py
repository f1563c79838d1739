"""What patterns over the same events cost, with one state for all of them and with a state for each.

    python benchmarks/shared.py [--quick] [--patterns 1 2 4 8 16] [--engines shared separate spark flink] [--events 60000]
    python benchmarks/shared.py --scaling [--partitions 1 2 4]

Card transactions as in the paper "Exploring Shared State in Key-Value Store for Window-Based Multi-Pattern Streaming
Analytics" (section 5.1): of twelve kinds, with date, merchant, amount, card type and customer, and a text, together 330
bytes. They are generated from a seed.
Patterns are sliding, tumbling and session windows by card, with a median and the number of different texts, so that all of
an event is needed when a window fires.

The first pattern has the longest windows, so what further ones add to the state is what they cost.

shared    fb.patterns: one operator
separate  one fb.groupBy for each pattern, in one query
spark     Spark's own windows with RocksDB, one operator for each pattern, in one query
flink     Flink's windows with RocksDB, one operator for each pattern, in one job, set up as in the race (`flink_peer`)

In each micro-batch is one file. The first quarter of the micro-batches, or of Flink's events, is left out. Flink's state is
what its RocksDB has on disk. All engines must give as many results.

With ``--scaling`` `fb.patterns` has four patterns, and more and more state partitions, with a task at a time for each, of
which only as many run as the machine has cores: with as many events (strong), and with as many for each partition (weak).

Tables and a chart go to ``bench/shared`` and, unless it is ``--quick``, to ``docs/patterns.md`` and ``docs/patterns.svg``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
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

from flink_peer import drive
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from session import spark_session

import forebay as fb

ROOT = Path(__file__).parents[1]
DOCUMENT, OUT = ROOT / "docs" / "patterns.md", ROOT / "bench" / "shared"
SCHEMA = (
    "type string, time timestamp, merchant string, amount double, card_type string, customer string, card long, text string"
)
RECORD = np.dtype([("time", "<i8"), ("card", "<i8"), ("amount", "<f8"), ("text", "S266")])
"""An event as Flink reads it, the time in milliseconds."""
SCALED_PATTERNS = 4
KINDS = 12
MINUTE = 60_000_000
BEGIN = 1_704_067_200_000_000
DELAY = "1 minute"


@dataclass(frozen=True)
class Size:
    """How much is generated: micro-batches, events in each, the minutes that they are of, and cards."""

    files: int
    events: int
    minutes: float
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

    @property
    def flinks(self) -> str:
        return str(self.size) if self.session else f"{self.size}/{self.slide}"


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
    """A file of transactions for each micro-batch, with disorder of half a minute; and the same as Flink reads it."""
    random = np.random.default_rng(7)
    for kind in ("parquet", "bin"):
        (directory / kind).mkdir()
    for file in range(size.files):
        n, length = size.events, round(size.minutes * MINUTE)
        times = (
            BEGIN + file * length + np.sort(random.integers(0, length, n)) + random.integers(-MINUTE // 2, MINUTE // 2, n)
        )
        times -= times % 1000  # Flink has milliseconds
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
        pq.write_table(table, directory / "parquet" / f"{file:03d}.parquet")
        records = np.empty(n, RECORD)
        for name in ("card", "amount", "text"):
            records[name] = table[name].to_numpy()
        records["time"] = times // 1000
        records.tofile(directory / "bin" / f"{file:03d}.bin")


def run(spark: SparkSession, data: Path, size: Size, engine: str, count: int) -> dict[str, Any]:
    """Drive an engine with so many patterns through all files; what was measured."""
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(data / "parquet"))
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


def run_flink(data: Path, count: int) -> dict[str, Any]:
    """Drive Flink with so many patterns through all files; what was measured."""
    newest = max(int(np.fromfile(file, RECORD)["time"].max()) for file in (data / "bin").glob("*.bin"))
    with tempfile.TemporaryDirectory() as directory:
        sizes = {name: Sizes(Path(directory, name)) for name in ("rocksdb", "checkpoints")}
        options = {
            "data": data / "bin",
            "patterns": ",".join(each.flinks for each in asked(count)),
            "until": newest - MINUTE // 1000,
            "state": "rocksdb",
            "checkpoint-seconds": 10,
            "directory": directory,
        }
        events, nanoseconds, results = drive("Patterns", options, directory)
        most = {name: round(each.most() / 1e6, 1) for name, each in sizes.items()}
    return {
        "engine": "flink",
        "patterns": count,
        "events per second": round(1e9 * events / nanoseconds),
        "p95 of a micro-batch (s)": None,
        "state (MB)": most["rocksdb"],
        "stored events": None,
        "memory (MB)": None,
        "checkpoint (MB)": most["checkpoints"],
        "results": results,
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
    for parent, _, names in os.walk(directory):  # which passes over directories that go meanwhile
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
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


def comparison(size: Size, engines: list[str], counts: list[int]) -> pl.DataFrame:
    """The engines with more and more patterns."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory)
        generate(data, size)
        for engine in engines:
            spark = None if engine == "flink" else spark_session()
            if spark is None:
                driven: Callable[[int], dict[str, Any]] = functools.partial(run_flink, data)
            else:
                driven = functools.partial(run, spark, data, size, engine)
                driven(1)  # workers start, and code is compiled
            for count in counts:
                rows.append(driven(count))
                print(rows[-1], flush=True)
                pl.DataFrame(rows).write_csv(OUT / "results.csv")
            if spark is not None:
                spark.stop()
    _require_same(rows)
    return pl.DataFrame(rows)


def scaling(size: Size, partitions: list[int]) -> pl.DataFrame:
    """`fb.patterns` with more and more state partitions and cores."""
    rows = []
    for kind in ("strong", "weak"):
        for number in partitions:
            times = number if kind == "weak" else 1
            own = replace(size, events=size.events * times, cards=size.cards * times)
            with tempfile.TemporaryDirectory() as directory:
                generate(Path(directory), own)
                spark = spark_session(master=f"local[{number}]", partitions=number)
                run(spark, Path(directory), own, "shared", 1)  # workers start, and code is compiled
                measured = run(spark, Path(directory), own, "shared", SCALED_PATTERNS)
                spark.stop()
            about = {"scaling": kind, "partitions": number, "events in a micro-batch": own.events}
            rows.append(about | {name: measured[name] for name in ("events per second", "p95 of a micro-batch (s)")})
            print(rows[-1], flush=True)
    return pl.DataFrame(rows)


def chart(frame: pl.DataFrame, path: Path) -> None:
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
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few events, and 1, 4 and 16 patterns")
    parser.add_argument("--patterns", type=int, nargs="+", help="how many patterns")
    parser.add_argument("--events", type=int, help="events in a micro-batch")
    parser.add_argument("--files", type=int, help="micro-batches")
    parser.add_argument("--engines", nargs="+", choices=[*ENGINES, "flink"], default=[*ENGINES, "flink"])
    parser.add_argument("--scaling", action="store_true", help="more and more state partitions in place of patterns")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 2, 4], help="how many, with --scaling")
    arguments = parser.parse_args()
    size = QUICK if arguments.quick else FULL
    size = replace(size, files=arguments.files or size.files, events=arguments.events or size.events)
    counts = arguments.patterns or ([1, 4, 16] if arguments.quick else [1, 2, 4, 8, 16])
    OUT.mkdir(parents=True, exist_ok=True)
    machine = f"one run, {os.cpu_count()} cores, Python {platform.python_version()}."
    if arguments.scaling:
        frame = scaling(size, arguments.partitions)
        frame.write_csv(OUT / "scaling.csv")
        if not arguments.quick:
            about = f"{SCALED_PATTERNS} patterns, {size.files} micro-batches, {machine}"
            report.replace(DOCUMENT, "scaling", f"{about}\n\n{report.markdown(frame)}")
        return
    frame = comparison(size, arguments.engines, counts)
    chart(frame, OUT / "patterns.svg")
    if arguments.quick:
        return
    chart(frame, ROOT / "docs" / "patterns.svg")
    picture = "![Throughput, latency and state over the number of patterns](patterns.svg)"
    about = f"{size.files} micro-batches of {size.events:,} events of {size.cards:,} cards, {machine}"
    report.replace(DOCUMENT, "shared", f"{picture}\n\n{about}\n\n{report.markdown(frame.drop('results'))}")


def _require_same(rows: list[dict[str, Any]]) -> None:
    """All engines give as many results for the same patterns, or they did not do the same."""
    for count in {row["patterns"] for row in rows}:
        results = {row["engine"]: row["results"] for row in rows if row["patterns"] == count}
        if len(set(results.values())) > 1:
            raise SystemExit(f"the engines do not give as many results with {count} patterns: {results}")


if __name__ == "__main__":
    main()
