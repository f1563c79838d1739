"""Apache Flink, its jars from PyPI; what a workload does is in ``Race.java``.

The job runs in a local environment with parallelism 2, all tasks in one JVM with a heap of 6 GB. Two source tasks
read whole files, each the next one by name when it is done with one. The time is from when they have emitted a
quarter of the events until the job is done. Counts are an ``AggregateFunction``, medians a ``ProcessWindowFunction``
over the window's ``ListState``.

The state is in embedded RocksDB or on the heap. RocksDB has Flink's defaults: it takes Flink's managed memory, which
is 2 GB here, 1 GB of block cache and memtables for each of the two tasks; no predefined options, no bloom filters,
timers in RocksDB too. Checkpoints, every 10 s unless told otherwise, go to a local disk; RocksDB's are incremental.
None starts once a source task has no more files. The rest is Flink's defaults, such as a watermark every 200 ms, with
object reuse on.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import DELAY_SECONDS, Result, Workload, main

FLINK_VERSION = "2.2.1"
SOURCES = [Path(__file__).with_name(name) for name in ("Race.java", "Patterns.java")]
ENVIRONMENT = Path(os.environ.get("FOREBAY_FLINK_VENV", Path(__file__).resolve().parents[2] / ".venv-flink")).resolve()
ROW = np.dtype([("start", ">i8"), ("end", ">i8"), ("key", ">i8"), ("value", ">f8")])

# What Java 17 needs, from env.java.opts.all of Flink's config.yaml.
OPENED = ["lang", "net", "io", "nio", "lang.reflect", "text", "time"]
OPENED += ["util", "util.concurrent", "util.concurrent.atomic", "util.concurrent.locks"]
JAVA_OPTIONS = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENED]
JAVA_OPTIONS += ["--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "-XX:+UseG1GC", "-Xmx6g"]


def jars() -> Path:
    """The directory of Flink's jars, installed if need be."""
    pattern = f"lib/python*/site-packages/pyflink/lib/flink-dist-{FLINK_VERSION}.jar"
    if not any(ENVIRONMENT.glob(pattern)):
        pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True, stdout=sys.stderr)
        # apache-flink itself is the Python side and has no jars.
        subprocess.run([*pip, f"apache-flink-libraries=={FLINK_VERSION}"], check=True, stdout=sys.stderr)
    return next(ENVIRONMENT.glob(pattern)).parent


def class_path() -> str:
    """The class path with `SOURCES` compiled if need be."""
    classes = ENVIRONMENT / "race" / FLINK_VERSION
    path = f"{classes}:{jars()}/*"
    compiled = [classes / f"{source.stem}.class" for source in SOURCES]
    newest = max(source.stat().st_mtime for source in SOURCES)
    if not all(each.exists() and each.stat().st_mtime >= newest for each in compiled):
        subprocess.run(["javac", "-d", classes, "-cp", path, *SOURCES], check=True, stdout=sys.stderr)
    return path


def drive(program: str, options: Mapping[str, object], directory: str) -> tuple[int, int, int]:
    """A program of `SOURCES` in a JVM of its own: events that it timed, nanoseconds, and rows of results."""
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    command = ["java", *JAVA_OPTIONS, f"-Djava.io.tmpdir={directory}", "-cp", class_path(), program, *given]
    process = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    results = [line.split()[1:] for line in process.stdout.splitlines() if line.startswith("RESULT ")]
    if process.returncode or not results:
        sys.exit(f"{process.stdout}\nFlink gave up with status {process.returncode}")
    events, nanoseconds, rows = map(int, results[0])
    return events, nanoseconds, rows


def write_parquet(directory: Path, output: Path) -> None:
    """What the tasks left in ``directory``, in one parquet file."""
    rows = np.concatenate([np.fromfile(file, ROW) for file in sorted(directory.glob("*.rows"))])
    columns = {name: rows[name].astype(rows.dtype[name].newbyteorder("=")) for name in ("start", "end", "key", "value")}
    pq.write_table(pa.table(columns), output)


def run(workload: Workload, data: Path, output: Path | None, arguments: argparse.Namespace) -> Result:
    """One run in a JVM of its own."""
    with tempfile.TemporaryDirectory(prefix="forebay-flink-") as directory:
        options = {
            "data": data.resolve(),
            "kind": workload.kind,
            "function": workload.function,
            "key": workload.key,
            "size": workload.size,
            "slide": workload.slide,
            "delay": DELAY_SECONDS,
            "state": arguments.state,
            "checkpoint-seconds": arguments.checkpoint_seconds,
            "directory": directory,
        }
        if output:
            options["output"] = directory
        events, nanoseconds, rows = drive("Race", options, directory)
        if output:
            write_parquet(Path(directory), output)
    return Result(events, nanoseconds / 1e9, rows)


if __name__ == "__main__":
    # The temporary directory is removed also when a time limit ends the run.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    main(
        run,
        ("--state", {"choices": ["rocksdb", "heap"], "default": "rocksdb"}),
        ("--checkpoint-seconds", {"type": int, "default": 10, "help": "0 for none"}),
    )
