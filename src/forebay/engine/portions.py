"""Results are handed on in portions of bounded size: one long value may be in many of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

from forebay import arrow
from forebay.cutting import together

PORTION_ROWS, PORTION_BYTES = 1 << 16, 32 << 20
"""What a portion has, about, whichever is less."""

_WIDTH = 8.0
"""Bytes of a value of which nothing else is known."""

Sizes = npt.NDArray[np.floating]


def widths(rows: pl.DataFrame) -> Sizes:
    """About how many bytes each row takes in columns of its own.

    Examples
    --------
    >>> widths(pl.DataFrame({"n": [1, 2], "s": ["", "four"]})).tolist()
    [16.0, 20.0]
    >>> widths(pl.DataFrame({"list": [[], [1, 2, 3], None]})).tolist()
    [8.0, 32.0, 8.0]
    """
    found = np.full(rows.height, _WIDTH * rows.width)
    for column in rows.get_columns() if rows.height else ():
        if column.dtype == pl.String:
            found += column.str.len_bytes().fill_null(0).to_numpy()
        elif column.dtype == pl.Binary:
            found += column.bin.size().fill_null(0).to_numpy()
        elif isinstance(column.dtype, pl.Struct):
            found += widths(column.struct.unnest())
        elif column.dtype.is_nested():
            found += arrow.row_bytes([arrow.of(column)], rows.height)
    return found


def alike(rows: pl.DataFrame) -> bool:
    """Whether rows take about as many bytes each, whatever is in them.

    Examples
    --------
    >>> alike(pl.DataFrame({"n": [1, 2]})), alike(pl.DataFrame({"s": ["", "four"]}))
    (True, False)
    """
    return not any(kind.is_nested() or kind in (pl.String, pl.Binary) for kind in rows.dtypes)


def portions(rows: pl.DataFrame, most_rows: int = 1 << 31, more: int = 0) -> Iterator[pl.DataFrame]:
    """Rows in order, as many together as take about `PORTION_BYTES`, and are no more than ``most_rows``.

    What becomes of each takes so many bytes ``more``.
    """
    if alike(rows):
        fitting = int(PORTION_BYTES / (_WIDTH * max(1, rows.width) + more))
        yield from rows.iter_slices(min(most_rows, max(1, fitting)))
    else:
        for some in together(widths(rows) + more, PORTION_BYTES):
            yield from rows[some].iter_slices(most_rows)
