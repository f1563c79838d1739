"""``forebay harness analyse`` and ``sweep``: what traces are like, on the screen or as a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from forebay.cli.harness import VirtualNode, harness, read_trace
from forebay.cli.harness_compare import Directory
from forebay.cli.terminal import INTERRUPTED, console, make_new
from forebay.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from forebay.harness.reports.described import Described

_EVENTS = 200_000


@harness.command()
def analyse(
    trace: Annotated[
        list[Path], typer.Argument(help="Files of generate, directories of captured accesses, or a gadget.log.")
    ],
    events: Annotated[
        list[int] | None,
        typer.Option(help="How many events a trace is of, for the amplification: once for all, or once for each trace."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A directory for a report; it must not exist.")] = None,
    contrast: Annotated[bool, typer.Option(help="With --out: also YCSB that is tuned to each trace (figure 7).")] = False,
    seed: Annotated[int, typer.Option(help="For the shuffled trace and for the choice of keys.")] = 0,
    vnode: VirtualNode = None,
) -> None:
    """Describe traces: composition, amplification, locality, working set and times to live; others against the first.

    Ctrl-C ends it; a report then has the traces until then.
    """
    from forebay.harness.reports.described import describe
    from forebay.harness.reports.facts import facts
    from forebay.harness.reports.page import require_drawing
    from forebay.harness.reports.trace_report import trace_report

    counts = _counts(trace, events)
    names = _names(trace)
    for path in trace:
        next(iter(read_trace(path, vnode)), None)  # what cannot be read is said before anything is measured
    if out is not None:
        require_drawing()
        make_new(out)
    described: list[Described] = []
    interrupted = False
    with steps(len(trace)) as step:
        try:
            for path, name, count in zip(trace, names, counts, strict=True):
                step(name, "reading")
                described.append(
                    describe(
                        name, read_trace(path, vnode), count, seed, contrast, watch=partial(step, name, following=False)
                    )
                )
        except KeyboardInterrupt:
            interrupted = True
        if out is not None:
            step("report", "drawing")
            note = [f"Ended from the keyboard after {len(described)} of {len(trace)} traces."] if interrupted else []
            trace_report(described, facts(), note).write(out)
    for each in described:
        _show(each)
    for path, each in zip(trace[1:], described[1:], strict=False):
        _show_likeness(read_trace(trace[0], vnode), read_trace(path, vnode), f"{each.name} and {described[0].name}")
    if out is not None:
        console.print(f"the report is {escape(str(out / 'report.html'))}", soft_wrap=True)
    if interrupted:
        raise SystemExit(INTERRUPTED)


@harness.command()
def sweep(
    experiment: Annotated[Path, typer.Argument(help="A TOML file, see docs/harness.md.")],
    vary: Annotated[
        list[str],
        typer.Option(
            help="A setting and its values, such as operator.slide=1s,5s,1m or source.watermarks.events=100,1000. Repeat."
        ),
    ],
    out: Directory = Path("forebay-sweep"),
    events: Annotated[int, typer.Option(help="How many events of each source are used at most.", min=1)] = _EVENTS,
    locality: Annotated[
        bool, typer.Option(help="Also stack distances and sequences, which take longer than all else.")
    ] = False,
) -> None:
    """Vary settings of an experiment, and report what becomes of its accesses (figures 2, 4 and 6). No store is driven.

    Ctrl-C ends it; the report then has what was done until then.
    """
    from forebay.harness.driver import Driver
    from forebay.harness.reports.described import describe
    from forebay.harness.reports.facts import facts
    from forebay.harness.reports.page import require_drawing
    from forebay.harness.reports.trace_report import trace_report
    from forebay.harness.sweeping import FirstEvents, varied

    require_drawing()
    experiments = varied(experiment, vary)
    make_new(out)
    described: list[Described] = []
    interrupted = False
    with steps(len(experiments)) as step:
        try:
            for name, each in experiments.items():
                step(name, "generating")
                driver = Driver(each.operator)
                batches = list(driver.accesses([FirstEvents(stream, events) for stream in each.streams]))
                described.append(
                    describe(
                        name,
                        batches,
                        driver.events,
                        locality=locality,
                        watch=partial(step, name, following=False),
                    )
                )
        except KeyboardInterrupt:
            interrupted = True
        step("report", "drawing")
        notes = [f"{experiment.name}, {next(iter(experiments.values())).workload}: {'; '.join(vary)}"]
        if interrupted:
            notes.append(f"Ended from the keyboard after {len(described)} of {len(experiments)} settings.")
        trace_report(described, facts(), notes).write(out)
    _show_sweep(described)
    console.print(f"the report is {escape(str(out / 'report.html'))}", soft_wrap=True)
    if interrupted:
        raise SystemExit(INTERRUPTED)


@contextmanager
def steps(total: int) -> Iterator[Callable[..., None]]:
    """A bar of things that are done one after the other, with what is done with the one at work."""
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=console, transient=True) as bar:
        task, begun = bar.add_task("", total=total), 0

        def step(name: str, what: str, following: bool = True) -> None:
            nonlocal begun
            begun += following
            bar.update(task, completed=begun - 1, description=escape(f"{name}: {what}"))

        yield step


def _counts(traces: Sequence[Path], events: Sequence[int] | None) -> Sequence[int | None]:
    if not events:
        return [None] * len(traces)
    if len(events) not in (1, len(traces)):
        raise InvalidArgument(
            f"events is given {len(events)} times and there are {len(traces)} traces; give it once, or for each"
        )
    return [*events] * (len(traces) // len(events))


def _names(traces: Sequence[Path]) -> list[str]:
    """The names of files, without what comes after the dot if they differ without that."""
    for names in ([path.stem for path in traces], [path.name for path in traces], [str(path) for path in traces]):
        if len(set(names)) == len(names):
            return names
    raise InvalidArgument("one of the traces is given twice; name each once")


def _show(found: Described) -> None:
    from forebay.harness import analysis
    from forebay.harness.reports.described import SHUFFLED

    table = Table("measure", "trace", "shuffled", title=found.name)
    table.add_row("accesses", f"{found.accesses:,}")
    for name, share in found.composition.items():
        table.add_row(name, f"{share:.3f}")
    table.add_row("state keys", f"{found.keys:,}")
    table.add_row("state keys per event key", f"{found.amplified_keys:.2f}")
    if found.amplified_events is not None:
        table.add_row("accesses per event", f"{found.amplified_events:.2f}")
    own, other = found.distances[found.name], found.distances[SHUFFLED]
    if len(own):
        table.add_row("mean stack distance", f"{own.mean():,.1f}", f"{other.mean():,.1f}")
    both = zip(found.sequences[found.name], found.sequences[SHUFFLED], strict=True)
    for length, (mine, theirs) in enumerate(both, 1):
        table.add_row(f"unique sequences of {length}", f"{mine:,}", f"{theirs:,}")
    if found.working.height:
        table.add_row("largest working set", f"{found.largest:,}")
    for share, lifetime in analysis.percentiles(found.lives[found.name]).items():
        table.add_row(f"time to live, {'max' if share == 100 else f'p{share:g}'}", f"{lifetime:,.0f}")
    console.print(table)


def _show_likeness(first: Iterable[pa.RecordBatch], other: Iterable[pa.RecordBatch], title: str) -> None:
    from forebay.harness.likeness import likeness

    found = likeness(other, first)
    table = Table("measure", "apart", "KS p-value", title=title)
    table.add_row("composition", f"{found.composition:.4f}")
    for name, distance in (("event keys", found.keys), ("stack distances", found.stacks)):
        if distance is not None:
            table.add_row(name, f"{distance.ks:.4f}", f"{distance.p_value:.3f}")
    table.add_row("unique sequences", f"{found.sequences:.2%}")
    console.print(table)


def _show_sweep(described: Sequence[Described]) -> None:
    """Shares of operations, accesses per event, state keys per event key, and the largest working set."""
    setting = Column("setting", no_wrap=True)
    table = Table(setting, "GET", "PUT", "MERGE", "DELETE", "per event", "per key", "working set")
    for found in described:
        shares = [f"{share:.3f}" for share in found.composition.values()]
        amplified = (f"{found.amplified_events or 0:.2f}", f"{found.amplified_keys:.2f}")
        most = f"{found.largest:,}" if found.working.height else ""
        table.add_row(escape(found.name), *shares, *amplified, most)
    console.print(table)
