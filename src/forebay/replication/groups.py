"""Replica groups: which hosts keep the replicas of a partition (Rhino, section 4.2.2, phase 1).

A group is a chain of hosts other than the one that the partition runs on. Sizes of state are packed into hosts as into bins:
the largest partition first, each into the host that has least. What one host runs is spread over all others before that: if
it is lost, they take its partitions over, and one of them alone would have too much to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from typing import Generic, TypeVar

LEAST_APART = 2.5
"""A unit goes from one host to another if these are so many times its size apart: 2 would make no difference in the end."""

CHANGED = 2.0
"""Sizes are looked at anew when one is so many times as large as before, or as small:"""
NO_SIZE = 16 << 20
"""but for so many bytes, which are soon copied;"""
CHANGED_SECONDS = 10.0
"""and has been for so long: hosts tell at different times what has become of state."""

Unit = TypeVar("Unit", bound=Hashable)


class Sizes(Generic[Unit]):
    """The sizes of units as they were, until one of them is quite another.

    State grows and is compacted all the time, and groups must not change each time.

    Examples
    --------
    >>> sizes = Sizes()
    >>> [sizes.take({0: megabytes << 20}, now)[0] >> 20 for now, megabytes in ((0, 400), (1, 700), (2, 900), (12, 900))]
    [400, 400, 400, 900]
    """

    def __init__(self) -> None:
        self._sizes: dict[Unit, int] = {}
        self._since: float | None = None

    def take(self, sizes: Mapping[Unit, int], now: float) -> Mapping[Unit, int]:
        """Take the sizes of all units that there are; those that count. ``now`` is in seconds."""
        self._sizes = {unit: self._sizes.get(unit, size) for unit, size in sizes.items()}
        pairs = [(self._sizes[unit] + NO_SIZE, size + NO_SIZE) for unit, size in sizes.items()]
        if all(max(pair) < CHANGED * min(pair) for pair in pairs):
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= CHANGED_SECONDS:
            self._sizes, self._since = dict(sizes), None
        return self._sizes


def assign(
    sizes: Mapping[Unit, int],
    origins: Mapping[Unit, str],
    hosts: Collection[str],
    replicas: int,
    current: Mapping[Unit, list[str]],
    *,
    keeping: Collection[str] = (),
    level: bool = True,
) -> dict[Unit, list[str]]:
    """The group of each unit of state.

    A new member is the host with the least state of those that the same host runs, and of such hosts the one with the least.
    Members that there are stay, unless they are gone or run the unit themselves, so that no more is copied than has to be.
    When one host has more than twice as much as another, of all state or of what one origin runs, units go over one by one
    as long as that makes these differences smaller.

    Parameters
    ----------
    sizes : mapping
        Bytes of each unit.
    origins : mapping
        The host that runs each unit, as far as it is known.
    hosts : collection of str
        The hosts that can keep replicas.
    replicas : int
        How many hosts a group has, if there are enough.
    current : mapping
        The groups so far.
    keeping : collection of str
        Further hosts, which keep the replicas that they have and get no others.
    level : bool
        Whether members may change for no other reason than that hosts have more and less.

    Examples
    --------
    >>> assign({0: 30, 1: 20, 2: 10}, {0: "a", 1: "a", 2: "a"}, ["a", "b", "c"], 1, {})
    {0: ['b'], 1: ['c'], 2: ['c']}
    >>> assign({0: 30, 1: 20, 2: 10}, {0: "a", 1: "a", 2: "a"}, ["a", "b"], 1, {0: ["b"], 1: ["c"], 2: ["c"]})
    {0: ['b'], 1: ['b'], 2: ['b']}
    >>> assign({0: 10, 1: 10}, {0: "a", 1: "a"}, ["a", "b", "c"], 1, {0: ["b"], 1: ["b"]})
    {0: ['c'], 1: ['b']}
    >>> assign({0: 10, 1: 10}, {0: "a", 1: "a"}, ["a", "c"], 1, {0: ["b"]}, keeping=["b"])
    {0: ['b'], 1: ['c']}
    """
    groups: dict[Unit, list[str]] = {}
    load = dict.fromkeys(sorted({*hosts, *keeping}), 0)
    together: Counter[tuple[str | None, str]] = Counter()
    order = sorted(sizes, key=lambda unit: -sizes[unit])
    for unit in order:
        kept = [host for host in current.get(unit, ()) if host in load and host != origins.get(unit)]
        groups[unit] = kept[:replicas]
        for host in groups[unit]:
            load[host] += sizes[unit] + 1
            together[origins.get(unit), host] += sizes[unit] + 1
    for unit in order:
        group, origin = groups[unit], origins.get(unit)
        while len(group) < replicas:
            free = [(together[origin, host], load[host], host) for host in hosts if host not in (*group, origin)]
            if not free:
                break
            _, _, least = min(free)
            group.append(least)
            load[least] += sizes[unit] + 1
            together[origin, least] += sizes[unit] + 1
    if level:
        _level(groups, sizes, origins, {host: load[host] for host in sorted(hosts)}, together)
    return {unit: groups[unit] for unit in sizes}


def _level(
    groups: dict[Unit, list[str]],
    sizes: Mapping[Unit, int],
    origins: Mapping[Unit, str],
    load: dict[str, int],
    together: Counter[tuple[str | None, str]],
) -> None:
    """Have the fullest host give units to the emptiest one while it has more than twice as much, also of one origin's.

    Each step makes the sum of the squares of all loads smaller, so no unit ever wanders to and fro as long as sizes are the
    same.
    """
    for _ in range(len(groups)):
        loads = [load]
        for origin in {origins.get(unit) for unit in groups}:
            loads += [{host: together[origin, host] for host in load if host != origin}]
        pairs = [_extremes(each) for each in loads]
        steps = []
        for unit, group in groups.items():
            origin, size = origins.get(unit), sizes[unit] + 1
            for full, empty in filter(None, pairs):
                if full in group and empty not in (*group, origin):
                    apart = load[full] - load[empty] + together[origin, full] - together[origin, empty]
                    if apart > LEAST_APART * size:
                        steps.append((size * (apart - 2 * size), unit, full, empty))
        if not steps:
            return
        _, unit, full, empty = max(steps, key=lambda step: step[0])
        groups[unit] = [empty if host == full else host for host in groups[unit]]
        for host, change in ((full, -sizes[unit] - 1), (empty, sizes[unit] + 1)):
            load[host] += change
            together[origins.get(unit), host] += change


def _extremes(load: Mapping[str, int]) -> tuple[str, str] | None:
    """The hosts with most and with least, if the one has more than twice as much as the other."""
    fullest, emptiest = max(load, key=load.__getitem__, default=""), min(load, key=load.__getitem__, default="")
    return (fullest, emptiest) if load and load[fullest] > 2 * load[emptiest] else None
