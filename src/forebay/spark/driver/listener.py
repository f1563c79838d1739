"""What happens on the driver when a query starts, goes on and ends.

Spark calls a listener when a query starts, before its first batch. This one puts the checkpoint location and what it has
found there into the confs of the query's own session, which Spark hands to every task. Spark swallows what a listener
raises, so what is wrong with a query travels the same way and stops the first task before it reads a row.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import weakref
from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener
from pyspark.sql.streaming.listener import JStreamingQueryListener

from forebay.errors import ForebayError, StateDirectoryError, UnsupportedConfiguration
from forebay.spark.driver import checkpoint, checkpoint_lock, metrics, narrow, replicas, sizes
from forebay.spark.driver import query as queries
from forebay.spark.driver.checkpoint import Logs
from forebay.spark.driver.conf import Conf
from forebay.spark.driver.configure import LOGS, RENAMING
from forebay.spark.driver.file_sink import skip_rescales
from forebay.spark.driver.handover import handover
from forebay.spark.driver.inherited import directories_of, is_seen
from forebay.spark.driver.plans import count
from forebay.spark.driver.policies import Policies
from forebay.spark.driver.requirements import require_even, require_one_place, require_possible
from forebay.spark.properties import CHECKPOINT, DIRECTORIES, OUTPUT_MODE, QUERY, REFUSED, RUN
from forebay.spark.worker.clock import Clock

_log = logging.getLogger("forebay")

_FEW_PARTITIONS = 4
"""So many state partitions for each core are not worth a warning."""

_PARTITION_SECONDS = 0.06
"""Of a core, for each state partition in each micro-batch: 34 of them took two cores 1.0 s longer than 2 did."""

_REUSE = "spark.sql.exchange.reuse"
"""Where two operators read the same shuffle, Spark gives the second one no watermark: its windows would never fire."""

_WITHOUT_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"

_OFTEN_MS = 60_000
"""The longest interval between micro-batches with which a query may begin with one without data."""

_CLEANING = "spark.sql.classic.shuffleDependency.fileCleanup.enabled"
"""Whether what a micro-batch has shuffled goes when that ends. Else it stays until the driver's Java collects garbage, and
an executor that is decommissioned hands all of it on while the query waits.
"""

_TIME_MODE = "[STATE_STORE_INVALID_CONFIG_AFTER_RESTART] Cannot change timeMode"
"""Spark ends a query with this error whose operators have timers where its checkpoint has none, or the other way round."""

_STILL = 10
"""A watermark that has not moved in so many micro-batches with rows is worth one."""

_runs: dict[str, str] = {}
"""The runs of queries, of whatever session, that have not ended."""

_watched: weakref.WeakKeyDictionary[SparkSession, StreamingQueryListener] = weakref.WeakKeyDictionary()
"""The sessions whose queries are prepared, and what does that."""


def watch(session: SparkSession) -> None:
    """Have queries of a session tell their tasks where state lives."""
    if session not in _watched:
        listener = _Listener(session)
        session.streams.addListener(listener)
        _watched[session] = listener
        _unwatch_at_exit()


class _Listener(StreamingQueryListener):
    def __init__(self, session: SparkSession) -> None:
        self._session = weakref.ref(session)
        self._watermarks: dict[str, _Watermark] = {}
        self._chained: set[str] = set()  # runs with operators over the results of others
        self._called: Any = None

    def onQueryStarted(self, event: Any) -> None:
        """Take an event as the JVM has it, see `_Called`."""
        session, known = self._session(), event.id().toString()
        query = session.streams.get(known) if session is not None else None
        if session is None or query is None:
            return
        try:
            plan = queries.plan_of(query)
            if queries.MARK.search(plan):
                self._started(session, query, plan)
        except Exception:  # which Spark would swallow
            _log.exception("forebay could not prepare the query %s", known)

    def _started(self, session: SparkSession, query: StreamingQuery, plan: str) -> None:
        execution = queries.execution(query)
        location, mode = execution.resolvedCheckpointRoot(), execution.outputMode().toString()
        conf = execution.sparkSessionForStream().conf()
        conf.set(CHECKPOINT, location)
        conf.set(OUTPUT_MODE, mode)
        conf.set(QUERY, str(query.id))
        conf.set(RUN, str(query.runId))
        conf.unset(REFUSED)
        narrow.leave_sums_out(execution, queries.operators(plan))
        if session.conf.get(_CLEANING, None) is None:
            conf.set(_CLEANING, "true")
        if count(plan) > 1:
            conf.set(_REUSE, "false")
        try:
            logs = Logs(execution.offsetLog(), execution.commitLog())
            metrics.revive(str(query.id))
            _runs[str(query.id)] = str(query.runId)
            self._follow(query, plan)
            operators = queries.operators(plan)
            require_possible(mode, plan, operators)
            checkpoint.require_at_home(location)
            removes = session.conf.get(LOGS, None) == RENAMING
            if removes:
                checkpoint_lock.take(str(query.id), location)
            logs.require_no_rescale(location)
            if removes:
                checkpoint.replace_uncommitted(location, session.sparkContext.master or "", logs)
            skip_rescales(execution, session.sparkContext._gateway, logs)
            require_even(operators, _state_partitions(execution))
            require_one_place(operators)
            root = queries.root_of(query)
            found, changed = directories_of(root, operators, logs.committed, updating=mode == "Update")
            if is_seen(operators, found, logs.committed):
                conf.set(DIRECTORIES, json.dumps(found))
            _serve_metrics(session)
            sizes.learn(str(query.id), root, [name for names in found.values() for name in names])
            if operators:
                replicas.register(operators[0].place, location, str(query.id), _state_partitions(execution))
                if operators[0].place.application is not None:
                    acting, resumed = Conf.of(session).handover == "auto", logs.committed >= 0
                    Policies(handover(query), root, acting=acting, resumed=resumed).start()
            _keep_clock_going(execution, operators, logs, changed=changed)
        except Exception as error:
            conf.set(REFUSED, _refusal(error))  # for the first task to raise
            if not isinstance(error, ForebayError):
                _log.exception("forebay could not prepare the query %s", query.id)
        _warn_of_partitions(session, execution)

    def _follow(self, query: StreamingQuery, plan: str) -> None:
        """Note what there is to say of a query while it runs, or when it has ended."""
        if "UpdateEventTimeWatermarkColumn" in plan:
            self._watermarks[str(query.runId)] = _Watermark(query.name or str(query.id))
        if any(each.chained and each.clock is Clock.WATERMARK for each in queries.operators(plan)):
            self._chained.add(str(query.runId))

    @property
    def _jlistener(self) -> Any:
        """The listener as Spark has it, always the same one."""
        if self._called is None:
            assert SparkContext._jvm is not None
            self._called = SparkContext._jvm.PythonStreamingQueryListenerWrapper(_Called(self))
        return self._called

    def onQueryProgress(self, event: Any) -> None:
        """Take an event as the JVM has it, see `_Called`."""
        metrics.take()
        if self._watermarks:
            progress = event.progress()
            seen = self._watermarks.get(progress.runId().toString())
            if seen is not None:
                seen.note(progress.eventTime().get("watermark"), progress.numInputRows())

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        if str(event.runId) in self._chained and _TIME_MODE in (event.exception or ""):
            _log.error(
                "in the checkpoint of the query %s, operators that read the results of others by event time have timers, as "
                "earlier releases gave them, and in the query none; or it is the other way round. The checkpoint is "
                "intact. Set spark.forebay.chainedTimers to true if an earlier release began it, or leave it unset if not, "
                "and start the query again.",
                event.id,
            )
        self._chained.discard(str(event.runId))
        self._watermarks.pop(str(event.runId), None)
        query = str(event.id)
        if _runs.get(query) == str(event.runId):  # else it runs again, or has nothing of forebay
            del _runs[query]
            checkpoint_lock.release(query)
            replicas.retire(query)
            metrics.retire(query)


def _keep_clock_going(execution: Any, operators: Sequence[queries.Planned], logs: Logs, *, changed: bool) -> None:
    """Have a query that goes by the wall clock begin with a micro-batch, though there may be no data.

    No virtual node looks at its state in that one. So where the query has changed it would settle a change that is refused
    later; and the next micro-batch comes after a whole interval of the trigger, for which rows would wait.
    """
    trigger = execution.trigger()
    often = trigger.getClass().getSimpleName() == "ProcessingTimeTrigger" and trigger.intervalMs() <= _OFTEN_MS
    allowed = str(execution.sparkSessionForStream().conf().get(_WITHOUT_DATA)).lower() == "true"
    if often and allowed and not changed and any(operator.clock is Clock.WALL for operator in operators):
        logs.begin_empty(SparkContext._jvm)


def _refusal(error: Exception) -> str:
    """The name and the text of the error that a query ends with which cannot be prepared."""
    if isinstance(error, ForebayError):
        return f"{type(error).__name__}: {error}"
    text = f"forebay could not prepare the query: {type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.filename is not None:
        return (
            f"{StateDirectoryError.__name__}: {text}. Committed state is intact; make what is named exist, be readable and "
            "be writable for Spark's driver and workers, then start the query again."
        )
    return f"{UnsupportedConfiguration.__name__}: {text}"


class _Called(JStreamingQueryListener):
    """What Spark calls. Only what is needed is read: of a progress, PySpark would read all, one value at a time.

    PySpark fails to read the tags that the thread has which starts a query, as one has from within ``foreachBatch``.
    """

    def onQueryStarted(self, jevent: Any) -> None:
        self.pylistener.onQueryStarted(jevent)

    def onQueryProgress(self, jevent: Any) -> None:
        self.pylistener.onQueryProgress(jevent)


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
            "or not, all of them together about %.1f s. "
            'Set spark.conf.set("spark.sql.shuffle.partitions", ...) near the number of cores before the query is '
            "started for the first time: a checkpoint keeps the number that it was begun with.",
            partitions,
            cores,
            partitions * _PARTITION_SECONDS / cores,
        )


def _state_partitions(execution: Any) -> int:
    """How many state partitions a query has: as its checkpoint says, or else its session."""
    logs = Logs(execution.offsetLog(), execution.commitLog())
    return logs.partitions(logs.begun) or int(execution.sparkSessionForStream().conf().get("spark.sql.shuffle.partitions"))


@functools.cache
def _unwatch_at_exit() -> None:
    atexit.register(_unwatch)


def _unwatch() -> None:
    """Leave sessions before the interpreter does, and let calls under way end, or Spark would call what is gone."""
    for session, listener in list(_watched.items()):
        if session.sparkContext._jsc is not None:
            session.streams.removeListener(listener)
            with contextlib.suppress(Py4JError):  # a bus that is not empty in time only means a message in the log
                session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(2000)
