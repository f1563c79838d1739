"""The command line: ``forebay cluster``, ``harness``, ``nexmark``, ``state`` and ``warmup``."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated

import typer
from rich.markup import escape

from forebay.cli import harness_advise, harness_compare, harness_spark, harness_traces  # noqa: F401  # commands of forebay harness
from forebay.cli.cluster import cluster
from forebay.cli.harness import harness
from forebay.cli.nexmark import nexmark
from forebay.cli.state import state
from forebay.cli.terminal import console, errors
from forebay.cli.warmup import warmup
from forebay.errors import ForebayError

_HELP = "A semantic-aware state store for PySpark Structured Streaming."

app = typer.Typer(no_args_is_help=True)
app.add_typer(cluster, name="cluster")
app.add_typer(harness, name="harness")
app.add_typer(nexmark, name="nexmark")
app.add_typer(state, name="state")
app.command()(warmup)


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"forebay {metadata.version('forebay')}", highlight=False)
        raise typer.Exit


@app.callback(help=_HELP)
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What the program takes before its commands."""


def main() -> None:
    """The program; errors of forebay are one line.

    Stores and operators of a user's own are also looked for where the program was started.
    """
    sys.path.append("")  # whatever the directory is then, even none that is left
    try:
        app()
    except (ForebayError, OSError) as error:
        errors.print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise SystemExit(2) from error
