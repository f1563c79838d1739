"""``forebay warmup``: what workers would compile, and Java load, in the first micro-batches is done ahead."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import typer
from rich.markup import escape

from forebay.cli.terminal import console, errors


def warmup() -> None:
    """Compile the loops of all operators and keep them, and keep Spark's classes as Java has them in memory (200 MB).

    Run it on the machine and as the user of the workers and the driver; in an image, in the last step.
    """
    from forebay import compiling
    from forebay.engine.rehearsal import rehearse
    from forebay.spark.driver import shared_classes

    began = time.perf_counter()
    compiling.prepare()
    with tempfile.TemporaryDirectory() as directory:
        for name in rehearse(Path(directory)):
            console.print(f"{time.perf_counter() - began:6.1f} s  {name}")
    places = compiling.kept()
    try:
        places.add(shared_classes.make())
        console.print(f"{time.perf_counter() - began:6.1f} s  classes of Spark")
    except shared_classes.NoSharedClasses as error:  # sessions start without
        errors.print(f"[yellow]warning:[/yellow] {escape(str(error))}", soft_wrap=True)
    for place in sorted(place for place in places if place is not None):
        console.print(f"kept in {escape(str(place))}", soft_wrap=True)
    if None in places:
        errors.print(
            "[red]error:[/red] nowhere can compiled code be kept, so each worker compiles for itself. Let this user write "
            "to the package, to its home or to TMPDIR, or set NUMBA_CACHE_DIR to a directory of its own.",
            soft_wrap=True,
        )
        raise typer.Exit(2)
