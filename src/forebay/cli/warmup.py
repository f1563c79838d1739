"""``forebay warmup``: what workers would compile in the first micro-batches is compiled ahead."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import typer
from rich.markup import escape

from forebay.cli.terminal import console, errors


def warmup() -> None:
    """Compile the loops of all operators and keep them, as the user and on the machine that will run the workers.

    In an image, run it in the last step, as the user of the workers.
    """
    from forebay import compiling
    from forebay.engine.rehearsal import rehearse

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        for name in rehearse(Path(directory)):
            console.print(f"{time.perf_counter() - began:6.1f} s  {name}")
    places = compiling.kept()
    for place in sorted(place for place in places if place is not None):
        console.print(f"kept in {escape(str(place))}", soft_wrap=True)
    if None in places:
        errors.print(
            "[red]error:[/red] nowhere can compiled code be kept, so each worker compiles for itself. Let this user write "
            "to the package, to its home or to TMPDIR, or set NUMBA_CACHE_DIR to a directory of its own.",
            soft_wrap=True,
        )
        raise typer.Exit(2)
