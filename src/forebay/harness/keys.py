"""Event keys as numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.store.identity import identities

_SECRET = "00" * 16


def key_numbers(columns: Sequence[pa.Array], rows: int) -> npt.NDArray[np.int64]:
    """Numbers of 64 bits that stand for keys: equal keys have equal ones, wherever they come from.

    Parameters
    ----------
    columns : sequence of pyarrow.Array
        The columns of the keys. A single one of whole numbers is kept, and without any all keys are 0.
    rows : int
        How many keys there are.

    Examples
    --------
    >>> key_numbers([pa.array([7, 5, None])], 3).tolist()[:2]
    [7, 5]
    >>> one, two, three = key_numbers([pa.array(["ann", "bob", "ann"])], 3).tolist()
    >>> one == three, one == two
    (True, False)
    """
    if not columns or not rows:
        return np.zeros(rows, np.int64)
    whole = len(columns) == 1 and pa.types.is_integer(columns[0].type) and columns[0].type != pa.uint64()
    if whole and not columns[0].null_count:
        return np.asarray(columns[0].cast(pa.int64()))
    hashed = identities(columns, rows, _SECRET)[1]
    if not whole:
        return hashed
    return np.where(np.asarray(columns[0].is_valid()), pc.fill_null(columns[0], 0).cast(pa.int64()), hashed)
