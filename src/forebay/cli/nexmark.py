"""``forebay nexmark``: events of an online auction, and queries over them."""

from __future__ import annotations

import inspect
import json
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from forebay.cli.terminal import by_name, console, make_new
from forebay.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

    from forebay.nexmark.run import Measured

nexmark = typer.Typer(no_args_is_help=True, help="Events of an online auction, and queries over them.")

Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An option of the source, such as avgBidByteSize=84. Repeat for more."),
]
Events = Annotated[str, typer.Option(help="How many events, of all kinds: 20M, 500k, 1000.")]


@nexmark.command()
def generate(
    out: Annotated[Path, typer.Argument(help="A directory that does not exist yet.")],
    events: Events = "1M",
    kind: Annotated[str, typer.Option("--type", help="event, person, auction or bid.")] = "bid",
    per_file: Annotated[str, typer.Option(help="Events per file.")] = "500k",
    rate: Annotated[int, typer.Option(help="Events per second of event time.")] = 10_000,
    option: Options = None,
) -> None:
    """Write events as parquet files, in the order in which they arrive."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from forebay.nexmark import NexmarkConfig, generator

    total, most = number(events), number(per_file)
    config = NexmarkConfig.of({**pairs(option), "type": kind, "events": str(total), "rate": str(rate)})
    make_new(out)
    rows = 0
    for file, begin in enumerate(range(0, total, most)):
        batch = generator.generate(config, begin, min(begin + most, total))
        pq.write_table(pa.Table.from_batches([batch]), out / f"{file:05}.parquet")
        rows += batch.num_rows
    console.print(
        f"{rows:,} rows of {total:,} events, {total / config.rate:,.0f} s of event time, in {escape(str(out))}",
        soft_wrap=True,
    )


@nexmark.command()
def queries() -> None:
    """List the queries."""
    from forebay.nexmark.queries import QUERIES

    table = Table("query", "streams", "what it asks")
    for name, query in QUERIES.items():
        table.add_row(name, ", ".join(inspect.signature(query).parameters), (query.__doc__ or "").splitlines()[0])
    console.print(table)


@nexmark.command()
def run(
    query: Annotated[str, typer.Argument(help="A query, such as q11-median; see: forebay nexmark queries.")],
    events: Events = "2M",
    batch: Annotated[str, typer.Option(help="Events in a micro-batch at most.")] = "500k",
    rate: Annotated[int, typer.Option(help="Events per second of event time.")] = 10_000,
    real_time: Annotated[
        bool, typer.Option(help="Events arrive at the rate until --seconds are over, rather than as fast as they are taken.")
    ] = False,
    seconds: Annotated[int | None, typer.Option(help="Stop after so long; q12 and --real-time need it.", min=1)] = None,
    cores: Annotated[int, typer.Option(help="Cores of this machine to use.", min=1)] = 2,
    sample: Annotated[int, typer.Option(help="Rows of the result to show.", min=0)] = 5,
    option: Options = None,
) -> None:
    """Run a query over generated events: progress while it runs, then throughput, latency, state and some results."""
    from forebay.nexmark import NexmarkConfig
    from forebay.nexmark import run as runs
    from forebay.nexmark.queries import QUERIES

    if query not in QUERIES:
        raise InvalidArgument(f"there is no query {query!r}; there are {', '.join(QUERIES)}")
    total = number(events)
    options = {"numPartitions": str(cores), **pairs(option)}
    options |= {"rate": str(rate), "maxEventsPerTrigger": str(number(batch)), "realTime": str(real_time)}
    if seconds is None or not real_time:
        options["events"] = str(total)
    if seconds is None and (real_time or query == "q12"):
        raise InvalidArgument(f"{query} goes by the wall clock and does not end by itself; add --seconds 60")
    NexmarkConfig.of({**options, "type": "bid"})  # raises what is wrong with the options before Spark starts
    with console.status("starting Spark"):
        spark = runs.session(cores)
        df = runs.results(spark, query, options)
    with tempfile.TemporaryDirectory(prefix="forebay-nexmark-") as directory:
        columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn()]
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(query, total=total if "events" in options else None, rate="")

            def watch(running: StreamingQuery) -> None:
                last = running.lastProgress
                if last:
                    speed = f"{last.processedRowsPerSecond or 0:,.0f} rows/s, batch {last.batchId}"
                    progress.update(task, completed=runs.offset(json.loads(last.json))["number"], rate=speed)

            arrival = rate if real_time else None
            measured = runs.run(df, Path(directory), rate=arrival, timeout=seconds, watch=watch)
        report(query, measured, spark.read.schema(df.schema).parquet(f"{directory}/out"), sample)
    spark.stop()


def report(query: str, measured: Measured, results: DataFrame, sample: int) -> None:
    """What a run took, as tables."""
    table = Table(title=query, show_header=False)
    table.add_row("events", f"{measured.events:,} in {measured.seconds:.1f} s after warm-up")
    table.add_row("throughput", f"{measured.rate:,.0f} events/s")
    table.add_row("event time", f"{measured.span:,.0f} s")
    table.add_row("latency p50, p95, p99", ", ".join(f"{seconds:.2f} s" for seconds in measured.latency.values()))
    table.add_row("state at the end", f"{measured.state_rows:,} rows, {measured.state_bytes / 1e6:,.1f} MB")
    table.add_row("late rows dropped", f"{measured.rows_late:,}")
    table.add_row("result rows", f"{results.count():,}")
    console.print(table)
    if sample:
        shown = Table(*results.columns)
        for row in results.limit(sample).collect():
            shown.add_row(*(" to ".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in row))
        console.print(shown)


def number(text: str) -> int:
    """A count with a suffix.

    Examples
    --------
    >>> number("20M"), number("1.5k"), number("7")
    (20000000, 1500, 7)
    """
    factor = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}.get(text[-1:].lower(), 1)
    try:
        value = round(float(text[:-1] if factor > 1 else text) * factor)
    except (ValueError, OverflowError):
        value = 0
    if value < 1:
        raise InvalidArgument(f"{text!r} is not a number of events; write 20M, 500k or 1000")
    return value


def pairs(options: list[str] | None) -> dict[str, str]:
    """Options of the source of the form name=value, but for those that have flags."""
    from forebay.nexmark.config import NexmarkConfig, camel

    given = by_name("--option", options, "name=value")
    known = {camel(field.name).lower() for field in fields(NexmarkConfig)} - {"type", "events", "rate"}
    for name in given:
        if name.lower() not in known:
            raise InvalidArgument(f"--option {name} is not an option of the source, or has a flag of its own")
    return given
