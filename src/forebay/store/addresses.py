"""Where on disk the rows of each window lie: a read looks at the pieces of the windows that it wants, and at no others.

Pieces are linked by window, as rows in memory are (`RowBuffer`): each slot has its youngest piece, and each piece the one
before it. A window that has ended leaves its pieces behind; they are dead because its slot has another generation. An extent
that was written again leaves its own behind; they lead nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.store import row_kernels as kernels
from forebay.store.key_index import KeyIndex, Slots
from forebay.store.pieces import Pieces
from forebay.store.row_buffer import Rows, grown


class Addresses:
    """The pieces of some extents by window slot.

    Parameters
    ----------
    index : KeyIndex
        The open windows.
    pieces : int
        How many pieces there will be at first.
    """

    def __init__(self, index: KeyIndex, pieces: int = 0) -> None:
        self._index = index
        self._numbers: list[int | None] = []
        self._sizes: list[int] = []
        self._places: dict[int, int] = {}
        self._count = self._lost = 0
        self._cached: dict[int, pa.RecordBatch] = {}
        self._heads = np.empty(0, np.int32)
        self._widths = np.empty(0, np.float64)
        self._previous, self._generations, self._first, self._rows, self._owners = (
            np.zeros(pieces, np.int32) for _ in range(5)
        )

    @property
    def nbytes(self) -> int:
        return self._heads.nbytes + 5 * self._previous.nbytes

    @property
    def crowded(self) -> bool:
        """Whether most of it is of extents that are not there any more."""
        return 2 * self._lost > self._count or len(self._numbers) > 4 * len(self._places) + 1024

    def add(self, number: int, pieces: Pieces) -> None:
        """Add an extent."""
        begin, end = self._count, self._count + len(pieces.slot)
        if end > len(self._previous):
            capacity = max(end, len(self._previous) + len(self._previous) // 2)
            self._previous = grown(self._previous, capacity)
            self._generations = grown(self._generations, capacity)
            self._first, self._rows = grown(self._first, capacity), grown(self._rows, capacity)
            self._owners = grown(self._owners, capacity)
        if self._index.capacity > len(self._heads):
            self._heads = grown(self._heads, self._index.capacity)
        self._generations[begin:end] = pieces.generation
        self._first[begin:end], self._rows[begin:end] = pieces.first, pieces.rows
        self._owners[begin:end] = len(self._numbers)
        kernels.chain(self._heads, self._previous, self._generations, begin, pieces.slot)
        self._places[number] = len(self._numbers)
        self._numbers.append(number)
        self._sizes.append(end - begin)
        self._count = end

    def drop(self, number: int) -> None:
        """Forget an extent."""
        place = self._places.pop(number)
        self._numbers[place] = None
        self._widths[place : place + 1] = 0
        self._lost += self._sizes[place]
        self._cached.pop(number, None)

    def forget_rows(self) -> None:
        """Let go of the files of extents in which one window was looked for."""
        self._cached.clear()

    @property
    def parts(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays that it consists of, by name."""
        return {
            "heads": self._heads,
            "previous": self._previous,
            "generations": self._generations,
            "first": self._first,
            "rows": self._rows,
            "owners": self._owners,
        }

    @property
    def extents(self) -> npt.NDArray[np.int64]:
        """The numbers of the extents, or -1 of those that have been dropped, and how many pieces each has."""
        return np.array([[-1 if number is None else number for number in self._numbers], self._sizes], np.int64)

    def use(self, parts: Mapping[str, npt.NDArray[Any]], extents: npt.NDArray[np.int64]) -> None:
        """Consist of other arrays from now on, which it will change, and have these extents."""
        self._heads, self._previous, self._generations = parts["heads"], parts["previous"], parts["generations"]
        self._first, self._rows, self._owners = parts["first"], parts["rows"], parts["owners"]
        numbers, self._sizes = extents.tolist()
        self._numbers = [None if number < 0 else number for number in numbers]
        self._widths = np.empty(0, np.float64)
        self._places = {number: place for place, number in enumerate(numbers) if number >= 0}
        self._count = sum(self._sizes)
        self._lost = sum(size for number, size in zip(numbers, self._sizes, strict=True) if number < 0)

    def find(self, slots: Slots) -> Iterator[tuple[int, Rows, Slots]]:
        """The rows of windows and of those that they absorbed: extents, oldest first, each with rows and their windows."""
        arguments = self._index.records, self._heads, self._previous, self._generations, slots
        pieces, roots = kernels.ascending(*kernels.collected(*arguments), self._count)
        owners = self._owners[pieces]
        begins = np.flatnonzero(np.diff(owners, prepend=-1))
        found = zip((self._numbers[owner] for owner in owners[begins]), begins, [*begins[1:], len(owners)], strict=True)
        for number, begin, end in sorted((number, begin, end) for number, begin, end in found if number is not None):
            rows, windows = kernels.expand(pieces[begin:end], roots[begin:end], self._first, self._rows)
            yield number, rows, windows

    def bytes_of(self, slots: Slots, width: Callable[[int], float]) -> npt.NDArray[np.float64]:
        """About how many bytes the rows of windows have; ``width`` gives the mean size of a row of an extent."""
        new = [0.0 if number is None else width(number) for number in self._numbers[len(self._widths) :]]
        if new:
            self._widths = np.concatenate([self._widths, new])
        return self._summed(slots, lambda pieces: self._rows[pieces] * self._widths[self._owners[pieces]])

    def _summed(self, slots: Slots, weigh: Callable[[Rows], npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
        """What the pieces of windows weigh together."""
        chains = self._index.records, self._heads, self._previous, self._generations, slots
        counts = kernels.count_items(*chains)
        pieces, _ = kernels.collected(*chains)
        return np.bincount(np.repeat(np.arange(len(slots)), counts), weigh(pieces), len(slots)).astype(np.float64)

    def pieces_of(self, slots: Slots) -> npt.NDArray[np.float64]:
        """In how many pieces the rows of windows lie."""
        there = np.array([number is not None for number in self._numbers])
        return self._summed(slots, lambda pieces: there[self._owners[pieces]])

    def of(self, slot: int, read: Callable[[int], pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The rows of a window that has absorbed none, in order of arrival.

        ``read`` gives the rows of an extent. It is called once for each extent in which a window is looked for.
        """
        found = []
        records = self._index.records
        for piece in kernels.chained(records, self._heads, self._previous, self._generations, slot).tolist():
            number = self._numbers[self._owners[piece]]
            if number is None:
                continue
            rows = self._cached.get(number)
            if rows is None:
                rows = self._cached[number] = read(number)
            found.append((number, rows.slice(int(self._first[piece]), int(self._rows[piece]))))
        if len(found) > 1:
            found.sort(key=lambda part: part[0])
        return [rows for _, rows in found]
