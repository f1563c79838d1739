"""Views of tweets, counted by two HyperLogLogs per tweet: throughput over the number of tweets, with buffers and without.

    python benchmarks/buffers.py [--quick] [--rounds 1] [--views 100000] [--only forebay spark ...]

The experiment of Koliopoulos, "Apache Flink: Towards a 20x throughput improvement using in-memory buffers": each view has an
id of its own, one of 25,000 users and one of so many tweets; the state of a tweet is one HyperLogLog of the views and one of
the users. Views come in four micro-batches, on two cores; the first warms up, the others are timed.

*transformWithState by row* reads and writes the state of its tweet for each view, in Python, as the article's operator
without a buffer does. *salted* has ten sub-keys for each tweet, and merges what they give in a second such operator.
*by micro-batch* reads and writes a tweet's state once in a micro-batch. *after fb.buffer* is the operator by row, over what
a buffer within the micro-batch has reduced. *spark* is ``groupBy`` with ``approx_count_distinct``, and *forebay* is
``fb.rolling`` with the same, which combines rows before the shuffle by itself.

Before anything is timed, the engines answer a small input. Results are in ``bench/buffers``; when nothing was left out, the
table in ``docs/buffers.md`` and the chart ``docs/buffers.svg`` are replaced.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from session import spark_session

import forebay as fb
import report

ROOT = Path(__file__).parents[1]
TWEETS = (1, 20, 200, 2_000, 20_000)
USERS = 25_000
BATCHES = 4
BITS, REGISTERS = 9, 512
SALTS = 10
STATE = "views binary, users binary"
RESULT = "tweet long, views long, users long"


# HyperLogLogs of 512 registers, one byte each ----------------------------------------------------------------------------


def codes(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The register of each hash, and its rank."""
    unsigned = hashes.astype(np.int64).view(np.uint64)
    rest = unsigned << np.uint64(BITS) | np.uint64(1 << BITS - 1)
    return (unsigned >> np.uint64(64 - BITS)).astype(np.int64), 64 - np.floor(np.log2(rest.astype(np.float64))).astype(
        np.int64
    )


def estimate(registers: np.ndarray) -> int:
    raw = 0.7213 / (1 + 1.079 / REGISTERS) * REGISTERS**2 / (2.0 ** -registers.astype(np.float64)).sum()
    zeros = int((registers == 0).sum())
    return round(REGISTERS * np.log(REGISTERS / zeros) if zeros and raw <= 2.5 * REGISTERS else raw)


def reduced(rows: pl.DataFrame) -> pl.DataFrame:
    """The registers of each tweet's views and users: the processor of the buffer."""
    tweets = rows["tweet"].unique(maintain_order=True)
    places = rows.select(pl.col("tweet").rank("dense") - 1)["tweet"].to_numpy().astype(np.int64)
    ordered = tweets.sort()
    columns = {}
    for name in ("view", "user"):
        registers = np.zeros((len(tweets), REGISTERS), np.uint8)
        register, rank = codes(rows[name].to_numpy())
        np.maximum.at(registers, (places, register), rank.astype(np.uint8))
        columns[f"{name}s"] = [row.tobytes() for row in registers]
    return pl.DataFrame({"tweet": ordered, **columns})


# operators ---------------------------------------------------------------------------------------------------------------


class ByRow(StatefulProcessor):
    """Reads and writes the state for each row, which is a view or what a buffer has made of some; emits after each."""

    def __init__(self, *, partial_in: bool, partial_out: bool) -> None:
        self._partial_in, self._partial_out = partial_in, partial_out

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("state", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            found = []
            for row in frame.itertuples():
                now = merged(self._state.get(), self._of(row))
                self._state.update(tuple(part.tobytes() for part in now))
                found.append(now)
            yield emitted(int(key[0]), found, partial=self._partial_out)

    def _of(self, row: Any) -> list[np.ndarray]:
        if self._partial_in:
            return [np.frombuffer(part, np.uint8) for part in (row.views, row.users)]
        return of_hashes(np.array([row.view]), np.array([row.user]))

    def close(self) -> None:
        pass


class ByMicroBatch(ByRow):
    """Reads and writes the state once in a micro-batch, and emits then."""

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        now = self._state.get()
        for frame in rows:
            now = merged(now, of_hashes(frame["view"].to_numpy(), frame["user"].to_numpy()))
        self._state.update(tuple(part.tobytes() for part in now))
        yield emitted(int(key[0]), [now], partial=False)


def of_hashes(views: np.ndarray, users: np.ndarray) -> list[np.ndarray]:
    found = []
    for hashes in (views, users):
        registers = np.zeros(REGISTERS, np.uint8)
        register, rank = codes(hashes)
        np.maximum.at(registers, register, rank.astype(np.uint8))
        found.append(registers)
    return found


def merged(state: Any, more: list[np.ndarray]) -> list[np.ndarray]:
    if state is None:
        return more
    return [np.maximum(np.frombuffer(bytes(one), np.uint8), other) for one, other in zip(state, more, strict=True)]


def emitted(tweet: int, found: list[list[np.ndarray]], *, partial: bool) -> pd.DataFrame:
    show: Callable[[np.ndarray], Any] = np.ndarray.tobytes if partial else estimate
    columns = [[show(part) for part in column] for column in zip(*found, strict=True)]
    return pd.DataFrame({"tweet": tweet, "views": columns[0], "users": columns[1]})


def stateful(
    df: DataFrame, keys: list[str], *, partial_in: bool = False, partial_out: bool = False, by: type = ByRow
) -> DataFrame:
    schema = f"tweet long, {STATE}" if partial_out else RESULT
    processor = by(partial_in=partial_in, partial_out=partial_out)
    return df.groupBy(*keys).transformWithStateInPandas(processor, schema, "update", "none")


def salted(views: DataFrame) -> DataFrame:
    spread = views.withColumn("salt", F.pmod(F.col("view"), F.lit(SALTS)))
    return stateful(stateful(spread, ["tweet", "salt"], partial_out=True), ["tweet"], partial_in=True)


def buffered(views: DataFrame) -> DataFrame:
    rows = fb.buffer(views, "tweet", processor=reduced, schema=f"tweet long, {STATE}")
    return stateful(rows, ["tweet"], partial_in=True)


def in_spark(views: DataFrame) -> DataFrame:
    return views.groupBy("tweet").agg(*(F.approx_count_distinct(name).alias(f"{name}s") for name in ("view", "user")))


def in_forebay(views: DataFrame) -> DataFrame:
    return fb.rolling(views, "tweet").agg(*(fb.approx_count_distinct(name).alias(f"{name}s") for name in ("view", "user")))


ENGINES: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "transformWithState by row": ("update", lambda views: stateful(views, ["tweet"])),
    "transformWithState by row, salted": ("update", salted),
    "transformWithState by row after fb.buffer": ("update", buffered),
    "transformWithState by micro-batch": ("update", lambda views: stateful(views, ["tweet"], by=ByMicroBatch)),
    "spark": ("update", in_spark),
    "forebay": ("append", in_forebay),
}
BY_ROW = [*ENGINES][:2]


# the experiment ----------------------------------------------------------------------------------------------------------


def write(directory: Path, views: int, tweets: int) -> None:
    """Views in two files for each micro-batch, one for each core. Ids are hashes, as those of Spark are."""
    numbers = np.random.default_rng(tweets)
    size = views // BATCHES // 2
    for file in range(BATCHES * 2):
        columns = {
            "view": numbers.integers(-(2**63), 2**63 - 1, size),
            "user": numbers.integers(0, USERS, size) * np.int64(-7046029254386353131),
            "tweet": numbers.integers(0, tweets, size),
        }
        path = directory / f"{file:04}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (file + 1, file + 1))


def stream(spark: SparkSession, directory: Path) -> DataFrame:
    source = spark.readStream.schema("view long, user long, tweet long").option("maxFilesPerTrigger", 2)
    return source.parquet(str(directory))


def timed(spark: SparkSession, engine: str, data: Path) -> float:
    """Views per second after the first micro-batch."""
    mode, query_of = ENGINES[engine]
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = query_of(stream(spark, data)).writeStream.format("noop").outputMode(mode)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [batch for batch in query.recentProgress if batch["numInputRows"]][1:]
    return (
        sum(batch["numInputRows"] for batch in batches)
        / sum(batch["durationMs"]["triggerExecution"] for batch in batches)
        * 1e3
    )


def check(spark: SparkSession, engines: list[str]) -> None:
    """What the engines answer to a small input: those with the same sketch must be equal, and all near the truth."""
    answers: dict[bool, dict[int, tuple[int, int]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory)
        write(data, 4_000, 20)
        rows = spark.read.parquet(directory).groupBy("tweet").agg(F.count_distinct("view"), F.count_distinct("user"))
        truth = {row[0]: row[1:] for row in rows.collect()}
        for engine in engines:
            mode, query_of = ENGINES[engine]
            found: dict[int, tuple[int, int]] = {}

            def keep(rows: DataFrame, batch: int, found: dict[int, tuple[int, int]] = found) -> None:
                for tweet, *counts in rows.collect():  # the largest counts are the newest
                    views, users = map(max, counts, found.get(tweet, (0, 0)))
                    found[tweet] = views, users

            with tempfile.TemporaryDirectory() as checkpoint:
                writer = query_of(stream(spark, data)).select("tweet", "views", "users").writeStream.foreachBatch(keep)
                query = writer.outputMode(mode).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
                query.awaitTermination()
            for tweet, exact in truth.items():
                if any(abs(one - other) > 0.2 * other for one, other in zip(found[tweet], exact, strict=True)):
                    raise SystemExit(f"{engine} answers {found[tweet]} for a tweet of {exact}")
            same = answers.setdefault(engine.startswith("transformWithState"), found)
            if found != same:
                raise SystemExit(f"{engine} answers {found}, not {same}")
            print(f"check    {engine:45} {len(found)} tweets", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20,000 views, two numbers of tweets")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--views", type=int, default=100_000)
    parser.add_argument("--only", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "buffers")
    arguments = parser.parse_args()
    views, numbers = (20_000, TWEETS[1:4:2]) if arguments.quick else (arguments.views, TWEETS)
    arguments.out.mkdir(parents=True, exist_ok=True)
    spark = spark_session()
    check(spark, arguments.only)
    rates: dict[tuple[str, int], list[float]] = {}
    with (arguments.out / "results.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["engine", "tweets", "round", "views", "views_per_second"])
        for tweets in numbers:
            with tempfile.TemporaryDirectory() as directory:
                write(Path(directory), views, tweets)
                for number in range(arguments.rounds):
                    for engine in arguments.only:
                        rate = timed(spark, engine, Path(directory))
                        rates.setdefault((engine, tweets), []).append(rate)
                        writer.writerow([engine, tweets, number, views, round(rate)])
                        file.flush()
                        print(f"{tweets:>7,} tweets  {engine:45} {rate:>12,.0f} views/s", flush=True)
    spark.stop()
    medians = {place: float(np.median(several)) for place, several in rates.items()}
    whole = not arguments.quick and arguments.only == list(ENGINES) and arguments.views == 100_000
    chart(medians, numbers, arguments.only, arguments.out / "buffers.svg")
    if whole:
        chart(medians, numbers, arguments.only, ROOT / "docs" / "buffers.svg")
        report.replace(ROOT / "docs" / "buffers.md", "buffers", table(medians, numbers, arguments.rounds))


def table(rates: dict[tuple[str, int], float], numbers: tuple[int, ...], rounds: int) -> str:
    lines = ["![Views per second over the number of tweets](buffers.svg)", ""]
    lines += [f"Views per second by number of tweets, medians of {rounds} {'round' if rounds == 1 else 'rounds'}.", ""]
    lines += [
        f"| engine | {' | '.join(f'{number:,}' for number in numbers)} |",
        f"| --- | {'---: | ' * len(numbers)}".rstrip(),
    ]
    for engine in ENGINES:
        lines.append(f"| {engine} | {' | '.join(f'{rates[engine, number]:,.0f}' for number in numbers)} |")
    return "\n".join(lines)


def chart(rates: dict[tuple[str, int], float], numbers: tuple[int, ...], engines: list[str], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for engine in engines:
        axes.plot(numbers, [rates[engine, number] for number in numbers], marker="o", label=engine)
    axes.set(xscale="log", yscale="log", xlabel="tweets", ylabel="views per second")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
