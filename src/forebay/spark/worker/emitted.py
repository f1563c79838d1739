"""How results leave the operator of a stream: as columns, or as blobs where Spark would take columns value by value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.spark.worker import blobs

if TYPE_CHECKING:
    import pandas as pd

EVENT_TIME = "event_time"
"""A column of NULLs beside the results. With it, Spark hands the watermark on to operators that read them."""

_INSTANT = pa.timestamp("us", "UTC")


def as_blobs(batches: Iterable[pa.RecordBatch], output: str) -> Iterator[pd.DataFrame]:
    """One row for each blob of results, in the column ``output``."""
    for blob in blobs.write_all(batches):
        yield _frame({output: pa.array([blob], pa.binary()), EVENT_TIME: pa.nulls(1, _INSTANT)})


def as_columns(batches: Iterable[pa.RecordBatch], output: str) -> Iterator[pd.DataFrame]:
    """One row for each result: ``output`` without a value, and ``c0, c1, ...``, a struct as its fields.

    Each frame has a fixed cost in Spark's worker, so windows with few results share one.
    """
    for batch in blobs.gathered(batches):
        rows = batch.num_rows
        leaves = [
            leaf for column in batch.columns for leaf in (column.flatten() if pa.types.is_struct(column.type) else [column])
        ]
        named = {f"c{place}": leaf for place, leaf in enumerate(leaves)}
        yield _frame({output: pa.nulls(rows, pa.binary()), EVENT_TIME: pa.nulls(rows, _INSTANT), **named})


def _frame(columns: dict[str, pa.Array]) -> pd.DataFrame:
    """A DataFrame over the memory of Arrow arrays."""
    import pandas as pd

    return pd.DataFrame({name: pd.arrays.ArrowExtensionArray(array) for name, array in columns.items()}, copy=False)
