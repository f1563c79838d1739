"""State at rest: what a state directory holds, as tables, and whether all of it is whole. Nothing is ever written there.

Behind ``forebay state`` and ``spark.read.format("forebay-state")``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.engine.row_join import INSTANT, ROW
from forebay.engine.stored_form import StoredForm, unified
from forebay.errors import CorruptState, ForebayError, InvalidArgument, StateDirectoryError, VersionNotFound
from forebay.restoring import RESTORE_DIRECTORY
from forebay.state import instances
from forebay.state import layout as layouts
from forebay.state.layout import Layout, Location, key_names
from forebay.state.places import DIRECTORY, Root, path_of
from forebay.store import filenames
from forebay.store import manifest as manifests
from forebay.store.aligned import AlignedStore
from forebay.store.archive import archive_at
from forebay.store.events import ORDINAL
from forebay.store.extent_log import ExtentLog
from forebay.store.filenames import Version
from forebay.store.key_index import Slots
from forebay.store.manifest import EVENTS, Manifest
from forebay.store.options import Options
from forebay.store.unaligned import SLOT, UnalignedStore
from forebay.windows import ENDLESS, TIME

_TYPE = re.compile(r" (interval [a-z ]+|\S+)$")
"""The type after the text of a key."""

_READ_BYTES = 32 << 20
"""Rows are read about so many bytes at a time."""


@dataclass(frozen=True)
class InstanceState:
    """The state of one virtual node of an operator.

    Attributes
    ----------
    root : Root
        Its directory and archive.
    name : str
        The name of its directory, which begins with the virtual node.
    operator : OperatorState
        What it is an instance of.
    versions : dict of Version to float
        The versions that are there, oldest first, and the time at which each was written, in seconds.
    """

    root: Root
    name: str
    operator: OperatorState
    versions: dict[Version, float]

    @property
    def vnode(self) -> int:
        return int(filenames.vnode_of(self.name))

    def manifest(self, version: Version) -> Manifest:
        return instances.manifest_of(self.root.safe, self.name, version)

    def at(self, batch: int | None = None) -> Manifest | None:
        """The version that a micro-batch left, without one the last that Spark committed; None if there was no state yet.

        Where it is not known what Spark has committed, that is the newest.

        Raises
        ------
        CorruptState
            If it cannot be told, since a version that may be the one is damaged.
        InvalidArgument
            If that version is not kept any more.
        """
        last = self.operator.committed if batch is None else batch
        damaged: CorruptState | None = None
        for version in reversed(self.versions):
            try:
                manifest = self.manifest(version)
            except FileNotFoundError:  # it was collected since it was listed
                continue
            except CorruptState as error:
                damaged = error
                continue
            if manifest.batch is None or last is None:
                found = batch is None
            else:
                found = manifest.batch <= last
                damaged = damaged if found else None  # else it is of a later micro-batch than this one, which is too late
            if found:
                if damaged is not None:
                    raise damaged
                return manifest
        if damaged is not None:
            raise damaged
        if last != -1 and next(iter(self.versions)).number > 1:
            raise InvalidArgument(
                f"virtual node {self.vnode} has no version of micro-batch {last} any more; "
                "spark.forebay.retainBatches says how many are kept"
            )
        return None

    def kept(self) -> Iterator[Manifest]:
        """The versions that can be read, oldest first."""
        for version in self.versions:
            with contextlib.suppress(CorruptState, FileNotFoundError):  # damaged, or collected since it was listed
                yield self.manifest(version)

    def tables(self, version: Version) -> Iterator[pl.DataFrame]:
        """The rows of a version with ``vnode`` and the bounds of their windows, ``start`` and ``end``, some at a time.

        Aligned windows share rows by slice: ``start`` is that of the slice, and there is no ``end``. Events that patterns
        share have their time for ``start``.
        """
        if self.operator.shares_events:
            found = self._events(version)
        else:
            found = self._aligned(version) if self.operator.aligned else self._unaligned(version)
        for rows in found:
            bounds = [pl.lit(self.vnode, pl.Int32).alias("vnode"), pl.col("start"), pl.col("end")]
            yield rows.select(*bounds, pl.exclude("start", "end"))

    def unaligned(self, version: Version) -> UnalignedStore:
        """The store of a version, to read from."""
        return UnalignedStore(self.root.directory, version, archive=self.root.archive)

    def check(self, version: Version) -> None:
        """Read all files of a version; an error of ours if one of them is damaged."""
        log = ExtentLog(self.root.directory, version, Options(), self.root.archive)
        for part in (log, *map(log.part, log.parts)):
            for group in part.groups.tolist():
                for _ in part.read(group):
                    pass

    def _events(self, version: Version) -> Iterator[pl.DataFrame]:
        part = ExtentLog(self.root.directory, version, Options(), self.root.archive).part(EVENTS)
        form = StoredForm(unified(part.schemas_of(part.groups.tolist())))
        instant = pl.Datetime("us", "UTC")
        for group in part.groups.tolist():
            for batch in part.read(group):
                events = pl.DataFrame(form.of(batch)).with_columns(pl.col(TIME).cast(instant).alias("start"))
                yield events.drop(TIME, ORDINAL).with_columns(end=pl.lit(None, instant))

    def _aligned(self, version: Version) -> Iterator[pl.DataFrame]:
        store = AlignedStore(self.root.directory, version, [], archive=self.root.archive)
        store.form = StoredForm(unified(store.schemas))
        instant = pl.Datetime("us", "UTC")
        for start in store.slices.tolist():
            for batch in store.rows(start):
                yield pl.DataFrame(batch).with_columns(start=pl.lit(start).cast(instant), end=pl.lit(None, instant))

    def _unaligned(self, version: Version) -> Iterator[pl.DataFrame]:
        store = self.unaligned(version)
        live = store.index.live()
        store.form = StoredForm(unified(store.schemas))
        sizes = store.bytes_of(live)
        parts, large = np.cumsum(sizes) // _READ_BYTES, sizes >= _READ_BYTES
        found = np.split(live, np.flatnonzero((np.diff(parts) > 0) | large[1:] | large[:-1]) + 1) if len(live) else []
        for rows in itertools.chain.from_iterable(_rows_of(store, slots) for slots in found):
            joined = ROW in rows.columns
            if joined:
                rows = rows.filter(pl.col(ROW) >= 0).drop(INSTANT, ROW)  # marks are no rows
            elif INSTANT in rows.columns:  # of windows that precede rows: each row has one
                instants = pl.col(INSTANT).cast(pl.Datetime("us", "UTC"))
                yield rows.drop(SLOT).with_columns(start=instants, end=instants).drop(INSTANT)
                continue
            starts, ends = store.index.bounds(rows[SLOT].to_numpy())
            if joined:
                starts = np.where(ends == ENDLESS, ENDLESS, starts)  # it tells sides apart
            yield rows.drop(SLOT).with_columns(start=self._bound(starts), end=self._bound(ends))

    def _bound(self, values: npt.NDArray[np.int64]) -> pl.Series:
        series = pl.Series(np.ascontiguousarray(values))
        series = series.replace(ENDLESS, None)
        return series if self.operator.counts_rows else series.cast(pl.Datetime("us", "UTC"))


def _rows_of(store: UnalignedStore, slots: Slots) -> Iterator[pl.DataFrame]:
    """The rows of windows with their `SLOT`; those of a single window, which may be large, in parts."""
    if len(slots) == 1 and store.index.records["sibling"][slots[0]] < 0:
        for batch in store.get_one(int(slots[0])):
            yield pl.DataFrame(batch).with_columns(pl.lit(slots[0]).alias(SLOT))
    else:
        yield store.get(slots)


@dataclass(frozen=True)
class OperatorState:
    """The state of one operator of a query."""

    root: Root
    id: str
    layout: Layout
    committed: int | None = None
    """The last micro-batch that Spark has committed, -1 for none; None where that is not known."""

    @property
    def aligned(self) -> bool:
        """Whether all keys share its windows, and rows lie by slice."""
        by_key = self.layout.get("outputMode") == "update" or "firing" in self.layout
        return layouts.kind_of(self.layout) == "window" and not by_key

    @property
    def shares_events(self) -> bool:
        """Whether it has several patterns, which share events."""
        return layouts.kind_of(self.layout) == "patterns"

    @property
    def in_event_time(self) -> bool:
        """Whether its windows fire at instants of event time."""
        return layouts.kind_of(self.layout) not in ("count_window", "global_window", "buffer")

    @property
    def counts_rows(self) -> bool:
        """Whether its windows are bounded by numbers of rows, not by instants."""
        return not self.in_event_time or layouts.kind_of(self.layout) == "dedupe"

    @cached_property
    def instances(self) -> list[InstanceState]:
        """The instances, in the order of their virtual nodes; several for one node if several operators share a layout."""
        found: list[tuple[str, dict[Version, float]]] = []
        for there in instances.by_node(self.root.safe).values():
            found += [each for each in there if any(version.number > 1 for version in each[1])] or there[-1:]
        return [InstanceState(self.root.within(name), name, self, versions) for name, versions in found]

    def require_one(self) -> None:
        """`InvalidArgument` if several operators share the layout: nothing says which instance is of which."""
        for one, other in itertools.pairwise(self.instances):
            if one.vnode == other.vnode:
                raise InvalidArgument(
                    f"several operators share {self.id}: virtual node {one.vnode} has the instances {one.name} and "
                    f"{other.name}. They are alike in windows, keys and aggregates, and it cannot be told whose rows are "
                    'whose. Write an argument of one with another name, as fb.sum(F.col("x").alias("y")), when the query is '
                    "first started. `forebay state verify` reads all of it."
                )

    def chosen(self, batch: int | None = None) -> list[tuple[InstanceState, Version]]:
        """The version of each instance that a micro-batch left, the newest unless given; those without state left out."""
        return [(instance, found.version) for instance, found in self.manifests(batch) if found and found.version]

    def manifests(self, batch: int | None = None) -> list[tuple[InstanceState, Manifest | None]]:
        """Each instance with the manifest that a micro-batch left, the newest unless given.

        Raises
        ------
        InvalidArgument
            If there is no such micro-batch, or its versions are not kept any more; or if several operators share the layout.
        """
        self.require_one()
        if batch is not None:
            self._require(batch)
        return [(instance, instance.at(batch)) for instance in self.instances]

    def _require(self, batch: int) -> None:
        """`InvalidArgument` unless the state that a micro-batch left can be read."""
        oldest, newest = 0, -1 if self.committed is None else self.committed
        for instance in self.instances:
            kept = [found.batch for found in instance.kept() if found.batch is not None]
            newest = max(newest, *kept, -1)
            if kept and next(iter(instance.versions)).number > 1:  # what came before has been collected
                oldest = max(oldest, kept[0])
        known = self.committed is not None  # else later micro-batches may have changed nothing
        if batch < oldest or (known and batch > newest):
            raise InvalidArgument(
                f"the state of {self.id} is not there as of micro-batch {batch}, but as of those from {oldest} to {newest}. "
                "Name one of these; spark.forebay.retainBatches says how many are kept."
            )

    def read(self, batch: int | None = None) -> Iterator[pa.RecordBatch]:
        """All rows after a micro-batch, the newest unless given, some at a time and with the same columns."""
        parts = self.chosen(batch)
        columns = self.columns(parts)
        if columns is not None:
            for part in parts:
                yield from map(columns.of, self.rows(*part))

    def columns(self, chosen: list[tuple[InstanceState, Version]]) -> StoredForm | None:
        """The columns that all rows of some versions fit; None if there are no rows."""
        first = (next(self.rows(*part), None) for part in chosen)
        schemas = [batch.schema for batch in first if batch is not None]
        return StoredForm(unified(schemas)) if schemas else None

    def rows(self, instance: InstanceState, version: Version) -> Iterator[pa.RecordBatch]:
        """All rows of a version of an instance, with keys named as in the query, some at a time."""
        try:
            for table in instance.tables(version):
                named = arrow.of(table.rename(self._names(table.columns)))
                yield from named.to_batches()
        except ForebayError:
            if filenames.manifest(version) in instance.root.safe.names():
                raise
            raise InvalidArgument(
                f"version {version} of virtual node {instance.vnode} was collected while it was read. Stop the query, or "
                "keep more versions with spark.forebay.retainBatches."
            ) from None

    def _names(self, columns: list[str]) -> dict[str, str]:
        """Keys are named as in the query; inputs and parts of aggregates have the names that they are stored under."""
        named: dict[str, str] = {}
        keys = self.layout["keys"]
        for name, key in zip(key_names(len(keys)), keys, strict=True):
            text = _TYPE.sub("", key)
            alias = text.rpartition(" AS ")[2]
            text = alias if alias.count("(") == alias.count(")") else text  # CAST(x AS INT) has none
            if name in columns and text not in {*columns, *named.values()}:
                named[name] = text
        return named


@contextlib.contextmanager
def opened(location: str) -> Iterator[list[OperatorState]]:
    """The operators whose state is at a location.

    Parameters
    ----------
    location : str
        A checkpoint location, or the directory in it, or ``<stateDirectory>/<query id>``: a path or a URL.

    Raises
    ------
    InvalidArgument
        If there is no state.
    """
    mounted = path_of(location)
    with tempfile.TemporaryDirectory(prefix="forebay-state-") as scratch:
        root = Root(mounted) if mounted is not None else Root(Path(scratch), archive_at(location))
        above = Root(mounted.parent) if mounted is not None and mounted.name == DIRECTORY else root
        for candidate, checkpoint in ((root.within(DIRECTORY), root), (root, above)):
            found = operators(candidate, _committed(checkpoint))
            if found:
                yield found
                return
        raise InvalidArgument(f"{location} has no state of forebay. {_elsewhere(root)}")


def _committed(checkpoint: Root) -> int | None:
    """The last micro-batch in Spark's commit log, -1 if there is none; None if that is no checkpoint location."""
    try:
        checkpoint.safe.read("metadata")
    except FileNotFoundError:
        return None
    except StateDirectoryError as error:
        if isinstance(error.__cause__, NotADirectoryError):
            return None
        raise
    return max((int(name) for name in checkpoint.within("commits").safe.names() if name.isdecimal()), default=-1)


def _elsewhere(root: Root) -> str:
    """Where the state may be of a query whose checkpoint location has none."""
    try:
        query = str(json.loads(root.safe.read("metadata"))["id"])
    except (OSError, ForebayError, ValueError, KeyError, TypeError):
        return (
            "Name the checkpoint location of a query; if the query had spark.forebay.stateDirectory, name the directory "
            "there that has the query's id for its name."
        )
    return (
        "It is the checkpoint location of a query, whose state is elsewhere: if the query had spark.forebay.stateDirectory, "
        f"name STATE_DIRECTORY/{query} with that directory; if it had spark.forebay.durability=local, the state is on its "
        "nodes alone."
    )


def operators(root: Root, committed: int | None = None) -> list[OperatorState]:
    """The operators whose state a root has; ``committed`` is as in `OperatorState`."""
    ids = sorted(name for name in root.safe.directories() if filenames.is_layout(name))
    return [OperatorState(root.within(name), name, layouts.history(root, name)[-1], committed) for name in ids]


def one(found: list[OperatorState], id_: str | None) -> OperatorState:
    """The operator with that id; without one, the only operator."""
    matching = [operator for operator in found if id_ in (None, operator.id)]
    if len(matching) != 1:
        problem = "it has several operators" if id_ is None else f"it has no operator {id_!r}"
        ids = ", ".join(operator.id for operator in found)
        raise InvalidArgument(f"{problem}; give one of these as --operator, or as the option `operator` of a reader: {ids}")
    return matching[0]


def verify(operator: OperatorState) -> Iterator[tuple[str, str]]:
    """What is wrong with an operator's state, as the name of the instance and a message.

    Every version that is kept is read whole: manifests, segments, checksums; and rows are counted, but for
    partial aggregates of windows that keys have of their own. Where a virtual node has several instances, all are read.
    What is copied from an archive to be read is removed again, so the root must not be one that stores work in.

    Raises
    ------
    StateDirectoryError
        If a file cannot be read, or there is no room for a copy of one that is on an object store.
    """
    for name, versions in instances.every(operator.root.safe).items():
        instance = InstanceState(operator.root.within(name), name, operator, versions)
        for version in versions:
            try:
                instance.check(version)
                rows, expected = sum(table.height for table in instance.tables(version)), _rows(instance, version)
                if expected is not None and rows != expected:
                    raise CorruptState(f"version {version} has {rows} rows where {expected} are expected")
            except StateDirectoryError:
                raise
            except (ForebayError, FileNotFoundError) as error:
                if filenames.manifest(version) in instance.root.safe.names():  # not collected since it was listed
                    yield instance.name, str(error)
        if instance.root.archive is not None:
            shutil.rmtree(instance.root.directory, ignore_errors=True)  # the copies that were read


def require_there(root: Root, token: str, operators: Sequence[OperatorState]) -> None:
    """`VersionNotFound` or `CorruptState` unless the manifest of the version that a token names is there and whole."""
    if not operators:
        raise VersionNotFound(
            f"Spark's state names {token}, and {root.safe} has no state at all. If the query keeps its state elsewhere, "
            f"give the settings that say where. {RESTORE_DIRECTORY}"
        )
    location = Location.parse(root, token, operators[0].layout, [operator.id for operator in operators])
    assert location.version is not None
    name = filenames.manifest(location.version)
    try:
        manifests.parse(location.home.safe.read(name), Path(location.layout, location.instance, name))
    except FileNotFoundError as error:
        raise VersionNotFound(
            f"Spark's state names {token}, and {root.safe} does not have it. {RESTORE_DIRECTORY}"
        ) from error


def _rows(instance: InstanceState, version: Version) -> int | None:
    """How many rows a version says it has; None where it does not say."""
    if instance.operator.shares_events:
        return instance.manifest(version).rows_of(EVENTS)
    if instance.operator.aligned:
        return instance.manifest(version).rows
    if instance.operator.layout["pattern"] == "RMW":
        return None
    store = instance.unaligned(version)
    if any(ROW in schema.names for schema in store.schemas):
        return None  # a row that has met another one has a mark beside it
    return store.index.stored_rows
