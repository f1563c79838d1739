"""The stores alone, without Spark: figures 10, 11 and 12 of FlowKV, state larger than memory, and opening a large store.

`make bench-store` runs all of it and writes a CSV and a chart of each figure, and a table of all, into bench/store.
Every run is a process of its own. Accesses are those of NEXMark queries, with the rates and sizes below: rows arrive in
steps of 1,000; after each step the watermark moves, and what is due is read and removed.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from forebay.store.aligned import AlignedStore
from forebay.store.manifest import Counters
from forebay.store.options import Options
from forebay.store.unaligned import SLOT, UnalignedStore

STEP = 1_000
SECOND = 1_000_000
RATE = 20_000  # events per second of event time
ACTIVE = 200_000  # bidders who bid at one time
TURNOVER = 0.1  # new bidders per event: one is active for 100 s and bids 10 times
GAP = 40 * SECOND
WINDOW = 20 * SECOND
COMMIT = 500  # steps between commits, unless said otherwise


@dataclass(frozen=True)
class Shape:
    """A query's accesses to its state."""

    pattern: str
    payload: int  # bytes of a row beside bidder and price


SHAPES = {
    "q7": Shape("AAR", 68),
    "q7-session": Shape("AUR", 68),
    "q11-median": Shape("AUR", 0),
    "q11": Shape("RMW", 0),
}


def trace(events: int):
    """Steps of event time, bidder and price."""
    numbers = np.random.default_rng(7)
    for first in range(0, events, STEP):
        index = np.arange(first, first + STEP)
        bidder = (index * TURNOVER).astype(np.int64) + numbers.integers(0, ACTIVE, STEP)
        price = np.round(10 ** (6 * numbers.random(STEP)) * 100).astype(np.int64)
        yield index * SECOND // RATE, bidder, price


def mixed(values: np.ndarray, salt: int) -> np.ndarray:
    """Hashes of bidders, as Spark gives them to the store."""
    with np.errstate(over="ignore"):
        mixed = (values.astype(np.uint64) + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
        return ((mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)).view(np.int64)


class Forebay:
    """A store of ours, driven by batches."""

    def __init__(self, shape: Shape, directory: Path, options: Options) -> None:
        self.shape = shape
        self.payload = pa.array([b"x" * shape.payload] * STEP) if shape.payload else None
        if shape.pattern == "AAR":
            self.store: Any = AlignedStore(directory, None, ["bidder"], options)
        else:
            merge = total if shape.pattern == "RMW" else None
            self.store = UnalignedStore(directory, None, options, merge)

    def write(self, times, bidder, price) -> None:
        columns = {"bidder": bidder, "price": price}
        if self.shape.pattern == "RMW":
            columns = {"bidder": bidder, "count": np.ones(len(bidder), np.int64)}
        batch = pa.record_batch({name: pa.array(column) for name, column in columns.items()})
        if self.payload is not None:
            batch = batch.append_column("payload", self.payload)
        if self.shape.pattern == "AAR":
            starts = times // WINDOW * WINDOW
            for start in np.unique(starts).tolist():
                self.store.append(start, batch.filter(pa.array(starts == start)))
        else:
            slots = self.store.index.place_merging(mixed(bidder, 1), mixed(bidder, 2), times, times + GAP)
            self.store.append(batch, slots)

    def read(self, watermark: int) -> int:
        """Read and remove what is due; the number of rows."""
        if self.shape.pattern == "AAR":
            due = [start for start in self.store.slices.tolist() if start + WINDOW <= watermark]
            rows = sum(part.height for start in due for part in self.store.get_window([start]))
            self.store.drop(due)
            return rows
        due = self.store.index.due(watermark)
        if not len(due):
            return 0
        rows = self.store.get(due)
        self.store.remove(due)
        return total(rows).height if self.shape.pattern == "RMW" else rows.height

    def commit(self) -> None:
        self.store.commit(None, Counters())


class RocksDB:
    """RocksDB, given the same accesses: a key is bidder, window and, where rows are appended, a number."""

    def __init__(self, shape: Shape, directory: Path, options: Options) -> None:
        from rocksdict import BlockBasedOptions, Cache, Rdict, WriteBatch
        from rocksdict import Options as RocksOptions

        self.shape, self.batch = shape, WriteBatch
        settings = RocksOptions(raw_mode=True)
        settings.set_write_buffer_size(options.write_buffer_bytes)
        blocks = BlockBasedOptions()
        blocks.set_block_cache(Cache(options.memory_bytes - options.write_buffer_bytes))
        settings.set_block_based_table_factory(blocks)
        self.db = Rdict(str(directory), settings)
        self.sessions: dict[int, tuple[int, int]] = {}
        self.numbers: dict[bytes, int] = {}
        self.due: dict[int, list[int]] = {}
        self.payload = b"x" * (shape.payload + 8)
        self.calls = 0.0

    def window_of(self, time_: int, bidder: int) -> bytes:
        """The window of a row, and when it is due; this is the engine's work, not the store's, and is not timed."""
        if self.shape.pattern == "AAR":
            start = time_ // WINDOW * WINDOW
            self.due.setdefault((start + WINDOW) // SECOND, [])
            return (start + 2**62).to_bytes(8, "big") + bidder.to_bytes(8, "big")
        start, _ = self.sessions.get(bidder, (time_, 0))
        self.sessions[bidder] = (start, time_ + GAP)
        self.due.setdefault((time_ + GAP) // SECOND + 1, []).append(bidder)
        return bidder.to_bytes(8, "big") + (start + 2**62).to_bytes(8, "big")

    def write(self, times, bidder, price) -> None:
        keys = [self.window_of(*row) for row in zip(times.tolist(), bidder.tolist(), strict=True)]
        if self.shape.pattern == "RMW":
            before = time.thread_time()
            for key in keys:
                value = self.db.get(key)
                count = int.from_bytes(value, "big") + 1 if value else 1
                self.db.put(key, count.to_bytes(8, "big"))
            self.calls += time.thread_time() - before
            return
        for position, key in enumerate(keys):
            number = self.numbers[key] = self.numbers.get(key, 0) + 1
            keys[position] = key + number.to_bytes(4, "big")
        before = time.thread_time()
        batch = self.batch(raw_mode=True)
        for key in keys:
            batch.put(key, self.payload)
        self.db.write(batch)
        self.calls += time.thread_time() - before

    def read(self, watermark: int) -> int:
        rows = 0
        for second in [second for second in self.due if second * SECOND <= watermark]:
            bidders = self.due.pop(second)
            if self.shape.pattern == "AAR":
                first = (second * SECOND - WINDOW + 2**62).to_bytes(8, "big")
                rows += self.scan(first, first + b"\xff" * 13)
                continue
            for bidder in set(bidders):
                start, end = self.sessions.get(bidder, (0, 2**62))
                if end <= watermark:
                    del self.sessions[bidder]
                    key = bidder.to_bytes(8, "big") + (start + 2**62).to_bytes(8, "big")
                    if self.shape.pattern == "RMW":
                        before = time.thread_time()
                        rows += self.db.get(key) is not None
                        self.db.delete(key)
                        self.calls += time.thread_time() - before
                    else:
                        rows += self.scan(key, key + b"\xff" * 4)
        return rows

    def scan(self, first: bytes, last: bytes) -> int:
        """Read and delete a range of keys."""
        before = time.thread_time()
        found = 0
        batch = self.batch(raw_mode=True)
        each = self.db.iter()
        each.seek(first)
        while each.valid() and (key := each.key()) <= last:
            each.value()
            batch.delete(key)
            found += 1
            each.next()
        self.db.write(batch)
        self.calls += time.thread_time() - before
        return found

    def commit(self) -> None:
        before = time.thread_time()
        self.db.flush()
        self.calls += time.thread_time() - before


def total(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.group_by(SLOT).agg(pl.col("bidder").first(), pl.col("count").sum())


def run(shape: str, engine: str, events: int, options: Options, commit: int = COMMIT) -> dict[str, float]:
    """Drive a store with a trace; times in seconds, sizes in bytes."""
    directory = Path(tempfile.mkdtemp(prefix="forebay-bench-"))
    store: Any = (Forebay if engine == "forebay" else RocksDB)(SHAPES[shape], directory / "store", options)
    steps = list(trace(events))
    for times, bidder, price in steps[:2]:
        store.write(times, bidder, price)  # kernels are compiled, libraries loaded
    store.read(-1)
    spent = {"write": 0.0, "read": 0.0, "commit": 0.0}
    rows, disk, resident = 0, [], 0
    began, cpu = time.perf_counter(), time.process_time()
    calls = getattr(store, "calls", 0.0)
    for number, (times, bidder, price) in enumerate(steps[2:]):
        mark = clock(store)
        store.write(times, bidder, price)
        spent["write"] += clock(store) - mark
        mark = clock(store)
        rows += store.read(int(times[-1]))
        spent["read"] += clock(store) - mark
        if number % commit == commit - 1:
            mark = clock(store)
            store.commit()
            spent["commit"] += clock(store) - mark
            disk.append(sum(path.stat().st_size for path in (directory / "store").iterdir()))
            resident = max(resident, anonymous_memory())
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    if engine == "rocksdb":  # what its own threads have used is compaction; the engine's dictionaries are not counted
        main = sum(spent.values())
        spent["commit"] += max(0.0, cpu - (time.thread_time() - _start_of_thread))
        cpu = main + spent["commit"]
        wall = store.calls - calls
    result = {"wall": wall, "cpu": sum(spent.values()), **{f"cpu_{name}": value for name, value in spent.items()}}
    result |= {"events": events, "rows_read": rows, "disk_bytes": statistics.mean(disk), "anonymous_bytes": resident}
    if engine == "forebay":
        metrics = store.store.metrics
        result |= {"hit_ratio": metrics.hit_ratio, "index_scans": metrics.index_scans, "compactions": metrics.compactions}
        result |= {"zero_copy_bytes": metrics.zero_copy_bytes, "unused_rows": metrics.unused_rows}
    shutil.rmtree(directory)
    return result


_start_of_thread = 0.0


def clock(store) -> float:
    """CPU time of the store's calls in this thread."""
    return store.calls if isinstance(store, RocksDB) else time.process_time()


def anonymous_memory() -> int:
    """Resident memory that is not a mapped file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def open_large(gigabytes: float) -> dict[str, float]:
    """Write a store of sessions of 10 KB and open it again in a process of its own."""
    directory = Path(tempfile.mkdtemp(prefix="forebay-bench-")) / "store"
    store = UnalignedStore(directory, None, Options(memory_bytes=1 << 30))
    sessions, rows = int(gigabytes * 100_000), 50
    payload = pa.array([b"x" * 190] * (2_000 * rows))
    for first in range(0, sessions, 2_000):
        bidder = np.repeat(np.arange(first, first + 2_000), rows)
        slots = store.index.place_merging(mixed(bidder, 1), mixed(bidder, 2), bidder * SECOND, bidder * SECOND + GAP)
        store.append(pa.record_batch({"bidder": pa.array(bidder), "payload": payload}), slots)
        if first % 100_000 == 0:
            store.commit()
    version = store.commit()
    code = f"""
import json, time
from pathlib import Path
from forebay.store.filenames import Version
from forebay.store.unaligned import UnalignedStore
began = time.perf_counter()
store = UnalignedStore(Path({str(directory)!r}), Version.parse({str(version)!r}))
opened = time.perf_counter()
windows = len(store.index)
loaded = time.perf_counter()
print(json.dumps({{"open": opened - began, "with_index": loaded - began, "windows": windows}}))
"""
    result = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    result["disk_bytes"] = sum(path.stat().st_size for path in directory.iterdir())
    shutil.rmtree(directory.parent)
    return result


def measured(rounds: int, shape: str, engine: str, events: int, commit: int = COMMIT, **options) -> dict[str, float]:
    """Medians over runs in processes of their own."""
    arguments = json.dumps({"shape": shape, "engine": engine, "events": events, "commit": commit, "options": options})
    runs = [
        json.loads(subprocess.run([sys.executable, __file__, "--run", arguments], stdout=subprocess.PIPE, check=True).stdout)
        for _ in range(rounds)
    ]
    row = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    row |= {
        "events_per_s": row["events"] / row["wall"],
        "spread": max(r["wall"] for r in runs) / min(r["wall"] for r in runs),
    }
    shown = {name: round(value, 3) for name, value in row.items() if not name.endswith("bytes")}
    print(shape, engine, options, shown, f"disk {row['disk_bytes'] / 1e6:.0f} MB", flush=True)
    return row


SMALL = {"memory_bytes": 64 << 20, "write_buffer_bytes": 8 << 20}


def figure_11(rounds: int, events: int) -> list[dict]:
    return [
        {"query": shape, "readBatchRatio": ratio}
        | measured(rounds, shape, "forebay", events, read_batch_ratio=ratio, **SMALL)
        for shape in ("q11-median", "q7-session")
        for ratio in (0.0, 0.01, 0.02, 0.05, 0.1)
    ]


def figure_12(rounds: int, events: int) -> list[dict]:
    return [
        {"query": shape, "maxSpaceAmplification": msa}
        | measured(rounds, shape, "forebay", events * 3 // 2, 50, max_space_amplification=msa, **SMALL)
        for shape in ("q11-median", "q7-session")
        for msa in (1.1, 1.25, 1.5, 2.0, 3.0)
    ]


def figure_10(rounds: int, events: int) -> list[dict]:
    return [
        {"query": shape, "engine": engine} | measured(rounds, shape, engine, events, **SMALL)
        for shape in ("q7", "q11-median", "q11")
        for engine in ("forebay", "rocksdb")
    ]


def beyond_memory(rounds: int, events: int) -> list[dict]:
    """Budgets that hold all state, and a tenth of it: a window of q7 has 36 MB of rows, the open sessions have 220 MB."""
    budgets = {"q7": {"all of it": 4 << 30, "a tenth": 4 << 20}, "q7-session": {"all of it": 4 << 30, "a tenth": 22 << 20}}
    return [
        {"query": shape, "memory": name} | measured(rounds, shape, "forebay", events, memory_bytes=memory)
        for shape, sizes in budgets.items()
        for name, memory in sizes.items()
    ]


def chart(name: str, rows: list[dict], x: str, ys: list[str], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(ys), figsize=(5 * len(ys), 4))
    for axis, y in zip(np.atleast_1d(axes), ys, strict=True):
        for query in dict.fromkeys(row["query"] for row in rows):
            points = [row for row in rows if row["query"] == query]
            if isinstance(points[0][x], str):
                axis.bar([f"{query}\n{row[x]}" for row in points], [row[y] for row in points])
                axis.tick_params(axis="x", labelsize=7)
            else:
                axis.plot([row[x] for row in points], [row[y] for row in points], marker="o", label=query)
                axis.set_xlabel(x)
                axis.legend()
        axis.set_title(y)
        axis.set_ylim(bottom=0)
    figure.suptitle(name)
    figure.tight_layout()
    figure.savefig(out / f"{name}.png", dpi=110)


FIGURES = {
    "figure_11": (figure_11, "readBatchRatio", ["events_per_s", "hit_ratio"]),
    "figure_12": (figure_12, "maxSpaceAmplification", ["events_per_s", "disk_bytes"]),
    "figure_10": (figure_10, "engine", ["cpu_write", "cpu_read", "cpu_commit"]),
    "beyond_memory": (beyond_memory, "memory", ["events_per_s", "anonymous_bytes"]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--open-gb", type=float, default=10)
    parser.add_argument("--only", choices=[*FIGURES, "open"])
    parser.add_argument("--out", type=Path, default=Path("bench/store"))
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        global _start_of_thread
        _start_of_thread = time.thread_time()
        what = json.loads(arguments.run)
        print(json.dumps(run(what["shape"], what["engine"], what["events"], Options(**what["options"]), what["commit"])))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    cores = len(set(Path("/proc/cpuinfo").read_text().split("processor\t")) - {""})
    lines = [f"{platform.machine()}, {cores} cores, Python {platform.python_version()}, commit {commit}", ""]
    lines += [f"{arguments.events:,} events, medians of {arguments.rounds} runs.", ""]
    for name, (measure, x, ys) in FIGURES.items():
        if arguments.only not in (None, name):
            continue
        rows = measure(arguments.rounds, arguments.events)
        with (arguments.out / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
            writer.writeheader()
            writer.writerows(rows)
        chart(name, rows, x, ys, arguments.out)
        lines += [f"## {name}", "", f"| query | {x} | {' | '.join(ys)} |", f"| --- | --- |{' --- |' * len(ys)}"]
        lines += [f"| {row['query']} | {row[x]} | {' | '.join(f'{row[y]:,.4g}' for y in ys)} |" for row in rows]
        lines.append("")
    if arguments.only in (None, "open"):
        opened = open_large(arguments.open_gb)
        lines += ["## open", "", ", ".join(f"{name} {value:,.4g}" for name, value in opened.items()), ""]
    (arguments.out / "store.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
