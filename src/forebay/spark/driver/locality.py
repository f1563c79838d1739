"""Tasks that wait for executors, though they must fail wherever they run.

When an executor is lost, Spark begins its tasks again in the same attempt at their stage. If they read a shuffle that it had
a part of, the first of them fails for want of it. Only then Spark has that part made once more, and begins a new attempt,
whose tasks it sends to where state is. Until then each waits for the executor that had been chosen for it, be it the lost
one, for as long as ``spark.locality.wait.process`` says. That is for nothing, so they are let go anywhere.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from pyspark import SparkContext

from forebay.spark.driver.trees import elements

SECONDS = 60.0
"""So long a query is looked at after a loss, at most."""

_PACE, _CALM = 0.05, 1.0
"""Between two looks, and until nothing is missing for good, in seconds."""

_WAITS = [f"spark.locality.wait.{level}" for level in ("process", "node", "rack")]


def let_go(context: Any, run: str, executor: str) -> int:
    """Let the tasks of a query go anywhere that must fail because an executor was lost; of how many stages there were some.

    Parameters
    ----------
    context : SparkContext
        The JVM's.
    run : str
        The run of the query.
    executor : str
        The id of the executor.
    """
    free: set[tuple[int, int]] = set()
    now = began = seen = time.monotonic()
    while now - seen < _CALM and now - began < SECONDS:
        for stage in _lacking(context, run):
            seen, attempt = now, (stage.stageId(), stage.currentAttemptId())
            if attempt not in free and stage.numActiveTasks() + stage.numCompletedTasks() < stage.numTasks():
                free.add(attempt)
                _wait_no_more(context, executor)
        time.sleep(_PACE)
        now = time.monotonic()
    return len(free)


def _lacking(context: Any, run: str) -> Iterator[Any]:
    """The stages of a query that are at work though Spark knows that something is missing of what they read."""
    tracker, planned = context.statusTracker(), context.dagScheduler().stageIdToStage()
    for job in {*tracker.getJobIdsForGroup(run)} & {*tracker.getActiveJobIds()}:
        told = tracker.getJobInfo(job)
        for number in told.get().stageIds() if told.isDefined() else ():
            stage, known = tracker.getStageInfo(number), planned.get(number)
            if stage.isDefined() and known.isDefined() and stage.get().submissionTime():
                read = elements(known.get().parents())
                if not all(each.isAvailable() for each in read):
                    yield stage.get()


def _wait_no_more(context: Any, executor: str) -> None:
    """Have tasks wait for no executor. Spark looks anew how long they are to wait when one is said to leave."""
    jvm, conf = SparkContext._jvm, context.conf()
    assert jvm is not None
    with contextlib.ExitStack() as restored:
        for name in _WAITS:
            before = conf.get(name, None)
            restored.callback(*((conf.remove, name) if before is None else (conf.set, name, before)))
            conf.set(name, "0s")
        leaving = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("it is lost", jvm.scala.Option.empty())
        context.taskScheduler().executorDecommission(executor, leaving)
