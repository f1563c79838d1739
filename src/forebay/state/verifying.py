"""Whether state at rest is whole: what each version holds is read, and what Spark's state names is looked for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from forebay.errors import CorruptState, ForebayError, StateDirectoryError, VersionNotFound
from forebay.restoring import RESTORE_DIRECTORY
from forebay.state import instances
from forebay.state.inspection import InstanceState, OperatorState
from forebay.state.location import Location
from forebay.state.places import Root
from forebay.store import filenames
from forebay.store import manifest as manifests


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
                stored = instance.stored(version)
                stored.check()
                rows, expected = sum(table.height for table in stored.tables()), stored.expected(instance.manifest(version))
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
