"""Segments: immutable files of rows. A segment is one or more Arrow IPC streams; an *extent* is a record batch in one.

A stream has rows of one schema. A commit often writes little of several schemas: that becomes one file, since a file costs
more than so little in it. After the streams a large segment has checksums of its blocks (`forebay.store.blocks`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from isal.isal_zlib import crc32

from forebay.errors import CorruptState, StateDirectoryError
from forebay.restoring import RESTORE_FILE
from forebay.store.blocks import BlockChecksums
from forebay.store.disk import LOCAL, Disk

SEGMENT_BYTES = 4 << 20
"""A segment is closed at this size, so that what it holds fires, and can be unlinked, at about one time."""

_SMALL_BYTES = 64 << 10
"""A segment is in memory up to this size, and takes rows of other schemas."""

_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class Header(NamedTuple):
    """Where a stream of a segment has its schema: the offset at which the stream begins, the size in bytes, the CRC-32."""

    offset: int
    size: int
    crc: int


@dataclass(frozen=True)
class Segment:
    """A segment file as a manifest names it: total size, and the size and CRC-32 of its first schema, in bytes.

    ``streams`` are the schemas of the streams that follow the first one.
    """

    name: str
    size: int
    schema_size: int
    schema_crc: int
    streams: tuple[Header, ...] = ()

    def header_of(self, extent: Extent) -> Header:
        """The schema of the stream that an extent is in."""
        first = Header(0, self.schema_size, self.schema_crc)
        return next((each for each in reversed(self.streams) if each.offset < extent.offset), first)


class Extent(NamedTuple):
    """Rows of one group: where their record batch lies (bytes), its CRC-32, and how many rows it has.

    ``part`` names the part of the log that the group is in; "" is the log itself. ``merged`` says that all rows of the group
    were merged when it was written.
    """

    group: int
    segment: str
    offset: int
    length: int
    crc: int
    rows: int
    part: str = ""
    merged: bool = False


class SegmentWriter:
    """Writes one segment. `close` makes it durable; until a manifest names it, no reader knows it.

    Parameters
    ----------
    directory : Path
        Where the file is created.
    name : str
        Its name; a file of that name must not exist.
    schema : pyarrow.Schema
        The schema of the first batches.
    disk : Disk
        What it is written to.
    """

    def __init__(self, directory: Path, name: str, schema: pa.Schema, disk: Disk = LOCAL) -> None:
        self._path, self._disk = directory / name, disk
        self.name = name
        self._headers: list[Header] = []
        self._small = bytearray()
        self._descriptor: int | None = None
        self._checksums = BlockChecksums()
        self.size = 0
        try:
            self._begin(schema)
        except StateDirectoryError:
            self.abandon()
            raise

    @property
    def small(self) -> bool:
        """Whether it is in memory."""
        return self._descriptor is None

    def turn_to(self, schema: pa.Schema) -> None:
        """Have another schema in what is written from now on."""
        if schema != self.schema:
            self._write(_END_OF_STREAM)
            self._begin(schema)

    def append(self, group: int, batch: pa.RecordBatch, part: str = "") -> Extent:
        """Write one extent and return where it is."""
        message = batch.serialize()
        extent = Extent(group, self._path.name, self.size, message.size, crc32(message), batch.num_rows, part)
        self._write(message)
        return extent

    def receive(self, source: int, extent: Extent, data: pa.Buffer, path: Path) -> Extent:
        """Copy an extent, whose bytes are ``data``, from the open file ``source`` to the end of this one, in the kernel."""
        moved = extent._replace(segment=self._path.name, offset=self.size)
        offset, left, descriptor = extent.offset, extent.length, self._file()
        while left:
            copied = self._disk.copy(source, offset, left, descriptor, self._path)
            if not copied:
                raise CorruptState(f"{path} ends before byte {extent.offset + extent.length}. {RESTORE_FILE}")
            offset, left = offset + copied, left - copied
        self._checksums.take(data)
        self.size += extent.length
        return moved

    def close(self) -> Segment:
        try:
            self._write(_END_OF_STREAM)
            self._write(self._checksums.footer())
            if self._descriptor is None:
                self._disk.put(self._path, bytes(self._small))
            else:
                self._disk.sync(self._descriptor, self._path)
        finally:
            self.abandon()
        (_, size, crc), *others = self._headers
        return Segment(self._path.name, self.size, size, crc, tuple(others))

    def abandon(self) -> None:
        """Close without making the file durable; nothing will name it."""
        if self._descriptor is not None:
            os.close(self._descriptor)

    def _begin(self, schema: pa.Schema) -> None:
        self.schema, header = schema, schema.serialize()
        self._headers.append(Header(self.size, header.size, crc32(header)))
        self._write(header)

    def _write(self, data: bytes | pa.Buffer) -> None:
        view = memoryview(data)
        if self._descriptor is None and self.size + len(view) <= _SMALL_BYTES:
            self._small += view
        else:
            self._disk.write(self._file(), view, self._path)
        self._checksums.take(data)
        self.size += len(view)

    def _file(self) -> int:
        """The descriptor of the file, which has all that was written."""
        if self._descriptor is None:
            self._descriptor = self._disk.create(self._path)
            self._disk.write(self._descriptor, bytes(self._small), self._path)
        return self._descriptor
