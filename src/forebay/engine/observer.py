"""Who may look on while an instance works: it is told which rows enter which windows, and which windows end.

Without an observer nothing of this is done. With one, an instance says what it has in hand anyway, and reads what it would
otherwise drop unread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay.windows import Times

if TYPE_CHECKING:
    from forebay.store.key_index import KeyIndex, Slots, Steps

ARRIVAL = "__arrival"
"""The column that rows have for an observer: a number that grows in the order in which they arrived, over all instances."""

Places = npt.NDArray[np.integer]


class Observer(Protocol):
    """What is told of one instance during one micro-batch. Rows have the column `ARRIVAL`."""

    def enters(self, rows: pa.RecordBatch, places: Places, start: Times, end: Times, side: int = 0) -> None:
        """Rows, by their places in a batch, enter windows with these bounds, in as many lines as there are places."""

    def merges(self, rows: pa.RecordBatch, start: Times, end: Times, steps: Steps, index: KeyIndex) -> None:
        """Every row of a batch has entered a window of its key, and windows that touch became one."""

    def leaves(
        self,
        keys: pl.DataFrame,
        start: Times,
        end: Times,
        *,
        side: int = 0,
        ids: Times | None = None,
        left: Times | None = None,
        when: Times | None = None,
        read: bool = True,
        removed: bool = True,
    ) -> None:
        """Windows have fired or ended, a line for each with the columns of its key.

        ``ids`` are the `window_ids` of windows that merge, and ``left`` how many more windows the key has then. ``when`` is
        the watermark at which they are due, if that is not their end. ``read`` and ``removed`` say whether the operator has
        asked for their content, and whether they are gone.
        """


def window_ids(index: KeyIndex, slots: Slots) -> Times:
    """Numbers that tell windows apart whose bounds change, for as long as these are in an index; none is 0.

    Examples
    --------
    >>> from forebay.store.key_index import KeyIndex
    >>> index, one = KeyIndex(), np.ones(1, np.int64)
    >>> slots = index.place_merging(one, one, np.array([0]), np.array([5]))
    >>> before = window_ids(index, slots)
    >>> bool(window_ids(index, index.place_merging(one, one, np.array([4]), np.array([9]))) == before)
    True
    """
    return index.generations(slots).astype(np.int64) << 32 | slots


def windows_left(index: KeyIndex, slots: Slots) -> Times:
    """How many windows the key of each window has left when these windows end one after the other.

    Examples
    --------
    >>> from forebay.store.key_index import KeyIndex
    >>> index, one = KeyIndex(), np.ones(3, np.int64)
    >>> slots = index.place_merging(one, one, np.array([0, 10, 20]), np.array([5, 15, 25]))
    >>> windows_left(index, slots[:2]).tolist()
    [2, 1]
    """
    identities = np.stack(index.identities(slots), axis=1)
    keys, owner = np.unique(identities, axis=0, return_inverse=True)
    _, owners = index.windows_of(np.ascontiguousarray(keys[:, 0]), np.ascontiguousarray(keys[:, 1]))
    owner = owner.reshape(-1)
    order = np.argsort(owner, kind="stable")
    begins = np.searchsorted(owner[order], np.arange(len(keys)))
    before = np.empty(len(slots), np.int64)
    before[order] = np.arange(len(slots)) - begins[owner[order]]
    left: Times = np.bincount(owners, minlength=len(keys))[owner] - before - 1
    return left
