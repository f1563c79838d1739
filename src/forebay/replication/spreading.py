"""Which partitions go where when work is spread anew: as few as have to, and to where their state is already."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


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
    for _ in range(len(placement) if level else 0):
        step = best_move({each: at for each, at in here.items() if each not in moves}, load, cores, near, weights)
        if step is None:
            break
        partition, target = step
        load[here[partition]] -= weights[partition] / cores[here[partition]]
        load[target] += weights[partition] / cores[target]
        here[partition] = moves[partition] = target
    return moves


def best_move(
    here: Mapping[int, str | None],
    load: Mapping[str, float],
    cores: Mapping[str, int],
    near: Mapping[int, Collection[str]],
    weights: Mapping[int, float],
    *,
    near_first: bool = False,
    least_gain: float = 0.0,
) -> tuple[int, str] | None:
    """The partition that makes the busier of two executors the least busy, and who takes it from the busiest that has some.

    Of moves that are as good one to the least busy target counts, and of these one that needs no copy of the state; with
    ``near_first`` the latter counts before all else.

    Parameters
    ----------
    here : mapping
        The executors of the partitions that may move.
    load : mapping
        The work that each executor has, for each of its cores.
    cores, near, weights : mapping
        As `spread` takes them.
    near_first : bool
        Whether it is to be soon, rather than as good as it can be.
    least_gain : float
        A move is not worth it that makes the busiest executor less busy by a smaller share, or by none.

    Returns
    -------
    tuple of int and str, or None
        None if no move makes a difference.

    Examples
    --------
    >>> load, cores, weights = {"a": 9.0, "b": 1.0, "c": 2.0}, dict.fromkeys("abc", 1), {0: 4.0, 1: 5.0}
    >>> best_move({0: "a", 1: "a"}, load, cores, {0: ["c"]}, weights)
    (0, 'b')
    >>> best_move({0: "a", 1: "a"}, load, cores, {0: ["c"]}, weights, near_first=True)
    (0, 'c')
    """
    having = load.keys() & here.values()
    if not having:
        return None
    busiest = max((executor for executor in load if executor in having), key=load.__getitem__)
    found = []
    for partition in (partition for partition, executor in here.items() if executor == busiest):
        for target in load:
            taker = load[target] + weights[partition] / cores[target]
            after = round(max(load[busiest] - weights[partition] / cores[busiest], taker), 9)
            if target != busiest and after < round(load[busiest] * (1 - least_gain), 9):
                far, good = target not in near.get(partition, ()), (after, round(taker, 9))
                found.append(((far, *good) if near_first else (*good, far), partition, target))
    if not found:
        return None
    _, partition, target = min(found)
    return partition, target


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
