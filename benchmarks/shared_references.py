"""Patterns over events in a key-value store, as in the paper on shared state (section 4.3), for `shared_stores`.

Each event is stored once, under a key of its own; each window is a list of such keys in memory. A window that fires asks the
store for all of its events at once. An event is deleted with its last reference, of which the paper does not speak.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from forebay.harness.stores.connector import MEMORY, Changes, Connector
from forebay.harness.stores.redis_server import Redis
from forebay.harness.stores.rocksdb import RocksDB
from forebay.windows import TIME
from shared import MINUTE, Asked

STORES: dict[str, type[Connector]] = {"redis": Redis, "rocksdb": RocksDB}
REFERENCE = {"card": pl.Int64, "start": pl.Int64, "end": pl.Int64, "event": pl.Int64}
AMOUNT = struct.Struct("<d")


class References:
    """All patterns over one store of events.

    Parameters
    ----------
    kind : str
        Which store, of `STORES`.
    patterns : list of Asked
        What is asked.
    directory : Path
        For the store alone.
    """

    def __init__(self, kind: str, patterns: list[Asked], directory: Path) -> None:
        directory.mkdir()
        self._store, self._directory = STORES[kind](directory, MEMORY), directory
        self._patterns, self._fired_until = patterns, -(2**62)
        self._windows = {each.name: pl.DataFrame(schema=REFERENCE) for each in patterns}
        self._counts = np.zeros(0, np.int32)
        self._stored = self._bytes = 0
        self.results, self.seconds = 0, 0.0
        self.sizes: dict[str, int] = {}

    def run(self, events: pa.RecordBatch, watermark: int) -> None:
        """Take a micro-batch of events, fire what is due, and forget what nobody refers to any more."""
        began = self._processor_seconds()
        first = len(self._counts)
        numbers = np.arange(first, first + events.num_rows)
        rows = pl.DataFrame({"card": events["k0"].to_numpy(), "time": events[TIME].to_numpy(), "event": numbers})
        self._counts = np.concatenate([self._counts, np.zeros(events.num_rows, np.int32)])
        for each in self._patterns:
            placed = self._placed(each, rows).filter(pl.col("end") > self._fired_until)
            self._counts += np.bincount(placed["event"], minlength=len(self._counts)).astype(np.int32)
            self._windows[each.name] = pl.concat([self._windows[each.name], placed])
        kept = np.flatnonzero(self._counts[first:])
        amounts, texts = (events[name].take(pa.array(kept)) for name in ("a_amount", "a_text"))
        pairs = zip((kept + first).tolist(), amounts.to_pylist(), texts.to_pylist(), strict=True)
        puts = {_key(number): AMOUNT.pack(amount) + text.encode() for number, amount, text in pairs}
        self._store.write_batch(Changes(puts, {}, []))
        self._stored += len(puts)
        self._bytes += sum(map(len, puts.values())) + sum(map(len, puts))
        gone = [self._fire(each, watermark) for each in self._patterns]
        self._fired_until = watermark
        self._forget(np.concatenate(gone))
        self.seconds += self._processor_seconds() - began
        held = sum(int(frame.estimated_size()) for frame in self._windows.values()) + self._counts.nbytes
        self.sizes = {
            "live": self._bytes,
            "disk": sum(path.stat().st_size for path in self._directory.rglob("*") if path.is_file()),
            "memory": held + MEASURES[type(self._store)](self._store),
            "events": self._stored,
        }

    def close(self) -> None:
        self._store.close()

    def _placed(self, each: Asked, rows: pl.DataFrame) -> pl.DataFrame:
        """The windows of each row, of sessions its own."""
        times, size = rows["time"].to_numpy(), each.size * MINUTE
        if each.slide is None:
            return pl.DataFrame({"card": rows["card"], "start": times, "end": times + size, "event": rows["event"]})
        slide = each.slide * MINUTE
        starts = [times - times % slide - turn * slide for turn in range(-(-size // slide))]
        placed = [rows.select("card", start=start, end=start + size, event="event") for start in map(pl.Series, starts)]
        return pl.concat(placed).filter(pl.col("end") > pl.concat([rows["time"]] * len(starts)))

    def _fire(self, each: Asked, watermark: int) -> np.ndarray:
        """Make the results of windows that are due; the events to which they have referred."""
        windows = self._windows[each.name]
        if each.session:
            windows = _sessions(windows)
        due = windows["end"] <= watermark
        fired, self._windows[each.name] = windows.filter(due), windows.filter(~due)
        if each.session:  # what stays is placed anew, as more may come between
            self._windows[each.name] = self._windows[each.name].select(
                "card", start=pl.col("time"), end=pl.col("time") + each.size * MINUTE, event="event"
            )
        events = fired["event"].unique(maintain_order=True)
        values = self._store.get_batch([_key(number) for number in events.to_list()])
        found = pl.DataFrame(
            {
                "event": events,
                "amount": np.frombuffer(b"".join(value[: AMOUNT.size] for value in values if value), np.float64),
                "text": [value[AMOUNT.size :].decode() for value in values if value],
            }
        )
        results = fired.join(found, on="event").group_by("card", "start", "end")
        self.results += results.agg(pl.col("amount").median(), pl.col("text").n_unique()).height
        return fired["event"].to_numpy()

    def _forget(self, released: np.ndarray) -> None:
        self._counts -= np.bincount(released, minlength=len(self._counts)).astype(np.int32)
        over = np.unique(released)
        keys = [_key(number) for number in over[self._counts[over] == 0].tolist()]
        self._store.write_batch(Changes({}, {}, keys))
        self._bytes -= round(self._bytes * len(keys) / max(1, self._stored))  # events are of about one size
        self._stored -= len(keys)

    def _processor_seconds(self) -> float:
        """Of this process, and of the store's own."""
        ticks = 0
        for process in self._store.processes:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _sessions(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with the bounds of the sessions that they are in, beside their own time."""
    ordered = rows.sort("card", "start")
    begins = (pl.col("card") != pl.col("card").shift()) | (pl.col("start") > pl.col("end").shift())
    numbered = ordered.with_columns(begins.fill_null(value=True).cum_sum().alias("session"))
    return numbered.select(
        "card",
        pl.col("start").min().over("session"),
        pl.col("end").max().over("session"),
        "event",
        time="start",
    )


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _redis_memory(store: Connector) -> int:
    assert isinstance(store, Redis)
    return int(store._client.info("memory")["used_memory"])


def _rocksdb_memory(store: Connector) -> int:
    assert isinstance(store, RocksDB)
    names = ("rocksdb.cur-size-all-mem-tables", "rocksdb.block-cache-usage")
    return sum(store._database.property_int_value(name) or 0 for name in names)


MEASURES: dict[type[Connector], Callable[[Connector], int]] = {Redis: _redis_memory, RocksDB: _rocksdb_memory}
