"""How late the results of patterns are where events arrive by the clock: of one pattern, and of many over the same events.

    python benchmarks/shared_latency.py [--quick] [--patterns 1 16] [--rates 2000 10000] [--seconds 45]

The events and patterns of `benchmarks/shared.py`, as close together in event time as there. A file of them arrives every
tenth of a second, and a micro-batch takes all that have arrived. The latency of an event is the time from its file's arrival
to the end of the micro-batch that had it. All numbers of patterns take turns in one session, twice; the first turn, in which
Spark compiles, does not count, and neither does the first quarter of each query.

The table goes to ``bench/shared/latency.csv`` and, unless it is ``--quick``, to ``docs/patterns.md``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import report
from forebay.nexmark.run import ended
from shared import DELAY, DOCUMENT, FULL, OUT, SCHEMA, Size, asked, generate, shared, spark_session

FILES_PER_SECOND = 10
WARM_UP = 0.25


def run(spark: Any, data: Path, count: int, rate: int) -> dict[str, Any]:
    """Let the files arrive, and take them with so many patterns; how late they were."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        arriving, checkpoint = Path(directory, "arriving"), Path(directory, "checkpoint")
        arriving.mkdir()
        stream = spark.readStream.schema(SCHEMA).parquet(str(arriving)).withWatermark("time", DELAY)
        results = shared(stream, asked(count))
        query = results.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
        query.processAllAvailable()
        arrived = feed(data, arriving)
        query.processAllAvailable()
        query.stop()
        batches = [json.loads(progress.json) for progress in query.recentProgress]
        ends = {batch["batchId"]: ended(batch) for batch in batches if batch["numInputRows"]}
        taken = batches_of(checkpoint)
        late = [ends[taken[name]] - at for name, at in arrived.items()]
        counted = late[int(len(late) * WARM_UP) :]
        given = sum(batch["sink"]["numOutputRows"] for batch in batches)
        quantiles = {f"p{share} (s)": round(float(np.quantile(counted, share / 100)), 2) for share in (50, 95, 99)}
        return {"events per second": rate, "patterns": count, **quantiles, "results": given, "micro-batches": len(ends)}


def feed(data: Path, arriving: Path) -> dict[str, float]:
    """Have a file arrive every tenth of a second; when each has."""
    begun = time.time()
    arrived = {}
    for number, file in enumerate(sorted(data.glob("*.parquet"))):
        time.sleep(max(0.0, begun + number / FILES_PER_SECOND - time.time()))
        waiting = arriving / f".{file.name}"  # files with such a name are not looked at
        os.link(file, waiting)
        os.utime(waiting)
        arrived[file.name] = time.time()
        waiting.rename(arriving / file.name)
    return arrived


def batches_of(checkpoint: Path) -> dict[str, int]:
    """The micro-batch that had each file, by Spark's log of them."""
    logs = [path for path in (checkpoint / "sources" / "0").iterdir() if not path.name.startswith(".")]
    entries = (json.loads(line) for log in logs for line in log.read_text().splitlines()[1:])
    return {Path(entry["path"]).name: entry["batchId"] for entry in entries}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one and four patterns, a rate, and few seconds")
    parser.add_argument("--patterns", type=int, nargs="+", help="how many patterns")
    parser.add_argument("--rates", type=int, nargs="+", help="events per second")
    parser.add_argument("--seconds", type=int, help="for how long events arrive")
    arguments = parser.parse_args()
    counts = arguments.patterns or ([1, 4] if arguments.quick else [1, 16])
    seconds = arguments.seconds or (5 if arguments.quick else 45)
    rows = []
    spark = spark_session()
    for rate in arguments.rates or ([2000] if arguments.quick else [2000, 10_000]):
        events = rate // FILES_PER_SECOND
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            minutes = FULL.minutes * events / FULL.events
            generate(Path(directory), Size(seconds * FILES_PER_SECOND, events, minutes, FULL.cards))
            for turn, count in itertools.product((1, 2), counts):
                measured = run(spark, Path(directory, "parquet"), count, rate)
                print(f"turn {turn}:", measured, flush=True)
                if turn == 2:
                    rows.append(measured)
    spark.stop()
    frame = pl.DataFrame(rows)
    OUT.mkdir(parents=True, exist_ok=True)
    frame.write_csv(OUT / "latency.csv")
    if not arguments.quick:
        about = (
            f"{seconds} s each, {FULL.cards:,} cards, one run, {os.cpu_count()} cores, Python {platform.python_version()}."
        )
        quantiles = frame.unpivot(["p50 (s)", "p95 (s)", "p99 (s)"], index=["events per second", "patterns"], value_name="s")
        drawn = quantiles.with_columns(run=pl.format("{} patterns", "patterns"), of=pl.col("variable").str.head(3))
        report.bars(drawn, "of", "run", "s", DOCUMENT.with_name("patterns-latency.svg"), "events per second")
        shown = "![Latency of one pattern and of many](patterns-latency.svg)"
        report.replace(DOCUMENT, "shared-latency", f"{shown}\n\n{about}\n\n{report.markdown(frame)}")


if __name__ == "__main__":
    main()
