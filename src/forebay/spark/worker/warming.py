"""What a Python worker does ahead of its first task of an operator: it loads what the operator needs."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from forebay.errors import ForebayError
from forebay.spark.worker import startup
from forebay.spark.worker.stages import ArrowMap
from forebay.state.places import Place

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import TimerValues

TOGETHER = 0.5
"""Seconds for which a worker stays busy at least, so that the tasks beside it get workers of their own."""


def warmer(place: Place | None) -> ArrowMap:
    """What gives the same batches, from a worker that is ready for operators, on a host whose agent runs if need be."""

    def warm(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began = time.monotonic()
        startup.loads(startup.dumps(None))  # sets the number of threads, before polars is imported
        startup.load_all()
        _rehearse()
        startup.spare_loaded()
        if place is not None:
            place.prepare()
        time.sleep(max(0.0, began + TOGETHER - time.monotonic()))
        yield from batches

    return warm


def loading(rows: Iterable[str]) -> Iterator[int]:
    """Load the modules that an operator needs, in a task of forebay's own; how many rows it has."""
    startup.loads(startup.dumps(None))  # sets the number of threads, as in `warmer`
    startup.load_all()
    yield sum(1 for _ in rows)


def preparing(place: Place, _: Iterable[str]) -> Iterator[int]:
    """Have the agent of this host started, in a task of forebay's own."""
    place.prepare()
    yield 0


def _rehearse() -> None:
    from forebay import compiling
    from forebay.engine import rehearsal

    with (
        compiling.in_turn(),
        tempfile.TemporaryDirectory(prefix="forebay-") as directory,
        contextlib.suppress(ForebayError, OSError),
    ):
        rehearsal.rehearse_some(Path(directory))


class Warmed(StatefulProcessor):
    """An operator that does nothing: what Spark itself needs for one is loaded, its state store too."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("nothing", "nothing int")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues) -> Iterator[pd.DataFrame]:
        self._state.update((0,))
        yield from ()

    def close(self) -> None: ...
