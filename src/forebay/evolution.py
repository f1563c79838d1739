"""Rows that an earlier form of the query has stored, as its present form stores them.

Aggregates may be added and dropped, and columns widened, under a checkpoint. Nothing is rewritten for that: extents keep the
columns that they were written with, and are given those of the present form when they are read. An aggregate that was added
sees earlier rows as if its columns had been NULL in them.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from forebay.aggregates.aggregation import ROWS, Aggregation
from forebay.errors import LayoutChanged

_COUNT_OF_ALL = "*.count"
_DECIMAL = re.compile(r"decimal(?:128)?\((\d+), ?(\d+)\)")
_INTEGERS = (("tinyint", "smallint", "int", "bigint"), ("int8", "int16", "int32", "int64"))


class StoredForm:
    """The columns that an operator stores, and what they are in rows that were stored without them.

    Parameters
    ----------
    packed : pyarrow.Schema
        The columns of a packed batch.
    aggregation : Aggregation, optional
        Given when partial aggregates are stored, not rows.
    divided : tuple of str
        Columns of integers that are stored beside them.
    converted : bool
        Whether rows have gone through polars, which has fewer types than Arrow.

    Examples
    --------
    >>> form = StoredForm(pa.schema([("user", pa.string()), ("price", pa.int64())]))
    >>> form.of(pa.record_batch({"user": ["ann"]})).to_pylist()
    [{'user': 'ann', 'price': None}]
    """

    def __init__(
        self,
        packed: pa.Schema,
        aggregation: Aggregation | None = None,
        divided: tuple[str, ...] = (),
        *,
        converted: bool = False,
    ) -> None:
        self._packed, self._aggregation, self._divided, self._converted = packed, aggregation, divided, converted
        self.id: tuple[Any, ...] = (packed, aggregation and aggregation.columns, divided)

    @property
    def schema(self) -> pa.Schema:
        return self._blank.schema

    @cached_property
    def _blank(self) -> pa.RecordBatch:
        """What is stored of one row of NULLs."""
        nulls = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in self._packed], schema=self._packed)
        if self._aggregation is None and not self._converted:
            return nulls
        frame = pl.DataFrame(nulls).with_columns(pl.lit(0, pl.Int64).alias(name) for name in self._divided)
        if self._aggregation is not None:
            frame = self._aggregation.partial(frame, self._divided)
        return frame.to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks().to_batches()[0]

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A stored batch with exactly the columns and types of this form; `LayoutChanged` where that is not possible."""
        schema = self.schema
        if batch.schema.equals(schema):
            return batch
        return pa.RecordBatch.from_arrays([self._column(field, batch) for field in schema], schema=schema)

    def _column(self, field: pa.Field, batch: pa.RecordBatch) -> pa.Array:
        if field.name in batch.schema.names:
            stored = batch[field.name]
            if stored.type.equals(field.type):
                return stored
            if widens(str(stored.type), str(field.type)):
                return stored.cast(field.type)
            raise LayoutChanged(
                f"the state still has {field.name} as {stored.type}, from before it was dropped; the query now has it as "
                f"{field.type}. Change the query back, or start it with a new checkpoint location."
            )
        if field.name == _COUNT_OF_ALL:
            return batch[ROWS]
        return self._blank[field.name].take(np.zeros(batch.num_rows, np.int64))


def widens(old: str, new: str) -> bool:
    """Whether every value of one type is a value of another, by the types' names in Spark or in Arrow.

    Integers become longer ones or, up to 32 bits, doubles; floats doubles; decimals get more digits before the point, but
    not beyond 28 in all, where sums are stored in another way.

    Examples
    --------
    >>> widens("int", "bigint"), widens("bigint", "int"), widens("decimal(10,2)", "decimal(12,2)")
    (True, False, True)
    """
    if old == new:
        return True
    for names in _INTEGERS:
        if old in names:
            return new in names[names.index(old) :] or (new == "double" and old != names[-1])
    if old == "float":
        return new == "double"
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if before is None or after is None or before[2] != after[2]:
        return False
    digits, more = int(before[1]), int(after[1])
    return digits <= more and (digits > 28) == (more > 28)
