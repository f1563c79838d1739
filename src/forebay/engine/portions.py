"""Results are handed on in portions of bounded size: one long value may be in many of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

PORTION_ROWS, PORTION_BYTES = 1 << 16, 32 << 20
"""What a portion has, about, whichever is less."""

Sizes = npt.NDArray[np.floating]
Places = npt.NDArray[np.int64]


def widths(rows: pl.DataFrame) -> Sizes:
    """About how many bytes each row takes in columns of its own. Values that are nested count as the mean of their column.

    Examples
    --------
    >>> widths(pl.DataFrame({"n": [1, 2], "s": ["", "four"]})).tolist()
    [16.0, 20.0]
    """
    found = np.full(rows.height, 8.0 * rows.width)
    for column in rows.get_columns() if rows.height else ():
        if column.dtype == pl.String:
            found += column.str.len_bytes().fill_null(0).to_numpy()
        elif column.dtype == pl.Binary:
            found += column.bin.size().fill_null(0).to_numpy()
        elif column.dtype.is_nested():
            found += column.estimated_size() / rows.height
    return found


def together(sizes: npt.NDArray[np.number], most: float) -> Iterator[Places]:
    """The positions of what has such sizes, as many one after the other as have about so much together, but one at least.

    Examples
    --------
    >>> [places.tolist() for places in together(np.array([1, 1, 5, 1]), 3)]
    [[0, 1], [2, 3]]
    """
    if len(sizes):
        yield from np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(np.cumsum(sizes) // most)) + 1)


def portions(rows: pl.DataFrame, most_rows: int | None = None) -> Iterator[pl.DataFrame]:
    """Rows in order, as many together as take about `PORTION_BYTES`, and are no more than so many, if that is said."""
    for some in together(widths(rows), PORTION_BYTES):
        yield from rows[some[0] : some[-1] + 1].iter_slices(most_rows or len(some))
