"""What a host holds of the state of all hosts: one directory per store instance, with files that never change.

The layout is that of the stores' own directories: ``<query>/<layout>/<instance>/<file>``. Files of versions that were
committed on this host are hard links; those of other hosts are replicas.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from isal.isal_zlib import crc32

from forebay.errors import CorruptState, ReplicationError, StateDirectoryError, VersionNotFound
from forebay.store import filenames
from forebay.store import manifest as manifests
from forebay.store.collection import collectable
from forebay.store.disk import LOCAL, PRIVATE_FILE, reported
from forebay.store.filenames import Version
from forebay.store.manifest import Manifest

KEPT_SECONDS = 24 * 3600.0
"""What stores and agents have left on a host is removed when it was not used for so long."""

LOCK = "lock"
"""A file in the directory of a query, which every process that holds something of the query has locked."""


class Holdings:
    """The files that a host holds.

    No file ever changes, and one gets its name when it is whole. So what manifests name, and whether a file has the right
    size, is found out once and remembered. Whether files are here is not: others remove some, too, so each question begins
    with a listing of the directory (`names`), which is what arguments named ``here`` are.

    Parameters
    ----------
    root : Path
        The directory that has them; made when the first one comes.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._locks: dict[str, int] = {}
        self._locking = threading.Lock()
        self._files: dict[str, dict[Version, dict[str, int]]] = {}
        self._sized: dict[str, set[str]] = {}

    def hold(self, query: str) -> None:
        """Have nobody sweep what there is of a query, as long as this process lives."""
        with self._locking:
            if query not in self._locks:
                LOCAL.make_directory(self.root / query)
                descriptor = self._lock_file(query)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_SH)
                except OSError:
                    os.close(descriptor)
                    raise
                self._locks[query] = descriptor

    def leave(self, query: str) -> None:
        """Leave what there is of a query to whoever sweeps."""
        with self._locking:
            descriptor = self._locks.pop(query, None)
        if descriptor is not None:
            os.close(descriptor)
        for known in (self._files, self._sized):
            for instance in [each for each in [*known] if each.startswith(f"{query}/")]:
                known.pop(instance, None)

    def directory(self, instance: str) -> Path:
        """The directory of a store instance; `ReplicationError` for a text that is no instance's path."""
        if not _is_instance(instance):
            raise ReplicationError(f"{instance!r} is not the path of a store instance; nothing was taken")
        return self.root / instance

    def path(self, instance: str, name: str) -> Path:
        """The path of a file; `ReplicationError` for a name that no store gives."""
        if not filenames.is_state(name):
            raise ReplicationError(f"{name!r} is not the name of a state file; nothing was taken")
        return self.directory(instance) / name

    def instances(self) -> list[str]:
        """All store instances of which there is something."""
        found = (str(path.relative_to(self.root)) for path in self.root.glob("*/*/*/"))
        return [instance for instance in found if _is_instance(instance)]

    def names(self, instance: str) -> set[str]:
        """The files of an instance that are here."""
        try:
            return set(os.listdir(self.directory(instance)))  # noqa: PTH208 - paths would cost more than the listing
        except FileNotFoundError:
            return set()

    def link(self, instance: str, directory: Path, names: Sequence[str]) -> None:
        """Take files of a directory of this host's, under further names; those that it does not have are left out."""
        self._make(instance)
        for name in names:
            if (directory / name).exists():
                LOCAL.link(directory / name, self.path(instance, name))

    def give(self, instance: str, name: str, directory: Path) -> bool:
        """Put a file into a directory of this host's, by a hard link; whether there is such a file.

        One that the directory has already, under its own name, is the same one: if a store asks for it again it is damaged,
        and goes from here, too.
        """
        path, target = self.path(instance, name), directory / name
        with contextlib.suppress(OSError):  # it is there already, the directory is not, or there is no such file
            os.link(path, target)
            return True
        with contextlib.suppress(FileNotFoundError):
            if target.samefile(path):
                path.unlink()
                return False
        if not path.exists():
            return False
        LOCAL.make_directory(directory)
        temporary = target.with_name(filenames.temporary(name))
        with contextlib.suppress(FileNotFoundError):
            LOCAL.link(path, temporary)
            LOCAL.rename(temporary, target)
            return True
        return False

    def read(self, instance: str, version: Version) -> Manifest:
        """The manifest of a version; `VersionNotFound` or `CorruptState` if it cannot be read."""
        return manifests.read(self.directory(instance), version)

    def remember(self, instance: str, made: Manifest) -> dict[str, int]:
        """What `files_of` gives for a version whose manifest was read; it is not read again."""
        assert made.version is not None
        manifest = filenames.manifest(made.version)
        files = {name: segment.size for name, segment in made.segments.items()}
        files[manifest] = self._size(instance, manifest)
        if files[manifest] < 0:
            raise VersionNotFound(f"{manifest} of {instance} is not held here any more")
        self._files.setdefault(instance, {})[made.version] = files
        return files

    def files_of(self, instance: str, version: Version) -> dict[str, int]:
        """The files of a version and their sizes in bytes, the manifest last; errors like `read` if that is not here."""
        known = self._files.get(instance, {}).get(version)
        if known is not None and self.path(instance, filenames.manifest(version)).exists():
            return known
        return self.remember(instance, self.read(instance, version))

    @contextlib.contextmanager
    def receiving(self, instance: str, name: str, size: int | None = None) -> Iterator[Incoming]:
        """A file that comes in pieces; it is there when the block ends, whole or not at all.

        `ReplicationError` if it came whole and does not have the size that it should.
        """
        path = self.path(instance, name)
        self._make(instance)
        temporary = path.with_name(filenames.temporary(name))
        incoming = Incoming(LOCAL.create(temporary), temporary)
        try:
            try:
                yield incoming
            finally:
                os.close(incoming.descriptor)
            if incoming.whole and size not in (None, incoming.size):
                raise ReplicationError(f"{name} of {instance} came with {incoming.size} bytes; it has {size}")
            if incoming.whole:
                LOCAL.rename(temporary, path)
        finally:
            LOCAL.unlink(temporary)

    def lacking(self, instance: str, files: Mapping[str, int], here: AbstractSet[str]) -> dict[str, int]:
        """Those of some files, names and sizes in bytes, that are not here, or not whole."""
        sized = self._sized.setdefault(instance, set())
        sized &= here  # one that has gone and come back is another file
        sized.update(name for name in files.keys() & here - sized if self._size(instance, name) == files[name])
        whole = here & sized
        return {name: size for name, size in files.items() if name not in whole}

    def holds(self, instance: str, version: Version, here: AbstractSet[str]) -> bool:
        """Whether a version is here with all its files."""
        try:
            return not self.lacking(instance, self.files_of(instance, version), here)
        except (VersionNotFound, CorruptState):
            return False

    def whole(self, instance: str) -> list[Version]:
        """The versions that are here with all their files, oldest first."""
        here = self.names(instance)
        versions = [version for version in map(filenames.version_of, here) if version is not None]
        return [each for each in sorted(versions, key=lambda each: each.number) if self.holds(instance, each, here)]

    def collect(self, instance: str, versions: Sequence[Version], here: AbstractSet[str]) -> None:
        """Remove what nobody needs any more, where these versions are kept.

        Nothing is removed while one of those is not here: what it names is not known then.
        """
        kept = {}
        for version in versions:
            with contextlib.suppress(VersionNotFound, CorruptState):
                kept[version] = self.files_of(instance, version)
        named = set[str]().union(*kept.values())
        if len(kept) == len(versions):
            for name in collectable(here, kept, lambda version: self.files_of(instance, version), sparing=True):
                if not name.startswith("."):  # those are on their way
                    LOCAL.unlink(self.directory(instance) / name)
        self._files[instance] = kept
        self._sized[instance] = self._sized.get(instance, set()) & named

    def remove(self, instance: str) -> None:
        """Hold nothing of an instance any more."""
        shutil.rmtree(self.put_aside(instance), ignore_errors=True)

    def put_aside(self, instance: str) -> Path:
        """Hold nothing of an instance any more: at once, so that nobody takes a part of it for all.

        Gives the directory of what is to be removed; a sweep removes it, too.
        """
        directory = self.directory(instance)
        aside = directory.with_name(filenames.temporary(directory.name))
        with contextlib.suppress(OSError):
            directory.rename(aside)
        self._files.pop(instance, None)
        self._sized.pop(instance, None)
        return aside

    def sweep(self) -> None:
        """Remove the directories of instances that were not used for `KEPT_SECONDS`, and files that never became whole.

        How long ago that was is told by the host's clock, which may have jumped. So the directories of a query that some
        process holds stay; of its files only one that is on its way could go, and that one is sent again.
        """
        for removed in self.root.glob("*/*/.*.tmp/"):
            shutil.rmtree(removed, ignore_errors=True)
        now = time.time()
        for query, instances in itertools.groupby(sorted(self.instances()), lambda instance: instance.partition("/")[0]):
            with self._unless_held(query) as unheld:
                for instance in instances:
                    directory = self.directory(instance)
                    with contextlib.suppress(FileNotFoundError):  # another process sweeps, too
                        for temporary in directory.glob(".*.tmp"):
                            if now - temporary.stat().st_mtime > KEPT_SECONDS:
                                LOCAL.unlink(temporary)
                        if unheld and now - directory.stat().st_mtime > KEPT_SECONDS:
                            self.remove(instance)

    def use(self, instance: str) -> None:
        """Begin to use what there is of an instance: it is not swept from now on. Waits for a sweep that is going on."""
        directory = self.directory(instance)
        with reported("use", directory), contextlib.suppress(FileNotFoundError):  # there is nothing to sweep
            if time.time() - directory.stat().st_mtime > KEPT_SECONDS / 2:
                descriptor = self._lock_file(instance.partition("/")[0])
                try:
                    with contextlib.suppress(OSError):  # where there are no locks nobody sweeps
                        fcntl.flock(descriptor, fcntl.LOCK_SH)
                    os.utime(directory)
                finally:
                    os.close(descriptor)

    def touch(self, instances: Iterable[str]) -> None:
        """Say that instances are held, whether anything is written or not."""
        for instance in instances:
            with contextlib.suppress(OSError):
                os.utime(self.directory(instance))

    def _make(self, instance: str) -> None:
        """Have the directory of an instance there, to be filled: its query is held from now on."""
        directory = self.directory(instance)
        self.hold(instance.partition("/")[0])
        LOCAL.make_directory(directory)

    @contextlib.contextmanager
    def _unless_held(self, query: str) -> Iterator[bool]:
        """Whether no process holds a query; then none begins to before the block has ended."""
        try:
            descriptor = self._lock_file(query)
        except StateDirectoryError:  # it cannot be told
            yield False
            return
        try:
            yield _is_free(descriptor)
        finally:
            os.close(descriptor)

    def _lock_file(self, query: str) -> int:
        path = self.root / query / LOCK
        with reported("open", path):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)

    def _size(self, instance: str, name: str) -> int:
        try:
            return self.path(instance, name).stat().st_size
        except FileNotFoundError:
            return -1


class Incoming:
    """A file on its way in."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor, self._path, self._crc, self.whole, self.size = descriptor, path, 0, False, 0

    def write(self, data: memoryview) -> None:
        self._crc, self.size = crc32(data, self._crc), self.size + len(data)
        LOCAL.write(self.descriptor, data, self._path)

    def finish(self, crc: int) -> None:
        """Say that all has come; `ReplicationError` if it is not what was sent."""
        if crc != self._crc:
            raise ReplicationError(f"{self._path.name} came damaged: its checksum is {self._crc:08x}, not {crc:08x}")
        self.whole = True


def _is_free(descriptor: int) -> bool:
    """Whether nobody has locked a file; then it is locked until the descriptor is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_instance(path: str) -> bool:
    query, _, rest = path.partition("/")
    layout, _, name = rest.partition("/")
    return filenames.is_query(query) and filenames.is_layout(layout) and filenames.is_instance(name)
