"""A query that runs for long and is killed again and again: its output is right, and it does not grow.

    python benchmarks/soak.py [--minutes 30] [--seed 0]

Bids of the NEXMark generator come at a steady rate. At random times the whole query is killed, later one of its Python
workers, and it goes on. At the end the output must equal that of Spark's own windows over the same bids as a batch, and in
the last third of the time the state's files and each process's memory, open files and mapped regions must be about what they
were in the second third. A run of less than `ENOUGH` minutes cannot tell that: it kills faster, and only the output counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress

import forebay as fb
from forebay import nexmark

RATE, BATCH_SECONDS = 4_000, 2
"""Events per second of event time, and how much of it a micro-batch has; one begins every so many seconds."""
ENOUGH = 10
"""Minutes of events."""
KILLS = 30, 90
"""A kill comes so many seconds after the first micro-batch, or after the last kill."""
SLACK = 1.3
"""How much more the last third may have than the second."""


def session() -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "1g",  # a heap grows to what it may have; what Spark keeps for its UI, to these numbers
        **dict.fromkeys(("spark.ui.retainedJobs", "spark.ui.retainedStages", "spark.sql.ui.retainedExecutions"), "50"),
        "spark.ui.retainedTasks": "500",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[2,4]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = fb.configure(builder).getOrCreate()
    nexmark.register(spark)
    return spark


def source(events: int) -> dict[str, str]:
    most = str(BATCH_SECONDS * RATE)
    return {"type": "bid", "rate": str(RATE), "events": str(events), "avgBidByteSize": "32", "maxEventsPerTrigger": most}


def results(bids: DataFrame, *, engine: str) -> DataFrame:
    """Medians and counts of sessions and sliding windows: all of the stores; by forebay, or by Spark itself."""
    own = engine == "spark"
    library, group = (F, DataFrame.groupBy) if own else (fb, fb.groupBy)
    sessions = group(bids, library.session_window("dateTime", "10 seconds"), "bidder")
    windows = group(bids, library.window("dateTime", "20 seconds", "10 seconds"), "auction")
    united = None
    for kind, grouped, value in (
        ("session median", sessions, library.median("price")),
        ("session count", sessions, library.count("*")),
        ("sliding median", windows, library.median("price")),
    ):
        aggregated = grouped.agg(value.alias("value"))
        window, key, _ = aggregated.columns
        value = F.col("value").cast("double").alias("value")
        one = aggregated.select(F.lit(kind).alias("kind"), f"{window}.*", F.col(key).alias("key"), value)
        united = one if united is None else united.union(one)
    assert united is not None
    return united


def run(directory: Path, events: int) -> None:
    """The query, until all events have been taken."""
    spark = session()
    bids = spark.readStream.format("nexmark").options(**source(events)).load().withWatermark("dateTime", "1 second")
    writer = (
        results(bids, engine="forebay")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
    )
    query = writer.trigger(processingTime=f"{BATCH_SECONDS} seconds").start(str(directory / "out"))
    while not query.awaitTermination(1):
        progress = query.lastProgress
        if progress and taken(progress) >= events:
            query.stop()
            (directory / "done").touch()
            return


def taken(progress: StreamingQueryProgress) -> int:
    """Events that the query has had."""
    offset = progress.sources[0].endOffset
    return int(json.loads(offset)["number"]) if offset else 0


def members(session_id: int) -> list[int]:
    """The processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(path.name)) == session_id:
                found.append(int(path.name))
    return found


def committed(directory: Path) -> int:
    """The number of micro-batches that Spark has committed."""
    return 1 + max((int(path.name) for path in (directory / "checkpoint" / "commits").glob("[0-9]*")), default=-1)


def sizes(pids: list[int], directory: Path) -> dict[str, int]:
    """The largest process by each measure, and the number of files of the state."""
    files = list((directory / "checkpoint" / "forebay").rglob("*.*"))
    found = {"files": len(files), "kB of files": sum(size_of(path) for path in files) // 1024}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            process = Path(f"/proc/{pid}")
            program = (process / "exe").readlink().name
            if not program.startswith(("java", "python")):
                continue  # what the JVM starts others with has the JVM's open files for a moment
            kind = "jvm" if program == "java" else "python"
            memory = [line for line in (process / "status").read_text().splitlines() if line.startswith("RssAnon")]
            measures = {
                "MB": int(memory[0].split()[1]) // 1024,  # one that has ended has none
                "open files": sum(1 for _ in (process / "fd").iterdir()),
                "mapped regions": (process / "maps").read_text().count("\n"),
            }
            for name, value in measures.items():
                found[f"{kind} {name}"] = max(value, found.get(f"{kind} {name}", 0))
    return found


def size_of(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def disturb(process: subprocess.Popen[bytes], pick: random.Random, *, all_of_it: bool) -> str:
    """Kill a query, or one of its Python workers."""
    pids = members(process.pid)
    workers = [pid for pid in pids if b"daemon\0pyspark.worker" in read(pid)]
    kill(pids if all_of_it or not workers else [pick.choice(workers)])
    return "all" if all_of_it else "a worker"


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def read(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def soak(minutes: float, seed: int) -> None:
    """All is killed in the first third of the events, only workers later: processes that grow must live long to show it."""
    pick, pace = random.Random(seed), min(1.0, minutes / ENOUGH)
    events, began = int(minutes * 60 * RATE), time.monotonic()
    samples: list[dict[str, int]] = []
    with tempfile.TemporaryDirectory(prefix="forebay-soak-") as name:
        directory = Path(name)
        while not (directory / "done").exists():
            command = [sys.executable, __file__, "--query", name, "--events", str(events)]
            with (directory / "log").open("ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            first, until, killed = committed(directory), float("inf"), False
            while process.poll() is None:
                time.sleep(5 * pace)
                samples.append(sizes(members(process.pid), directory))
                now, batches = time.monotonic(), committed(directory)
                if now > until and not (directory / "done").exists():
                    killed = batches < minutes * 20 / BATCH_SECONDS
                    print(f"{now - began:5.0f} s  {samples[-1]}", flush=True)
                    print(f"         killing {disturb(process, pick, all_of_it=killed)}", flush=True)
                    until = now + pick.uniform(*KILLS) * pace
                elif until == float("inf") and batches > first:
                    until = now + pick.uniform(*KILLS) * pace
            kill(members(process.pid))
            if not killed and not (directory / "done").exists():
                raise SystemExit(f"the query failed:\n{(directory / 'log').read_text()[-5000:]}")
        require_right(directory, events)
        if minutes >= ENOUGH:
            require_flat(samples)


def require_right(directory: Path, events: int) -> None:
    """The output equals that of a batch over the same events, as far as its windows have fired."""
    spark = session()
    out = spark.read.parquet(str(directory / "out"))
    last = out.agg(F.max("end")).collect()[0][0]
    bids = spark.read.format("nexmark").options(**source(events)).load()
    whole = results(bids, engine="spark").localCheckpoint()  # Spark 4.3 would push the filter below the merging of sessions
    expected = whole.where(F.col("end") <= last)
    rows, missing, more = out.count(), expected.exceptAll(out).count(), out.exceptAll(expected).count()
    print(f"{rows:,} rows of output, {missing} missing, {more} too many", flush=True)
    if missing or more or not rows:
        raise SystemExit(1)


def require_flat(samples: list[dict[str, int]]) -> None:
    """Nothing is much larger in the last third than in the second."""
    third = len(samples) // 3
    grown = []
    for name in sorted({name for sample in samples for name in sample}):
        second, last = (max(sample.get(name, 0) for sample in part) for part in (samples[third:-third], samples[-third:]))
        print(f"{name:24} {second:8,} in the second third, {last:8,} in the last", flush=True)
        if last > SLACK * second + 10:
            grown.append(name)
    if grown:
        raise SystemExit(f"grown: {', '.join(grown)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--query", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--events", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.query:
        run(arguments.query, arguments.events)
    else:
        soak(arguments.minutes, arguments.seed)
