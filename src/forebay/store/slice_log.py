"""The durable part that the aligned stores share: rows by slice in segments, versions by manifest.

A `SliceLog` is opened at a version and is that version plus what has been appended since. `commit` makes the next
version: segments first, then the manifest that names them. Whatever no manifest names does not exist.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from forebay.errors import StateDirectoryError, VersionNotFound
from forebay.store import filenames, files
from forebay.store import manifest as manifests
from forebay.store.filenames import Version
from forebay.store.manifest import Counters, Manifest
from forebay.store.segment import Extent, Segment, SegmentReader, SegmentWriter
from forebay.windows import Times

Combine = Callable[[list[pa.RecordBatch]], pa.RecordBatch]

SEGMENT_BYTES = 4 << 20
"""A segment is closed at this size, so that what it holds fires, and can be unlinked, at about one time."""

MAX_EXTENTS = 8
"""A slice with more extents than this has its youngest ones combined."""


@dataclass(frozen=True)
class Options:
    """Limits of one store instance.

    Parameters
    ----------
    memory_bytes : int
        What buffered writes, or one loaded partition of a window, may take.
    retain_versions : int
        How many of the newest versions stay readable; at least 2, the committed one and the one being written.
    """

    memory_bytes: int = 256 << 20
    retain_versions: int = 2

    @property
    def write_buffer_bytes(self) -> int:
        return self.memory_bytes // 4

    def __post_init__(self) -> None:
        if self.memory_bytes < 1 << 20:
            raise ValueError(f"memory_bytes is {self.memory_bytes}; a store needs at least 1 MiB")
        if self.retain_versions < 2:
            raise ValueError(f"retain_versions is {self.retain_versions}; at least 2 are needed to recover")


class SliceLog:
    """Rows by slice, on disk.

    Parameters
    ----------
    directory : Path
        The instance's own directory; made when something is written.
    version : Version or None
        The version to open; None for a new, empty instance.
    options : Options
        Limits.
    combine : callable
        Makes one record batch of several of one slice, given in order of arrival.
    combine_bytes : int
        Extents of this size and more are left as they are.
    """

    def __init__(
        self, directory: Path, version: Version | None, options: Options, combine: Combine, combine_bytes: int
    ) -> None:
        self._directory = directory
        self._options = options
        self._combine = combine
        self._combine_bytes = combine_bytes
        self.base = base = manifests.read(directory, version) if version else Manifest()
        self._segments = dict(base.segments)
        self._extents: dict[int, list[Extent]] = {}
        for extent in base.extents:
            self._extents.setdefault(extent.slice, []).append(extent)
        self._readers: dict[str, SegmentReader] = {}
        self._next = Version.after(base.version)
        self._sequence = itertools.count()
        self._writer: SegmentWriter | None = None

    @property
    def slices(self) -> Times:
        """Starts of the slices that have rows, ascending."""
        return np.array(sorted(self._extents), dtype=np.int64)

    def bytes_of(self, slices: Iterable[int]) -> int:
        """Size on disk of the rows of ``slices``."""
        return sum(extent.length for start in slices for extent in self._extents.get(start, ()))

    def append(self, start: int, batch: pa.RecordBatch) -> None:
        """Write rows of the slice that begins at ``start`` as a new extent."""
        if self._writer is not None and not self._writer.schema.equals(batch.schema):
            self._seal()
        if self._writer is None:
            files.make_directory(self._directory)
            name = filenames.segment(self._next, next(self._sequence))
            self._writer = SegmentWriter(self._directory, name, batch.schema)
        self._extents.setdefault(start, []).append(self._writer.append(start, batch))
        if self._writer.size >= SEGMENT_BYTES:
            self._seal()

    def read(self, start: int) -> Iterator[pa.RecordBatch]:
        """The rows of a slice, extent by extent, in order of arrival."""
        self._seal()
        for extent in self._extents.get(start, ()):
            yield self._read(extent)

    def combine(self, start: int) -> None:
        """Keep the number of extents of a slice logarithmic in the number of times it was appended to.

        From the youngest extent backwards, an extent joins the group as long as it is no larger than what has joined
        before it. So a row is rewritten at most once each time its extent doubles.
        """
        extents = self._extents.get(start, [])
        if len(extents) <= MAX_EXTENTS:
            return
        first, size = len(extents) - 1, extents[-1].length
        while first > 0 and extents[first - 1].length <= min(size, self._combine_bytes):
            first -= 1
            size += extents[first].length
        if len(extents) - first > 1:
            self._seal()
            batch = self._combine([self._read(extent) for extent in extents[first:]])
            del extents[first:]
            self.append(start, batch)

    def drop(self, slices: Iterable[int]) -> None:
        """Forget slices whose last window has fired; their files go when no kept version names them."""
        for start in slices:
            self._extents.pop(start, None)

    def commit(self, fired_until: int | None, counters: Counters) -> Version:
        """Make what the log holds now the next version, durable when this returns."""
        self._seal()
        live = {extent.segment for extents in self._extents.values() for extent in extents}
        history = ((self.base.version,) if self.base.version else ()) + self.base.history
        kept = _existing(self._directory, history[: self._options.retain_versions - 1])
        if self.base.version and self.base.version not in kept:
            raise StateDirectoryError(
                f"version {self.base.version} in {self._directory} was collected while this attempt was working on its "
                "successor, so a newer run of the query has overtaken it. This attempt ends; the newer run goes on."
            )
        manifest = Manifest(
            version=self._next,
            history=tuple(kept),
            stale=len({name for older in kept.values() for name in older.segments} - live),
            fired_until=fired_until,
            counters=counters,
            segments={name: segment for name, segment in self._segments.items() if name in live},
            extents=tuple(extent for start in sorted(self._extents) for extent in self._extents[start]),
        )
        files.make_directory(self._directory)
        manifests.write(self._directory, manifest)
        for name in self._segments.keys() - live - self.base.segments.keys():
            (self._directory / name).unlink(missing_ok=True)  # written and read within this batch; nobody else knows them
        _collect(self._directory, {self._next: manifest, **kept})
        return self._next

    def close(self) -> None:
        """Let go of files; what was not committed is left for a later `commit` to collect."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        self._readers.clear()

    def _seal(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            segment: Segment = writer.close()
            self._segments[segment.name] = segment

    def _read(self, extent: Extent) -> pa.RecordBatch:
        reader = self._readers.get(extent.segment)
        if reader is None:
            reader = self._readers[extent.segment] = SegmentReader(self._directory, self._segments[extent.segment])
        return reader.read(extent)


def _existing(directory: Path, versions: Iterable[Version]) -> dict[Version, Manifest]:
    """The manifests of versions, but for those that were collected while fewer were kept."""
    found = {}
    for version in versions:
        with contextlib.suppress(VersionNotFound):
            found[version] = manifests.read(directory, version)
    return found


def _collect(directory: Path, kept: dict[Version, Manifest]) -> None:
    """Unlink what no kept version names.

    Files that are numbered after the oldest kept version may belong to another attempt that is still running, and stay.
    """
    named = {filenames.manifest(version) for version in kept}
    named.update(name for manifest in kept.values() for name in manifest.segments)
    oldest = min(version.number for version in kept)
    for path in directory.iterdir():
        number = filenames.number_of(path.name)
        if number is not None and number <= oldest and path.name not in named:
            path.unlink(missing_ok=True)
