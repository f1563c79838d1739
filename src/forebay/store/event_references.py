"""References to events that several patterns share, as numbers.

A reference has the ordinal of the event in its slice in the lowest 32 bits, the number of the slice in the next 25, and in
the 6 above those its *width*: about how large the event is, so that windows can be weighed without a look at their events. A
width of 0 is one that is not known: the reference was written by a release that kept none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay import arrow

References = npt.NDArray[np.int64]
Widths = npt.NDArray[np.int64]

_ORDINAL_BITS, _NUMBER_BITS = 32, 25
_PLACE_BITS = _ORDINAL_BITS + _NUMBER_BITS

MOST_EVENTS, NUMBERS = 1 << _ORDINAL_BITS, 1 << _NUMBER_BITS
"""How many events of a slice, and how many slices, can be told apart."""

_WIDTHS = 1 << 63 - _PLACE_BITS
BYTES = np.concatenate([[0], 2 ** (np.arange(1, _WIDTHS) / 2)]).astype(np.int64)
"""How many bytes an event of each width is taken for: no more than a fifth too many or too few, up to 3 GB."""


def widths_of(batch: pa.RecordBatch) -> Widths:
    """The width of each row. What Arrow keeps of rows beside their values is shared out evenly.

    Examples
    --------
    >>> batch = pa.record_batch({"a": ["x" * 60, "x" * 1_000_000]})
    >>> BYTES[widths_of(batch)].tolist()
    [64, 1048576]
    """
    sizes = arrow.row_bytes(batch.columns, batch.num_rows)
    beside = max(0, batch.nbytes - int(sizes.sum())) / max(1, batch.num_rows)
    return np.clip(np.rint(2 * np.log2(np.maximum(1, sizes + beside))), 1, _WIDTHS - 1).astype(np.int64)


def made(number: int | npt.NDArray[np.int64], ordinals: npt.NDArray[np.integer[Any]], widths: Widths) -> References:
    """References to events of a slice, or of a slice each.

    Examples
    --------
    >>> references = made(7, np.array([3, 4]), np.array([20, 0]))
    >>> numbers(references).tolist(), ordinals_of(references).tolist(), width(references).tolist()
    ([7, 7], [3, 4], [20, 0])
    """
    return widths << _PLACE_BITS | number << _ORDINAL_BITS | ordinals.astype(np.int64)


def places(references: References) -> References:
    """Where events are stored, in this order: references without widths."""
    return references & (1 << _PLACE_BITS) - 1


def numbers(references: References) -> References:
    """The numbers of slices."""
    return places(references) >> _ORDINAL_BITS


def ordinals_of(references: References) -> References:
    """The ordinals of events in their slices."""
    return references & MOST_EVENTS - 1


def width(references: References) -> Widths:
    """The widths of events."""
    return references >> _PLACE_BITS
