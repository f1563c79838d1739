"""The key index: the open windows of a store instance, found by key (the *Stat table* of FlowKV, section 4.2).

A window lives in a *slot* of parallel columns. A directory, an open-addressing hash table of slots, finds the windows of a
key by the key's 128-bit identity. Slots are used again: the *generation* of a slot is odd while a window lives in it and
grows with every use, so that rows on disk that name a slot and a generation are live or dead without being touched.

Merged windows: the window that absorbs another becomes its *parent*. The absorbed one leaves the directory and keeps its
slot until the parent goes, so rows that name it still belong somewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.store import kernels
from forebay.store.kernels import ALWAYS, BLOCK, EMPTY, FILLED, FREE, TOUCHED, USED, Columns, Slots, Times

_TYPES = (np.int64,) * 5 + (np.int32,) * 4


class KeyIndex:
    """Open windows by key.

    Examples
    --------
    >>> index = KeyIndex()
    >>> one = np.array([1, 1], np.int64)
    >>> slots = index.place_merging(one, one, np.array([0, 7]), np.array([5, 12]))
    >>> index.windows(slots).tolist()
    [[0, 5], [7, 12]]
    >>> joined = index.place_merging(one[:1], one[:1], np.array([4]), np.array([9]))
    >>> index.windows(index.roots(slots)).tolist()
    [[0, 12], [0, 12]]
    """

    def __init__(self) -> None:
        self.columns = _allocated(0)
        self._directory = np.full(16, EMPTY, np.int32)
        self._free = np.empty(0, np.int32)
        self._dirty = np.zeros(0, np.uint8)
        self._touched = np.empty(0, np.int32)
        self._earliest = np.empty(0, np.int64)
        self._scalars = np.zeros(4, np.int64)

    def __len__(self) -> int:
        """Number of windows, absorbed ones included."""
        return int(self._scalars[USED] - self._scalars[FREE])

    @property
    def capacity(self) -> int:
        """Slots are below this number."""
        return len(self.columns.high)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns) + self._directory.nbytes + 9 * self.capacity

    # placing --------------------------------------------------------------------------------------------------------

    def place_merging(self, high: Times, low: Times, start: Times, end: Times, ett: Times | None = None) -> Slots:
        """The window of each row, where windows of a key that touch become one, as sessions do.

        Row ``i`` has the window ``[start[i], end[i]]`` of its own; ``ett`` is its end unless given.
        """
        self._reserve(len(low))
        return kernels.place_merging(*self._state, high, low, start, end, end if ett is None else ett)

    def place_exact(self, high: Times, low: Times, start: Times, end: Times, ett: Times | None = None) -> Slots:
        """The window of each row, where a window is a key with exactly these bounds."""
        self._reserve(len(low))
        return kernels.place_exact(*self._state, high, low, start, end, end if ett is None else ett)

    def place_counting(self, high: Times, low: Times) -> tuple[Slots, Times]:
        """The only window of each row's key, and the row's number in it; ``end`` counts the rows of the key."""
        self._reserve(len(low))
        return kernels.place_counting(*self._state, high, low)

    # reading --------------------------------------------------------------------------------------------------------

    def find(self, high: int, low: int) -> Slots:
        """Slots of the open windows of one key."""
        return kernels.find(self.columns, self._directory, high, low)

    def roots(self, slots: Slots) -> Slots:
        """The windows that slots belong to now: themselves, or what has absorbed them."""
        return kernels.roots(self.columns, slots)

    def windows(self, slots: Slots) -> Times:
        """Bounds of windows, one row ``start, end`` each."""
        return np.stack([self.columns.start[slots], self.columns.end[slots]], axis=1)

    def live(self) -> Slots:
        """All windows, absorbed ones left out."""
        used = int(self._scalars[USED])
        alive = (self.columns.generation[:used] & 1).astype(bool) & (self.columns.parent[:used] < 0)
        return np.flatnonzero(alive).astype(np.int32)

    def due(self, watermark: int) -> Slots:
        """Windows that end at or before the watermark, earliest first."""
        slots = kernels.due(self.columns, self._earliest, int(self._scalars[USED]), watermark)
        return slots[np.argsort(self.columns.end[slots], kind="stable")]

    # changing -------------------------------------------------------------------------------------------------------

    def touch(self, slots: Slots) -> None:
        """Note that columns of these slots were changed."""
        kernels.touch_all(self._dirty, self._touched, self._scalars, slots)

    def remove(self, slots: Slots) -> None:
        """End windows and those they absorbed."""
        kernels.remove(*self._state, slots)

    def renew(self, slots: Slots) -> None:
        """Forget the rows of windows that have absorbed none; the windows stay."""
        self.columns.generation[slots] += 2
        self.columns.stored[slots] = 0
        self.touch(slots)

    # versions -------------------------------------------------------------------------------------------------------

    @property
    def touched(self) -> int:
        """Number of slots changed since the last `changes` or `snapshot`."""
        return int(self._scalars[TOUCHED])

    def changes(self) -> pa.RecordBatch:
        """The slots that changed, with all their columns; they count as unchanged from now on."""
        slots = self._changed()
        return _batch({"slot": slots, **{name: column[slots] for name, column in self.columns._asdict().items()}})

    def snapshot(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """All slots, and the directory; all count as unchanged from now on."""
        self._changed()
        used = int(self._scalars[USED])
        return (
            _batch({name: column[:used] for name, column in self.columns._asdict().items()}),
            _batch({"slot": self._directory}),
        )

    @classmethod
    def restored(
        cls, slots: pa.RecordBatch | None, directory: pa.RecordBatch | None, changes: Iterator[pa.RecordBatch]
    ) -> KeyIndex:
        """The index of a snapshot and the changes after it, oldest first."""
        index = cls()
        if slots is not None and directory is not None:
            used = slots.num_rows
            index._resize(used + used // 8)
            for name, column in index.columns._asdict().items():
                column[:used] = slots[name].to_numpy()
            index._directory = directory["slot"].to_numpy().copy()
            index._scalars[USED] = used
            index._scalars[FILLED] = np.count_nonzero(index._directory != EMPTY)
        for change in changes:
            changed = change["slot"].to_numpy()
            if not len(changed):
                continue
            top = int(changed.max()) + 1
            if top > index.capacity:
                index._resize(top + top // 4)
            index._widen(len(changed))
            columns: list[Any] = [change[name].to_numpy() for name in Columns._fields]
            kernels.apply(index.columns, index._directory, index._scalars, changed, Columns(*columns))
        free = np.flatnonzero(index.columns.generation[: index._scalars[USED]] & 1 == 0)[::-1]
        index._free[: len(free)] = free
        index._scalars[FREE] = len(free)
        return index

    # private --------------------------------------------------------------------------------------------------------

    @property
    def _state(self) -> tuple[Any, ...]:
        return self.columns, self._directory, self._free, self._dirty, self._touched, self._earliest, self._scalars

    def _changed(self) -> Slots:
        slots = np.sort(self._touched[: self._scalars[TOUCHED]])
        self._dirty[slots] = 0
        self._scalars[TOUCHED] = 0
        return slots

    def _reserve(self, rows: int) -> None:
        """Make room for so many more windows."""
        missing = rows - int(self._scalars[FREE]) - (self.capacity - int(self._scalars[USED]))
        if missing > 0:
            self._resize(self.capacity + max(missing, self.capacity // 4, 64))
        self._widen(rows)

    def _widen(self, rows: int) -> None:
        """Keep the directory at most 5/8 full."""
        if (int(self._scalars[FILLED]) + rows) * 8 > len(self._directory) * 5:
            live = self.live()
            size = max(16, 1 << int((len(live) + rows) * 2 - 1).bit_length())
            self._directory = np.full(size, EMPTY, np.int32)
            self._scalars[FILLED] = len(live)
            kernels.enter(self.columns, self._directory, live)

    def _resize(self, capacity: int) -> None:
        before, used = self.columns, int(self._scalars[USED])
        self.columns = _allocated(capacity)
        for name, column in self.columns._asdict().items():
            column[:used] = getattr(before, name)[:used]
        self._free = _extended(self._free, capacity, self._scalars[FREE])
        self._touched = _extended(self._touched, capacity, self._scalars[TOUCHED])
        earliest, self._earliest = self._earliest, np.full((capacity >> BLOCK) + 1, ALWAYS, np.int64)
        self._earliest[: len(earliest)] = earliest
        dirty, self._dirty = self._dirty, np.zeros(capacity, np.uint8)
        self._dirty[:used] = dirty[:used]


def identity(key: bytes) -> tuple[int, int]:
    """The 128-bit identity of a key given as bytes, for callers that have no hashes from Spark."""
    import hashlib

    high, low = np.frombuffer(hashlib.blake2b(key, digest_size=16).digest(), np.int64)
    return int(high), int(low)


def _allocated(capacity: int) -> Columns:
    columns: list[Any] = [np.zeros(capacity, kind) for kind in _TYPES]
    return Columns(*columns)


def _extended(array: Slots, capacity: int, used: int) -> Slots:
    longer = np.empty(capacity, np.int32)
    longer[:used] = array[:used]
    return longer


def _batch(columns: dict[str, npt.NDArray[Any]]) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(column) for name, column in columns.items()})
