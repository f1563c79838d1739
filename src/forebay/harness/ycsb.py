"""YCSB's core workloads as state accesses, for contrast (Gadget, section 4).

A run works on records that were loaded before it. An update is a put, an insert a put of a new key, and a read-modify-write
a get and a put. A scan is a get of each of its keys, since stores here have no order. Nothing is ever deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from forebay.errors import InvalidArgument
from forebay.harness.access import GET, PUT, SCHEMA
from forebay.harness.distributions import Distribution, Exponential, Hotspot, Numbers, Sampler, Sequential, Uniform, Zipfian
from forebay.harness.events import BLOCK

REQUESTS = ("uniform", "zipfian", "hotspot", "sequential", "exponential", "latest")
"""What the keys of requests may be drawn from."""

_READ, _UPDATE, _INSERT, _SCAN, _MODIFY = range(5)


@dataclass(frozen=True)
class Ycsb:
    """A workload of YCSB.

    Attributes
    ----------
    read, update, insert, scan, modify : float
        The share of each operation; together 1. ``modify`` is read-modify-write.
    requests : str
        One of `REQUESTS`. Zipfian keys are scattered by a hash, as in YCSB; the latest are Zipfian from the newest back.
    records : int
        How many keys there are before the run.
    operations : int
        How many operations the run has; one may be several accesses.
    size : int
        Bytes of each value.
    longest_scan : int
        Up to how many keys a scan has, all lengths equally often.
    seed : int
        Another seed gives other operations.

    Examples
    --------
    >>> sum(batch.num_rows for batch in Ycsb(read=0.5, modify=0.5, operations=1000).run()) > 1400
    True
    """

    read: float = 0.0
    update: float = 0.0
    insert: float = 0.0
    scan: float = 0.0
    modify: float = 0.0
    requests: str = "zipfian"
    records: int = 1000
    operations: int = 1_000_000
    size: int = 256
    longest_scan: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self._shares) < 0 or abs(sum(self._shares) - 1) > 1e-9:
            raise InvalidArgument(f"ycsb: the shares of operations are {self._shares}; together they must be 1")
        if self.requests not in REQUESTS:
            raise InvalidArgument(f"ycsb: requests is {self.requests!r}; it must be one of {', '.join(REQUESTS)}")
        for name, least in (("records", 1), ("operations", 0), ("size", 0), ("longest_scan", 1)):
            if getattr(self, name) < least:
                raise InvalidArgument(f"ycsb: {name} is {getattr(self, name)}; it must be at least {least}")

    def load(self) -> Iterator[pa.RecordBatch]:
        """A put of each record."""
        for begin in range(0, self.records, BLOCK):
            keys = np.arange(begin, min(begin + BLOCK, self.records))
            yield self._batch(keys, np.full(len(keys), PUT), np.zeros(len(keys), np.int64))

    def run(self) -> Iterator[pa.RecordBatch]:
        """The accesses of the operations; their time is the number of the operation."""
        of_kinds, of_keys, of_lengths = np.random.default_rng(self.seed).spawn(3)
        draw, newest = self._sampler(of_keys), self.records - 1
        for begin in range(0, self.operations, BLOCK):
            count = min(BLOCK, self.operations - begin)
            kind = np.searchsorted(np.cumsum(self._shares), of_kinds.random(count), side="right").clip(0, _MODIFY)
            newest_at = newest + np.cumsum(kind == _INSERT)
            newest = int(newest_at[-1])
            drawn = draw(count)
            key = np.maximum(newest_at - drawn, 0) if self.requests == "latest" else drawn
            key = np.where(kind == _INSERT, newest_at, key)
            length = np.where(kind == _SCAN, of_lengths.integers(1, self.longest_scan + 1, count), 1 + (kind == _MODIFY))
            number = np.repeat(np.arange(count), length)
            step = np.arange(len(number)) - np.repeat(np.cumsum(length) - length, length)
            which = kind[number]
            writes = (which == _UPDATE) | (which == _INSERT) | ((which == _MODIFY) & (step == 1))
            keys = np.where(which == _SCAN, (key[number] + step) % self.records, key[number])
            yield self._batch(keys, np.where(writes, PUT, GET), begin + number)

    @property
    def _shares(self) -> tuple[float, ...]:
        return (self.read, self.update, self.insert, self.scan, self.modify)

    def _sampler(self, random: np.random.Generator) -> Sampler:
        kinds: dict[str, Distribution] = {
            "uniform": Uniform(0, self.records - 1),
            "zipfian": Zipfian(self.records),
            "hotspot": Hotspot(self.records),
            "sequential": Sequential(self.records),
            "exponential": Exponential(self.records),
            "latest": Zipfian(self.records),
        }
        draw = kinds[self.requests].sampler(random)
        return (lambda count: _scattered(draw(count), self.records)) if self.requests == "zipfian" else draw

    def _batch(self, keys: Numbers, operations: Numbers, times: Numbers) -> pa.RecordBatch:
        none = np.zeros(len(keys), np.int64)
        sizes = np.where(operations == PUT, self.size, 0)
        columns = (operations.astype(np.uint8), none.astype(np.uint8), keys, none, none, sizes, times)
        return pa.RecordBatch.from_arrays([pa.array(each) for each in columns], schema=SCHEMA)


def _scattered(ranks: Numbers, records: int) -> Numbers:
    """Keys that are popular by rank, anywhere among the records."""
    mixed = (ranks.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return ((mixed ^ (mixed >> np.uint64(32))) % np.uint64(records)).astype(np.int64)


CORE = {
    "a": Ycsb(read=0.5, update=0.5),
    "b": Ycsb(read=0.95, update=0.05),
    "c": Ycsb(read=1.0),
    "d": Ycsb(read=0.95, insert=0.05, requests="latest"),
    "e": Ycsb(scan=0.95, insert=0.05),
    "f": Ycsb(read=0.5, modify=0.5),
}
"""The core workloads."""
