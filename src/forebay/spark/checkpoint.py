"""Where state lives: ``<checkpointLocation>/forebay``, unless ``spark.forebay.stateDirectory`` says otherwise.

Spark does not tell a Python worker the checkpoint location. A listener does: Spark calls it when a query starts, before
its first batch, and it puts the location into the confs of that query's own session, which Spark hands to every task. It
also compares the layouts that the checkpoint holds with those of the query; a mismatch travels the same way and
stops the first task before it reads a row.
"""

from __future__ import annotations

import atexit
import contextlib
import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener

from forebay.errors import LayoutChanged, UnsupportedConfiguration
from forebay.patterns import Choice
from forebay.spark import layout as layouts
from forebay.spark import worker
from forebay.spark.conf import PREFIX, local_path
from forebay.spark.layout import Layout
from forebay.store import filenames

CHECKPOINT = PREFIX + "internal.checkpointLocation"
REFUSED = PREFIX + "internal.refused"
OUTPUT_MODE = PREFIX + "internal.outputMode"
DIRECTORY = "forebay"
MARK = re.compile(r"forebay_([0-9a-f]{12})")
"""An operator's output column is named so; thereby a query's plan tells which layouts it has."""


@dataclass(frozen=True)
class Planned:
    """An operator as `agg` planned it: its layout, how its store was chosen, and where its state was told to live.

    ``chained`` says whether it reads the results of another one.
    """

    layout: Layout
    choice: Choice
    state_directory: str | None
    chained: bool = False


_planned: dict[str, Planned] = {}
_watched: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def watch(session: SparkSession, planned: Planned) -> str:
    """Have queries of ``session`` tell their tasks where state lives; the name of the operator's output column."""
    name = layouts.layout_id(planned.layout)
    _planned[name] = planned
    if session not in _watched:
        listener = _Starts(session)
        session.streams.addListener(listener)
        atexit.register(_unwatch, weakref.ref(session), listener)
        _watched.add(session)
    return f"forebay_{name}"


def operators(plan: str) -> list[Planned]:
    """The forebay operators in a plan's text."""
    return [_planned[name] for name in dict.fromkeys(MARK.findall(plan)) if name in _planned]


def state_root(configured: str | None) -> Path:
    """In a task: the state directory of its query; raises what the listener found wrong with it."""
    refused = worker.local_property(REFUSED)
    if refused:
        raise (UnsupportedConfiguration if refused.startswith("outputMode") else LayoutChanged)(refused)
    location = worker.local_property(CHECKPOINT)
    query = worker.local_property("sql.streaming.queryId")
    return _root(configured, location, query)


def updating() -> bool:
    """In a task: whether its query runs in update mode."""
    return worker.local_property(OUTPUT_MODE) == "Update"


def layout_in(layout: Layout, *, updating: bool) -> Layout:
    """The layout of state in append or update mode, which store it in different ways."""
    return {**layout, "outputMode": "update"} if updating else layout


def plan_of(query: StreamingQuery) -> str:
    """On the driver: the text of a query's plan."""
    return str(_execution(query).analyzedPlan().toString())


def root_of(query: StreamingQuery) -> Path:
    """On the driver: the state directory of a query."""
    execution = _execution(query)
    known = operators(plan_of(query))
    return _root(known[0].state_directory if known else None, execution.resolvedCheckpointRoot(), str(query.id))


def _root(configured: str | None, location: str | None, query: str | None) -> Path:
    if configured:
        return Path(configured) / str(query)
    if location is None:
        raise UnsupportedConfiguration(
            "the checkpoint location of this query is not known to its tasks, which happens when it was started from "
            f"another session than the one it was defined in. Set {PREFIX}stateDirectory."
        )
    path = local_path(location)
    if path is None:
        raise UnsupportedConfiguration(
            f"the checkpoint is at {location}; state can only be kept beside checkpoints on a file system that is "
            f"mounted. Set {PREFIX}stateDirectory to a directory that all executors share."
        )
    return path / DIRECTORY


def _execution(query: StreamingQuery) -> Any:
    return query._jsq.streamingQuery()


def _impossible(mode: str, plan: str) -> str | None:
    """Why the operators of a plan cannot run in an output mode, or None."""
    if mode == "Append":
        return None
    for operator in operators(plan):
        layout = operator.layout
        if operator.chained:
            return (
                f"outputMode({mode.lower()!r}) is not possible for an operator over the results of another one, which would "
                'take every update for one more row. Use outputMode("append").'
            )
        if mode != "Update" or layout["pattern"] != "RMW" or not layout["window"].startswith("window("):
            return (
                f"outputMode({mode.lower()!r}) is not possible for {layout['window']}: {', '.join(layout['aggregates'])}. "
                'Use outputMode("append"). Update mode is for tumbling and sliding windows with incremental aggregates.'
            )
    return None


def _mismatch(root: Path, plan: str, *, updating: bool) -> str | None:
    """What differs between the layouts on disk and those in the plan, or None when every one on disk is in the plan."""
    here = [layout_in(operator.layout, updating=updating) for operator in operators(plan)]
    names = [*map(layouts.layout_id, here), *([] if here else MARK.findall(plan))]
    strangers = [path.parent.name for path in root.glob(f"*/{filenames.LAYOUT}") if path.parent.name not in names]
    if not strangers or not here:
        return None
    return str(layouts.changed(root, strangers[0], _nearest(layouts.read(root, strangers[0]), here)))


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
        refused = _impossible(mode, plan) or _mismatch(root_of(query), plan, updating=mode == "Update")
        if refused:
            conf.set(REFUSED, refused)
        else:
            conf.unset(REFUSED)

    def onQueryProgress(self, event: Any) -> None:
        pass

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
