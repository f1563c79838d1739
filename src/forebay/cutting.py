"""Rows, windows or results are taken some at a time, as many as have about so many bytes together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Sizes = npt.NDArray[np.number[Any]]


def cuts(sizes: Sizes, most: float) -> npt.NDArray[np.int64]:
    """Where things of such sizes are divided, so that each part has about ``most``, or is one thing that has more.

    Examples
    --------
    >>> cuts(np.array([3.0, 3.0, 3.0, 20.0, 1.0]), 8)
    array([2, 3])
    """
    return np.flatnonzero(np.diff(np.floor_divide(np.cumsum(sizes), most))) + 1


def together(sizes: Sizes, most: float) -> Iterator[slice]:
    """The parts between `cuts`, none of which is empty.

    Examples
    --------
    >>> list(together(np.array([1, 1, 5, 1]), 3))
    [slice(0, 2, None), slice(2, 4, None)]
    """
    bounds = [0, *cuts(sizes, most).tolist(), len(sizes)]
    yield from map(slice, bounds[:-1], bounds[1:]) if len(sizes) else ()
