"""Which partitions go where when work is spread anew: as few as have to, and to where their state is already."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping


def spread(
    placement: Mapping[int, str | None],
    cores: Mapping[str, int],
    near: Mapping[int, Collection[str]],
    weights: Mapping[int, float],
    *,
    level: bool = True,
) -> dict[int, str]:
    """The partitions that move so that every executor has its share.

    Parameters
    ----------
    placement : mapping
        The executor of each partition; None, or one that is not among ``cores``, for partitions that need a new one.
    cores : mapping
        The executors that can be given partitions, with their cores: their shares are in proportion.
    near : mapping
        The executors that have a partition's state on their hosts.
    weights : mapping
        How much work each partition is, in any unit.
    level : bool
        Whether partitions that have an executor may move too.

    Returns
    -------
    dict
        The new executors of the partitions that move.

    Examples
    --------
    >>> spread({0: "a", 1: "a", 2: "a", 3: "a"}, {"a": 1, "b": 1}, {3: ["b"]}, dict.fromkeys(range(4), 1.0))
    {3: 'b', 0: 'b'}
    >>> weights = dict.fromkeys(range(4), 1.0)
    >>> spread(dict.fromkeys(range(4), "b"), dict.fromkeys("abc", 1), dict.fromkeys(range(4), "a"), weights)
    {0: 'a', 1: 'c'}
    >>> spread({0: "gone", 1: "b"}, {"a": 1, "b": 1}, {0: ["b"]}, {0: 1.0, 1: 1.0}, level=False)
    {0: 'b'}
    >>> spread({0: "a", 1: "b"}, {"a": 1, "b": 1}, {}, {0: 1.0, 1: 1.0})
    {}
    """
    load = dict.fromkeys(sorted(cores), 0.0)
    here = {partition: executor for partition, executor in placement.items() if executor in load}
    for partition, executor in here.items():
        load[executor] += weights[partition] / cores[executor]
    moves: dict[int, str] = {}
    for partition in sorted(placement.keys() - here.keys(), key=lambda each: (-weights[each], each)):
        choices = [executor for executor in near.get(partition, ()) if executor in load] or list(load)
        if choices:
            chosen = min(choices, key=lambda executor: load[executor] + weights[partition] / cores[executor])
            here[partition] = moves[partition] = chosen
            load[chosen] += weights[partition] / cores[chosen]
    if level:
        staying = {partition: executor for partition, executor in here.items() if partition not in moves}
        moves.update(best_moves(staying, load, cores, near, weights))
    return moves


def best_moves(
    here: Mapping[int, str],
    load: dict[str, float],
    cores: Mapping[str, int],
    near: Mapping[int, Collection[str]],
    weights: Mapping[int, float],
    *,
    only_near: bool = False,
) -> Iterator[tuple[int, str]]:
    """One move after the other, each from the busiest executor that has some, until none makes a difference.

    Each is the one that makes the busier of two executors the least busy; of such moves one to the least busy target, and
    of these one that needs no copy of the state.

    Parameters
    ----------
    here : mapping
        The executors of the partitions that may move, each of them once.
    load : dict
        The work that each executor has, for each of its cores. It follows the moves.
    cores, near, weights : mapping
        As `spread` takes them.
    only_near : bool
        Whether only moves count that need no copy of the state.

    Yields
    ------
    tuple of int and str
        The partition, and its new executor.

    Examples
    --------
    >>> load, cores, weights = {"a": 9.0, "b": 1.0, "c": 2.0}, dict.fromkeys("abc", 1), {0: 4.0, 1: 5.0}
    >>> list(best_moves({0: "a", 1: "a"}, dict(load), cores, {0: ["c"]}, weights))
    [(0, 'b')]
    >>> list(best_moves({0: "a", 1: "a"}, dict(load), cores, {0: ["c"]}, weights, only_near=True))
    [(0, 'c')]
    """
    staying = dict(here)
    while having := load.keys() & staying.values():
        busiest = max(sorted(having), key=load.__getitem__)
        found = []
        for partition in [partition for partition, executor in staying.items() if executor == busiest]:
            having_it = near.get(partition, ())
            for target in [each for each in load if each in having_it or not only_near]:
                takes = load[target] + weights[partition] / cores[target]
                after = max(load[busiest] - weights[partition] / cores[busiest], takes)
                if round(after, 9) < round(load[busiest], 9):
                    found.append((round(after, 9), round(takes, 9), target not in having_it, partition, target))
        if found:
            *_, partition, target = min(found)
            load[busiest] -= weights[partition] / cores[busiest]
            load[target] += weights[partition] / cores[target]
            del staying[partition]
            yield partition, target
        else:  # others may still give some to each other
            staying = {partition: executor for partition, executor in staying.items() if executor != busiest}


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """For how long there was at least one of some intervals.

    Examples
    --------
    >>> covered([(0, 3), (1, 2), (2, 5), (7, 8)])
    6.0
    """
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
