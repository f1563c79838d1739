"""How segments are read: extents as a whole, or a few rows of one without the rest of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal.isal_zlib import crc32

from forebay.errors import CorruptState, StateDirectoryError
from forebay.store import block_kernels as kernels
from forebay.store import blocks, paging, verified
from forebay.store.block_kernels import BLOCK
from forebay.store.blocks import Blocks
from forebay.store.disk import reported
from forebay.store.segment import RESTORE, Extent, Segment, SegmentWriter


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

    def take(self, extent: Extent, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Some rows of an extent, by their numbers. If they are few, only what they are on is read from disk."""
        if not self._check_rows(extent, rows):
            return self.read(extent).take(pa.array(rows))
        data = self._map.slice(extent.offset, extent.length)
        return pa.ipc.read_record_batch(data, self.schema).take(pa.array(rows))

    def move(self, extent: Extent, writer: SegmentWriter) -> Extent:
        """Copy an extent to the segment that ``writer`` writes; damage is found before it spreads."""
        data = self._checked(extent.offset, extent.length, extent.crc)
        with reported("open", self._path):
            source = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return writer.receive(source, extent, data, self._path)
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
                f"{self._path} has {found.st_size} bytes where the manifest says {self._segment.size}. {RESTORE}"
            )
        self._verified = verified.of(self._path, (found.st_ino, found.st_mtime_ns))
        with reported("map", self._path):
            return paging.mapped(self._path)

    def _checked(self, offset: int, length: int, crc: int) -> pa.Buffer:
        """Bytes of the file. Their checksum is compared once in a process, as long as nobody has written to the file."""
        if length > BLOCK:
            paging.read_ahead(np.array([[self._map.address + offset, length]]))
        data = self._map.slice(offset, length)
        if offset not in self._verified.extents:
            damaged = crc32(data) != crc
            if damaged and self._fetch is not None:
                self._map = self._fetched()
                data = self._map.slice(offset, length)
                damaged = crc32(data) != crc
            if damaged:
                raise CorruptState(f"{self._path} is damaged in the {length} bytes at offset {offset}. {RESTORE}")
            self._verified.extents.add(offset)
            self._verified.blocks[offset // BLOCK + 1 : (offset + length) // BLOCK] = 1
        return data

    def _check_rows(self, extent: Extent, rows: npt.NDArray[np.int64]) -> bool:
        """Read and check the blocks that some rows of an extent are on; False if all of it is to be read and checked.

        That is so if most of its blocks are to be checked, if there are no checksums of blocks, or if one of them is wrong.
        """
        if self._verified.sums_of(self._map) is None:
            return False
        layouts = self._verified.layouts
        if extent.offset not in layouts:
            layouts[extent.offset] = self._layout(extent)
        layout = layouts[extent.offset]
        if layout is None:
            return False
        file, known = self._map, self._verified.blocks
        first, last = extent.offset // BLOCK, (extent.offset + extent.length - 1) // BLOCK
        most = (last - first) // 2
        found, parts = kernels.of_rows(layout, rows, first, last, known, file.address)
        if len(found) > most or not self._check_blocks(found, parts):
            return False
        data = np.frombuffer(file, np.uint8)
        found, parts = kernels.of_values(layout, rows, first, last, known, file.address, data)
        return len(found) <= most and self._check_blocks(found, parts)

    def _layout(self, extent: Extent) -> Blocks | None:
        """Where the columns of an extent lie, which its first blocks say."""
        first = extent.offset // BLOCK
        if not self._check_blocks(np.arange(first, (extent.offset + 7) // BLOCK + 1)):
            return None
        about = int.from_bytes(self._map.slice(extent.offset + 4, 4).to_pybytes(), "little")
        if not self._check_blocks(np.arange(first, (extent.offset + 7 + about) // BLOCK + 1)):
            return None
        data = self._map.slice(extent.offset, extent.length)
        return blocks.layout_of(pa.ipc.read_record_batch(data, self.schema), self._map)

    def _check_blocks(self, wanted: Blocks, parts: Blocks | None = None) -> bool:
        """Have parts of the file read, and compare the checksums of blocks; whether they are right."""
        if parts is not None:
            paging.read_ahead(parts)
        if len(wanted):
            sums = self._verified.sums_of(self._map)
            if sums is None or not blocks.are_right(self._map, sums, wanted):
                return False
            self._verified.blocks[wanted] = 1
        return True
