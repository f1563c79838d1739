"""Executors that are made ready for tasks of operators, before state partitions move to them.

An executor that has just joined starts its Python workers, loads what it needs, and has nothing compiled yet, while a
micro-batch waits for its first tasks. On a host with little CPU that takes longer than some micro-batches. So it is done
before, by jobs of forebay's own that do what the tasks of a micro-batch do, and whose results nobody sees.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException
from pyspark.serializers import UTF8Deserializer
from pyspark.sql import DataFrame, SparkSession

from forebay.spark.driver.executors import Executor
from forebay.spark.driver.trees import elements, subtree
from forebay.spark.worker.stages import PAYLOAD, VNODE
from forebay.spark.worker.stateful_processor import STATE
from forebay.spark.worker.warming import Warmed, loading, preparing, warmer
from forebay.state.places import Place

ROUNDS = 3
"""So many parts of a micro-batch's input each slot packs: what is interpreted at first is compiled after some."""

WARMING_SECONDS, CLAIM_SECONDS = 60.0, 30.0
"""How long jobs may take that warm an executor before its operator does, and those of a claim. A claim ends before its tasks
have waited for a slot as long as `configure` lets them (`LOCALITY_OF_STATE`): then they would go to other executors."""

_PACE, _PLANNED_SECONDS = 0.05, 5.0
"""Between two looks whether a micro-batch has been planned, and how long that is waited for."""

_KEYS = 32
"""So many keys each slot hands to each task of the operator, so that all of them have rows and run where those are."""

_EXECUTION = "org.apache.spark.sql.execution"
_SHUFFLE, _BROADCAST, _REUSED = (
    f"{_EXECUTION}.exchange.{name}" for name in ("ShuffleExchangeLike", "BroadcastExchangeLike", "ReusedExchangeExec")
)
_STATEFUL = f"{_EXECUTION}.streaming.operators.stateful.StatefulOperator"
_SCAN = f"{_EXECUTION}.datasources.v2.MicroBatchScanExec"

_log = logging.getLogger("forebay")


class Warming:
    """Has an executor ready for a query.

    Parameters
    ----------
    execution : StreamExecution
        The query's execution in the JVM.
    location : str
        The executor, as Spark names it as the place where a task had best run.
    cores : int
        How many tasks it runs at a time.
    """

    def __init__(self, execution: Any, location: str, cores: int) -> None:
        jvm, context = SparkContext._jvm, SparkContext._active_spark_context
        assert jvm is not None
        assert context is not None
        self._jvm, self._context, self._execution, self._cores = jvm, context, execution, cores
        self._session, self._late = SparkSession.builder.getOrCreate(), False
        self._slots = _texts_at(execution.sparkSessionForStream().sparkContext(), [location] * cores)

    def claim(self) -> None:
        """Take all slots at once, before a micro-batch does, and keep them until tasks of pack run there as elsewhere."""
        with self._for_the_query(CLAIM_SECONDS):
            last = self._planned(wait=False)
            if last is None:  # a micro-batch may be about to begin
                self._pack(None)
                last = self._planned()
            self._pack(last)

    def warm(self, operators: list[int], place: Place | None) -> None:
        """Have it ready; returns when it is.

        Parameters
        ----------
        operators : list of int
            The stateful operators of the query.
        place : Place or None
            Where state lives; if replicas are kept, the agent of the executor's host is started.
        """
        with self._for_the_query(WARMING_SECONDS):
            self._pack(self._planned())  # first, for tasks of pack come as soon as a slot is free
            self._load_state(operators)
        self._run_operator(len(operators), place)

    @contextlib.contextmanager
    def _for_the_query(self, seconds: float) -> Iterator[None]:
        """Jobs take part in the query, and are cancelled when they have taken so long that they are of no use."""
        tag = f"forebay-{uuid.uuid4()}"
        self._late = False

        def give_up() -> None:
            self._late = True
            self._context.cancelJobsWithTag(tag)

        timer = threading.Timer(seconds, give_up)
        timer.start()
        try:
            with self._as_of_the_query({"spark.job.tags": tag}):
                yield
        finally:
            timer.cancel()

    def _pack(self, last: Any | None) -> None:
        """Load in each slot what Python workers need, then read and pack some of what a micro-batch has packed, once more.

        That is one job: while it has tasks that wait, none of a micro-batch that begins later gets a slot.
        """
        rows, parts = self._slots.toJavaRDD(), [*range(self._cores)]
        with _if_possible("plan what has been packed"):
            for packing in self._packing(last.executedPlan()) if last is not None else ():
                packed, first = self._copied(packing).execute(), rows.getNumPartitions()
                several = packed.getNumPartitions()
                rows = rows.union(self._in_slots(packed))
                for part in range(min(ROUNDS, several)):
                    parts += range(first + part, first + part + self._cores * several, several)
        with _if_possible("pack what has been packed"):
            self._run(rows, parts)

    def _planned(self, *, wait: bool = True) -> Any | None:
        """A micro-batch whose tasks have begun or ended: the query's own thread has planned it, and asked the sources."""
        run, deadline = self._execution.runId().toString(), time.monotonic() + _PLANNED_SECONDS * wait
        while True:
            last, tracker = self._execution.lastExecution(), self._context.statusTracker()
            ended = not self._execution.status().isTriggerActive()
            if ended or {*tracker.getJobIdsForGroup(run)} & {*tracker.getActiveJobsIds()}:
                return last
            if time.monotonic() >= deadline:
                return None
            time.sleep(_PACE)

    def _load_state(self, operators: list[int]) -> None:
        """Load what Spark itself keeps of a state partition."""
        reader = self._execution.sparkSessionForStream().cloneSession().read().format("statestore")
        for operator in operators:  # of which Spark's own have no such variable
            with _if_possible(f"load Spark's state of operator {operator}"):
                reader = reader.option("operatorId", str(operator)).option("stateVarName", STATE)
                state = reader.load(self._execution.resolvedCheckpointRoot()).queryExecution().toRdd()
                self._run(self._in_slots(state), [0])
                return

    def _run_operator(self, operators: int, place: Place | None) -> None:
        """Have Python workers with forebay's modules, and all that Spark needs for an operator, its state store too."""
        session = self._execution.sparkSessionForStream().cloneSession()
        session.conf().set("spark.sql.shuffle.partitions", str(self._cores))
        strings = self._jvm.org.apache.spark.sql.Encoders.STRING()
        ready = DataFrame(session.createDataset(self._slots, strings).toDF(), self._session)
        for _ in range(1 + operators):  # a task of an operator has a worker for each of its Python functions
            ready = ready.mapInArrow(warmer(place), ready.schema)
        keyed = ready.selectExpr(f"explode(sequence(1, {_KEYS * self._cores})) AS key").groupBy("key")
        try:
            keyed.transformWithStateInPandas(Warmed(), "key int", "append", "none").collect()
        except PySparkException as error:
            ready.collect()
            _log.info("an executor could only be warmed in part: %s", error)

    def _packing(self, plan: Any) -> list[Any]:
        """The parts of a plan that pack what comes from sources: each is below a shuffle, and has no other one within it."""
        children = elements(plan.children())
        if self._is(plan, _SHUFFLE):
            columns = {column.name() for column in elements(children[0].output())}
            if columns == {VNODE, PAYLOAD} and not any(self._stands_apart(node) for node in subtree(children[0])):
                return children
        return [part for child in children for part in self._packing(child)]

    def _stands_apart(self, node: Any) -> bool:
        """Whether a part with such a node cannot be run again by itself."""
        return self._is(node, _SHUFFLE, _STATEFUL, _REUSED) or (self._is(node, _SCAN) and bool(node.supportsColumnar()))

    def _copied(self, plan: Any) -> Any:
        """The same plan with metrics of its own. Sources are not asked again: they may be at work for the query."""
        if self._is(plan, _SCAN):
            return self._jvm.org.apache.spark.sql.execution.RDDScanExec(
                plan.output(),
                plan.inputRDD(),
                "source",
                plan.outputPartitioning(),
                plan.outputOrdering(),
                self._jvm.scala.Option.empty(),
            )
        children = elements(plan.children())
        if self._is(plan, _BROADCAST):
            return plan
        if not children:
            return plan.clone()
        copied = self._jvm.PythonUtils.toSeq([self._copied(child) for child in children])
        return plan.withNewChildrenInternal(copied.toIndexedSeq())  # else it gives itself, for its children are equal

    def _is(self, node: Any, *names: str) -> bool:
        return any(self._jvm.java.lang.Class.forName(name).isInstance(node) for name in names)

    @contextlib.contextmanager
    def _as_of_the_query(self, properties: Mapping[str, str]) -> Iterator[None]:
        """Tasks know of their query what those of a micro-batch know, but for a micro-batch: they count for none."""
        session = self._execution.sparkSessionForStream()
        told: dict[str, str | None] = {**session.conf().getAllAsJava(), **properties}
        told["sql.streaming.queryId"] = self._execution.id().toString()
        told["spark.jobGroup.id"] = self._execution.runId().toString()  # with which Spark ends them, too
        told["streaming.sql.batchId"] = None
        before = {name: self._context.getLocalProperty(name) for name in told}
        sessions = getattr(self._jvm, "org.apache.spark.sql.classic.SparkSession")
        active = sessions.getActiveSession()
        try:
            sessions.setActiveSession(session)  # plans that are copied look for it
            self._tell(told)
            yield
        finally:
            self._tell(before)
            if active.isDefined():
                sessions.setActiveSession(active.get())
            else:
                sessions.clearActiveSession()

    def _tell(self, properties: Mapping[str, str | None]) -> None:
        for name, value in properties.items():
            self._context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None unsets it

    def _in_slots(self, rows: Any) -> Any:
        """The parts of some rows, for each slot anew; to be made there, and of use for nothing else."""
        return self._slots.toJavaRDD().cartesian(rows.toJavaRDD()).keys()

    def _run(self, texts: Any, parts: list[int]) -> None:
        """Have parts of some texts made, which get no further than a Python worker, where forebay is loaded.

        Where it is too late for that nothing is done.
        """
        if self._late:
            return
        rows: RDD[str] = RDD(texts, self._context, UTF8Deserializer())  # type: ignore[no-untyped-call]  # pyspark has no types
        self._context.runJob(rows, loading, parts)


def start_agents(executors: Collection[Executor], place: Place) -> None:
    """Have an agent started on the host of each executor, by a task there; returns when all have ended, or one failed."""
    context = SparkContext._active_spark_context
    assert context is not None
    texts = _texts_at(context._jsc.sc(), [each.location for each in executors])
    rows: RDD[str] = RDD(texts.toJavaRDD(), context, UTF8Deserializer())  # type: ignore[no-untyped-call]  # pyspark has no types
    try:
        context.runJob(rows, functools.partial(preparing, place))
    except Exception as error:  # as when an executor is lost: an operator's task starts the agent of its host anyway
        _log.info("not all hosts have agents yet: %s", error)


def _texts_at(context: Any, locations: Iterable[str]) -> Any:
    """A text for each location, in a part of its own, which had best be worked at there."""
    jvm = SparkContext._jvm
    assert jvm is not None
    texts = jvm.java.util.ArrayList()
    for number, location in enumerate(locations):
        here = jvm.java.util.ArrayList()
        here.add(location)
        texts.add(jvm.scala.Tuple2(str(number), jvm.PythonUtils.toSeq(here)))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("java.lang.String"))
    return context.makeRDD(jvm.PythonUtils.toSeq(texts), tag)


@contextlib.contextmanager
def _if_possible(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # as when files of the source have gone, or the executor has been lost
        _log.info("an executor that is made ready could not %s: %s", what, error)
