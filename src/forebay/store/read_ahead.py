"""Predictive batch read: rows of windows that are in memory before they are asked for (FlowKV, section 4.2).

When a window has to be read from disk, those with the nearest estimated trigger time (ETT) are read in the same pass. They
wait in the prefetch buffer, which has a size: windows that are expected later make room for those that are expected earlier.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.store import row_kernels as kernels
from forebay.store.index_kernels import EARLIEST
from forebay.store.key_index import KeyIndex, Slots
from forebay.store.metrics import Metrics
from forebay.store.options import Options
from forebay.store.row_buffer import LINK_BYTES, RowBuffer, Rows, grown
from forebay.store.row_kernels import ALL_LOADED, ON_DISK
from forebay.store.window_extents import WindowExtents
from forebay.windows import ENDLESS, Times

_WORTH = 8
"""A full prefetch buffer is made anew for so much of it that comes in, or if half of it is dead."""


class ReadAhead:
    """The prefetch buffer of a store, and the choice of what is read into it.

    Parameters
    ----------
    index : KeyIndex
        The open windows.
    options : Options
        Limits.
    counts : Metrics
        Where it counts what it does.
    """

    def __init__(self, index: KeyIndex, options: Options, counts: Metrics) -> None:
        self._index, self._options, self._counts = index, options, counts
        self.buffer = RowBuffer(index)
        """Some rows of windows that are on disk, too."""
        self._read_alone = 0  # how many windows were read with nothing ahead since some were last
        self.clear()

    def clear(self) -> None:
        """Have nothing."""
        self.buffer.clear()
        self._loaded: Slots = np.zeros(self._index.capacity, np.int32)
        """The generation of each slot whose rows on disk are all in the buffer."""
        self._horizon = EARLIEST  # the last ETT of the windows that were read ahead last

    def discard(self, slots: Slots) -> None:
        """Have no rows of some slots, which have become others."""
        self.buffer.discard(slots)
        self._fit()
        self._loaded[slots] = 0

    def places(self, slots: Slots) -> npt.NDArray[np.int8]:
        """Where the rows of windows are, as `row_kernels` tells."""
        self._fit()
        return kernels.places(self._index.records, self._loaded, slots)

    def choose(self, requested: Slots, extents: WindowExtents) -> Slots:
        """Windows to read with those that are requested: a share of all, the nearest ones, as many as memory has room for.

        Windows that are not expected to fire are read when they are asked for. Nothing is read ahead where more windows than
        that are asked for: such a read is a large one as it is. Nor is anything where all of them are nearer than what was
        read ahead last, until so many are: they were opened or have merged since, and to find the nearest takes a look at
        all windows.
        """
        count = int(self._options.read_batch_ratio * len(self._index))
        self._read_alone += len(requested)
        is_near = self._index.records["ett"][requested].max() < self._horizon
        if not count or count < len(requested) or (is_near and self._read_alone <= count):
            return np.empty(0, np.int32)
        self._read_alone = 0
        expected = self._index.due_by_estimate(ENDLESS - 1)
        candidates = expected[self.places(expected) == ON_DISK]
        candidates = np.setdiff1d(candidates, requested, assume_unique=True)
        ett = self._index.records["ett"][candidates]
        if count < len(candidates):
            nearest = np.argpartition(ett, count)[:count]
            candidates, ett = candidates[nearest], ett[nearest]
        in_memory = 1 + LINK_BYTES / max(1, extents.row_bytes)
        ahead = self.make_room(ett, extents.bytes_of(self._index, candidates) * in_memory)
        if ahead.any():
            self._horizon = ett[ahead].max()
        return candidates[ahead]

    def take(self, parts: list[tuple[pa.RecordBatch, Slots]], windows: Slots) -> None:
        """Take the rows of windows that were chosen, as they were read."""
        if parts:
            batch = pa.concat_batches([part for part, _ in parts])
            self.buffer.append(batch, np.concatenate([slots for _, slots in parts]))
            self._counts.prefetched_rows += batch.num_rows
            self._counts.prefetched_bytes += batch.nbytes
            kernels.mark(self._index.records, self._loaded, windows, True)

    def top_up(self, batch: pa.RecordBatch, slots: Slots) -> None:
        """Take those rows, which are about to be on disk, whose windows have the others of theirs here."""
        if len(self.buffer):
            self._fit()
            loaded = self._loaded[slots] == self._index.records["generation"][slots]
            if loaded.any():
                self.buffer.append(batch.filter(pa.array(loaded)), slots[loaded])

    def make_room(self, ett: Times, sizes: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.bool_]:
        """Have room for windows that come with these ETTs and sizes; gives which of them it is for.

        Of them and those that have been read ahead, it is for those with the nearest ETT. The buffer loses dead rows and the
        farthest windows where that makes room for much, or where it has too much.
        """
        budget, buffer = self._options.prefetch_bytes, self.buffer
        if buffer.nbytes + sizes.sum() <= budget:
            return np.ones(len(ett), np.bool_)
        rows, slots = buffer.live()
        owners, counts = np.unique(slots, return_counts=True)
        loaded = self.places(owners) == ALL_LOADED
        row_bytes = buffer.nbytes / max(1, len(buffer))
        is_over = buffer.nbytes > budget  # a flush has brought rows of windows that are there
        too_large = sizes > budget  # such a window is read when it fires, and keeps no other one from being there
        all_sizes = np.concatenate([counts[loaded] * row_bytes, np.where(too_large, 0, sizes)])
        order = np.argsort(np.concatenate([self._index.records["ett"][owners[loaded]], ett]), kind="stable")
        fits = np.zeros(len(order), np.bool_)
        fits[order] = np.cumsum(all_sizes[order]) <= (budget // 2 if is_over else budget)
        kept, ahead = owners[loaded][fits[: loaded.sum()]], fits[loaded.sum() :] & ~too_large
        gained = sizes[ahead].sum()
        if gained + buffer.nbytes > budget:
            if not is_over and gained < budget // _WORTH and len(rows) > len(buffer) // 2:
                return np.zeros(len(ett), np.bool_)
            self._keep(rows, slots, owners, kept)
        return ahead

    def _keep(self, rows: Rows, slots: Slots, owners: Slots, kept: Slots) -> None:
        """Of the live rows of the buffer, and the windows that they are of, keep those of some."""
        staying = np.isin(slots, kept)
        self._counts.evictions += len(owners) - len(kept)
        self._counts.unused_rows += int(np.count_nonzero(~staying))
        kernels.mark(self._index.records, self._loaded, np.setdiff1d(owners, kept), False)
        batch, slots = self.buffer.take(rows[staying]) if staying.any() else None, slots[staying]
        self.buffer.clear()
        self._horizon = min(self._horizon, self._index.records["ett"][kept].max(initial=EARLIEST))
        if batch is not None:
            self.buffer.append(batch, slots)

    def _fit(self) -> None:
        if len(self._loaded) < self._index.capacity:
            self._loaded = grown(self._loaded, self._index.capacity)
