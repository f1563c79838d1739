"""How well a store serves accesses: throughput, the latency of each operation, memory and disk over time.

One Python loop drives every store, with keys and values that were made before. The clock is read once per access, within the
time that counts. What Python itself costs is therefore the same for each store, and shows in the row of the dict.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from forebay.errors import ForebayError, StateDirectoryError
from forebay.harness.access import DELETE, GET, MERGE, PUT, Operation, replay
from forebay.harness.histogram import Histogram
from forebay.harness.stores import Connector

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)

SAMPLE_SECONDS = 0.1
"""How far samples of memory and disk are apart at least; they are taken between batches, and do not count as time."""

_SEED = 18


class Sample(NamedTuple):
    """What a store takes at one time.

    Attributes
    ----------
    accesses : int
        How many there had been.
    seconds : float
        How long they had taken.
    memory : int
        Bytes of the process and of the store's own that are resident, less what they had before the run. The harness's own
        batches are in it.
    disk : int
        Bytes of the files in the store's directory.
    """

    accesses: int
    seconds: float
    memory: int
    disk: int


@dataclass
class Measured:
    """What a run over a store has taken.

    Attributes
    ----------
    accesses : int
        How many there were.
    seconds : float
        How long they took together.
    latencies : mapping of Operation to Histogram
        Nanoseconds.
    found : int
        How many gets found a value.
    interrupted : bool
        The run was ended from the keyboard; all else is of the accesses before.
    samples : list of Sample
        Memory and disk over time; the last one is at the end.
    """

    accesses: int = 0
    seconds: float = 0.0
    latencies: Mapping[Operation, Histogram] = field(default_factory=lambda: {each: Histogram() for each in Operation})
    found: int = 0
    interrupted: bool = False
    samples: list[Sample] = field(default_factory=list)

    @property
    def throughput(self) -> float:
        """Accesses per second."""
        return self.accesses / self.seconds if self.seconds else 0.0

    def rows(self) -> list[dict[str, float | str]]:
        """Microseconds of each operation that occurred, by percentile."""
        rows: list[dict[str, float | str]] = []
        for operation, latency in self.latencies.items():
            if latency.count:
                shares = {f"p{share:g}": latency.percentile(share) / 1000 for share in PERCENTILES}
                rows.append({"operation": operation.name, "count": latency.count, **shares, "max": latency.most / 1000})
        return rows


def evaluate(
    store: Connector, batches: Iterable[pa.RecordBatch], rate: float | None = None, directory: Path | None = None
) -> Measured:
    """Drive a store with accesses, and measure it.

    Parameters
    ----------
    store : Connector
        The store.
    batches : iterable of pyarrow.RecordBatch
        The accesses, made while the store waits: the time that this takes does not count.
    rate : float or None
        Accesses per second, or as fast as the store takes them.
    directory : Path or None
        The store's directory, whose files are counted; without it the samples have none.

    Raises
    ------
    StateDirectoryError
        The store could not write.

    Examples
    --------
    >>> from pathlib import Path
    >>> from forebay.harness.access import accesses
    >>> from forebay.harness.stores import open_store
    >>> store = open_store("dict", Path("unused"))
    >>> measured = evaluate(store, [accesses([(PUT, 0, 1, 0, 0, 8, 0), (GET, 0, 1, 0, 0, 0, 0)])])
    >>> measured.accesses, measured.found, [row["operation"] for row in measured.rows()]
    (2, 1, ['GET', 'PUT'])
    """
    measured, values, before, sampled = Measured(), _Values(), _resident(store), time.monotonic()
    try:
        for batch in replay(batches, rate):
            _serve(store, batch, values, measured)
            if time.monotonic() >= sampled + SAMPLE_SECONDS:
                _sample(store, measured, before, directory)
                sampled = time.monotonic()
    except KeyboardInterrupt:
        measured.interrupted = True
    except ForebayError:
        raise
    except store.errors as error:
        raise StateDirectoryError(f"{type(store).__name__} failed after {measured.accesses:,} accesses: {error}") from error
    _sample(store, measured, before, directory)
    return measured


def _sample(store: Connector, measured: Measured, before: int, directory: Path | None) -> None:
    sizes = (path.stat().st_size for path in directory.rglob("*") if path.is_file()) if directory else ()
    try:
        disk = sum(sizes)
    except FileNotFoundError:  # the store has just removed one
        disk = measured.samples[-1].disk if measured.samples else 0
    measured.samples.append(Sample(measured.accesses, measured.seconds, _resident(store) - before, disk))


def _resident(store: Connector) -> int:
    """Bytes of this process and of the store's own that are in memory; 0 where the system does not say."""
    try:
        pages = (Path(f"/proc/{each}/statm").read_text().split()[1] for each in ("self", *store.processes))
        return sum(map(int, pages)) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _serve(store: Connector, batch: pa.RecordBatch, values: _Values, measured: Measured) -> None:
    keys, sizes = store.keys(batch), batch["size"].to_pylist()
    codes = batch["operation"].to_numpy()
    get, put, merge, delete = store.get, store.put, store.merge, store.delete
    is_get, is_put, is_merge = int(GET), int(PUT), int(MERGE)
    given = [values[size] for size in sizes]
    clock, found = time.perf_counter_ns, 0
    instants = [0] * (len(keys) + 1)
    done = 0
    try:
        instants[0] = clock()
        for operation, key, value in zip(codes.tolist(), keys, given, strict=True):
            if operation == is_get:
                found += get(key) is not None
            elif operation == is_put:
                put(key, value)
            elif operation == is_merge:
                merge(key, value)
            else:
                delete(key)
            done += 1
            instants[done] = clock()
    finally:
        taken = np.diff(np.array(instants[: done + 1], np.int64))
        for each in (GET, PUT, MERGE, DELETE):
            measured.latencies[each].record(taken[codes[:done] == each])
        measured.accesses += done
        measured.seconds += float(taken.sum()) / 1e9
        measured.found += found


class _Values(dict[int, bytes]):
    """Values by their size. They are random, so that no store gains by compressing them."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = np.random.default_rng(_SEED).bytes(1 << 16)

    def __missing__(self, size: int) -> bytes:
        value = (self._bytes * (size // len(self._bytes) + 1))[:size]
        if len(self) < 1 << 12 and size < 1 << 16:
            self[size] = value
        return value
