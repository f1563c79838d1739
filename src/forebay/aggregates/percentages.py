"""The percentages that an aggregate of values in order asks for: one, or a list of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.aggregates.bound import BoundAggregate

Mask = npt.NDArray[np.bool_]


def percentages_of(aggregate: BoundAggregate) -> list[float]:
    """What it asks for; a median is at 0.5."""
    asked = aggregate.options.get("percentage", 0.5)
    return [float(percentage) for percentage in ([asked] if _asks_for_one(aggregate) else asked)]


def results(
    aggregate: BoundAggregate,
    found: npt.NDArray[np.float64],
    empty: Mask,
    values: Callable[[npt.NDArray[np.float64], Mask | None], pa.Array] = lambda found, nulls: pa.array(found, mask=nulls),
) -> pa.Array:
    """What is found at each percentage, a row for each group, as values or as lists; NULL where a group is ``empty``.

    ``values`` gives numbers as an array, with NULLs in the place of some.
    """
    if _asks_for_one(aggregate):
        return values(found[:, 0], empty)
    offsets = np.concatenate([[0], np.cumsum(np.where(empty, 0, found.shape[1]))]).astype(np.int32)
    flat = values(found[~empty].ravel(), None)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, mask=pa.array(empty)).cast(aggregate.result)


def result_bytes(aggregate: BoundAggregate) -> int:
    """The bytes of a result that is a list."""
    return 0 if _asks_for_one(aggregate) else 8 * len(percentages_of(aggregate))


def _asks_for_one(aggregate: BoundAggregate) -> bool:
    return isinstance(aggregate.options.get("percentage", 0.5), int | float)
