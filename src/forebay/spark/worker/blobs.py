"""Blobs: what travels between pack, operator and unpack. A blob is an Arrow IPC stream of a few MB at most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

BLOB_BYTES = 4 << 20
BLOB_ROWS = 1 << 16
FEW_ROWS = 1 << 13
"""Batches of fewer results are put together. Larger ones go on at once, so that Spark does not wait."""

BATCH_BYTES = 64 << 20
"""What Spark bounds batches at unless it is told otherwise."""

_PARTIAL = b"forebay.partial"


class BlobWriter:
    """Collects record batches of one schema into blobs of about so many bytes."""

    def __init__(self, size: int = BLOB_BYTES) -> None:
        self._size = size
        self._sink: pa.BufferOutputStream = None
        self._schema: pa.Schema | None = None
        self._stream: pa.ipc.RecordBatchStreamWriter | None = None

    def write(self, batch: pa.RecordBatch, *, partial: bool = False) -> Iterator[pa.Buffer]:
        """Add a batch; yields the blobs that are complete. ``partial`` marks partial aggregates."""
        schema = batch.schema.with_metadata({_PARTIAL: b""} if partial else None)
        if self._schema is not None and not schema.equals(self._schema, check_metadata=True):
            yield from self.finish()
        if self._stream is None:
            self._sink, self._schema = pa.BufferOutputStream(), schema
            self._stream = pa.ipc.new_stream(self._sink, schema)
        self._stream.write_batch(batch.replace_schema_metadata(schema.metadata))
        if self._sink.tell() >= self._size:
            yield from self.finish()

    def finish(self) -> Iterator[pa.Buffer]:
        """Yields what is left."""
        if self._stream is not None:
            self._stream.close()
            yield self._sink.getvalue()
            self._sink = self._schema = self._stream = None


def column(blob: pa.Buffer, nulls: int = 0) -> pa.BinaryArray:
    """A column with one blob, which is not copied, and so many NULLs after it.

    Examples
    --------
    >>> column(pa.py_buffer(b"one"), nulls=2).to_pylist()
    [b'one', None, None]
    """
    ends = np.full(2 + nulls, blob.size, np.int32)
    ends[0] = 0
    there = np.packbits(np.arange(1 + nulls) == 0, bitorder="little")
    return pa.Array.from_buffers(pa.binary(), 1 + nulls, [pa.py_buffer(there), pa.py_buffer(ends), blob], nulls)


def ballast(size: int, rows: int) -> int:
    """How many rows without a blob go with one of ``size`` bytes where Spark ends batches after so many rows alone.

    A batch has about `BATCH_BYTES` at most then. Where there is no ballast in one, it is of blobs that are small.

    Examples
    --------
    >>> ballast(4 << 20, rows=64_000), ballast(1000, rows=64_000)
    (4000, 0)
    """
    return size * rows // BATCH_BYTES


def read(blob: bytes | pa.Buffer) -> tuple[Iterator[pa.RecordBatch], bool]:
    """The batches of a blob, and whether they are partial aggregates."""
    stream = pa.ipc.open_stream(blob)
    return iter(stream), _PARTIAL in (stream.schema.metadata or {})


def read_all(blobs: Iterable[bytes | pa.Buffer]) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """The batches of some blobs, each with whether it is of partial aggregates."""
    for blob in blobs:
        batches, partial = read(blob)
        for batch in batches:
            yield batch, partial


def write_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Buffer]:
    """Batches of one schema as blobs, large ones cut."""
    writer = BlobWriter()
    for batch in cut(batches):
        yield from writer.write(batch)
    yield from writer.finish()


def cut(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of so many rows as a blob has in one batch at most."""
    for batch in batches:
        for begin in range(0, batch.num_rows, BLOB_ROWS):
            yield batch.slice(begin, BLOB_ROWS)


def gathered(batches: Iterable[pa.RecordBatch], few: int = FEW_ROWS, small: int = BLOB_BYTES) -> Iterator[pa.RecordBatch]:
    """Batches of one schema, those of few rows and bytes put together until they are no small ones; large ones are cut.

    Examples
    --------
    >>> small = pa.record_batch({"n": [1, 2]})
    >>> [batch.num_rows for batch in gathered([small, small, small.slice(0, 0)])]
    [4]
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in cut(batches):
        rows += batch.num_rows
        size += batch.nbytes
        if waiting and (rows > few or size > small):
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], batch.num_rows, batch.nbytes
        if rows < few and size < small:
            waiting.append(batch)
            continue
        yield pa.concat_batches([*waiting, batch]) if waiting else batch
        waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)
