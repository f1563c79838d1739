"""The store instances that a directory of state has, by its files and manifests alone: this loads without polars."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from forebay.errors import CorruptState
from forebay.store import filenames
from forebay.store import manifest as manifests
from forebay.store.archive import Archive
from forebay.store.filenames import Version
from forebay.store.manifest import Manifest


def listed(operator: Archive) -> dict[int, tuple[str, dict[Version, float]]]:
    """The instance of each virtual node of an operator: its name, and the versions that there are, oldest first.

    With each version is the time at which it was written, in seconds. Of several instances for one node, which attempts at
    its first micro-batch leave, it is the one that went on: that has more than a first version, or of equals the one that
    was written to last. An attempt that stalled may write its first version later than that.
    """
    return {vnode: there[-1] for vnode, there in by_node(operator).items()}


def by_node(operator: Archive) -> dict[int, list[tuple[str, dict[Version, float]]]]:
    """All instances of each virtual node as in `listed`, the one that it chooses last."""
    found: dict[int, list[tuple[str, dict[Version, float]]]] = {}
    for name, there in every(operator).items():
        found.setdefault(int(filenames.vnode_of(name)), []).append((name, there))
    return {vnode: sorted(found[vnode], key=lambda each: _went_on(each[1])) for vnode in sorted(found)}


def _went_on(versions: dict[Version, float]) -> tuple[bool, float]:
    """Whether an instance has more than its first version, and when the last one was written."""
    return max((version.number > 1, written) for version, written in versions.items())


def every(operator: Archive) -> dict[str, dict[Version, float]]:
    """All instances that there are, also several for one node, with their versions as in `listed`."""
    files: dict[str, dict[str, float]] = {}
    for name, written in operator.names().items():
        directory, _, file = name.partition("/")
        if filenames.is_instance(directory):
            files.setdefault(directory, {})[file] = written
    versions = {name: versions_in(files[name]) for name in sorted(files)}
    return {name: there for name, there in versions.items() if there}


def versions_in(files: dict[str, float]) -> dict[Version, float]:
    """The versions among the files of an instance, as in `listed`."""
    found = ((filenames.version_of(name), written) for name, written in files.items())
    there = ((version, written) for version, written in found if version is not None)
    return dict(sorted(there, key=lambda item: (item[0].number, item[1])))


def manifest_of(instance: Archive, name: str, version: Version) -> Manifest:
    """The manifest of a version of the instance of that name."""
    file = filenames.manifest(version)
    return manifests.parse(instance.read(file), Path(name, file))


def newest(operator: Archive) -> Iterator[tuple[int, Manifest]]:
    """The newest version of each virtual node of an operator."""
    for vnode, (name, versions) in listed(operator).items():
        for version in reversed(versions):
            with contextlib.suppress(CorruptState, FileNotFoundError):  # damaged, or collected since it was listed
                found = manifest_of(operator.within(name), name, version)
                yield vnode, found
                break
