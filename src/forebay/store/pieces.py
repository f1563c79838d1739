"""Pieces: where the rows of unaligned windows lie on disk. This is the index log of FlowKV (section 4.2).

Rows are written in *extents*, ordered by estimated trigger time, so that what fires together lies together. A piece is a run
of rows of one window in an extent. The pieces of an extent are written beside it, and are read as a whole: by a store that
has to find rows (`forebay.store.addresses`), and where an extent is written again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay import arrow
from forebay.store import row_kernels as kernels
from forebay.store.index_kernels import Records
from forebay.store.key_index import KeyIndex, Slots
from forebay.store.row_buffer import Rows

_PART, _WIDE, _SHARE = 8, 4, 16
"""In what is at least such a part of an extent, rows wider than the mean are on average less than so many times as wide as
the others, or have less than such a share of the bytes."""


class Pieces(NamedTuple):
    """The pieces of one extent, in order: slot and generation of the window, first row, number of rows."""

    slot: Slots
    generation: Slots
    first: Slots
    rows: Slots

    @classmethod
    def of(cls, slots: Slots, index: KeyIndex) -> Pieces:
        """The pieces of an extent whose rows belong to ``slots``."""
        begins = np.flatnonzero(np.diff(slots, prepend=-1)) if len(slots) else np.empty(0, np.int64)
        owners = slots[begins]
        rows = np.diff(begins, append=len(slots))
        return cls(owners, index.records["generation"][owners], begins.astype(np.int32), rows.astype(np.int32))

    @classmethod
    def read(cls, batch: pa.RecordBatch) -> Pieces:
        return cls(*(column.to_numpy().copy() for column in batch.columns))  # a view would hold on to the whole file

    def as_batch(self) -> pa.RecordBatch:
        return pa.record_batch({name: pa.array(column) for name, column in self._asdict().items()})

    def live(self, records: Records) -> tuple[Rows, Slots]:
        """Rows of all open windows, and the window of each."""
        rows, roots = kernels.expand(*kernels.live_pieces(records, self.slot, self.generation), self.first, self.rows)
        return rows, roots

    def live_rows(self, records: Records) -> int:
        """How many rows are of open windows."""
        return int(kernels.live_rows(records, self.slot, self.generation, self.rows))


def by_trigger_time(slots: Slots, records: Records) -> tuple[Rows, Slots, Slots]:
    """The order of rows by their windows' ETT, and by arrival within a window; the windows, and how many rows each has."""
    if kernels.sparse(len(slots), len(records)):
        owners, places, numbers = np.unique(slots, return_inverse=True, return_counts=True)
        earliest = np.argsort(records["ett"][owners])
        ranks = np.empty(len(owners), np.int64)
        ranks[earliest] = np.arange(len(owners))
        return np.argsort(ranks[places], kind="stable"), owners[earliest], numbers[earliest].astype(np.int32)
    counts, owners = kernels.counted(slots, len(records))
    owners = owners[np.argsort(records["ett"][owners])]
    numbers = counts[owners]
    counts[owners] = np.cumsum(numbers) - numbers
    return kernels.scattered(slots, counts), owners, numbers.astype(np.int32)


def in_extents(
    batch: pa.RecordBatch, slots: Slots, extent_bytes: int, most: int | None = None
) -> Iterator[tuple[pa.RecordBatch, Slots]]:
    """Rows, those of each window together, as the extents that they are to be, at most ``most``; with their windows.

    How large windows are, and how much of an extent is dead, is told from the mean size of its rows. So windows with wide
    rows get extents apart from those with narrow ones. A small part of an extent stays as it is: it will be combined
    with others.
    """
    groups = _alike(batch, slots) if batch.nbytes >= extent_bytes // _PART else [None]
    if most is not None and len(groups) > most:
        groups = [None]
    for left, rows in zip(range(len(groups) - 1, -1, -1), groups, strict=True):
        some, owners = (batch, slots) if rows is None else (batch.take(pa.array(rows)), slots[rows])
        bounds = _cuts(len(owners), some.nbytes, extent_bytes, None if most is None else most - left)
        for begin, end in itertools.pairwise(bounds):
            yield some.slice(begin, end - begin), owners[begin:end]
        if most is not None:
            most -= len(bounds) - 1


def _cuts(rows: int, nbytes: int, extent_bytes: int, most: int | None) -> Sequence[int]:
    """Where rows of so many bytes are cut into extents, at most ``most``: the first row of each, and the end."""
    step = max(1, rows * extent_bytes // max(nbytes, 1), -(-rows // most) if most else 1)
    return [*range(0, rows, step), rows]


def _alike(batch: pa.RecordBatch, slots: Slots) -> Sequence[Rows | None]:
    """The rows of windows in which rows are about as wide, for each such width; None is all rows."""
    sizes = arrow.row_bytes(batch.columns, batch.num_rows)
    if not len(sizes) or sizes.min() == sizes.max():
        return [None]
    begins = np.flatnonzero(np.diff(slots, prepend=-1))
    counts = np.diff(begins, append=len(slots))
    groups = _by_width(counts, np.add.reduceat(sizes, begins), int(sizes.sum()) // _SHARE)
    if len(groups) == 1:
        return [None]
    group = np.empty(len(begins), np.int64)
    for number, windows in enumerate(groups):
        group[windows] = number
    return [np.flatnonzero(rows) for rows in np.repeat(group, counts) == np.arange(len(groups))[:, np.newaxis]]


def _by_width(rows: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64], least: int) -> Sequence[npt.NDArray[np.int64]]:
    """Windows with so many rows of so many bytes in groups, each of windows whose rows are about as wide.

    Those that are wider than the mean of a group are not much wider than the others, or have less than ``least`` bytes.

    Examples
    --------
    >>> [group.tolist() for group in _by_width(np.array([5, 1, 9, 1]), np.array([50, 8000, 90, 500]), 100)]
    [[0, 2], [3], [1]]
    """
    groups, undecided = [], [np.arange(len(rows))]
    while undecided:
        some = undecided.pop()
        is_wide = nbytes[some] * rows[some].sum() > rows[some] * nbytes[some].sum()
        wide, narrow = some[is_wide], some[~is_wide]
        size = nbytes[wide].sum()
        if size >= max(1, least) and size * rows[narrow].sum() > _WIDE * rows[wide].sum() * nbytes[narrow].sum():
            undecided += [wide, narrow]
        else:
            groups.append(some)
    return groups
