"""How long it takes until state partitions that have moved have their state again.

The paper divides it into scheduling, state fetching and state loading (Rhino, section 5.2.1 and table 1).
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from forebay.spark.driver import metrics
from forebay.spark.driver.tally import Opened
from forebay.spark.worker.vnodes import partition_of

SCHEDULING, FETCHING, LOADING = "scheduling", "fetching", "loading"


@dataclass(frozen=True)
class Reopening:
    """The stores of state partitions that run elsewhere from now on are to be opened there.

    Attributes
    ----------
    query : str
        The query's id.
    moved : collection of int
        The state partitions.
    partitions : int
        How many of them the query has.
    first : int
        The first micro-batch that may run there.
    since : float
        When it was decided, in seconds since 1970.
    """

    query: str
    moved: Collection[int]
    partitions: int
    first: int
    since: float = field(default_factory=time.time)

    @property
    def last(self) -> int:
        """The micro-batch in which they run there at the latest: one whose task had ended is not run again."""
        return self.first + 1

    def seconds(self) -> dict[str, float]:
        """Seconds for each part, in the partition where it took longest; empty as long as no task has told.

        ``scheduling`` is until a partition's first store began to be opened, and compares the clocks of the driver and of a
        host; ``fetching`` is for getting files, by links or copies, and ``loading`` for opening stores and reading indexes.
        """
        told: dict[int, list[Opened]] = {}
        for (_, vnode), times in metrics.opened(self.query).items():
            partition = partition_of(vnode, self.partitions)
            first = next((each for each in times if self.first <= each.batch <= self.last), None)
            if partition in self.moved and first is not None:
                told.setdefault(partition, []).append(first)
        if not told:
            return {}
        return {
            SCHEDULING: max(min(each.began for each in some) for some in told.values()) / 1000 - self.since,
            FETCHING: max(sum(each.fetching for each in some) for some in told.values()) / 1000,
            LOADING: max(sum(each.loading for each in some) for some in told.values()) / 1000,
        }
