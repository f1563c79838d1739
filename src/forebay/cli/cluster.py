"""The command line over hosts that keep state: ``forebay cluster ...``."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from forebay.cli.terminal import console

cluster = typer.Typer(no_args_is_help=True, help="The hosts that keep the state of a query, and its replicas.")

_STALE_SECONDS = 30


@cluster.callback()
def _group() -> None:
    """One command so far, and still a group."""


@cluster.command()
def status(
    location: Annotated[
        str, typer.Argument(help="The checkpoint location of a query, or its state directory: a path or URL.")
    ],
) -> None:
    """Show replica groups, who holds what, how far behind, and the handovers so far, as the driver wrote them last."""
    from forebay.state import cluster as statuses

    found = statuses.read(location)
    age = time.time() - found["written"]
    console.print(f"query {escape(found['query'])}, {found['replicas']} replicas; written {age:,.0f} s ago")
    if age > _STALE_SECONDS:
        console.print("[yellow]the query has ended, or its driver cannot write to this place[/]")
    hosts = Table("host", "MB held", "MB free", "MB sent", "MB received", "not in the checkpoint yet")
    for host, each in sorted(found["hosts"].items()):
        sizes = (f"{each[name] / 1e6:,.1f}" for name in ("bytes", "free", "sent", "received"))
        hosts.add_row(host, *sizes, str(each["uploading"]))
    console.print(hosts)
    partitions = Table("partition", "executor", "host", "MB", "replicas (versions behind)")
    for each in found["partitions"]:
        lags = (f"{host} ({'being brought up' if lag < 0 else lag})" for host, lag in each["replicas"].items())
        size = f"{each['stateBytes'] / 1e6:,.1f}"
        partitions.add_row(
            str(each["partition"]), str(each["executor"]), str(each["host"]), size, ", ".join(lags) or "[red]none[/]"
        )
    console.print(partitions)
    if found["handovers"]:
        handovers = Table("handover", "partitions", "MB", "seconds", "given up")
        for each in found["handovers"]:
            moves = ", ".join(f"{partition}: {origin} to {target}" for partition, (origin, target) in each["moved"].items())
            seconds = ", ".join(f"{step} {taken:.2f}" for step, taken in each["seconds"].items())
            size = f"{each['stateBytes'] / 1e6:,.1f}"
            handovers.add_row(each["reason"], moves, size, seconds, escape(each["failed"] or ""))
        console.print(handovers)
