"""Files as they travel between hosts: in chunks, with a checksum."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from isal.isal_zlib import crc32

from forebay.errors import ReplicationError
from forebay.store import paging

SCHEMA = pa.schema([("data", pa.uint8())])

_BYTES = 1 << 20


class NotHeld(ReplicationError):
    """The sender does not hold a file; others may follow."""


def pieces(paths: Iterable[Path]) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
    """Files as they travel: chunks, the last one of each with the checksum of all; or word that one is not held here."""
    for path in paths:
        try:
            data = mapped(path)
        except OSError:
            yield wrapped(memoryview(b""), held=False)
            continue
        for chunk, crc in cut(data):
            yield wrapped(chunk, crc=crc)


def received(reader: flight.MetadataRecordBatchReader) -> Iterator[tuple[memoryview, int | None]]:
    """The chunks of one file as they come, the last one with the checksum of all; `NotHeld` if there are none."""
    crc = None
    while crc is None:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            raise ReplicationError("the sender has gone in the middle of a file") from None
        said = json.loads(chunk.app_metadata.to_pybytes())
        if not said.get("held", True):
            raise NotHeld("the sender does not hold it")
        crc = said["crc"]
        data = chunk.data[0]  # read by its buffer: to convert it, pyarrow would import pandas while the sender waits
        yield memoryview(data.buffers()[1])[data.offset : data.offset + len(data)], crc


def mapped(path: Path) -> memoryview:
    """The bytes of a file; `FileNotFoundError` if it is not there, `StateDirectoryError` if it cannot be read."""
    return memoryview(paging.whole(path))


def cut(data: memoryview) -> Iterator[tuple[memoryview, int | None]]:
    """A file in chunks, the last one with the checksum of all."""
    crc = 0
    for begin in range(0, max(len(data), 1), _BYTES):
        chunk = data[begin : begin + _BYTES]
        crc = crc32(chunk, crc)
        yield chunk, crc if begin + _BYTES >= len(data) else None


def wrapped(data: memoryview, **said: Any) -> tuple[pa.RecordBatch, pa.Buffer]:
    """A chunk as Flight sends it, with what is said of it."""
    column = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([column], schema=SCHEMA), pa.py_buffer(json.dumps(said).encode())
