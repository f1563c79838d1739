"""Segments: immutable files of rows. A segment is one Arrow IPC stream; an *extent* is one record batch in it."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from isal.isal_zlib import crc32

from forebay.errors import CorruptState, StateDirectoryError
from forebay.store.disk import LOCAL, Disk, reported

_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


@dataclass(frozen=True)
class Segment:
    """A segment file as a manifest names it: total size, and the size and CRC-32 of its schema, in bytes."""

    name: str
    size: int
    schema_size: int
    schema_crc: int


@dataclass(frozen=True)
class Extent:
    """Rows of one group: where their record batch lies (bytes), its CRC-32, and how many rows it has.

    ``part`` names the part of the log that the group is in; "" is the log itself.
    """

    group: int
    segment: str
    offset: int
    length: int
    crc: int
    rows: int
    part: str = ""


class SegmentWriter:
    """Writes one segment. `close` makes it durable; until a manifest names it, no reader knows it.

    Parameters
    ----------
    directory : Path
        Where the file is created.
    name : str
        Its name; a file of that name must not exist.
    schema : pyarrow.Schema
        The schema of every batch.
    disk : Disk
        What it is written to.
    """

    def __init__(self, directory: Path, name: str, schema: pa.Schema, disk: Disk = LOCAL) -> None:
        self._path, self._disk = directory / name, disk
        self.name = name
        self.schema = schema
        header = schema.serialize()
        self._schema_size = header.size
        self._schema_crc = crc32(header)
        self._descriptor = disk.create(self._path)
        self.size = 0
        try:
            self._write(header)
        except StateDirectoryError:
            self.abandon()
            raise

    def append(self, group: int, batch: pa.RecordBatch, part: str = "") -> Extent:
        """Write one extent and return where it is."""
        message = batch.serialize()
        extent = Extent(group, self._path.name, self.size, message.size, crc32(message), batch.num_rows, part)
        self._write(message)
        return extent

    def receive(self, source: int, extent: Extent, path: Path) -> Extent:
        """Copy an extent from the open file ``source`` to the end of this one, without reading it into this process."""
        moved = replace(extent, segment=self._path.name, offset=self.size)
        offset, left = extent.offset, extent.length
        while left:
            copied = self._disk.copy(source, offset, left, self._descriptor, self._path)
            if not copied:
                raise CorruptState(f"{path} ends before byte {extent.offset + extent.length}. {_RESTORE}")
            offset, left = offset + copied, left - copied
        self.size += extent.length
        return moved

    def close(self) -> Segment:
        try:
            self._write(_END_OF_STREAM)
            self._disk.sync(self._descriptor, self._path)
        finally:
            os.close(self._descriptor)
        return Segment(self._path.name, self.size, self._schema_size, self._schema_crc)

    def abandon(self) -> None:
        """Close without making the file durable; nothing will name it."""
        os.close(self._descriptor)

    def _write(self, data: bytes | pa.Buffer) -> None:
        self._disk.write(self._descriptor, memoryview(data), self._path)
        self.size += len(memoryview(data))


class SegmentReader:
    """Reads extents of one segment through a memory map, so that only the pages of what is asked for are touched.

    Parameters
    ----------
    directory : Path
        Where the file is.
    segment : Segment
        What the manifest says of it.
    fetch : callable, optional
        Puts the file into its place again when it is missing or damaged, once.
    """

    def __init__(self, directory: Path, segment: Segment, fetch: Callable[[], None] | None = None) -> None:
        self._path = directory / segment.name
        self._segment = segment
        self._fetch = fetch
        self._map = self._mapped()
        self.schema = pa.ipc.read_schema(self._checked(0, segment.schema_size, segment.schema_crc))

    def read(self, extent: Extent) -> pa.RecordBatch:
        """The rows of an extent, backed by the map."""
        return pa.ipc.read_record_batch(self._checked(extent.offset, extent.length, extent.crc), self.schema)

    def move(self, extent: Extent, writer: SegmentWriter) -> Extent:
        """Copy an extent to the segment that ``writer`` writes; damage is found before it spreads."""
        self._checked(extent.offset, extent.length, extent.crc)
        with reported("open", self._path):
            source = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return writer.receive(source, extent, self._path)
        finally:
            os.close(source)

    def _mapped(self) -> pa.Buffer:
        try:
            return self._whole()
        except CorruptState:
            if self._fetch is None:
                raise
            return self._fetched()

    def _fetched(self) -> pa.Buffer:
        """The file as the archive has it. What was read from a damaged one stays mapped for those that have it."""
        assert self._fetch is not None
        self._fetch()
        self._fetch = None
        return self._whole()

    def _whole(self) -> pa.Buffer:
        try:
            found = self._path.stat()
        except FileNotFoundError as error:
            raise CorruptState(
                f"{self._path} is missing, though a manifest names it. Unless a newer run of the query has overtaken this "
                "one, restore the file, or the checkpoint together with its state directory, from a copy."
            ) from error
        except OSError as error:
            raise StateDirectoryError(f"cannot read {self._path}: {error.strerror}") from error
        if found.st_size != self._segment.size:
            raise CorruptState(
                f"{self._path} has {found.st_size} bytes where the manifest says {self._segment.size}. {_RESTORE}"
            )
        self._verified = _verified_of(self._path, (found.st_ino, found.st_mtime_ns))
        with reported("map", self._path):
            return pa.memory_map(str(self._path)).read_buffer()

    def _checked(self, offset: int, length: int, crc: int) -> pa.Buffer:
        """Bytes of the file. Their checksum is compared once in a process, as long as nobody has written to the file."""
        data = self._map.slice(offset, length)
        if offset not in self._verified:
            damaged = crc32(data) != crc
            if damaged and self._fetch is not None:
                self._map = self._fetched()
                data = self._map.slice(offset, length)
                damaged = crc32(data) != crc
            if damaged:
                raise CorruptState(f"{self._path} is damaged in the {length} bytes at offset {offset}. {_RESTORE}")
            self._verified.add(offset)
        return data


_verified: OrderedDict[Path, tuple[tuple[int, int], set[int]]] = OrderedDict()
_MOST_VERIFIED = 1 << 14
"""Files of which this process knows which extents are right: a store of unaligned windows reads them again and again."""


def _verified_of(path: Path, identity: tuple[int, int]) -> set[int]:
    """Offsets of which the checksums were right; none of a file that is another one, or was written to, since."""
    known = _verified.pop(path, None)
    if known is None or known[0] != identity:
        known = identity, set()
    _verified[path] = known
    if len(_verified) > _MOST_VERIFIED:
        _verified.popitem(last=False)
    return known[1]


_RESTORE = "Restore the file, or the checkpoint together with its state directory, from a copy."
