"""How forebay and Spark's own windows on RocksDB behave as one thing grows, in one run on this machine.

    python benchmarks/scaling.py [batch] [keys] [skew] [counted] [cores] [latency] [state]

batch     rows in a micro-batch: 1,000 to 1 million (tumbling median)
keys      bidders: 1,000 to 10 million (tumbling median)
skew      NEXMark's own bids, three of four by one bidder at a time, and the same without hot ones (Q7, Q11, Q11-Median)
          Q7-Ties is Q7 without a list of all bids, Q0 hands bids on
counted   medians of 100 and of a million different prices in windows of 9 minutes: rows, and counts (`counted=True`)
cores     1 and 2 cores of one process; 1, 2 and 4 executors of one core (tumbling median). The machine has two cores
latency   events per second of wall time against quantiles of latency, for Q7, Q11 and Q11-Median (FlowKV, figure 9)
state     GB of state in sessions that do not end, with 256 MB of memory (session median over bids of 1,000 bytes)

Bids come from the NEXMark source, evenly spread over as many bidders as said (100,000 unless keys grow or are skewed). The
first quarter of the micro-batches is left out. Tables go to ``bench/scaling/*.csv`` and into ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import itertools
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

import report

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from session import spark_session

import forebay as fb
from forebay import nexmark
from forebay.nexmark.queries import QUERIES
from forebay.nexmark.run import ended, measure, offset

ROOT = Path(__file__).parents[1]
Row = dict[str, Any]


def tumbling_median(engine: str, stream: DataFrame) -> DataFrame:
    if engine == "forebay":
        return fb.groupBy(stream, fb.window("dateTime", "10 seconds"), "bidder").agg(fb.median("price"))
    return stream.groupBy(F.window("dateTime", "10 seconds"), "bidder").agg(F.median("price"))


def spark_q7(bids: DataFrame) -> DataFrame:
    rows = F.collect_list(F.struct("auction", "bidder", "price")).alias("rows")
    listed = bids.groupBy(F.window("dateTime", "10 seconds")).agg(F.max("price").alias("highest"), rows)
    return listed.select("window", F.inline(F.filter("rows", lambda row: row.price == F.col("highest"))))


SPARK = {
    "q7": spark_q7,
    "q11": lambda bids: bids.groupBy(F.session_window("dateTime", "10 seconds"), "bidder").agg(F.count("*")),
    "q11-median": lambda bids: bids.groupBy(F.session_window("dateTime", "10 seconds"), "bidder").agg(F.median("price")),
}


@contextlib.contextmanager
def session(**settings: Any) -> Iterator[SparkSession]:
    spark = spark_session(**settings)
    nexmark.register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def bids(spark: SparkSession, **options: Any) -> DataFrame:
    """A stream of bids, small ones unless told otherwise."""
    given = {"type": "bid", "avgBidByteSize": "32", **{name: str(value) for name, value in options.items()}}
    return spark.readStream.format("nexmark").options(**given).load().withWatermark("dateTime", "1 second")


def spread(stream: DataFrame, keys: int) -> DataFrame:
    """So many bidders, drawn evenly, from the first event on."""
    return stream.withColumn("bidder", F.pmod(F.xxhash64("price", "dateTime"), F.lit(keys)))


def progress(df: DataFrame, seconds: float | None = None) -> list[dict[str, Any]]:
    """The progress reports of a query run to its end, or for some seconds."""
    directory = tempfile.mkdtemp(prefix="forebay-scaling-")
    writer = df.writeStream.format("noop").option("checkpointLocation", f"{directory}/checkpoint")
    query = (writer.trigger(availableNow=True) if seconds is None else writer).start()
    query.awaitTermination(seconds)  # type: ignore[arg-type]  # it takes fractions
    batches = [json.loads(batch.json) for batch in query.recentProgress]
    query.stop()
    shutil.rmtree(directory, ignore_errors=True)
    return batches


def rate(batches: list[dict[str, Any]]) -> tuple[int, float]:
    """Bids per second, and seconds per micro-batch (median), after the warm-up."""
    run = measure(batches)
    return round(run.rate), run.latency[0.5]


def batch() -> Iterator[Row]:
    """Event time passes at such a rate that every micro-batch has 10 s of it, a window."""
    with session() as spark:
        for rows, count in ((1_000, 40), (10_000, 40), (100_000, 24), (1_000_000, 12)):
            for engine in ("forebay", "spark"):
                events = rows * (count if engine == "forebay" else count // 3)
                stream = bids(spark, maxEventsPerTrigger=rows, rate=rows // 10, events=events)
                speed, seconds = rate(progress(tumbling_median(engine, spread(stream, 100_000))))
                yield {
                    "events in a micro-batch": rows,
                    "engine": engine,
                    "bids/s": speed,
                    "s per micro-batch": round(seconds, 2),
                }


def keys() -> Iterator[Row]:
    """Event time passes at such a rate that a window has two bids of each bidder, but 10,000 events per second at least."""
    with session() as spark:
        for count in (1_000, 10_000, 100_000, 1_000_000, 10_000_000):
            for engine, batches in (("forebay", 10), ("spark", 4)):
                if engine == "spark" and count > 1_000_000:
                    continue  # 25 s of event time would take it a quarter of an hour
                speed = max(10_000, count // 5)
                stream = bids(spark, maxEventsPerTrigger=1_000_000, rate=speed, events=max(batches * 1_000_000, 25 * speed))
                measured, _ = rate(progress(tumbling_median(engine, spread(stream, count))))
                yield {"keys": count, "events per s of event time": speed, "engine": engine, "bids/s": measured}


def skew() -> Iterator[Row]:
    """An even spread has as many bidders and auctions, and none of them is hot.

    Each query runs four times, and the last run counts: Java goes on compiling for a minute or two, by which the engines
    gain unequally.
    """
    with session() as spark:
        for query in ("q0", "q7", "q7-ties", "q11", "q11-median"):
            engines = {"forebay": QUERIES[query], "spark": SPARK.get(query)}
            runs = [(name, made, ratio) for ratio in (4, 1) for name, made in engines.items() if made is not None]
            for run, (engine, made, ratio) in itertools.product(range(4), runs):
                hot = {"hotBiddersRatio": ratio, "hotAuctionRatio": min(ratio, 2)}
                measured, _ = rate(progress(made(bids(spark, maxEventsPerTrigger=1_000_000, events=10_000_000, **hot))))
                if run == 3:
                    bidders = "hot" if ratio > 1 else "even"
                    name = "source alone" if query == "q0" else engine
                    yield {"query": query, "bidders": bidders, "engine": name, "bids/s": measured}


def counted() -> Iterator[Row]:
    """A window has five million bids, for ten auctions or for 100,000."""
    with session() as spark:
        for keys, values in itertools.product((10, 100_000), (100, 1_000_000)):
            for state in ("rows", "counts"):
                stream = bids(spark, maxEventsPerTrigger=1_000_000, events=12_000_000)
                stream = stream.select("dateTime", _drawn(keys, 1).alias("auction"), _drawn(values, 2).alias("price"))
                median = fb.median("price", counted=state == "counts")
                medians = fb.groupBy(stream, fb.window("dateTime", "9 minutes"), "auction").agg(median)
                sizes = [0.0]

                def note(_: str, batch: dict[str, Any], sizes: list[float] = sizes) -> None:
                    sizes.append(batch["operators"][0]["stateBytes"])

                told = fb.MetricsListener(note)
                spark.streams.addListener(told)
                measured, _ = rate(progress(medians))
                spark.streams.removeListener(told)
                row = {"auctions": keys, "different prices": values, "state": state, "bids/s": measured}
                yield {**row, "most state (MB)": round(max(sizes) / 1e6, 1)}


def _drawn(values: int, seed: int) -> Column:
    """Evenly drawn numbers below a bound."""
    return F.pmod(F.xxhash64("price", "dateTime", F.lit(seed)), F.lit(values))


def cores() -> Iterator[Row]:
    masters = {"1 core": ("local[1]", 1), "2 cores": ("local[2]", 2)}
    masters |= {f"{n} executors of 1 core": (f"local-cluster[{n},1,2048]", n) for n in (1, 2, 4)}
    for name, (master, partitions) in masters.items():
        with session(master=master, partitions=partitions, spark__executor__memory="2g") as spark:
            stream = bids(spark, maxEventsPerTrigger=1_000_000, events=8_000_000, numPartitions=partitions)
            speed, _ = rate(progress(tumbling_median("forebay", spread(stream, 100_000))))
            yield {"workers": name, "engine": "forebay", "bids/s": speed}


def latency(seconds: int = 16) -> Iterator[Row]:
    with session() as spark:
        for query, speed in ((q, r) for q in SPARK for r in (10_000, 100_000, 400_000)):
            for engine in ("forebay", "spark"):
                stream = spread(bids(spark, realTime="true", rate=speed, maxEventsPerTrigger=2_000_000), 100_000)
                results = (QUERIES if engine == "forebay" else SPARK)[query](stream)
                batches = progress(results, seconds)
                filled = [batch for batch in batches if batch["numInputRows"]]
                row = {"query": query, "events/s": speed, "engine": engine, "p50": "", "p95": "", "p99": "", "behind": "all"}
                if filled:
                    quantiles = measure(batches, speed).latency
                    row |= {f"p{share * 100:.0f}": round(value, 2) for share, value in quantiles.items()}
                    taken = offset(filled[-1])
                    row["behind"] = round(ended(filled[-1]) - taken["start"] / 1e6 - taken["number"] / speed, 1)
                yield row


def state(most: int = 10) -> Iterator[Row]:
    """Sessions with a gap of an hour: none ends, so all bids stay, and every bid extends a session."""
    with session() as spark, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        stream = bids(spark, maxEventsPerTrigger=500_000, events=most * 1_200_000, avgBidByteSize=1000)
        wide = fb.groupBy(spread(stream, 100_000), fb.session_window("dateTime", "1 hour"), "bidder")
        results = wide.agg(fb.median("price"), fb.max_by("extra", "price"), fb.collect_list("extra"))
        writer = results.writeStream.format("noop").option("checkpointLocation", f"{directory}/checkpoint")
        query = writer.trigger(availableNow=True).start()
        marks = [gigabytes for gigabytes in (1, 2, 5, 10, 20, 50) if gigabytes <= most]
        while not query.awaitTermination(1) and marks:
            size = fb.progress(query).stateBytes / 1e9 if query.recentProgress else 0
            if size >= marks[0]:
                last = query.recentProgress[-3:]
                speed = statistics.median(b.numInputRows / b.batchDuration * 1000 for b in last)
                yield {"GB of state": marks.pop(0), "engine": "forebay", "bids/s": round(speed)}
        query.stop()


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    part.__name__: part for part in (batch, keys, skew, counted, cores, latency, state)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    out = ROOT / "bench" / "scaling"
    out.mkdir(parents=True, exist_ok=True)
    for name in parser.parse_args().parts or PARTS:
        print(f"{name}: {inspect.getdoc(PARTS[name]) or ''}", flush=True)
        rows = []
        for row in PARTS[name]():
            rows.append(row)
            print("  ", row, flush=True)
        table = pl.DataFrame(rows, infer_schema_length=None, strict=False)
        table.write_csv(out / f"{name}.csv")
        told = f"{time.strftime('%Y-%m-%d')}.\n\n{report.markdown(table)}"
        if name == "skew":
            both = table.with_columns(run=pl.format("{}, {} bidders", "engine", "bidders"))
            report.bars(both, "query", "run", "bids/s", ROOT / "docs" / "skew.svg")
            told = f"![Bids per second with hot bidders and without](skew.svg)\n\n{told}"
        report.replace(ROOT / "docs" / "benchmarks.md", name, told)


if __name__ == "__main__":
    main()
