"""The key index: the open windows of a store instance, found by key (the *Stat table* of FlowKV, section 4.2).

A window lives in a *slot*, a record of one cache line. The windows of a key are a chain, the one that starts last first, so
that a row that arrives in order looks at one or two of them. A directory, an open-addressing hash table, finds the chain of
a key by the key's 128-bit identity. Slots are used again: the *generation* of a slot is odd while a window lives in it and
grows with every use, so that rows on disk that name a slot and a generation are live or dead without being touched. Only in
slots that no row names any more, and that the index has let go of (`KeyIndex.trim`), it begins anew.

Merged windows: the window that absorbs another becomes its *parent*. The absorbed one leaves the directory and keeps its
slot until the parent goes, so rows that name it still belong somewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.store import index_kernels as kernels
from forebay.store import pictures, step_kernels, version_kernels
from forebay.store.index_kernels import (
    BLOCK,
    EARLIEST,
    EMPTY,
    FILLED,
    FREE,
    LATEST,
    STORED,
    TOUCHED,
    USED,
    WINDOW,
    Records,
    Slots,
    Times,
)

_STORED = ("high", "low", "start", "end", "ett", "generation", "parent", "sibling", "stored")
"""The columns that versions have; chains are put together again."""

_MOST_STORED = 2**31 - 1

_LEAST_TRIMMED, _SPARSE = 1 << 16, 4
"""Free slots at the end are let go of where there are so many slots, and so many for each one that may have been needed."""

_AT_ONCE = 1 << 16
"""Rows that are placed at a time: there must be room for as many more windows."""


_CACHED = 1 << 11
"""So many windows fit into the cache of a processor."""
_MOST_PARTS = 10
"""The directory is gone through in at most two to the power of so many parts, one after the other."""

_STEPS = 4
"""From window to window of a key, for each row: rows that take more are placed in the order of their times."""


class Steps(NamedTuple):
    """What rows have done one after the other to windows that merge.

    Attributes
    ----------
    slots : array of int32
        The window of each row.
    changed : array of bool
        Whether the windows of its key have other bounds than before the row.
    windows : array of int64
        How many windows the key has after the row.
    absorbed : array of int64
        How many windows another one has absorbed.
    others : array of int32
        Those, the ones of the first row first.
    """

    slots: Slots
    changed: npt.NDArray[np.bool_]
    windows: Times
    absorbed: Times
    others: Slots


class KeyIndex:
    """Open windows by key.

    Attributes
    ----------
    records : array
        What there is of each slot. It is no ``numpy.recarray``: loops that are compiled take an array in a tenth of the
        time, which counts where they are called for one window.

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

    records: Records

    def __init__(self) -> None:
        self._allocate(0)
        self._directory = np.full(16, EMPTY, np.int64)
        self._free, self._ordered = np.empty(0, np.int32), 0
        self._dirty = np.zeros(0, np.uint8)
        self._earliest = np.empty((2, 0), np.int64)
        self._scalars = np.zeros(len(kernels.SCALARS), np.int64)
        self._peak = 0  # no fewer windows than there were at any time since the last picture

    def __len__(self) -> int:
        """Number of windows, absorbed ones included."""
        return int(self._scalars[USED] - self._scalars[FREE])

    @property
    def capacity(self) -> int:
        """Slots are below this number."""
        return len(self.records)

    @property
    def nbytes(self) -> int:
        return (WINDOW.itemsize + 5) * self.capacity + self._directory.nbytes

    # placing --------------------------------------------------------------------------------------------------------

    def place_merging(self, high: Times, low: Times, start: Times, end: Times, ett: Times | None = None) -> Slots:
        """The window of each row, where windows of a key that touch become one, as sessions do.

        Row ``i`` has the window ``[start[i], end[i]]`` of its own; ``ett`` is its end unless given.
        """
        return self._placed_in_time(kernels.place_merging, high, low, start, end, end if ett is None else ett)

    def place_in_steps(self, high: Times, low: Times, start: Times, end: Times, ett: Times) -> Steps:
        """What `place_merging` does, and what each row has changed."""
        columns = (high, low, start, end, ett)
        done = [
            step_kernels.place_in_steps(*self._state, *(column[part] for column in columns))
            for part in self._parts_of(len(low))
        ]
        return Steps(*(np.concatenate(arrays) for arrays in zip(*done, strict=True)))

    def place_exact(self, high: Times, low: Times, start: Times, end: Times, ett: Times | None = None) -> Slots:
        """The window of each row, where a window is a key with exactly these bounds."""
        return self._placed_in_time(kernels.place_exact, high, low, start, end, end if ett is None else ett)

    def place_counting(self, high: Times, low: Times) -> tuple[Slots, Times]:
        """The only window of each row's key, and the row's number in it; ``end`` counts the rows of the key."""
        slots, numbers = np.empty(len(low), np.int32), np.empty(len(low), np.int64)
        for part in self._parts_of(len(low)):
            kernels.place_counting(*self._state, high[part], low[part], slots[part], numbers[part])
        return slots, numbers

    def place_first(self, high: Times, low: Times) -> tuple[Slots, npt.NDArray[np.bool_]]:
        """The only window of each row's key, and whether the row has opened it; only those that are opened change."""
        slots, first = np.empty(len(low), np.int32), np.empty(len(low), np.bool_)
        for part in self._parts_of(len(low)):
            kernels.place_first(*self._state, high[part], low[part], slots[part], first[part])
        return slots, first

    # reading --------------------------------------------------------------------------------------------------------

    def neighbours_together(self, low: Times) -> Times:
        """An order of rows in which keys that are neighbours in the directory are together; those of a key stay as they are.

        Windows of rows that are placed in it are in the processor's cache when they are needed again. It follows from the
        number of windows alone: an index that was read from disk may have a directory of another size.
        """
        bits = min((len(self) // _CACHED).bit_length(), _MOST_PARTS)
        places = (1 << (2 * len(self)).bit_length()) - 1
        return kernels.by_place(low, places, bits) if len(low) >> bits else np.arange(len(low))

    def find(self, high: int, low: int) -> Slots:
        """Slots of the open windows of one key."""
        return kernels.find(self.records, self._directory, high, low)

    def find_exact(self, high: int, low: int, start: int, end: int) -> int:
        """The slot of a key's open window with exactly these bounds; -1 if there is none."""
        return int(kernels.find_exact(self.records, self._directory, high, low, start, end))

    def find_each(self, high: Times, low: Times, start: Times, end: Times) -> Slots:
        """What `find_exact` gives of each of some windows."""
        return kernels.find_each(self.records, self._directory, high, low, start, end)

    def windows_of(self, high: Times, low: Times) -> tuple[Slots, npt.NDArray[np.int64]]:
        """Slots of the open windows of distinct keys, in order of the slots, and the position of each one's key."""
        slots, owners = kernels.windows_of(self.records, self._directory, high, low)
        order = np.argsort(slots)
        return slots[order], owners[order]

    def roots(self, slots: Slots) -> Slots:
        """The windows that slots belong to now: themselves, or what has absorbed them."""
        return kernels.roots(self.records, slots)

    def windows(self, slots: Slots) -> Times:
        """Bounds of windows, one row ``start, end`` each."""
        return np.stack(self.bounds(slots), axis=1)

    def bounds(self, slots: Slots) -> tuple[Times, Times]:
        """Starts and ends of windows."""
        return self.records["start"][slots], self.records["end"][slots]

    def ends(self, slots: Slots) -> Times:
        """When windows end."""
        ends: Times = self.records["end"][slots]
        return ends

    def estimates(self, slots: Slots) -> Times:
        """The estimated trigger times of windows."""
        ett: Times = self.records["ett"][slots]
        return ett

    def identities(self, slots: Slots) -> tuple[Times, Times]:
        """The identities of the keys of windows."""
        return self.records["high"][slots], self.records["low"][slots]

    def generations(self, slots: Slots) -> npt.NDArray[np.int32]:
        """The generations of slots."""
        generations: npt.NDArray[np.int32] = self.records["generation"][slots]
        return generations

    def stored(self, slots: Slots) -> Times:
        """How many rows windows have on disk, those that they have absorbed left out."""
        stored: Times = self.records["stored"][slots].astype(np.int64)
        return stored

    @property
    def stored_rows(self) -> int:
        """How many rows all open windows have on disk."""
        return int(self._scalars[STORED])

    def live(self) -> Slots:
        """All windows, absorbed ones left out."""
        used = int(self._scalars[USED])
        alive = (self.records["generation"][:used] & 1).astype(bool) & (self.records["parent"][:used] < 0)
        return np.flatnonzero(alive).astype(np.int32)

    def due(self, watermark: int) -> Slots:
        """Windows that end at or before the watermark, earliest first."""
        slots = self._passed(kernels.BY_END, watermark)
        return slots[np.argsort(self.records["end"][slots], kind="stable")]

    def due_by_estimate(self, time: int) -> Slots:
        """Windows whose estimated trigger time is not after a time."""
        return self._passed(kernels.BY_ESTIMATE, time)

    def earliest(self) -> int:
        """When the first window ends; never, the last time of all, if there are no windows."""
        return self._first(kernels.BY_END)

    def earliest_estimate(self) -> int:
        """The first estimated trigger time; never, the last time of all, if there are no windows."""
        return self._first(kernels.BY_ESTIMATE)

    # changing -------------------------------------------------------------------------------------------------------

    def schedule(self, slots: Slots, ett: Times | int) -> None:
        """Windows have other estimated trigger times."""
        etts = np.full(len(slots), ett, np.int64)
        kernels.schedule(self.records, self._dirty, self._earliest, self._scalars, slots, etts)

    def restart(self, slots: Slots) -> None:
        """Windows over numbered rows begin after the last of these: ``start`` becomes ``end``."""
        self._set("start", slots, self.records["end"][slots])

    def store(self, slots: Slots, rows: npt.NDArray[np.integer[Any]]) -> None:
        """Windows have so many rows on disk."""
        rows = np.minimum(rows, _MOST_STORED)
        self._scalars[STORED] += rows.sum() - self.stored(slots).sum()
        self._set("stored", slots, rows)

    def store_more(self, slots: Slots, rows: npt.NDArray[np.integer[Any]]) -> None:
        """Windows have so many more rows on disk."""
        kernels.store_more(self.records, self._dirty, self._scalars, slots, rows, _MOST_STORED)

    def _set(self, column: str, slots: Slots, values: Any) -> None:
        self.records[column][slots] = values
        kernels.touch_all(self._dirty, self._scalars, slots)

    def remove(self, slots: Slots) -> None:
        """End windows and those they absorbed."""
        kernels.remove(*self._state, slots)

    def renew(self, slots: Slots) -> None:
        """Forget the rows of windows that have absorbed none; the windows stay."""
        self._set("generation", slots, self.records["generation"][slots] + 2)
        self.store(slots, np.zeros(len(slots), np.int64))

    # versions -------------------------------------------------------------------------------------------------------

    def trim(self, least: Callable[[], int]) -> bool:
        """Let go of free slots at the end, if most slots are there, and were free since the last `picture`.

        Gives whether it has; a `picture` must follow. So many slots as ``least`` gives stay: generations begin anew in those
        that come after them, so nothing on disk may name these.
        """
        most = self.capacity // _SPARSE
        if self.capacity < _LEAST_TRIMMED or max(self._peak, len(self)) > most:
            return False
        used = np.flatnonzero(self.records["generation"][: self._scalars[USED]] & 1)
        top = int(used[-1]) + 1 if len(used) else 0
        if top <= most:
            top = max(top, least())  # which is asked only where it may matter
        if top > most:
            return False
        free = self._free[: self._scalars[FREE]]
        free = free[free < top]
        self._free[: len(free)] = free
        self._scalars[USED], self._scalars[FREE], self._ordered = top, len(free), 0
        self._resize(top + max(top // 4, self._peak))
        self._lay_out(int(self._scalars[FILLED]))
        return True

    @property
    def touched(self) -> int:
        """Number of slots changed since the last `changes`."""
        return int(self._scalars[TOUCHED])

    def changes(self) -> list[pa.RecordBatch]:
        """The slots that changed; they count as unchanged from now on.

        One batch has the windows, without columns that say nothing: ``ett`` where it is ``end``, ``parent`` and ``sibling``
        where there are none. The other one has the generations of slots that are free.
        """
        used = self._scalars[USED]
        wanted = np.flatnonzero(self._dirty[:used].view(np.bool_)).astype(np.int32)
        alive = (self.records["generation"][wanted] & 1).astype(bool)
        windows, free = ({"slot": slots} for slots in (wanted[alive], wanted[~alive]))
        windows |= {name: self.records[name][windows["slot"]] for name in _STORED}
        self._dirty[wanted] = 0
        self._scalars[TOUCHED] = 0
        self._sort_free()
        if (windows["ett"] == windows["end"]).all():
            del windows["ett"]
        if (windows["parent"] < 0).all() and (windows["sibling"] < 0).all():  # the first absorbed one is a sibling
            del windows["parent"], windows["sibling"]
        free["generation"] = self.records["generation"][free["slot"]]
        return [_batch(part) for part in (windows, free) if len(part["slot"])]

    def picture(self) -> pa.RecordBatch:
        """All of it as it is in memory, compressed, a row for each part; the slots count as unchanged from now on."""
        self._dirty[:] = 0
        self._scalars[TOUCHED] = self._peak = 0
        self._sort_free()
        parts = self.parts
        del parts["dirty"]
        return pictures.of(**parts | {"free": self._free[: self._scalars[FREE]]})

    @property
    def parts(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays that it consists of, by name."""
        return {
            "records": self.records,
            "directory": self._directory,
            "earliest": self._earliest,
            "free": self._free,
            "scalars": self._scalars,
            "dirty": self._dirty,
        }

    def use(self, parts: Mapping[str, npt.NDArray[Any]]) -> None:
        """Consist of other arrays from now on, which it will change."""
        records = parts["records"]
        self.records = records if records.dtype == WINDOW else records.view(WINDOW)
        self._directory, self._earliest = parts["directory"], parts["earliest"]
        self._free, self._ordered = parts["free"], 0
        self._scalars, self._dirty = parts["scalars"], parts["dirty"]

    @classmethod
    def restored(cls, changes: Iterable[pa.RecordBatch], picture: pa.RecordBatch | None = None) -> KeyIndex:
        """The index after changes, oldest first, to nothing or to a picture."""
        index, changes = cls(), list(changes)
        if picture is not None:
            index._become(picture, max((_top(change) for change in changes), default=0))
        index.replace(changes)
        return index

    def replace(self, changes: Iterable[pa.RecordBatch]) -> Slots:
        """Bring the index to a later version, by what was changed since, oldest first; gives the slots that changed."""
        slots = [np.empty(0, np.int32)]
        for change in changes:
            self._replace(change)
            slots.append(change["slot"].to_numpy())
        changed = np.concatenate(slots)
        self._free_again(changed)
        return changed

    # private --------------------------------------------------------------------------------------------------------

    def _become(self, picture: pa.RecordBatch, least: int) -> None:
        """Be what a picture has, with room for so many slots at least."""
        size = pictures.sizes(picture)
        had = size["records"] // WINDOW.itemsize
        self._allocate(had if least <= had else least + least // 4)
        self._directory, self._scalars = (np.empty(size[part] // 8, np.int64) for part in ("directory", "scalars"))
        earliest = np.empty((2, size["earliest"] // 16), np.int64)
        free = np.empty(size["free"] // 4, np.int32)
        pictures.into(
            picture,
            records=self.records[:had],
            directory=self._directory,
            scalars=self._scalars,
            earliest=earliest,
            free=free,
        )
        self._earliest = self._bounds(earliest)
        self._dirty, self._free = np.zeros(self.capacity, np.uint8), np.empty(self.capacity, np.int32)
        self._free[: len(free)] = free

    def _replace(self, change: pa.RecordBatch) -> None:
        """Slots get the content that a batch of `changes` has for them."""
        columns = {name: change[name].to_numpy() for name in change.schema.names}
        slots = columns["slot"]
        top = _top(change)
        if top > self.capacity:
            self._resize(top + top // 4)
        self._widen(len(slots))
        if "end" not in columns:
            version_kernels.replace_free(self.records, self._directory, self._scalars, slots, columns["generation"])
            return
        nothing = np.full(len(slots), -1, np.int32)
        defaults = {"ett": columns["end"], "parent": nothing, "sibling": nothing}
        contents = (columns.get(name, defaults.get(name)) for name in _STORED)
        version_kernels.replace_windows(self.records, self._directory, self._earliest, self._scalars, slots, *contents)

    def _free_again(self, changed: Slots) -> None:
        """Find the free slots, of which only these were replaced since it was known which ones were free."""
        if not len(changed):
            return
        replaced = np.zeros(self.capacity, bool)
        replaced[changed] = True
        before, changed = self._free[: self._scalars[FREE]], np.flatnonzero(replaced).astype(np.int32)
        still, now = before[~replaced[before]], changed[self.records["generation"][changed] & 1 == 0]
        free = np.concatenate([still, now])
        self._free[: len(free)] = free
        self._scalars[FREE], self._ordered = len(free), 0
        self._sort_free()

    def _sort_free(self) -> None:
        """Have the first of the free slots used again first, whether the index was in memory all the time or was read.

        So an attempt at a micro-batch gives results in the order of the one before; and neighbours get neighbouring slots.
        Most of them are in order: slots have been taken from the end and put there, and those with low numbers are in use.
        """
        free = self._free[: self._scalars[FREE]]
        ordered, others = np.split(free, [min(self._ordered, len(free))])
        if len(others):
            first = len(ordered) - np.searchsorted(ordered[::-1], others.max())
            free[first:] = np.sort(free[first:])[::-1]
        self._ordered = len(free)

    @property
    def _state(self) -> tuple[Any, ...]:
        self._ordered = min(self._ordered, int(self._scalars[FREE]))
        return self.records, self._directory, self._free, self._dirty, self._earliest, self._scalars

    def _passed(self, by: int, time: int) -> Slots:
        return kernels.due(self.records, self._earliest, by, int(self._scalars[USED]), time)

    def _first(self, by: int) -> int:
        return int(kernels.soonest(self.records, self._earliest, by, int(self._scalars[USED])))

    def _placed_in_time(self, kernel: Callable[..., int], *columns: Times) -> Slots:
        """The windows of rows, some rows at a time.

        A search begins at the newest window of a key. Where that takes many steps, as with many windows of one key and rows
        in no order, rows are placed in the order of their times, so that each search goes on where the one before has ended.
        """
        slots = np.empty(len(columns[0]), np.int32)
        for part in self._parts_of(len(slots)):
            some, found = [column[part] for column in columns], slots[part]
            placed = kernel(*self._state, *some, _STEPS * len(found), found)
            if placed < len(found):
                _, low, start, *_ = (column[placed:] for column in some)
                order = placed + np.lexsort((-start, low))
                others = np.empty(len(order), np.int32)
                kernel(*self._state, *(column[order] for column in some), LATEST, others)
                found[order] = others
        return slots

    def _parts_of(self, rows: int) -> Iterator[slice]:
        """Rows that are to be placed, some at a time, and room for them, as each may need a new window."""
        for begin in range(0, max(1, rows), _AT_ONCE):
            part = slice(begin, min(rows, begin + _AT_ONCE))
            self._reserve(part.stop - begin)
            yield part

    def _reserve(self, rows: int) -> None:
        """Make room for so many more windows."""
        self._peak = max(self._peak, len(self) + rows)
        missing = rows - int(self._scalars[FREE]) - (self.capacity - int(self._scalars[USED]))
        if missing > 0:
            self._resize(self.capacity + max(missing, self.capacity // 4, 64))
        self._widen(rows)

    def _widen(self, rows: int) -> None:
        """Keep the directory at most 5/8 full."""
        needed = int(self._scalars[FILLED]) + rows
        if needed * 8 > len(self._directory) * 5:
            self._lay_out(needed)

    def _lay_out(self, keys: int) -> None:
        """Have a directory for so many keys."""
        before, self._directory = self._directory, np.full(max(16, 1 << (keys * 2 - 1).bit_length()), EMPTY, np.int64)
        kernels.widen(before, self._directory)

    def _allocate(self, capacity: int) -> None:
        """Records of windows, each in a cache line of its own."""
        memory = np.zeros((capacity + 1) * WINDOW.itemsize, np.uint8)
        begin = -memory.ctypes.data % WINDOW.itemsize
        self.records = memory[begin : begin + capacity * WINDOW.itemsize].view(WINDOW)

    def _bounds(self, known: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The bounds of all blocks of slots, of which some are known."""
        bounds = np.full((2, (self.capacity >> BLOCK) + 1), EARLIEST, np.int64)
        bounds[:, : known.shape[1]] = known[:, : bounds.shape[1]]
        return bounds

    def _resize(self, capacity: int) -> None:
        before, used = self.records, int(self._scalars[USED])
        self._allocate(capacity)
        self.records[:used] = before[:used]
        free, self._free = self._free, np.empty(capacity, np.int32)
        self._free[: self._scalars[FREE]] = free[: self._scalars[FREE]]
        self._earliest = self._bounds(self._earliest)
        dirty, self._dirty = self._dirty, np.zeros(capacity, np.uint8)
        self._dirty[:used] = dirty[:used]


def _top(change: pa.RecordBatch) -> int:
    """The number after that of the last slot in a batch of `changes`."""
    return int(change["slot"].to_numpy().max()) + 1


def _batch(columns: dict[str, npt.NDArray[Any]]) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(column) for name, column in columns.items()})
