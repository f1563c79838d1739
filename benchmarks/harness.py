"""Every store of the harness with every workload, and YCSB: the tables of docs/harness.md.

`make bench-harness` runs all of it in three quarters of an hour, and writes reports into bench/harness: single accesses,
batches, and state that is larger than memory (benchmarks/larger). It also measures how fast accesses are made, and in how
much memory. The tables go into the page between their marks. `--small` takes a minute or two, and leaves the page alone.
`--only` names parts.
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
PROGRAM = (sys.executable, "-c", "from forebay.cli.app import main; main()", "harness", "compare", "--stores", "all")
LARGER = tuple(str(path) for path in sorted((ROOT / "benchmarks" / "larger").glob("*.toml")))
FULL = {
    "single": ("--workloads", "all", "--limit", "300000", "--seconds", "1", "--rounds", "3", "--contrast"),
    "batched": ("--workloads", "all", "--limit", "300000", "--seconds", "1", "--rounds", "3", "--batched"),
    "larger": (*LARGER, "--limit", "2000000", "--seconds", "6"),
    "larger-batched": (*LARGER, "--limit", "2000000", "--seconds", "6", "--batched"),
}
SMALL = {
    "single": ("--workloads", "all", "--limit", "2000", "--seconds", "0.2"),
    "batched": ("--workloads", "all", "--limit", "2000", "--seconds", "0.2", "--batched"),
    "larger": (*LARGER, "--limit", "20000", "--seconds", "0.2"),
    "larger-batched": (*LARGER, "--limit", "20000", "--seconds", "0.2", "--batched"),
}
GENERATION = "generation"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="+", choices=[*FULL, GENERATION], default=[*FULL, GENERATION])
    parser.add_argument("--page", type=Path, help="the document that gets the tables, docs/harness.md unless --small")
    given = parser.parse_args()
    page = given.page or (None if given.small else PAGE)
    for part in given.only:
        if part == GENERATION:
            tables = {GENERATION: generation(*((100_000, 1_000_000) if given.small else (2_000_000, 100_000_000)))}
        else:
            settings = (SMALL if given.small else FULL)[part]
            out = ROOT / "bench" / ("harness-small" if given.small else "harness") / part
            shutil.rmtree(out, ignore_errors=True)
            done = subprocess.run([*PROGRAM, *settings, "--out", str(out)], check=False).returncode
            if done:
                raise SystemExit(done)  # an interrupted report stays; the page has whole ones only
            tables = tables_of(part, out, settings)
        for name, text in tables.items():
            if page is None:
                print(f"\n{name}\n{text}")
            else:
                report.replace(page, f"harness-{name}", text)


def tables_of(part: str, out: Path, settings: tuple[str, ...]) -> dict[str, str]:
    """What the page has of a comparison, by the names of its marks."""
    facts = json.loads((out / "facts.json").read_text())
    shown = " ".join(Path(each).name if each in LARGER else each for each in settings)
    about = ", ".join(f"{name} {value}" for name, value in facts.items())
    standing = {f"{part}-about": f"{about}. `forebay harness compare --stores all {shown}`.", f"{part}-standing": stand(out)}
    if part != "single":
        return {**standing, f"{part}-throughput": rates(out)}
    return {**standing, "throughput": matrix(out, "throughput"), "p999": matrix(out, "p999"), "contrast": contrast(out)}


def stand(out: Path) -> str:
    """Where forebay stands with each workload."""
    ratios = pl.col("ratio", "against rocksdb").cast(pl.Float64).round(2)
    frame = pl.read_csv(out / "standing.csv").drop("stream")
    frame = frame.with_columns(pl.col("^.* accesses/s$").map_elements(brief, pl.String), ratios)
    return report.markdown(frame.with_columns(pl.all().cast(pl.String).fill_null("")))


def rates(out: Path) -> str:
    """Accesses per second: a row for each workload, and a column for each store."""
    runs = pl.read_csv(out / "runs.csv").group_by("workload", "store", maintain_order=True)
    return pivoted(runs.agg(pl.col("throughput").median()), ["workload"], "throughput")


def generation(events: int, most: int) -> str:
    """How fast the accesses of each workload are made, on one core; and the memory of the process after so many."""
    names = json.loads(_alone("import json; print(json.dumps(list(WORKLOADS)))"))
    made = {name: f"made({name!r}, {events})" for name in names}
    made[f"tumbling-incremental, {most:,} accesses"] = f"made('tumbling-incremental', {most}, {most})"
    rows = []
    for name, program in made.items():
        accesses, seconds, memory = json.loads(_alone(program))
        rows.append({"workload": name, "accesses/s": brief(accesses / seconds), "MB": f"{memory:.0f}"})
    return report.markdown(pl.DataFrame(rows))


def _alone(what: str) -> str:
    """What a process of its own prints."""
    program = f"""
import json, resource, time
from forebay.harness.access import limited
from forebay.harness.distributions import Constant, Zipfian
from forebay.harness.driver import Driver
from forebay.harness.events import Source
from forebay.harness.operators import WORKLOADS

def made(name, events, most=None):
    operator = WORKLOADS[name]()
    def run(events):
        seeds = range(operator.inputs)
        sources = [Source(events, keys=Zipfian(1000), sizes=Constant(64), final=0.05, seed=seed) for seed in seeds]
        return sum(batch.num_rows for batch in limited(Driver(operator).accesses(sources), most))
    run(1000)
    begin = time.perf_counter()
    accesses = run(events)
    seconds = time.perf_counter() - begin
    print(json.dumps([accesses, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))

{what}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout


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
