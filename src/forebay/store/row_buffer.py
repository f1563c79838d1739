"""Rows in memory, found by window: the write buffer and the prefetch buffer of the unaligned store.

Rows of one window are a chain, newest first, from the head that its slot has (the hash buckets of FlowKV, section 4.2). A
window that ends leaves its rows behind; they are dead because its slot has another generation.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay import arrow
from forebay.store import row_kernels as kernels
from forebay.store.extent_groups import joining
from forebay.store.key_index import KeyIndex, Slots

Rows = npt.NDArray[np.int64]

_MAX_BATCHES = 32

LINK_BYTES = 12
"""What there is of each row beside the row: its slot, the generation of that, and the row before it."""


class RowBuffer:
    """Rows by window slot, in order of arrival."""

    def __init__(self, index: KeyIndex) -> None:
        self._index = index
        self._heads = self._slots = np.empty(0, np.int32)
        self._rows = 0
        self.clear()

    def __len__(self) -> int:
        """Number of rows, dead ones included."""
        return self._rows

    def clear(self) -> None:
        """Have no rows."""
        if kernels.sparse(self._rows, len(self._heads)):
            self._heads[self._slots[: self._rows]] = 0
        else:
            self._heads = np.empty(0, np.int32)
        self._batches: list[pa.RecordBatch] = []
        self._begins = [0]
        self._rows = self.nbytes = 0
        self._slots = np.empty(0, np.int32)
        self._generations = np.empty(0, np.int32)
        self._previous = np.empty(0, np.int32)

    def append(self, batch: pa.RecordBatch, slots: Slots) -> None:
        """Add rows of windows that are open."""
        rows = self._rows + batch.num_rows
        if rows > len(self._slots):
            capacity = max(rows, 2 * len(self._slots))
            self._slots = grown(self._slots, capacity)
            self._generations = grown(self._generations, capacity)
            self._previous = grown(self._previous, capacity)
        if self._index.capacity > len(self._heads):
            self._heads = grown(self._heads, self._index.capacity)
        kernels.link(
            self._index.records["generation"], self._heads, self._previous, self._slots, self._generations, self._rows, slots
        )
        self._batches.append(batch)
        self._begins.append(rows)
        self._rows = rows
        self.nbytes += batch.nbytes + LINK_BYTES * batch.num_rows
        if len(self._batches) > _MAX_BATCHES:
            self._combine()

    def discard(self, slots: Slots) -> None:
        """Have no rows of slots any more; those of windows that they absorbed stay."""
        kernels.unlink(self._heads, self._previous, self._generations, slots)

    def rows_of(self, slots: Slots) -> tuple[Rows, Slots]:
        """Numbers of the rows of windows, and of those they absorbed, ascending; and the window of each."""
        if not self._rows or not len(slots):
            return np.empty(0, np.int64), np.empty(0, np.int32)
        arguments = (self._index.records, self._heads, self._previous, self._generations, slots)
        return kernels.ascending(*kernels.collected(*arguments), self._rows)

    def bytes_of(self, slots: Slots) -> npt.NDArray[np.floating[Any]]:
        """How many bytes the rows of windows have, whose slots ascend."""
        rows, roots = self.rows_of(slots)
        if not len(rows):
            return np.zeros(len(slots))
        sizes = np.concatenate([arrow.row_bytes(batch.columns, batch.num_rows) for batch in self._batches])
        return np.bincount(np.searchsorted(slots, roots), sizes[rows], len(slots)).astype(np.float64)

    def of(self, slot: int) -> list[pa.RecordBatch]:
        """The rows of a window that has absorbed none, in order of arrival."""
        found: list[pa.RecordBatch] = []
        chained = kernels.chained(self._index.records, self._heads, self._previous, self._generations, slot).tolist()
        for begin, end in _runs(chained, self._begins):
            batch = bisect.bisect_right(self._begins, begin) - 1
            found.append(self._batches[batch].slice(begin - self._begins[batch], end - begin))
        return found

    def live(self) -> tuple[Rows, Slots]:
        """Numbers of all rows whose windows are open, ascending; and the window of each."""
        alive = self._index.records["generation"][self._slots[: self._rows]] == self._generations[: self._rows]
        rows = np.flatnonzero(alive)
        return rows, self._index.roots(self._slots[rows])

    def take(self, rows: Rows) -> pa.RecordBatch:
        """Rows by ascending number."""
        cuts = np.searchsorted(rows, self._begins).tolist()
        parts = [
            batch if end - begin == batch.num_rows else batch.take(pa.array(rows[begin:end] - first))
            for batch, first, (begin, end) in zip(self._batches, self._begins, itertools.pairwise(cuts), strict=False)
            if end > begin
        ]
        return arrow.joined(parts)

    def _combine(self) -> None:
        """The youngest batches become one as long as each is no larger than those after it together."""
        first = min(joining([batch.num_rows for batch in self._batches], self._rows), len(self._batches) - 2)
        self._batches[first:] = [pa.concat_batches(self._batches[first:])]
        self._begins[first + 1 :] = [self._rows]


def _runs(rows: list[int], cuts: list[int]) -> Iterator[tuple[int, int]]:
    """Where ascending numbers follow each other without a gap or a cut: the first, and one more than the last."""
    begin, end = -1, -1
    for row in rows:
        if row != end or row in cuts:
            if end > begin:
                yield begin, end
            begin = row
        end = row + 1
    if end > begin:
        yield begin, end


def grown(array: npt.NDArray[Any], capacity: int) -> npt.NDArray[Any]:
    """A copy of an array that has room for more, with zeros there."""
    longer = np.zeros(capacity, array.dtype)
    longer[: len(array)] = array
    return longer
