"""Checksums of the blocks of a segment, so that a few rows can be read and checked without the rest of their extent.

The file of a large segment ends with them, after the last Arrow stream: the CRC-32 of each block, that of these
numbers, and a mark.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal.isal_zlib import crc32

BLOCK = 4096
"""Bytes of a block, as many as a page has; the last block of a file may have fewer."""

FIXED, BITS, BYTES = range(3)
"""Kinds of columns: values of some bytes each, values of a bit each, and offsets of bytes."""

LEAST = 16 * BLOCK
"""Segments that are smaller than this have no such checksums: they are read as a whole."""

_MARK = b"FBC1"
_WORD = np.dtype("<u4")

Blocks = npt.NDArray[np.int64]


class BlockChecksums:
    """Takes what is written to a file, and gives what the file is to end with.

    Examples
    --------
    >>> checksums = BlockChecksums()
    >>> data = bytes(LEAST + 100)
    >>> checksums.take(data)
    >>> file = data + checksums.footer()
    >>> len(checksums_of(pa.py_buffer(file))), checksums_of(pa.py_buffer(data)) is None
    (17, True)
    """

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._open = self._filled = 0

    def take(self, data: bytes | memoryview | pa.Buffer) -> None:
        """Go on by more bytes."""
        view = memoryview(data)
        begin = min(len(view), BLOCK - self._filled)
        self._open, self._filled = crc32(view[:begin], self._open), self._filled + begin
        if self._filled == BLOCK:
            end = begin + (len(view) - begin) // BLOCK * BLOCK
            self._sums += [self._open, *(crc32(view[at : at + BLOCK]) for at in range(begin, end, BLOCK))]
            self._open, self._filled = crc32(view[end:]), len(view) - end

    def footer(self) -> bytes:
        """What follows all that was taken."""
        if len(self._sums) * BLOCK + self._filled < LEAST:
            return b""
        sums = np.array([*self._sums, *([self._open] if self._filled else [])], _WORD).tobytes()
        return sums + crc32(sums).to_bytes(4, "little") + _MARK


def place_of_checksums(file: pa.Buffer) -> tuple[int, int]:
    """Where in memory a file has checksums of blocks, if it has some: address and size."""
    end = max(0, file.size - 8)
    size = _WORD.itemsize * -(-end // (BLOCK + _WORD.itemsize))
    return file.address + end - size, file.size - end + size


def checksums_of(file: pa.Buffer) -> npt.NDArray[np.uint32] | None:
    """The checksums at the end of a file; None if there are none that are right."""
    if file.size < LEAST or file.slice(file.size - 4).to_pybytes() != _MARK:
        return None
    address, size = place_of_checksums(file)
    sums = file.slice(address - file.address, size - 8)
    right = crc32(sums).to_bytes(4, "little") == file.slice(file.size - 8, 4).to_pybytes()
    return np.frombuffer(sums, _WORD) if right else None


def layout_of(batch: pa.RecordBatch, file: pa.Buffer) -> Blocks | None:
    """Where in a file the columns of a batch lie that was read from it; None if some have others in them.

    A row for each column: its kind, the bytes of a value or of an offset, and where what says which values are NULL begins,
    where values or offsets begin, and where the bytes begin to which offsets lead; -1 for what is not there.
    """
    rows = []
    for column in batch.columns:
        kind, buffers = column.type, column.buffers()
        validity, *others = (buffer.address - file.address if buffer is not None else -1 for buffer in buffers)
        if pa.types.is_null(kind):
            continue
        if -1 in others:
            return None
        if pa.types.is_boolean(kind):
            rows.append((BITS, 0, validity, *others, -1))
        elif pa.types.is_fixed_size_binary(kind) and not kind.byte_width:
            continue
        elif pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
            rows.append((FIXED, kind.bit_width // 8, validity, *others, -1))
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            rows.append((BYTES, 4, validity, *others))
        elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
            rows.append((BYTES, 8, validity, *others))
        else:
            return None
    return np.array(rows, np.int64).reshape(len(rows), 5)


def are_right(file: pa.Buffer, sums: npt.NDArray[np.uint32], blocks: Blocks) -> bool:
    """Whether some blocks of a file have the checksums that they should have."""
    body = memoryview(file)[: file.size - sums.nbytes - 8]
    return [crc32(body[block * BLOCK : (block + 1) * BLOCK]) for block in blocks.tolist()] == sums[blocks].tolist()
