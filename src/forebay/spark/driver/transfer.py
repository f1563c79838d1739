"""How state partitions go to other executors, step by step, and stay where they are if a step fails."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.streaming import StreamingQuery

from forebay.errors import HandoverError
from forebay.spark.driver.patience import Patience
from forebay.spark.driver.steering import Steering

if TYPE_CHECKING:
    from forebay.replication.manager import Manager

AGENT_SECONDS = 60.0
"""The agent of a target's host has to be there after so long."""

_PACE, _COPY_PACE = 0.05, 0.25
_LOOKED_BACK = 10
_MICRO_BATCHES = 4
"""Where no timeout is given a partition is to run elsewhere within so many times the length of a micro-batch at least."""

_IDLE_SECONDS = 2.0
"""A query that has run no micro-batch for so long is idle: nothing is to be waited for."""


class Transfer:
    """What a handover of one run of a query is made of.

    Parameters
    ----------
    query : StreamingQuery
        The query.
    steering : Steering
        How Spark is told.
    manager : Manager or None
        The replication manager, if the query's state has replicas.
    held : str
        What hosts hold of the query.
    """

    def __init__(self, query: StreamingQuery, steering: Steering, manager: Manager | None, held: str) -> None:
        self._query, self._steering, self._manager, self._held = query, steering, manager, held

    @contextlib.contextmanager
    def invited(self, guests: list[tuple[int, str]], patience: Patience) -> Iterator[None]:
        """Hosts get the state of partitions, in the background, until this ends."""
        if self._manager is None:
            yield
            return
        for host in {host for _, host in guests}:
            soon = min(patience.deadline, time.monotonic() + AGENT_SECONDS)
            while host not in self._manager.hosts():
                self._check(soon, f"the agent of {host} did not start")
                time.sleep(_PACE)
        with contextlib.ExitStack() as invited:
            for partition, host in guests:
                self._manager.invite(self._held, partition, host)
                invited.callback(self._manager.dismiss, self._held, partition, host)
            yield

    def catch_up(self, guests: list[tuple[int, str]], patience: Patience) -> None:
        """Wait until hosts have the state of partitions."""
        if self._manager is None:
            return
        for partition, host in guests:
            while not self._manager.caught_up(self._held, partition, host):
                missing = sum(self._manager.missing(self._held, *guest) for guest in guests)
                patience.renew(missing, max(self._manager.longest(self._held, *guest) for guest in guests))
                self._check(patience.deadline, f"{host} has not caught up with partition {partition}")
                time.sleep(_COPY_PACE)

    def switch(self, moving: Mapping[int, str], patience: Patience) -> None:
        """Have Spark run partitions elsewhere from the next micro-batch on; those that it does not run there go back."""
        before = self._steering.placement()
        longest = max((each["batchDuration"] for each in self._query.recentProgress[-_LOOKED_BACK:]), default=0)
        patience.allow(_MICRO_BATCHES * longest / 1000)
        self._steering.steer(moving)
        back: Collection[int] = moving
        try:
            back = elsewhere = self._await_switch(moving, patience.deadline)
        finally:
            alive = {each.id for each in self._steering.usable()} if back else set()
            origins = ((partition, before[partition]) for partition in back)
            self._steering.steer({partition: origin for partition, origin in origins if origin in alive})
        if elsewhere:
            raise HandoverError(
                f"Spark ran partitions {sorted(elsewhere)} elsewhere ({elsewhere}): their executors were busy for longer "
                "than spark.locality.wait.process, or were lost. Raise that setting, or ask again."
            )

    def _await_switch(self, moving: Mapping[int, str], deadline: float) -> dict[int, str | None]:
        """Wait for a micro-batch that has begun after Spark was told, if there is any work; what it has run elsewhere."""
        told = self._steering.batch
        idle = time.monotonic() + _IDLE_SECONDS
        while True:
            progress = self._query.lastProgress
            if progress is not None and told is not None and progress["batchId"] > told:
                break
            if progress is None or told is None or progress["batchId"] < (self._steering.batch or 0):
                idle = time.monotonic() + _IDLE_SECONDS  # a trigger that finds no rows does not count
            elif time.monotonic() > idle:
                return {}
            self._check(deadline, "no micro-batch has ended since Spark was told")
            time.sleep(_PACE)
        now = self._steering.placement()
        return {partition: now[partition] for partition, target in moving.items() if now[partition] != target}

    def _check(self, deadline: float, otherwise: str) -> None:
        if not self._steering.goes_on:
            raise HandoverError("the query has ended")
        if time.monotonic() > deadline:
            raise HandoverError(f"{otherwise} in time. The query goes on as it was; ask again with a longer timeout.")
