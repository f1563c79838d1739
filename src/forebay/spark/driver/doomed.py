"""Tasks that must fail, because an executor that was lost had some of what they read.

When an executor is lost, Spark begins its tasks again in the same attempt at their stage. If they read a shuffle that the
executor had a part of, they look for it there. First they may have to wait until no executor is waited for any more that had
been chosen for them (``spark.locality.wait.process``). Then they load Spark's state of their partition, wait until they may
try to read again (``spark.shuffle.io.retryWait``), and fail. Only after that Spark makes the lost part of the shuffle once
more, and begins a new attempt at the stage, which loads the state anew.

All that waiting is for nothing. An executor forgets where the parts of a shuffle are when it is given a task of a stage that
began after the loss. So each executor is given one that does nothing. Then tasks that had begun too early are ended, which
Spark counts as no failure, and those that wait are let go anywhere. They find at once that a part is missing, before they
load anything.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark import SparkContext

from forebay.spark.driver.trees import elements

SECONDS = 30.0
"""So long executors may take until they have a slot for a task that does nothing."""

_PACE, _CALM = 0.05, 1.0
"""Between two looks, and until nothing is lacking for good, in seconds."""

_WAITS = [f"spark.locality.wait.{level}" for level in ("process", "node", "rack")]
_MOST_TASKS = 10_000
_WHY = "what it reads was lost with an executor"


class Doomed:
    """Has the tasks of a query that must fail do so soon.

    Parameters
    ----------
    context : SparkContext
        The JVM's.
    run : str
        The run of the query.
    executor : str
        The id of the executor that was lost.
    since : float
        When it was there still, in seconds since 1970. Tasks that began before are let be: they may have what they read.
    """

    def __init__(self, context: Any, run: str, executor: str, since: float) -> None:
        self._context, self._run, self._lost, self._since = context, run, executor, since
        self._tracker, self._tasks = context.statusTracker(), context.statusStore()
        self._ended: set[int] = set()
        self._let_go: set[tuple[int, int]] = set()

    def end(self, places: Mapping[str, str]) -> int:
        """End them; how many there were. Executors are given as Spark names them as the place of a task, by their ids."""
        waiting = {executor: _nothing(self._context, place) for executor, place in places.items()}
        forgot: dict[str, float] = {}
        now = began = seen = time.monotonic()
        try:
            while now - seen < _CALM and now - began < SECONDS:
                for executor in [executor for executor, job in waiting.items() if job.isDone()]:
                    del waiting[executor]
                    forgot[executor] = time.time()
                for stage in self._lacking():
                    seen = now
                    self._end(stage, forgot)
                    if forgot:
                        self._let_wait_no_more(stage)
                time.sleep(_PACE)
                now = time.monotonic()
        finally:
            for job in waiting.values():
                job.cancel(True)
        return len(self._ended)

    def _lacking(self) -> Iterator[Any]:
        """The stages of the query that are at work though not all is there that they read."""
        known = self._context.dagScheduler().stageIdToStage()
        for job in {*self._tracker.getJobIdsForGroup(self._run)} & {*self._tracker.getActiveJobIds()}:
            stages = self._tracker.getJobInfo(job)
            for number in stages.get().stageIds() if stages.isDefined() else ():
                stage, planned = self._tracker.getStageInfo(number), known.get(number)
                if stage.isDefined() and planned.isDefined() and stage.get().submissionTime():
                    read = elements(planned.get().parents())
                    if not all(each.isAvailable() for each in read):
                        yield stage.get()

    def _end(self, stage: Any, forgot: Mapping[str, float]) -> None:
        """End tasks that began between the loss and when their executor forgot where the lost part was."""
        for task in elements(self._tasks.taskList(stage.stageId(), stage.currentAttemptId(), _MOST_TASKS)):
            if task.attempt() and task.status() == "RUNNING" and task.taskId() not in self._ended:
                began = task.launchTime().getTime() / 1000
                if self._since <= began <= forgot.get(task.executorId(), 0.0):
                    self._context.killTaskAttempt(task.taskId(), True, _WHY)
                    self._ended.add(task.taskId())

    def _let_wait_no_more(self, stage: Any) -> None:
        """Have tasks run anywhere that wait for executors: Spark looks at its settings anew when one is said to leave."""
        attempt = stage.stageId(), stage.currentAttemptId()
        if attempt in self._let_go or stage.numActiveTasks() + stage.numCompletedTasks() >= stage.numTasks():
            return
        self._let_go.add(attempt)
        jvm, conf = SparkContext._jvm, self._context.conf()
        assert jvm is not None
        with contextlib.ExitStack() as restored:
            for name in _WAITS:
                before = conf.get(name, None)
                restored.callback(*((conf.remove, name) if before is None else (conf.set, name, before)))
                conf.set(name, "0s")
            leaving = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo(_WHY, jvm.scala.Option.empty())
            self._context.taskScheduler().executorDecommission(self._lost, leaving)


def _nothing(context: Any, place: str) -> Any:
    """A job with a task for an executor that does nothing."""
    jvm = SparkContext._jvm
    assert jvm is not None
    rows, here = jvm.java.util.ArrayList(), jvm.java.util.ArrayList()
    here.add(place)
    rows.add(jvm.scala.Tuple2("", jvm.PythonUtils.toSeq(here)))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("java.lang.String"))
    return context.makeRDD(jvm.PythonUtils.toSeq(rows), tag).toJavaRDD().countAsync()
