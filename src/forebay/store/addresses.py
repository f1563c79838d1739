"""Where on disk the rows of each window lie, for reads of one window at a time: they look at nothing else.

A scan of all pieces costs as much for one window as for thousands. Here pieces are linked by window, as rows in memory are
(`RowBuffer`): each slot has its youngest piece, and each piece the one before it. A window that has ended leaves its pieces
behind; they are dead because its slot has another generation.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from forebay.store import row_kernels as kernels
from forebay.store.key_index import KeyIndex
from forebay.store.pieces import Pieces
from forebay.store.row_buffer import grown


class Addresses:
    """The pieces of some extents by window slot.

    Parameters
    ----------
    index : KeyIndex
        The open windows.
    """

    def __init__(self, index: KeyIndex) -> None:
        self._index = index
        self._extents: list[tuple[int, Pieces]] = []
        self._rows: dict[int, pa.RecordBatch] = {}
        self._begins = [0]
        self._heads = np.empty(0, np.int64)
        self._previous = np.empty(0, np.int64)
        self._generations = np.empty(0, np.int32)

    def __len__(self) -> int:
        """Number of extents."""
        return len(self._extents)

    @property
    def nbytes(self) -> int:
        return self._heads.nbytes + self._previous.nbytes + self._generations.nbytes

    def add(self, number: int, pieces: Pieces) -> None:
        """Add an extent that is younger than those before."""
        begin, end = self._begins[-1], self._begins[-1] + len(pieces.slot)
        if end > len(self._previous):
            capacity = max(end, 2 * len(self._previous))
            self._previous = grown(self._previous, capacity, -1)
            self._generations = grown(self._generations, capacity, 0)
        if self._index.capacity > len(self._heads):
            self._heads = grown(self._heads, self._index.capacity, -1)
        self._generations[begin:end] = pieces.generation
        kernels.chain(self._heads, self._previous, begin, pieces.slot)
        self._extents.append((number, pieces))
        self._begins.append(end)

    def of(self, slot: int, read: Callable[[int], pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The rows of a window that has absorbed none, in order of arrival.

        ``read`` gives the rows of an extent. It is called once for each extent in which a window is looked for.
        """
        found = []
        records = self._index.records
        for piece in kernels.chained(records, self._heads, self._previous, self._generations, slot).tolist():
            extent = bisect.bisect_right(self._begins, piece) - 1
            number, pieces = self._extents[extent]
            rows = self._rows.get(number)
            if rows is None:
                rows = self._rows[number] = read(number)
            place = piece - self._begins[extent]
            found.append(rows.slice(int(pieces.first[place]), int(pieces.rows[place])))
        return found
