"""What a task knows of its query: where its state lives, its output mode, and whether it may run at all.

Spark does not tell a Python worker the checkpoint location. A listener on the driver does, see `forebay.spark.properties`.
"""

from __future__ import annotations

import functools
import json

from pyspark import TaskContext

from forebay import errors
from forebay.errors import ForebayError, UnsupportedConfiguration
from forebay.spark.properties import BEGUN_WITHOUT, CHECKPOINT, DIRECTORIES, OUTPUT_MODE, REFUSED
from forebay.spark.worker import startup
from forebay.state import layout as layouts
from forebay.state.layout import IDENTITY, SPREAD, Layout
from forebay.state.places import Place, Root
from forebay.store.archive import archive_at


def state_root(place: Place) -> Root:
    """In a task: where the state of its query is; raises what the listener found wrong with it."""
    refused = startup.local_property(REFUSED)
    if refused:
        kind, _, message = refused.partition(": ")
        raise getattr(errors, kind)(message)
    return place.root_of_task(startup.local_property(CHECKPOINT), str(startup.local_property("sql.streaming.queryId")))


def stored(layout: Layout, root: Root) -> Layout:
    """In a task: the layout that its operator's state has, or will have.

    Where the driver has not seen what state there is, it is not known how it was begun if it is not of this layout. So state
    that is begun there is begun as in earlier releases, which any later run can tell.
    """
    found = layouts.as_stored(layout, updating=updating())
    if startup.local_property(DIRECTORIES) is None and layouts.layout_id(found) not in root.safe.directories():
        found.pop(SPREAD, None)
    return found


def directories(layout: Layout) -> list[str]:
    """In a task: where an operator had state when its query started."""
    return _found(json.loads(startup.local_property(DIRECTORIES) or "{}"), layout)


def hashed(layout: Layout) -> bool:
    """In a task: whether an operator has, or may have, state in which keys are identified by Spark's hashes."""
    return startup.local_property(DIRECTORIES) is None or _begun_without(IDENTITY, layout)


def spreads(layout: Layout) -> bool:
    """In a task: whether virtual nodes take turns at the windows of an operator."""
    return SPREAD in layout and not _begun_without(SPREAD, layout)


def _begun_without(what: str, layout: Layout) -> bool:
    """Whether an operator has state that was begun by a release whose layouts did not say something yet."""
    return bool(_found(json.loads(startup.local_property(BEGUN_WITHOUT) or "{}").get(what, {}), layout))


def _found(by_name: dict[str, list[str]], layout: Layout) -> list[str]:
    return by_name.get(layouts.layout_id(layout), [])


def watermark(batch: int) -> int | None:
    """In a task: the watermark that a micro-batch of its query ran with, in milliseconds, if there was one.

    Spark writes it to the checkpoint before the micro-batch begins, so one that runs again finds the same.
    """
    if batch < 0:
        return None
    run = startup.local_property("spark.jobGroup.id")  # the worker may live on to see other batches of that number
    return _logged_watermark(run, startup.local_property(CHECKPOINT), batch)


@functools.lru_cache(maxsize=8)
def _logged_watermark(_run: str | None, location: str | None, batch: int) -> int | None:
    if location is None:
        raise UnsupportedConfiguration(
            "the checkpoint location of this query is not known to its tasks, which happens when it was started from "
            "another session than the one it was defined in. fb.late and idleTimeout need it: start it from its own session."
        )
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


_STATE_PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"
"""Spark keeps this in the checkpoint and restores it, so that ``spark.sql.shuffle.partitions`` may change between runs."""
