"""What tasks must know of their query: where its state lives, its output mode, and whether it may run at all.

Spark does not tell a Python worker the checkpoint location. A listener does: Spark calls it when a query starts, before
its first batch, and it puts the location into the confs of that query's own session, which Spark hands to every task. It
also compares the layouts that the checkpoint holds with those of the query; a mismatch travels the same way and
stops the first task before it reads a row.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener

from forebay import errors
from forebay.errors import ForebayError, UnsupportedConfiguration
from forebay.patterns import Choice
from forebay.spark import layout as layouts
from forebay.spark import metrics, worker
from forebay.spark.conf import PREFIX
from forebay.spark.layout import Layout
from forebay.spark.places import Place, Root
from forebay.store import filenames
from forebay.store.archive import archive_at

CHECKPOINT = PREFIX + "internal.checkpointLocation"
REFUSED = PREFIX + "internal.refused"
DIRECTORIES = PREFIX + "internal.directories"
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
_watched: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def watch(session: SparkSession, planned: Planned) -> str:
    """Have queries of ``session`` tell their tasks where state lives; the name of the operator's output column."""
    if session not in _watched:
        listener = _Starts(session)
        session.streams.addListener(listener)
        atexit.register(_unwatch, weakref.ref(session), listener)
        _watched.add(session)
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
    found: dict[str, list[str]] = json.loads(worker.local_property(DIRECTORIES) or "{}")
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


def layout_in(layout: Layout, *, updating: bool) -> Layout:
    """The layout of state in append or update mode, which store it in different ways."""
    return {**layout, "outputMode": "update"} if updating else layout


def plan_of(query: StreamingQuery) -> str:
    """On the driver: the text of a query's plan."""
    return str(_execution(query).analyzedPlan().toString())


def root_of(query: StreamingQuery) -> Root:
    """On the driver: where the state of a query is."""
    known = operators(plan_of(query))
    place = known[0].place if known else Place()
    return place.root(_execution(query).resolvedCheckpointRoot(), str(query.id))


def _execution(query: StreamingQuery) -> Any:
    return query._jsq.streamingQuery()


def _require_possible(mode: str, plan: str) -> None:
    """`UnsupportedConfiguration` if the operators of a plan cannot run in an output mode."""
    if mode == "Append":
        return
    for operator in operators(plan):
        layout = operator.layout
        if operator.chained:
            raise UnsupportedConfiguration(
                f"outputMode({mode.lower()!r}) is not possible for an operator over the results of another one, which would "
                'take every update for one more row. Use outputMode("append").'
            )
        changing = layout["pattern"] == "RMW" and layout["window"].startswith("window(") and "firing" not in layout
        if mode != "Update" or not changing:
            raise UnsupportedConfiguration(
                f"outputMode({mode.lower()!r}) is not possible for {layout['window']}: {', '.join(layout['aggregates'])}. "
                'Use outputMode("append"). Update mode is for tumbling and sliding windows with incremental aggregates.'
            )


def _directories_of(root: Root, plan: str, *, updating: bool) -> dict[str, list[str]]:
    """The directories in which the operators of a plan have state, by the names of their layouts.

    `LayoutChanged` if one is neither of a layout in the plan nor of one that can become such; that it does is noted there.
    """
    here = {layouts.layout_id(layout): layout for layout in _layouts(plan, updating=updating)}
    found: dict[str, list[str]] = {name: [] for name in here}
    there = sorted(name for name in root.safe.directories() if filenames.is_layout(name)) if here else []
    for name in there:
        history = layouts.forms(root, name)
        latest = layouts.layout_id(history[-1])
        if latest not in here:
            heirs = [each for each in here if layouts.evolves(history, here[each])]
            if not heirs:
                raise layouts.changed(root, history[-1], _nearest(history[-1], list(here.values())))
            kept = {each: len(history[-1]["aggregates"].keys() & here[each]["aggregates"].keys()) for each in heirs}
            latest = min(heirs, key=lambda each: (each in there or bool(found[each]), -kept[each]))
            layouts.record(root, name, history, here[latest])
        found[latest].append(name)
    return found


def _layouts(plan: str, *, updating: bool) -> list[Layout]:
    return [layout_in(operator.layout, updating=updating) for operator in operators(plan)]


def _nearest(wanted: Layout, candidates: Sequence[Layout]) -> Layout:
    return max(candidates, key=lambda layout: sum(layout.get(name) == value for name, value in wanted.items()))


class _Starts(StreamingQueryListener):
    def __init__(self, session: SparkSession) -> None:
        self._session = weakref.ref(session)

    def onQueryStarted(self, event: Any) -> None:
        session = self._session()
        query = session.streams.get(str(event.id)) if session is not None else None
        if query is None:
            return
        execution = _execution(query)
        plan = execution.analyzedPlan().toString()
        if not MARK.search(plan):
            return
        conf = execution.sparkSessionForStream().conf()
        conf.set(CHECKPOINT, execution.resolvedCheckpointRoot())
        mode = execution.outputMode().toString()
        conf.set(OUTPUT_MODE, mode)
        conf.unset(REFUSED)
        try:
            _require_possible(mode, plan)
            conf.set(DIRECTORIES, json.dumps(_directories_of(root_of(query), plan, updating=mode == "Update")))
        except ForebayError as error:  # for the first task to raise
            conf.set(REFUSED, f"{type(error).__name__}: {error}")

    def onQueryProgress(self, event: Any) -> None:
        metrics.fold()

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def _unwatch(session: weakref.ref[SparkSession], listener: StreamingQueryListener) -> None:
    """Leave the session before the interpreter does, and let calls under way end, or Spark would call what is gone."""
    alive = session()
    if alive is not None and alive.sparkContext._jsc is not None:
        alive.streams.removeListener(listener)
        with contextlib.suppress(Py4JError):  # a bus that is not empty in time only means a message in the log
            alive.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(2000)
