"""Count-min sketches, cell for cell those of Spark's ``count_min_sketch``.

A sketch is a table of counts. A value has one cell in each row of the table; the least of its counts is never too small. A
state is the cells that have a count, as in `forebay.aggregates.frequent`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.aggregates.frequent import COUNT, ITEM, PLACE, exploded
from forebay.aggregates.murmur import buffers_of, murmur32

_PRIME = (1 << 31) - 1
_VERSION = 1


@dataclass(frozen=True)
class Table:
    """The table of a sketch, and the seed of its hashes.

    Attributes
    ----------
    depth, width : int
        Its rows and columns.
    seed : int
        The seed of the hashes of integers: a number of 32 bits, with its sign.
    """

    depth: int
    width: int
    seed: int

    @classmethod
    def of(cls, eps: float, confidence: float, seed: int) -> Table:
        """The table for an error of ``eps`` times the number of rows, which ``confidence`` of the values keep.

        Of a longer seed the lowest 32 bits count, as in Spark.

        Examples
        --------
        >>> Table.of(0.01, 0.95, 7)
        Table(depth=5, width=200, seed=7)
        """
        seed = (seed + (1 << 31)) % (1 << 32) - (1 << 31)
        return cls(math.ceil(-math.log1p(-confidence) / math.log(2)), math.ceil(2.0 / eps), seed)

    @property
    def size(self) -> int:
        """The bytes of a sketch's counts."""
        return 8 * self.depth * self.width

    def cells(self, values: pl.Series) -> npt.NDArray[np.uint32]:
        """The cells of each value, numbered row by row: as many as the table has rows."""
        if values.dtype in (pl.String, pl.Binary):
            data, bounds = buffers_of(values)
            first, second = (np.empty(len(values), np.int32) for _ in range(2))
            murmur32(data, bounds, np.zeros(len(values), np.int32), first)
            murmur32(data, bounds, first, second)
            sums = first[:, None] + np.arange(self.depth, dtype=np.int32) * second[:, None]  # wraps, as in Java
            columns = np.abs(np.fmod(sums, np.int32(self.width)))
        else:
            hashed = values.cast(pl.Int64).to_numpy()[:, None] * self._factors
            hashed = (hashed + (hashed >> 32)) & _PRIME
            columns = hashed % self.width
        found = columns.astype(np.int64) + np.arange(self.depth) * self.width
        return found.astype(np.uint32)

    @property
    def _factors(self) -> npt.NDArray[np.int64]:
        """What ``java.util.Random(seed).nextInt(2147483647)`` gives, for each row."""
        state = (self.seed ^ 0x5DEECE66D) & (1 << 48) - 1
        found: list[int] = []
        while len(found) < self.depth:
            state = (state * 0x5DEECE66D + 0xB) & (1 << 48) - 1
            drawn = state >> 17
            if drawn < _PRIME:
                found.append(drawn)
        return np.array(found, np.int64)

    def serialized(self, sketches: pl.Series) -> pa.Array:
        """Sketches in Spark's format. A value is counted once in each row of the table: one row says how many."""
        head = np.array([self.depth, self.width], ">i4").tobytes() + self._factors.astype(">i8").tobytes()
        kind = [
            ("version", ">i4"),
            ("total", ">i8"),
            ("head", np.uint8, len(head)),
            ("cells", ">i8", self.depth * self.width),
        ]
        found, cells = np.zeros(len(sketches), np.dtype(kind)), exploded(sketches)
        found["version"], found["head"] = _VERSION, np.frombuffer(head, np.uint8)
        found["cells"][cells[PLACE].to_numpy(), cells[ITEM].to_numpy()] = cells[COUNT].to_numpy()
        found["total"] = found["cells"][:, : self.width].sum(axis=1)
        return arrow.binaries(found)
