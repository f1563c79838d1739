"""What tasks must know of their query: where its state lives, its output mode, and whether it may run at all.

Spark does not tell a Python worker the checkpoint location. `forebay.spark.listener` puts it into the confs of the query's
own session, which Spark hands to every task, together with what it has found in the checkpoint.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming import StreamingQuery

from forebay import errors
from forebay.errors import ForebayError, UnsupportedConfiguration
from forebay.patterns import Choice
from forebay.spark import layout as layouts
from forebay.spark import worker
from forebay.spark.conf import PREFIX
from forebay.spark.layout import Layout
from forebay.spark.places import Place, Root
from forebay.store import filenames
from forebay.store.archive import archive_at

CHECKPOINT = PREFIX + "internal.checkpointLocation"
REFUSED = PREFIX + "internal.refused"
DIRECTORIES = PREFIX + "internal.directories"
HASHED = PREFIX + "internal.hashedKeys"
OUTPUT_MODE = PREFIX + "internal.outputMode"
MARK = re.compile(f"forebay_({filenames.LAYOUT_ID})")
"""An operator's output column is named so; thereby a query's plan tells which operators it has."""
_ANY_MARK = re.compile(f"forebay_(?:batch_)?({filenames.LAYOUT_ID})")


@dataclass(frozen=True)
class Planned:
    """An operator as `agg` planned it: its layout, how its store was chosen, and where its state lives.

    ``chained`` says whether it reads the results of another one.
    """

    layout: Layout
    choice: Choice
    place: Place
    chained: bool = False


_planned: dict[str, Planned] = {}


def note(planned: Planned) -> str:
    """The name of the output column of an operator over a stream."""
    return f"forebay_{_noted(planned)}"


def note_batch(planned: Planned) -> str:
    """The name of the output column of an operator over a batch DataFrame, which has no state that lasts."""
    return f"forebay_batch_{_noted(planned)}"


def _noted(planned: Planned) -> str:
    name = layouts.layout_id({**planned.layout, "place": repr(planned.place), "chained": planned.chained})
    _planned[name] = planned
    return name


def operators(plan: str, *, batch: bool = False) -> list[Planned]:
    """The forebay operators over streams in a plan's text; with ``batch`` those over batch DataFrames too."""
    names = (_ANY_MARK if batch else MARK).findall(plan)
    return [_planned[name] for name in dict.fromkeys(names) if name in _planned]


def state_root(place: Place) -> Root:
    """In a task: where the state of its query is; raises what the listener found wrong with it."""
    refused = worker.local_property(REFUSED)
    if refused:
        kind, _, message = refused.partition(": ")
        raise getattr(errors, kind)(message)
    return place.root(worker.local_property(CHECKPOINT), str(worker.local_property("sql.streaming.queryId")))


def directories(layout: Layout) -> list[str]:
    """In a task: where an operator had state when its query started."""
    return _found(DIRECTORIES, layout)


def hashed(layout: Layout) -> bool:
    """In a task: whether an operator has state in which keys are identified by Spark's hashes."""
    return bool(_found(HASHED, layout))


def _found(what: str, layout: Layout) -> list[str]:
    found: dict[str, list[str]] = json.loads(worker.local_property(what) or "{}")
    return found.get(layouts.layout_id(layout), [])


def watermark(batch: int) -> int | None:
    """In a task: the watermark that a micro-batch of its query ran with, in milliseconds, if there was one.

    Spark writes it to the checkpoint before the micro-batch begins, so one that runs again finds the same.
    """
    if batch < 0:
        return None
    run = worker.local_property("spark.jobGroup.id")  # the worker may live on to see other batches of that number
    return _logged_watermark(run, worker.local_property(CHECKPOINT), batch)


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
    return worker.local_property(OUTPUT_MODE) == "Update"


def plan_of(query: StreamingQuery) -> str:
    """On the driver: the text of a query's plan."""
    return str(execution(query).analyzedPlan().toString())


def root_of(query: StreamingQuery) -> Root:
    """On the driver: where the state of a query is."""
    known = operators(plan_of(query))
    place = known[0].place if known else Place()
    return place.root(execution(query).resolvedCheckpointRoot(), str(query.id))


def execution(query: StreamingQuery) -> Any:
    """On the driver: what runs a query, an object of the JVM."""
    return query._jsq.streamingQuery()
