"""Every store of the harness with every workload, and YCSB: the tables of docs/harness.md.

`make bench-harness` runs all of it in a quarter of an hour, and writes a report into bench/harness. The tables go into
the page between their marks. `--small` takes a minute, writes into bench/harness-small, and leaves the page alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl

import report
from forebay.harness.reports.charts import brief

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "harness.md"
FULL = ("--limit", "100000", "--seconds", "2", "--rounds", "3", "--contrast")
SMALL = ("--limit", "2000", "--seconds", "0.2")
PROGRAM = (sys.executable, "-c", "from forebay.cli.app import main; main()", "harness")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--page", type=Path, help="the document that gets the tables, docs/harness.md unless --small")
    given = parser.parse_args()
    out = ROOT / "bench" / ("harness-small" if given.small else "harness")
    shutil.rmtree(out, ignore_errors=True)
    settings = SMALL if given.small else FULL
    compare = [*PROGRAM, "compare", "--workloads", "all", "--stores", "all", *settings, "--out", str(out)]
    done = subprocess.run(compare, check=False).returncode
    if done:
        raise SystemExit(done)  # an interrupted report stays; the page has whole ones only
    page = given.page or (None if given.small else PAGE)
    for name, text in tables(out, settings).items():
        if page is None:
            print(f"\n{name}\n{text}")
        else:
            report.replace(page, f"harness-{name}", text)


def tables(out: Path, settings: tuple[str, ...]) -> dict[str, str]:
    """What the page has, by the names of its marks."""
    facts = json.loads((out / "facts.json").read_text())
    about = ", ".join(f"{name} {value}" for name, value in facts.items())
    return {
        "about": f"{about}. `forebay harness compare --workloads all --stores all {' '.join(settings)}`.",
        "standing": report.markdown(
            pl.read_csv(out / "standing.csv")
            .drop("stream")
            .with_columns(pl.col("^.* accesses/s$").map_elements(brief, pl.String), pl.col("ratio").round(3))
            .with_columns(pl.all().cast(pl.String).fill_null(""))
        ),
        "throughput": matrix(out, "throughput"),
        "p999": matrix(out, "p999"),
        "contrast": contrast(out),
    }


def matrix(out: Path, measure: str) -> str:
    """A row for each workload, those of YCSB below, and a column for each store."""
    parts = [pl.read_csv(out / f"figure-{name}.csv") for name in (f"13-{measure}-zipfian", f"12-{measure}")]
    return pivoted(pl.concat(parts, how="vertical_relaxed"), ["workload"], measure)


def contrast(out: Path) -> str:
    """Generated accesses beside YCSB that was tuned to them, if that was measured."""
    path = out / "figure-11-throughput.csv"
    return pivoted(pl.read_csv(path), ["workload", "kind"], "throughput") if path.exists() else ""


def pivoted(frame: pl.DataFrame, index: list[str], measure: str) -> str:
    frame = frame.with_columns(pl.col(measure).cast(pl.Float64).map_elements(brief, pl.String).fill_null(""))
    return report.markdown(frame.pivot("store", index=index, values=measure, maintain_order=True))


if __name__ == "__main__":
    main()
