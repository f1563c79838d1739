"""Rows that are given one at a time, by slice and key: a table before an `AlignedStore`, which takes batches.

Windows are read as a whole, so a window of which the store has nothing is given out as it is. When rows fill the memory of
the table, the slices that begin last go to the store.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.cutting import together
from forebay.store.aligned import AlignedStore
from forebay.store.options import Options
from forebay.store.room import LAST, PART_BYTES, WIDE, Room, each_bytes, longest, mean_bytes, sample

_OVERHEAD = 180
"""About how many bytes Python takes for a key and the list of its values in a slice."""


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
        self._room, self._longest = Room(options), longest(schema.types[1])
        self._values = 0

    @property
    def given(self) -> int:
        """How many rows were given one at a time."""
        return self._room.given

    @property
    def nbytes(self) -> int:
        """About how much memory the rows take."""
        some = [entry for keys in sample(self._slices.values()) for entry in sample(keys.items())]
        keys = mean_bytes(key for key, _ in some)
        narrow = mean_bytes((value for _, held in some for value in held[-LAST:]), WIDE)
        entries = sum(map(len, self._slices.values()))
        return int(entries * (_OVERHEAD + keys) + self._values * narrow) + sum(self._room.wide.values())

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
        self._values += 1
        room, most = self._room, self._longest
        room.left -= 1
        if most is not None and value is not None and len(value) > most:
            room.widened(start, value)
        if room.left < 0:
            self._look()

    def take(self, start: int) -> dict[Any, list[Any]] | None:
        """All of a slice, which goes; None if there is nothing, or if the store has some of it."""
        if self._store.sizes_of(np.array([start])).any():
            return None
        return self._drop(start)

    def write(self, start: int, batch: pa.RecordBatch) -> None:
        """Give rows to the store at once, after those that the table has."""
        self.flush(start)
        self._store.append(start, batch)

    def flush(self, *starts: int) -> None:
        """Hand the rows of slices to the store; of all slices, if none is named. A slice that does not fit a batch stays."""
        for start in starts or list(self._slices):
            keys = self._slices.get(start)
            if keys:
                batches = list(self._batches(keys))
                self._drop(start)
                for batch in batches:
                    self._store.append(start, batch)

    def _drop(self, start: int) -> dict[Any, list[Any]] | None:
        keys = self._slices.pop(start, None)
        self._room.wide.pop(start, None)
        self._values -= sum(map(len, (keys or {}).values()))
        return keys

    def _batches(self, keys: dict[Any, list[Any]]) -> Iterator[pa.RecordBatch]:
        columns = [key for key, values in keys.items() for _ in values], [*itertools.chain.from_iterable(keys.values())]
        for part in together(each_bytes(columns[0]) + each_bytes(columns[1]), PART_BYTES):
            arrays = [pa.array(column[part], kind) for column, kind in zip(columns, self._schema.types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _look(self) -> None:
        while self._room.full(self.nbytes, self._values):
            last = sorted(self._slices)[len(self._slices) // 2 :]
            self.flush(*last)
