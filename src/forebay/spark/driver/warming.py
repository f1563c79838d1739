"""Executors that are made ready for tasks of operators, before state partitions move to them.

An executor that has just joined starts its Python workers, and loads what it needs, while a micro-batch waits for its first
tasks. On a host with little CPU that takes as long as some micro-batches. So it is done before, by jobs of forebay's own.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException
from pyspark.serializers import UTF8Deserializer
from pyspark.sql import DataFrame, SparkSession

from forebay.spark.worker.warming import Warmed, warmer
from forebay.state.places import Place

_log = logging.getLogger("forebay")


def warm(execution: Any, location: str, cores: int, operators: int, place: Place | None) -> None:
    """Have an executor ready; it returns when it is.

    Parameters
    ----------
    execution : StreamExecution
        The query's execution in the JVM.
    location : str
        The executor, as Spark names it as the place where a task had best run.
    cores : int
        How many tasks it runs at a time.
    operators : int
        How many stateful operators the query has.
    place : Place or None
        Where state lives; if replicas are kept, the agent of the executor's host is started.
    """
    jvm, context = SparkContext._jvm, SparkContext._active_spark_context
    if jvm is None or context is None:
        return
    session = SparkSession.builder.getOrCreate()
    slots, here = jvm.java.util.ArrayList(), jvm.java.util.ArrayList()
    here.add(location)
    for number in range(cores):
        slots.add(jvm.scala.Tuple2(str(number), jvm.PythonUtils.toSeq(here)))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("java.lang.String"))
    pinned = execution.sparkSessionForStream().sparkContext().makeRDD(jvm.PythonUtils.toSeq(slots), tag)
    _read_sources(execution, pinned, context)  # first, for tasks of pack come as soon as a slot is free
    _run_operator(jvm, session, pinned, operators, place)


def _run_operator(jvm: Any, session: SparkSession, pinned: Any, operators: int, place: Place | None) -> None:
    """Have Python workers with forebay's modules, and all that Spark needs for an operator, its state store too."""
    strings = jvm.org.apache.spark.sql.Encoders.STRING()
    ready = DataFrame(session._jsparkSession.createDataset(pinned, strings).toDF(), session)
    for _ in range(1 + operators):  # a task of an operator has a worker for each of its Python functions
        ready = ready.mapInArrow(warmer(place), ready.schema)
    keyed = ready.groupBy("value")  # Spark prefers the executor that has the shuffled rows
    try:
        keyed.transformWithStateInPandas(Warmed(), ready.schema, "append", "none").collect()
    except PySparkException as error:  # as in a session that is not the query's, and has no state store
        ready.collect()
        _log.info("an executor could only be warmed in part: %s", error)


def _read_sources(execution: Any, pinned: Any, context: SparkContext) -> None:
    """Have Spark's readers loaded: each slot reads the first rows of what a micro-batch has read once more."""
    last = execution.lastExecution()
    if last is None:
        return
    leaves = last.executedPlan().collectLeaves()
    for number in range(leaves.length()):
        try:
            read = leaves.apply(number).inputRDD().toJavaRDD()
            text = UTF8Deserializer()  # type: ignore[no-untyped-call]  # pyspark's serializers have no types
            slots: RDD[str] = RDD(pinned.toJavaRDD().cartesian(read).keys(), context, text)
            first = range(0, slots.getNumPartitions(), max(1, read.getNumPartitions()))
            context.runJob(slots, _one, first)
        except (Py4JError, PySparkException) as error:  # it is no scan, or its files have gone
            _log.debug("a source could not be read ahead: %s", error)


def _one(rows: Iterable[str]) -> list[str]:
    return list(itertools.islice(rows, 1))
