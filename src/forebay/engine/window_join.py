"""Windowed joins: rows of two sides that share a window and a key, put together when the window fires.

The rows of both sides lie in one store, each with a mark of its side, so a windowed join is one more holistic function over
the rows of windows: AAR serves aligned windows, AUR sessions (Gadget, section 2.2).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.cutting import together
from forebay.engine.portions import PORTION_BYTES, PORTION_ROWS, portions, widths

LEFT, RIGHT = 0, 1
_PAIRS, _FEW = 1 << 18, 1 << 20
"""So many pairs are made at a time, or as many as one row has or a side has rows, since each part looks at all of the right
side. Where there can be no more than the second all are made at once."""

_PARTNERS, _LEFT_ROW, _RIGHT_ROW = "right rows", "left row", "right row"

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
        left, right = (
            rows.filter(of_side).select(*by, *(pl.col(name).alias(f"{side} {place}") for place, name in enumerate(names)))
            for side, names, of_side in (("left", self.left, ~pl.col(self.side)), ("right", self.right, pl.col(self.side)))
        )
        names = [*left.columns, *right.columns[len(by) :]]
        (left, of_left), (right, of_right) = _apart(left, by, _LEFT_ROW), _apart(right, by, _RIGHT_ROW)
        for joined in filter(len, self._joined(left, right, by)):
            for part in _whole(joined, of_left | of_right):
                shown = part.select(name for name in names if name in part.columns)
                table = arrow.of(shown.drop(window))
                yield assemble(shown[window].to_numpy(), [column.combine_chunks() for column in table.columns])

    def _joined(self, left: pl.DataFrame, right: pl.DataFrame, by: list[str]) -> Iterator[pl.DataFrame]:
        """The join, part by part if it has many pairs: a key with many rows on both sides has very many."""
        if self.how in ("semi", "anti"):
            yield left.join(right, on=by, how=self.how, maintain_order="left")
            return
        together = True if self.how == "full" else None
        cuts = _cuts(left, right, by)
        if len(cuts) == 2:
            yield left.join(right, on=by, how=self.how, coalesce=together, maintain_order="left_right")
            return
        alone: Literal["inner", "left"] = "left" if LEFT in AWAITED.get(self.how, ()) else "inner"
        for begin, end in itertools.pairwise(cuts):
            yield left[begin:end].join(right, on=by, how=alone, maintain_order="left_right")
        if RIGHT in AWAITED.get(self.how, ()):
            others = right.join(left, on=by, how="anti", maintain_order="left")
            yield left.clear().join(others, on=by, how=self.how, coalesce=together, maintain_order="left_right")


def _apart(side: pl.DataFrame, by: list[str], number: str) -> tuple[pl.DataFrame, dict[str, pl.DataFrame]]:
    """A side without its nested columns, and these: polars would copy a list for each pair that it is in.

    In their place is a column with the number of each row.
    """
    nested = [name for name, kind in side.schema.items() if kind.is_nested() and name not in by]
    return (side.drop(nested).with_row_index(number), {number: side.select(nested)}) if nested else (side, {})


def _whole(joined: pl.DataFrame, apart: Mapping[str, pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Pairs in portions, with the columns that were set apart."""
    apart = {number: values for number, values in apart.items() if number in joined.columns}
    if not apart:
        yield from portions(joined, PORTION_ROWS)
        return
    sizes = widths(joined)
    for number, values in apart.items():
        sizes += np.append(widths(values), 0.0)[joined[number].cast(pl.Int64).fill_null(-1).to_numpy()]
    for some in together(sizes, PORTION_BYTES):
        for part in joined[some].iter_slices(PORTION_ROWS):
            found = [values.select(pl.all().gather(part[number])) for number, values in apart.items()]
            yield pl.concat([part.drop(apart), *found], how="horizontal")


def _cuts(left: pl.DataFrame, right: pl.DataFrame, by: list[str]) -> list[int]:
    """Where the left side is cut into parts that do not have too many pairs."""
    rows = max(left.height, right.height)
    if left.height * right.height <= _FEW:
        return [0, left.height]
    counted = right.group_by(by).agg(pl.len().alias(_PARTNERS))
    if left.height * int(counted[_PARTNERS].to_numpy().max(initial=0)) <= max(_FEW, rows):
        return [0, left.height]
    partners = left.select(by).join(counted, on=by, how="left", maintain_order="left")[_PARTNERS]
    parts = (partners.fill_null(1).cum_sum() // max(_PAIRS, rows)).to_numpy()
    return [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), left.height]
