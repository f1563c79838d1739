"""What a query with much state does when a host is lost, added, retired or slowed down, after Rhino (section 5).

    python benchmarks/handover.py [--sizes 1 10] [--events lost added slowed retired] [--systems replicas checkpoint]
                                  [--workloads latest]

The queries are those of `workloads`; without arguments it is the one that reads most of its state, and takes two hours. They
run on hosts with shaped networks, see `hosts`:

replicas     forebay with `spark.forebay.durability=replicas`, one replica
checkpoint   forebay with stores on the hosts' disks that are archived in the checkpoint, before Spark learns of a version
spark        Spark's own operator on RocksDB with changelog checkpointing; the results of its join come out at once, not at
             the window's end

The checkpoint is on one more host, which the others mount. Each system has a cluster of its own for each size and query.
Large micro-batches make the state; then come some at full speed, from which follows how many rows the system can take. Half
as many a second as the first system can take, or this one if it can take fewer, then arrive in portions, one every 8 seconds
(``--portion``). After some micro-batches the first event comes, in the middle of a micro-batch; when they are as long as
before, the next one, on the same cluster:

lost         the host with the most partitions is killed
added        a host joins
slowed       the host with the most partitions gets a quarter of its CPU time
retired      the host with the most partitions is decommissioned
cut          the cable of the host with the most partitions is pulled, for half a minute; only if it is asked for: Spark
             notices it after its network timeout: --conf spark.network.timeout=8s spark.network.timeoutInterval=2s
             spark.executor.heartbeatInterval=2s

Each host has an equal share of the machine's CPU time, and the driver has one with the store. Where a host joins, there is
one more from the beginning, which it brings along. Where control groups cannot be written, hosts take it from each other.

Columns of the result: `share`, the cores of each host; `rows/s`, what the system can take; `load`, what arrives; `normal`,
the median micro-batch before the event; `longest`, the longest one after it; `handing`, the longest one during a handover,
from its first copy on; `again`, from the event until three micro-batches in a row were within a tenth of normal, by their
median; `noticed`, from the event until Spark knows of it; `then`, from there to the end of the next micro-batch;
`recovery`, if a host is lost, is the sum of the three parts that the paper's table 1 has, each in the
partition where it took longest: `scheduling`, from when Spark knows of the event until a task begins to open a store,
`fetching`, for getting files, by links or copies, and `loading`, for opening stores and reading indexes; `then` is longer by
the work of the micro-batch. `MB fetched`, how much was copied by all tasks of a micro-batch, the most in any of them;
`MB normal` and `MB longest`, what came in at all hosts but the store in such a micro-batch; `latency`, from the arrival of
a row to the end of its micro-batch, normally and at most; `hosts` and `store`, bytes that came in there for each byte of
rows, before the event; `cores`, CPU time a second of all processes of the machine that are not niced, before the event;
`lag`, the most versions that a replica was behind then; `moved`, the partitions that are elsewhere in the end, and
`moved after`, when the last of them was; `copy`, how long a host takes to copy a half of the state from the checkpoint to
its disk, which is what two of four partitions need that move without replicas.

First all systems answer a small input with the same events, and must answer as a batch does. Results are in
``bench/handover``: ``results.csv``, ``batches.csv`` and ``used.csv`` (processors, memory, network and disks, second by
second), to which each run appends; charts; and logs. The tables in ``docs/handover.md`` are replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import datetime
import itertools
import json
import logging
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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import forebay as fb
import handover_report
import hosts
from forebay.spark.driver import replicas
from forebay.spark.driver.openings import FETCHING, LOADING, SCHEDULING, Reopening
from forebay.spark.driver.steering import Steering
from handover_report import EVENTS, OUT
from hosts import Hosts
from race import machine
from workloads import WORKLOADS, Workload

HOSTS, CORES, PARTITIONS = 3, 2, 4
LARGE = 25
"""Units in a micro-batch that makes state, at most."""
FULL_SPEED = 4
"""Micro-batches from which follows what a system can take, each of about so much:"""
SPEED_BYTES = 100e6
PORTION = 8.0
LOST = ("lost", "cut")
"""The events after which partitions have to be recovered."""
NORMAL, AFTER = 6, 8
"""Micro-batches before an event that say what is normal, and those that are waited for after it, at least."""
LIMIT = 360
"""Seconds after an event that are watched, at most."""
OUTPUT = str(hosts.BASE / "out")
CHECK, CHECK_PORTION = 0.05, 3.0
"""GB of state when answers are checked, and seconds between two portions then."""

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
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
}
SYSTEMS = {
    "replicas": {"spark.forebay.durability": "replicas", "spark.forebay.replicas": "1"},
    "checkpoint": {"spark.forebay.durability": "checkpoint"},
    "spark": {},
}


class Meter(threading.Thread):
    """What has come in at the hosts and at the store, and what the machine has used, several times a second."""

    def __init__(self, cluster: Hosts) -> None:
        super().__init__(daemon=True)
        self.cluster, self.ended = cluster, threading.Event()
        self.samples = [self._sample()]

    def run(self) -> None:
        while not self.ended.wait(0.1):
            self.samples.append(self._sample())

    def between(self, begin: float, end: float, *, store: bool = False) -> float:
        """Megabytes, at the hosts or at the store."""
        times, *_ = columns = np.array(self.samples).T
        counts = columns[2 if store else 1]
        return float(np.interp(end, times, counts) - np.interp(begin, times, counts)) / 1e6

    def used(self, begin: float, end: float, at: float) -> list[Row]:
        """What was used in each second from ``begin`` to ``end``; ``after`` is the time since ``at``."""
        times, *columns = np.array(self.samples).T
        instants = np.arange(begin, end)
        at_hosts, at_store, cpu, reads, busy = (np.diff(np.interp(instants, times, column)) for column in columns[:5])
        memory = np.interp(instants, times, columns[5])
        kinds = ("after", "cores", "GB used", "MB/s hosts", "MB/s store", "disk reads/s", "disk busy")
        parts = zip(instants[1:] - at, cpu, memory[1:] / 1e9, at_hosts / 1e6, at_store / 1e6, reads, busy, strict=True)
        return [dict(zip(kinds, part, strict=True)) for part in parts]

    def _sample(self) -> tuple[float, int, int, float, int, float, int]:
        received = self.cluster.received()
        store = received.pop(hosts.STORE)
        return time.time(), sum(received.values()), store, cpu_seconds(), *disk_reads(), memory_bytes()


def cpu_seconds() -> float:
    """CPU time of the machine's processes since it was started; what is niced is not the cluster's."""
    user, _, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def disk_reads() -> tuple[int, float]:
    """Reads that the machine's disks have completed, and the seconds in which they had something to do, of all of them."""
    fields = [line.split() for line in Path("/proc/diskstats").read_text().splitlines()]
    disks = [each for each in fields if (Path("/sys/block") / each[2] / "device").exists()]
    return sum(int(each[3]) for each in disks), sum(int(each[12]) for each in disks) / 1e3


def memory_bytes() -> int:
    """Memory of the machine that could not be given to anybody else."""
    about = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(about[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return 1024 * (total - available)


class Feeder(threading.Thread):
    """Portions of units that arrive at a steady pace."""

    def __init__(self, source: Workload, units: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self.source, self.units, self.seconds, self.ended = source, units, seconds, threading.Event()

    def run(self) -> None:
        due = time.monotonic()
        while not self.ended.wait(max(0.0, due - time.monotonic())):
            self.source.link(self.units)
            due += self.seconds


class Run:
    """A query of a system on a cluster of its own."""

    def __init__(self, system: str, workload: str, gigabytes: float, cluster: Hosts, share: float, *, check: bool) -> None:
        self.system, self.cluster, self.share, self.check = system, cluster, share, check
        made = WORKLOADS[workload]
        self.source = made(hosts.BASE / "source", max(6, round(gigabytes * 1e9 / made.state_bytes)))
        self.spark = session(system, cluster)
        wait_for(lambda: len(self._executors()) == HOSTS, "not every host has an executor")
        writer = self.source.results(self.spark, system).writeStream
        writer = writer.option("checkpointLocation", str(cluster.checkpoint / "query"))
        if system == "spark" and workload == "latest":
            writer = writer.outputMode("update")
        writer = writer.foreachBatch(keep) if check else writer.format("noop")
        self.query: StreamingQuery = writer.start()
        self.steering = Steering(self.query)
        self.meter = Meter(cluster)
        self.meter.start()

    def build(self) -> float:
        """Make state, by all the CPU time that there is; rows per second that the system can take then, by its own share."""
        self.bound(os.cpu_count())
        while self.source.count < self.source.units:
            self._take(min(LARGE, -(-self.source.units // 6), self.source.units - self.source.count))
        self.bound(None)
        rates = []
        for _ in range(FULL_SPEED):
            self._take(1 if self.check else round(SPEED_BYTES / self.source.unit_bytes))
            rates += [each["rows"] / each["seconds"] for each in self.batches()[-1:]]
        return statistics.median(rates)

    def bound(self, cores: float | None) -> None:
        """Let each host have so many cores, or its share, where hosts can be bounded."""
        if hosts.can_bound():
            for number in range(1, self.cluster.count + 1):
                self.cluster.slow(number, cores)

    def _take(self, units: int) -> None:
        self.source.link(units)
        self.query.processAllAvailable()

    def batches(self) -> list[Row]:
        """The micro-batches so far that had rows; times in seconds."""
        found, taken = [], 0
        for progress in self.query.recentProgress:
            each = json.loads(progress.json)
            if each["numInputRows"] and each["batchDuration"]:
                begin = datetime.datetime.fromisoformat(each["timestamp"]).timestamp()
                seconds = each["batchDuration"] / 1000
                arrived = self.source.arrived[min(taken // self.source.rows, len(self.source.arrived) - 1)]
                taken += each["numInputRows"]
                end = begin + seconds
                row = {"batch": each["batchId"], "begin": begin, "end": end, "seconds": seconds}
                found.append({**row, "rows": each["numInputRows"], "latency": end - arrived})
        return found

    def event(self, name: str) -> tuple[Row, list[Row], list[Row]]:
        """Let an event happen, and watch; what it did, and the micro-batches and what was used from before it on."""
        self._settle()
        first = len(self.batches())
        lags, began, cpu = [0], time.time(), cpu_seconds()

        def seen() -> bool:
            if self.system == "replicas" and (progress := fb.progress(self.query)) is not None:
                lags.append(progress.replicaLagVersions or 0)
            return len(self.batches()) >= first + NORMAL

        wait_for(seen, "the query does not go on", 300)
        cores = (cpu_seconds() - cpu) / (time.time() - began)
        before = self.batches()[first:]
        normal = statistics.median(each["seconds"] for each in before)
        arrived = self.source.count
        wait_for(lambda: self.source.count > arrived, "nothing arrives")
        time.sleep(normal / 2)
        placement, at, handed = self.steering.placement(), time.time(), self._handed()
        address, there = self._fullest(placement)
        opening = Reopening(str(self.query.id), there, PARTITIONS, self.steering.batch or 0)
        noticed_at = self._happen(name, address)
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
        if name == "lost":
            self.cluster.discard(_number(address))
        batches = self.batches()[first:]
        after = [each for each in batches if each["end"] > at]
        longest = max(after, key=lambda each: each["seconds"])
        then = next((each["end"] for each in after if noticed and each["end"] > noticed), None)
        again = back(after, normal)
        arrived_mb = sum(each["rows"] for each in before[1:]) * self.source.unit_bytes / self.source.rows / 1e6
        steady = [
            self.meter.between(before[0]["end"], before[-1]["end"], store=store) / arrived_mb for store in (False, True)
        ]
        calm = [self.meter.between(each["begin"], each["end"]) for each in before]
        row = {
            "normal": normal,
            "longest": longest["seconds"],
            "handing": self._longest_while_handed(batches),
            "again": None if again is None else again - at,
            "noticed": noticed and noticed - at,
            "then": then and noticed and then - noticed,
            "hosts": steady[0],
            "store": steady[1],
            "cores": cores,
            "lag": max(lags),
            **recovered(opening, noticed if name in LOST and self.system != "spark" else None),
            "MB fetched": self._opened({each["batch"] for each in after})["fetchedBytes"],
            "MB normal": statistics.median(calm),
            "MB longest": self.meter.between(longest["begin"], longest["end"]),
            "latency normal": statistics.median(each["latency"] for each in before),
            "latency": max(each["latency"] for each in after),
            "moved": sum(placement[partition] != executor for partition, executor in latest.items()),
            "moved after": moved_at - at,
        }
        used = self.meter.used(before[0]["begin"], batches[-1]["end"], at)
        return row, [{**each, "after": each["end"] - at, **self._opened({each["batch"]})} for each in batches], used

    def end(self) -> bool:
        """End the window; whether the results are those of a batch."""
        for number in self.source.last():
            self.query.processAllAvailable()
            self.source.link(first=number)
        self.query.processAllAvailable()
        self.query.stop()
        found = self.source.answer(self.spark.read.parquet(OUTPUT))
        expected = self.source.answer(self.source.results(self.spark, "batch"))
        print(f"{found} results, as a batch: {expected}", file=sys.stderr)
        return found == expected

    def close(self) -> None:
        self.query.stop()
        replicas.end()
        self.spark.stop()
        self.meter.ended.set()

    def copied(self) -> float:
        """Seconds that a host takes to copy a half of the state from the checkpoint to its disk, when all is uploaded."""
        directory = self.cluster.checkpoint / "query" / "forebay"
        before, now = -1, _size(directory)
        while before != now:
            time.sleep(5)
            before, now = now, _size(directory)
        instances = sorted(path for path in directory.glob("*/*") if path.is_dir())
        began = time.monotonic()
        self.cluster.copy(1, instances[::2])
        seconds = time.monotonic() - began
        os.sync()  # all hosts have one disk in truth: what follows does not wait for what was written here
        return seconds

    def _fullest(self, placement: dict[int, str | None]) -> tuple[str, list[int]]:
        """The host with the most partitions, and these."""
        at = {each.id: each.host for each in self.steering.executors()}
        held = {partition: at[executor] for partition, executor in placement.items() if executor in at}
        addresses = [*held.values()]
        address = max(sorted(set(addresses)), key=addresses.count)
        return address, [partition for partition, each in held.items() if each == address]

    def _happen(self, name: str, address: str) -> Callable[[], float | None]:
        """Have it happen to a host; what tells when Spark has noticed."""
        number = _number(address)
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
            "cut": lambda: address not in self._executors(),
        }
        if name in conditions:
            threading.Thread(target=watch, args=[conditions[name]], daemon=True).start()
        if name == "lost":
            self.cluster.kill(number)
        elif name == "added":
            self.cluster.add()
        elif name == "slowed":
            self.cluster.slow(number, self.share / 4)
        elif name == "retired":
            self.cluster.decommission(number)
        elif name == "cut":
            self.cluster.cut(number)
            threading.Timer(30, self.cluster.mend, [number]).start()
        return lambda: seen[0] if seen else None

    def _longest_while_handed(self, batches: list[Row]) -> float | None:
        """The longest micro-batch of which a part was during a handover."""
        if self.system != "replicas":
            return None
        parts = (SCHEDULING, FETCHING, LOADING)  # they are parts of a micro-batch
        times = [
            (each.ended - sum(seconds for step, seconds in each.seconds.items() if step not in parts), each.ended)
            for each in fb.handover(self.query).recent
        ]
        during = [
            each["seconds"]
            for each in batches
            if any(each["begin"] < ended and each["end"] > began for began, ended in times)
        ]
        return max(during, default=None)

    def _opened(self, batches: set[int]) -> dict[str, float | None]:
        """Seconds of all tasks of a micro-batch for opening stores and fetching, and MB that came over: the most of each."""
        scales = {"fetchTimeMs": 1e3, "loadTimeMs": 1e3, "fetchedBytes": 1e6}
        if self.system == "spark":
            return dict.fromkeys(scales)
        recent = [each["operators"] for each in fb.recentMetrics(self.query) if each["batchId"] in batches]
        return {
            name: max((sum(operator[name] for operator in operators) for operators in recent), default=0) / scale
            for name, scale in scales.items()
        }

    def _handed(self) -> int:
        return len(fb.handover(self.query).recent) if self.system == "replicas" else 0

    def _settle(self) -> None:
        """Where there are replicas, wait until all keep up and none is being made, as in a query that has run for long."""
        if self.system == "replicas":
            manager = fb.handover(self.query)

            def steady() -> bool:
                lags = [[*each.replicas.values()] for each in manager.placement()]
                return all(some and all(0 <= lag <= 1 for lag in some) for some in lags)

            wait_for(steady, "", 600, fail=False)

    def _executors(self) -> set[str]:
        """The hosts that can be given tasks."""
        if not hasattr(self, "steering"):
            infos = self.spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
            return {str(info.host()) for info in infos} - {self.cluster.address}
        return {each.host for each in self.steering.executors() if not each.leaving}


def recovered(opening: Reopening, noticed: float | None) -> Row:
    """The parts of a recovery, in seconds from when Spark has noticed on, if there is one."""
    seconds = opening.seconds() if noticed else {}
    if seconds and noticed:
        seconds[SCHEDULING] -= noticed - opening.since
    whole = sum(seconds.values()) if seconds else None
    return {**dict.fromkeys((SCHEDULING, FETCHING, LOADING)), **seconds, "recovery": whole}


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


def share_of(events: list[str]) -> float:
    """CPU time of a host, in cores; one share is for the driver and the store, and one for a host that joins."""
    return (os.cpu_count() or 1) / (HOSTS + 1 + ("added" in events))


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
    return fb.configure(builder).getOrCreate()


def wait_for(condition: Callable[[], bool], failure: str, seconds: float = 120, *, fail: bool = True) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            if fail:
                raise SystemExit(failure)
            return
        time.sleep(0.2)


def one(
    system: str, workload: str, gigabytes: float, events: list[str], pace: float | None, portion: float, *, check: bool
) -> None:
    """One system with one query and size, in a process of its own; a line of JSON for each event."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("forebay").setLevel(logging.INFO)
    share = share_of(events)
    with Hosts(HOSTS, CORES, "1500m", share=share) as cluster:
        try:
            run = Run(system, workload, gigabytes, cluster, share, check=check)
            began = time.monotonic()
            rate = run.build()
            built = time.monotonic() - began
            copy = None if check or system == "spark" else run.copied()
            half = min(rate / 2, pace or rate)
            units = 1 if check else max(1, round(portion * half / run.source.rows))
            feeder = Feeder(run.source, units, portion if check else units * run.source.rows / half)
            feeder.start()
            about = {"workload": workload, "system": system, "GB": gigabytes}
            for name in events:
                row, batches, used = run.event(name)
                if name == "slowed":
                    run.bound(None)
                row = {
                    "share": share,
                    "rows/s": round(rate),
                    "load": round(half),
                    "built": built,
                    "copy": copy,
                    **row,
                }
                rows = {"results": [row], "batches": batches, "used": used}
                print(
                    json.dumps({kind: [{**about, "event": name, **each} for each in some] for kind, some in rows.items()}),
                    flush=True,
                )
            feeder.ended.set()
            feeder.join()
            if check and not run.end():
                raise SystemExit("the results are not those of a batch")
            run.close()
        finally:
            keep_logs(OUT / "logs" / f"{workload}-{system}-{gigabytes}")


def keep(results: DataFrame, batch: int) -> None:
    """Append the results of a micro-batch to `OUTPUT`."""
    del batch
    results.write.mode("append").parquet(OUTPUT)


def _number(address: str) -> int:
    return int(address.rpartition(".")[2])


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


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


def measured(
    system: str,
    workload: str,
    gigabytes: float,
    events: list[str],
    conf: list[str],
    pace: float | None = None,
    portion: float = PORTION,
    *,
    check: bool = False,
) -> list[Row]:
    """Run one system in a process of its own, none of whose processes outlives it."""
    name = f"{workload}-{system}-{gigabytes}"
    command = [sys.executable, __file__, "--one", system, "--workloads", workload, "--sizes", str(gigabytes)]
    command += ["--events", *events, "--conf", *conf, *(["--pace", str(pace)] if pace else []), "--portion", str(portion)]
    OUT.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "SPARK_LOCAL_IP": f"{hosts.NET}.{hosts.DRIVER}"}
    env.setdefault("PYSPARK_PYTHON", sys.executable)
    lines = []
    with (OUT / f"{name}.log").open("w") as log:
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
                        for kind, rows in lines[-1].items():
                            append(OUT / f"{kind}.csv", rows)
                        print(
                            "  ", {column: rounded(value) for column, value in lines[-1]["results"][0].items()}, flush=True
                        )
            process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            hosts.clean()
    if process.returncode:
        tail = (OUT / f"{name}.log").read_text()[-2000:]
        print(f"{name} failed, {OUT / 'logs'} has what it wrote:\n{tail}", file=sys.stderr, flush=True)
        if check:
            raise SystemExit(1)
    return lines


def rounded(value: Any) -> Any:
    return round(value, 2) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=float, default=[1, 10], help="GB of state")
    parser.add_argument("--events", nargs="+", choices=EVENTS, default=list(EVENTS[:4]))
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=["latest"])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS)[:2])
    parser.add_argument("--conf", nargs="*", default=[], help="settings of Spark for all systems, as name=value")
    parser.add_argument("--unchecked", action="store_true", help="do not check the answers first")
    parser.add_argument("--report", action="store_true", help="only tables and charts, of the runs so far")
    parser.add_argument("--one", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument(
        "--pace", type=float, help="rows a second that arrive; half of what the first system takes, if not given"
    )
    parser.add_argument("--portion", type=float, default=PORTION, help="seconds from one arrival of rows to the next")
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    hosts.require()
    COMMON.update(setting.split("=", 1) for setting in arguments.conf)
    if arguments.one:
        (workload,), (gigabytes,) = arguments.workloads, arguments.sizes
        one(
            arguments.one,
            workload,
            gigabytes,
            arguments.events,
            arguments.pace,
            arguments.portion,
            check=arguments.check,
        )
        return
    OUT.mkdir(parents=True, exist_ok=True)
    if arguments.report:
        handover_report.write()
        return
    if not arguments.unchecked:
        for workload, system in itertools.product(arguments.workloads, arguments.systems):
            if not able(system, workload):
                continue
            measured(system, workload, CHECK, arguments.events, arguments.conf, portion=CHECK_PORTION, check=True)
            print(f"check    {workload:8} {system:12} rows equal", flush=True)
    (OUT / "machine.json").write_text(json.dumps(machine(), indent=1))
    for workload, gigabytes in itertools.product(arguments.workloads, arguments.sizes):
        pace = arguments.pace
        for system in arguments.systems:
            if not able(system, workload):
                continue
            print(f"{workload}, {system}, {gigabytes} GB", flush=True)
            lines = measured(system, workload, gigabytes, arguments.events, arguments.conf, pace, arguments.portion)
            pace = pace or next((line["results"][0]["load"] for line in lines), None)
    handover_report.write()


def able(system: str, workload: str) -> bool:
    """Whether the system has the operators of the query."""
    return system != "spark" or WORKLOADS[workload].in_spark


def append(path: Path, rows: list[Row]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        if new:
            writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
