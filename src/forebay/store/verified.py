"""What this process has found right in files that never change, so that it does not look again."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.store import paging
from forebay.store.blocks import BLOCK, Blocks, are_right, checksums_of, place_of_checksums
from forebay.store.paging import Parts


class Verified:
    """What is known of a file: which extents and which blocks are right, and where the columns of extents lie.

    Parameters
    ----------
    identity : tuple of int
        What is different when the file is another one, or was written to.
    """

    def __init__(self, identity: tuple[int, int]) -> None:
        self.identity = identity
        self.extents: set[int] = set()
        self.layouts: dict[int, Blocks | None] = {}
        self.blocks = np.empty(0, np.uint8)
        self._sums: npt.NDArray[np.uint32] | None = None
        self.looked = False
        """Whether it is known if the file has checksums of blocks."""

    def sums_of(self, file: pa.Buffer) -> npt.NDArray[np.uint32] | None:
        """The checksums of its blocks, if it has some that can be read."""
        if not self.looked:
            found = checksums_of(file) if _is_readable(np.array([place_of_checksums(file)])) else None
            if found is not None:
                self._sums, self.blocks = found.copy(), np.zeros(len(found), np.uint8)
            self.looked = True
        return self._sums

    def check(self, file: pa.Buffer, wanted: Blocks) -> bool:
        """Whether some blocks, ascending, are right; those of which that is known are not compared again."""
        wanted = wanted[self.blocks[wanted] == 0]
        if len(wanted):
            sums = self.sums_of(file)
            if sums is None or not (_is_readable(_runs(file, wanted)) and are_right(file, sums, wanted)):
                return False
            self.blocks[wanted] = 1
        return True


def _runs(file: pa.Buffer, wanted: Blocks) -> Parts:
    """Where in memory some blocks of a file are, those that follow each other together."""
    begins = np.flatnonzero(np.diff(wanted, prepend=-2) > 1)
    first, last = wanted[begins], wanted[np.append(begins[1:], len(wanted)) - 1]
    ends = np.minimum((last + 1) * BLOCK, file.size)
    return np.stack([file.address + first * BLOCK, ends - first * BLOCK], axis=1)


def _is_readable(parts: Parts) -> bool:
    try:
        paging.require_readable(parts)
    except OSError:
        return False
    return True


_known: OrderedDict[Path, Verified] = OrderedDict()
_MOST = 1 << 14
"""Files of which this process knows what is right: a store of unaligned windows reads them again and again."""


def of(path: Path, identity: tuple[int, int]) -> Verified:
    """What is known of a file; nothing of one that is another one, or was written to, since."""
    known = _known.pop(path, None)
    if known is None or known.identity != identity:
        known = Verified(identity)
    _known[path] = known
    if len(_known) > _MOST:
        _known.popitem(last=False)
    return known
