"""``forebay harness advise``: which store and which memory suit an experiment, by how much, and on what evidence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from forebay.cli.harness import ExperimentFile, harness, read_experiment
from forebay.cli.harness_compare import chosen_stores, watching
from forebay.cli.terminal import INTERRUPTED, console
from forebay.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.harness.advice import Ranked, Sample
    from forebay.harness.comparison import Comparison, Row

_SAMPLE = 100_000
_PARTS = (1, 4, 16)
"""By what the memory of the experiment is divided, to see whether less is enough."""


@harness.command()
def advise(
    experiment: ExperimentFile,
    stores: Annotated[str, typer.Option(help="all, or names of stores with commas between.")] = "all",
    sample: Annotated[int, typer.Option(help="How many of the first accesses are measured.", min=1)] = _SAMPLE,
    seconds: Annotated[float, typer.Option(help="How long a run may take.", min=0.01)] = 2.0,
    rounds: Annotated[
        int, typer.Option(help="How often each run is repeated: what differs less than that is noise.", min=2)
    ] = 3,
    directory: Annotated[Path | None, typer.Option(help="Where stores work; by default where temporary files go.")] = None,
) -> None:
    """Say which store and which memory suit an experiment, by how much, and on what evidence.

    All stores are driven with the first accesses of the experiment, several times. At most it takes the number of stores,
    and 3 more, times the rounds and seconds.
    """
    from forebay.harness.advice import Sample, advised, enough, pattern_of, ranked, reasons, verdict
    from forebay.harness.comparison import Comparison, of_experiment
    from forebay.harness.driver import Driver

    described = read_experiment(experiment)
    names = chosen_stores(stores, {})
    total = (len(names) + len(_PARTS)) * rounds
    with watching(total) as (watch, done):
        watch("the sample", 0, 1)
        batches = list(Driver(described.operator).accesses(described.streams, limit=sample))
        if not batches:
            raise InvalidArgument(f"{experiment} has no events, so there is nothing to measure")
        found = Sample.of(batches, merging=described.operator.merging)
        workload = of_experiment(experiment.stem, described, described.workload, found.accesses)
        comparison = Comparison(names, described.memory, rounds, seconds, directory, watch)
        comparison.run([workload])
        done(len(names) * rounds)
        ranking = ranked(comparison.rows)
        by_memory: dict[int, list[Row]] = {}
        for number in range(0 if comparison.interrupted else rounds):
            best = advised(ranking)
            for place, part in enumerate(_PARTS, 1):
                memory = max(described.memory // part, 1 << 20)
                again = Comparison([best.name], memory, 1, seconds, directory, watch)
                again.run([workload])
                by_memory.setdefault(memory >> 20, []).extend(again.rows)
                done(len(names) * rounds + number * len(_PARTS) + place)
                comparison.interrupted |= again.interrupted
            if comparison.interrupted:
                break
    _show(comparison, ranking, described.rate)
    if comparison.interrupted:
        console.print("Ended from the keyboard: this is what was measured until then, and no advice.")
        raise SystemExit(INTERRUPTED)
    served = [(memory, fastest[0]) for memory, rows in by_memory.items() if (fastest := ranked(rows))]
    failed = ", ".join(str(memory) for memory in sorted(by_memory.keys() - dict(served).keys(), reverse=True))
    settings = [enough(served)[1]] if served else []
    settings += [f"With memory_mb = {failed}, it did not serve the workload when it was measured again."] if failed else []
    console.print(f"[bold]Use {advised(ranking).name}.[/bold] {escape(' '.join(verdict(ranking)))}", soft_wrap=True)
    for title, sentences in (
        ("settings", settings),
        ("why", reasons(found, described.memory, ranking)),
        ("forebay", pattern_of(found, ranking)),
        ("evidence", [_evidence(found, rounds, seconds)]),
    ):
        console.print(f"[bold]{title}[/bold]")
        for sentence in sentences:
            console.print(f"  {escape(sentence)}", soft_wrap=True)


def _show(comparison: Comparison, ranking: Sequence[Ranked], rate: float | None) -> None:
    table = Table("", "store", "accesses/s", "least", "most", "p99.9 us", "")
    early = {row.store for row in comparison.rows if not row.why and not row.whole}
    for place, each in enumerate(ranking, 1):
        notes = ["ended early"] if each.name in early else []
        if rate is not None and each.throughput < rate:
            notes.append(f"below the rate of {rate:,.0f}")
        figures = (each.throughput, each.least, each.most)
        table.add_row(
            str(place), each.name, *(f"{figure:,.0f}" for figure in figures), f"{each.p999:,.1f}", ", ".join(notes)
        )
    console.print(table)
    for row in comparison.rows:
        if row.why:
            console.print(f"{row.store} is left out: {escape(row.why)}", soft_wrap=True)


def _evidence(sample: Sample, rounds: int, seconds: float) -> str:
    shares = ", ".join(f"{name} {share:.3f}" for name, share in sample.composition.items())
    return (
        f"The first {sample.accesses:,} accesses, to {sample.keys:,} state keys: {shares}. {rounds} runs of each store, "
        f"all stores in turn, each at most {seconds:g} s; medians, least and most are above."
    )
