"""Where a sequence is cut into parts of about so many bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Sizes = npt.NDArray[np.number[Any]]


def cuts(sizes: Sizes, most: float) -> npt.NDArray[np.int64]:
    """Where things of such sizes are divided, so that each part has no more than ``most`` beyond its first thing.

    Examples
    --------
    >>> cuts(np.array([3.0, 3.0, 3.0, 20.0, 1.0]), 8)
    array([2, 3])
    """
    parts = np.maximum(1, np.ceil(np.cumsum(sizes) / most))
    return np.flatnonzero(np.diff(parts)) + 1


def together(sizes: Sizes, most: float) -> Iterator[slice]:
    """The parts between `cuts`, none of which is empty.

    Examples
    --------
    >>> list(together(np.array([1, 1, 5, 1]), 3))
    [slice(0, 2, None), slice(2, 4, None)]
    """
    bounds = [0, *cuts(sizes, most).tolist(), len(sizes)]
    yield from map(slice, bounds[:-1], bounds[1:]) if len(sizes) else ()
