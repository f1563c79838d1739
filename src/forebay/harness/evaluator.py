"""How well a store serves accesses: throughput, the latency of each operation, memory and disk over time.

One Python loop drives every store, with keys and values that were made before. The clock is read once per access, within the
time that counts. What Python itself costs is therefore the same for each store, and shows in the row of the dict.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.errors import ForebayError, InvalidArgument, StateDirectoryError
from forebay.harness.access import DELETE, GET, MERGE, PUT, Operation, blocks, replay
from forebay.harness.batched import serve
from forebay.harness.histogram import Histogram
from forebay.harness.stores import Connector

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)

SAMPLE_SECONDS = 0.1
"""How far samples of memory and disk are apart at least; they are taken between batches, and do not count as time."""

_SEED, _RANDOM_BYTES = 18, 8 << 20
_AT_ONCE, _BYTES_AT_ONCE = 1 << 13, 32 << 20


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
    batches : Histogram
        Nanoseconds of whole batches, if they were given to the store as such; then there are no others.
    elapsed : float
        Seconds from the begin of the run to its end, in which accesses are also made and waited for.
    interrupted : bool
        The run was ended from the keyboard; all else is of the accesses before.
    samples : list of Sample
        Memory and disk over time; the last one is at the end.
    """

    accesses: int = 0
    seconds: float = 0.0
    latencies: Mapping[Operation, Histogram] = field(default_factory=lambda: {each: Histogram() for each in Operation})
    found: int = 0
    batches: Histogram = field(default_factory=Histogram)
    elapsed: float = 0.0
    interrupted: bool = False
    samples: list[Sample] = field(default_factory=list)

    @property
    def throughput(self) -> float:
        """Accesses per second."""
        return self.accesses / self.seconds if self.seconds else 0.0

    @property
    def reached(self) -> float:
        """Accesses per second of the whole run: below a service rate if the store, or what makes accesses, is behind."""
        return self.accesses / self.elapsed if self.elapsed else 0.0

    def latency(self) -> Histogram:
        """Nanoseconds of all operations together."""
        together = Histogram()
        for each in self.latencies.values():
            together.add(each)
        return together

    def rows(self) -> list[dict[str, float | str]]:
        """Microseconds of each operation that occurred, or of batches, by percentile."""
        rows: list[dict[str, float | str]] = []
        named = {**{operation.name: latency for operation, latency in self.latencies.items()}, "BATCH": self.batches}
        for name, latency in named.items():
            if latency.count:
                shares = {f"p{share:g}": latency.percentile(share) / 1000 for share in PERCENTILES}
                rows.append({"operation": name, "count": latency.count, **shares, "max": latency.most / 1000})
        return rows


def evaluate(
    store: Connector,
    batches: Iterable[pa.RecordBatch],
    rate: float | None = None,
    directory: Path | None = None,
    rows: int | None = None,
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
    rows : int or None
        Give the store so many accesses at a time, see `forebay.harness.batched`; without it, one after the other.

    Raises
    ------
    InvalidArgument
        Batches were asked for at a rate, or of no rows.
    StateDirectoryError
        The store could not write.

    Examples
    --------
    >>> from pathlib import Path
    >>> from forebay.harness.access import accesses
    >>> from forebay.harness.stores import open_store
    >>> batch = accesses([(PUT, 0, 1, 0, 0, 8, 0), (GET, 0, 1, 0, 0, 0, 0)])
    >>> measured = evaluate(open_store("dict", Path("unused")), [batch])
    >>> measured.accesses, measured.found, [row["operation"] for row in measured.rows()]
    (2, 1, ['GET', 'PUT'])
    >>> [row["operation"] for row in evaluate(open_store("dict", Path("unused")), [batch], rows=2).rows()]
    ['BATCH']
    """
    measured = Measured()
    if rows is None:
        drive(store, replay(batches, rate), [measured], directory)
    elif rate is not None:
        raise InvalidArgument("batches are served as fast as the store takes them; leave out the rate")
    elif rows < 1:
        raise InvalidArgument(f"a batch has {rows} accesses; it must have 1 at least")
    else:
        drive(store, blocks(batches, rows), [measured], directory, batched=True)
    return measured


def drive(
    store: Connector,
    batches: Iterable[pa.RecordBatch],
    measured: Sequence[Measured],
    directory: Path | None = None,
    owners: Callable[[pa.RecordBatch], npt.NDArray[np.intp]] | None = None,
    batched: bool = False,
) -> None:
    """Drive a store, and count each access where its owner is measured; without owners there is one."""
    values, before, begun = _Values(), _resident(store), time.monotonic()
    sampled = begun
    gc.freeze()  # what the process had before is no work of the store's
    try:
        for batch in batches if batched else _few(batches):
            with _failing(store, measured):
                if batched:
                    _serve_batch(store, batch, values, measured[0])
                else:
                    _serve(store, batch, values, measured, owners(batch) if owners else np.zeros(batch.num_rows, np.intp))
            if time.monotonic() >= sampled + SAMPLE_SECONDS:
                _sample(store, measured, before, directory)
                sampled = time.monotonic()
    except KeyboardInterrupt:
        for each in measured:
            each.interrupted = True
    finally:
        gc.unfreeze()
        for each in measured:
            each.elapsed = time.monotonic() - begun
    _sample(store, measured, before, directory)


def _few(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Accesses for which keys and values are made at a time: few, and few bytes."""
    for batch in batches:
        numbers = np.arange(batch.num_rows) // _AT_ONCE, np.cumsum(batch["size"].to_numpy()) // _BYTES_AT_ONCE
        cuts = np.flatnonzero(np.logical_or(*(np.diff(each) for each in numbers))) + 1
        for begin, end in pairwise([0, *cuts.tolist(), batch.num_rows]):
            yield batch.slice(begin, end - begin)


@contextmanager
def _failing(store: Connector, measured: Sequence[Measured]) -> Iterator[None]:
    """What a store raises when it cannot write is an error that says so, and after how many accesses."""
    try:
        yield
    except store.errors as error:
        if isinstance(error, ForebayError) and not isinstance(error, StateDirectoryError):
            raise
        done = sum(each.accesses for each in measured)
        raise StateDirectoryError(f"{type(store).__name__} failed after {done:,} accesses: {error}") from error


def _sample(store: Connector, measured: Sequence[Measured], before: int, directory: Path | None) -> None:
    sizes = (path.stat().st_size for path in directory.rglob("*") if path.is_file()) if directory else ()
    try:
        disk = sum(sizes)
    except FileNotFoundError:  # the store has just removed one
        disk = measured[0].samples[-1].disk if measured[0].samples else 0
    memory = _resident(store) - before
    for each in measured:
        each.samples.append(Sample(each.accesses, each.seconds, memory, disk))


def _resident(store: Connector) -> int:
    """Bytes of this process and of the store's own that are in memory; 0 where the system does not say."""
    try:
        pages = (Path(f"/proc/{each}/statm").read_text().split()[1] for each in ("self", *store.processes))
        return sum(map(int, pages)) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _serve(
    store: Connector,
    batch: pa.RecordBatch,
    values: _Values,
    measured: Sequence[Measured],
    owners: npt.NDArray[np.intp],
) -> None:
    """Serve accesses one after the other."""
    keys, given = store.keys(batch), values.of(batch)
    codes = batch["operation"].to_numpy()
    get, put, merge, delete = store.get, store.put, store.merge, store.delete
    is_get, is_put, is_merge = int(GET), int(PUT), int(MERGE)
    clock, found = time.perf_counter_ns, []
    instants = [0] * (len(keys) + 1)
    done = 0
    try:
        instants[0] = clock()
        for operation, key, value in zip(codes.tolist(), keys, given, strict=True):
            if operation == is_get:
                if get(key) is not None:
                    found.append(done)
            elif operation == is_put:
                put(key, value)
            elif operation == is_merge:
                merge(key, value)
            else:
                delete(key)
            done += 1
            instants[done] = clock()
    finally:
        done -= done > 0 and not instants[done]  # interrupted between the two
        taken = np.diff(np.array(instants[: done + 1], np.int64))
        codes, owners, finders = codes[:done], owners[:done], owners[[each for each in found if each < done]]
        for owner, each in enumerate(measured):
            own = owners == owner
            for operation in (GET, PUT, MERGE, DELETE):
                each.latencies[operation].record(taken[own & (codes == operation)])
            each.accesses += int(own.sum())
            each.seconds += float(taken[own].sum()) / 1e9
            each.found += int((finders == owner).sum())


def _serve_batch(store: Connector, batch: pa.RecordBatch, values: _Values, measured: Measured) -> None:
    """Serve accesses all at once. A batch that is interrupted does not count."""
    keys, operations = store.keys(batch), batch["operation"].to_pylist()
    given = values.of(batch)
    begin = time.perf_counter_ns()
    found = serve(store, operations, keys, given)
    taken = time.perf_counter_ns() - begin
    measured.batches.record([taken])
    measured.accesses += len(operations)
    measured.seconds += taken / 1e9
    measured.found += len(found) - found.count(None)


class _Values:
    """Values of given sizes: random bytes, so that no store gains by compressing them, and of each access its own."""

    def __init__(self) -> None:
        self._chance = np.random.default_rng(_SEED)
        self._bytes = self._chance.bytes(_RANDOM_BYTES)

    def of(self, batch: pa.RecordBatch) -> list[bytes]:
        """A value for each access, empty for those that write none."""
        sizes = batch["size"].to_numpy()
        begins = (self._chance.random(len(sizes)) * np.maximum(len(self._bytes) - sizes, 1)).astype(np.int64)
        return [
            self._bytes[begin : begin + size] if size <= _RANDOM_BYTES else self._chance.bytes(size)
            for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True)
        ]
