"""Which extents of unaligned windows have too many bytes of dead rows.

Rows die without being touched: how many have died is known, but not in which extents. Extents tell when they are looked
through, which takes time for each of their rows. So an extent is looked through when it might have lost a good part of all
bytes: extents of wide rows often, those of narrow rows seldom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

_LOOKED = 32
"""An extent is looked through when what may have died in it since then is one in so many of all bytes. So each row that
dies pays for looking at about so many."""

_EXTENT = np.dtype([(name, np.int64) for name in ("number", "row_bytes", "bytes", "rows", "live", "died_before")])

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]


class LiveRows:
    """The extents of a store, and how many of their rows are live, as far as that is known.

    Extents of which nothing is known are whole.

    Parameters
    ----------
    numbers : array of int64
        The extents, ascending.
    row_bytes, all_bytes : array of int64
        The size of the rows of each, and that of all that belongs to it.
    rows : array of int64
        How many rows each has.

    Examples
    --------
    >>> extents = LiveRows(np.array([3, 4]), np.array([900, 1000]), np.array([1000, 1200]), np.array([10, 20]))
    >>> extents.write(5, 500, 600, 10, extents.died(live=25))
    >>> extents.last, extents.stored, extents.died(live=28)
    (5, 40, 12)
    """

    def __init__(self, numbers: Numbers, row_bytes: Numbers, all_bytes: Numbers, rows: Numbers) -> None:
        self._extents = np.zeros(len(numbers), _EXTENT)
        self._extents["number"], self._extents["row_bytes"], self._extents["bytes"] = numbers, row_bytes, all_bytes
        self._extents["rows"] = self._extents["live"] = rows
        self._cleared = 0

    @property
    def sizes(self) -> Numbers:
        """The bytes of the rows of each extent."""
        return self._extents["row_bytes"]

    @property
    def bytes(self) -> int:
        """The bytes of all that belongs to extents."""
        return int(self._extents["bytes"].sum())

    @property
    def stored(self) -> int:
        """How many rows there are, dead ones included."""
        return int(self._extents["rows"].sum())

    @property
    def last(self) -> int:
        """The youngest extent, -1 if there is none."""
        return int(self._extents["number"][-1]) if len(self._extents) else -1

    def __contains__(self, number: int) -> bool:
        numbers = self._extents["number"]
        place = int(numbers.searchsorted(number))
        return place < len(numbers) and int(numbers[place]) == number

    def died(self, live: int) -> int:
        """How many rows have died so far: those that are stored and do not live, and those that were cleared out."""
        return max(0, self.stored - live) + self._cleared

    def write(self, number: int, row_bytes: int, all_bytes: int, rows: int, died: int) -> None:
        """An extent was written when so many rows had died; all of its own are live."""
        place = int(self._extents["number"].searchsorted(number))
        extent = np.array([(number, row_bytes, all_bytes, rows, rows, died)], _EXTENT)
        self._extents = np.concatenate([self._extents[:place], extent, self._extents[place:]])

    def clear(self, numbers: Iterable[int], dead: int) -> None:
        """So many dead rows are gone together with the extents that had them."""
        self._cleared += dead
        self._extents = np.delete(self._extents, self._extents["number"].searchsorted(list(numbers)))

    @property
    def live_bytes(self) -> float:
        """The most bytes that live rows can have."""
        return float(self._extents["live"] @ self._widths)

    def least_bytes(self, live: int) -> float:
        """The fewest bytes that ``live`` rows can have: the widest rows have died of those that may have."""
        known, widths = self._extents["live"], self._widths
        unseen = max(0, int(known.sum()) - live)
        if not unseen:
            return float(known @ widths)
        widest = np.argsort(-widths)
        may_have = np.minimum(known, np.maximum(0, self.died(live) - self._extents["died_before"]))[widest]
        lost = np.diff(np.minimum(np.cumsum(may_have), unseen), prepend=0)
        return float(known @ widths - lost @ widths[widest])

    def look(self, live: int, count: Callable[[int], int]) -> None:
        """Have known how many rows are live. ``count`` looks an extent through, where that may be worth it."""
        extents, died = self._extents, self.died(live)
        may_have = died - extents["died_before"]
        worth = may_have * self._widths * _LOOKED >= self.bytes
        for place in np.flatnonzero(worth & (extents["live"] > 0) & (may_have > 0)).tolist():
            extents["live"][place] = count(int(extents["number"][place]))
            extents["died_before"][place] = died

    def emptiest(self, most: float) -> list[int]:
        """The extents that are more than so many times what is live in them, the emptiest one last.

        Each byte that is written again for them is paid for by ``most - 1`` bytes of dead rows at least. They all go, so
        that it takes some time until there are too many dead rows again. Nothing is written for extents without a live row,
        which are among them in any case.

        Examples
        --------
        >>> extents = LiveRows(np.arange(4), np.full(4, 1000), np.full(4, 1000), np.full(4, 10))
        >>> extents.look(16, [10, 5, 0, 1].__getitem__)
        >>> extents.emptiest(1.5), extents.emptiest(np.inf)
        ([1, 3, 2], [2])
        """
        live, rows = self._extents["live"], self._extents["rows"]
        condemned = np.flatnonzero((live == 0) | (live < rows / most))
        order = np.argsort(live[condemned] / np.maximum(1, rows[condemned]), kind="stable")
        numbers: list[int] = self._extents["number"][condemned[order]][::-1].tolist()
        return numbers

    @property
    def _widths(self) -> Floats:
        """The mean size of a row in each extent."""
        return self._extents["bytes"] / np.maximum(1, self._extents["rows"])
