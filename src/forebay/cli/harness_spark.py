"""``forebay harness spark``: Spark's own state store, driven with a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.harness import VirtualNode, harness, read_trace, report_run
from forebay.cli.terminal import console

_LIMIT = 20_000


@harness.command()
def spark(
    trace: Annotated[Path, typer.Argument(help="Accesses, generated or captured.")],
    limit: Annotated[
        int, typer.Option(help="So many accesses at most: one takes some tenths of a millisecond.", min=1)
    ] = _LIMIT,
    vnode: VirtualNode = None,
) -> None:
    """Drive Spark's own state store with a trace, from a task of PySpark as a user's stateful processor would."""
    from pyspark.sql import SparkSession

    import forebay as fb
    from forebay.harness.access import limited
    from forebay.spark.driver.replay import replay

    batches = list(limited(read_trace(trace, vnode), limit))
    session = fb.configure(SparkSession.builder.appName("forebay harness").master("local[1]")).getOrCreate()
    with console.status("spark-rocksdb"):
        measured = replay(session, batches)
    report_run(str(trace), {"spark-rocksdb": measured})
