"""Tables and charts of the race, from its CSV."""

from __future__ import annotations

import base64
import html
import io
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path

import polars as pl

BASE = "forebay"


def write(directory: Path, document: Path | None, mark: str = "race") -> None:
    """Write charts and ``report.html`` beside ``results.csv``, and the tables into a document between marks of that name."""
    runs = pl.read_csv(directory / "results.csv")
    machine = json.loads((directory / "machine.json").read_text())
    summary = summarized(runs)
    picture = chart(summary)
    (directory / "race.png").write_bytes(picture)
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    tables = table(summary)
    (directory / "report.html").write_text(page(facts, tables, picture))
    if document is not None:
        rounds = runs["round"].n_unique()
        told = "One round" if rounds == 1 else f"Medians of {rounds} rounds, least and most in brackets"
        about = f"{told}. {facts}."
        replace(document, mark, f"{about}\n\n{tables}")


def replace(document: Path, name: str, text: str) -> None:
    """Put a text between the marks of that name in a document."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    marked, places = re.subn(f"{begin}.*{end}", lambda _: f"{begin}\n{text}\n{end}", document.read_text(), flags=re.DOTALL)
    if not places:
        raise SystemExit(f"{document} has no {begin} ... {end}, where the tables of this run belong; put the marks there")
    document.write_text(marked)


def keep(rows: list[dict[str, object]], name: str, *, told: bool) -> None:
    """Write rows as CSV into ``bench``, and as a table into ``docs/benchmarks.md`` if they are to be told there."""
    root = Path(__file__).parents[1]
    table = pl.DataFrame(rows)
    directory = root / "bench" / name
    directory.mkdir(parents=True, exist_ok=True)
    table.write_csv(directory / "results.csv")
    if told:
        replace(root / "docs" / "benchmarks.md", name, f"{time.strftime('%Y-%m-%d')}.\n\n{markdown(table)}")


def compared(rates: Mapping[str, int], digits: int) -> dict[str, object]:
    """Columns of the rows per second of forebay and of Spark, and how many times as many forebay's are."""
    columns: dict[str, object] = {f"{engine}, rows/s": rate for engine, rate in rates.items()}
    return columns | {"times": round(rates["forebay"] / rates["spark"], digits)}


def markdown(frame: pl.DataFrame) -> str:
    """A frame as a Markdown table."""

    def text(value: object) -> str:
        if value is None:
            return "-"
        return f"{value:,}" if isinstance(value, int) else str(value)

    rows = [map(text, row) for row in frame.iter_rows()]
    return "\n".join(f"| {' | '.join(row)} |" for row in (frame.columns, ["---"] * frame.width, *rows))


def bars(frame: pl.DataFrame, across: str, by: str, value: str, path: Path, panel: str | None = None) -> None:
    """A chart with a group of bars for each value of ``across``, one for each of ``by``; a panel for each of ``panel``."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    parts = [("", frame)]
    if panel is not None:
        parts = [(f"{name} {panel}", part) for (name,), part in frame.group_by(panel, maintain_order=True)]
    figure, panels = plt.subplots(1, len(parts), figsize=(8, 3.6), sharey=True, squeeze=False)
    groups, kinds = frame[across].unique(maintain_order=True), frame[by].unique(maintain_order=True)
    for axes, (title, part) in zip(panels[0], parts, strict=True):
        for number, (kind, some) in enumerate((kind, part.filter(pl.col(by) == kind)) for kind in kinds):
            places = [groups.to_list().index(each) + 0.8 * (number + 0.5) / len(kinds) - 0.4 for each in some[across]]
            axes.bar(places, some[value], 0.8 / len(kinds), label=kind)
        axes.set_xticks(range(len(groups)), groups)
        axes.set_title(title, fontsize=10)
        axes.grid(axis="y", alpha=0.3)
    panels[0][0].set_ylabel(value)
    panels[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def summarized(runs: pl.DataFrame) -> pl.DataFrame:
    """Median and spread of each peer and workload, and how many times as fast forebay is."""
    rate = pl.col("events_per_second")
    keys = ["workload", "peer"]
    medians = runs.group_by(keys, maintain_order=True).agg(
        rate.median().alias("median"), rate.min().alias("least"), rate.max().alias("most"), pl.col("event_time_span").max()
    )
    ours = medians.filter(pl.col("peer") == BASE).select("workload", pl.col("median").alias("ours"))
    return medians.join(ours, on="workload", how="left", maintain_order="left").with_columns(
        ratio=pl.col("ours") / pl.col("median")
    )


def table(summary: pl.DataFrame) -> str:
    """A Markdown table, a row per workload and peer."""
    lines = ["| workload | engine | events/s | | event time | forebay is |", "| --- | --- | ---: | --- | ---: | ---: |"]
    for row in summary.iter_rows(named=True):
        spread = f"({row['least']:,.0f} to {row['most']:,.0f})"
        ratio = "" if row["peer"] == BASE or row["ratio"] is None else f"{row['ratio']:.2f} x"
        figures = f"{row['median']:,.0f} | {spread} | {row['event_time_span']} s | {ratio}"
        lines.append(f"| {row['workload']} | {row['peer']} | {figures} |")
    return "\n".join(lines)


def chart(summary: pl.DataFrame) -> bytes:
    """Events per second by workload and engine, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    workloads, peers = (summary[name].unique(maintain_order=True).to_list() for name in ("workload", "peer"))
    figure, panels = pyplot.subplots(1, len(workloads), figsize=(3.2 * len(workloads), 4), squeeze=False)
    colors = {peer: pyplot.get_cmap("tab10")(place) for place, peer in enumerate(peers)}
    for workload, axes in zip(workloads, panels[0], strict=True):
        part = summary.filter(pl.col("workload") == workload).sort("median")
        low, high = part["median"] - part["least"], part["most"] - part["median"]
        bars = axes.barh(part["peer"], part["median"] / 1e3, xerr=[low / 1e3, high / 1e3])
        for bar, peer in zip(bars, part["peer"], strict=True):
            bar.set_color(colors[peer])
        axes.set_title(workload, fontsize=10)
        axes.set_xlabel("thousand events/s")
        axes.tick_params(labelsize=8)
    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=120)
    return buffer.getvalue()


def page(facts: str, tables: str, picture: bytes) -> str:
    """The report as one HTML file."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables.splitlines()]
    head, body = rows[0], rows[2:]
    cells = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in body)
    image = base64.b64encode(picture).decode()
    return f"""<!doctype html><meta charset="utf-8"><title>The race</title>
<style>body{{font:15px sans-serif;margin:2em}}td,th{{padding:.2em .8em;text-align:right}}</style>
<h1>The race</h1><p>{html.escape(facts)}</p><img src="data:image/png;base64,{image}" style="max-width:100%">
<table><tr>{"".join(f"<th>{html.escape(cell)}</th>" for cell in head)}</tr>{cells}</table>
"""
