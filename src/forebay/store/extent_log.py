"""The durable part that all stores share: rows by group in segments, versions by manifest.

An `ExtentLog` is opened at a version and is that version plus what has been appended since. `commit` makes the next
version: segments first, then the manifest that names them. Whatever no manifest names does not exist. What a group is, is
the business of the store above: a slice of time for the aligned stores, a part of its files for the unaligned one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.errors import CorruptState, StateDirectoryError, VersionNotFound
from forebay.store import filenames, paging
from forebay.store import manifest as manifests
from forebay.store.archive import Archive
from forebay.store.collection import collectable
from forebay.store.disk import LOCAL, Disk
from forebay.store.filenames import Version
from forebay.store.identity import new_secret
from forebay.store.manifest import Counters, Manifest
from forebay.store.metrics import Metrics
from forebay.store.options import Options
from forebay.store.segment import Extent, SegmentWriter
from forebay.store.segment_reader import SegmentReader, Steps, side_by_side

Combine = Callable[[list[pa.RecordBatch]], pa.RecordBatch]

SEGMENT_BYTES = 4 << 20
"""A segment is closed at this size, so that what it holds fires, and can be unlinked, at about one time."""

MAX_EXTENTS = 8
"""A group with more extents than this has its youngest ones combined."""

_COLLECTED_EVERY = 8
"""An archive is listed, and rid of what no kept version names, once in so many versions."""

LEAST_COMPACTED = 1 << 20
"""Files that together are smaller than this (bytes) are never compacted."""


class Groups(ABC):
    """Rows by group: what a log and its parts have in common."""

    _part = ""

    def __init__(self, extents: dict[int, list[Extent]]) -> None:
        self._extents = extents

    @property
    @abstractmethod
    def _whole(self) -> ExtentLog:
        """The log that has the files."""

    @property
    def groups(self) -> npt.NDArray[np.int64]:
        """The groups that have rows, ascending."""
        return np.array(sorted(self._extents), dtype=np.int64)

    def bytes_of(self, groups: Iterable[int]) -> int:
        """Size on disk of the rows of ``groups``."""
        return sum(extent.length for extent in self.extents_of(groups))

    def rows_of(self, groups: Iterable[int]) -> int:
        """Number of rows in ``groups``."""
        return sum(extent.rows for extent in self.extents_of(groups))

    def extents_of(self, groups: Iterable[int]) -> list[Extent]:
        """Where the rows of ``groups`` lie, by group and in order of arrival."""
        return [extent for group in groups for extent in self._extents.get(group, ())]

    def schemas_of(self, groups: Iterable[int]) -> list[pa.Schema]:
        """The different columns that rows of some groups have, as forms of the query have written them."""
        return self._whole._schemas(self.extents_of(groups))

    def append(self, group: int, batch: pa.RecordBatch) -> None:
        """Write rows of a group as a new extent."""
        self._extents.setdefault(group, []).append(self._whole._write(group, batch, self._part))

    def read(self, group: int) -> Iterator[pa.RecordBatch]:
        """The rows of a group, extent by extent, in order of arrival."""
        yield from self._whole._read(self._extents.get(group, []))

    def read_ahead(self, groups: Iterable[int]) -> None:
        """Have the rows of groups read from disk side by side, which are all about to be read."""
        parts = [self._whole._reader_of(extent).part(extent) for extent in self.extents_of(groups)]
        if parts:
            paging.read_ahead(np.array(parts))

    def take(self, wanted: Iterable[tuple[int, npt.NDArray[np.int64]]]) -> list[pa.RecordBatch]:
        """Some rows of each of some groups that have one extent; where they are few, only what they are on is read."""
        return side_by_side(self._take(group, rows) for group, rows in wanted)

    def _take(self, group: int, rows: npt.NDArray[np.int64]) -> Steps:
        (extent,) = self._extents[group]
        return self._whole._reader_of(extent).take(extent, rows)

    def combine(self, group: int, combine: Combine, combine_bytes: int) -> None:
        """Keep the number of extents of a group logarithmic in the number of times it was appended to.

        From the youngest extent backwards, an extent joins as long as it is no larger than what has joined before it. So a
        row is rewritten at most once each time its extent doubles. Extents of ``combine_bytes`` and more stay as they are,
        and at most twice as much becomes one.
        """
        extents = self._extents.get(group, [])
        if len(extents) <= MAX_EXTENTS:
            return
        first = joining([extent.length for extent in extents], combine_bytes)
        if len(extents) - first > 1:
            batch = combine(list(self._whole._read(extents[first:])))
            del extents[first:]
            self.append(group, batch)

    def drop(self, groups: Iterable[int]) -> None:
        """Forget groups; their files go when no kept version names them."""
        for group in groups:
            self._extents.pop(group, None)


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
        self.base = base = self._manifest(version) if version else Manifest(secret=new_secret())
        self._segments = dict(base.segments)
        super().__init__({})
        self._parts: dict[str, dict[int, list[Extent]]] = {"": self._extents, **{name: {} for name in base.parts}}
        self._counters = dict(base.parts)
        for extent in base.extents:
            self._parts[extent.part].setdefault(extent.group, []).append(extent)
        self._readers: dict[str, SegmentReader] = {}
        self._writers: dict[pa.Schema, SegmentWriter] = {}
        self._next = Version.after(base.version)
        self._sequence = itertools.count()
        self._failed = False
        self.zero_copy_bytes = self.uploaded_bytes = 0
        self.upload_seconds = 0.0

    def use(self, disk: Disk) -> None:
        """Work on another disk from now on: one on which the same directory is."""
        self._disk = disk

    @property
    def next(self) -> Version:
        """The version that the next commit makes."""
        return self._next

    @property
    def parts(self) -> list[str]:
        """The names of the parts that there are."""
        return list(self._counters)

    def part(self, name: str) -> LogPart:
        """The part of a store that shares the versions of this log; a new one is empty."""
        self._counters.setdefault(name, Counters())
        return LogPart(self, name, self._parts.setdefault(name, {}))

    def drop_part(self, name: str) -> None:
        """Forget a part with all its groups."""
        del self._parts[name], self._counters[name]

    @property
    def _whole(self) -> ExtentLog:
        return self

    @property
    def disk_bytes(self) -> int:
        """Size of the segments that have live extents."""
        sizes = {name: segment.size for name, segment in self._segments.items()}
        sizes |= {writer.name: writer.size for writer in self._writers.values()}
        return sum(sizes[name] for name in {extent.segment for extent in self._live()})

    def compact(self, max_space_amplification: float) -> bool:
        """Move the live extents of the emptiest segments, until the files are so few times as large as what is live.

        Extents move from file to file inside the kernel, with their checksums. Gives whether anything moved.
        """
        self._seal()
        by_segment: dict[str, list[Extent]] = {}
        for extent in self._live():
            by_segment.setdefault(extent.segment, []).append(extent)
        live = {name: sum(extent.length for extent in extents) for name, extents in by_segment.items()}
        allowed = max(LEAST_COMPACTED, max_space_amplification * sum(live.values()))
        total = sum(self._segments[name].size for name in live)
        moved: dict[Extent, Extent] = {}
        for name in sorted(live, key=lambda name: live[name] / self._segments[name].size):
            if total <= allowed:
                break
            reader = self._reader(name)
            with self._whole_or_failed():
                for extent in by_segment[name]:
                    writer = self._writer(reader.schema)
                    moved[extent] = reader.move(extent, writer)
                    self._close_if_full(writer)
            total -= self._segments[name].size - live[name]
            self.zero_copy_bytes += live[name]
        if moved:
            for groups in self._parts.values():
                for group, extents in groups.items():
                    groups[group] = [moved.get(extent, extent) for extent in extents]
        return bool(moved)

    def commit(self, fired_until: int | None, counters: Counters, batch: int | None = None) -> Version:
        """Make what the log holds now the next version, durable when this returns; the log goes on from there."""
        self._seal()
        live = {extent.segment for extent in self._live()}
        kept = self._kept()
        manifest = Manifest(
            version=self._next,
            history=tuple(kept),
            stale=len({name for older in kept.values() for name in older.segments} - live),
            fired_until=fired_until,
            counters=counters,
            batch=batch,
            secret=self.base.secret,
            segments={name: segment for name, segment in self._segments.items() if name in live},
            extents=tuple(self._live()),
            parts=dict(self._counters),
        )
        self._disk.make_directory(self._directory)
        manifests.write(self._directory, manifest, self._disk)
        self._secure(manifest)
        for name in self._segments.keys() - live - self.base.segments.keys():
            self._disk.unlink(self._directory / name)  # written and read within this batch; nobody else knows them
        self._collect({self._next: manifest, **kept})
        self.base = manifest
        self._segments = dict(manifest.segments)
        self._readers = {name: reader for name, reader in self._readers.items() if name in live}
        version, self._next = self._next, Version.after(self._next)
        self._sequence = itertools.count()
        return version

    def snapshot(self, directory: Path) -> None:
        """Give the version committed last to another directory: hard links, or copies where those are not possible."""
        if self.base.version is None:
            raise VersionNotFound(f"{self._directory} has no version yet; commit one")
        self._disk.make_directory(directory)
        for name in self.base.segments:
            self._reader(name)  # it is here from now on, if it was not
            self._disk.link(self._directory / name, directory / name)
        manifests.write(directory, replace(self.base, history=(), stale=0), self._disk)

    def count_into(self, metrics: Metrics) -> None:
        """Bring the counts of a store up to date with what the log has done."""
        metrics.zero_copy_bytes, metrics.disk_bytes = self.zero_copy_bytes, self.disk_bytes
        metrics.uploaded_bytes, metrics.upload_seconds = self.uploaded_bytes, self.upload_seconds
        metrics.fetched_bytes, metrics.fetch_seconds = self.fetched_bytes, self.fetch_seconds

    def close(self) -> None:
        """Let go of files; what was not committed is left for a later `commit` to collect."""
        for writer in self._writers.values():
            writer.abandon()
        self._writers.clear()
        self._readers.clear()
        self.fetched_bytes, self.fetch_seconds = 0, 0.0

    @contextlib.contextmanager
    def _whole_or_failed(self) -> Iterator[None]:
        """After a write that went wrong nothing more is written: what this log holds is not what its files have."""
        if self._failed:
            raise StateDirectoryError(
                f"a write to {self._directory} failed before, so this store can only be closed. The last commit, version "
                f"{self.base.version}, is intact: open it again."
            )
        try:
            yield
        except OSError:
            self._failed = True
            raise

    def _live(self) -> Iterator[Extent]:
        for groups in self._parts.values():
            for group in sorted(groups):
                yield from groups[group]

    def _write(self, group: int, batch: pa.RecordBatch, part: str) -> Extent:
        with self._whole_or_failed():
            writer = self._writer(batch.schema)
            extent = writer.append(group, batch, part)
            self._close_if_full(writer)
        return extent

    def _schemas(self, extents: Iterable[Extent]) -> list[pa.Schema]:
        segments = {self._segments[extent.segment].schema_crc: extent.segment for extent in extents}
        return [self._reader(name).schema for name in segments.values()]

    def _writer(self, schema: pa.Schema) -> SegmentWriter:
        """The segment that rows of a schema are written to."""
        writer = self._writers.get(schema)
        if writer is None:
            self._disk.make_directory(self._directory)
            name = filenames.segment(self._next, next(self._sequence))
            writer = self._writers[schema] = SegmentWriter(self._directory, name, schema, self._disk)
        return writer

    def _close_if_full(self, writer: SegmentWriter) -> None:
        if writer.size >= SEGMENT_BYTES:
            self._close(writer)

    def _close(self, writer: SegmentWriter) -> None:
        del self._writers[writer.schema]
        segment = writer.close()
        self._segments[segment.name] = segment

    def _read(self, extents: list[Extent]) -> Iterator[pa.RecordBatch]:
        for extent in extents:
            yield self._reader_of(extent).read(extent)

    def _reader_of(self, extent: Extent) -> SegmentReader:
        if extent.segment not in self._segments:
            self._seal()
        return self._reader(extent.segment)

    def _seal(self) -> None:
        with self._whole_or_failed():
            for writer in list(self._writers.values()):
                self._close(writer)

    def _reader(self, name: str) -> SegmentReader:
        reader = self._readers.get(name)
        if reader is None:
            fetch = functools.partial(self._fetch, name) if self._archive else None
            reader = self._readers[name] = SegmentReader(self._directory, self._segments[name], fetch)
        return reader

    def _manifest(self, version: Version) -> Manifest:
        if self._archive is None:
            return manifests.read(self._directory, version)
        try:
            return manifests.read(self._directory, version)
        except (VersionNotFound, CorruptState):
            self._fetch(filenames.manifest(version))
        return manifests.read(self._directory, version)

    def _kept(self) -> dict[Version, Manifest]:
        """The manifests of the versions that are kept beside a new one, but for those that were collected while fewer were.

        The version that was opened must be among them. Without it nothing would be known of what others need.
        """
        if self.base.version is None:
            return {}
        try:
            found = {self.base.version: manifests.read(self._directory, self.base.version)}
        except VersionNotFound as error:
            raise StateDirectoryError(
                f"version {self.base.version} in {self._directory} was collected while this attempt was working on its "
                "successor, so a newer run of the query has overtaken it. This attempt ends; the newer run goes on."
            ) from error
        for version in self.base.history[: self._options.retain_versions - 2]:
            with contextlib.suppress(VersionNotFound):
                found[version] = self._manifest(version)
        return found

    def _fetch(self, name: str) -> None:
        """Get a file from the archive; if the archive has none, what is read next says what is missing."""
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
        self.uploaded_bytes += sum((self._directory / name).stat().st_size for name in (*missing, described))

    def _collect(self, kept: dict[Version, Manifest]) -> None:
        """Unlink what nobody needs any more."""
        files = {version: _files(manifest) for version, manifest in kept.items()}
        here = [path.name for path in self._directory.iterdir()]
        for name in collectable(here, files, lambda version: _files(manifests.read(self._directory, version))):
            self._disk.unlink(self._directory / name)
        archive = self._archive
        if archive is not None and self._next.number % _COLLECTED_EVERY == 0:

            def safe(version: Version) -> list[str]:
                name = filenames.manifest(version)
                return _files(manifests.parse(archive.read(name), Path(name)))

            archive.delete(collectable(archive.names(), files, safe))


def _files(manifest: Manifest) -> list[str]:
    assert manifest.version is not None
    return [filenames.manifest(manifest.version), *manifest.segments]


class LogPart(Groups):
    """The groups of one of several stores that share the versions of a log; made by `ExtentLog.part`.

    A store works on it as on a log of its own, but for what is the whole log's business: compaction of files, and commits.
    """

    def __init__(self, log: ExtentLog, name: str, extents: dict[int, list[Extent]]) -> None:
        super().__init__(extents)
        self._log, self._part = log, name

    @property
    def _whole(self) -> ExtentLog:
        return self._log

    @property
    def base(self) -> Manifest:
        """The version that was opened or committed last, with the counters of this part."""
        base = self._log.base
        return replace(base, counters=base.parts.get(self._part, Counters()))

    @property
    def disk_bytes(self) -> int:
        """Size of its extents: files are the whole log's."""
        return self.bytes_of(self._extents)

    def compact(self, max_space_amplification: float) -> bool:
        """Nothing moves: files are compacted by the whole log."""
        return False

    def commit(self, fired_until: int | None, counters: Counters, batch: int | None = None) -> Version:
        """Have these counters in the next version of the whole log; that version."""
        self._log._counters[self._part] = counters
        return self._log.next

    def snapshot(self, directory: Path) -> None:
        """Give the version committed last, of all parts, to another directory."""
        self._log.snapshot(directory)

    def count_into(self, metrics: Metrics) -> None:
        """Bring the counts of a store up to date, but for those of files, which are the whole log's."""

    def use(self, disk: Disk) -> None:
        """Nothing: the whole log has a disk."""

    def close(self) -> None:
        """Nothing: the whole log has files."""


def joining(sizes: list[int], largest: int) -> int:
    """Where the youngest items begin that become one: backwards, as long as one is no larger than those after it together.

    None is larger than ``largest``, and all together are not larger than twice that.

    Examples
    --------
    >>> joining([90, 40, 20, 10, 10], 100)
    1
    >>> joining([50, 50, 50, 50, 50], 60)
    3
    """
    first, size = len(sizes) - 1, sizes[-1]
    while first > 0 and sizes[first - 1] <= min(size, largest, 2 * largest - size):
        first -= 1
        size += sizes[first]
    return first
