"""The race: the same windows over the same bids on forebay and on its peers, one after another on this machine.

    python benchmarks/race.py [--quick] [--shape many|few|skew] [--rounds 3] [--runs 1] [--only forebay spark-rocksdb ...]
                              [--workloads tumbling-median ...]

Bids come from the NEXMark generator with 100,000 active bidders and auctions, none hot, 10,000 events per second of event
time, 1 million events (of which 92% are bids) in a pair of parquet files, and as raw records for engines that do not read
parquet. Engines on Spark take a pair per micro-batch. All get two cores. First all peers answer a small input, and their
answers must be equal. Then each is timed in every round, each run a process of its own: the first quarter of its input warms
it up, the rest is timed up to the end of the run. With ``--runs`` each process runs its workload so many times, and the last
run counts: Java goes on compiling for a minute or two. Slow peers get fewer pairs, or fewer
events per second of event time, never less than 20 windows of it.

That is the shape ``many``: as many keys as there are rows, nearly. ``few`` has 20,000 bidders, each with ten bids in 10 s,
one file of 400,000 bids in a micro-batch; ``skew`` has NEXMark's own hot bidders and auctions: three of four bids are by one
bidder at a time. These are for forebay, Spark and Flink, on RocksDB, and for the vehicle.

``--quick`` is forebay and Spark alone, over a million events at 5,000 per second, once, with a process per engine.

Results are in ``bench/race``, those of other shapes in a directory there: ``results.csv`` with every run, ``machine.json``,
charts, ``report.html``. When nothing was left out, the table of that shape in ``docs/benchmarks.md`` is replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.metadata
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from common import DELAY_SECONDS, WORKLOADS

import report
from forebay.nexmark import NexmarkConfig, generate

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "bench"
PEERS = Path(__file__).parent / "peers"
FIRST = 6_000_000
"""The number of the first event: 100,000 people have registered by then."""
RECORDS = 100_000
"""Events in a file of raw records: two readers are never more than 10 s of event time apart."""
ALL = tuple(WORKLOADS)
SOME = ("tumbling-median", "session-count")
"""A holistic and an incremental aggregate."""


@dataclass(frozen=True)
class Peer:
    """An engine: its script, what it is told, how many pairs of files of which data it gets, and the workloads it runs."""

    script: str
    options: tuple[str, ...] = ()
    pairs: int = 12
    data: str = "bids"
    workloads: tuple[str, ...] = SOME


PEER = {
    "forebay": Peer("forebay_peer", workloads=ALL),
    "spark-rocksdb": Peer("spark_peer", pairs=3, workloads=ALL),
    "flink-rocksdb": Peer("flink_peer", pairs=2, workloads=ALL),
    "forebay-memory": Peer("forebay_peer", ("--state", "memory")),
    "vehicle": Peer("vehicle_peer"),
    "spark-memory": Peer("spark_peer", ("--state", "memory"), pairs=3),
    "flink-heap": Peer("flink_peer", ("--state", "heap"), pairs=6),
    "bytewax": Peer("bytewax_peer", pairs=2, data="thin"),
    "spark-tws": Peer("tws_peer", pairs=4, data="sparse", workloads=(*SOME, "session-median")),
}
QUICK = ("tumbling-median", "session-median", "tumbling-count")


@dataclass(frozen=True)
class Bids:
    """A data set: pairs of files, events in each, and events per second of event time; how many bidders and auctions; files.

    Bidders and auctions are drawn evenly, unless there are hot ones as NEXMark has them.
    """

    pairs: int
    events: int
    rate: int
    keys: int = 100_000
    files: int = 2
    hot: bool = False


FEW = Bids(60, 434_783, 21_739, 20_000, 1)
"""92% of events are bids."""
DATA = {
    "bids": Bids(12, 1_000_000, 10_000),
    "thin": Bids(2, 200_000, 2_000),
    "sparse": Bids(4, 6_000, 100),
    "check": Bids(3, 10_000, 500),
    "quick": Bids(4, 250_000, 5_000),
    "few": FEW,
    "skew": Bids(12, 1_000_000, 10_000, hot=True),
}
SHAPES = {"many": ("bids", {}), "few": ("few", {"spark-rocksdb": 20, "flink-rocksdb": 10}), "skew": ("skew", {})}
"""The data of each shape, and how many pairs peers get that do not get as many as otherwise."""
ON_ROCKSDB = ("forebay", "spark-rocksdb", "flink-rocksdb")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=1, help="of a workload in a process; the last one counts")
    parser.add_argument("--shape", choices=SHAPES, default="many")
    parser.add_argument("--only", nargs="+", choices=PEER)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--quick", action="store_true", help="forebay and Spark, one workload of each pattern, one round")
    parser.add_argument("--out", type=Path, default=BENCH / "race")
    arguments = parser.parse_args()
    out, peers = arguments.out, entered(arguments.shape)
    everybody = set(peers)
    peers = {name: peer for name, peer in peers.items() if name in (arguments.only or everybody)}
    if arguments.shape != "many":
        out /= arguments.shape
    if arguments.quick:
        peers = {name: replace(PEER[name], pairs=4, data="quick") for name in ("forebay", "spark-rocksdb")}
        arguments.workloads, arguments.rounds, out = list(QUICK), 1, out / "quick"
    out.mkdir(parents=True, exist_ok=True)
    check(peers, arguments.workloads, out)
    (out / "machine.json").write_text(json.dumps(machine(), indent=1))
    with (out / "results.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["workload", "peer", "round", "events", "seconds", "rows", "events_per_second", "event_time_span"])
        alone = [[workload] * arguments.runs for workload in arguments.workloads]
        processes = [arguments.workloads] if arguments.quick else alone
        for number, workloads, name in itertools.product(range(arguments.rounds), processes, peers):
            peer = peers[name]
            for workload, result in run(peer, workloads, part(peer.data, peer.pairs)).items():
                rate = result["events"] / result["seconds"]
                data = DATA[peer.data]
                row = [workload, name, number, result["events"], round(result["seconds"], 3), result["rows"]]
                writer.writerow([*row, round(rate), peer.pairs * data.events // data.rate])
                file.flush()
                print(f"round {number}  {workload:16} {name:16} {rate:>12,.0f} events/s", flush=True)
    whole = arguments.runs == 1 and set(peers) == everybody and set(arguments.workloads) == set(WORKLOADS)
    mark = "race" if arguments.shape == "many" else f"race-{arguments.shape}"
    report.write(out, ROOT / "docs" / "benchmarks.md" if whole else None, mark)


def entered(shape: str) -> dict[str, Peer]:
    """The peers that race over data of a shape."""
    if shape == "many":
        return PEER
    data, pairs = SHAPES[shape]
    whole = dict.fromkeys(("forebay", "vehicle"), DATA[data].pairs)
    return {
        name: replace(PEER[name], data=data, pairs=pairs.get(name, whole.get(name, PEER[name].pairs)))
        for name in (*ON_ROCKSDB, "vehicle")
    }


def check(peers: dict[str, Peer], workloads: list[str], out: Path) -> None:
    """All peers' answers to a small input must be equal, for windows that end before its last watermark."""
    data = part("check", DATA["check"].pairs)
    newest = max(pq.read_table(path)["ts"].cast(pa.int64()).to_numpy().max() for path in data.glob("*.parquet"))
    answers: dict[str, pl.DataFrame] = {}
    for name, peer in peers.items():
        if name == "vehicle":
            continue
        for workload in run(peer, workloads, data, "--output", str(out)):
            answer = out / f"{workload}.parquet"
            columns = [pl.col("start"), pl.col("end"), pl.col("key"), pl.col("value").cast(pl.Float64)]
            closed = pl.col("end") <= newest // 1000 * 1000 - DELAY_SECONDS * 1_000_000
            frame = pl.read_parquet(answer).select(columns).filter(closed).sort("start", "end", "key")
            answer.unlink()
            if not frame.equals(answers.setdefault(workload, frame)) or not frame.height:
                raise SystemExit(f"{name} answers {workload} with other rows: {frame}, not {answers[workload]}")
            print(f"check    {workload:16} {name:16} {frame.height:>12,} rows equal", flush=True)


def run(peer: Peer, workloads: list[str], data: Path, *more: str) -> dict[str, dict[str, float]]:
    """The last runs of those workloads that a peer runs, in one process group, none of which outlives it."""
    some = [workload for workload in workloads if workload in peer.workloads]
    if not some:
        return {}
    command = [sys.executable, str(PEERS / f"{peer.script}.py"), "--workload", *some, "--data", str(data)]
    process = subprocess.Popen(
        [*command, *peer.options, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=1200 * len(some))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode or len(lines) != len(some):
        raise SystemExit(f"{' '.join(command)} failed:\n{errors[-3000:]}")
    time.sleep(1)
    return dict(zip(some, map(json.loads, lines), strict=True))


def part(name: str, pairs: int) -> Path:
    """A directory with the first pairs of a data set, which is generated if need be."""
    bids = DATA[name]
    whole = BENCH / "data" / f"{name} of {bids.pairs} pairs"
    if not (whole / "done").exists():
        whole.mkdir(parents=True, exist_ok=True)
        for file in range(bids.pairs):
            write(whole, file, bids)
        (whole / "done").touch()
    some = BENCH / "data" / f"{name}-{pairs}"
    if not some.exists():
        some.mkdir()
        for path in sorted(whole.iterdir()):
            if path.name[:5].isdigit() and int(path.name[:5]) < pairs:
                os.link(path, some / path.name)
    return some


def write(directory: Path, file: int, data: Bids) -> None:
    even = {} if data.hot else {"hot_bidders_ratio": 1, "hot_auction_ratio": 1}
    config = NexmarkConfig(type="bid", rate=data.rate, num_active_people=data.keys, num_in_flight_auctions=data.keys, **even)
    events = data.events
    begin = FIRST + file * events
    tables = []
    for piece, first in enumerate(range(begin, begin + events, RECORDS)):
        bids = generate(config, first, min(first + RECORDS, begin + events))
        table = pa.table({"ts": bids["dateTime"], **{name: bids[name] for name in ("auction", "bidder", "price")}})
        numbers = [column.cast(pa.int64()).to_numpy() for column in table.columns]
        np.stack(numbers, axis=1).astype("<i8").tofile(directory / f"{file:05}-{piece:02}.bin")
        tables.append(table)
    table = pa.concat_tables(tables)
    share = -(-table.num_rows // data.files)
    for place in range(data.files):
        pq.write_table(table.slice(place * share, share), directory / f"{file:05}-{place}.parquet")


def machine() -> dict[str, str]:
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()[0]
    cpu = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    versions = {name: importlib.metadata.version(name) for name in ("pyspark", "pyarrow", "polars", "numba")}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip(),
        "cpu": f"{len(cpu)} x {cpu[0]}" if cpu else platform.machine(),
        "java": java,
        "python": platform.python_version(),
        **versions,
    }


if __name__ == "__main__":
    main()
