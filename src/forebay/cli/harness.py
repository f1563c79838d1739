"""``forebay harness``: state accesses of streaming operators, made, analysed, and served by stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from forebay.cli.terminal import INTERRUPTED, console, require_new
from forebay.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay.harness.driver import Driver
    from forebay.harness.evaluator import Measured
    from forebay.harness.experiment import Experiment
    from forebay.harness.stores import Connector

harness = typer.Typer(
    no_args_is_help=True, help="State accesses of streaming operators: made, analysed, and served by stores."
)

ExperimentFile = Annotated[Path, typer.Argument(help="A TOML file, see docs/harness.md; or a config.txt of Gadget.")]
VirtualNode = Annotated[int | None, typer.Option(help="Of captured accesses, only those of this virtual node.")]


@harness.command()
def workloads() -> None:
    """List the workloads and the stores."""
    from forebay.harness.operators import WORKLOADS
    from forebay.harness.stores import STORES

    table = Table("workload", "inputs", "what it is")
    for name, operator in WORKLOADS.items():
        table.add_row(name, str(operator.inputs), (operator.__doc__ or "").splitlines()[0])
    console.print(table)
    console.print(f"stores: {', '.join(STORES)}")


@harness.command()
def generate(
    experiment: ExperimentFile,
    out: Annotated[Path, typer.Argument(help="The Arrow file to write; it must not exist.")],
) -> None:
    """Write the state accesses of an experiment to a file. Ctrl-C ends it early; what was made until then stays."""
    from forebay.harness.access import write
    from forebay.harness.driver import Driver

    described = read_experiment(experiment)
    require_new(out)
    driver = Driver(described.operator)
    begin, interrupted = time.perf_counter(), False
    counted = _Counted()
    with _progress("events", _events(described)) as progress:
        try:
            write(out, counted.through(_watched(driver, described, progress)))
        except KeyboardInterrupt:
            interrupted = True
    seconds = time.perf_counter() - begin
    _report_made(described, driver, counted)
    console.print(f"{counted.total / seconds:,.0f} accesses/s, in {escape(str(out))}", soft_wrap=True)
    if interrupted:
        raise SystemExit(INTERRUPTED)


@harness.command()
def run(
    experiment: ExperimentFile,
    store: Annotated[
        list[str] | None, typer.Option(help="A store to drive instead of those of the file. Repeat for more.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Accesses to replay instead of those of the file's workload.")] = None,
    directory: Annotated[Path | None, typer.Option(help="Where stores work; by default where temporary files go.")] = None,
    beside: Annotated[
        Path | None, typer.Option(help="An experiment whose operator shares the store: how each does alone, and in company.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With --beside: a CSV file of the figures, which compare --concurrent draws.")
    ] = None,
    batched: Annotated[
        bool, typer.Option("--batched", help="Give stores whole batches; latencies are those of batches.")
    ] = False,
    batch_rows: Annotated[int, typer.Option(help="Accesses in a batch.", min=1)] = 8192,
    vnode: VirtualNode = None,
) -> None:
    """Drive stores with the accesses of an experiment: throughput, latencies in microseconds, most memory and disk.

    Ctrl-C ends the run of a store early; its figures are of what was done until then.
    """
    from forebay.harness.comparison import rehearse
    from forebay.harness.evaluator import evaluate

    described = read_experiment(experiment)
    chosen = _stores(store or described.stores)
    if batched and described.rate is not None:
        raise InvalidArgument(f"--batched drives stores as fast as they go; {experiment} has a rate, take it out")
    if beside is not None:
        if trace is not None or batched or vnode is not None:
            raise InvalidArgument(
                "--beside drives stores with two experiments, access by access: leave out --trace, --batched and --vnode"
            )
        from forebay.cli.beside import run_beside

        run_beside((experiment, beside), (described, read_experiment(beside)), chosen, directory, out)
        return
    if vnode is not None and trace is None:
        raise InvalidArgument("--vnode chooses among captured accesses; name them with --trace, or leave it out")
    if out is not None:
        raise InvalidArgument("--out is for the figures of --beside; name a second experiment, or leave it out")
    rows = batch_rows if batched else None

    def drive(opened: Connector, name: str, place: Path) -> Measured:
        with _progress(name, None if trace else _events(described)) as progress:
            if rehearse(name, _accesses(described, trace, progress, vnode), described.memory, directory, rows):
                raise KeyboardInterrupt
            progress.reach(0)
            return evaluate(opened, _accesses(described, trace, progress, vnode), described.rate, place, rows)

    title = f"{trace or described.workload}{f', batches of {rows:,}' if rows else ''}"
    _run(title, chosen, described.memory, drive, directory, described.rate)


@harness.command()
def ycsb(
    workload: Annotated[str, typer.Argument(help="A core workload of YCSB, a to f.")],
    store: Annotated[list[str] | None, typer.Option(help="A store to drive. Repeat for more.")] = None,
    records: Annotated[int, typer.Option(help="Keys that are loaded before the run.")] = 1000,
    operations: Annotated[int, typer.Option(help="Operations of the run.")] = 100_000,
    size: Annotated[int, typer.Option(help="Bytes of a value.")] = 256,
    requests: Annotated[str | None, typer.Option(help="What keys are drawn from, if not what the workload says.")] = None,
    memory_mb: Annotated[int, typer.Option(help="Memory of each store.", min=1)] = 256,
    seed: Annotated[int, typer.Option(help="Another one gives other operations.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the accesses to this file instead of driving stores.")] = None,
) -> None:
    """Drive stores with a core workload of YCSB, for contrast. Loading does not count."""
    from forebay.harness.access import write
    from forebay.harness.comparison import rehearse
    from forebay.harness.evaluator import evaluate
    from forebay.harness.ycsb import CORE

    if workload not in CORE:
        raise InvalidArgument(f"there is no core workload {workload!r}; there are {', '.join(CORE)}")
    chosen = requests or CORE[workload].requests
    described = replace(CORE[workload], requests=chosen, records=records, operations=operations, size=size, seed=seed)
    if out is not None:
        require_new(out)
        counted, interrupted = _Counted(), False
        with _progress("accesses", None) as progress:
            try:
                write(out, progress.through(counted.through(described.run())))
            except KeyboardInterrupt:
                interrupted = True
        console.print(f"{counted.total:,} accesses in {escape(str(out))}", soft_wrap=True)
        if interrupted:
            raise SystemExit(INTERRUPTED)
        return

    def drive(opened: Connector, name: str, place: Path) -> Measured:
        with _progress(name, None) as progress:
            if rehearse(name, described.run(), memory_mb << 20):
                raise KeyboardInterrupt
            loaded = evaluate(opened, described.load())
            return loaded if loaded.interrupted else evaluate(opened, progress.through(described.run()), directory=place)

    _run(f"YCSB {workload.upper()}, {chosen}", _stores(store or ["dict"]), memory_mb << 20, drive)


def _run(
    title: str,
    stores: Sequence[str],
    memory: int,
    drive: Callable[[Connector, str, Path], Measured],
    directory: Path | None = None,
    rate: float | None = None,
) -> None:
    """Drive stores one after the other, each in a directory of its own, and report; Ctrl-C ends it after the one at work.

    An error ends it, too, after what stores before have given was reported.
    """
    from forebay.harness.stores import temporary_store

    results: dict[str, Measured] = {}
    interrupted = False
    try:
        for name in stores:
            with temporary_store(name, memory, directory) as (opened, place):
                results[name] = drive(opened, name, place)
            interrupted = results[name].interrupted
            if interrupted:
                break
    except KeyboardInterrupt:  # before a store was measured
        interrupted = True
    finally:
        if results:
            report_run(title, results, rate)
    if interrupted:
        raise SystemExit(INTERRUPTED)


def _stores(names: Sequence[str]) -> Sequence[str]:
    """Names of stores that there are: a wrong one is an error before the first store is driven."""
    from forebay.harness.stores import find_store

    for name in names:
        find_store(name)
    return names


def read_trace(trace: Path, vnode: int | None = None) -> Iterator[pa.RecordBatch]:
    """The accesses of a file, one of ours or a gadget.log, or of a directory of captured ones."""
    from forebay.harness.access import read
    from forebay.harness.capture import read_captured
    from forebay.harness.gadget_log import read_gadget_log

    if trace.is_dir():
        return read_captured(trace, vnode)
    if vnode is not None:
        raise InvalidArgument(f"{trace} has no virtual nodes; leave out --vnode, it is for captured accesses")
    return read_gadget_log(trace) if trace.suffix == ".log" else read(trace)


def read_experiment(path: Path) -> Experiment:
    """An experiment of ours, or one of Gadget's configurations."""
    from forebay.harness.experiment import Experiment
    from forebay.harness.gadget_config import read_gadget_config

    return read_gadget_config(path) if path.suffix == ".txt" else Experiment.read(path)


class _Progress:
    def __init__(self, bar: Progress, name: str, total: int | None) -> None:
        self._bar, self._task = bar, bar.add_task(name, total=total)

    def reach(self, events: int) -> None:
        self._bar.update(self._task, completed=events)

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count accesses that go through."""
        for batch in batches:
            yield batch
            self._bar.advance(self._task, batch.num_rows)


@contextmanager
def _progress(name: str, total: int | None) -> Iterator[_Progress]:
    columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}"), TimeElapsedColumn()]
    with Progress(*columns, console=console, transient=True) as bar:
        yield _Progress(bar, name, total)


def _events(experiment: Experiment) -> int | None:
    """How many events there will be, if that is known."""
    counts = [getattr(stream, "events", None) for stream in experiment.streams]
    return None if None in counts else sum(count for count in counts if count is not None)


def _watched(driver: Driver, experiment: Experiment, progress: _Progress) -> Iterator[pa.RecordBatch]:
    for batch in driver.accesses(experiment.streams, limit=experiment.limit):
        progress.reach(driver.events)
        yield batch


def _accesses(
    experiment: Experiment, trace: Path | None, progress: _Progress, vnode: int | None
) -> Iterator[pa.RecordBatch]:
    from forebay.harness.access import limited
    from forebay.harness.driver import Driver

    if trace is None:
        yield from _watched(Driver(experiment.operator), experiment, progress)
        return
    yield from progress.through(limited(read_trace(trace, vnode), experiment.limit))


class _Counted:
    """How often each operation has gone through."""

    def __init__(self) -> None:
        self.counts = [0, 0, 0, 0]

    @property
    def total(self) -> int:
        return sum(self.counts)

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np

        for batch in batches:
            yield batch
            counted = np.bincount(batch["operation"].to_numpy(), minlength=4).tolist()
            self.counts = [one + other for one, other in zip(self.counts, counted, strict=True)]


def _report_made(experiment: Experiment, driver: Driver, counted: _Counted) -> None:
    from forebay.harness.access import Operation

    table = Table(title=experiment.workload, show_header=False)
    table.add_row("events", f"{driver.events:,}, {driver.late:,} times too late for a window")
    table.add_row("accesses", f"{counted.total:,}")
    for operation in Operation:
        table.add_row(operation.name, f"{counted.counts[operation] / max(counted.total, 1):.3f}")
    console.print(table)


def report_run(title: str, results: dict[str, Measured], rate: float | None = None) -> None:
    """Show what runs of stores have given, and at a service rate whether they reached it."""
    totals = Table("store", "accesses", "seconds", "accesses/s", "gets that found", "memory MB", "disk MB", title=title)
    latencies: Table | None = None
    for name, measured in results.items():
        note = " (interrupted)" if measured.interrupted else ""
        figures = [f"{measured.accesses:,}", f"{measured.seconds:.2f}", f"{measured.throughput:,.0f}", f"{measured.found:,}"]
        most = (max(each.memory for each in measured.samples), max(each.disk for each in measured.samples))
        totals.add_row(name + note, *figures, *(f"{each / (1 << 20):,.1f}" for each in most))
        for row in measured.rows():
            if latencies is None:
                latencies = Table("store", *row, title="latencies in microseconds")
            latencies.add_row(name, *(each if isinstance(each, str) else f"{each:,.4g}" for each in row.values()))
    console.print(totals)
    if rate is not None:
        for name, measured in results.items():
            console.print(f"{name}: {measured.reached:,.0f} accesses/s, where the rate is {rate:,.0f}")
    if latencies is not None:
        console.print(latencies)
