"""Executors that are made ready for tasks of operators, before state partitions move to them.

An executor that has just joined starts its Python workers, loads what it needs, and has nothing compiled yet, while a
micro-batch waits for its first tasks. On a host with little CPU that takes longer than some micro-batches. So it is done
before, by jobs of forebay's own that do what the tasks of a micro-batch do, and whose results nobody sees.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException
from pyspark.serializers import UTF8Deserializer
from pyspark.sql import DataFrame, SparkSession

from forebay.spark.worker.operator import STATE
from forebay.spark.worker.warming import Warmed, warmer
from forebay.state.places import Place

ROUNDS = 3
"""So many parts of a micro-batch's input each slot packs: what is interpreted at first is compiled after some."""

_KEYS = 32
"""So many keys each slot hands to the operator, so that all of its tasks have rows of that executor, and run there."""

_SHUFFLE = "org.apache.spark.sql.execution.exchange.ShuffleExchangeLike"
_APART = (_SHUFFLE, "org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperator")

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
        slots, here = jvm.java.util.ArrayList(), jvm.java.util.ArrayList()
        here.add(location)
        for number in range(cores):
            slots.add(jvm.scala.Tuple2(str(number), jvm.PythonUtils.toSeq(here)))
        tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("java.lang.String"))
        self._slots = execution.sparkSessionForStream().sparkContext().makeRDD(jvm.PythonUtils.toSeq(slots), tag)

    def warm(self, operators: list[int], place: Place | None) -> None:
        """Have it ready; returns when it is.

        Parameters
        ----------
        operators : list of int
            The stateful operators of the query.
        place : Place or None
            Where state lives; if replicas are kept, the agent of the executor's host is started.
        """
        self._pack()  # first, for tasks of pack come as soon as a slot is free
        self._load_state(operators)
        self._run_operator(len(operators), place)

    def _pack(self) -> None:
        """Read and pack some of what a micro-batch has packed, once more."""
        last = self._execution.lastExecution()
        if last is None:
            return
        with _if_possible("pack what has been packed"), self._as_of_the_query():
            for part in self._before_shuffles(last.executedPlan().clone()):  # whose metrics are not the query's
                packed = part.execute()
                self._run(packed, min(ROUNDS, packed.getNumPartitions()), self._cores)

    def _load_state(self, operators: list[int]) -> None:
        """Load what Spark itself keeps of a state partition."""
        session = SparkSession.builder.getOrCreate()
        with _if_possible("load Spark's state"):
            reader = session.read.format("statestore").option("operatorId", min(operators)).option("stateVarName", STATE)
            state = reader.load(self._execution.resolvedCheckpointRoot())
            self._run(state._jdf.queryExecution().toRdd(), 1, 1)

    def _run_operator(self, operators: int, place: Place | None) -> None:
        """Have Python workers with forebay's modules, and all that Spark needs for an operator, its state store too."""
        session = self._execution.sparkSessionForStream().cloneSession()
        session.conf().set("spark.sql.shuffle.partitions", str(self._cores))
        strings = self._jvm.org.apache.spark.sql.Encoders.STRING()
        ready = DataFrame(session.createDataset(self._slots, strings).toDF(), SparkSession.builder.getOrCreate())
        for _ in range(1 + operators):  # a task of an operator has a worker for each of its Python functions
            ready = ready.mapInArrow(warmer(place), ready.schema)
        keyed = ready.selectExpr(f"explode(sequence(1, {_KEYS})) AS key").groupBy("key")
        keyed.transformWithStateInPandas(Warmed(), "key int", "append", "none").collect()  # where the shuffled rows are

    def _before_shuffles(self, plan: Any) -> list[Any]:
        """The parts of a plan below its shuffles that come from sources alone: no other shuffle and no state is in them."""
        children = _children(plan)
        if self._is(plan, _SHUFFLE) and not any(self._is(node, *_APART) for node in _nodes(children[0])):
            return children
        return [part for child in children for part in self._before_shuffles(child)]

    def _is(self, node: Any, *names: str) -> bool:
        return any(self._jvm.java.lang.Class.forName(name).isInstance(node) for name in names)

    @contextlib.contextmanager
    def _as_of_the_query(self) -> Iterator[None]:
        """Tasks know of their query what those of a micro-batch know, but for a micro-batch: they count for none."""
        session = self._execution.sparkSessionForStream()
        told = dict(session.conf().getAllAsJava())
        told["sql.streaming.queryId"] = self._execution.id().toString()
        before = {name: self._context.getLocalProperty(name) for name in told}
        sessions = getattr(self._jvm, "org.apache.spark.sql.classic.SparkSession")
        active = sessions.getActiveSession()
        try:
            sessions.setActiveSession(session)  # plans that are copied look for it
            for name, value in told.items():
                self._context.setLocalProperty(name, value)
            yield
        finally:
            if active.isDefined():
                sessions.setActiveSession(active.get())
            else:
                sessions.clearActiveSession()
            for name, earlier in before.items():
                self._context.setLocalProperty(name, earlier)  # type: ignore[arg-type]  # None unsets it

    def _run(self, rows: Any, parts: int, slots: int) -> None:
        """Have slots of the executor make parts of some rows, which get no further than a Python worker."""
        pairs = self._slots.toJavaRDD().cartesian(rows.toJavaRDD()).keys()
        text = UTF8Deserializer()  # type: ignore[no-untyped-call]  # pyspark's serializers have no types
        each = rows.getNumPartitions()
        chosen = [slot * each + part for part in range(parts) for slot in range(slots)]
        made: RDD[str] = RDD(pairs, self._context, text)
        self._context.runJob(made, _count, chosen)


def _count(rows: Iterable[str]) -> list[int]:
    return [sum(1 for _ in rows)]


def _children(plan: Any) -> list[Any]:
    return [plan.children().apply(number) for number in range(plan.children().length())]


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _children(plan):
        yield from _nodes(child)


@contextlib.contextmanager
def _if_possible(what: str) -> Iterator[None]:
    try:
        yield
    except (Py4JError, PySparkException) as error:  # files of the source have gone, or the executor has been lost
        _log.info("an executor that is made ready could not %s: %s", what, error)
