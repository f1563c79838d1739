"""What a task knows of its query: where its state lives, its output mode, and whether it may run at all.

Spark does not tell a Python worker the checkpoint location. A listener on the driver does, see `forebay.spark.properties`.
"""

from __future__ import annotations

import functools
import json

import numpy as np
import numpy.typing as npt
from pyspark import TaskContext

from forebay import errors
from forebay.errors import ForebayError, UnsupportedConfiguration
from forebay.spark.properties import (
    BYTES,
    CHECKPOINT,
    DIRECTORIES,
    MOST_ROWS,
    NO_BOUND,
    OUTPUT_MODE,
    QUERY,
    RECORDS,
    REFUSED,
    RUN,
)
from forebay.spark.worker import startup
from forebay.spark.worker.vnodes import ids_in_turn, vnodes_of
from forebay.state import layout as layouts
from forebay.state.layout import IDENTITY, SPREAD, VNODES, Layout
from forebay.state.places import Place, Root
from forebay.store.archive import archive_at


def state_root(place: Place) -> Root:
    """In a task: where the state of its query is; raises what the listener found wrong with it."""
    refused = startup.local_property(REFUSED)
    if refused:
        kind, _, message = refused.partition(": ")
        raise getattr(errors, kind)(message)
    checkpoint, told = startup.local_property(CHECKPOINT), startup.local_property("sql.streaming.queryId")
    if checkpoint is None or told not in (None, query()):  # of another query, in whose foreachBatch it was started
        raise UnsupportedConfiguration(
            "forebay's driver has not prepared this query, so its tasks know neither its checkpoint location nor its output "
            "mode. That happens when it is started from another session than the one it was defined in, or where "
            "spark.sql.debug.maxToStringFields is so small that Spark's plans do not show its operators. Start it from its "
            "own session, or raise that setting."
        )
    return place.root_of_task(checkpoint, query())


def query() -> str:
    """In a task: the id of its query."""
    return str(startup.local_property(QUERY))


def batch() -> int | None:
    """In a task: the number of its micro-batch; None while an executor is warmed.

    Spark tells it by a property of the thread that runs the query. Where ``foreachBatch`` has threads of its own evaluate
    the micro-batch, it is the last one in Spark's offset log: the next one is written there when this one has ended.
    """
    told = startup.local_property("streaming.sql.batchId")
    if told is not None:
        return int(told)
    location = startup.local_property(CHECKPOINT)
    if location is None or startup.local_property("sql.streaming.queryId") is not None:
        return None
    try:
        return max(int(name) for name in archive_at(location).within("offsets").names() if name.isdecimal())
    except (ForebayError, OSError, ValueError) as error:
        raise UnsupportedConfiguration(
            "foreachBatch evaluates a micro-batch in a thread to which Spark does not tell its number, and Spark's offset "
            f"log in {location} cannot be read: {error}. Start the thread with pyspark.InheritableThread, or its function "
            "as pyspark.inheritable_thread_target gives it; or use a checkpoint location that is mounted or that pyarrow.fs "
            "can reach."
        ) from error


def stored(layout: Layout, root: Root) -> Layout:
    """In a task: the layout that its operator's state has, or will have.

    Where the driver has not seen what state there is, it is not known how it was begun if it is not of this layout. So state
    that is begun there is begun as in earlier releases, which any later run can tell.
    """
    found = layouts.as_stored(layout, updating=updating())
    if startup.local_property(DIRECTORIES) is None and layouts.layout_id(found) not in root.safe.directories():
        found.pop(SPREAD, None)
    return found


def directories(layout: Layout) -> dict[str, Layout]:
    """In a task: where an operator had state when its query started, and what that keeps of how it was begun."""
    found: dict[str, dict[str, Layout]] = json.loads(startup.local_property(DIRECTORIES) or "{}")
    return found.get(layouts.layout_id(layout), {})


def vnodes(layout: Layout, *, spread: bool) -> npt.NDArray[np.int32]:
    """In a task: the virtual nodes of an operator, as many as its state was begun with.

    With ``spread`` windows are shared out among them, so neighbours are in different partitions.
    """
    begun = {**layout, **next(iter(directories(layout).values()), {})}
    return ids_in_turn(begun[VNODES]) if spread and VNODES in begun else vnodes_of(begun, state_partitions())


def hashed(layout: Layout) -> bool:
    """In a task: whether an operator has, or may have, state in which keys are identified by Spark's hashes."""
    return startup.local_property(DIRECTORIES) is None or not _begun_with(IDENTITY, layout)


def spreads(layout: Layout) -> bool:
    """In a task: whether virtual nodes take turns at the windows of an operator."""
    return SPREAD in layout and _begun_with(SPREAD, layout)


def _begun_with(what: str, layout: Layout) -> bool:
    """Whether all layouts with which an operator's state was begun have a field."""
    return all(what in begun for begun in directories(layout).values())


def watermark(batch: int) -> int | None:
    """In a task: the watermark that a micro-batch of its query ran with, in milliseconds, if there was one.

    Spark writes it to the checkpoint before the micro-batch begins, so one that runs again finds the same.
    """
    if batch < 0:
        return None
    run = startup.local_property(RUN)  # the worker may live on to see other batches of that number
    return _logged_watermark(run, str(startup.local_property(CHECKPOINT)), batch)


@functools.lru_cache(maxsize=8)
def _logged_watermark(_run: str | None, location: str, batch: int) -> int | None:
    try:
        entry = archive_at(location).read(f"offsets/{batch}")
        return int(json.loads(entry.splitlines()[1])["batchWatermarkMs"]) or None
    except (ForebayError, OSError, ValueError, LookupError) as error:
        raise UnsupportedConfiguration(
            f"fb.late and idleTimeout read the watermark from Spark's offset log, and offsets/{batch} in {location} cannot "
            f"be read: {error}. Use a checkpoint location that is mounted or that pyarrow.fs can reach."
        ) from error


def updating() -> bool:
    """In a task: whether its query runs in update mode."""
    return startup.local_property(OUTPUT_MODE) == "Update"


def number() -> int:
    """The number of a task within its stage."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def is_first() -> bool:
    """Whether a task is the first one of its stage."""
    return TaskContext.get() is not None and number() == 0


def state_partitions() -> int:
    """How many state partitions the running query has: the number it was first started with, whatever the session says."""
    return int(startup.local_property(_STATE_PARTITIONS) or startup.local_property("spark.sql.shuffle.partitions") or 1)


def rows_of_batches() -> int | None:
    """In a task: after how many rows Spark ends an Arrow batch; None if it ends them by bytes, too."""
    if startup.local_property(BYTES) != NO_BOUND:
        return None
    rows = int(startup.local_property(RECORDS) or _RECORDS)
    return rows if 0 < rows <= MOST_ROWS else None


_RECORDS = 10_000
"""After so many rows Spark ends an Arrow batch unless it is told otherwise."""

_STATE_PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"
"""Spark keeps this in the checkpoint and restores it, so that ``spark.sql.shuffle.partitions`` may change between runs."""
