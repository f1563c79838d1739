"""What pack had made on an executor that was lost is made again at once, not when tasks have failed for want of it.

When an executor is lost, Spark begins its tasks again in the same attempt at their stage. If they read a shuffle that the
executor had a part of, they look for it there, for what they are told is as old as the attempt. First they may have to wait
for an executor that had been chosen for them (``spark.locality.wait.process``). Then they load Spark's state of their
partition, wait until they may try to read again (``spark.shuffle.io.retryWait``), and fail. Only after that Spark has the
missing part of the shuffle made once more, and begins a new attempt at the stage, which asks where state is.

So tasks that wait are let go anywhere, and once all have begun, the missing part is made while the first of them is failing.
It is not made earlier: those that begin then would find it, and run wherever they are, not where their state is.
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
_MOST_TASKS = 10_000


class LostOutput:
    """Looks after the shuffles of a query of which an executor that was lost had a part.

    Parameters
    ----------
    context : SparkContext
        The JVM's.
    run : str
        The run of the query.
    executor : str
        The id of the executor.
    since : float
        When it was there still, in seconds since 1970.
    """

    def __init__(self, context: Any, run: str, executor: str, since: float) -> None:
        self._context, self._run, self._lost, self._since = context, run, executor, since
        self._tracker, self._tasks = context.statusTracker(), context.statusStore()
        self._jobs: dict[int, tuple[Any, Any]] = {}
        self._let_go: set[tuple[int, int]] = set()

    def make_again(self) -> int:
        """See to it that it is there again soon; of how many shuffles a part was made."""
        now = began = seen = time.monotonic()
        try:
            while now - seen < _CALM and now - began < SECONDS:
                for stage, planned in self._lacking():
                    seen = now
                    if stage.numActiveTasks() + stage.numCompletedTasks() < stage.numTasks():
                        self._let_go_anywhere(stage)
                    elif self._must_fail(stage):
                        self._make_for(planned)
                self._cancel(made=True)
                time.sleep(_PACE)
                now = time.monotonic()
        finally:
            self._cancel(made=False)
        return len(self._jobs)

    def _lacking(self) -> Iterator[tuple[Any, Any]]:
        """The stages of the query that are at work though not all is there that they read, as Spark tells and plans them."""
        known = self._context.dagScheduler().stageIdToStage()
        for job in {*self._tracker.getJobIdsForGroup(self._run)} & {*self._tracker.getActiveJobIds()}:
            stages = self._tracker.getJobInfo(job)
            for number in stages.get().stageIds() if stages.isDefined() else ():
                stage, planned = self._tracker.getStageInfo(number), known.get(number)
                at_work = stage.isDefined() and planned.isDefined() and stage.get().submissionTime()
                if at_work and _missing(planned.get()):
                    yield stage.get(), planned.get()

    def _let_go_anywhere(self, stage: Any) -> None:
        """Have tasks run that wait for executors. Spark looks anew how long they are to wait when one is said to leave."""
        attempt = stage.stageId(), stage.currentAttemptId()
        if attempt in self._let_go:
            return
        self._let_go.add(attempt)
        jvm, conf = SparkContext._jvm, self._context.conf()
        assert jvm is not None
        with contextlib.ExitStack() as restored:
            for name in _WAITS:
                before = conf.get(name, None)
                restored.callback(*((conf.remove, name) if before is None else (conf.set, name, before)))
                conf.set(name, "0s")
            leaving = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("it is lost", jvm.scala.Option.empty())
            self._context.taskScheduler().executorDecommission(self._lost, leaving)

    def _must_fail(self, stage: Any) -> bool:
        """Whether a task is at work that began after the loss."""
        tasks = elements(self._tasks.taskList(stage.stageId(), stage.currentAttemptId(), _MOST_TASKS))
        return any(task.status() == "RUNNING" and task.launchTime().getTime() >= 1000 * self._since for task in tasks)

    def _make_for(self, stage: Any) -> None:
        """Have what is missing for a stage made, by jobs that read it, too. Spark has one stage of pack for all of them."""
        for parent in _missing(stage):
            anew = parent.rdd().outputDeterministicLevel().toString() == "INDETERMINATE"  # then Spark has to make all of it
            if parent.id() not in self._jobs and not anew:
                reading = _reading(stage.rdd(), parent.shuffleDep().shuffleId())
                self._jobs[parent.id()] = parent, reading.toJavaRDD().takeAsync(1)

    def _cancel(self, *, made: bool) -> None:
        """Cancel the jobs; with ``made`` those for which there is nothing left to make."""
        for parent, job in self._jobs.values():
            if not job.isDone() and (parent.isAvailable() or not made):
                job.cancel(True)


def _missing(stage: Any) -> list[Any]:
    """The stages that make what a stage reads, of those whose output is not all there."""
    return [each for each in elements(stage.parents()) if not each.isAvailable()]


def _reading(rdd: Any, shuffle: int) -> Any:
    """The RDD that reads a shuffle, among those that another one is made of."""
    waiting = [rdd]
    while waiting:
        each = waiting.pop()
        for dependency in elements(each.dependencies()):
            if _is_shuffle(dependency):
                if dependency.shuffleId() == shuffle:
                    return each
            else:
                waiting.append(dependency.rdd())
    raise LookupError(f"no RDD of stage reads shuffle {shuffle}")


def _is_shuffle(dependency: Any) -> bool:
    assert SparkContext._jvm is not None
    return bool(SparkContext._jvm.java.lang.Class.forName("org.apache.spark.ShuffleDependency").isInstance(dependency))
