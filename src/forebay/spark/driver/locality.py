"""Tasks that wait for executors in vain.

When an executor is lost, Spark begins its tasks again in the same attempt at their stage. If they read a shuffle that it had
a part of, they fail for want of it, but for those that need nothing of that part. When the first has failed, Spark has the
part made once more, and begins a new attempt, whose tasks it sends to where state is. Until then each waits for the executor
that had been chosen for it, be it the lost one, for as long as ``spark.locality.wait.process`` says. That is for nothing, so
they are let go anywhere.

An executor that is about to leave, or that Spark excludes because tasks have failed there, gets no more tasks, and those of
its state partitions that wait for a slot go on waiting for it, as long as it is there. They are let go as soon as no other
task of their stage waits for an executor, since an attempt at a stage has one wait for all of its tasks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

from pyspark import SparkContext

from forebay.spark.driver.executors import Executors
from forebay.spark.driver.trees import elements

WATCHED_SECONDS = 60.0
"""So long a query is looked at after a loss, at most."""

_log = logging.getLogger("forebay")

_PACE, _CALM = 0.05, 1.0
"""Between two looks, and until nothing is missing for good, in seconds."""


def let_go(context: Any, run: str) -> None:
    """After executors were lost or are about to leave, let the tasks of a query go anywhere that wait for one in vain.

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
            for stage, alone in _waiting_in_vain(context, run):
                seen = now
                if alone and _wait_no_more(context, stage):
                    gone = True
        except Exception as error:  # as when the scheduler changes what is looked at, or the session ends
            _log.debug("tasks that may wait for executors in vain could not be looked for: %s", error)
        time.sleep(_PACE)
        now = time.monotonic()
    if gone:
        _log.info("tasks that waited for executors in vain were let go anywhere")


def stages_of(context: Any, run: str) -> Iterator[tuple[int, Any]]:
    """The stages of those jobs of a query that go on: the number of each, and the stage as Spark's scheduler has it."""
    tracker, planned = context.statusTracker(), context.dagScheduler().stageIdToStage()
    for job in {*tracker.getJobIdsForGroup(run)} & {*tracker.getActiveJobIds()}:
        told = tracker.getJobInfo(job)
        for number in told.get().stageIds() if told.isDefined() else ():
            known = planned.get(number)
            if known.isDefined():
                yield number, known.get()


def _waiting_in_vain(context: Any, run: str) -> Iterator[tuple[Any, bool]]:
    """The stages of a query at work that lack something, or have tasks that wait for executors that are lost or leave.

    Beside each is whether there are such tasks now, and no others wait.
    """
    for number, planned in stages_of(context, run):
        stage = context.statusTracker().getStageInfo(number)
        if stage.isDefined() and stage.get().submissionTime():
            some = stage.get().numActiveTasks() + stage.get().numCompletedTasks() < stage.get().numTasks()
            if not all(each.isAvailable() for each in elements(planned.parents())):
                yield stage.get(), some
            elif some and (alone := _wait_for_the_gone(context, stage.get())) is not None:
                yield stage.get(), alone


def _wait_for_the_gone(context: Any, stage: Any) -> bool | None:
    """Whether all tasks that wait do so for executors that get no more tasks; None if none does."""
    scheduler = context.taskScheduler()
    tasks = scheduler.taskSetManagerForAttempt(stage.stageId(), stage.currentAttemptId())
    preferred = tasks.get().pendingTasks().forExecutor() if tasks.isDefined() else None
    if preferred is None or preferred.isEmpty():
        return None
    excluded = Executors(context).excluded()
    wanted = preferred.keySet().mkString(",").split(",")
    gone = [each for each in wanted if each in excluded or not scheduler.isExecutorAlive(each)]
    theirs = {number for each in gone for number in elements(preferred.apply(each))}
    if not theirs:
        return None
    begun = zip(tasks.get().copiesRunning(), tasks.get().successful(), strict=True)
    waiting = {number for number, (running, done) in enumerate(begun) if not running and not done}
    return theirs >= waiting if theirs & waiting else None


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
