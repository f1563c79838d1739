"""How segments are read: extents as a whole, or a few rows of one without the rest of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal.isal_zlib import crc32

from forebay.errors import CorruptState, StateDirectoryError
from forebay.restoring import RESTORE_FILE
from forebay.store import block_kernels as kernels
from forebay.store import blocks, paging, verified
from forebay.store.block_kernels import BLOCK
from forebay.store.blocks import Blocks
from forebay.store.disk import is_passing, unreadable
from forebay.store.paging import Parts
from forebay.store.segment import Extent, Header, Segment, SegmentWriter
from forebay.store.verified import Verified

Steps = Generator[Parts, None, pa.RecordBatch]
"""Reads rows, and gives on the way what parts of memory are to be read from disk before it goes on."""


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
        self._schemas: dict[Header, pa.Schema] = {}

    def schema_of(self, extent: Extent) -> pa.Schema:
        """The schema of an extent."""
        header = self._segment.header_of(extent)
        schema = self._schemas.get(header)
        if schema is None:
            schema = self._schemas[header] = pa.ipc.read_schema(self._checked(*header))
        return schema

    def part(self, extent: Extent) -> tuple[int, int]:
        """Where in memory an extent is: address and size."""
        return self._map.address + extent.offset, extent.length

    def read(self, extent: Extent) -> pa.RecordBatch:
        """The rows of an extent, backed by the map."""
        return pa.ipc.read_record_batch(self._checked(extent.offset, extent.length, extent.crc), self.schema_of(extent))

    def take(self, extent: Extent, rows: npt.NDArray[np.int64]) -> Steps:
        """Some rows of an extent, by their numbers, for `side_by_side`. If they are few, only what they are on is read."""
        if (yield from self._check_rows(extent, rows)):
            batch = pa.ipc.read_record_batch(self._map.slice(extent.offset, extent.length), self.schema_of(extent))
        else:
            yield np.array([self.part(extent)])
            batch = self.read(extent)
        return batch.take(pa.array(rows))

    def move(self, extent: Extent, writer: SegmentWriter) -> Extent:
        """Copy an extent to the segment that ``writer`` writes; damage is found before it spreads."""
        self._verified.extents.discard(extent.offset)  # what is moved gets new checksums of blocks, from these bytes
        data = self._checked(extent.offset, extent.length, extent.crc)
        try:
            source = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(self._path, error) from error
        try:
            return writer.receive(source, extent, data, self._path)
        finally:
            os.close(source)

    def _mapped(self) -> pa.Buffer:
        try:
            return self._whole()
        except (CorruptState, StateDirectoryError) as error:
            if self._fetch is None or (isinstance(error, StateDirectoryError) and is_passing(error)):
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
            if found.st_size != self._segment.size:
                raise CorruptState(
                    f"{self._path} has {found.st_size} bytes where the manifest says {self._segment.size}. {RESTORE_FILE}"
                )
            self._verified = verified.of(self._path, (found.st_ino, found.st_mtime_ns))
            return paging.mapped(self._path)
        except FileNotFoundError as error:
            raise CorruptState(
                f"{self._path} is missing, though a manifest names it. Unless a newer run of the query has overtaken this "
                "one, restore the file, or the checkpoint together with its state directory, from a copy."
            ) from error
        except OSError as error:
            raise unreadable(self._path, error) from error

    def _checked(self, offset: int, length: int, crc: int) -> pa.Buffer:
        """Bytes of the file. Their checksum is compared once in a process, as long as nobody has written to the file."""
        if length > BLOCK:
            paging.read_ahead(np.array([[self._map.address + offset, length]]))
        data = self._map.slice(offset, length)
        if offset not in self._verified.extents:
            right = self._is_right(data, crc)
            if not right and self._fetch is not None:
                self._map = self._fetched()
                data = self._map.slice(offset, length)
                right = self._is_right(data, crc)
            if not right:
                raise CorruptState(f"{self._path} is damaged in the {length} bytes at offset {offset}. {RESTORE_FILE}")
            self._verified.extents.add(offset)
            self._verified.blocks[offset // BLOCK + 1 : (offset + length) // BLOCK] = 1
        return data

    def _is_right(self, data: pa.Buffer, crc: int) -> bool:
        """Whether bytes of the file have a checksum. What cannot be read is wrong if the archive may have it."""
        try:
            paging.require_readable(np.array([[data.address, data.size]]))
        except OSError as error:
            if self._fetch is not None:
                return False
            raise unreadable(self._path, error) from error
        return bool(crc32(data) == crc)

    def _check_rows(self, extent: Extent, rows: npt.NDArray[np.int64]) -> Generator[Parts, None, bool]:
        """Check the blocks that some rows of an extent are on; False if all of it is to be read and checked.

        That is so if most of its blocks are to be checked, if there are no checksums of blocks, or if one of them is wrong.
        """
        file, checked = self._map, self._verified
        if not checked.looked:
            yield np.array([blocks.place_of_checksums(file)])
        if checked.sums_of(file) is None:
            return False
        if extent.offset not in checked.layouts:
            checked.layouts[extent.offset] = yield from self._layout(extent, file, checked)
        layout, known = checked.layouts[extent.offset], checked.blocks
        if layout is None or (len(rows) and int(rows.max()) >= extent.rows):  # no loop looks: `take` does
            return False
        first, last = extent.offset // BLOCK, (extent.offset + extent.length - 1) // BLOCK
        found, parts = kernels.of_rows(layout, rows, extent.rows, first, last, known, file.address)
        if len(found) > (last - first) // 2:
            return False
        yield parts
        if not checked.check(file, found):
            return False
        data = np.frombuffer(file, np.uint8)
        found, parts = kernels.of_values(layout, rows, first, last, known, file.address, data)
        if len(found) > (last - first) // 2:
            return False
        yield parts
        return checked.check(file, found) and self._map is file  # it may have been got again meanwhile

    def _layout(self, extent: Extent, file: pa.Buffer, checked: Verified) -> Generator[Parts, None, Blocks | None]:
        """Where the columns of an extent lie, which its first blocks say."""
        begin, first = extent.offset, extent.offset // BLOCK
        yield np.array([[file.address + begin, min(BLOCK, extent.length)]])
        if not checked.check(file, np.arange(first, (begin + 7) // BLOCK + 1)):
            return None
        about = int.from_bytes(file.slice(begin + 4, 4).to_pybytes(), "little")
        if not checked.check(file, np.arange(first, (begin + 7 + about) // BLOCK + 1)):
            return None
        return blocks.layout_of(pa.ipc.read_record_batch(file.slice(begin, extent.length), self.schema_of(extent)), file)


def side_by_side(reads: Iterable[Steps]) -> list[pa.RecordBatch]:
    """What some reads give. What each of them is about to touch is read from disk together with that of the others.

    A disk that is asked for one page after the other takes as many times as long as it can read side by side.
    """
    running = dict(enumerate(reads))
    found: dict[int, pa.RecordBatch] = {}
    while running:
        parts = []
        for place, steps in list(running.items()):
            try:
                parts.append(next(steps))
            except StopIteration as end:
                found[place] = end.value
                del running[place]
        if parts:
            paging.read_ahead(np.concatenate(parts))
    return [found[place] for place in sorted(found)]
