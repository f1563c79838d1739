"""The state access stream: what an operator does to its state, access after access, as Arrow record batches.

An access is an operation on a state key, with the size of its value and the time at which it happens (Gadget, section 2.3).
A state key is that of an event within a window, or other bounds, and within one of the operator's states (its *family*).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from pathlib import Path

import numpy as np
import pyarrow as pa

from forebay.errors import CorruptState, InvalidArgument, StateDirectoryError


class Operation(IntEnum):
    """What is done to the value of a state key. A merge appends to it, or makes it, without reading it."""

    GET = 0
    PUT = 1
    MERGE = 2
    DELETE = 3


GET, PUT, MERGE, DELETE = Operation

SCHEMA = pa.schema(
    [
        ("operation", pa.uint8()),  # an Operation
        ("family", pa.uint8()),  # which of the operator's states
        ("key", pa.int64()),  # of the event
        ("start", pa.int64()),  # bounds of the window in microseconds, both 0 where there is none
        ("end", pa.int64()),
        ("size", pa.int64()),  # bytes of the value of a put or merge, otherwise 0
        ("time", pa.int64()),  # when it happens, in microseconds; never falls
    ],
    {"forebay": "state accesses 1"},
)

KEY_BYTES = 25

_KEY = np.dtype([("key", ">i8"), ("start", ">i8"), ("end", ">i8"), ("family", "u1")])


def state_keys(batch: pa.RecordBatch) -> pa.FixedSizeBinaryArray:
    """The state keys of accesses, as stores that know only bytes get them: event key, start, end, family, high bytes first.

    Examples
    --------
    >>> batch = accesses([(PUT, 0, 7, 0, 16, 8, 0)])
    >>> state_keys(batch)[0].as_py().hex()
    '00000000000000070000000000000000000000000000001000'
    """
    keys = np.empty(batch.num_rows, _KEY)
    for name in _KEY.fields or ():
        keys[name] = batch[name].to_numpy()
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(KEY_BYTES), len(keys), [None, pa.py_buffer(keys.tobytes())])


def accesses(rows: Iterable[tuple[int, ...]]) -> pa.RecordBatch:
    """A batch of accesses that are given one by one.

    Examples
    --------
    >>> accesses([(GET, 0, 1, 0, 0, 0, 5), (PUT, 0, 1, 0, 0, 8, 5)]).num_rows
    2
    """
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    return pa.RecordBatch.from_arrays(
        [pa.array([int(each) for each in column], kind) for column, kind in zip(columns, SCHEMA.types, strict=True)],
        schema=SCHEMA,
    )


def write(path: Path, batches: Iterable[pa.RecordBatch]) -> int:
    """Write accesses to an Arrow file, and give how many they were.

    If the batches end with an error or are interrupted, the file has what came before, and can be read; not so if it could
    not be written.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "trace.arrow"
    >>> write(path, [accesses([(GET, 0, 1, 0, 0, 0, 5)])])
    1
    >>> [batch.num_rows for batch in read(path)]
    [1]
    """
    count = 0
    try:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
            for batch in batches:
                writer.write_batch(batch)
                count += batch.num_rows
    except OSError as error:
        raise StateDirectoryError(f"the trace {path} cannot be written: {error}") from error
    return count


def read(path: Path) -> Iterator[pa.RecordBatch]:
    """The accesses of a file that `write` has made, batch by batch."""
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
            if not reader.schema.equals(SCHEMA):
                names = ", ".join(reader.schema.names)
                raise InvalidArgument(f"{path} has no state accesses; it has the columns {names}")
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
    except FileNotFoundError:
        raise InvalidArgument(f"there is no trace {path}") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptState(f"{path} is not an Arrow file, or is cut off: {error}") from error


def limited(batches: Iterable[pa.RecordBatch], count: int | None) -> Iterator[pa.RecordBatch]:
    """The first so many accesses, or all.

    Examples
    --------
    >>> batch = accesses([(GET, 0, 1, 0, 0, 0, 5)] * 3)
    >>> [part.num_rows for part in limited([batch, batch, batch], 5)]
    [3, 2]
    """
    for batch in batches:
        if count is not None and batch.num_rows >= count:
            yield batch.slice(0, count)
            return
        yield batch
        count = None if count is None else count - batch.num_rows


def blocks(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same accesses in batches of so many; the last one may have fewer.

    Examples
    --------
    >>> batch = accesses([(GET, 0, 1, 0, 0, 0, 5)] * 5)
    >>> [part.num_rows for part in blocks([batch, batch.slice(0, 2), batch], 4)]
    [4, 4, 4]
    """
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count < rows:
            continue
        whole = pa.concat_batches(waiting)
        yield from (whole.slice(first, rows) for first in range(0, count - rows + 1, rows))
        waiting = [whole.slice(count - count % rows)]
        count %= rows
    if count:
        yield pa.concat_batches(waiting)


def replay(
    batches: Iterable[pa.RecordBatch],
    rate: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """Accesses again, as fast as they are taken or at a service rate.

    Parameters
    ----------
    batches : iterable of pyarrow.RecordBatch
        The accesses.
    rate : float or None
        Accesses per second. They come in slices of a millisecond's worth, none before it is due.
    clock, sleep : callable
        What tells the time, and what waits, in seconds.

    Examples
    --------
    >>> waits = []
    >>> batch = accesses([(GET, 0, 1, 0, 0, 0, 5)] * 6)
    >>> [part.num_rows for part in replay([batch], rate=2000, clock=lambda: 0.0, sleep=waits.append)]
    [2, 2, 2]
    >>> waits
    [0.001, 0.002]
    """
    if rate is None:
        yield from batches
        return
    if rate <= 0:
        raise InvalidArgument(f"the service rate is {rate}; it must be above 0 accesses per second")
    begin, done, step = clock(), 0, max(int(rate / 1000), 1)
    for batch in batches:
        for first in range(0, batch.num_rows, step):
            wait = begin + done / rate - clock()
            if wait > 0:
                sleep(wait)
            part = batch.slice(first, step)
            done += part.num_rows
            yield part
