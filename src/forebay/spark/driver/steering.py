"""Where the state partitions of a running query are, and how they are moved to other executors.

Spark's state store coordinator, on the driver, knows for each state partition the executor that has loaded it last. When a
stage begins, Spark asks it and prefers that executor. So a partition moves at the next micro-batch when the coordinator is
told that another executor has it; the query goes on as it is.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.streaming import StreamingQuery

from forebay.errors import InvalidArgument
from forebay.spark.driver import query as queries
from forebay.store.archive import archive_at

_log = logging.getLogger("forebay")

_PACE = 0.05
"""Seconds between two looks at the executors and at the micro-batch. One look costs less than a millisecond."""


@dataclass(frozen=True)
class Executor:
    """An executor that is alive.

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


@dataclass(frozen=True)
class _Store:
    """A state store of a stateful operator, which has as many state partitions as the query."""

    operator: int
    name: str
    partitions: int


class Steering:
    """The state partitions of a running query, and the executors where they are.

    A state partition has one number for all stateful operators of a query, and all of them move together, Spark's own too:
    who empties an executor wants nothing to be left there.

    Parameters
    ----------
    query : StreamingQuery
        A query started in this session.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._execution = queries.execution(query)
        self._context = self._execution.sparkSessionForStream().sparkContext()
        jvm = _jvm()
        self._state = jvm.org.apache.spark.sql.execution.streaming.state
        conf = self._execution.sparkSessionForStream().sessionState().conf()
        self._coordinator = self._state.StateStoreCoordinatorRef.forDriver(self._context.env(), conf)
        self._nothing = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
        self._run = jvm.java.util.UUID.fromString(str(query.runId))
        self._root = f"{self._execution.resolvedCheckpointRoot()}/state"
        self._stores: list[_Store] = []
        self._providers: dict[int, list[Any]] = {}
        self._wanted: dict[int, Executor] = {}
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._closed = threading.Event()

    def executors(self) -> list[Executor]:
        """The executors that are alive, by number."""
        alive, found = self._alive(), []
        listed = self._context.statusStore().executorList(True)
        for each in (listed.apply(i) for i in range(listed.length())):
            if each.id() in alive:
                leaving = self._context.taskScheduler().getExecutorDecommissionState(each.id()).isDefined()
                host = each.hostPort().rpartition(":")[0]
                found.append(Executor(each.id(), host, each.totalCores(), leaving, each.isExcluded()))
        return sorted(found, key=lambda each: (len(each.id), each.id))

    @property
    def partitions(self) -> int:
        """How many state partitions the query has; 0 before its first micro-batch has been planned."""
        return max((store.partitions for store in self._known()), default=0)

    @property
    def operators(self) -> list[int]:
        """The numbers that Spark has given to the stateful operators of the query, forebay's and its own."""
        return sorted({store.operator for store in self._known()})

    def placement(self, operator: int | None = None) -> dict[int, str | None]:
        """The executor of each state partition: the one that has loaded it last, or that it has been steered to.

        As long as nobody has steered, the operators of a query may have the same partition on different executors.

        Parameters
        ----------
        operator : int, optional
            One of `operators`; the first one if not given.
        """
        wanted = min(self.operators, default=0) if operator is None else operator
        at = [place for place, store in enumerate(self._known()) if store.operator == wanted]
        return {partition: self._location([self._of(partition)[i] for i in at]) for partition in range(self.partitions)}

    def steer(self, placement: Mapping[int, str]) -> None:
        """Have state partitions run on other executors, from the next micro-batch on.

        It holds until the partition is steered elsewhere or the executor is lost. A micro-batch that is under way ends where
        it began.

        Parameters
        ----------
        placement : dict of int to str
            Executors' ids, by state partition. Partitions that are not named stay where they are.
        """
        known = {each.id: each for each in self.executors()}
        for partition, executor in placement.items():
            if not 0 <= partition < self.partitions:
                raise InvalidArgument(
                    f"there is no state partition {partition!r}: the query has {self.partitions} of them. Name one from 0 on; "
                    "before the first micro-batch has been planned there is none."
                )
            if executor not in known:
                raise InvalidArgument(
                    f"there is no executor {executor!r} to move the state partition {partition} to. Choose one of those alive: "
                    f"{', '.join(known) or 'none'}."
                )
        with self._lock:
            self._wanted.update({partition: known[executor] for partition, executor in placement.items()})
            self._report(placement)
        self._watch()

    def close(self) -> None:
        """Steer no longer. Partitions stay where they are as long as Spark leaves them there."""
        self._closed.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()

    def _watch(self) -> None:
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._look_after, name="forebay-steering", daemon=True)
            self._watcher.start()

    def _look_after(self) -> None:
        """Tell the coordinator at the beginning of each micro-batch what is wanted: the one before may have told otherwise."""
        batch = self._batch()
        with contextlib.suppress(Py4JError, OSError):  # Spark has gone
            while not self._closed.wait(_PACE) and self._query.isActive:
                before, batch = batch, self._batch()
                alive = self._alive()
                with self._lock:
                    self._wanted = {partition: each for partition, each in self._wanted.items() if each.id in alive}
                    if batch != before:
                        self._report(self._wanted)

    def _report(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            executor = self._wanted[partition]
            for provider in self._of(partition):
                self._coordinator.reportActiveInstance(provider, executor.host, executor.id, self._nothing)

    def _location(self, providers: Iterable[Any]) -> str | None:
        for provider in providers:
            found = self._coordinator.getLocation(provider)
            if found.isDefined():  # executor_HOST_ID
                return str(found.get()).rpartition("_")[2]
        return None

    def _of(self, partition: int) -> list[Any]:
        """How Spark names a state partition in each store."""
        stores = self._known()
        if len(self._providers.get(partition, ())) < len(stores):
            self._providers[partition] = [
                self._state.StateStoreProviderId(
                    self._state.StateStoreId(self._root, store.operator, partition, store.name), self._run
                )
                for store in stores
            ]
        return self._providers[partition]

    def _known(self) -> list[_Store]:
        """The state stores of the query, as its checkpoint has them."""
        if not self._stores:
            found = _stores_in(self._root)
            if self._batch() is None or self._query.lastProgress is None:  # there may be more to come
                return found
            self._stores = found
        return self._stores

    def _alive(self) -> frozenset[str]:
        if self._context.isLocal():
            return frozenset(["driver"])
        return frozenset(filter(None, self._context.schedulerBackend().getExecutorIds().mkString(",").split(",")))

    def _batch(self) -> int | None:
        """The micro-batch that has been planned last in this run."""
        last = self._execution.lastExecution()
        return None if last is None else int(last.currentBatchId())


def _jvm() -> Any:
    from pyspark import SparkContext

    return SparkContext._jvm


def _stores_in(root: str) -> list[_Store]:
    """What Spark has written about the stateful operators of a query."""
    state, found = archive_at(root), []
    for operator in state.directories():
        for place in ("_metadata/v2", "_metadata"):
            directory = state.within(f"{operator}/{place}")
            names = sorted((name for name in directory.names() if name.isdigit() or name == "metadata"), key=len)
            if names:
                newest = max(names, key=lambda name: (len(name), name))
                told = json.loads(directory.read(newest).splitlines()[1])
                found += [_Store(int(operator), each["storeName"], each["numPartitions"]) for each in told["stateStoreInfo"]]
                break
    return found
