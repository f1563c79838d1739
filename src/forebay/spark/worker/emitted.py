"""How results leave the operator of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.spark.worker import blobs
from forebay.state.layout import result_names

if TYPE_CHECKING:
    import pandas as pd

EVENT_TIME = "event_time"
"""A column of NULLs beside the results. With it, Spark hands the watermark on to operators that read them."""

_INSTANT = pa.timestamp("us", "UTC")


def as_columns(batches: Iterable[pa.RecordBatch], output: str) -> Iterator[pd.DataFrame]:
    """One row for each result: ``output`` without a value, and the columns by their places, which Spark does not look into.

    Each frame has a fixed cost in Spark's worker, so windows with few results share one.
    """
    from forebay.spark.worker.frames import frame_of

    for batch in blobs.gathered(batches):
        rows = batch.num_rows
        named = dict(zip(result_names(batch.num_columns), batch.columns, strict=True))
        yield frame_of({output: pa.nulls(rows, pa.binary()), EVENT_TIME: pa.nulls(rows, _INSTANT), **named})
