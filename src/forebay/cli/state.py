"""The command line over state at rest: ``forebay state ...``."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from forebay.cli.terminal import by_name, console
from forebay.errors import InvalidArgument

if TYPE_CHECKING:
    from forebay.state.inspection import InstanceState, OperatorState
    from forebay.store.manifest import Manifest

state = typer.Typer(no_args_is_help=True, help="What the state of a query holds. Only `rescale` changes anything.")

Location = Annotated[str, typer.Argument(help="The checkpoint location of a query, or its state directory: a path or URL.")]
Checkpoint = Annotated[str, typer.Argument(help="The checkpoint location of a stopped query.")]
StateDirectory = Annotated[str | None, typer.Option(help="spark.forebay.stateDirectory, if the query has it.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--conf", help="NAME=VALUE, a setting that the query has. Repeat for more.", metavar="TEXT"),
]
Id = Annotated[str | None, typer.Option("--operator", help="The operator, as `list` names it, if there are several.")]
Batch = Annotated[
    int | None, typer.Option(help="The micro-batch after which state is shown; the newest unless given.", min=0)
]


@state.command("list")
def list_(location: Location) -> None:
    """List operators, their virtual nodes, the versions that are kept, and sizes."""
    from forebay.state.inspection import opened
    from forebay.state.layout import shown

    with opened(location) as operators:
        for operator in operators:
            layout = operator.layout
            console.print(f"[bold]{operator.id}[/]  {escape(layout['window'])}, {layout['pattern']}")
            console.print(f"  keys {escape(', '.join(layout['keys']) or 'none')}")
            console.print(f"  aggregates {escape(shown(layout['aggregates']))}")
            try:
                operator.require_one()
            except InvalidArgument as error:
                console.print(f"  {escape(str(error))}")
                continue
            table = Table("vnode", "versions", "batch", "fired until", "rows", "MB", "rows in", "late")
            for instance in operator.instances:
                newest = instance.at()
                if newest is None:
                    table.add_row(str(instance.vnode), str(len(instance.versions)), "none that Spark has committed")
                    continue
                table.add_row(
                    str(instance.vnode),
                    str(len(instance.versions)),
                    str(newest.batch),
                    _instant(newest.fired_until) if operator.kind.in_event_time else "",
                    f"{newest.rows:,}",
                    f"{newest.size / 1e6:,.1f}",
                    f"{newest.counters.rows_in:,}",
                    f"{newest.counters.rows_late:,}",
                )
            console.print(table)


@state.command()
def show(location: Location, operator: Id = None, batch: Batch = None) -> None:
    """Show what is open: slices of aligned windows, parts of patterns, or how many windows and when the next ones end."""
    from forebay.state.inspection import one, opened

    with opened(location) as operators:
        chosen = one(operators, operator)
        told = _patterns if chosen.kind.shares_events else _slices if chosen.kind.aligned else _windows
        console.print(told(chosen, batch))


@state.command()
def read(
    location: Location,
    operator: Id = None,
    batch: Batch = None,
    rows: Annotated[int, typer.Option(help="How many rows to print.", min=0)] = 20,
) -> None:
    """Print rows of the state."""
    import itertools

    from forebay.state.inspection import one, opened

    with opened(location) as operators:
        batches = one(operators, operator).read(batch)
        table: Table | None = None
        for row in itertools.islice((row for some in batches for row in some.slice(0, rows).to_pylist()), rows):
            table = table or Table(*row)
            table.add_row(*(escape(str(value)) for value in row.values()))
        console.print(table or "no rows")


@state.command()
def export(
    location: Location,
    out: Annotated[Path, typer.Argument(help="The file to write: .csv or .parquet.")],
    operator: Id = None,
    batch: Batch = None,
) -> None:
    """Write all rows of the state to a file."""
    from forebay.state.inspection import one, opened

    with opened(location) as operators:
        rows = _written(one(operators, operator).read(batch), out)
    console.print(f"{rows:,} rows in {escape(str(out))}")


@state.command()
def verify(location: Location) -> None:
    """Read every version that is kept, whole, and report damage; the exit status is 1 if there is any.

    Files do not tell which versions there must be. Spark's state does, see `forebay state tokens`.
    """
    from forebay.state.inspection import opened
    from forebay.state.verifying import verify as verified

    damage = 0
    with opened(location) as operators:
        for operator in operators:
            for instance, message in verified(operator):
                console.print(f"[red]damaged[/] {operator.id}/{instance}: {escape(message)}")
                damage += 1
            versions = sum(len(instance.versions) for instance in operator.instances)
            nodes = len({instance.vnode for instance in operator.instances})
            console.print(f"{operator.id}: {versions} versions of {nodes} virtual nodes")
    if damage:
        raise typer.Exit(1)


@state.command()
def tokens(checkpoint: Checkpoint, state_directory: StateDirectory = None, conf: Settings = None) -> None:
    """Look whether the versions are there that Spark's state names in its tokens; the exit status is 1 if one is not.

    Spark is started for that, with its own configuration. Only the manifests of the versions are read; `verify` reads all.
    """
    from forebay.spark.driver import rescale

    with console.status("starting Spark"):
        spark = rescale.start_session(_settings(state_directory, conf))
    try:
        with console.status("reading Spark's state"):
            missing = list(rescale.missing(checkpoint))
    finally:
        spark.stop()
    for message in missing:
        console.print(f"[red]missing[/] {escape(message)}", soft_wrap=True)
    if missing:
        raise typer.Exit(1)
    console.print(f"all versions that {escape(checkpoint)} names are there", soft_wrap=True)


@state.command("rescale")
def rescale_(
    checkpoint: Checkpoint,
    partitions: Annotated[
        int, typer.Argument(help="How many state partitions it gets; they divide its virtual nodes.", min=1)
    ],
    state_directory: StateDirectory = None,
    conf: Settings = None,
) -> None:
    """Give a stopped query another number of state partitions. Spark is started for that, with its own configuration."""
    from forebay.spark.driver import rescale

    with console.status("starting Spark"):
        spark = rescale.start_session(_settings(state_directory, conf))
    try:
        with console.status("rescaling"):
            rescale.rescale(checkpoint, partitions)
    finally:
        spark.stop()
    console.print(f"{escape(checkpoint)} has {partitions} state partitions")


def _settings(state_directory: str | None, conf: list[str] | None) -> dict[str, str]:
    """Settings of a query that were given on the command line."""
    settings = by_name("--conf", conf)
    return settings if state_directory is None else {**settings, "spark.forebay.stateDirectory": state_directory}


def _slices(operator: OperatorState, batch: int | None) -> Table:
    totals: dict[int, list[int]] = {}
    for _, manifest in operator.manifests(batch):
        for extent in manifest.extents if manifest else ():
            total = totals.setdefault(extent.group, [0, 0, 0])
            for place, more in enumerate((extent.rows, extent.length, 1)):
                total[place] += more
    table = Table("slice from", "rows", "MB", "extents")
    for start, (rows, size, extents) in sorted(totals.items()):
        table.add_row(_instant(start), f"{rows:,}", f"{size / 1e6:,.1f}", str(extents))
    return table


def _patterns(operator: OperatorState, batch: int | None) -> Table:
    """What is stored of events, and for each pattern: references, partial aggregates, and what is needed to find them."""
    from forebay.store.manifest import INDEXES

    totals: dict[str, list[int]] = {}
    for _, manifest in operator.manifests(batch):
        for extent in manifest.extents if manifest else ():
            total = totals.setdefault(extent.part, [0, 0])
            total[0] += extent.rows if extent.group < INDEXES else 0
            total[1] += extent.length
    table = Table("part", "rows", "MB")
    for part, (rows, size) in sorted(totals.items()):
        table.add_row(escape(part or "slices of events"), f"{rows:,}", f"{size / 1e6:,.1f}")
    return table


def _windows(operator: OperatorState, batch: int | None) -> Table:
    table = Table("vnode", "open windows", "absorbed by others", "next end", "last end", "next ETT")
    for instance, manifest in operator.manifests(batch):
        table.add_row(str(instance.vnode), *_window_facts(instance, manifest))
    return table


def _window_facts(instance: InstanceState, manifest: Manifest | None) -> list[str]:
    if manifest is None or manifest.version is None:
        return ["none"]
    index = instance.stored(manifest.version).unaligned().index
    live = index.live()
    if not len(live):
        return ["0"]
    ends, etts = index.ends(live), index.estimates(live)
    bounded = str if instance.operator.kind.counts_rows else _instant
    expected = _instant if instance.operator.kind.in_event_time else str
    times = [bounded(int(ends.min())), bounded(int(ends.max())), expected(int(etts.min()))]
    return [f"{len(live):,}", f"{len(index) - len(live):,}", *times]


def _written(batches: Iterable[Any], out: Path) -> int:
    """Write record batches to a file, which takes its place when all are there; how many rows there were."""
    import pyarrow.csv as csv
    import pyarrow.parquet as parquet

    from forebay.spark.worker.blobs import BLOB_BYTES, BLOB_ROWS, gathered

    writers: dict[str, Any] = {".csv": csv.CSVWriter, ".parquet": parquet.ParquetWriter}
    if out.suffix not in writers:
        raise InvalidArgument(f"{out} must end with {' or '.join(writers)}")
    writer: Any = None
    rows, path = 0, out.resolve()
    partly = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        for batch in gathered(batches, BLOB_ROWS, 8 * BLOB_BYTES):  # a group of rows of parquet for each takes memory
            with _writing(out):
                writer = writer or writers[out.suffix](partly, batch.schema)
                writer.write_batch(batch)
            rows += batch.num_rows
        if writer is None:
            raise InvalidArgument("there are no rows to write")
        with _writing(out):
            writer.close()
            partly.replace(path)
    finally:
        with contextlib.suppress(Exception):
            writer.close()
        with contextlib.suppress(OSError):
            partly.unlink()
    return rows


@contextlib.contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Errors of writing a file as errors that name it."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"{out} cannot hold such rows: {error}. Write a .parquet file.") from error
    except OSError as error:
        raise InvalidArgument(f"{out} cannot be written: {error}") from error


def _instant(micros: int | None) -> str:
    """A time as text, or what stands before and after all times."""
    if micros is None:
        return "never"
    try:
        return str(datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=micros))
    except OverflowError:
        return "never" if micros < 0 else "the end"
