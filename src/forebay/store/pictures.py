"""A picture: arrays by name in one record batch, a row for each, compressed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.errors import CorruptState
from forebay.restoring import RESTORE

_COLUMNS = pa.schema([("part", pa.string()), ("bytes", pa.int64()), ("data", pa.large_binary())])
"""What an array is called, how many bytes it has, and these."""

_CODEC = pa.Codec("zstd", -1)

Array = npt.NDArray[Any]


def of(**parts: Array) -> pa.RecordBatch:
    """The picture of some arrays.

    Examples
    --------
    >>> picture = of(ones=np.ones(1000), twos=np.full(3, 2))
    >>> sizes(picture), picture.nbytes < 1000
    ({'ones': 8000, 'twos': 24}, True)
    >>> ones, twos = np.zeros(1000), np.zeros(3, int)
    >>> into(picture, ones=ones, twos=twos)
    >>> ones.sum(), twos.tolist()
    (np.float64(1000.0), [2, 2, 2])
    """
    data = [_CODEC.compress(pa.py_buffer(part)).to_pybytes() for part in parts.values()]
    bytes_of = [part.nbytes for part in parts.values()]
    return pa.record_batch([pa.array([*parts]), pa.array(bytes_of), pa.array(data, pa.large_binary())], schema=_COLUMNS)


def sizes(picture: pa.RecordBatch) -> dict[str, int]:
    """How many bytes each array has."""
    return dict(zip(picture["part"].to_pylist(), picture["bytes"].to_pylist(), strict=True))


def into(picture: pa.RecordBatch, **parts: Array) -> None:
    """Fill arrays from a picture.

    They are decompressed to where they are to be: memory that is touched for the first time is much of what it takes.
    """
    data = dict(zip(picture["part"].to_pylist(), picture["data"], strict=True))
    for name, part in parts.items():
        view = part.reshape(-1).view(np.uint8)
        read = pa.CompressedInputStream(pa.BufferReader(data[name].as_buffer()), "zstd").readinto(view) if len(view) else 0
        if read != len(view):
            raise CorruptState(
                f"part {name!r} of the picture of a key index has {read} bytes where there should be {len(view)}. {RESTORE}"
            )
