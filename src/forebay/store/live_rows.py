"""Which extents of unaligned windows have too many bytes of dead rows.

Rows die without being touched: how many have died is known, but not in which extents. Extents tell when they are looked
through, which takes time for each of their rows. So an extent is looked through when it might have lost a good part of all
bytes: extents of wide rows often, those of narrow rows seldom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_LOOKED = 32
"""An extent is looked through when what may have died in it since then is one in so many of all bytes. So each row that
dies pays for looking at about so many."""

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]


class Extents(NamedTuple):
    """Extents, with the bytes and the number of the rows of each."""

    numbers: Numbers
    sizes: Numbers
    rows: Numbers

    @property
    def widths(self) -> Floats:
        """The mean size of a row in each extent."""
        return self.sizes / np.maximum(1, self.rows)


class LiveRows:
    """How many rows extents have of open windows, as far as that is known. Extents of which nothing is known are whole."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}
        self._cleared = 0

    def died(self, stored: int, live: int) -> int:
        """How many rows have died so far: those that are stored and do not live, and those that were cleared out."""
        return max(0, stored - live) + self._cleared

    def write(self, number: int, rows: int, died: int) -> None:
        """An extent was written when so many rows had died; all of its own are live."""
        self._known[number] = rows, died

    def clear(self, numbers: Iterable[int], dead: int) -> None:
        """So many dead rows are gone together with the extents that had them."""
        self._cleared += dead
        for number in numbers:
            self._known.pop(number, None)

    def least_bytes(self, extents: Extents, live: int) -> float:
        """The fewest bytes that ``live`` rows can have: the widest rows have died of those that may have."""
        known, before = self._of(extents)
        died = self.died(int(extents.rows.sum()), live)
        unseen = max(0, int(known.sum()) - live)
        widest = np.argsort(-extents.widths)
        may_have = np.minimum(known, np.maximum(0, died - before))[widest]
        lost = np.diff(np.minimum(np.cumsum(may_have), unseen), prepend=0)
        return float(known @ extents.widths - lost @ extents.widths[widest])

    def look(self, extents: Extents, live: int, count: Callable[[int], int]) -> Numbers:
        """How many rows of extents are live at most. ``count`` looks an extent through, where that may be worth it."""
        known, before = self._of(extents)
        died = self.died(int(extents.rows.sum()), live)
        worth = (died - before) * extents.widths * _LOOKED >= extents.sizes.sum()
        for place in np.flatnonzero(worth & (known > 0) & (died > before)).tolist():
            number = int(extents.numbers[place])
            known[place] = count(number)
            self._known[number] = int(known[place]), died
        return known

    def _of(self, extents: Extents) -> tuple[Numbers, Numbers]:
        """How many rows of extents were live when that was last known, and how many had died until then."""
        found = [
            self._known.get(number, (rows, 0))
            for number, rows in zip(extents.numbers.tolist(), extents.rows.tolist(), strict=True)
        ]
        live, before = np.array(found, np.int64).reshape(-1, 2).T
        return live.copy(), before


def emptiest(extents: Extents, live: Numbers, most: float) -> list[int]:
    """The extents that are more than so many times what is live in them, the emptiest one last.

    Each byte that is written again for them is paid for by ``most - 1`` bytes of dead rows at least. They all go, so that it
    takes some time until there are too many dead rows again. Nothing is written for extents without a live row, which are
    among them in any case.

    Examples
    --------
    >>> extents = Extents(np.arange(4), np.full(4, 1000), np.full(4, 10))
    >>> emptiest(extents, np.array([10, 5, 0, 1]), 1.5)
    [1, 3, 2]
    >>> emptiest(extents, np.array([10, 5, 0, 1]), np.inf)
    [2]
    """
    condemned = np.flatnonzero((live == 0) | (live < extents.rows / most))
    order = np.argsort(live[condemned] / np.maximum(1, extents.rows[condemned]), kind="stable")
    numbers: list[int] = extents.numbers[condemned[order]][::-1].tolist()
    return numbers
