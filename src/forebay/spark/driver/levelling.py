"""When an executor has too much to do, or is slow (Rhino, section 3.5: load balancing), by what micro-batches tell."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from forebay.replication.spreading import covered
from forebay.spark.driver.tally import Worked
from forebay.spark.worker.vnodes import partition_of

OVERLOADED = 1.5
"""An executor that works for so many times as long as the others on average is overloaded,"""
PATIENCE = 5.0
"""if that is so in this many micro-batches, one after the other. One with twice as much counts as two, and so on; but two
are needed in any case;"""
REST, LEAST_AT_REST = 20, PATIENCE / 2
"""and for so many after a handover for that reason only those count that count for as much as the second."""
SLOW = 3.0
"""An overloaded executor is slow if it needs so many times as long for a row as the others, in each of these."""
LEAST_LOAD = 100.0
"""An executor is not overloaded while it works for fewer milliseconds in a micro-batch."""

Placement = Mapping[int, str | None]


@dataclass(frozen=True)
class Work:
    """What there was to do in a micro-batch, or in some on average.

    Attributes
    ----------
    load : dict of str to float
        For how many milliseconds each executor has worked.
    work : dict of int to float
        How many of these are due to each partition. Partitions that run side by side make each other slow where there are
        fewer processors than tasks, so one that is handed over takes along its share of its executor's time.
    rows : dict of str to float
        Rows that each executor has handled.
    """

    load: dict[str, float]
    work: dict[int, float]
    rows: dict[str, float]

    @property
    def busiest(self) -> str:
        """The executor that has worked for longest."""
        return max(self.load, key=self.load.__getitem__)

    @property
    def excess(self) -> float:
        """For how many times as long as the others on average the busiest executor has worked."""
        most = self.load[self.busiest]
        return most / max((sum(self.load.values()) - most) / (len(self.load) - 1), 1.0)

    @property
    def slowness(self) -> float:
        """How many times as long as all others the busiest executor needs for a row; 0 if they had none."""
        mine, most = self.rows[self.busiest], self.load[self.busiest]
        others, load = sum(self.rows.values()) - mine, sum(self.load.values()) - most
        return (most / mine) / (load / others) if mine and others and load else 0.0


def measured(worked: Mapping[int, Iterable[Worked]], partitions: int, here: Placement, executors: Collection[str]) -> Work:
    """The work of executors in a micro-batch, from what their virtual nodes have told."""
    own: dict[int, list[Worked]] = {partition: [] for partition in range(partitions)}
    for vnode, times in worked.items():
        own[partition_of(vnode, partitions)] += times
    found = Work({}, dict.fromkeys(own, 0.0), {})
    for executor in executors:
        mine = [partition for partition, at in here.items() if at == executor]
        found.load[executor] = covered((each.began, each.ended) for partition in mine for each in own[partition])
        found.rows[executor] = sum(each.rows for partition in mine for each in own[partition])
        alone = {partition: sum(each.ended - each.began for each in own[partition]) for partition in mine}
        together = sum(alone.values())
        found.work.update({partition: found.load[executor] * alone[partition] / together for partition in mine if together})
    return found


@dataclass(frozen=True)
class Overload:
    """That an executor has been overloaded in some micro-batches.

    Attributes
    ----------
    executor : str
        The executor.
    slow : bool
        Whether it, and no other one, was slow in all of these.
    load, work : dict
        As `Work` has them, on average: which partition is to go is not for one micro-batch to say.
    """

    executor: str
    slow: bool
    load: dict[str, float]
    work: dict[int, float]


class Levelling:
    """Waits until an executor has been overloaded in some micro-batches, one after the other.

    Examples
    --------
    >>> levelling, work = Levelling(), Work({"1": 900.0, "2": 300.0}, {0: 900.0, 1: 300.0}, {"1": 9.0, "2": 3.0})
    >>> [levelling.take(batch, {0: "1", 1: "2"}, work) for batch in range(3)]
    [None, None, None]
    >>> levelling.take(3, {0: "1", 1: "2"}, work).executor
    '1'
    """

    def __init__(self) -> None:
        self._counts = 0.0
        self._works: list[Work] = []
        self._here: Placement = {}
        self._rested = -1

    def take(self, batch: int, here: Placement, work: Work) -> Overload | None:
        """Take what there was to do in a micro-batch; what is to be done about it, if it is time for that.

        A micro-batch in which partitions went elsewhere does not count: not all of it was done where they are now.
        """
        moved, self._here = here != self._here, dict(here)
        counts = min(work.excess / OVERLOADED, PATIENCE - 1)
        least = LEAST_AT_REST if batch < self._rested else 1.0
        if moved or counts <= least or work.load[work.busiest] <= LEAST_LOAD:
            self._counts, self._works = 0.0, []
            return None
        self._counts += counts
        self._works = [*self._works, work][-REST:]
        if self._counts < PATIENCE:
            return None
        means = {partition: fmean(each.work[partition] for each in self._works) for partition in work.work}
        load = {each: sum(means[partition] for partition, at in here.items() if at == each) for each in work.load}
        slow = {each.busiest if each.slowness >= SLOW else None for each in self._works}
        return Overload(max(load, key=load.__getitem__), slow == {work.busiest}, load, means)

    def rest(self, batch: int) -> None:
        """Begin anew, since partitions go elsewhere after a micro-batch."""
        self._counts, self._works, self._rested = 0.0, [], batch + REST
