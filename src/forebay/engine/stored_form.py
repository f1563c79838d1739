"""Rows that an earlier form of the query has stored, as its present form stores them.

Aggregates may be added and dropped, and columns widened, under a checkpoint. Nothing is rewritten for that: extents keep the
columns that they were written with, and are given those of the present form when they are read. An aggregate that was added
sees earlier rows as if its columns had been NULL in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.aggregates.aggregation import ROWS, Aggregation
from forebay.aggregates.sketches import earlier_name
from forebay.engine.widening import widens
from forebay.errors import CorruptState, LayoutChanged

_COUNT_OF_ALL = "*.count"
_blanks: dict[Any, pa.RecordBatch] = {}
"""What is stored of a row of NULLs, by the form."""


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
        self._id: tuple[Any, ...] = (packed, aggregation and aggregation.columns, divided, converted)

    @property
    def id(self) -> tuple[Any, ...]:
        """Equal for equal forms."""
        return self._id

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._blank.schema

    @property
    def _blank(self) -> pa.RecordBatch:
        if self.id not in _blanks:
            _blanks[self.id] = self._of_nulls()
        return _blanks[self.id]

    def _of_nulls(self) -> pa.RecordBatch:
        nulls = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in self._packed], schema=self._packed)
        if self._aggregation is None and not self._converted:
            return nulls
        frame = pl.DataFrame(nulls).with_columns(pl.lit(0, pl.Int64).alias(name) for name in self._divided)
        if self._aggregation is not None:
            frame = self._aggregation.partial(frame, self._divided)
        return arrow.batch_of(frame)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A stored batch with exactly the columns and types of this form; `LayoutChanged` where that is not possible."""
        schema = self.schema
        if batch.schema.equals(schema):
            return batch
        return pa.RecordBatch.from_arrays([self._column(field, batch) for field in schema], schema=schema)

    def _column(self, field: pa.Field, batch: pa.RecordBatch) -> pa.Array:
        name = earlier_name(field.name, batch.schema.names)
        if name in batch.schema.names:
            stored = batch[name]
            if stored.type.equals(field.type):
                return stored
            if widens(str(stored.type), str(field.type)):
                return stored.cast(field.type)
            raise LayoutChanged(
                f"the state has {field.name} as {stored.type} from an earlier form of the query, which now has it as "
                f"{field.type}. Change the query back, or start it with a new checkpoint location."
            )
        if field.name == _COUNT_OF_ALL:
            return batch[ROWS]
        return self._blank[field.name].take(np.zeros(batch.num_rows, np.int64))


def unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Columns that rows of all schemas fit; `CorruptState` if there are none."""
    try:
        return pa.unify_schemas(list(schemas) or [pa.schema([])], promote_options="permissive")
    except pa.ArrowException as error:
        raise CorruptState(f"extents of the state have columns that do not go together: {error}") from error
