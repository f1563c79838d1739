"""What happens on the driver when a query starts, goes on and ends.

Spark calls a listener when a query starts, before its first batch. This one puts the checkpoint location and what it has
found there into the confs of the query's own session, which Spark hands to every task. Spark swallows what a listener
raises, so what is wrong with a query travels the same way and stops the first task before it reads a row.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import re
import weakref
from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener

from forebay.errors import ForebayError, UnsupportedConfiguration
from forebay.spark.driver import metrics, replicas
from forebay.spark.driver import query as queries
from forebay.spark.driver.conf import Conf
from forebay.spark.driver.handover import handover
from forebay.spark.driver.plans import redefined
from forebay.spark.driver.policies import Policies
from forebay.spark.properties import CHECKPOINT, DIRECTORIES, HASHED, OUTPUT_MODE, REFUSED
from forebay.state import layout as layouts
from forebay.state.layout import IDENTITY, Layout
from forebay.state.places import Root, local_path
from forebay.store import filenames
from forebay.store.archive import archive_at

_log = logging.getLogger("forebay")

_FEW_PARTITIONS = 4
"""So many state partitions for each core are not worth a warning."""

_STILL = 10
"""A watermark that has not moved in so many micro-batches with rows is worth one."""

_BUCKETS = ("s3", "s3a", "s3n", "gs", "abfs", "abfss", "wasb", "wasbs")
"""Schemes whose locations begin with a bucket or a container."""

_watched: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def watch(session: SparkSession) -> None:
    """Have queries of a session tell their tasks where state lives."""
    if session not in _watched:
        listener = _Listener(session)
        session.streams.addListener(listener)
        atexit.register(_unwatch, weakref.ref(session), listener)
        _watched.add(session)


class _Listener(StreamingQueryListener):
    def __init__(self, session: SparkSession) -> None:
        self._session = weakref.ref(session)
        self._watermarks: dict[str, _Watermark] = {}
        self._running: set[str] = set()

    def onQueryStarted(self, event: Any) -> None:
        session = self._session()
        query = session.streams.get(str(event.id)) if session is not None else None
        if session is None or query is None:
            return
        try:
            plan = queries.plan_of(query)
            if queries.MARK.search(plan):
                self._started(session, query, plan)
        except Exception:  # which Spark would swallow
            _log.exception("forebay could not prepare the query %s", event.id)

    def _started(self, session: SparkSession, query: StreamingQuery, plan: str) -> None:
        execution = queries.execution(query)
        location, mode = execution.resolvedCheckpointRoot(), execution.outputMode().toString()
        conf = execution.sparkSessionForStream().conf()
        conf.set(CHECKPOINT, location)
        conf.set(OUTPUT_MODE, mode)
        conf.unset(REFUSED)
        metrics.revive(str(query.id))
        self._running.add(str(query.id))
        if "UpdateEventTimeWatermarkColumn" in plan:
            self._watermarks[str(query.runId)] = _Watermark(query.name or str(query.id))
        try:
            _require_possible(mode, plan)
            _require_at_home(location)
            root, committed = queries.root_of(query), _committed(execution)
            found, hashed = _directories_of(root, plan, committed, updating=mode == "Update")
            conf.set(DIRECTORIES, json.dumps(found))
            conf.set(HASHED, json.dumps(hashed))
            _serve_metrics(session)
            operators = queries.operators(plan)
            if operators:
                replicas.register(operators[0].place, location, str(query.id), _state_partitions(execution))
                if operators[0].place.application is not None:
                    Policies(handover(query), root, acting=Conf.of(session).handover == "auto").start()
        except ForebayError as error:  # for the first task to raise
            conf.set(REFUSED, f"{type(error).__name__}: {error}")
        except Exception as error:
            text = f"forebay could not prepare the query: {type(error).__name__}: {error}"
            conf.set(REFUSED, f"{UnsupportedConfiguration.__name__}: {text}")
            _log.exception("forebay could not prepare the query %s", query.id)
        _warn_of_partitions(session, execution)

    def onQueryProgress(self, event: Any) -> None:
        metrics.fold()
        seen = self._watermarks.get(str(event.progress.runId))
        if seen is not None:
            seen.note(event.progress.eventTime.get("watermark"), event.progress.numInputRows)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self._watermarks.pop(str(event.runId), None)
        session = self._session()
        if session is None or session.streams.get(str(event.id)) is not None:  # it may be running again
            return
        if str(event.id) in self._running:
            self._running.discard(str(event.id))
            metrics.retire(str(event.id))


class _Watermark:
    """The watermark of a query as it goes on."""

    def __init__(self, query: str) -> None:
        self._query, self._batches, self._warned = query, 0, False
        self._at: str | None = None

    def note(self, watermark: str | None, rows: int) -> None:
        """Take the watermark of a micro-batch with so many input rows; warn once if it stays where it is."""
        if watermark != self._at:
            self._at, self._batches = watermark, 0
        elif rows and not self._warned:
            self._batches += 1
            if self._batches == _STILL:
                self._warned = True
                _log.warning(
                    "the watermark of the query %s has stayed at %s in %d micro-batches with rows. Until it moves, no "
                    "window fires and state only grows. Check that the column that withWatermark names has times, and that "
                    "they increase. Of several inputs the slowest one counts (spark.sql.streaming.multipleWatermarkPolicy).",
                    self._query,
                    self._at,
                    _STILL,
                )


def _require_possible(mode: str, plan: str) -> None:
    """`UnsupportedConfiguration` if the operators of a plan cannot run, or not in an output mode."""
    column = redefined(plan)
    if column is not None:
        raise UnsupportedConfiguration(
            f"the results of an operator of forebay are given another watermark, on {column}. Leave that withWatermark out: "
            "results have the watermark of what they were made of, on their window or event_time."
        )
    if mode == "Append":
        return
    for operator in queries.operators(plan):
        layout = operator.layout
        if operator.chained:
            raise UnsupportedConfiguration(
                f"outputMode({mode.lower()!r}) is not possible for an operator over the results of another one, which would "
                'take every update for one more row. Use outputMode("append").'
            )
        changing = layout["pattern"] == "RMW" and layouts.kind_of(layout) == "window" and "firing" not in layout
        if mode != "Update" or not changing:
            raise UnsupportedConfiguration(
                f"outputMode({mode.lower()!r}) is not possible for {layout['window']}: {', '.join(layout['aggregates'])}. "
                'Use outputMode("append"). Update mode is for tumbling and sliding windows with incremental aggregates.'
            )


def _require_at_home(location: str) -> None:
    """`UnsupportedConfiguration` for a checkpoint that was copied from elsewhere.

    Spark keeps the absolute paths of its state's schemas in the checkpoint, and would read those of the original, or fail.
    """
    for recorded in _schema_paths(location):
        elsewhere = recorded.rpartition("/state/")[0]
        if not _same(location, elsewhere):
            message = (
                f"the checkpoint at {location} was copied from {elsewhere}: Spark keeps absolute paths of its state's "
                "schemas, and these still lead there. docs/operations.md (move a checkpoint) says how to change them."
            )
            _log.error("%s", message)  # Spark may fail before the first task can say so
            raise UnsupportedConfiguration(message)


def _same(location: str, other: str) -> bool:
    """Whether two locations are one directory, as far as can be told."""
    here, there = local_path(location), local_path(other)
    if here is None or there is None:  # schemes and hosts have several names
        return _path(location) == _path(other)
    try:
        return here.resolve() == there.resolve() or here.samefile(there)
    except OSError:
        return False


def _path(location: str) -> str:
    """A location without what has several names: the scheme, and the host where that is not a bucket."""
    scheme, _, rest = location.partition(":")
    return (rest if scheme in _BUCKETS else re.sub("^//[^/]*", "", rest)).rstrip("/")


def _schema_paths(location: str) -> list[str]:
    """Where Spark says that the schemas of its state are; nothing where that cannot be read, which Spark reports itself."""
    found: list[str] = []
    with contextlib.suppress(Exception):  # of any file system, of which only Spark knows how it is reached
        state = archive_at(location).within("state")
        for operator in state.directories():
            metadata = state.within(f"{operator}/_metadata/v2")
            batches = [int(name) for name in metadata.names() if name.isdigit()]
            for store in json.loads(metadata.read(str(max(batches))).splitlines()[1])["stateStoreInfo"] if batches else ():
                found += store["stateSchemaFilePaths"]
    return found


def _committed(execution: Any) -> int:
    """The last micro-batch that Spark has committed, -1 if there is none."""
    latest = execution.commitLog().getLatestBatchId()
    return int(latest.get()) if latest.isDefined() else -1


def _directories_of(
    root: Root, plan: str, committed: int, *, updating: bool
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The directories in which the operators of a plan have state, and those in which keys are identified by Spark's hashes.

    Both are by the names of layouts. `LayoutChanged` if there is state neither of a layout in the plan nor of one that can
    become such; that it does is noted there.
    """
    stored = (layouts.as_stored(operator.layout, updating=updating) for operator in queries.operators(plan))
    here = {layouts.layout_id(layout): layout for layout in stored}
    found: dict[str, list[str]] = {name: [] for name in here}
    there = sorted(name for name in root.safe.directories() if filenames.is_layout(name)) if here else []
    histories = {name: layouts.settled_history(root, name, committed) for name in there}
    changed = []
    for name, history in histories.items():
        begun = {each: layouts.as_begun(layout, history[0]) for each, layout in here.items()}
        same = [each for each, layout in begun.items() if layout == history[-1]]
        if same:
            found[same[0]].append(name)
        else:
            changed.append((name, history, begun))
    for name, history, begun in changed:
        heirs = [each for each, layout in begun.items() if layouts.evolves(history, layout)]
        if not heirs:
            raise layouts.changed(root, history[-1], _nearest(history[-1], list(begun.values())))
        kept = {each: len(history[-1]["aggregates"].keys() & here[each]["aggregates"].keys()) for each in heirs}
        heir = min(heirs, key=lambda each: (bool(found[each]), -kept[each]))
        layouts.record(root, name, history, begun[heir], committed + 1)
        found[heir].append(name)
    hashed = {each: [name for name in names if IDENTITY not in histories[name][0]] for each, names in found.items()}
    return found, hashed


def _nearest(wanted: Layout, candidates: Sequence[Layout]) -> Layout:
    return max(candidates, key=lambda layout: sum(layout.get(name) == value for name, value in wanted.items()))


def _serve_metrics(session: SparkSession) -> None:
    port = Conf.of(session).prometheus_port
    if port is not None:
        from forebay.spark.driver import prometheus  # its library is for those who want it

        prometheus.serve(port)


def _warn_of_partitions(session: SparkSession, execution: Any) -> None:
    context = session.sparkContext
    if not str(context.master).startswith("local") and (
        context.getConf().get("spark.dynamicAllocation.enabled") == "true"
        or context.getConf().contains("spark.default.parallelism")
    ):
        return  # how many cores there will be is not known
    partitions, cores = _state_partitions(execution), context.defaultParallelism
    if partitions > _FEW_PARTITIONS * cores:
        _log.warning(
            "the query has %d state partitions for %d cores. Each of them costs tasks of Python in every micro-batch, idle "
            'or not. Set spark.conf.set("spark.sql.shuffle.partitions", ...) near the number of cores before the query is '
            "started for the first time: a checkpoint keeps the number that it was begun with.",
            partitions,
            cores,
        )


def _state_partitions(execution: Any) -> int:
    """How many state partitions a query has: as its checkpoint says, or else its session."""
    name = "spark.sql.shuffle.partitions"
    with contextlib.suppress(Py4JError, TypeError):  # an offset log of another form
        latest = execution.offsetLog().getLatest()
        if latest.isDefined():
            recorded = latest.get()._2().metadataOpt().get().conf().get(name)
            if recorded.isDefined():
                return int(recorded.get())
    return int(execution.sparkSessionForStream().conf().get(name))


def _unwatch(session: weakref.ref[SparkSession], listener: StreamingQueryListener) -> None:
    """Leave the session before the interpreter does, and let calls under way end, or Spark would call what is gone."""
    alive = session()
    if alive is not None and alive.sparkContext._jsc is not None:
        alive.streams.removeListener(listener)
        with contextlib.suppress(Py4JError):  # a bus that is not empty in time only means a message in the log
            alive.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(2000)
