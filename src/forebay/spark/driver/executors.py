"""The executors of a session, as Spark's driver knows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from forebay.spark.driver.trees import elements


@dataclass(frozen=True)
class Executor:
    """An executor.

    Attributes
    ----------
    id : str
        Spark's name of the executor.
    host : str
        The address of the executor's host, as Spark has it.
    cores : int
        How many tasks it can run at a time, if a task takes one core.
    leaving : bool
        Whether it is being decommissioned: Spark gives it no new task.
    excluded : bool
        Whether Spark gives it no task because tasks have failed there.
    """

    id: str
    host: str
    cores: int
    leaving: bool = False
    excluded: bool = False

    @property
    def location(self) -> str:
        """The executor as Spark names it where a task had best run."""
        return f"executor_{self.host}_{self.id}"


class Executors:
    """The executors of a session.

    Parameters
    ----------
    context : SparkContext
        The session's context in the JVM.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    def listed(self) -> list[Executor]:
        """Those that are alive, by number. One that has just come is left out until Spark knows its port."""
        listed, leaving = self._context.statusStore().executorList(True), self.leaving(alive := self.alive())
        found = [
            Executor(each.id(), host, each.totalCores(), each.id() in leaving, each.isExcluded())
            for each in elements(listed)
            if each.id() in alive and (host := each.hostPort().rpartition(":")[0])  # without a port it is not ready
        ]
        return sorted(found, key=lambda each: (len(each.id), each.id))

    def staying(self) -> dict[str, Executor]:
        """Those that get tasks: they are not about to leave, and not excluded, by id."""
        return {each.id: each for each in self.listed() if not each.leaving and not each.excluded}

    def excluded(self) -> frozenset[str]:
        """The ids of those that Spark gives no task because tasks have failed there."""
        return frozenset(each.id() for each in elements(self._context.statusStore().executorList(True)) if each.isExcluded())

    def alive(self) -> frozenset[str]:
        """The ids of those that are alive, which costs less than to list them."""
        if self._context.isLocal():
            return frozenset(["driver"])
        return frozenset(filter(None, self._context.schedulerBackend().getExecutorIds().mkString(",").split(",")))

    def leaving(self, executors: Iterable[str]) -> frozenset[str]:
        """Those of some that are being decommissioned."""
        scheduler = self._context.taskScheduler()
        return frozenset(each for each in executors if scheduler.getExecutorDecommissionState(each).isDefined())
