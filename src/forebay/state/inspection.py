"""State at rest: which operators, virtual nodes and versions a state directory holds. Nothing is ever written there.

Behind ``forebay state`` and ``spark.read.format("forebay-state")``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from forebay import arrow
from forebay.engine.stored_form import StoredForm, unified
from forebay.errors import CorruptState, ForebayError, InvalidArgument, StateDirectoryError
from forebay.restoring import RESTORE
from forebay.state import instances
from forebay.state import layout as layouts
from forebay.state.layout import Layout, key_names
from forebay.state.places import DIRECTORY, Root, path_of
from forebay.state.stored_rows import Kind, StoredRows
from forebay.store import filenames
from forebay.store.archive import archive_at
from forebay.store.filenames import Version
from forebay.store.manifest import Manifest

_TYPE = re.compile(r" (interval [a-z ]+|\S+)$")
"""The type after the text of a key."""


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
            except FileNotFoundError:
                name = filenames.manifest(version)
                if name in self.root.safe.names():  # else it was collected since it was listed
                    damaged = CorruptState(f"{name} in {self.root.safe} is listed, and is not there. {RESTORE}")
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

    def stored(self, version: Version) -> StoredRows:
        """The rows of a version."""
        return StoredRows(self.root, self.vnode, self.operator.kind, version)

    def kept(self) -> Iterator[Manifest]:
        """The versions that can be read, oldest first."""
        for version in self.versions:
            with contextlib.suppress(CorruptState, FileNotFoundError):  # damaged, or collected since it was listed
                yield self.manifest(version)


@dataclass(frozen=True)
class OperatorState:
    """The state of one operator of a query."""

    root: Root
    id: str
    layout: Layout
    committed: int | None = None
    """The last micro-batch that Spark has committed, -1 for none; None where that is not known."""

    @property
    def kind(self) -> Kind:
        """How its rows are kept."""
        return Kind(self.layout)

    @cached_property
    def instances(self) -> list[InstanceState]:
        """The instances, in the order of their virtual nodes; several for one node if several operators share a layout."""
        found: list[tuple[str, dict[Version, float]]] = []
        for there in instances.by_node(self.root.safe).values():
            found += [each for each in there if any(version.number > 1 for version in each[1])] or there[-1:]
        return [InstanceState(self.root.within(name), name, self, versions) for name, versions in found]

    def instance(self, name: str) -> InstanceState:
        """The instance of that name; no other one is looked at."""
        root = self.root.within(name)
        return InstanceState(root, name, self, instances.versions_in(root.safe.names()))

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
            for table in instance.stored(version).tables():
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
    if mounted is not None and not mounted.exists():
        raise InvalidArgument(f"there is no directory {mounted}. Name the checkpoint location of a query.")
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
