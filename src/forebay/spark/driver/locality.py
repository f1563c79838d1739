"""Tasks that wait for executors, though hardly one of them can succeed wherever it runs.

When an executor is lost, Spark begins its tasks again in the same attempt at their stage. If they read a shuffle that it had
a part of, they fail for want of it, but for those that need nothing of that part. When the first has failed, Spark has the
part made once more, and begins a new attempt, whose tasks it sends to where state is. Until then each waits for the executor
that had been chosen for it, be it the lost one, for as long as ``spark.locality.wait.process`` says. That is for nothing, so
they are let go anywhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

from pyspark import SparkContext

from forebay.spark.driver.trees import elements

WATCHED_SECONDS = 60.0
"""So long a query is looked at after a loss, at most."""

_log = logging.getLogger("forebay")

_PACE, _CALM = 0.05, 1.0
"""Between two looks, and until nothing is missing for good, in seconds."""


def let_go(context: Any, run: str) -> None:
    """After a loss, let the tasks of a query go anywhere that wait for executors though something is missing that they read.

    Other stages and queries are left alone. Nothing is raised: without it Spark only takes longer.

    Parameters
    ----------
    context : SparkContext
        The JVM's.
    run : str
        The run of the query.
    """
    gone = False
    now = began = seen = time.monotonic()
    while now - seen < _CALM and now - began < WATCHED_SECONDS:
        try:
            for stage in _lacking(context, run):
                seen = now
                if stage.numActiveTasks() + stage.numCompletedTasks() < stage.numTasks() and _wait_no_more(context, stage):
                    gone = True
        except Exception as error:  # as when the scheduler changes what is looked at, or the session ends
            _log.debug("tasks that may wait for executors that are lost could not be looked for: %s", error)
        time.sleep(_PACE)
        now = time.monotonic()
    if gone:
        _log.info("tasks that waited for executors, though something that they read was lost, were let go anywhere")


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


def _wait_no_more(context: Any, stage: Any) -> bool:
    """Have the tasks of an attempt at a stage wait for no executor; whether Spark knows the attempt."""
    scheduler, gateway = context.taskScheduler(), SparkContext._gateway
    assert gateway is not None
    tasks = scheduler.taskSetManagerForAttempt(stage.stageId(), stage.currentAttemptId())
    if tasks.isDefined():
        waits = tasks.get().localityWaits()
        none = gateway.new_array(gateway.jvm.long, len(waits))
        getattr(tasks.get(), "localityWaits_$eq")(none)
        scheduler.backend().reviveOffers()
    return bool(tasks.isDefined())
