"""The key index: the open windows of a store instance, found by key (the *Stat table* of FlowKV, section 4.2).

A window lives in a *slot* of parallel columns. A directory, an open-addressing hash table of slots, finds the windows of a
key by the key's 128-bit identity. Slots are used again: the *generation* of a slot is odd while a window lives in it and
grows with every use, so that rows on disk that name a slot and a generation are live or dead without being touched.

Merged windows: the window that absorbs another becomes its *parent*. The absorbed one leaves the directory and keeps its
slot until the parent goes, so rows that name it still belong somewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Slots = npt.NDArray[np.int32]
Times = npt.NDArray[np.int64]

_EMPTY, _GONE = -1, -2
_USED, _FREE, _FILLED, _TOUCHED = range(4)

_BLOCK = 6
"""Slots are in blocks of two to this power; a lower bound for the ends in each block says which ones to look at."""

_NEVER, _ALWAYS = 2**63 - 1, -(2**63)


class Columns(NamedTuple):
    """One array per property of a window.

    ``high`` and ``low`` identify the key; ``start``, ``end`` and ``ett`` (estimated trigger time) are microseconds, or row
    numbers for count windows; ``stored`` is the number of rows on disk.
    """

    high: Times
    low: Times
    start: Times
    end: Times
    ett: Times
    generation: Slots
    parent: Slots
    sibling: Slots
    stored: Slots


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
        self._directory = np.full(16, _EMPTY, np.int32)
        self._free = np.empty(0, np.int32)
        self._dirty = np.zeros(0, np.uint8)
        self._touched = np.empty(0, np.int32)
        self._earliest = np.empty(0, np.int64)
        self._scalars = np.zeros(4, np.int64)

    def __len__(self) -> int:
        """Number of windows, absorbed ones included."""
        return int(self._scalars[_USED] - self._scalars[_FREE])

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
        return _place_merging(*self._state, high, low, start, end, end if ett is None else ett)

    def place_exact(self, high: Times, low: Times, start: Times, end: Times, ett: Times | None = None) -> Slots:
        """The window of each row, where a window is a key with exactly these bounds."""
        self._reserve(len(low))
        return _place_exact(*self._state, high, low, start, end, end if ett is None else ett)

    def place_counting(self, high: Times, low: Times) -> tuple[Slots, Times]:
        """The only window of each row's key, and the row's number in it; ``end`` counts the rows of the key."""
        self._reserve(len(low))
        return _place_counting(*self._state, high, low)

    # reading --------------------------------------------------------------------------------------------------------

    def find(self, high: int, low: int) -> Slots:
        """Slots of the open windows of one key."""
        return _find(self.columns, self._directory, high, low)

    def roots(self, slots: Slots) -> Slots:
        """The windows that slots belong to now: themselves, or what has absorbed them."""
        return _roots(self.columns, slots)

    def windows(self, slots: Slots) -> Times:
        """Bounds of windows, one row ``start, end`` each."""
        return np.stack([self.columns.start[slots], self.columns.end[slots]], axis=1)

    def live(self) -> Slots:
        """All windows, absorbed ones left out."""
        used = int(self._scalars[_USED])
        alive = (self.columns.generation[:used] & 1).astype(bool) & (self.columns.parent[:used] < 0)
        return np.flatnonzero(alive).astype(np.int32)

    def due(self, watermark: int) -> Slots:
        """Windows that end at or before the watermark, earliest first."""
        slots = _due(self.columns, self._earliest, int(self._scalars[_USED]), watermark)
        return slots[np.argsort(self.columns.end[slots], kind="stable")]

    # changing -------------------------------------------------------------------------------------------------------

    def touch(self, slots: Slots) -> None:
        """Note that columns of these slots were changed."""
        _touch_all(self._dirty, self._touched, self._scalars, slots)

    def remove(self, slots: Slots) -> None:
        """End windows and those they absorbed."""
        _remove(*self._state, slots)

    def renew(self, slots: Slots) -> None:
        """Forget the rows of windows that have absorbed none; the windows stay."""
        self.columns.generation[slots] += 2
        self.columns.stored[slots] = 0
        self.touch(slots)

    # versions -------------------------------------------------------------------------------------------------------

    @property
    def touched(self) -> int:
        """Number of slots changed since the last `changes` or `snapshot`."""
        return int(self._scalars[_TOUCHED])

    def changes(self) -> pa.RecordBatch:
        """The slots that changed, with all their columns; they count as unchanged from now on."""
        slots = self._changed()
        return _batch({"slot": slots, **{name: column[slots] for name, column in self.columns._asdict().items()}})

    def snapshot(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """All slots, and the directory; all count as unchanged from now on."""
        self._changed()
        used = int(self._scalars[_USED])
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
            index._scalars[_USED] = used
            index._scalars[_FILLED] = np.count_nonzero(index._directory != _EMPTY)
        for change in changes:
            changed = change["slot"].to_numpy()
            if not len(changed):
                continue
            top = int(changed.max()) + 1
            if top > index.capacity:
                index._resize(top + top // 4)
            index._widen(len(changed))
            columns: list[Any] = [change[name].to_numpy() for name in Columns._fields]
            _apply(index.columns, index._directory, index._scalars, changed, Columns(*columns))
        free = np.flatnonzero(index.columns.generation[: index._scalars[_USED]] & 1 == 0)[::-1]
        index._free[: len(free)] = free
        index._scalars[_FREE] = len(free)
        return index

    # private --------------------------------------------------------------------------------------------------------

    @property
    def _state(self) -> tuple[Any, ...]:
        return self.columns, self._directory, self._free, self._dirty, self._touched, self._earliest, self._scalars

    def _changed(self) -> Slots:
        slots = np.sort(self._touched[: self._scalars[_TOUCHED]])
        self._dirty[slots] = 0
        self._scalars[_TOUCHED] = 0
        return slots

    def _reserve(self, rows: int) -> None:
        """Make room for so many more windows."""
        missing = rows - int(self._scalars[_FREE]) - (self.capacity - int(self._scalars[_USED]))
        if missing > 0:
            self._resize(self.capacity + max(missing, self.capacity // 4, 64))
        self._widen(rows)

    def _widen(self, rows: int) -> None:
        """Keep the directory at most 5/8 full."""
        if (int(self._scalars[_FILLED]) + rows) * 8 > len(self._directory) * 5:
            live = self.live()
            size = max(16, 1 << int((len(live) + rows) * 2 - 1).bit_length())
            self._directory = np.full(size, _EMPTY, np.int32)
            self._scalars[_FILLED] = len(live)
            _enter(self.columns, self._directory, live)

    def _resize(self, capacity: int) -> None:
        before, used = self.columns, int(self._scalars[_USED])
        self.columns = _allocated(capacity)
        for name, column in self.columns._asdict().items():
            column[:used] = getattr(before, name)[:used]
        self._free = _extended(self._free, capacity, self._scalars[_FREE])
        self._touched = _extended(self._touched, capacity, self._scalars[_TOUCHED])
        earliest, self._earliest = self._earliest, np.full((capacity >> _BLOCK) + 1, _ALWAYS, np.int64)
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


# kernels ----------------------------------------------------------------------------------------------------------------


@numba.njit(cache=True)
def _touch(dirty, touched, scalars, slot):  # type: ignore[no-untyped-def]
    if not dirty[slot]:
        dirty[slot] = 1
        touched[scalars[_TOUCHED]] = slot
        scalars[_TOUCHED] += 1


@numba.njit(cache=True)
def _touch_all(dirty, touched, scalars, slots):  # type: ignore[no-untyped-def]
    for slot in slots:
        _touch(dirty, touched, scalars, slot)


@numba.njit(cache=True)
def _opened(c, directory, free, earliest, scalars, place, high, low, start, end, ett):  # type: ignore[no-untyped-def]
    """A new window, entered at a place of the directory."""
    if scalars[_FREE] > 0:
        scalars[_FREE] -= 1
        slot = free[scalars[_FREE]]
    else:
        slot = np.int32(scalars[_USED])
        scalars[_USED] += 1
    c.high[slot], c.low[slot] = high, low
    c.start[slot], c.end[slot], c.ett[slot] = start, end, ett
    c.generation[slot] += 1
    c.parent[slot] = c.sibling[slot] = -1
    c.stored[slot] = 0
    earliest[slot >> _BLOCK] = min(earliest[slot >> _BLOCK], end)
    if directory[place] == _EMPTY:
        scalars[_FILLED] += 1
    directory[place] = slot
    return slot


@numba.njit(cache=True)
def _place_merging(c, directory, free, dirty, touched, earliest, scalars, high, low, start, end, ett):  # type: ignore[no-untyped-def]
    slots = np.empty(len(low), np.int32)
    mask = len(directory) - 1
    for row in range(len(low)):
        into, vacant = np.int32(-1), -1
        place = low[row] & mask
        while directory[place] != _EMPTY:
            slot = directory[place]
            if slot == _GONE:
                if vacant < 0:
                    vacant = place
            elif (
                c.low[slot] == low[row]
                and c.high[slot] == high[row]
                and c.start[slot] <= end[row]
                and start[row] <= c.end[slot]
            ):
                if into < 0:
                    into = slot
                else:
                    c.start[into] = min(c.start[into], c.start[slot])
                    c.end[into] = max(c.end[into], c.end[slot])
                    c.ett[into] = max(c.ett[into], c.ett[slot])
                    c.parent[slot] = into
                    last = slot
                    while c.sibling[last] >= 0:
                        last = c.sibling[last]
                    c.sibling[last] = c.sibling[into]
                    c.sibling[into] = slot
                    directory[place] = _GONE
                    _touch(dirty, touched, scalars, slot)
                    _touch(dirty, touched, scalars, last)
            place = (place + 1) & mask
        if into < 0:
            at = vacant if vacant >= 0 else place
            into = _opened(c, directory, free, earliest, scalars, at, high[row], low[row], start[row], end[row], ett[row])
        else:
            c.start[into] = min(c.start[into], start[row])
            c.end[into] = max(c.end[into], end[row])
            c.ett[into] = max(c.ett[into], ett[row])
        _touch(dirty, touched, scalars, into)
        slots[row] = into
    return slots


@numba.njit(cache=True)
def _place_exact(c, directory, free, dirty, touched, earliest, scalars, high, low, start, end, ett):  # type: ignore[no-untyped-def]
    slots = np.empty(len(low), np.int32)
    mask = len(directory) - 1
    for row in range(len(low)):
        found, vacant = np.int32(-1), -1
        place = low[row] & mask
        while directory[place] != _EMPTY:
            slot = directory[place]
            if slot == _GONE:
                if vacant < 0:
                    vacant = place
            elif (
                c.low[slot] == low[row]
                and c.high[slot] == high[row]
                and c.start[slot] == start[row]
                and c.end[slot] == end[row]
            ):
                found = slot
                break
            place = (place + 1) & mask
        if found < 0:
            at = vacant if vacant >= 0 else place
            found = _opened(c, directory, free, earliest, scalars, at, high[row], low[row], start[row], end[row], ett[row])
        c.ett[found] = max(c.ett[found], ett[row])
        _touch(dirty, touched, scalars, found)
        slots[row] = found
    return slots


@numba.njit(cache=True)
def _place_counting(c, directory, free, dirty, touched, earliest, scalars, high, low):  # type: ignore[no-untyped-def]
    slots = np.empty(len(low), np.int32)
    numbers = np.empty(len(low), np.int64)
    mask = len(directory) - 1
    for row in range(len(low)):
        found, vacant = np.int32(-1), -1
        place = low[row] & mask
        while directory[place] != _EMPTY:
            slot = directory[place]
            if slot == _GONE:
                if vacant < 0:
                    vacant = place
            elif c.low[slot] == low[row] and c.high[slot] == high[row]:
                found = slot
                break
            place = (place + 1) & mask
        if found < 0:
            at = vacant if vacant >= 0 else place
            found = _opened(c, directory, free, earliest, scalars, at, high[row], low[row], 0, 0, 0)
        numbers[row] = c.end[found]
        c.end[found] += 1
        _touch(dirty, touched, scalars, found)
        slots[row] = found
    return slots, numbers


@numba.njit(cache=True)
def _find(c, directory, high, low):  # type: ignore[no-untyped-def]
    found = np.empty(0, np.int32)
    mask = len(directory) - 1
    place = low & mask
    while directory[place] != _EMPTY:
        slot = directory[place]
        if slot != _GONE and c.low[slot] == low and c.high[slot] == high:
            found = np.append(found, slot)
        place = (place + 1) & mask
    return found


@numba.njit(cache=True)
def _roots(c, slots):  # type: ignore[no-untyped-def]
    roots = np.empty_like(slots)
    for row in range(len(slots)):
        root = slots[row]
        while c.parent[root] >= 0:
            root = c.parent[root]
        roots[row] = root
    return roots


@numba.njit(cache=True)
def _due(c, earliest, used, watermark):  # type: ignore[no-untyped-def]
    """Windows that are due, from the blocks that may have one; those blocks' bounds become exact for the others."""
    due = np.empty(64, np.int32)
    count = 0
    for block in range((used + (1 << _BLOCK) - 1) >> _BLOCK):
        if earliest[block] > watermark:
            continue
        if count + (1 << _BLOCK) > len(due):
            longer = np.empty(2 * len(due) + (1 << _BLOCK), np.int32)
            longer[:count] = due[:count]
            due = longer
        bound = _NEVER
        for slot in range(block << _BLOCK, min(used, (block + 1) << _BLOCK)):
            if c.generation[slot] & 1 and c.parent[slot] < 0:
                bound = min(bound, c.end[slot])
                if c.end[slot] <= watermark:
                    due[count] = slot
                    count += 1
        earliest[block] = bound
    return due[:count]


@numba.njit(cache=True)
def _leave(c, directory, slot):  # type: ignore[no-untyped-def]
    mask = len(directory) - 1
    place = c.low[slot] & mask
    while directory[place] != slot:
        place = (place + 1) & mask
    directory[place] = _GONE


@numba.njit(cache=True)
def _remove(c, directory, free, dirty, touched, earliest, scalars, slots):  # type: ignore[no-untyped-def]
    for slot in slots:
        _leave(c, directory, slot)
        member = slot
        while member >= 0:
            following = c.sibling[member]
            c.generation[member] += 1
            c.parent[member] = c.sibling[member] = -1
            c.stored[member] = 0
            free[scalars[_FREE]] = member
            scalars[_FREE] += 1
            _touch(dirty, touched, scalars, member)
            member = following


@numba.njit(cache=True)
def _enter(c, directory, slots):  # type: ignore[no-untyped-def]
    mask = len(directory) - 1
    for slot in slots:
        place = c.low[slot] & mask
        while directory[place] >= 0:
            place = (place + 1) & mask
        directory[place] = slot


@numba.njit(cache=True)
def _apply(c, directory, scalars, slots, changed):  # type: ignore[no-untyped-def]
    """Slots as a later version has them; those that the directory must not have any more leave it first."""
    used = scalars[_USED]
    for row in range(len(slots)):
        slot = slots[row]
        if slot < used and c.generation[slot] & 1 and c.parent[slot] < 0:
            _leave(c, directory, slot)
    mask = len(directory) - 1
    for row in range(len(slots)):
        slot = slots[row]
        c.high[slot], c.low[slot] = changed.high[row], changed.low[row]
        c.start[slot], c.end[slot], c.ett[slot] = changed.start[row], changed.end[row], changed.ett[row]
        c.generation[slot] = changed.generation[row]
        c.parent[slot], c.sibling[slot] = changed.parent[row], changed.sibling[row]
        c.stored[slot] = changed.stored[row]
        if c.generation[slot] & 1 and c.parent[slot] < 0:
            place = c.low[slot] & mask
            while directory[place] >= 0:
                place = (place + 1) & mask
            if directory[place] == _EMPTY:
                scalars[_FILLED] += 1
            directory[place] = slot
        if slot >= scalars[_USED]:
            scalars[_USED] = slot + 1
