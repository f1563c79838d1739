"""Virtual nodes: the store instances of an operator, an equal number in each of Spark's state partitions."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from forebay.state.layout import INSTANCES, VNODES, Layout

IDLE = -1
"""Stands for all virtual nodes of a task that had nothing to do, in what the task tells the driver."""

PACKING = -2
"""Stands for the first task of a pack in what it tells the driver; the numbers below it stand for the others."""

HOT_KEYS = "hotKeys"
"""Under this name a pack tells about how many rows each hot key had, by the key's text."""

_MASK = 0xFFFFFFFF


def vnodes_of(layout: Layout, partitions: int) -> npt.NDArray[np.int32]:
    """Ids of the virtual nodes of an operator in so many state partitions.

    A layout that fixes the number of virtual nodes also fixes their ids, which fill every number of partitions evenly that
    divides it: a hash modulo the larger number, modulo the smaller one, is the hash modulo the smaller one.

    Examples
    --------
    >>> vnodes_of({"virtualNodes": 4}, 2).tolist() == vnodes_of({"virtualNodes": 4}, 4).tolist()
    True
    >>> vnodes_of({"instancesPerPartition": 2}, 2).tolist()
    [0, 2, 1, 4]
    """
    if VNODES in layout:
        return vnode_ids(layout[VNODES], 1)
    return vnode_ids(partitions, layout[INSTANCES])


@functools.lru_cache(maxsize=8)
def vnode_ids(partitions: int, instances: int) -> npt.NDArray[np.int32]:
    """Ids of virtual nodes such that Spark's hash partitioning puts ``instances`` of them into each partition.

    Spark sends a row to partition ``murmur3(id) mod partitions``. Counting up from 0, an id is taken while its partition
    still needs one. The ids for fewer instances are the first of those for more.

    Examples
    --------
    >>> vnode_ids(2, 2).tolist()
    [0, 2, 1, 4]
    """
    rounds: list[list[int]] = [[] for _ in range(instances)]
    filled = [0] * partitions
    candidate, missing = 0, partitions * instances
    while missing:
        partition = _murmur3(candidate) % partitions
        if filled[partition] < instances:
            rounds[filled[partition]].append(candidate)
            filled[partition] += 1
            missing -= 1
        candidate += 1
    return np.array([vnode for ids in rounds for vnode in ids], dtype=np.int32)


@functools.lru_cache(maxsize=8)
def ids_in_turn(number: int) -> npt.NDArray[np.int32]:
    """The ids of a fixed number of virtual nodes in such an order that neighbours are in different partitions.

    That holds for every number of partitions that divides theirs.

    Examples
    --------
    >>> [partition_of(vnode, 4) for vnode in ids_in_turn(16).tolist()[:6]]
    [0, 1, 2, 3, 0, 1]
    """
    ids = vnode_ids(number, 1)
    return ids[np.argsort([partition_of(vnode, number) for vnode in ids.tolist()])]


def partition_of(vnode: int, partitions: int) -> int:
    """The state partition that Spark puts a virtual node into."""
    return _murmur3(vnode) % partitions


def _murmur3(value: int) -> int:
    """Murmur3 of one 32-bit integer, as Spark partitions by it; a signed result."""
    mixed = value * 0xCC9E2D51 & _MASK
    mixed = (mixed << 15 | mixed >> 17) & _MASK
    mixed = mixed * 0x1B873593 & _MASK
    state = 42 ^ mixed  # which is the seed
    state = (state << 13 | state >> 19) & _MASK
    state = state * 5 + 0xE6546B64 & _MASK
    state ^= 4
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state
