"""The durable part that all stores share: rows by group in segments, versions by manifest.

An `ExtentLog` is opened at a version and is that version plus what has been appended since. `commit` makes the next
version: segments first, then the manifest that names them. Whatever no manifest names does not exist.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

import numpy as np

from forebay.errors import CorruptState, StateDirectoryError, VersionNotFound
from forebay.store import filenames
from forebay.store import manifest as manifests
from forebay.store.archive import Archive
from forebay.store.collection import collectable
from forebay.store.disk import LOCAL, Disk, is_there, reported
from forebay.store.extent_groups import Groups, joining
from forebay.store.extent_map import ExtentMap
from forebay.store.extent_table import ExtentTable, places_of
from forebay.store.filenames import Version
from forebay.store.identity import new_secret
from forebay.store.manifest import Counters, Manifest
from forebay.store.metrics import Metrics
from forebay.store.options import Options
from forebay.store.segment import SEGMENT_BYTES, Extent, Segment
from forebay.store.segments import Segments

_COLLECTED_EVERY = 8
"""An archive is listed, and rid of what no kept version names, once in so many versions."""

LEAST_COMPACTED = 1 << 20
"""Files that together are smaller than this (bytes) are never compacted."""

_MOST_SMALL = 128
"""So many files may be less than half full. There are more where each commit writes to another slice: the extents of a slice
are combined, and none of them has many."""

_log = logging.getLogger("forebay")

Read = TypeVar("Read")


class ExtentLog(Groups):
    """Rows by group, on disk.

    Several stores share the versions of one log if each keeps its groups in a `part` of its own.

    Parameters
    ----------
    directory : Path
        The instance's own directory; made when something is written.
    version : Version or None
        The version to open; None for a new, empty instance.
    options : Options
        Limits.
    archive : Archive, optional
        Where versions are safe, if not in the directory. Commits go there; what the directory lacks comes from there.
    disk : Disk
        What the directory is on.
    """

    def __init__(
        self, directory: Path, version: Version | None, options: Options, archive: Archive | None = None, disk: Disk = LOCAL
    ) -> None:
        self._directory = directory
        self._options = options
        self._archive, self._disk = archive, disk
        self.fetched_bytes, self.fetch_seconds = 0, 0.0
        self.base = base = self._read(version, manifests.read) if version else Manifest(secret=new_secret())
        fetch = self._fetch if archive else None
        super().__init__(ExtentMap(base.extents), Segments(directory, disk, base.version, base.segments, fetch))
        self._parts = {"": self._extents, **{name: ExtentMap(base.extents, name) for name in base.parts}}
        self._counters = dict(base.parts)
        self.zero_copy_bytes = self.uploaded_bytes = 0
        self.upload_seconds = 0.0

    def use(self, disk: Disk) -> None:
        """Work on another disk from now on: one on which the same directory is."""
        self._disk = self._segments.disk = disk

    @property
    def next(self) -> Version:
        """The version that the next commit makes."""
        return self._segments.next

    @property
    def parts(self) -> list[str]:
        """The names of the parts that there are."""
        return list(self._counters)

    def part(self, name: str) -> LogPart:
        """The part of a store that shares the versions of this log; a new one is empty."""
        self._counters.setdefault(name, Counters())
        return LogPart(self, self._parts.setdefault(name, ExtentMap(part=name)))

    def drop_part(self, name: str) -> None:
        """Forget a part with all its groups."""
        del self._parts[name], self._counters[name]

    @property
    def disk_bytes(self) -> int:
        """Size of the segments that have live extents."""
        return self._segments.bytes_of(self._live())

    def compact(self, max_space_amplification: float) -> bool:
        """Move the live extents of the emptiest segments, until the files are so few times as large as what is live.

        The youngest of many small files become one, too. Extents move from file to file inside the kernel, with their
        checksums. Gives whether anything moved.
        """
        self._segments.seal()
        live = self._live()
        segments = [self._segments.known[name] for name in live]
        sizes = {segment.name: segment.size for segment in segments}
        wanted = dict.fromkeys((*_emptiest(sizes, live, max_space_amplification), *_youngest(segments)))
        if not wanted:
            return False
        self.zero_copy_bytes += sum(live[name] for name in wanted)
        lying: dict[str, list[Extent]] = {name: [] for name in wanted}
        for extents in self._parts.values():
            for extent in extents.lying_in(wanted):
                lying[extent.segment].append(extent)
        for some in lying.values():
            moved = self._segments.move(some)
            for part in {extent.part for extent in some}:
                self._parts[part].moved({old: new for old, new in moved.items() if old.part == part})
        return True

    def commit(self, fired_until: int | None, counters: Counters, batch: int | None = None) -> Version:
        """Make what the log holds now the next version, durable when this returns; the log goes on from there."""
        segments = self._segments
        segments.seal()
        live = self._live().keys()
        kept, known = self._kept()
        lasting = {name: segment for name, segment in segments.known.items() if name in live}
        manifest = Manifest(
            version=segments.next,
            history=tuple(kept),
            stale=len({name for _, *segments in kept.values() for name in segments} - live) + (not known),
            fired_until=fired_until,
            counters=counters,
            batch=batch,
            secret=self.base.secret,
            segments=lasting,
            extents=self._table(tuple(lasting)),
            parts=dict(self._counters),
        )
        self._disk.make_directory(self._directory)
        if self.base.version is not None:
            self._disk.require(self._directory / filenames.manifest(self.base.version))
        segments.making(filenames.manifest(segments.next))
        manifests.write(self._directory, manifest, self._disk)
        self._secure(manifest)
        segments.made()
        for name in segments.known.keys() - live - self.base.segments.keys():
            self._disk.unlink(self._directory / name)  # written and read within this batch; nobody else knows them
        if known:
            self._collect({segments.next: _files(manifest), **kept})
        self.base, version = manifest, segments.next
        segments.go_on(version, manifest.segments)
        for extents in self._parts.values():
            extents.settle(manifest.extents)
        return version

    def snapshot(self, directory: Path) -> None:
        """Give the version committed last to another directory: hard links, or copies where those are not possible."""
        if self.base.version is None:
            raise VersionNotFound(f"{self._directory} has no version yet; commit one")
        self._disk.make_directory(directory)
        for name in self.base.segments:
            self._segments.reader(name)  # it is here from now on, if it was not
            self._disk.link(self._directory / name, directory / name)
        manifests.write(directory, replace(self.base, history=(), stale=0), self._disk)

    def count_into(self, metrics: Metrics) -> None:
        """Bring the counts of a store up to date with what the log has done."""
        metrics.zero_copy_bytes, metrics.disk_bytes = self.zero_copy_bytes, self.disk_bytes
        metrics.uploaded_bytes, metrics.upload_seconds = self.uploaded_bytes, self.upload_seconds
        metrics.fetched_bytes, metrics.fetch_seconds = self.fetched_bytes, self.fetch_seconds

    def close(self) -> None:
        """Let go of files, and remove those of what was not committed."""
        self._segments.abandon()
        self.fetched_bytes, self.fetch_seconds = 0, 0.0

    def _table(self, segments: Sequence[str]) -> ExtentTable:
        """The extents of all parts, which lie in these segments."""
        parts = ("", *self._counters)
        order, numbers = places_of(segments), places_of(parts)
        return ExtentTable(np.concatenate([self._parts[name].records(order, numbers) for name in parts]), segments, parts)

    def _live(self) -> Mapping[str, int]:
        """Size of the extents in each segment that has any."""
        live = Counter[str]()
        for extents in self._parts.values():
            live.update(extents.live)
        return live

    def _read(self, version: Version, read: Callable[[Path, Version], Read]) -> Read:
        """What is read of the manifest of a version, which is fetched if need be."""
        if self._archive is not None:
            with contextlib.suppress(VersionNotFound, CorruptState, StateDirectoryError):
                return read(self._directory, version)
            try:
                self._fetch(filenames.manifest(version))
            except VersionNotFound:
                if not is_there(self._directory / filenames.manifest(version)):
                    raise  # else it is told what is wrong with the one that is here
        return read(self._directory, version)

    def _kept(self) -> tuple[dict[Version, list[str]], bool]:
        """The versions that are kept beside a new one, with their files; and whether those of all are known.

        The version that was opened must be among them. Without it nothing would be known of what others need. An older one
        that is gone or damaged is kept no longer: it must not keep a whole one from going on. One that cannot be read now
        is kept, and nothing is collected until it can be.
        """
        if self.base.version is None:
            return {}, True
        if not is_there(self._directory / filenames.manifest(self.base.version)):
            raise StateDirectoryError(
                f"version {self.base.version} in {self._directory} was collected while this attempt was working on its "
                "successor, so a newer run of the query has overtaken it. This attempt ends; the newer run goes on."
            )
        found, known = {self.base.version: _files(self.base)}, True
        for version in self.base.history[: self._options.retain_versions - 2]:
            try:
                found[version] = self._read(version, manifests.files_of)
            except (VersionNotFound, CorruptState):
                continue
            except StateDirectoryError:
                found[version], known = [filenames.manifest(version)], False
        return found, known

    def _fetch(self, name: str) -> None:
        """Get a file from the archive; if it has none and cannot say why, what is read next says what is missing."""
        assert self._archive is not None
        began = time.perf_counter()
        with contextlib.suppress(FileNotFoundError):
            self.fetched_bytes += self._archive.download(name, self._directory)
        self.fetch_seconds += time.perf_counter() - began

    def _secure(self, manifest: Manifest) -> None:
        """Bring a version into the archive, the manifest last; only what is not there yet."""
        if self._archive is None or manifest.version is None:
            return
        missing = [name for name in manifest.segments if name not in self.base.segments]
        began, described = time.perf_counter(), filenames.manifest(manifest.version)
        self._archive.upload(self._directory, [*missing, described])
        self.upload_seconds += time.perf_counter() - began
        with reported("look for", self._directory):
            self.uploaded_bytes += sum((self._directory / name).stat().st_size for name in (*missing, described))

    def _collect(self, files: dict[Version, list[str]]) -> None:
        """Unlink what nobody needs any more: these are the versions that are kept, and their files."""
        with reported("list", self._directory), os.scandir(self._directory) as entries:
            here = [entry.name for entry in entries if not entry.is_dir()]
        for name in collectable(here, files, lambda version: manifests.files_of(self._directory, version)):
            self._disk.unlink(self._directory / name)
        archive = self._archive
        if archive is not None and self.next.number % _COLLECTED_EVERY == 0:

            def safe(version: Version) -> list[str]:
                name = filenames.manifest(version)
                return manifests.files_in(archive.read(name), Path(name))

            try:
                there = archive.names()
                newest = filenames.newest(there)
                if newest is not None and files.keys().isdisjoint(map(filenames.version_of, there)):
                    files[newest] = safe(newest)  # it is behind, and has nothing later
                archive.delete(collectable(there, files, safe, sparing=True))
            except (OSError, VersionNotFound, CorruptState) as error:
                # The version is safe: what is left over waits for the next time.
                _log.warning("what nobody needs any more cannot be deleted: %s", error)


def _emptiest(sizes: Mapping[str, int], live: Mapping[str, int], most: float) -> Iterator[str]:
    """The files to move live extents from, until files are no more than ``most`` times as large as what is live."""
    allowed, total = max(LEAST_COMPACTED, most * sum(live.values())), sum(sizes.values())
    for name in sorted(live, key=lambda name: live[name] / sizes[name]) if total > allowed else ():
        yield name
        total -= sizes[name] - live[name]
        if total <= allowed:
            return


def _youngest(segments: Collection[Segment]) -> Iterator[str]:
    """The youngest files of a schema if it has too many small ones: so many that no row is moved more than a few times."""
    if sum(segment.size < SEGMENT_BYTES // 2 for segment in segments) <= _MOST_SMALL:
        return
    by_schema: dict[int, list[Segment]] = {}
    for segment in sorted(segments, key=attrgetter("name")):
        by_schema.setdefault(segment.schema_crc, []).append(segment)
    for some in by_schema.values():
        if sum(segment.size < SEGMENT_BYTES // 2 for segment in some) > _MOST_SMALL:
            first = joining([segment.size for segment in some], SEGMENT_BYTES // 2)
            if len(some) - first > 1:
                yield from (segment.name for segment in some[first:])


def _files(manifest: Manifest) -> list[str]:
    assert manifest.version is not None
    return [filenames.manifest(manifest.version), *manifest.segments]


class LogPart(Groups):
    """The groups of one of several stores that share the versions of a log; made by `ExtentLog.part`.

    A store works on it as on a log of its own, but for what is the whole log's business: compaction of files, and commits.
    """

    def __init__(self, log: ExtentLog, extents: ExtentMap) -> None:
        super().__init__(extents, log._segments)
        self._log = log

    @property
    def base(self) -> Manifest:
        """The version that was opened or committed last, with the counters of this part."""
        base = self._log.base
        return replace(base, counters=base.parts.get(self._extents.part, Counters()))

    @property
    def disk_bytes(self) -> int:
        """Size of its extents: files are the whole log's."""
        return self.bytes

    def compact(self, max_space_amplification: float) -> bool:
        """Nothing moves: files are compacted by the whole log."""
        return False

    def commit(self, fired_until: int | None, counters: Counters, batch: int | None = None) -> Version:
        """Nothing is committed: have these counters in the next version of the whole log; that version."""
        self._log._counters[self._extents.part] = counters
        return self._log.next

    def snapshot(self, directory: Path) -> None:
        """Give the version committed last, of all parts, to another directory."""
        self._log.snapshot(directory)

    @property
    def fetch_seconds(self) -> float:
        """What the whole log has spent on getting files."""
        return self._log.fetch_seconds

    def count_into(self, metrics: Metrics) -> None:
        """Bring the counts of a store up to date, but for those of files, which are the whole log's."""

    def use(self, disk: Disk) -> None:
        """Nothing: the whole log has a disk."""

    def close(self) -> None:
        """Nothing: the whole log has files."""
