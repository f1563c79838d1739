"""When an executor has too much to do, or is slow (Rhino, section 3.5: load balancing), by what micro-batches tell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from forebay.replication.spreading import best_moves, covered
from forebay.spark.driver.tally import Worked
from forebay.spark.worker.vnodes import partition_of

OVERLOADED = 1.5
"""An executor that works for so many times as long as the others is overloaded,"""
PATIENCE = 5.0
"""if that is so in this many micro-batches, one after the other. One with twice as much counts as two, and so on; but two
are needed in any case;"""
REST, LEAST_AT_REST = 20, PATIENCE / 2
"""and for so many after a handover for that reason only those that count for more than the second, unless it is slow."""
MOST_DOUBLED = 6
"""A partition that was handed over for that reason stays for twice as many, and twice as many each time, but no more often
than so: one that has most to do, beside free processors, makes each executor busy for longer and none for less long."""
SLOW, SUSPECTED = 3.0, 1.4
"""An overloaded executor is slow if it needs so many times as long for a row as the others, in these together or in the
last one, and as many times as the second in both the last one and those before: one odd micro-batch is not enough."""
COLD, COLD_SECONDS = 3, 15.0
"""For so many micro-batches after it was given a partition an executor is not taken for slow, and for so long not for
overloaded: it may have to warm up."""
LEAST_LOAD, LEAST_SHARE = 100.0, 0.25
"""An executor is not overloaded while it works for fewer milliseconds in a micro-batch, or for a smaller share of it: with
less to do there it would hardly make micro-batches shorter, and a handover makes one longer. One that may be slow makes them
longer with all else that it does, so its share is that of what they last without it."""

LEAST_GAIN = 0.25
"""Partitions are handed over if that takes away at least such a share of the work of the executor that has most."""

QUIET = 10
"""After so many micro-batches with little to do, one after the other, what was seen is forgotten. Fewer say nothing: Spark
has one without rows after each one with rows, and windows fire in some of them."""

Placement = Mapping[int, str | None]


@dataclass(frozen=True)
class Work:
    """What there was to do in a micro-batch, or in some.

    Attributes
    ----------
    here : mapping of int to str
        The executor of each partition.
    load : dict of str to float
        For how many milliseconds each executor has worked.
    work : dict of int to float
        How many of these are due to each partition. Partitions that run side by side make each other slow where there are
        fewer processors than tasks, so one that is handed over takes along its share of its executor's time.
    alone : dict of int to float
        For how many milliseconds each partition was worked at, whatever else its executor did meanwhile.
    rows : dict of int to float
        How many rows of each partition were handled.
    """

    here: Placement
    load: dict[str, float]
    work: dict[int, float]
    alone: dict[int, float]
    rows: dict[int, float]

    @property
    def busiest(self) -> str:
        """The executor that has worked for longest."""
        return max(self.load, key=self.load.__getitem__)

    @property
    def excess(self) -> float:
        """For how many times as long as the others the busiest executor has worked."""
        return _excess(self.load, self.busiest)

    @property
    def paces(self) -> dict[int, float]:
        """For how many milliseconds each partition that had rows was worked at for one of them."""
        return {partition: self.alone[partition] / rows for partition, rows in self.rows.items() if rows}

    def after(self, earlier: Work | None) -> Work:
        """With a half of what there was to do before, while partitions were where they are."""
        if earlier is None:
            return self
        faded = earlier.faded()
        pairs = [(self.work, faded.work), (self.alone, faded.alone), (self.rows, faded.rows)]
        load = {each: some + faded.load.get(each, 0.0) for each, some in self.load.items()}
        return Work(self.here, load, *({each: some + before[each] for each, some in now.items()} for now, before in pairs))

    def faded(self) -> Work:
        """A half of what there was to do."""
        load = {each: some / 2 for each, some in self.load.items()}
        others = (self.work, self.alone, self.rows)
        return Work(self.here, load, *({each: some / 2 for each, some in times.items()} for times in others))

    @property
    def suspects(self) -> set[str]:
        """The busiest executor, and others that may be slow, as those of one host are together."""
        paces = self._per_row(self.alone)
        slow = {each for each, pace in paces.items() if len(paces) > 1 and pace >= SUSPECTED * _elsewhere(each, paces)}
        return {self.busiest, *slow}

    def _per_row(self, times: Mapping[int, float]) -> dict[str, float]:
        """For how many milliseconds each executor that had rows worked for one of them."""
        having = {executor: [each for each in _at(executor, self.here) if self.rows[each]] for executor in self.load}
        return {
            executor: sum(times[each] for each in mine) / sum(self.rows[each] for each in mine)
            for executor, mine in having.items()
            if mine
        }

    def is_slow(self, usual: Mapping[int, float], slow: float = SLOW) -> bool:
        """Whether it is the busiest executor that is so slow, and not its partitions that are heavy.

        All of them take much longer for a row than those of the others: by their shares of its time, in which each waits for
        the longest one, and by their own, in which they wait for each other where processors are few. A single one may do
        that because of its rows, unless it took less where, or when, it ran before.
        """
        mine = [partition for partition, rows in self.rows.items() if rows and self.here[partition] == self.busiest]
        for times in (self.work, self.alone):
            paces = self._per_row(times)
            if not mine or len(paces) < 2:
                return False
            elsewhere = _elsewhere(self.busiest, paces)
            if min(times[partition] / self.rows[partition] for partition in mine) < slow * elsewhere:
                return False
        return len(mine) > 1 or all(self.paces[each] >= slow * usual.get(each, self.paces[each]) for each in mine)


def measured(worked: Mapping[int, Iterable[Worked]], partitions: int, here: Placement, executors: Collection[str]) -> Work:
    """The work of executors in a micro-batch, from what their virtual nodes have told."""
    own: dict[int, list[Worked]] = {partition: [] for partition in range(partitions)}
    for vnode, times in worked.items():
        own[partition_of(vnode, partitions)] += times
    found = Work(here, {}, *(dict.fromkeys(own, 0.0) for _ in range(3)))
    for executor in executors:
        mine = _at(executor, here)
        found.load[executor] = covered((each.began, each.ended) for partition in mine for each in own[partition])
        alone = {partition: sum(each.ended - each.began for each in own[partition]) for partition in mine}
        together = sum(alone.values())
        found.alone.update(alone)
        found.rows.update({partition: sum(each.rows for each in own[partition]) for partition in mine})
        found.work.update({partition: found.load[executor] * alone[partition] / together for partition in mine if together})
    return found


def weights(work: Mapping[int, float]) -> dict[int, float]:
    """What partitions weigh by their work when they are spread over executors: powers of two, so that chance counts little.

    Examples
    --------
    >>> weights({0: 90.0, 1: 110.0, 2: 0.0, 3: 1000.0, 4: 100.0})
    {0: 1.0, 1: 1.0, 2: 1.0, 3: 8.0, 4: 1.0}
    """
    usual = median(work.values()) if work else 0.0
    return {each: 2.0 ** round(math.log2(some / usual)) if some > usual > 0 else 1.0 for each, some in work.items()}


def relieving(work: Work, near: Mapping[int, Collection[str]], staying: Collection[int] = ()) -> dict[int, str]:
    """The partitions that the busiest executor gives to others, as many as it takes until it is not overloaded.

    They go to executors that have their state, if that is enough to gain `LEAST_GAIN`.

    Parameters
    ----------
    work : Work
        What there was to do.
    near : mapping
        The executors that have a partition's state on their hosts.
    staying : collection of int
        Partitions that do not move.

    Returns
    -------
    dict
        The new executors of the partitions that move; none if too little is gained whatever moves.

    Examples
    --------
    >>> here, times = dict(enumerate("aaaaaabbcc")), dict.fromkeys(range(10), 100.0)
    >>> work = Work(here, {"a": 600.0, "b": 200.0, "c": 200.0}, times, times, times)
    >>> relieving(work, {}), relieving(work, {4: ["c"], 5: ["c"]})
    ({0: 'b', 1: 'c'}, {4: 'c', 5: 'c'})
    """
    busiest = work.busiest
    mine = dict.fromkeys((each for each in _at(busiest, work.here) if each not in staying), busiest)
    for only_near in (True, False):
        load, moves, gain = dict(work.load), dict[int, str](), 0.0
        for partition, target in best_moves(mine, load, dict.fromkeys(load, 1), near, work.work, only_near=only_near):
            moves[partition] = target
            gain = 1 - max(load[each] for each in (busiest, *moves.values())) / work.load[busiest]
            if gain >= LEAST_GAIN and _excess(load, busiest) <= OVERLOADED:
                break
        if gain >= LEAST_GAIN:
            return moves
    return {}


def _elsewhere(executor: str, paces: Mapping[str, float]) -> float:
    """What the others take for a row: their median, for those of the same host may be slow, too."""
    return median(pace for each, pace in paces.items() if each != executor)


def _excess(load: Mapping[str, float], executor: str) -> float:
    """For how many times as long as the others an executor works: as their median, for some may be overloaded, too."""
    return load[executor] / max(median(some for each, some in load.items() if each != executor), 1.0)


@dataclass(frozen=True)
class Overload:
    """That an executor has been overloaded in some micro-batches.

    Attributes
    ----------
    executor : str
        The executor.
    slow : bool
        Whether it was slow in these.
    work : Work
        What there was to do in these, most in the last: what is to go is not for one micro-batch to say.
    staying : frozenset of int
        Partitions that were handed over lately: what they take seems to go where they go.
    """

    executor: str
    slow: bool
    work: Work
    staying: frozenset[int]


class Levelling:
    """Waits until an executor has been overloaded in some micro-batches, one after the other.

    Examples
    --------
    >>> levelling, here = Levelling(), {0: "1", 1: "2"}
    >>> times = {0: 900.0, 1: 300.0}
    >>> work = Work(here, {"1": 900.0, "2": 300.0}, times, times, {0: 9.0, 1: 3.0})
    >>> [levelling.take(batch, work) for batch in range(3)]
    [None, None, None]
    >>> levelling.take(3, work).executor
    '1'
    """

    def __init__(self) -> None:
        self._weight = self._firm_weight = 0.0
        self._work: Work | None = None
        self._here: Placement = {}
        self._usual: dict[int, float] = {}
        self._lasts = math.inf
        self._grown: dict[str | None, tuple[int, float]] = {}
        self._rested = -1
        self._quiet = 0
        self._handed = Counter[int]()
        self._stays: dict[int, int] = {}

    def take(self, batch: int, work: Work, lasted: float = 0.0, now: float = math.inf) -> Overload | None:
        """Take what there was to do in a micro-batch that lasted so many milliseconds; what is to be done, if it is time.

        ``now`` is the time in seconds, of any clock. A micro-batch in which partitions went elsewhere does not count, as not
        all of it was done where they are now.
        """
        if self._work is not None and self._work.busiest not in work.load:
            self._forget()  # it is about to leave, or is given nothing more
        busiest = work.busiest if self._work is None else self._work.busiest
        if self._have_moved(batch, work.here, busiest, now):
            return None
        weight, load = min(work.excess / OVERLOADED, PATIENCE - 1), work.load[work.busiest]
        calm, idle = weight <= 1.0, load <= LEAST_LOAD
        suspects = () if calm or idle else work.suspects
        self._usual |= {each: pace for each, pace in work.paces.items() if work.here[each] not in suspects}
        little = idle or load <= LEAST_SHARE * self._usually(work, lasted)
        self._quiet = self._quiet + 1 if little else 0
        changed = busiest != work.busiest and _excess(work.load, busiest) <= OVERLOADED
        if (not little and (calm or changed)) or self._quiet >= QUIET:
            self._forget()
        if little and self._work is not None:
            self._work = self._work.faded()
        if calm or little:
            return None
        self._weight += weight
        firm = load > LEAST_SHARE * lasted and (batch >= self._rested or weight > LEAST_AT_REST)
        self._firm_weight = self._firm_weight + weight if firm else 0.0
        earlier, self._work = self._work, work.after(self._work)
        return self._overload(batch, earlier, work, self._work, now) if self._weight >= PATIENCE else None

    def _have_moved(self, batch: int, here: Placement, busiest: str, now: float) -> bool:
        """Whether partitions are elsewhere than before; if those of the busiest are, what was seen is forgotten."""
        before, self._here = self._here, here
        if _at(busiest, before) != _at(busiest, here):
            self._forget()
        if before == here:
            return False
        self._grown |= {at: (batch, now) for each, at in here.items() if before and before.get(each) != at}
        return True

    def _usually(self, work: Work, lasted: float) -> float:
        """For how long micro-batches last, which those of an executor that may be slow do not say."""
        if work.is_slow(self._usual, SUSPECTED):
            return min(lasted, self._lasts)
        if work.load[work.busiest] > LEAST_LOAD:
            self._lasts = lasted if math.isinf(self._lasts) else (self._lasts + lasted) / 2
        return lasted

    def _overload(self, batch: int, earlier: Work | None, last: Work, together: Work, now: float) -> Overload | None:
        """What is to be done, where executors were overloaded for long enough."""
        grown, at = self._grown.get(together.busiest, (-COLD - 1, -math.inf))
        if now - at < COLD_SECONDS:
            return None
        cold = batch - grown <= COLD
        slow = not cold and self._is_slow(earlier, last)
        odd = not cold and last.is_slow(self._usual)
        if not slow and (odd or self._firm_weight < PATIENCE):  # the next one tells whether an odd one was a pause
            return None
        staying = frozenset(partition for partition, until in self._stays.items() if batch < until)
        return Overload(together.busiest, slow, together, staying)

    def _is_slow(self, earlier: Work | None, last: Work) -> bool:
        """Whether the busiest executor is slow, by micro-batches before the last one, the last one, and all together."""
        if self._work is not None and self._work.busiest != last.busiest:
            return False
        both = earlier is not None and all(some.is_slow(self._usual, SUSPECTED) for some in (earlier, last))
        together = self._work is not None and self._work.is_slow(self._usual)
        return both and (together or last.is_slow(self._usual))

    def rest(self, batch: int, going: Collection[int]) -> None:
        """Begin anew, since partitions go elsewhere after a micro-batch.

        What partitions took is what they are known to take, but for those that stay on an executor that may have been slow.
        """
        if self._work is not None:
            staying = set[int]()
            if self._work.is_slow(self._usual, SUSPECTED):
                suspects = self._work.suspects
                staying = {each for executor in suspects for each in _at(executor, self._work.here)}.difference(going)
            self._usual |= {each: pace for each, pace in self._work.paces.items() if each not in staying}
        self._forget()
        self._rested = batch + REST

    def handed(self, batch: int, partitions: Iterable[int]) -> None:
        """Partitions have been handed over because their executor was overloaded."""
        for each in partitions:
            self._handed[each] += 1
            self._stays[each] = batch + REST * 2 ** min(self._handed[each], MOST_DOUBLED)

    def _forget(self) -> None:
        self._weight, self._firm_weight, self._work = 0.0, 0.0, None


def _at(executor: str, here: Placement) -> list[int]:
    return [partition for partition, at in here.items() if at == executor]
