"""Rows of a window that is too large to load at once, as partitions that have no key in common."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl
import pyarrow as pa

from forebay.store.disk import LOCAL, reported

SLICE = "slice"
"""The column that holds the start of a row's slice, in microseconds, wherever rows of several slices are together."""

_PIECE_BYTES = 1 << 29
"""Most bytes that are put in order at a time: Arrow counts those of a column of texts in 31 bits."""

Sliced = Iterable[tuple[int, pa.RecordBatch]]
"""Rows with the start of their slice."""


def partitions_of(batches: Sliced, keys: Sequence[str], size: int, room: int, directory: Path) -> Iterator[pl.DataFrame]:
    """Rows of slices with a `SLICE` column, as frames of about ``room`` bytes that have no key in common.

    Those of a key are in the order in which they are given. Rows that are too many are read once, and written by partition
    to a file without a name, which is read partition by partition: the window may be larger than all memory.

    Parameters
    ----------
    batches : iterable of tuple of int and pyarrow.RecordBatch
        The rows.
    keys : sequence of str
        The columns that are keys. Without one there is one partition.
    size : int
        Bytes of all rows, about.
    room : int
        Bytes that can be loaded and grouped within the memory budget.
    directory : Path
        Where there is room on disk.

    Raises
    ------
    StateDirectoryError
        The directory cannot be written to.

    Examples
    --------
    >>> rows = pa.record_batch({"user": [number % 20 for number in range(100)]})
    >>> parts = list(partitions_of([(0, rows)], ["user"], 800, 400, Path(tempfile.mkdtemp())))
    >>> len(parts), sum(part.height for part in parts), sum(part["user"].n_unique() for part in parts)
    (2, 100, 20)
    """
    partitions = -(-size // room)
    if partitions <= 1 or not keys:
        yield from _frame(with_slice for with_slice in map(_with_slice, batches) if with_slice.num_rows)
        return
    with nameless_file(directory) as file:
        parts = _apart(_pieces(map(_with_slice, batches), min(room // 2, _PIECE_BYTES)), keys, partitions)
        numbers = _write(file, parts, directory)
        if not numbers:
            return
        reader = pa.ipc.open_file(pa.PythonFile(file, "r"))  # one that is mapped would be read further than it is asked for
        for partition in sorted(numbers):
            yield from _frame(reader.get_batch(number) for number in numbers[partition])


def _with_slice(rows: tuple[int, pa.RecordBatch]) -> pa.RecordBatch:
    start, batch = rows
    return batch.append_column(SLICE, pa.array(np.full(batch.num_rows, start, np.int64)))


def _frame(batches: Iterable[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
    """Batches as one frame, or nothing when there are none."""
    filled = list(batches)
    if filled:
        yield pl.DataFrame(pa.Table.from_batches(filled))


def _pieces(batches: Iterable[pa.RecordBatch], room: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about so many bytes, so that a partition's rows of each lie on few pages."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if waiting and size + batch.nbytes > room:
            yield pa.concat_batches(waiting)
            waiting, size = [], 0
        waiting.append(batch)
        size += batch.nbytes
    if waiting:
        yield pa.concat_batches(waiting)


def _apart(pieces: Iterable[pa.RecordBatch], keys: Sequence[str], partitions: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Pieces by partition: the rows that each has of each partition, with its number."""
    which = pl.struct(list(keys)).hash() % partitions
    for piece in pieces:
        places = pl.DataFrame(piece.select(list(keys))).select(which).to_series().to_numpy()
        places = places.astype(np.min_scalar_type(partitions))  # for which numpy has a sort in linear time
        order = np.argsort(places, kind="stable")
        ordered = piece.take(pa.array(order))
        bounds = np.searchsorted(places[order], np.arange(partitions + 1)).tolist()
        for partition, (begin, end) in enumerate(itertools.pairwise(bounds)):
            if end > begin:
                yield partition, ordered.slice(begin, end - begin)


def _write(file: IO[bytes], parts: Iterable[tuple[int, pa.RecordBatch]], directory: Path) -> dict[int, list[int]]:
    """Write parts one after the other; gives which ones each partition has."""
    numbers: dict[int, list[int]] = {}
    writer = None
    for number, (partition, part) in enumerate(parts):
        with reported("write rows of a large window to a file in", directory):
            writer = writer or pa.ipc.new_file(pa.PythonFile(file, "w"), part.schema)
            writer.write_batch(part)
        numbers.setdefault(partition, []).append(number)
    if writer is not None:
        with reported("write rows of a large window to a file in", directory):
            writer.close()
            file.flush()
    return numbers


@contextlib.contextmanager
def nameless_file(directory: Path) -> Iterator[IO[bytes]]:
    """A private file without a name in a directory: it is gone when the process is."""
    LOCAL.make_directory(directory)
    with reported("create a file in", directory):
        file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  # it is closed below: `reported` is about making it alone
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):  # of what could not be written, it was told
            file.close()
