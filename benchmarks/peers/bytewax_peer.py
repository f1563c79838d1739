"""The race in bytewax 0.21: its fold_window with its own windowers, recovery on.

Two processes of one worker each (threads would share the interpreter's lock). The input is split by key and not by file: each
of the two partitions reads every file and keeps its half of the keys, so that a key's events stay in order however far apart the
partitions get. Bytewax has a clock for every key, and a key without new events would keep its windows open until the end of the
input, so the clock here is one of our own: the watermark is that of the key's partition, which idle keys look up
every `POLL`. Recovery: a snapshot to SQLite every `EPOCH` (bytewax's own default), source positions and all windows.

    python benchmarks/peers/bytewax_peer.py --workload NAME --data DIR [--output FILE] [--events N] [--processes N]
"""

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
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path

import common

PINS = ["bytewax==0.21.1", "numpy==2.4.6", "pyarrow==26.0.1"]
VENV = Path(os.environ.get("FOREBAY_PEERS_VENV", Path(__file__).parents[2] / ".venv-peers"))

if Path(sys.prefix).resolve() != VENV.resolve():
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PINS], check=True, stdout=sys.stderr)
    os.execv(python, [python, *sys.argv])

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import windowing
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import cluster_main

BATCH = 20_000
EPOCH = timedelta(seconds=10)
POLL = timedelta(seconds=0.5)
START = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
DELAY = timedelta(seconds=common.DELAY_SECONDS)

Event = tuple[int, int, int]  # partition, ts, price


class Bids(FixedPartitionedSource):
    """The bids up to the row `end`; a partition is the keys of one remainder."""

    def __init__(self, data: Path, key: str, end: int, partitions: int) -> None:
        self.data, self.key, self.end, self.partitions = data, key, end, partitions
        self.quarter_read: list[float] = []

    def list_parts(self) -> list[str]:
        return [str(part) for part in range(self.partitions)]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Bid:
        return Bid(self, int(for_part), resume_state or 0)


class Bid(StatefulSourcePartition):
    def __init__(self, bids: Bids, part: int, position: int) -> None:
        self.bids, self.part, self.position = bids, part, position
        self.batches = self.read(position)

    def read(self, position: int) -> Iterator[list[tuple[str, Event]]]:
        first = 0
        for path in sorted(self.bids.data.glob("*.parquet")):
            file = pq.ParquetFile(path)
            rows = file.metadata.num_rows
            if first + rows > position:
                table = file.read(columns=["ts", self.bids.key, "price"])
                ts, key, price = (table[name].cast(pa.int64()).to_numpy() for name in table.column_names)
                for start in range(max(position - first, 0), rows, BATCH):
                    stop = min(start + BATCH, rows, self.bids.end - first)
                    if stop <= start:
                        return
                    # // 100: the bids of a while go to one bidder, and all of those are odd
                    mine = start + np.flatnonzero(key[start:stop] // 100 % self.bids.partitions == self.part)
                    self.position = first + stop
                    events = zip(itertools.repeat(self.part), ts[mine].tolist(), price[mine].tolist())
                    yield list(zip(map(str, key[mine].tolist()), events, strict=True))
            first += rows

    def next_batch(self) -> list[tuple[str, Event]]:
        if not self.bids.quarter_read and self.position >= self.bids.end // 4:
            self.bids.quarter_read.append(time.monotonic())
        return next(self.batches)

    def snapshot(self) -> int:
        return self.position


class PartitionClock(windowing.Clock):
    """The watermark of a key is the newest event time that this process has seen of the key's partition, minus the delay."""

    newest: dict[int, int] = {}

    def build(self, resume_state: int | None) -> KeyClock:
        return KeyClock(resume_state)


class KeyClock(windowing.ClockLogic):
    def __init__(self, part: int | None) -> None:
        self.part = part

    def before_batch(self) -> None:
        pass

    def on_item(self, value: Event) -> tuple[datetime, datetime]:
        self.part, ts, _ = value
        PartitionClock.newest[self.part] = ts
        ts = START + ts * MICROSECOND
        return ts, ts - DELAY

    def on_notify(self) -> datetime:
        return START + PartitionClock.newest[self.part] * MICROSECOND - DELAY

    def on_eof(self) -> datetime:
        return windowing.UTC_MAX

    def to_system_utc(self, timestamp: datetime) -> datetime:
        return datetime.now(UTC) + POLL

    def snapshot(self) -> int | None:
        return self.part


class Results(DynamicSink, StatelessSinkPartition):
    """Counts the rows, and keeps them if `keep`."""

    def __init__(self, keep: bool) -> None:
        self.keep, self.count, self.rows = keep, 0, []

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Results:
        return self

    def write_batch(self, items: list[tuple[int, int, int, float]]) -> None:
        self.count += len(items)
        if self.keep:
            self.rows += items


State = tuple[int, int, int | array]  # first ts, last ts, number of events or their prices


def count(state: State, event: Event) -> State:
    return state[0] or event[1], event[1], state[2] + 1


def collect(state: State, event: Event) -> State:
    state[2].append(event[2])
    return state[0] or event[1], event[1], state[2]


def merge(a: State, b: State) -> State:
    return min(a[0], b[0]), max(a[1], b[1]), a[2] + b[2]


def windower(workload: common.Workload) -> windowing.Windower:
    size, slide = timedelta(seconds=workload.size), timedelta(seconds=workload.slide)
    if workload.kind == "session":
        return windowing.SessionWindower(size - MICROSECOND)  # bytewax still joins what is exactly a gap apart
    if workload.kind == "sliding":
        return windowing.SlidingWindower(size, slide, START)
    return windowing.TumblingWindower(size, START)


def row(workload: common.Workload, result: tuple[str, tuple[int, State]]) -> tuple[int, int, int, float]:
    key, (window, (first, last, state)) = result
    value = float(state) if workload.function == "count" else statistics.median(state)
    if workload.kind == "session":
        return first, last + workload.size * 1_000_000, int(key), value
    start = window * workload.slide * 1_000_000
    return start, start + workload.size * 1_000_000, int(key), value


def work(process: int, workload: common.Workload, bids: Bids, addresses: list[str], recovery: Path, keep: bool):
    """One process of the cluster: when a quarter of its input was read, when it ended, and its results."""
    builder, folder = (lambda: (0, 0, 0), count) if workload.function == "count" else (lambda: (0, 0, array("q")), collect)
    results = Results(keep)
    flow = Dataflow("race")
    events = op.input("bids", flow, bids)
    windows = windowing.fold_window(
        "windows", events, PartitionClock(), windower(workload), builder, folder, merge, ordered=False
    )
    op.output("results", op.map("row", windows.down, lambda result: row(workload, result)), results)
    cluster_main(flow, addresses, process, epoch_interval=EPOCH, recovery_config=RecoveryConfig(recovery))
    return bids.quarter_read, time.monotonic(), results.count, results.rows


def free_addresses(number: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


def run(workload: common.Workload, data: Path, output: Path | None, arguments: argparse.Namespace) -> common.Result:
    total = sum(pq.read_metadata(path).num_rows for path in data.glob("*.parquet"))
    end, processes = min(total, arguments.events or total), arguments.processes
    with tempfile.TemporaryDirectory() as recovery, ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        init_db_dir(recovery, processes)
        bids = Bids(data, workload.key, end, processes)
        addresses = free_addresses(processes) if processes > 1 else []
        runs = [pool.submit(work, p, workload, bids, addresses, recovery, output is not None) for p in range(processes)]
        quarters, ends, counts, rows = zip(*(run.result() for run in runs), strict=True)
    print(quarters, ends, counts, file=sys.stderr)
    if output:
        columns = list(zip(*itertools.chain(*rows), strict=True))
        pq.write_table(pa.table(dict(zip(("start", "end", "key", "value"), columns, strict=True))), output)
    return common.Result(end - end // 4, max(ends) - max(itertools.chain(*quarters)), sum(counts))


if __name__ == "__main__":
    common.main(
        run,
        ("--events", {"type": int, "help": "take only the first N events"}),
        ("--processes", {"type": int, "default": 2}),
    )
