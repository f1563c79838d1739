"""The segments of a store instance: those that a version has, and those that are being written since."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from forebay.errors import StateDirectoryError
from forebay.store import filenames
from forebay.store.disk import Disk
from forebay.store.filenames import Version
from forebay.store.manifest import KEY_INDEXES
from forebay.store.segment import SEGMENT_BYTES, Extent, Segment, SegmentWriter
from forebay.store.segment_reader import SegmentReader


class Segments:
    """Writes rows to segments, and reads them from there.

    Parameters
    ----------
    directory : Path
        The instance's own directory; made when something is written.
    disk : Disk
        What it is on.
    version : Version or None
        The version that has been opened; None for a new instance.
    known : mapping
        The segments of that version by name.
    fetch : callable, optional
        Puts a file of this name into its place when it is missing or damaged.
    """

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        version: Version | None,
        known: Mapping[str, Segment],
        fetch: Callable[[str], None] | None,
    ) -> None:
        self._directory, self._fetch = directory, fetch
        self.disk = disk
        self._readers: dict[str, SegmentReader] = {}
        self._writers: dict[SegmentWriter, bool] = {}
        """Each with whether it has what is of key indexes. That stays for longer than rows do, and is in other files."""
        self._failed = False
        self.go_on(version, known)

    def go_on(self, version: Version | None, known: Mapping[str, Segment]) -> None:
        """A version has been opened or committed, which has these segments."""
        self._version, self.next = version, Version.after(version)
        """The version that has been opened or committed last, and the one that the next commit makes."""
        self.known = dict(known)
        self._made: list[str] = []
        self._readers = {name: reader for name, reader in self._readers.items() if name in known}
        self._names = map(functools.partial(filenames.segment, self.next), itertools.count())

    # writing ---------------------------------------------------------------------------------------------------------

    def write(self, group: int, batch: pa.RecordBatch, part: str) -> Extent:
        """Write rows of a group as a new extent."""
        with self._whole_or_failed():
            writer = self._writer(batch.schema, of_index=group >= KEY_INDEXES)
            extent = writer.append(group, batch, part)
            self._close_if_full(writer)
        return extent

    def move(self, extents: Iterable[Extent]) -> dict[Extent, Extent]:
        """Write extents again, by copies inside the kernel; where each of them is then."""
        moved = {}
        for extent in extents:
            reader = self.reader_of(extent)
            with self._whole_or_failed():
                writer = self._writer(reader.schema_of(extent), of_index=extent.group >= KEY_INDEXES)
                moved[extent] = reader.move(extent, writer)
                self._close_if_full(writer)
        return moved

    def seal(self) -> None:
        """Close the segments that are being written."""
        with self._whole_or_failed():
            for writer in list(self._writers):
                self._close(writer)

    def making(self, name: str) -> None:
        """A file of this name has been made for the next version, and goes if that is not made."""
        self._made.append(name)

    def made(self) -> None:
        """The next version is made, and safe: its files stay."""
        self._made.clear()

    def abandon(self) -> None:
        """Let go of all files. Those of a version that was not made are removed, or a disk that is full would stay full.

        A manifest goes before what it names: nobody finds one that names what is gone.
        """
        for writer in self._writers:
            writer.abandon()
        self._writers.clear()
        self._readers.clear()
        self._failed = self._failed or bool(self._made)  # what is known here is more than there is
        with contextlib.suppress(StateDirectoryError):  # what is left over a later commit collects
            while self._made:
                self.disk.unlink(self._directory / self._made.pop())

    # reading ---------------------------------------------------------------------------------------------------------

    def read(self, extents: Iterable[Extent]) -> Iterator[pa.RecordBatch]:
        """The rows of extents."""
        for extent in extents:
            yield self.reader_of(extent).read(extent)

    def reader_of(self, extent: Extent) -> SegmentReader:
        """What reads the segment of an extent."""
        if extent.segment not in self.known:
            self.seal()
        return self.reader(extent.segment)

    def reader(self, name: str) -> SegmentReader:
        """What reads a segment; its file is here from then on, if it was not."""
        reader = self._readers.get(name)
        if reader is None:
            fetch = functools.partial(self._fetch, name) if self._fetch else None
            self.disk.flush(self._directory / name)
            reader = self._readers[name] = SegmentReader(self._directory, self.known[name], fetch)
        return reader

    def schemas(self, extents: Iterable[Extent]) -> list[pa.Schema]:
        """The different columns that the rows of extents have."""
        found = {self.known[extent.segment].header_of(extent).crc: extent for extent in extents}
        return [self.reader_of(extent).schema_of(extent) for extent in found.values()]

    def bytes_of(self, names: Collection[str]) -> int:
        """Size of the files of some segments."""
        written = {writer.name: writer.size for writer in self._writers}
        return sum(written[name] if name in written else self.known[name].size for name in names)

    # private ---------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _whole_or_failed(self) -> Iterator[None]:
        """After a write that went wrong nothing more is written: what is known here is not what the files have."""
        if self._failed:
            raise StateDirectoryError(
                f"a write to {self._directory} failed before, so this store can only be closed. The last commit, version "
                f"{self._version}, is intact: open it again."
            )
        try:
            yield
        except OSError:
            self._failed = True
            raise

    def _writer(self, schema: pa.Schema, *, of_index: bool) -> SegmentWriter:
        """The segment that rows of a schema are written to: one that has such, or else a small one."""
        alike = [writer for writer, its in self._writers.items() if its == of_index]
        writer = next((each for each in alike if each.schema == schema), None)
        writer = writer or next((each for each in alike if each.small), None)
        if writer is None:
            self.disk.make_directory(self._directory)
            name = next(self._names)
            self.making(name)
            writer = SegmentWriter(self._directory, name, schema, self.disk)
            self._writers[writer] = of_index
        writer.turn_to(schema)
        return writer

    def _close_if_full(self, writer: SegmentWriter) -> None:
        if writer.size >= SEGMENT_BYTES:
            self._close(writer)

    def _close(self, writer: SegmentWriter) -> None:
        del self._writers[writer]
        segment = writer.close()
        self.known[segment.name] = segment
