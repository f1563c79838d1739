"""Spark's state store coordinator, which knows on the driver where the state partitions of a query are.

It has, for each state store and partition, the executor that has loaded it last, or that it was told of.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming import StreamingQuery

from forebay.spark.driver.checkpoint import stores_in
from forebay.spark.driver.executors import Executor
from forebay.store.archive import archive_at

_LOOKS_SECONDS = 0.25
"""Between two looks at the checkpoint, which may be far away, for what the first micro-batch of a run has written there."""


@dataclass(frozen=True)
class _Store:
    """A state store of a stateful operator, which has as many state partitions as the query."""

    operator: int
    name: str
    partitions: int


class Coordinator:
    """What the coordinator knows of one run of a query.

    A state partition has one number for all stateful operators of a query, forebay's and Spark's own.

    Parameters
    ----------
    query : StreamingQuery
        The query.
    execution : StreamExecution
        Its execution in the JVM.
    """

    def __init__(self, query: StreamingQuery, execution: Any) -> None:
        session, jvm = execution.sparkSessionForStream(), SparkContext._jvm
        assert jvm is not None
        self._query = query
        self._state = jvm.org.apache.spark.sql.execution.streaming.state
        self._coordinator = self._state.StateStoreCoordinatorRef.forDriver(
            session.sparkContext().env(), session.sessionState().conf()
        )
        self._nothing = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
        self._run = jvm.java.util.UUID.fromString(str(query.runId))
        self._root = f"{execution.resolvedCheckpointRoot()}/state"
        self._stores: list[_Store] = []
        self._looked = -math.inf
        self._so_far: list[_Store] = []
        self._providers: dict[int, list[Any]] = {}

    @property
    def partitions(self) -> int:
        """How many state partitions the query has; 0 before its first micro-batch has been planned."""
        return max((store.partitions for store in self._known()), default=0)

    @property
    def operators(self) -> list[int]:
        """The numbers that Spark has given to the stateful operators of the query."""
        return sorted({store.operator for store in self._known()})

    @property
    def knows_all(self) -> bool:
        """Whether it is known for good what stores the query has, as it is when its first micro-batch has ended."""
        self._known()  # nobody else may have looked since then
        return bool(self._stores)

    def locations(self, partition: int, operator: int | None = None) -> list[str | None]:
        """The executors that have a state partition, for each store of the query or of one operator; None where none has."""
        known = zip(self._known(), self._of(partition), strict=False)
        return [self._location(provider) for store, provider in known if operator in (None, store.operator)]

    def report(self, partition: int, executor: Executor) -> None:
        """Tell the coordinator that an executor has a state partition of each store."""
        for provider in self._of(partition):
            self._coordinator.reportActiveInstance(provider, executor.host, executor.id, self._nothing)

    def _location(self, provider: Any) -> str | None:
        found = self._coordinator.getLocation(provider)
        return str(found.get()).rpartition("_")[2] if found.isDefined() else None  # executor_HOST_ID

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
        if self._stores:
            return self._stores
        ended = self._query.lastProgress is not None  # before, there may be more to come
        if ended or time.monotonic() - self._looked > _LOOKS_SECONDS:
            found = stores_in(archive_at(self._root))
            stores = [_Store(operator, each["storeName"], each["numPartitions"]) for operator, each in found]
            self._so_far, self._looked = sorted(stores, key=lambda store: store.operator), time.monotonic()
        if ended:
            self._stores = self._so_far
        return self._so_far
