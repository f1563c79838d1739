"""``forebay harness compare``: every store with every workload, and a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from forebay.cli.harness import harness, read_experiment, read_trace
from forebay.cli.terminal import INTERRUPTED, console, make_new
from forebay.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay.harness.comparison import Comparison, Watch, Workload
    from forebay.harness.experiment import Experiment

LIMIT = 100_000
CORE = ("ycsb-a", "ycsb-d", "ycsb-f")
"""The core workloads that the paper compares stores with."""
_DEFAULT_EVENTS = 10_000_000

Directory = Annotated[Path, typer.Option(help="The directory of the report; it must not exist.")]


@harness.command()
def compare(
    experiment: Annotated[
        list[Path] | None, typer.Argument(help="Files whose events are used; without one, events of Zipfian keys are.")
    ] = None,
    workloads: Annotated[
        str | None,
        typer.Option(
            help="all, or names with commas between: workloads, ycsb-a to ycsb-f. By default those of the files, or all."
        ),
    ] = None,
    stores: Annotated[
        str | None, typer.Option(help="all, or names with commas between. By default those of the files, or all.")
    ] = None,
    out: Directory = Path("forebay-comparison"),
    limit: Annotated[
        int | None, typer.Option(help=f"Accesses of each workload at most; {LIMIT:,} by default.", min=1)
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="A run ends early after so much time.", min=0)] = None,
    rounds: Annotated[int, typer.Option(help="How often each run is repeated; the medians count.", min=1)] = 1,
    memory_mb: Annotated[int | None, typer.Option(help="Memory of each store; by default that of the files.", min=1)] = None,
    batched: Annotated[
        bool, typer.Option("--batched", help="Give stores whole batches; latencies are those of batches.")
    ] = False,
    batch_rows: Annotated[int, typer.Option(help="Accesses in a batch.", min=1)] = 8192,
    contrast: Annotated[
        bool,
        typer.Option(
            help="Drive stores also with YCSB tuned to aggregation, tumbling-incremental and sliding-join (figure 11)."
        ),
    ] = False,
    captured: Annotated[
        list[str] | None,
        typer.Option(help="WORKLOAD=TRACE: accesses that were captured, beside those generated. Repeat for more."),
    ] = None,
    concurrent: Annotated[
        Path | None, typer.Option(help="A CSV file with figures of operators that share a store (figure 14).")
    ] = None,
    directory: Annotated[Path | None, typer.Option(help="Where stores work; by default where temporary files go.")] = None,
) -> None:
    """Drive stores with workloads, and write a report: HTML, PNG and CSV.

    A store that does not serve a workload is a row that says why. Ctrl-C ends it; the report then has what was done
    before.
    """
    from forebay.harness.comparison import Comparison
    from forebay.harness.reports.facts import facts
    from forebay.harness.reports.page import require_drawing
    from forebay.harness.reports.store_report import read_concurrent, store_report
    from forebay.harness.stores import MEMORY

    require_drawing()
    described = {path.stem: read_experiment(path) for path in experiment or ()}
    if len(described) < len(experiment or ()):
        raise InvalidArgument("two of the experiments have one name; rename one of the files")
    names = chosen_stores(stores, described)
    planned = _planned(described, workloads, limit, contrast, captured or ())
    together = None if concurrent is None else read_concurrent(concurrent)
    make_new(out)
    given = [each.memory for each in described.values()]
    memory = (memory_mb << 20) if memory_mb else max(given, default=MEMORY)
    total = len(planned) * len(names) * rounds
    with watching(total) as (watch, done):
        rows = batch_rows if batched else None
        comparison = Comparison(names, memory, rounds, seconds, directory, watch, rows)
        comparison.run(_counted(planned, comparison, done))
        given_in = {"batches": f"{rows:,} accesses"} if rows else {}
        store_report(comparison, facts() | given_in, total, together).write(out)
    _show(comparison)
    console.print(f"{len(comparison.rows):,} runs; the report is {escape(str(out / 'report.html'))}", soft_wrap=True)
    if comparison.interrupted:
        raise SystemExit(INTERRUPTED)


@contextmanager
def watching(total: int) -> Iterator[tuple[Watch, Callable[[int], None]]]:
    """A bar of all runs, and one of the run at work."""
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=console, transient=True) as bar:
        runs, work = bar.add_task("runs", total=total), bar.add_task("", total=1)

        def watch(what: str, done: int, of: int) -> None:
            bar.update(work, description=escape(what), completed=done, total=of)

        yield watch, lambda count: bar.update(runs, completed=count)


def _counted(planned: Sequence[Workload], comparison: Comparison, done: Callable[[int], None]) -> Iterator[Workload]:
    for workload in planned:
        yield workload
        done(len(comparison.rows))


def chosen_stores(given: str | None, described: dict[str, Experiment]) -> list[str]:
    """The names of stores that an option gives, checked."""
    from forebay.harness.stores import STORES, find_store

    if given is None and described:
        names = [name for each in described.values() for name in each.stores]
    elif given in (None, "all"):
        names = list(STORES)
    else:
        names = _split(given or "")
    names = list(dict.fromkeys(names))
    for name in names:
        with suppress(ModuleNotFoundError):  # the store is known, and its rows say what to install
            find_store(name)
    return names


def _planned(
    described: dict[str, Experiment], given: str | None, limit: int | None, contrast: bool, captured: Sequence[str]
) -> list[Workload]:
    from forebay.harness.comparison import CAPTURED, CONTRASTED, Workload, contrasts, of_experiment, of_ycsb
    from forebay.harness.operators import WORKLOADS
    from forebay.harness.ycsb import CORE as ALL_CORE

    known = [*WORKLOADS, *(f"ycsb-{name}" for name in ALL_CORE)]
    names = [*WORKLOADS, *CORE] if given == "all" or (given is None and not described) else _split(given or "")
    for name in names:
        if name not in known:
            raise InvalidArgument(f"there is no workload {name!r}; there are {', '.join(known)}")
    traces = _captured(captured)
    streams = described or {"zipfian": _default()}
    compared = names or [experiment.workload for experiment in streams.values()]
    for name in traces:
        if name not in compared:
            raise InvalidArgument(
                f"accesses were captured of {name}, which is not compared; add it to --workloads, which has "
                f"{', '.join(compared)}"
            )
    planned = []
    for stream, experiment in streams.items():
        for each in experiment.streams:  # what is wrong with a file is said before anything runs
            next(each.blocks(), None)
        most = limit or experiment.limit or LIMIT
        for name in (each for each in (names or [experiment.workload]) if each in WORKLOADS or ":" in each):
            workload = of_experiment(stream, experiment, name, most)
            planned.append(workload)
            if name in traces:
                planned.append(Workload(stream, name, CAPTURED, partial(_first, traces[name], most)))
            if contrast and name in CONTRASTED:
                planned += contrasts(workload)
    return planned + [of_ycsb(name, limit or LIMIT) for name in names if name not in WORKLOADS]


def _first(accesses: Callable[[], Iterable[pa.RecordBatch]], most: int) -> Iterable[pa.RecordBatch]:
    """As many accesses as those that stand beside them are at most."""
    from forebay.harness.access import limited

    return limited(accesses(), most)


def _captured(given: Sequence[str]) -> dict[str, Callable[[], Iterable[pa.RecordBatch]]]:
    from forebay.harness.operators import WORKLOADS

    traces: dict[str, Callable[[], Iterable[pa.RecordBatch]]] = {}
    for each in given:
        name, _, path = each.partition("=")
        if name not in WORKLOADS or not path:
            raise InvalidArgument(f"captured is {each!r}; write WORKLOAD=TRACE, with one of {', '.join(WORKLOADS)}")
        next(iter(read_trace(Path(path))), None)
        traces[name] = partial(read_trace, Path(path))
    return traces


def _default() -> Experiment:
    """A thousand events per second over a thousand keys, as Zipf has them."""
    from forebay.harness.distributions import Constant, Zipfian
    from forebay.harness.events import Source
    from forebay.harness.experiment import Experiment
    from forebay.harness.operators import Aggregation

    source = Source(_DEFAULT_EVENTS, keys=Zipfian(1000), sizes=Constant(64), final=0.05)
    return Experiment("aggregation", Aggregation(), (source,))


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _show(comparison: Comparison) -> None:
    from forebay.harness.comparison import GENERATED
    from forebay.harness.comparison import table as rows_of
    from forebay.harness.reports.charts import brief
    from forebay.harness.reports.store_report import summarized

    known = summarized(rows_of(comparison.rows))
    for (stream,), rows in known.group_by("stream", maintain_order=True):
        table = Table(title=f"{stream}: accesses per second", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("workload", no_wrap=True)
        for store in comparison.stores:
            table.add_column(store.replace("-", "-\n"), justify="right", overflow="fold")
        for (workload, kind), part in rows.group_by("workload", "kind", maintain_order=True):
            found = dict(zip(part["store"], part["throughput"], strict=True))
            cells = ["" if found.get(store) is None else brief(found[store]) for store in comparison.stores]
            table.add_row(str(workload) if kind == GENERATED else f"  {kind}", *cells)
        console.print(table)
