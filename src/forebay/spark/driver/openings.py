"""How long it takes until state partitions that have moved have their state again.

The paper divides it into scheduling, state fetching and state loading (Rhino, section 5.2.1 and table 1).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from types import TracebackType

from forebay.spark.driver import metrics
from forebay.spark.worker.vnodes import IDLE, partition_of

SCHEDULING, FETCHING, LOADING = "scheduling", "fetching", "loading"


class Opening:
    """What tasks tell of the first time that they work in some state partitions, from now on until it is closed.

    Parameters
    ----------
    query : str
        The query's id.
    moved : collection of int
        State partitions that run elsewhere from now on.
    partitions : int
        How many state partitions the query has.

    Attributes
    ----------
    since : float
        When it was made, in seconds since 1970.
    batch : int or None
        The newest micro-batch in which one of the partitions was worked in.
    """

    def __init__(self, query: str, moved: Collection[int], partitions: int) -> None:
        self._query, self._moved, self._partitions = query, frozenset(moved), partitions
        self.since = time.time()
        self._told: dict[int, dict[tuple[str, int], Mapping[str, float]]] = {}
        self.batch: int | None = None
        metrics.watch(query, self)

    def __enter__(self) -> Opening:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Listen no longer."""
        metrics.unwatch(self._query, self)

    def take(self, batch: int, operator: str, told: Mapping[int, Mapping[str, float]]) -> None:
        """Take what virtual nodes tell of a micro-batch."""
        for vnode, each in told.items():
            partition = partition_of(vnode, self._partitions) if vnode > IDLE else None
            if partition in self._moved and each["began"] >= 1000 * self.since:
                self._told.setdefault(partition, {}).setdefault((operator, vnode), each)
                self.batch = batch

    def seconds(self) -> dict[str, float]:
        """Seconds for each part, in the partition where it took longest; empty as long as no task has told.

        ``scheduling`` is until a partition's first store began to be opened, and compares the clocks of the driver and of a
        host; ``fetching`` is for getting files, by links or copies, and ``loading`` for opening stores and reading indexes.
        """
        metrics.take()
        if not self._told:
            return {}
        of_partitions = [[*told.values()] for told in self._told.values()]
        fetching = [sum(each["fetchTimeMs"] for each in told) / 1000 for told in of_partitions]
        loading = [sum(each["loadTimeMs"] - each["fetchTimeMs"] for each in told) / 1000 for told in of_partitions]
        began = max(min(each["began"] for each in told) for told in of_partitions) / 1000
        return {SCHEDULING: began - self.since, FETCHING: max(fetching), LOADING: max(loading)}
