"""What the state of patterns over the same events takes, without Spark: one store instance for all, and one for each.

    python benchmarks/shared_stores.py [--patterns 1 4 16] [--events 8000] [--states shared separate redis rocksdb]

The transactions and patterns of ``benchmarks/shared.py``. ``redis`` and ``rocksdb`` have the events in such a store, and
references to them in memory, as in the paper (`shared_references`). Times are those of the processor, of all threads and of
Redis, so that other programs on the machine do not count. Tables go to ``bench/shared/stores.csv`` and into
``docs/patterns.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import redis

import report
from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import BoundAggregate
from forebay.engine.open import open_instance
from forebay.engine.plan import NEVER, Member, WindowPlan
from forebay.store.filenames import Version
from forebay.store.options import Options
from forebay.store.partitions import SLICE
from forebay.windows import END, START, TIME, AlignedWindows, SessionWindows, SharedWindows, bound_of
from shared import DELAY, MINUTE, ROOT, Asked, Size, asked, generate
from shared_references import STORES, References

WINDOW = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
PACKED = pa.schema([("k0", pa.int64()), ("a_amount", pa.float64()), ("a_text", pa.string())])
MEDIAN = BoundAggregate("median", "median", ("a_amount",), (pa.float64(),), pa.float64())
TEXTS = BoundAggregate("texts", "count_distinct", ("a_text",), (pa.string(),), pa.int64())
RESULTS = [("median", pa.float64()), ("texts", pa.int64())]
DELAYED = int(DELAY.split()[0]) * MINUTE


def plan_of(pattern: Asked) -> WindowPlan:
    """A pattern as an operator of its own."""
    windows = SessionWindows() if pattern.slide is None else AlignedWindows(pattern.size * MINUTE, pattern.slide * MINUTE)
    chosen = Pattern.AUR if pattern.session else Pattern.AAR
    schema = pa.schema([("window", WINDOW), ("card", pa.int64()), *RESULTS])
    return WindowPlan(windows, PACKED, ("k0",), Aggregation(("k0",), (MEDIAN, TEXTS)), chosen, schema, Options())


def shared_plan(patterns: list[Asked]) -> WindowPlan:
    """All patterns as one operator."""
    members = tuple(Member(each.name, each.name, plan_of(each), 1, (2, 3, 4)) for each in patterns)
    schema = pa.schema([("pattern", pa.string()), ("card", pa.int64()), ("window", WINDOW), *RESULTS])
    return WindowPlan(
        SharedWindows(), PACKED, ("k0",), Aggregation((), ()), Pattern.SHARED, schema, Options(), members=members
    )


@dataclass
class Operator:
    """A store instance over micro-batches, and what it took."""

    plan: WindowPlan
    directory: Path
    patterns: list[Asked]
    version: Version | None = None
    fired_until: int = NEVER
    results: int = 0
    seconds: float = 0.0
    sizes: dict[str, int] = field(default_factory=dict)

    def run(self, events: pa.RecordBatch, watermark: int) -> None:
        batch = self._packed(events)
        begun = time.process_time()
        instance = open_instance(self.plan, self.directory, self.version, self.fired_until)
        instance.ingest(batch)
        self.results += sum(found.num_rows for found in instance.fire(watermark))
        self.version, self.fired_until = instance.commit(), watermark
        self.seconds += time.process_time() - begun
        told = instance.metrics
        instance.close()
        self.sizes = {"live": told.live_bytes, "disk": told.disk_bytes, "memory": told.memory_bytes, "events": told.events}

    def _packed(self, events: pa.RecordBatch) -> pa.RecordBatch:
        windows, times = self.plan.windows, events[TIME].to_numpy()
        if isinstance(windows, AlignedWindows):
            slices = windows.slice_starts(times)
            order = pa.array(np.argsort(slices, kind="stable"))
            return events.select(PACKED.names).append_column(SLICE, pa.array(slices)).take(order)
        columns = {name: events[name] for name in events.schema.names}
        ends = {place: times + each.size * MINUTE for place, each in enumerate(self.patterns) if each.session}
        if isinstance(windows, SessionWindows):
            return pa.record_batch({**columns, START: times, END: ends[0]})
        return pa.record_batch({**columns, **{bound_of(END, place): end for place, end in ends.items()}})


def micro_batches(data: Path) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The events of each file, and the watermark that its micro-batch has."""
    latest = NEVER
    for path in sorted(data.glob("*.parquet")):
        table = pq.read_table(path).combine_chunks()
        times = table["time"].cast(pa.int64()).combine_chunks()
        columns = {"k0": table["card"], "a_amount": table["amount"], "a_text": table["text"]}
        batch = pa.table({**columns, TIME: times}).combine_chunks().to_batches()[0]
        yield batch, latest - DELAYED if latest > NEVER else NEVER
        latest = max(latest, int(times.to_numpy().max()))


def measured(data: Path, size: Size, patterns: list[Asked], state: str) -> dict[str, Any]:
    """What all micro-batches took with one kind of state; and the most that was stored."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as closing:
        place = Path(name)
        operators: list[Any]
        if state == "shared":
            operators = [Operator(shared_plan(patterns), place / "shared", patterns)]
        elif state == "separate":
            operators = [Operator(plan_of(each), place / each.name, [each]) for each in patterns]
        else:
            operators = [References(state, patterns, place / state)]
            closing.callback(operators[0].close)
        most: dict[str, int] = {}
        for events, watermark in micro_batches(data):
            for operator in operators:
                operator.run(events, watermark)
            now = {what: sum(operator.sizes[what] for operator in operators) for what in operators[0].sizes}
            most = {what: max(most.get(what, 0), value) for what, value in now.items()}
        seconds = sum(operator.seconds for operator in operators)
    return {
        "patterns": len(patterns),
        "state": state,
        "live (MB)": round(most["live"] / 1e6, 1),
        "files (MB)": round(most["disk"] / 1e6, 1),
        "memory (MB)": round(most["memory"] / 1e6, 1),
        "stored events": most["events"] if state != "separate" else None,
        "processor seconds for a million events": round(1e6 * seconds / (size.files * size.events), 1),
        "results": sum(operator.results for operator in operators),
    }


STATES = ["shared", "separate", *STORES]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--patterns", type=int, nargs="+", default=[1, 4, 16], help="how many patterns")
    parser.add_argument("--events", type=int, default=8000, help="events in each of 15 micro-batches of five minutes")
    parser.add_argument("--states", nargs="+", choices=STATES, default=STATES, help="kinds of state")
    arguments = parser.parse_args()
    size = Size(15, arguments.events, 5, arguments.events // 2)
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        generate(Path(directory), size)
        events = Path(directory) / "parquet"
        measured(events, size, asked(2), "shared")  # code is compiled
        for count in arguments.patterns:
            try:
                found = [measured(events, size, asked(count), state) for state in arguments.states]
            except redis.RedisError as error:
                raise SystemExit(
                    f"Redis has gone away while {count} patterns were measured: {error}. Run it again."
                ) from error
            if len({each["results"] for each in found}) > 1:
                raise SystemExit(f"not all give as many results: {found}")
            rows += found
            print(*found, sep="\n", flush=True)
    frame = pl.DataFrame(rows)
    out = ROOT / "bench" / "shared"
    out.mkdir(parents=True, exist_ok=True)
    frame.write_csv(out / "stores.csv")
    about = (
        f"{size.files} micro-batches of {size.events:,} events of {size.cards:,} cards, five minutes each; one run of one "
        f"store instance, {os.cpu_count()} cores, Python {platform.python_version()}."
    )
    table = report.markdown(frame.drop("results").with_columns(pl.col("stored events").cast(pl.String).fill_null("")))
    report.replace(ROOT / "docs" / "patterns.md", "stores", f"{about}\n\n{table}")


if __name__ == "__main__":
    main()
