"""``forebay harness``: state accesses of streaming operators, made, analysed, and served by stores."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

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
console = Console()

ExperimentFile = Annotated[Path, typer.Argument(help="A TOML file, see docs/harness.md; or a config.txt of Gadget.")]
VirtualNode = Annotated[int | None, typer.Option(help="Of captured accesses, only those of this virtual node.")]
INTERRUPTED = 128 + signal.SIGINT


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

    described = _read(experiment)
    _require_new(out)
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
    console.print(f"{counted.total / seconds:,.0f} accesses/s, in {out}")
    if interrupted:
        raise SystemExit(INTERRUPTED)


@harness.command()
def analyse(
    trace: Annotated[Path, typer.Argument(help="A file of generate, a gadget.log, or a directory of captured accesses.")],
    events: Annotated[int | None, typer.Option(help="How many events the trace is of, for the amplification.")] = None,
    seed: Annotated[int, typer.Option(help="For the shuffled trace and for the choice of keys.")] = 0,
    vnode: VirtualNode = None,
    against: Annotated[Path | None, typer.Option(help="Another trace of the same events: how alike are both?")] = None,
) -> None:
    """Describe a trace: composition, amplification, locality, working set and times to live."""
    from forebay.harness import analysis

    found = analysis.AccessTrace.of(_of_file(trace, vnode))
    table = Table("measure", "trace", "shuffled", title=str(trace))
    table.add_row("accesses", f"{len(found):,}")
    for name, share in analysis.composition(found).items():
        table.add_row(name, f"{share:.3f}")
    table.add_row("state keys", f"{found.count:,}")
    if events is not None:
        amplified = analysis.amplification(found, events)
        table.add_row("accesses per event", f"{amplified.events:.2f}")
        table.add_row("state keys per event key", f"{amplified.keys:.2f}")
    shuffled = found.shuffled(seed)
    own, other = analysis.stack_distances(found), analysis.stack_distances(shuffled)
    if len(own):
        table.add_row("mean stack distance", f"{own.mean():,.1f}", f"{other.mean():,.1f}")
    sequences = zip(analysis.unique_sequences(found), analysis.unique_sequences(shuffled), strict=True)
    for length, (mine, theirs) in enumerate(sequences, 1):
        table.add_row(f"unique sequences of {length}", f"{mine:,}", f"{theirs:,}")
    sizes = analysis.working_set(found)
    if len(sizes):
        table.add_row("largest working set", f"{sizes.max():,}")
    for share, lifetime in analysis.percentiles(analysis.times_to_live(found, sample=1000, seed=seed)).items():
        table.add_row(f"time to live, {'max' if share == 100 else f'p{share:g}'}", f"{lifetime:,.0f}")
    console.print(table)
    if against is not None:
        _report_likeness(_of_file(trace, vnode), against)


@harness.command()
def run(
    experiment: ExperimentFile,
    store: Annotated[
        list[str] | None, typer.Option(help="A store to drive instead of those of the file. Repeat for more.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Accesses to replay instead of those of the file's workload.")] = None,
    directory: Annotated[Path | None, typer.Option(help="Where stores work; by default where temporary files go.")] = None,
    vnode: VirtualNode = None,
) -> None:
    """Drive stores with the accesses of an experiment: throughput, latencies in microseconds, most memory and disk.

    Ctrl-C ends the run of a store early; its figures are of what was done until then.
    """
    from forebay.harness.evaluator import evaluate

    described = _read(experiment)

    def drive(opened: Connector, name: str, place: Path) -> Measured:
        with _progress(name, None if trace else _events(described)) as progress:
            return evaluate(opened, _accesses(described, trace, progress, vnode), described.rate, place)

    _run(str(trace or described.workload), store or described.stores, described.memory, drive, directory)


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
    from forebay.harness.evaluator import evaluate
    from forebay.harness.ycsb import CORE

    if workload not in CORE:
        raise InvalidArgument(f"there is no core workload {workload!r}; there are {', '.join(CORE)}")
    chosen = requests or CORE[workload].requests
    described = replace(CORE[workload], requests=chosen, records=records, operations=operations, size=size, seed=seed)
    if out is not None:
        _require_new(out)
        console.print(f"{write(out, described.run()):,} accesses in {out}")
        return

    def drive(opened: Connector, name: str, place: Path) -> Measured:
        loaded = evaluate(opened, described.load())
        return loaded if loaded.interrupted else evaluate(opened, described.run(), directory=place)

    _run(f"YCSB {workload.upper()}, {chosen}", store or ["dict"], memory_mb << 20, drive)


def _run(
    title: str,
    stores: Sequence[str],
    memory: int,
    drive: Callable[[Connector, str, Path], Measured],
    directory: Path | None = None,
) -> None:
    """Drive stores one after the other, each in a directory of its own, and report; Ctrl-C ends it after the one at work."""
    from forebay.harness.stores import open_store

    results: dict[str, Measured] = {}
    for name in stores:
        with tempfile.TemporaryDirectory(prefix="forebay-harness-", dir=directory) as place:
            opened = open_store(name, Path(place), memory)
            try:
                results[name] = drive(opened, name, Path(place))
            finally:
                opened.close()
        if results[name].interrupted:
            break
    _report_run(title, results)
    if any(measured.interrupted for measured in results.values()):
        raise SystemExit(INTERRUPTED)


def _report_likeness(trace: Iterator[pa.RecordBatch], against: Path) -> None:
    from forebay.harness.likeness import likeness

    found = likeness(trace, _of_file(against))
    table = Table("measure", "apart", "KS p-value", title=f"against {against}")
    table.add_row("composition", f"{found.composition:.4f}")
    for name, distance in (("event keys", found.keys), ("stack distances", found.stacks)):
        table.add_row(name, f"{distance.ks:.4f}", f"{distance.p_value:.3f}")
    table.add_row("unique sequences", f"{found.sequences:.2%}")
    console.print(table)


def _require_new(out: Path) -> None:
    if out.exists():
        raise InvalidArgument(f"{out} exists already; name a file that does not")


def _of_file(trace: Path, vnode: int | None = None) -> Iterator[pa.RecordBatch]:
    """The accesses of a file, one of ours or a gadget.log, or of a directory of captured ones."""
    from forebay.harness.access import read
    from forebay.harness.capture import read_captured
    from forebay.harness.gadget_log import read_gadget_log

    if trace.is_dir():
        return read_captured(trace, vnode)
    if vnode is not None:
        raise InvalidArgument(f"{trace} has no virtual nodes; leave out --vnode, it is for captured accesses")
    return read_gadget_log(trace) if trace.suffix == ".log" else read(trace)


def _read(path: Path) -> Experiment:
    """An experiment of ours, or one of Gadget's configurations."""
    from forebay.harness.experiment import Experiment
    from forebay.harness.gadget_config import read_gadget_config

    return read_gadget_config(path) if path.suffix == ".txt" else Experiment.read(path)


class _Progress:
    def __init__(self, bar: Progress, name: str, total: int | None) -> None:
        self._bar, self._task = bar, bar.add_task(name, total=total)

    def reach(self, events: int) -> None:
        self._bar.update(self._task, completed=events)


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
    from forebay.harness.access import limited

    for batch in limited(driver.accesses(experiment.streams), experiment.limit):
        progress.reach(driver.events)
        yield batch


def _accesses(
    experiment: Experiment, trace: Path | None, progress: _Progress, vnode: int | None
) -> Iterator[pa.RecordBatch]:
    from forebay.harness.driver import Driver

    return _of_file(trace, vnode) if trace is not None else _watched(Driver(experiment.operator), experiment, progress)


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


def _report_run(title: str, results: dict[str, Measured]) -> None:
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
    if latencies is not None:
        console.print(latencies)
