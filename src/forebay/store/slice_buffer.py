"""The write buffer of aligned windows: batches as they came, and where in them the rows of each slice are.

A batch of history may have rows of tens of thousands of slices. As a batch for each of them they would take forty times the
memory of the rows, so a batch stays whole until its rows are read or written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.windows import Times

_Numbers = npt.NDArray[np.int64]


class Runs(NamedTuple):
    """Rows of slices: of each run the start of the slice, the number of the batch, the first row, and the end."""

    starts: Times
    batches: _Numbers
    begins: _Numbers
    ends: _Numbers

    def where(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.integer]) -> Runs:
        """Some of the runs."""
        return Runs(*(column[chosen] for column in self))


class SliceBuffer:
    """Rows by slice.

    Examples
    --------
    >>> buffer = SliceBuffer()
    >>> buffer.append(pa.record_batch({"n": [1, 2, 3]}), np.array([0, 5]), np.array([0, 2]), np.array([2, 3]))
    >>> buffer.append(pa.record_batch({"n": [4]}), np.array([5]), np.array([0]), np.array([1]))
    >>> [(start, [batch["n"].to_pylist() for batch in batches]) for start, batches in buffer.by_slice()]
    [(0, [[1, 2]]), (5, [[3], [4]])]
    >>> buffer.drop([5])
    >>> buffer.slices.tolist(), buffer.rows
    ([0], 2)
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Have nothing."""
        self._batches: dict[int, pa.RecordBatch] = {}
        self._appended = 0
        self._new: list[Runs] = []
        self._runs = Runs(*(np.empty(0, np.int64) for _ in Runs._fields))
        self.nbytes, self.rows = 0.0, 0
        """Bytes and number of the rows of slices."""

    def append(self, batch: pa.RecordBatch, starts: Times, begins: _Numbers, ends: _Numbers) -> None:
        """Add a batch in which the rows of slices are between these bounds."""
        if len(starts):
            self._batches[self._appended] = batch
            self._new.append(Runs(starts, np.full(len(starts), self._appended), begins, ends))
            self._appended += 1
            self._count(self._new[-1], 1)

    @property
    def slices(self) -> Times:
        """Starts of the slices that have rows, ascending."""
        return np.unique(self._sorted().starts)

    def of(self, start: int) -> list[pa.RecordBatch]:
        """The rows of a slice, batch by batch, in order of arrival."""
        runs = self._sorted()
        begin, end = np.searchsorted(runs.starts, [start, start + 1])
        return self._rows_of(runs, begin, end)

    def by_slice(self) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
        """The rows of each slice, the earliest first."""
        runs = self._sorted()
        starts, begins = np.unique(runs.starts, return_index=True)
        for start, begin, end in zip(starts.tolist(), begins, np.append(begins, len(runs.starts))[1:], strict=True):
            yield start, self._rows_of(runs, begin, end)

    def sizes_of(self, slices: Times) -> npt.NDArray[np.float64]:
        """About how many bytes each of some slices has: as many as other rows of the batches in which its rows are."""
        runs = self._sorted()
        sizes = np.append(0, np.cumsum(self._sizes(runs)))
        begins, ends = (np.searchsorted(runs.starts, slices, side=side) for side in ("left", "right"))
        return sizes[ends] - sizes[begins]

    def drop(self, slices: Iterable[int]) -> None:
        """Forget slices."""
        runs = self._sorted()
        gone = np.isin(runs.starts, np.fromiter(slices, np.int64))
        if gone.any():
            self._count(runs.where(gone), -1)
            self._runs = runs.where(~gone)
            left = set(self._runs.batches.tolist())
            self._batches = {number: batch for number, batch in self._batches.items() if number in left}

    def _count(self, runs: Runs, sign: int) -> None:
        self.rows += sign * int((runs.ends - runs.begins).sum())
        self.nbytes += sign * float(self._sizes(runs).sum())

    def _sizes(self, runs: Runs) -> npt.NDArray[np.float64]:
        """About how many bytes each run has, and what is noted of it."""
        numbers, places = np.unique(runs.batches, return_inverse=True)
        batches = [self._batches[number] for number in numbers.tolist()]
        of_a_row = np.array([batch.nbytes / max(1, batch.num_rows) for batch in batches])
        return (runs.ends - runs.begins) * of_a_row[places] + sum(column.itemsize for column in runs)

    def _sorted(self) -> Runs:
        """All runs by slice, those of a slice in order of arrival."""
        if self._new:
            runs = Runs(*map(np.concatenate, zip(self._runs, *self._new, strict=True)))
            self._runs, self._new = runs.where(np.argsort(runs.starts, kind="stable")), []
        return self._runs

    def _rows_of(self, runs: Runs, begin: int, end: int) -> list[pa.RecordBatch]:
        return [
            self._batches[number].slice(first, last - first)
            for _, number, first, last in zip(*(column[begin:end].tolist() for column in runs), strict=True)
        ]
