"""What ``fb.buffer`` does with the rows of keys that go on together: nothing, or what a user's function makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.aggregates.user_defined import failure, library_of, name_of, returned, table_of
from forebay.errors import ForebayError

POSITION = "position"


@dataclass(frozen=True)
class Processor:
    """A function of the rows of several keys, bound to the columns that it is given.

    Attributes
    ----------
    function : callable or None
        ``function(rows)``; None for rows that go on as they are.
    keys : tuple of str
        The columns of a packed batch that are keys.
    columns : tuple of pairs of str
        The columns of a packed batch that the function sees, and the names it sees them under.
    schema : pyarrow.Schema
        The columns that it returns.
    rows, size : int
        So many rows and about so many bytes of a key go on together at most.

    Examples
    --------
    >>> def total(rows: pl.DataFrame) -> pl.DataFrame:
    ...     return rows.group_by("user", maintain_order=True).agg(pl.col("price").sum())
    >>> schema = pa.schema([("user", pa.string()), ("price", pa.int64())])
    >>> processor = Processor(total, ("k0",), (("k0", "user"), ("a0", "price")), schema, rows=2, size=1 << 20)
    >>> rows = pl.DataFrame({"k0": ["ann", "bob", "ann", "ann"], "a0": [1, 2, 3, 4]})
    >>> [batch.to_pydict() for batch in processor.results(rows, ["k0"])]
    [{'user': ['ann', 'bob'], 'price': [4, 2]}, {'user': ['ann'], 'price': [4]}]
    """

    function: Callable[[Any], Any] | None
    keys: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    schema: pa.Schema
    rows: int
    size: int
    library: str = field(init=False)

    def __post_init__(self) -> None:
        library = "polars" if self.function is None else library_of(self.function, ("rows",), "fb.buffer")
        object.__setattr__(self, "library", library)

    def results(self, rows: pl.DataFrame, by: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """What becomes of rows. ``by`` are columns that are equal for the rows of a key alone.

        The rows of a key are together, in the order in which they are given.
        """
        if not rows.height:
            return
        numbered = rows.with_row_index(POSITION).with_columns(pl.col(POSITION).first().over(by))
        for some in self._runs(numbered.sort(POSITION, maintain_order=True)):
            for batch in self._result(some).to_batches():
                if batch.num_rows:
                    yield batch

    def _runs(self, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Rows of keys, which are together: of each key as many at a time as may go on together, but one at least."""
        keys, before = rows[POSITION].to_numpy(), self._bytes_before(rows)
        ends = np.append(np.flatnonzero(keys[1:] != keys[:-1]) + 1, len(keys))
        begins = np.concatenate([[0], ends[:-1]])
        while len(begins):
            fitting = np.searchsorted(before, before[begins] + self.size, side="right") - 1
            cuts = np.clip(fitting, begins + 1, np.minimum(ends, begins + self.rows))
            lengths = cuts - begins
            places = np.repeat(cuts - np.cumsum(lengths), lengths) + np.arange(lengths.sum())
            yield rows if len(places) == rows.height else rows[places]
            more = cuts < ends
            begins, ends = cuts[more], ends[more]

    def _bytes_before(self, rows: pl.DataFrame) -> npt.NDArray[np.int64]:
        """How many bytes come before each row, and before the end; they are counted only if all are too many for a key."""
        if rows.estimated_size() <= self.size:
            return np.zeros(rows.height + 1, np.int64)
        sizes = arrow.row_bytes(map(arrow.of, self._shown(rows)), rows.height)
        return np.concatenate([[0], np.cumsum(sizes)])

    def _result(self, rows: pl.DataFrame) -> pa.Table:
        if self.function is None:
            return returned(self._shown(rows), self.schema, "fb.buffer", "fb.buffer")
        try:
            return self._made(rows, self.function)
        except BaseException as error:  # a panic of polars is no Exception, nor is sys.exit()
            raise self._failure(rows, self.function, error) from error

    def _shown(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.select(pl.col(column).alias(name) for column, name in self.columns)

    def _made(self, rows: pl.DataFrame, function: Callable[[Any], Any]) -> pa.Table:
        value = function(table_of(self._shown(rows), self.library))
        return returned(value, self.schema, name_of(function), "fb.buffer", exactly=True)

    def _failure(self, rows: pl.DataFrame, function: Callable[[Any], Any], error: BaseException) -> ForebayError:
        """Says for which key the function fails, which is found by calling it for one half of the keys after the other."""
        keys = rows[POSITION].unique(maintain_order=True)
        while len(keys) > 1:
            for half in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
                try:
                    self._made(some := rows.filter(pl.col(POSITION).is_in(half.implode())), function)
                except BaseException as again:
                    if type(again) is type(error):  # others come of being called for so little
                        rows, keys, error = some, half, again
                        break
            else:
                break
        whose = f"the {rows.height} rows of the key {rows.select(self.keys).row(0)!r}"
        if len(keys) > 1:
            whose = f"rows of {len(keys)} keys together, and for neither half of them alone"
        return failure(f"the processor {name_of(function)} of fb.buffer", whose, error)
