"""Pieces: where the rows of unaligned windows lie on disk. This is the index log of FlowKV (section 4.2).

Rows are written in *extents*, ordered by estimated trigger time, so that what fires together lies together. A piece is a run
of rows of one window in an extent. The pieces of an extent are written beside it, and are read as a whole: by a store that
has to find rows (`forebay.store.addresses`), and where an extent is written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from forebay.store import row_kernels as kernels
from forebay.store.index_kernels import Records
from forebay.store.key_index import KeyIndex, Slots
from forebay.store.row_buffer import Rows


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
    counts, owners = kernels.counted(slots, len(records))
    owners = owners[np.argsort(records["ett"][owners])]
    numbers = counts[owners]
    counts[owners] = np.cumsum(numbers) - numbers
    return kernels.scattered(slots, counts), owners, numbers.astype(np.int32)


def cuts(rows: int, nbytes: int, extent_bytes: int, most: int | None = None) -> Sequence[int]:
    """Where rows of so many bytes are cut into extents, at most ``most``: the first row of each, and the end."""
    step = max(1, rows * extent_bytes // max(nbytes, 1), -(-rows // most) if most else 1)
    return [*range(0, rows, step), rows]
