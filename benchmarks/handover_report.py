"""Tables and charts of `handover`, from its CSV."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

import report
from workloads import WORKLOADS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
OUT = ROOT / "bench" / "handover"
EVENTS = ("lost", "added", "slowed", "retired", "cut")
SYSTEMS = ("replicas", "checkpoint", "spark")


def write() -> None:
    """Print what was measured, in this run and before, put it into the documentation, and draw it."""
    if not (OUT / "results.csv").exists():
        raise SystemExit(f"{OUT} has no results: no run has come to its end, and the logs there say why")
    text = tables()
    print(text)
    report.replace(ROOT / "docs" / "handover.md", "handover", text)
    charts()


def tables() -> str:
    """What was measured; medians, if there is more."""
    keys = ["workload", "GB", "event", "system", "share"]
    results = (
        pl.read_csv(OUT / "results.csv")
        .group_by(keys, maintain_order=True)
        .agg(pl.len().alias("runs"), pl.exclude(keys).cast(pl.Float64).median())
    )
    order = [
        pl.col("workload"),
        pl.col("GB"),
        *(pl.col(name).cast(pl.Enum(names)) for name, names in (("event", EVENTS), ("system", SYSTEMS))),
    ]
    results = results.sort(order)
    calm = results.filter(pl.col("event") == results["event"][0]).select(
        "workload",
        "GB",
        "system",
        "share",
        *(pl.col(name).round_sig_figs(3).cast(int) for name in ("rows/s", "load")),
        *(pl.col(name).round(1) for name in ("normal", "cores", "hosts", "store")),
        pl.col("lag").cast(int),
        pl.col("copy").round(1).cast(str).fill_null("-"),
    )
    measures = ["normal", "longest", "handing", "again", "noticed", "then", "scheduling", "fetching", "loading", "recovery"]
    measures += ["latency normal", "latency"]
    figures = [pl.col(name).round(1).cast(str).fill_null("-").alias(name) for name in measures]
    counts = [pl.col(name).round(0).cast(int) for name in ("MB fetched", "MB normal", "MB longest", "moved")]
    moved = pl.col("moved after").round(1).cast(str).fill_null("-")
    events = results.select(*keys[:-1], *figures, *counts, moved)
    facts = ", ".join(f"{name} {value}" for name, value in json.loads((OUT / "machine.json").read_text()).items())
    return f"{facts}.\n\n{report.markdown(calm)}\n\n{report.markdown(events)}"


def charts() -> None:
    """Recovery by size, latency around an event, and what is used then: figures 1, 4 and 5 of the paper."""
    import matplotlib

    matplotlib.use("Agg")
    drawn = {"recovery": (recovery, "results.csv"), "latency": (latency, "batches.csv"), "used": (used, "used.csv")}
    for name, (draw, data) in drawn.items():
        figure = draw(pl.read_csv(OUT / data))
        figure.tight_layout()
        figure.savefig(OUT / f"{name}.svg", metadata={"Date": None})


def recovery(results: pl.DataFrame) -> Figure:
    """From the loss of a host to the end of a micro-batch, by size; a panel for each query."""
    figure, panels = grid(1, present(results, "workload"))
    for workload, axes in zip(present(results, "workload"), panels[0], strict=True):
        for system, color in colors(results):
            lost = results.filter(workload=workload, system=system, event="lost").group_by("GB")
            seconds = pl.col("noticed").cast(pl.Float64) + pl.col("then").cast(pl.Float64)
            whole = lost.agg(seconds.median().alias("seconds")).sort("GB")
            axes.plot(whole["GB"], whole["seconds"], "o-", color=color, label=system)
        axes.set(title=workload, xlabel="GB of state", ylabel="s until a micro-batch has ended")
        axes.set_ylim(bottom=0)
    panels[0][0].legend()
    return figure


def latency(batches: pl.DataFrame) -> Figure:
    """Latency around events with the most state; a row of panels for each query."""
    workloads, events = present(batches, "workload"), present(batches, "event")
    figure, panels = grid(len(workloads), events)
    for workload, row in zip(workloads, panels, strict=True):
        for event, axes in zip(events, row, strict=True):
            for system, color in colors(batches):
                part = largest(batches.filter(workload=workload, system=system, event=event))
                axes.plot(part["after"], part["latency"], ".-", color=color, label=system)
            axes.axvline(0, color="black")
            axes.set(yscale="log", title=f"{workload}: a host is {event}", xlabel="s since then")
        row[0].set_ylabel("latency of rows (s)")
    panels[0][0].legend()
    return figure


def used(samples: pl.DataFrame) -> Figure:
    """Processors, memory, network and disks around events with the most state, of the first query, a row for each."""
    events, kinds = present(samples, "event"), samples.columns[samples.columns.index("after") + 1 :]
    samples = samples.filter(workload=present(samples, "workload")[0])
    figure, panels = grid(len(kinds), events)
    for kind, row in zip(kinds, panels, strict=True):
        for event, axes in zip(events, row, strict=True):
            for system, color in colors(samples):
                part = largest(samples.filter(system=system, event=event))
                axes.plot(part["after"], part[kind], color=color, label=system, linewidth=0.8)
            axes.axvline(0, color="black")
            axes.set(title=f"a host is {event}", xlabel="s since then", ylabel=kind)
            axes.set_ylim(bottom=0)
    panels[0][0].legend()
    return figure


def grid(rows: int, columns: Sequence[str]) -> tuple[Figure, Any]:
    from matplotlib import pyplot

    return pyplot.subplots(rows, len(columns), sharey="row", figsize=(4.5 * len(columns), 3.5 * rows), squeeze=False)


def present(frame: pl.DataFrame, column: str) -> list[str]:
    """The values of a column, in the order in which they are told of."""
    order = {"workload": WORKLOADS, "event": EVENTS, "system": SYSTEMS}[column]
    return [value for value in order if value in set(frame[column])]


def colors(frame: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    """The systems that there are, each with its color."""
    from matplotlib import pyplot

    return ((system, pyplot.get_cmap("tab10")(SYSTEMS.index(system))) for system in present(frame, "system"))


def largest(part: pl.DataFrame) -> pl.DataFrame:
    """What was measured with the most state."""
    return part.filter(pl.col("GB") == pl.col("GB").max())
