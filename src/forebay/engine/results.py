"""Results of windows from their rows, or from partial aggregates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.processor import Processor
from forebay.engine.plan import WindowPlan
from forebay.engine.portions import portions
from forebay.windows import Times

WINDOW = "window"
"""The column that holds the start of a row's window, in microseconds, while windows fire."""

Bounds = Callable[[Times], npt.NDArray[np.int64]]
"""Start and end of windows that a `WINDOW` column names."""


def results(
    plan: WindowPlan,
    rows: pl.DataFrame,
    bounds: Bounds,
    *,
    partial: bool,
    merged: bool = False,
    only: int | None = None,
    mixed: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Results of windows from their rows, or from partial aggregates.

    Parameters
    ----------
    plan : WindowPlan
        The operator.
    rows : polars.DataFrame
        Rows of windows that fire, with the `WINDOW` of each.
    bounds : callable
        Maps values of that column to starts and ends.
    partial : bool
        Whether the rows are partial aggregates.
    merged : bool
        Whether there is one of them for each window and key already.
    only : int, optional
        All rows are of this window. The column is not needed then, except for a user's function.
    mixed : bool
        Whether rows of windows are in no order that another attempt at the micro-batch would give them, as it depends on
        which of them were read ahead of time. Results are in the order of `WINDOW` then.
    """
    aggregation = plan.aggregation
    assert not isinstance(aggregation, Processor)
    if mixed and not isinstance(aggregation, Aggregation):
        rows = in_order(rows, WINDOW)
    if not isinstance(aggregation, Aggregation):
        yield from aggregation.results(
            rows, list(plan.keys), WINDOW, lambda ids, columns: assemble(plan, bounds(ids), columns)
        )
        return
    by = () if only is not None else (WINDOW,)
    groups = rows if merged else aggregation.merge(rows, by) if partial else aggregation.partial(rows, by)
    if mixed:
        groups = in_order(groups, WINDOW)
    for some in portions(groups, more=aggregation.result_bytes):
        windows = some[WINDOW].to_numpy() if by else np.full(some.height, only, np.int64)
        keys = [arrow.of(some[key]) for key in plan.keys]
        yield assemble(plan, bounds(windows), [*keys, *aggregation.finish(some)])


def in_order(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    """Rows by their windows, a column of numbers, those of a window in the order that they have."""
    windows = rows[by].to_numpy()
    return rows if (windows[1:] >= windows[:-1]).all() else rows.sort(by, maintain_order=True)


def assemble(plan: WindowPlan, bounds: npt.NDArray[np.int64], columns: list[pa.Array]) -> pa.RecordBatch:
    """Result columns, with their windows before them, as one record batch of the result's schema."""
    schema = plan.schema
    if len(schema) > len(columns):
        fields = list(schema.field(0).type)
        arrays = [pa.array(np.ascontiguousarray(bounds[:, place])) for place in (0, 1)]
        timed = [
            array.cast(pa.timestamp("us")).cast(field.type) if pa.types.is_timestamp(field.type) else array
            for array, field in zip(arrays, fields, strict=True)
        ]
        columns = [pa.StructArray.from_arrays(timed, fields=fields), *columns]
    return conforming(columns, schema)


def conforming(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Columns as a record batch of a schema, to whose types they are cast where they have others."""
    arrays = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def window_column(window: int) -> pl.Expr:
    """A `WINDOW` column of rows that are all of one window."""
    return pl.lit(window, pl.Int64).alias(WINDOW)
