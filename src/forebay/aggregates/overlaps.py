"""Which rows of a key overlap, and so are in one session; compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.aggregates.grouping import SEEDS, Integers
from forebay.aggregates.murmur import mixed
from forebay.compiling import compiled, read_only


class Sessions(NamedTuple):
    """Which rows are in one session.

    Attributes
    ----------
    of : array
        The number of each row's session.
    first, start, end : array
        Of each session, in order of their starts: its earliest row, and its bounds.
    """

    of: Integers
    first: Integers
    start: Integers
    end: Integers

    @classmethod
    def found(cls, owners: Integers, starts: Integers, ends: Integers, alone: npt.NDArray[np.bool_]) -> Sessions:
        """The sessions of rows with such bounds: those of an owner that overlap are in one, but for rows that stay alone.

        Examples
        --------
        >>> owners, times = np.array([7, 3, 7, 7]), np.array([3, 1, 0, 9])
        >>> sessions = Sessions.found(owners, times, times + 5, np.array([False] * 4))
        >>> sessions.of.tolist(), sessions.end.tolist()
        ([0, 1, 0, 2], [8, 6, 14])
        """
        rows = len(owners)
        order = np.argsort(starts, kind="stable")  # which takes little time where rows come nearly in order
        table = np.full(1 << (2 * rows - 1).bit_length(), -1, np.int32)
        of, *sessions = (np.empty(rows, np.int64) for _ in range(4))
        given = (read_only(numbers) for numbers in (owners, starts, ends))
        count = _join(order, *given, read_only(alone), SEEDS, table, of, *sessions)
        return cls(of, *(numbers[:count] for numbers in sessions))


@compiled
def _join(order, owners, starts, ends, alone, seeds, table, of, first, start, end):
    """Fill ``of``, ``first``, ``start`` and ``end``; the table has the newest session of each owner. Gives their number."""
    mask = np.uint64(len(table) - 1)
    count = 0
    for row in order:
        place = mixed(np.uint64(owners[row]) ^ seeds[0]) & mask
        session = -1
        while not alone[row]:
            session = table[place]
            if session < 0 or owners[first[session]] == owners[row]:
                break
            place = (place + np.uint64(1)) & mask
        if session < 0 or starts[row] >= end[session]:
            session = count
            first[session], start[session], end[session] = row, starts[row], ends[row]
            count += 1
            if not alone[row]:
                table[place] = session
        end[session] = max(end[session], ends[row])
        of[row] = session
    return count
