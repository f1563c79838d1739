"""Rows that wait until a micro-batch ends, in memory or, where they are many, in a file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa

from forebay.store.disk import reported
from forebay.store.partitions import nameless_file


class Spill:
    """Batches in order of arrival.

    Parameters
    ----------
    directory : Path
        Where there is room on disk.
    room : int
        Bytes that wait in memory at most.

    Raises
    ------
    StateDirectoryError
        From `append` and `drain`, if the directory cannot be written to.

    Examples
    --------
    >>> import tempfile
    >>> spill = Spill(Path(tempfile.mkdtemp()), 100)
    >>> for number in range(20):
    ...     spill.append(pa.record_batch({"n": [number] * 10}))
    >>> [batch["n"][0].as_py() for batch in spill.drain()] == list(range(20)), list(spill.drain())
    (True, [])
    """

    def __init__(self, directory: Path, room: int) -> None:
        self._directory, self._room = directory, room
        self._waiting: list[pa.RecordBatch] = []
        self._size = 0
        self._open = contextlib.ExitStack()
        self._file: IO[bytes] | None = None

    def append(self, batch: pa.RecordBatch) -> None:
        """Have a batch wait, of the same schema as those before."""
        self._waiting.append(batch)
        self._size += batch.nbytes
        if self._size > self._room:
            self._write()

    def drain(self) -> Iterator[pa.RecordBatch]:
        """The batches that have waited; they are forgotten."""
        if self._file is not None:
            with self._reported():
                self._writer.close()
                self._file.flush()
            self._file.seek(0)
            yield from pa.ipc.open_stream(pa.PythonFile(self._file, "r"))
        yield from self._waiting
        self.close()

    def close(self) -> None:
        """Forget all batches."""
        self._waiting, self._size, self._file = [], 0, None
        self._open.close()

    def _write(self) -> None:
        with self._reported():
            if self._file is None:
                self._file = self._open.enter_context(nameless_file(self._directory))
                self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), self._waiting[0].schema)
            for batch in self._waiting:
                self._writer.write_batch(batch)
        self._waiting, self._size = [], 0

    def _reported(self) -> contextlib.AbstractContextManager[None]:
        return reported("write rows that wait to a file in", self._directory)
