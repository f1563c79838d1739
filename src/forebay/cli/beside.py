"""``forebay harness run --beside``: operators that share a store, each alone and in company (Gadget's figure 14)."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table

from forebay.cli.terminal import INTERRUPTED, console, require_new
from forebay.errors import InvalidArgument

if TYPE_CHECKING:
    from forebay.harness.evaluator import Measured
    from forebay.harness.experiment import Experiment


class Row(NamedTuple):
    """How an operator did in some company."""

    store: str
    operator: str
    company: str
    measured: Measured


def run_beside(
    paths: Sequence[Path],
    experiments: Sequence[Experiment],
    stores: Sequence[str],
    directory: Path | None,
    out: Path | None,
) -> None:
    """Drive each store with each operator alone, beside another of its kind, and beside the other; report each operator.

    Memory and rate are those of the first experiment. Each run has as many accesses of an operator as the first run, which
    ends with the shorter experiment. The figures also go to a new CSV file, if one is named.
    """
    first, second = experiments
    if first.rate != second.rate:
        raise InvalidArgument(
            f"operators that share a store have one rate; {paths[0]} says {first.rate}, {paths[1]} says {second.rate}"
        )
    if out is not None:
        require_new(out)
    companies = [(0, 1), (0,), (1,), (0, 0), (1, 1)]
    names = next(
        (names for names in ([first.workload, second.workload], [path.stem for path in paths]) if names[0] != names[1]),
        [str(path) for path in paths],
    )
    if names[0] == names[1]:
        companies, names = [(0, 0), (0,)], [first.workload] * 2
    rows: list[Row] = []
    interrupted = False
    try:
        for store in stores:
            _drive(store, names, companies, experiments, directory, rows)
            interrupted = rows[-1].measured.interrupted
            if interrupted:
                break
    except KeyboardInterrupt:  # before anything of a store was measured
        interrupted = True
    finally:
        if rows:
            _report(f"{names[0]} beside {names[1]}", rows)
            if out is not None:
                _write(out, rows)
    if interrupted:
        raise SystemExit(INTERRUPTED)


def _drive(
    store: str,
    names: Sequence[str],
    companies: Sequence[tuple[int, ...]],
    experiments: Sequence[Experiment],
    directory: Path | None,
    rows: list[Row],
) -> None:
    """Add what operators do on a store in each company, until a run is interrupted."""
    from forebay.harness.beside import evaluate_beside
    from forebay.harness.comparison import rehearse
    from forebay.harness.driver import Driver
    from forebay.harness.stores import temporary_store

    most: int | None = None
    for each in experiments:
        if rehearse(store, Driver(each.operator).accesses(each.streams, limit=each.limit), experiments[0].memory, directory):
            raise KeyboardInterrupt
    for company in companies:
        with temporary_store(store, experiments[0].memory, directory) as (opened, place):
            streams = [
                Driver(each.operator).accesses(each.streams, limit=each.limit if most is None else most)
                for each in (experiments[number] for number in company)
            ]
            with console.status(f"{store}: {' and '.join(names[number] for number in company)}"):
                measured = evaluate_beside(opened, streams, experiments[0].rate, place)
        for number in dict.fromkeys(company):  # two of a kind do alike: one is reported
            other = names[company[1 - company.index(number)]] if len(company) > 1 else ""
            rows.append(Row(store, names[number], other, measured[company.index(number)]))
        if measured[0].interrupted:
            return
        most = measured[0].accesses


def _write(out: Path, rows: Sequence[Row]) -> None:
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("operator", "beside", "store", "throughput", "p999"))
        for store, operator, company, measured in rows:
            p999 = measured.latency().percentile(99.9) / 1000
            writer.writerow((operator, company or "alone", store, measured.throughput, p999))


def _report(title: str, rows: Sequence[Row]) -> None:
    for store in dict.fromkeys(row.store for row in rows):
        own = sorted((row for row in rows if row.store == store), key=lambda row: (row.operator, row.company))
        alone = {row.operator: row.measured.throughput for row in own if not row.company}
        table = Table(
            "operator", "beside", "accesses", "accesses/s", "of alone", "p50 us", "p99.9 us", title=f"{store}: {title}"
        )
        for row in own:
            latency, base = row.measured.latency(), alone.get(row.operator)
            table.add_row(
                row.operator,
                (row.company or "-") + (" (interrupted)" if row.measured.interrupted else ""),
                f"{row.measured.accesses:,}",
                f"{row.measured.throughput:,.0f}",
                f"{row.measured.throughput / base:.2f}" if base else "",
                *(f"{latency.percentile(share) / 1000:,.4g}" for share in (50, 99.9)),
            )
        console.print(table)
