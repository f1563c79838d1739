"""Windowed joins: rows of two sides that share a window and a key, put together when the window fires.

The rows of both sides lie in one store, each with a mark of its side, so a windowed join is one more holistic function over
the rows of windows: AAR serves aligned windows, AUR sessions (Gadget, section 2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.engine.portions import PORTION_ROWS, portions

LEFT, RIGHT = 0, 1
AWAITED = {"left": (LEFT,), "right": (RIGHT,), "full": (LEFT, RIGHT), "anti": (LEFT,)}
"""The sides whose rows are emitted when they have met nobody."""


@dataclass(frozen=True)
class WindowJoin:
    """A join of the rows of windows.

    Attributes
    ----------
    how : str
        ``inner``, ``left``, ``right``, ``full``, ``semi`` or ``anti``.
    side : str
        The column of a packed batch that is true in rows of the right side.
    left, right : tuple of str
        The columns of a packed batch that hold the columns of each side, in the order of the result.

    Examples
    --------
    >>> join = WindowJoin("left", "right", ("a",), ("a",))
    >>> rows = pl.DataFrame({"w": [0, 0, 0], "k": ["x", "x", "y"], "right": [False, True, False], "a": [1, 2, 3]})
    >>> [sorted(zip(*columns)) for columns in join.results(rows, ["k"], "w", lambda w, c: [a.to_pylist() for a in c])]
    [[('x', 1, 2), ('y', 3, None)]]
    """

    how: Literal["inner", "left", "right", "full", "semi", "anti"]
    side: str
    left: tuple[str, ...]
    right: tuple[str, ...]

    def results(
        self, rows: pl.DataFrame, keys: list[str], window: str, assemble: Callable[[Any, list[pa.Array]], pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Join the rows of each key and window; a key with a NULL in it matches nothing, as in SQL.

        ``window`` names the column of windows. ``assemble`` makes a result of windows and columns.
        """
        by = [window, *keys]
        sides = [
            rows.filter(of_side).select(*by, *(pl.col(name).alias(f"{side} {place}") for place, name in enumerate(names)))
            for side, names, of_side in (("left", self.left, ~pl.col(self.side)), ("right", self.right, pl.col(self.side)))
        ]
        together = True if self.how == "full" else None
        joined = sides[0].join(sides[1], on=by, how=self.how, coalesce=together, maintain_order="left_right")
        if joined.height:
            names = [*sides[0].columns, *sides[1].columns[len(by) :]]
            shown = joined.select(name for name in names if name in joined.columns)
            for part in portions(shown, PORTION_ROWS):
                table = arrow.of(part.drop(window))
                yield assemble(part[window].to_numpy(), [column.combine_chunks() for column in table.columns])
