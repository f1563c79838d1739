"""The race in bytewax: its `fold_window` with its own windowers, its recovery on.

Two processes of one worker each, as threads would share the interpreter's lock. The input is split by key, not by file:
each of two partitions reads every file and keeps its half of the keys, so that a key's events come in order however far
apart the partitions get. Bytewax's `EventClock` knows of a key's own events alone, and a key without new ones would keep
its windows open by the clock on the wall; `PartitionClock` gives it the watermark of its partition, to look up every
`POLL`. State and positions go to SQLite every `EPOCH`, 10 s as bytewax has it by default.
"""

# ruff: noqa: E402 - the engine can be imported once its environment is there

from __future__ import annotations

import argparse
import itertools
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

from common import DELAY_SECONDS, Result, Workload, main

PINS = ["bytewax==0.21.1", "numpy==2.4.6", "pyarrow==26.0.1"]
ENVIRONMENT = Path(os.environ.get("FOREBAY_PEERS_VENV", Path(__file__).resolve().parents[2] / ".venv-peers")).resolve()

if Path(sys.prefix).resolve() != ENVIRONMENT:
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True, stdout=sys.stderr)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PINS], check=True, stdout=sys.stderr)
    os.execv(python, [str(python), *sys.argv])

import pyarrow as pa
import pyarrow.parquet as pq
from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import windowing
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSink, cluster_main

PROCESSES = 2
BATCH = 20_000
EPOCH = timedelta(seconds=10)
POLL = timedelta(seconds=0.5)
START = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 1_000_000
MICROSECOND = timedelta(microseconds=1)
DELAY = timedelta(seconds=DELAY_SECONDS)

Event = tuple[int, int, int]  # partition, ts, price
State = tuple[int, int, Any]  # first ts, last ts, number of events or their prices


class Bids(FixedPartitionedSource):
    def __init__(self, data: Path, key: str, end: int) -> None:
        self.data, self.key, self.end = data, key, end
        self.quarter_read: list[float] = []

    def list_parts(self) -> list[str]:
        return [str(part) for part in range(PROCESSES)]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Partition:
        return Partition(self, int(for_part), resume_state or 0)


class Partition(StatefulSourcePartition):
    def __init__(self, bids: Bids, part: int, position: int) -> None:
        self.bids, self.part, self.position = bids, part, position
        self.batches = self.read()

    def read(self) -> Iterator[list[tuple[str, Event]]]:
        first = 0
        for path in sorted(self.bids.data.glob("*.parquet")):
            rows = pq.read_metadata(path).num_rows
            end = min(rows, self.bids.end - first)
            if self.position < first + end:
                table = pq.read_table(path, columns=["ts", self.bids.key, "price"])
                columns = [column.cast(pa.int64()).to_numpy() for column in table.columns]
                for start in range(self.position - first, end, BATCH):
                    ts, key, price = (column[start : min(start + BATCH, end)] for column in columns)
                    # // 100: most bids are of a few bidders, whose numbers are all odd
                    mine = key // 100 % PROCESSES == self.part
                    events = zip(itertools.repeat(self.part), ts[mine].tolist(), price[mine].tolist())
                    self.position += len(key)
                    yield list(zip(map(str, key[mine].tolist()), events, strict=True))
            first += rows

    def next_batch(self) -> list[tuple[str, Event]]:
        if not self.bids.quarter_read and self.position >= self.bids.end // 4:
            self.bids.quarter_read.append(time.monotonic())
        return next(self.batches)

    def snapshot(self) -> int:
        return self.position


class PartitionClock(windowing.Clock):
    newest: ClassVar[dict[int | None, int]] = {}  # of a partition, in this process

    def build(self, resume_state: int | None) -> KeyClock:
        return KeyClock(resume_state)


class KeyClock(windowing.ClockLogic):
    def __init__(self, part: int | None) -> None:
        self.part = part

    def before_batch(self) -> None:
        pass

    def on_item(self, value: Event) -> tuple[datetime, datetime]:
        self.part, ts, _ = value
        # Of a batch the keys have their turns, so the last event is not the newest.
        if ts > PartitionClock.newest.get(self.part, 0):
            PartitionClock.newest[self.part] = ts
        when = START + ts * MICROSECOND
        return when, when - DELAY

    def on_notify(self) -> datetime:
        return START + PartitionClock.newest.get(self.part, 0) * MICROSECOND - DELAY

    def on_eof(self) -> datetime:
        return windowing.UTC_MAX

    def to_system_utc(self, timestamp: datetime) -> datetime:
        return datetime.now(UTC) + POLL

    def snapshot(self) -> int | None:
        return self.part


def count(state: State, event: Event) -> State:
    return state[0] or event[1], event[1], state[2] + 1


def collect(state: State, event: Event) -> State:
    state[2].append(event[2])
    return state[0] or event[1], event[1], state[2]


def merge(a: State, b: State) -> State:
    return min(a[0], b[0]), max(a[1], b[1]), a[2] + b[2]


def windower(workload: Workload) -> windowing.Windower:
    size, slide = timedelta(seconds=workload.size), timedelta(seconds=workload.slide)
    if workload.kind == "session":
        return windowing.SessionWindower(size - MICROSECOND)  # it joins what is exactly a gap apart
    return windowing.TumblingWindower(size, START) if size == slide else windowing.SlidingWindower(size, slide, START)


def row(workload: Workload, result: tuple[str, tuple[int, State]]) -> tuple[int, int, int, float]:
    key, (window, (first, last, state)) = result
    value = float(state if workload.function == "count" else statistics.median(state))
    start, end = (first, last) if workload.kind == "session" else (window * workload.slide * SECOND,) * 2
    return start, end + workload.size * SECOND, int(key), value


def work(process: int, workload: Workload, bids: Bids, addresses: list[str], recovery: str, keep: bool) -> tuple:
    """One process: when its partition had read a quarter (`run` takes the mean), when it ended, its results."""
    flow = Dataflow("race")
    rows: list[tuple[int, int, int, float]] = []
    events, clock, by = op.input("bids", flow, bids), PartitionClock(), windower(workload)
    builder, folder = (lambda: (0, 0, 0), count) if workload.function == "count" else (lambda: (0, 0, array("q")), collect)
    windows = windowing.fold_window("windows", events, clock, by, builder, folder, merge, ordered=False)
    op.output("results", op.map("row", windows.down, lambda result: row(workload, result)), TestingSink(rows))
    cluster_main(flow, addresses, process, epoch_interval=EPOCH, recovery_config=RecoveryConfig(recovery))
    return bids.quarter_read, time.monotonic(), len(rows), rows if keep else []


def run(workload: Workload, data: Path, output: Path | None, arguments: argparse.Namespace) -> Result:
    end = sum(pq.read_metadata(path).num_rows for path in data.glob("*.parquet"))
    end = min(end, arguments.events or end)
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in (first, second)]
    # The engine prints to stdout when it has to wait for the other process.
    pool = ProcessPoolExecutor(PROCESSES, get_context("spawn"), initializer=os.dup2, initargs=(2, 1))
    with tempfile.TemporaryDirectory() as recovery, pool:
        init_db_dir(recovery, PROCESSES)
        same = (workload, Bids(data, workload.key, end), addresses, recovery, output is not None)
        works = [pool.submit(work, process, *same) for process in range(PROCESSES)]
        quarters, ends, counts, rows = zip(*(each.result() for each in works), strict=True)
    if output:
        columns = zip(*itertools.chain(*rows), strict=True)
        pq.write_table(pa.table(list(map(pa.array, columns)), ["start", "end", "key", "value"]), output)
    return Result(end - end // 4, max(ends) - statistics.mean(itertools.chain(*quarters)), sum(counts))


if __name__ == "__main__":
    main(run, ("--events", {"type": int, "help": "only the first so many"}))
