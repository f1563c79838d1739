"""Tasks that an executor was given before it was ready for them.

An executor that joins while tasks of a micro-batch wait for a slot is given some of them at once, before its slots can be
claimed. It has nothing loaded and nothing compiled, so with little CPU they take half a minute, when all others have long
ended, and the micro-batch waits for them. So they are taken back: Spark begins them again on executors that have nothing to
do. Its speculation would do that with tasks of operators, too, and is for applications to switch on.

Only tasks of stages that nothing comes before are taken back: they read a source, and leave nothing but their part of the
shuffle. Tasks of operators have state, and the last ones write to the sink.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

from pyspark import SparkContext

from forebay.spark.driver.executors import Executor
from forebay.spark.driver.locality import stages_of
from forebay.spark.driver.trees import elements

TOO_LONG = 2.0
"""A task is taken back when it has run for so many times as long as those of its stage that have ended took on average."""

_PACE = 0.25
"""Seconds between two looks."""

Task = tuple[int, int, int]
"""An attempt at a stage, and the number of a task in it."""

_log = logging.getLogger("forebay")


def relieve(context: Any, run: str, executor: Executor, ready: threading.Event) -> None:
    """Take tasks of a query's micro-batches back from an executor, until it is ready or has ended a task.

    Nothing is raised: without it a micro-batch only takes longer.

    Parameters
    ----------
    context : SparkContext
        The JVM's.
    run : str
        The run of the query.
    executor : Executor
        An executor that has just joined.
    ready : threading.Event
        Set when the executor is ready.
    """
    taken: set[Task] = set()
    while not ready.wait(_PACE):
        try:
            if context.statusStore().executorSummary(executor.id).completedTasks():
                return
            for stage in _first_stages(context, run):
                tasks = {number: task for number, task in _overdue(context, stage, executor) if task not in taken}
                if tasks and len(tasks) <= _idle_slots(context, executor):
                    _log.info(
                        "the executor %s was given %d tasks too early: they begin anew elsewhere", executor.id, len(tasks)
                    )
                    for task in tasks:
                        take_back(context, task, f"executor {executor.id} is not ready for tasks yet")
                    taken.update(tasks.values())
        except Exception as error:  # as when the stage ends meanwhile, or the session
            _log.debug("tasks of executor %s could not be looked at: %s", executor.id, error)


def take_back(context: Any, task: int, reason: str) -> None:
    """Have Spark begin a task elsewhere, and not only when its executor says that it has ended it.

    That takes an executor which is not ready seconds. Spark is told in its place. What the executor says later is of a task
    that Spark does not know any more, which its log has as an error.

    Parameters
    ----------
    context : SparkContext
        The JVM's.
    task : int
        Spark's number of the attempt.
    reason : str
        Why.
    """
    jvm = SparkContext._jvm
    assert jvm is not None
    nothing = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
    killed = jvm.org.apache.spark.TaskKilled(reason, nothing, nothing, nothing)
    written = jvm.org.apache.spark.serializer.JavaSerializer(context.conf()).newInstance()
    state = getattr(getattr(jvm.org.apache.spark, "TaskState$"), "MODULE$").KILLED()
    context.killTaskAttempt(task, True, reason)
    context.taskScheduler().statusUpdate(task, state, written.serialize(killed, jvm.scala.reflect.ClassTag.Any()))


def _first_stages(context: Any, run: str) -> Iterator[Any]:
    """The first stages of a query, before a shuffle, that have some tasks that ended, and none that waits for a slot."""
    for number, planned in stages_of(context, run):
        if planned.parents().isEmpty() and planned.getClass().getSimpleName() == "ShuffleMapStage":
            stage = context.statusStore().lastStageAttempt(number)
            ended, active = stage.numCompleteTasks(), stage.numActiveTasks()
            if ended and active and ended + active >= stage.numTasks():
                yield stage


def _overdue(context: Any, stage: Any, executor: Executor) -> Iterator[tuple[int, Task]]:
    """The tasks of a stage that run on an executor, and have done so for too long, each after Spark's number of it."""
    usual = TOO_LONG * stage.executorRunTime() / stage.numCompleteTasks()
    jvm = SparkContext._jvm
    assert jvm is not None
    running = jvm.java.util.List.of(jvm.org.apache.spark.status.api.v1.TaskStatus.RUNNING)
    unsorted = jvm.scala.Option.empty()
    store, attempt = context.statusStore(), (stage.stageId(), stage.attemptId())
    for task in elements(store.taskList(*attempt, 0, stage.numTasks(), unsorted, True, running)):
        if task.executorId() == executor.id and 1000 * time.time() - task.launchTime().getTime() > usual:
            yield int(task.taskId()), (*attempt, int(task.index()))


def _idle_slots(context: Any, executor: Executor) -> int:
    """How many tasks other executors that are ready could begin at once."""
    scheduler = context.taskScheduler()
    others = [each for each in elements(context.statusStore().executorList(True)) if each.id() != executor.id]
    ready = [each for each in others if each.completedTasks() and not each.isExcluded()]
    return sum(max(0, each.maxTasks() - each.activeTasks()) for each in ready if scheduler.isExecutorAlive(each.id()))
