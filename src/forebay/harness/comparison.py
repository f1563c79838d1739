"""Every store driven with every workload: a row for each run, or why a store does not serve a workload."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from forebay.harness.access import limited, read, write
from forebay.harness.driver import Driver, Operator
from forebay.harness.evaluator import Measured, evaluate
from forebay.harness.events import Source, Stream
from forebay.harness.experiment import Experiment
from forebay.harness.operators import WORKLOADS
from forebay.harness.stores import MEMORY, temporary_store, working_directory
from forebay.harness.tuned import tuned
from forebay.harness.ycsb import CORE, Ycsb

GENERATED, CAPTURED = "generated", "captured"
CONTRASTS = {"sequential": "YCSB-S", "hotspot": "YCSB-H", "latest": "YCSB-L"}
"""The distributions of requests that YCSB is tuned with (section 6.2), and their names in figures."""
CONTRASTED = ("aggregation", "tumbling-incremental", "sliding-join")
"""The operators that the paper contrasts with YCSB."""

RUN = ("stream", "workload", "kind", "store", "round")
"""What a run is called by."""

VOLATILE = ("dict", "redis")
"""Stores that keep nothing on disk."""

_SLICE = 1024
_WARMING = 512


@dataclass(frozen=True)
class Workload:
    """Accesses to drive stores with.

    Attributes
    ----------
    stream : str
        Whose events they are of, such as the name of an experiment.
    name : str
        The operator, or the core workload of YCSB.
    kind : str
        How they came to be: `GENERATED`, `CAPTURED`, or one of the values of `CONTRASTS`.
    accesses : callable
        Gives them from the first on.
    load : callable or None
        Gives those that come before, and do not count.
    """

    stream: str
    name: str
    kind: str
    accesses: Callable[[], Iterable[pa.RecordBatch]]
    load: Callable[[], Iterable[pa.RecordBatch]] | None = None


@dataclass
class Row:
    """What a run of a store with a workload has given; times are microseconds and sizes megabytes.

    ``whole`` says that all accesses were served. A run that ended early has the figures until then. ``why`` says why there
    are none, if there are none.
    """

    stream: str
    workload: str
    kind: str
    store: str
    round: int
    accesses: int = 0
    seconds: float = 0.0
    throughput: float | None = None
    p50: float | None = None
    p99: float | None = None
    p999: float | None = None
    most: float | None = None
    memory_mb: float | None = None
    disk_mb: float | None = None
    whole: bool = False
    why: str = ""


Watch = Callable[[str, int, int], None]
"""Is told what is at work, and how much of how much of it is done."""


@dataclass
class Comparison:
    """Drives stores with workloads, one after the other, and keeps a row of each run.

    Attributes
    ----------
    stores : sequence of str
        Names of stores.
    memory : int
        Bytes that each store may take.
    rounds : int
        How often each run is repeated. All stores have their turn before the next round.
    seconds : float or None
        How long a run may take before it ends early.
    directory : Path or None
        Where stores work.
    watch : callable
        Is told of the progress.
    batch_rows : int or None
        Stores get so many accesses at a time (`forebay.harness.batched`), and latencies are those of batches; without it,
        one after the other.
    rows : list of Row
        What was found so far.
    latencies : list of dict
        Of each run its latencies by operation, in microseconds; or those of batches.
    samples : list of dict
        Of each run memory and disk after so many accesses, in megabytes.
    interrupted : bool
        It was ended from the keyboard; the rows are those of before.

    Examples
    --------
    >>> experiment = Experiment("aggregation", WORKLOADS["aggregation"](), (Source(events=500),))
    >>> comparison = Comparison(["dict", "forebay-aar"])
    >>> comparison.run([of_experiment("example", experiment, "aggregation", limit=800)])
    >>> [(row.store, row.accesses, row.why[:35]) for row in comparison.rows]
    [('dict', 800, ''), ('forebay-aar', 0, 'forebay-aar holds windows that are ')]
    """

    stores: Sequence[str]
    memory: int = MEMORY
    rounds: int = 1
    seconds: float | None = None
    directory: Path | None = None
    watch: Watch = lambda what, done, of: None
    batch_rows: int | None = None
    rows: list[Row] = field(default_factory=list)
    latencies: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False

    def run(self, workloads: Iterable[Workload]) -> None:
        """Drive all stores with some workloads; Ctrl-C ends it, and sets ``interrupted``."""
        try:
            for workload in workloads:
                with working_directory(self.directory) as place:
                    self._run(workload, place)
        except KeyboardInterrupt:
            self.interrupted = True

    def _run(self, workload: Workload, place: Path) -> None:
        trace = place / "trace.arrow"
        self.watch(f"{workload.stream}: {workload.name}, {workload.kind}", 0, 1)
        try:
            count = write(trace, workload.accesses())
        except Exception as error:  # a slide that does not suit the windows, a full disk, an operator of the user's own
            self.rows += [self._row(workload, store, 0, str(error) or type(error).__name__) for store in self.stores]
            return
        serving = list(self.stores)
        for number in range(self.rounds):
            for store in tuple(serving):
                row = self._drive(workload, store, number, trace, count, place)
                self.rows.append(row)
                if row.why:
                    serving.remove(store)

    def _drive(self, workload: Workload, store: str, number: int, trace: Path, count: int, place: Path) -> Row:
        row, name = self._row(workload, store, number), f"{workload.stream}: {workload.name}, {workload.kind}, {store}"
        try:
            if not number and rehearse(store, read(trace), self.memory, place, self.batch_rows):
                raise KeyboardInterrupt
            with temporary_store(store, self.memory, place) as (opened, work):
                if workload.load is not None and evaluate(opened, workload.load()).interrupted:
                    raise KeyboardInterrupt
                measured = evaluate(opened, self._bounded(read(trace), name, count), directory=work, rows=self.batch_rows)
        except Exception as error:  # a store may raise anything: the others go on
            row.why = str(error) or type(error).__name__
            return row
        latencies = measured.batches if self.batch_rows else measured.latency()
        row.accesses, row.seconds, row.whole = measured.accesses, measured.seconds, measured.accesses == count
        row.throughput = measured.throughput
        row.p50, row.p99, row.p999 = (latencies.percentile(share) / 1000 for share in (50, 99, 99.9))
        row.most = latencies.most / 1000
        row.memory_mb, row.disk_mb = (
            max(getattr(sample, name) for sample in measured.samples) / (1 << 20) for name in ("memory", "disk")
        )
        if row.accesses:
            self._note(row, measured)
        if measured.interrupted:
            if row.accesses:
                self.rows.append(row)
            raise KeyboardInterrupt
        return row

    def _note(self, row: Row, measured: Measured) -> None:
        """Keep what a row has no place for."""
        run = {name: getattr(row, name) for name in RUN}
        self.latencies += [run | each for each in measured.rows()]
        for accesses, seconds, *sizes in measured.samples:
            memory, disk = (size / (1 << 20) for size in sizes)
            self.samples.append(run | {"accesses": accesses, "seconds": seconds, "memory_mb": memory, "disk_mb": disk})

    def _bounded(self, batches: Iterable[pa.RecordBatch], name: str, count: int) -> Iterator[pa.RecordBatch]:
        begin, done = time.monotonic(), 0
        for batch in batches:
            for first in range(0, batch.num_rows, _SLICE):
                if done and self.seconds is not None and time.monotonic() - begin > self.seconds:
                    return
                part = batch.slice(first, _SLICE)
                self.watch(name, done, count)
                yield part
                done += part.num_rows

    @staticmethod
    def _row(workload: Workload, store: str, number: int, why: str = "") -> Row:
        return Row(workload.stream, workload.name, workload.kind, store, number, why=why)


def rehearse(
    store: str, batches: Iterable[pa.RecordBatch], memory: int, directory: Path | None = None, rows: int | None = None
) -> bool:
    """Drive an empty store with the first accesses, so that no run has what is loaded when a store is first asked.

    These are few, so what a store loads when its memory is full is in the run. Batches are smaller, so that some are read.

    The parameters are those of `temporary_store` and `evaluate`. Gives whether it was ended from the keyboard.

    Examples
    --------
    >>> rehearse("dict", [], MEMORY)
    False
    """
    with temporary_store(store, memory, directory) as (opened, _):
        return evaluate(opened, limited(batches, _WARMING), rows=rows and min(rows, _WARMING // 8)).interrupted


def table(rows: Sequence[Row]) -> pl.DataFrame:
    """Rows as a table.

    Examples
    --------
    >>> table([Row("a", "aggregation", GENERATED, "dict", 0)]).height
    1
    """
    numbers = {"throughput", "p50", "p99", "p999", "most", "memory_mb", "disk_mb", "seconds"}
    kinds = {"round": pl.Int64, "accesses": pl.Int64, "whole": pl.Boolean} | dict.fromkeys(numbers, pl.Float64)
    schema = {each.name: kinds.get(each.name, pl.String) for each in fields(Row)}
    return pl.DataFrame([asdict(row) for row in rows], schema)


def of_experiment(stream: str, experiment: Experiment, name: str, limit: int | None = None) -> Workload:
    """A workload over the events of an experiment, whatever the experiment's own one is.

    Settings that both operators know, such as the size of windows, are the experiment's. An operator with two inputs gets
    the one source twice if there is no other; if it is generated, the second time with another seed.
    """

    def accesses() -> Iterator[pa.RecordBatch]:
        operator = _operator(experiment, name)
        return Driver(operator).accesses(_streams(experiment, operator.inputs), limit=limit or experiment.limit)

    return Workload(stream, name, GENERATED, accesses)


def of_ycsb(name: str, operations: int) -> Workload:
    """A core workload of YCSB by its name, such as ``ycsb-a``: so many operations, and no more accesses than that.

    Examples
    --------
    >>> of_ycsb("ycsb-d", 1000).name
    'ycsb-d'
    """
    described = replace(CORE[name.removeprefix("ycsb-")], operations=operations)
    return Workload("YCSB", name, GENERATED, lambda: limited(described.run(), operations), described.load)


def contrasts(workload: Workload) -> Iterator[Workload]:
    """YCSB tuned to a workload, by each distribution of requests that `CONTRASTS` has."""
    for requests, kind in CONTRASTS.items():
        yield _tuned(workload, requests, kind)


def _tuned(workload: Workload, requests: str, kind: str) -> Workload:
    @cache
    def like() -> Ycsb:  # that needs all accesses: not before it is its turn
        return tuned(workload.accesses(), requests)

    return Workload(workload.stream, workload.name, kind, lambda: like().run(), lambda: like().load())


def _operator(experiment: Experiment, name: str) -> Operator:
    if name == experiment.workload:
        return experiment.operator
    kind: Any = WORKLOADS[name]
    known = {each.name for each in fields(kind)} & {each.name for each in fields(experiment.operator)}
    operator: Operator = kind(**{each: getattr(experiment.operator, each) for each in known})
    return operator


def _streams(experiment: Experiment, inputs: int) -> Sequence[Stream]:
    streams = list(experiment.streams)
    while len(streams) < inputs:
        last = streams[-1]
        streams.append(replace(last, seed=last.seed + 1) if isinstance(last, Source) else last)
    return streams
