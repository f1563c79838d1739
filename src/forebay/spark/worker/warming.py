"""What a Python worker does ahead of its first task of an operator: it loads the modules that the operator needs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from forebay.spark.worker import startup

TOGETHER = 0.5
"""Seconds for which a worker stays busy at least, so that the tasks beside it get workers of their own."""


def warm(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches, from a worker that is ready for operators."""
    began = time.monotonic()
    startup.loads(startup.dumps(None))  # sets the number of threads, before polars is imported
    import pandas as pd  # noqa: F401

    import forebay.engine.open
    import forebay.spark.worker.operator
    import forebay.spark.worker.pack  # noqa: F401

    startup.settle()
    time.sleep(max(0.0, began + TOGETHER - time.monotonic()))
    yield from batches
