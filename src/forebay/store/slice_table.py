"""Rows that are given one at a time, by slice and key: a table before an `AlignedStore`, which takes batches.

Windows are read as a whole, so a window of which the store has nothing is given out as it is. When rows fill the memory of
the table, the slices that begin last go to the store.
"""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa

from forebay.store.aligned import AlignedStore
from forebay.store.options import Options
from forebay.store.room import Room, mean_bytes

_OVERHEAD = 180
"""About how many bytes Python takes for a key and the list of its values in a slice."""

_SAMPLED = 64


class SliceTable:
    """Lists of values by slice and key, in memory as long as there is room.

    Parameters
    ----------
    store : AlignedStore
        Where rows go that have no room.
    schema : pyarrow.Schema
        Its columns, ``key`` and ``value``.
    options : Options
        A half of the memory is the table's.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> store = AlignedStore(Path(tempfile.mkdtemp()) / "0", None, ["key"])
    >>> table = SliceTable(store, pa.schema({"key": pa.string(), "value": pa.int64()}), Options())
    >>> table.append(0, "ann", 3)
    >>> table.take(0), table.take(0)
    ({'ann': [3]}, None)
    """

    def __init__(self, store: AlignedStore, schema: pa.Schema, options: Options) -> None:
        self._store, self._schema = store, schema
        self._slices: dict[int, dict[Any, list[Any]]] = {}
        self._room = Room(2 * options.write_buffer_bytes)

    @property
    def given(self) -> int:
        """How many rows were given one at a time."""
        return self._room.given

    @property
    def nbytes(self) -> int:
        """About how much memory the rows take."""
        return int(sum(map(len, self._slices.values())) * self._key_bytes())

    def append(self, start: int, key: Any, value: Any) -> None:
        """Add a value to the list of a key in a slice."""
        keys = self._slices.get(start)
        if keys is None:
            keys = self._slices[start] = {}
        values = keys.get(key)
        if values is None:
            keys[key] = [value]
        else:
            values.append(value)
        room = self._room
        room.left -= 1
        if room.left < 0:
            self._look()

    def take(self, start: int) -> dict[Any, list[Any]] | None:
        """All of a slice, which goes; None if there is nothing, or if the store has some of it."""
        if self._store.bytes_of([start]):
            return None
        return self._slices.pop(start, None)

    def write(self, start: int, batch: pa.RecordBatch) -> None:
        """Give rows to the store at once, after those that the table has."""
        self.settle(start)
        self._store.append(start, batch)

    def settle(self, *starts: int) -> None:
        """Hand the rows of slices to the store; of all slices, if none is named."""
        for start in starts or list(self._slices):
            keys = self._slices.pop(start, None)
            if keys:
                flat = [key for key, values in keys.items() for _ in values]
                columns = [flat, list(itertools.chain.from_iterable(keys.values()))]
                arrays = [pa.array(column, kind) for column, kind in zip(columns, self._schema.types, strict=True)]
                self._store.append(start, pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _key_bytes(self) -> float:
        """About how many bytes the values of a key take in a slice, and the key."""
        some = [row for keys in self._slices.values() for row in itertools.islice(keys.values(), _SAMPLED)][-_SAMPLED:]
        values = sum(map(len, some)) / max(1, len(some))
        return _OVERHEAD + values * mean_bytes(row[-1] for row in some)

    def _look(self) -> None:
        while self._room.full(sum(map(len, self._slices.values())), self._key_bytes()):
            last = sorted(self._slices)[len(self._slices) // 2 :]
            self.settle(*last)
