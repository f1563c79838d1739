"""DataFrames of pandas over the memory of Arrow arrays, which Spark's worker takes as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa


class Frame(pd.DataFrame):  # type: ignore[misc]  # pandas has no types
    """A DataFrame whose columns are `Column`."""

    @property
    def _constructor(self) -> Callable[..., Frame]:
        return Frame

    @property
    def _constructor_sliced(self) -> Callable[..., Column]:
        return Column


class Column(pd.Series):  # type: ignore[misc]  # pandas has no types
    """A column of values that are of the type that Spark wants already.

    Spark's worker has ``apply`` convert lists, maps and structs to objects of Python, one value at a time, before it makes
    Arrow arrays of them again.
    """

    def apply(self, *_: Any, **__: Any) -> Column:
        """The values as they are."""
        return self


def frame_of(columns: Mapping[str, pa.Array]) -> Frame:
    """A DataFrame of these columns; nothing is copied.

    Examples
    --------
    >>> frame = frame_of({"prices": pa.array([[1, 2], None])})
    >>> pa.array(frame["prices"].apply(list)).to_pylist()
    [[1, 2], None]
    """
    return Frame({name: pd.arrays.ArrowExtensionArray(array) for name, array in columns.items()}, copy=False)
