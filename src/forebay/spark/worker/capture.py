"""What a task records of a virtual node where ``spark.forebay.captureTrace`` is set."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from forebay.engine.observer import ARRIVAL
from forebay.engine.plan import WindowPlan
from forebay.spark.worker import blobs, task
from forebay.store.partitions import SLICE


class Recording:
    """Watches the store instance of one virtual node during one micro-batch. `begin` makes one.

    Parameters
    ----------
    plan : WindowPlan
        The operator.
    layout : str
        The name of its layout.
    vnode, batch : int
        The virtual node and the micro-batch.
    """

    def __init__(self, plan: WindowPlan, layout: str, vnode: int, batch: int) -> None:
        from forebay.harness.capture import About
        from forebay.harness.recorder import Recorder

        assert plan.capture is not None
        self.observer = Recorder(plan)
        self._directory = Path(plan.capture.directory) / f"{task.query()}-{layout}"
        self._about = About(plan.capture.operator, batch, vnode, time.time_ns() // 1000, task.number())

    @classmethod
    def begin(cls, plan: WindowPlan, layout: str, vnode: int, batch: int) -> Recording | None:
        """A recording if the plan asks for one."""
        return None if plan.capture is None else cls(plan, layout, vnode, batch)

    @staticmethod
    def in_order(waiting: Iterator[bytes]) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """What `blobs.read_all` gives, as one batch of rows as they arrived; those of aligned windows by slice first."""
        batches = [batch for batch, _ in blobs.read_all(waiting)]
        if batches:
            rows = pa.concat_batches(batches)
            by = [rows[name].to_numpy() for name in (ARRIVAL, SLICE) if name in rows.schema.names]
            yield rows.take(pa.array(np.lexsort(by))), False

    def write(self) -> None:
        """Record what the instance has done."""
        from forebay.harness.capture import write_captured

        write_captured(self._directory, self._about, self.observer.accesses())
