"""What a query with much state does when a host is lost, added, retired or slowed down, after Rhino (section 5, NBQ8).

    python benchmarks/handover.py [--sizes 1 2 5] [--events lost added slowed retired] [--systems replicas checkpoint spark]

The query joins persons (206 bytes) with the auctions that they open (269 bytes), three for each person, within 12 hours.
Event time stays within the first 12 hours, so all rows stay in state. Rows come from two prepared files that are linked
again and again; the number of the link is part of the keys, and of the time. It runs on hosts with shaped networks, see
`hosts`:

replicas     forebay with `spark.forebay.durability=replicas`, one replica
checkpoint   forebay with stores on the hosts' disks that are archived in the checkpoint, before Spark learns of a version
spark        Spark's own join on RocksDB with changelog checkpointing; its results come out at once, not at the window's end

The checkpoint is on one more host, which the others mount. Each system has a cluster of its own for each size. Large
micro-batches make the state; from the later half of them follows how many rows the system can take. Half as many a second
then arrive, in portions, every `PORTION` seconds. After some micro-batches the first event comes, in the middle of a
micro-batch; when the micro-batches are as long as before, the next one, on the same cluster:

lost         the host with the most partitions is killed
added        a host joins
slowed       the host with the most partitions gets a fifth of a core of CPU time
retired      the host with the most partitions is decommissioned

Columns of the result: `rows/s`, what the system can take; `normal`, the median micro-batch before the event; `longest`, the
longest one after it; `again`, from the event until three micro-batches in a row were within a tenth of normal, by their
median; `noticed`, from the event until Spark knows of it; `then`, from there to the end of the next micro-batch; `MB normal`
and `MB longest`, what came in at all hosts but the store in such a micro-batch; `latency`, from the arrival of a row to the
end of its micro-batch, normally and at most; `hosts` and `store`, bytes that came in there for each byte of rows, before the
event; `moved`, the partitions that are elsewhere in the end, and `moved after`, when
the last of them was.

First all systems answer a small input with the same events, and must answer as a batch does. Results are in
``bench/handover``: ``results.csv`` and ``batches.csv``, to which each run appends, charts, and logs. The tables in
``docs/benchmarks.md`` are replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import datetime
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import forebay as fb
import hosts
import report
from forebay.spark.driver.steering import Steering
from hosts import Hosts
from race import machine

ROOT = Path(__file__).parents[1]
OUT = ROOT / "bench" / "handover"
EVENTS = ("lost", "added", "slowed", "retired")
HOSTS, CORES, PARTITIONS = 3, 2, 4
PERSONS, AUCTIONS = 10_000, 30_000
"""In a pair of files."""
ROWS = PERSONS + AUCTIONS
BYTES = 206 * PERSONS + 269 * AUCTIONS
LARGE = 25
"""Pairs in a micro-batch that makes state, at most."""
WINDOW, STEP = 12 * 3600, 10
"""Seconds of event time of a window, and between the first rows of two pairs."""
BEGIN = 39_352 * WINDOW
BEYOND = 2 * WINDOW // STEP
"""A pair with this number ends the first window."""
PORTION = 4.0
NORMAL, AFTER = 6, 8
"""Micro-batches before an event that say what is normal, and those that are waited for after it, at least."""
LIMIT = 90
"""Seconds after an event that are watched, at most."""
SLOW = 0.2
CHECK = 0.05
"""GB of state when answers are checked."""

Row = dict[str, Any]

COMMON = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.executor.syncLogLevel.enabled": "true",
    "spark.driver.memory": "2g",
    "spark.executor.memory": "1500m",
    "spark.decommission.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64000",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
SYSTEMS = {
    "replicas": {"spark.forebay.durability": "replicas", "spark.forebay.replicas": "1"},
    "checkpoint": {"spark.forebay.durability": "checkpoint"},
    "spark": {},
}


class Source:
    """Pairs of files, which arrive by being linked."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.count = directory, 0
        self.arrived: list[float] = []
        random = np.random.default_rng(1)
        times = np.arange(AUCTIONS) * (STEP * 1_000_000 // AUCTIONS)
        numbers = random.permutation(PERSONS)
        persons = {"ts": times[:PERSONS] * 3, "person": numbers, "payload": noise(random, PERSONS, 206 - 16)}
        sellers = random.integers(0, PERSONS, AUCTIONS)
        auctions = {
            "ts": times,
            "person": sellers,
            "payload": noise(random, AUCTIONS, 269 - 24),
            "auction": np.arange(AUCTIONS),
        }
        for kind, columns in (("persons", persons), ("auctions", auctions)):
            (directory / kind).mkdir(parents=True)
            pq.write_table(pa.table(columns), directory / f"{kind}.parquet", compression="none", use_dictionary=False)

    def link(self, pairs: int = 1, first: int | None = None) -> None:
        """Have so many pairs arrive. Spark looks for persons first, so it seldom finds persons without their auctions."""
        begin = self.count if first is None else first
        for kind in ("auctions", "persons"):
            for number in range(begin, begin + pairs):
                os.link(self.directory / f"{kind}.parquet", self.directory / kind / f"{number}.parquet")
        self.count += pairs
        self.arrived += [time.time()] * pairs

    def read(self, spark: SparkSession, kind: str, *, batch: bool = False) -> DataFrame:
        schema = "ts long, person long, payload binary" + (", auction long" if kind == "auctions" else "")
        reader = spark.read.schema(schema) if batch else spark.readStream.schema(schema)
        rows = reader.parquet(str(self.directory / kind))
        number = F.regexp_extract(F.col("_metadata.file_name"), r"\d+", 0).cast("long")
        moment = F.timestamp_micros(F.col("ts") + (number * STEP + BEGIN) * 1_000_000)
        rows = rows.withColumns({"ts": moment, "person": F.col("person") + number * PERSONS})
        return rows if batch else rows.withWatermark("ts", "1 second")


def noise(random: np.random.Generator, rows: int, width: int) -> pa.Array:
    """Bytes that cannot be compressed."""
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * width)
    return pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(random.bytes(rows * width))])


def joined(source: Source, spark: SparkSession, how: str) -> DataFrame:
    """Persons with their auctions: by forebay, by Spark, or by Spark as a batch."""
    persons, auctions = (source.read(spark, kind, batch=how == "batch") for kind in ("persons", "auctions"))
    if how in ("replicas", "checkpoint"):
        return fb.join(persons, auctions, on="person", window=fb.window("ts", f"{WINDOW} seconds"))
    window = F.window("ts", f"{WINDOW} seconds")
    sides = [side.withColumn("window", window).drop("ts") for side in (persons, auctions)]  # one watermark, of the window
    return sides[0].join(sides[1].withColumnRenamed("payload", "payload_right"), ["window", "person"])


def answer(results: DataFrame) -> list[int]:
    """How many results the first window has, and what they are."""
    own = results.where(F.unix_seconds("window.start") == BEGIN)
    mark = F.sum(F.pmod(F.xxhash64("person", "auction", "payload", "payload_right"), F.lit(1_000_003)))
    return list(own.agg(F.count("*"), mark).first() or ())


class Meter(threading.Thread):
    """What has come in at the hosts and at the store, several times a second."""

    def __init__(self, cluster: Hosts) -> None:
        super().__init__(daemon=True)
        self.cluster, self.samples, self.ended = cluster, [(time.time(), 0, 0)], threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.1):
            received = self.cluster.received()
            store = received.pop(hosts.STORE)
            self.samples.append((time.time(), sum(received.values()), store))

    def between(self, begin: float, end: float, *, store: bool = False) -> float:
        """Megabytes, at the hosts or at the store."""
        times, at_hosts, at_store = zip(*self.samples, strict=True)
        counts = at_store if store else at_hosts
        return float(np.interp(end, times, counts) - np.interp(begin, times, counts)) / 1e6


class Feeder(threading.Thread):
    """Portions of pairs that arrive at a steady pace."""

    def __init__(self, source: Source, pairs: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self.source, self.pairs, self.seconds, self.ended = source, pairs, seconds, threading.Event()

    def run(self) -> None:
        due = time.monotonic()
        while not self.ended.wait(max(0.0, due - time.monotonic())):
            self.source.link(self.pairs)
            due += self.seconds


class Run:
    """A query of a system on a cluster of its own."""

    def __init__(self, system: str, cluster: Hosts, *, check: bool) -> None:
        self.system, self.cluster, self.check = system, cluster, check
        self.source = Source(hosts.BASE / "source")
        self.spark = session(system, cluster)
        wait_for(lambda: len(self._executors()) == HOSTS, "not every host has an executor")
        writer = joined(self.source, self.spark, system).writeStream.option(
            "checkpointLocation", str(cluster.checkpoint / "query")
        )
        out = str(hosts.BASE / "out")
        self.query: StreamingQuery = writer.format("parquet").start(out) if check else writer.format("noop").start()
        self.steering = Steering(self.query)
        self.meter = Meter(cluster)
        self.meter.start()

    def build(self, gigabytes: float) -> float:
        """Make state; rows per second that the system can take."""
        pairs = max(6, round(gigabytes * 1e9 / BYTES))
        large = min(LARGE, pairs // 6)
        while self.source.count < pairs:
            self.source.link(min(large, pairs - self.source.count))
            self.query.processAllAvailable()
        rates = [each["rows"] / each["seconds"] for each in self.batches()]
        return statistics.median(rates[len(rates) // 2 :])

    def batches(self) -> list[Row]:
        """The micro-batches so far that had rows; times in seconds."""
        found, taken = [], 0
        for progress in self.query.recentProgress:
            each = json.loads(progress.json)
            if each["numInputRows"] and each["batchDuration"]:
                begin = datetime.datetime.fromisoformat(each["timestamp"]).timestamp()
                seconds = each["batchDuration"] / 1000
                arrived = self.source.arrived[min(taken // ROWS, len(self.source.arrived) - 1)]
                taken += each["numInputRows"]
                end = begin + seconds
                row = {"batch": each["batchId"], "begin": begin, "end": end, "seconds": seconds}
                found.append({**row, "rows": each["numInputRows"], "latency": end - arrived})
        return found

    def event(self, name: str) -> tuple[Row, list[Row]]:
        """Let an event happen, and watch; what it did, and the micro-batches from before it on."""
        self._settle()
        first = len(self.batches())
        wait_for(lambda: len(self.batches()) >= first + NORMAL, "the query does not go on", 300)
        before = self.batches()[first:]
        normal = statistics.median(each["seconds"] for each in before)
        arrived = self.source.count
        wait_for(lambda: self.source.count > arrived, "nothing arrives")
        time.sleep(normal / 2)
        placement, at, handed = self.steering.placement(), time.time(), self._handed()
        noticed_at = self._happen(name, placement)
        latest, moved_at = placement, at

        def over() -> bool:
            nonlocal latest, moved_at
            now = self.steering.placement()
            if now != latest:
                latest, moved_at = now, time.time()
            waiting = name == "added" and self.system == "replicas" and self._handed() == handed
            after = [each for each in self.batches() if each["end"] > at]
            return len(after) >= AFTER and (self.check or back(after, normal) is not None) and not waiting

        wait_for(over, "", LIMIT, fail=False)
        noticed = noticed_at()
        batches = self.batches()[first:]
        after = [each for each in batches if each["end"] > at]
        longest = max(after, key=lambda each: each["seconds"])
        then = next((each["end"] for each in after if noticed and each["end"] > noticed), None)
        again = back(after, normal)
        arrived_mb = sum(each["rows"] for each in before[1:]) * BYTES / ROWS / 1e6
        steady = [
            self.meter.between(before[0]["end"], before[-1]["end"], store=store) / arrived_mb for store in (False, True)
        ]
        calm = [self.meter.between(each["begin"], each["end"]) for each in before]
        row = {
            "normal": normal,
            "longest": longest["seconds"],
            "again": None if again is None else again - at,
            "noticed": noticed and noticed - at,
            "then": then and noticed and then - noticed,
            "hosts": steady[0],
            "store": steady[1],
            "MB normal": statistics.median(calm),
            "MB longest": self.meter.between(longest["begin"], longest["end"]),
            "latency normal": statistics.median(each["latency"] for each in before),
            "latency": max(each["latency"] for each in after),
            "moved": sum(placement[partition] != executor for partition, executor in latest.items()),
            "moved after": moved_at - at,
        }
        return row, [{**each, "after": each["end"] - at} for each in batches]

    def end(self) -> bool:
        """End the window; whether the results are those of a batch."""
        for number in (BEYOND, BEYOND + 1):
            self.query.processAllAvailable()
            self.source.link(first=number)
        self.query.processAllAvailable()
        self.query.stop()
        found = answer(self.spark.read.parquet(str(hosts.BASE / "out")))
        expected = answer(joined(self.source, self.spark, "batch"))
        print(f"{found} results, as a batch: {expected}", file=sys.stderr)
        return found == expected

    def _happen(self, name: str, placement: dict[int, str | None]) -> Callable[[], float | None]:
        """Have it happen; what tells when Spark has noticed."""
        at = {each.id: each.host for each in self.steering.executors()}
        held = [at[executor] for executor in placement.values() if executor in at]
        address = max(sorted(set(held)), key=held.count)
        number = int(address.rpartition(".")[2])
        seen: list[float] = []
        known = self._executors()

        def watch(noticed: Callable[[], bool]) -> None:
            deadline = time.time() + LIMIT
            while time.time() < deadline:
                if noticed():
                    seen.append(time.time())
                    return
                time.sleep(0.05)

        conditions: dict[str, Callable[[], bool]] = {
            "lost": lambda: address not in self._executors(),
            "added": lambda: bool(self._executors() - known),
            "retired": lambda: address not in self._executors(),
        }
        if name in conditions:
            threading.Thread(target=watch, args=[conditions[name]], daemon=True).start()
        if name == "lost":
            self.cluster.kill(number)
        elif name == "added":
            self.cluster.add()
        elif name == "slowed":
            self.cluster.slow(number, SLOW)
        elif name == "retired":
            self.cluster.decommission(number)
        return lambda: seen[0] if seen else None

    def _handed(self) -> int:
        return len(fb.handover(self.query).recent) if self.system == "replicas" else 0

    def _settle(self) -> None:
        """Where there are replicas, wait until they keep up, as they do in a query that has run for long."""
        if self.system == "replicas":
            manager = fb.handover(self.query)

            def steady() -> bool:
                return all(any(0 <= lag <= 4 for lag in each.replicas.values()) for each in manager.placement())

            wait_for(steady, "replicas do not keep up", 300)

    def _executors(self) -> set[str]:
        """The hosts that can be given tasks."""
        if not hasattr(self, "steering"):
            infos = self.spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
            return {str(info.host()) for info in infos} - {self.cluster.address}
        return {each.host for each in self.steering.executors() if not each.leaving}


def back(after: list[Row], normal: float) -> float | None:
    """When three micro-batches in a row were as long as before, after the longest one; none if they have not been."""
    slow = [place for place, each in enumerate(after) if each["seconds"] > 1.1 * normal]
    if not slow:
        return after[0]["end"] if after else None
    longest = max(range(len(after)), key=lambda place: after[place]["seconds"])
    for place in range(longest + 1, len(after) - 2):
        if statistics.median(each["seconds"] for each in after[place : place + 3]) <= 1.1 * normal:
            return float(after[place]["end"])
    return None


def session(system: str, cluster: Hosts) -> SparkSession:
    settings = {
        **COMMON,
        "spark.driver.host": cluster.address,
        "spark.driver.bindAddress": cluster.address,
        **SYSTEMS[system],
    }
    if system != "spark":
        settings["spark.forebay.localDirectory"] = str(cluster.disk)
    builder = SparkSession.builder.master(cluster.master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def wait_for(condition: Callable[[], bool], failure: str, seconds: float = 120, *, fail: bool = True) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            if fail:
                raise SystemExit(failure)
            return
        time.sleep(0.2)


def one(system: str, gigabytes: float, events: list[str], *, check: bool) -> None:
    """One system with one size, in a process of its own; a line of JSON for each event."""
    with Hosts(HOSTS, CORES, "1500m") as cluster:
        try:
            run = Run(system, cluster, check=check)
            began = time.monotonic()
            rate = run.build(gigabytes)
            built = time.monotonic() - began
            pairs = max(1, round(PORTION * rate / 2 / ROWS))
            pause = PORTION if check else pairs * ROWS / (rate / 2)
            feeder = Feeder(run.source, 1 if check else pairs, pause)
            feeder.start()
            for name in events:
                row, batches = run.event(name)
                if name == "slowed":
                    for number in range(1, cluster.count + 1):
                        cluster.slow(number, None)
                about = {"system": system, "GB": gigabytes, "event": name}
                row = {**about, "rows/s": round(rate), "built": built, **row}
                print(json.dumps({"row": row, "batches": [{**about, **each} for each in batches]}), flush=True)
            feeder.ended.set()
            feeder.join()
            if check and not run.end():
                raise SystemExit("the results are not those of a batch")
            run.query.stop()
            run.meter.ended.set()
        finally:
            keep_logs(OUT / "logs" / f"{system}-{gigabytes}")


def keep_logs(directory: Path) -> None:
    """What workers, executors and agents have written."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for path in (
        *hosts.BASE.glob("*.log"),
        *hosts.BASE.glob("*/disk/*/agents/*.log"),
        *hosts.BASE.glob("*/work/*/*/stderr"),
    ):
        with contextlib.suppress(OSError):
            shutil.copy(path, directory / "-".join(path.relative_to(hosts.BASE).parts))


def measured(system: str, gigabytes: float, events: list[str], conf: list[str], *, check: bool = False) -> list[Row]:
    """Run one system in a process of its own, none of whose processes outlives it."""
    command = [sys.executable, __file__, "--one", system, "--sizes", str(gigabytes), "--events", *events, "--conf", *conf]
    OUT.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "SPARK_LOCAL_IP": f"{hosts.NET}.{hosts.DRIVER}"}
    env.setdefault("PYSPARK_PYTHON", sys.executable)
    lines = []
    with (OUT / f"{system}-{gigabytes}.log").open("w") as log:
        process = subprocess.Popen(
            [*command, *(["--check"] if check else [])],
            env=env,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    lines.append(json.loads(line))
                    if not check:
                        append(OUT / "results.csv", [lines[-1]["row"]])
                        append(OUT / "batches.csv", lines[-1]["batches"])
                        print("  ", {name: rounded(value) for name, value in lines[-1]["row"].items()}, flush=True)
            process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            hosts.clean()
    if process.returncode:
        tail = (OUT / f"{system}-{gigabytes}.log").read_text()[-2000:]
        print(f"{system} with {gigabytes} GB failed, {OUT / 'logs'} has what it wrote:\n{tail}", file=sys.stderr, flush=True)
        if check:
            raise SystemExit(1)
    return lines


def rounded(value: Any) -> Any:
    return round(value, 2) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=float, default=[1, 2, 5], help="GB of state")
    parser.add_argument("--events", nargs="+", choices=EVENTS, default=list(EVENTS))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--conf", nargs="*", default=[], help="settings of Spark for all systems, as name=value")
    parser.add_argument("--unchecked", action="store_true", help="do not check the answers first")
    parser.add_argument("--report", action="store_true", help="only tables and charts, of the runs so far")
    parser.add_argument("--one", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    hosts.require()
    COMMON.update(setting.split("=", 1) for setting in arguments.conf)
    if arguments.one:
        one(arguments.one, arguments.sizes[0], arguments.events, check=arguments.check)
        return
    OUT.mkdir(parents=True, exist_ok=True)
    if arguments.report:
        tables()
        charts()
        return
    if not arguments.unchecked:
        for system in arguments.systems:
            measured(system, CHECK, arguments.events, arguments.conf, check=True)
            print(f"check    {system:12} rows equal", flush=True)
    (OUT / "machine.json").write_text(json.dumps(machine(), indent=1))
    for gigabytes in arguments.sizes:
        for system in arguments.systems:
            print(f"{system}, {gigabytes} GB", flush=True)
            measured(system, gigabytes, arguments.events, arguments.conf)
    tables()
    charts()


def append(path: Path, rows: list[Row]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        if new:
            writer.writeheader()
        writer.writerows(rows)


def tables() -> None:
    """Print what was measured, in this run and before, and put it into the documentation; medians, if there is more."""
    keys = ["GB", "event", "system"]
    results = (
        pl.read_csv(OUT / "results.csv")
        .group_by(keys, maintain_order=True)
        .agg(pl.len().alias("runs"), pl.exclude(keys).cast(pl.Float64).median())
    )
    order = [
        pl.col("GB"),
        *(pl.col(name).cast(pl.Enum(names)) for name, names in (("event", EVENTS), ("system", [*SYSTEMS]))),
    ]
    results = results.sort(order)
    calm = results.filter(pl.col("event") == results["event"][0]).select(
        "GB",
        "system",
        pl.col("rows/s").round_sig_figs(3).cast(int),
        *(pl.col(name).round(1) for name in ("normal", "hosts", "store")),
    )
    measures = ["normal", "longest", "again", "noticed", "then", "latency normal", "latency"]
    figures = [pl.col(name).round(1).cast(str).fill_null("-").alias(name) for name in measures]
    counts = [pl.col(name).round(0).cast(int) for name in ("MB normal", "MB longest", "moved")]
    moved = pl.col("moved after").round(1).cast(str).fill_null("-")
    events = results.select(*keys, *figures, *counts, moved)
    facts = ", ".join(f"{name} {value}" for name, value in json.loads((OUT / "machine.json").read_text()).items())
    text = f"{facts}.\n\n{report.markdown(calm)}\n\n{report.markdown(events)}"
    print(text)
    report.replace(ROOT / "docs" / "benchmarks.md", "handover", text)


def charts() -> None:
    """Recovery by size (figure 1), and latency around an event (figure 4)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    results, batches = pl.read_csv(OUT / "results.csv"), pl.read_csv(OUT / "batches.csv")
    colors = {system: pyplot.get_cmap("tab10")(place) for place, system in enumerate(SYSTEMS)}
    lost = results.filter(pl.col("event") == "lost")
    if lost.height:
        figure, axes = pyplot.subplots(figsize=(6, 4))
        for system in lost["system"].unique(maintain_order=True):
            part = lost.filter(pl.col("system") == system).sort("GB")
            axes.plot(part["GB"], part["noticed"] + part["then"], "o-", color=colors[system], label=system)
        axes.set_xlabel("GB of state")
        axes.set_ylabel("s from the loss of a host to the end of a micro-batch")
        axes.set_ylim(bottom=0)
        axes.legend()
        figure.tight_layout()
        figure.savefig(OUT / "recovery.png", dpi=120)
    events = [event for event in EVENTS if event in set(batches["event"])]
    largest = max(batches["GB"])
    figure, panels = pyplot.subplots(1, len(events), figsize=(4 * len(events), 4), sharey=True, squeeze=False)
    for event, axes in zip(events, panels[0], strict=True):
        for system in SYSTEMS:
            part = batches.filter((pl.col("event") == event) & (pl.col("system") == system))
            part = part.filter(pl.col("GB") == min(largest, part["GB"].max() or largest))
            axes.plot(part["after"], part["latency"], ".-", color=colors[system], label=system)
        axes.axvline(0, color="black")
        axes.set_yscale("log")
        axes.set_title(f"a host is {event}")
        axes.set_xlabel("s since then")
    panels[0][0].set_ylabel("s from the arrival of a row to its micro-batch's end")
    panels[0][0].legend()
    figure.tight_layout()
    figure.savefig(OUT / "latency.png", dpi=120)


if __name__ == "__main__":
    main()
