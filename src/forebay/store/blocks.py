"""Checksums of the blocks of a segment, so that a few rows can be read and checked without the rest of their extent.

The file of a large segment ends with them, after the end of the Arrow stream: the CRC-32 of each block, that of these
numbers, and a mark.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal.isal_zlib import crc32

from forebay.compiling import compiled

BLOCK = 4096
"""Bytes of a block, as many as a page has; the last block of a file may have fewer."""

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


def checksums_of(file: pa.Buffer) -> npt.NDArray[np.uint32] | None:
    """The checksums at the end of a file; None if there are none that are right."""
    if file.size < LEAST or file.slice(file.size - 4).to_pybytes() != _MARK:
        return None
    end = file.size - 8
    sums = file.slice(end - _WORD.itemsize * -(-end // (BLOCK + _WORD.itemsize)), None)
    sums = sums.slice(0, sums.size - 8)
    right = crc32(sums).to_bytes(4, "little") == file.slice(end, 4).to_pybytes()
    return np.frombuffer(sums, _WORD) if right else None


# Layout: a row for each column of a record batch, with where in the file its parts lie: (kind, bytes of a value, validity,
# values or offsets, bytes that offsets count); -1 for what is not there.

_FIXED, _BITS, _BYTES = range(3)


def layout_of(batch: pa.RecordBatch, file: pa.Buffer) -> Blocks | None:
    """Where in a file the columns of a batch lie that was read from it; None if some have others in them."""
    rows = []
    for column in batch.columns:
        kind, buffers = column.type, column.buffers()
        validity, *others = (buffer.address - file.address if buffer is not None else -1 for buffer in buffers)
        if pa.types.is_null(kind):
            continue
        if -1 in others:
            return None
        if pa.types.is_boolean(kind):
            rows.append((_BITS, 0, validity, *others, -1))
        elif pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
            rows.append((_FIXED, kind.bit_width // 8, validity, *others, -1))
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            rows.append((_BYTES, 4, validity, *others))
        elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
            rows.append((_BYTES, 8, validity, *others))
        else:
            return None
    return np.array(rows, np.int64).reshape(len(rows), 5)


@compiled
def of_rows(layout, rows, first, last, known, address):
    """The blocks, between two, that have some rows' values, or say where these lie.

    Given are those that are not ``known`` to be right, in ascending order, and all of them as parts of memory: address and
    size of each run of neighbours, where ``address`` is that of the file.
    """
    seen = np.zeros(last - first + 1, np.uint8)
    for column in range(len(layout)):
        kind, width, validity, values = layout[column, 0], layout[column, 1], layout[column, 2], layout[column, 3]
        for row in rows:
            if validity >= 0:
                _mark(seen, first, validity + (row >> 3), 1)
            if kind == _BITS:
                _mark(seen, first, values + (row >> 3), 1)
            else:
                _mark(seen, first, values + row * width, 2 * width if kind == _BYTES else width)
    return _found(seen, first, known, address)


@compiled
def of_values(layout, rows, first, last, known, address, data):
    """The blocks, between two, that have the bytes to which some rows' offsets lead; as `of_rows` gives them."""
    seen = np.zeros(last - first + 1, np.uint8)
    for column in range(len(layout)):
        if layout[column, 0] != _BYTES:
            continue
        width, offsets, values = layout[column, 1], layout[column, 3], layout[column, 4]
        for row in rows:
            begin, end = np.int64(0), np.int64(0)
            for byte in range(width):
                begin += np.int64(data[offsets + row * width + byte]) << 8 * byte
                end += np.int64(data[offsets + (row + 1) * width + byte]) << 8 * byte
            _mark(seen, first, values + begin, end - begin)
    return _found(seen, first, known, address)


@compiled
def _mark(seen, first, begin, length):
    for block in range(max(0, begin // BLOCK - first), min(len(seen), (begin + length - 1) // BLOCK + 1 - first)):
        seen[block] = 1


@compiled
def _found(seen, first, known, address):
    unknown, parts, count, runs = np.empty(len(seen), np.int64), np.empty((len(seen), 2), np.int64), 0, 0
    for place in range(len(seen)):
        if not seen[place]:
            continue
        if not known[first + place]:
            unknown[count] = first + place
            count += 1
        if runs and parts[runs - 1, 0] + parts[runs - 1, 1] == address + (first + place) * BLOCK:
            parts[runs - 1, 1] += BLOCK
        else:
            parts[runs, 0], parts[runs, 1] = address + (first + place) * BLOCK, BLOCK
            runs += 1
    return unknown[:count], parts[:runs]


def are_right(file: pa.Buffer, sums: npt.NDArray[np.uint32], blocks: Blocks) -> bool:
    """Whether some blocks of a file have the checksums that they should have."""
    body = memoryview(file)[: file.size - sums.nbytes - 8]
    return [crc32(body[block * BLOCK : (block + 1) * BLOCK]) for block in blocks.tolist()] == sums[blocks].tolist()
