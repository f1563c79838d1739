"""What is compiled of the analysis: loops over accesses, whose state keys are numbers from 0 on."""

from __future__ import annotations

import numpy as np

from forebay.compiling import compiled

EMPTY = -1


@compiled
def stack_distances(keys, count):
    """How many other keys were accessed since the last access of each one's key, or -1 for the first.

    A Fenwick tree counts, of all places up to one, those where a key was accessed last: each access is O(log n).
    """
    accesses = len(keys)
    tree = np.zeros(accesses + 1, np.int64)
    last = np.full(count, EMPTY, np.int64)
    distances = np.empty(accesses, np.int64)
    seen = 0
    for place in range(accesses):
        before = last[keys[place]]
        if before == EMPTY:
            distances[place] = EMPTY
            seen += 1
        else:
            node, older = before + 1, 0
            while node > 0:
                older += tree[node]
                node -= node & -node
            distances[place] = seen - older
            node = before + 1
            while node <= accesses:
                tree[node] -= 1
                node += node & -node
        node = place + 1
        while node <= accesses:
            tree[node] += 1
            node += node & -node
        last[keys[place]] = place
    return distances


@compiled
def numbered(firsts, seconds):
    """Numbers from 0 on for pairs, in the order in which they come, and how many there are."""
    size = 16
    while size < 2 * len(firsts):
        size *= 2
    mask = size - 1
    table = np.full(size, EMPTY, np.int64)
    numbers = np.empty(len(firsts), np.int64)
    count = 0
    for row in range(len(firsts)):
        mixed = np.uint64(firsts[row]) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(seconds[row]) * np.uint64(
            0xD6E8FEB86659FD93
        )
        mixed ^= mixed >> np.uint64(32)
        place = np.int64((mixed * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(20)) & np.uint64(mask))
        while table[place] != EMPTY and (firsts[table[place]] != firsts[row] or seconds[table[place]] != seconds[row]):
            place = (place + 1) & mask
        if table[place] == EMPTY:
            table[place] = row
            numbers[row] = count
            count += 1
        else:
            numbers[row] = numbers[table[place]]
    return numbers, count


@compiled
def lives(keys, count, deletes):
    """Of each key the places of its first and its last access, and whether the last one deletes it."""
    first, last = np.full(count, EMPTY, np.int64), np.empty(count, np.int64)
    deleted = np.zeros(count, np.bool_)
    for place in range(len(keys)):
        key = keys[place]
        if first[key] == EMPTY:
            first[key] = place
        last[key] = place
        deleted[key] = deletes[place]
    return first, last, deleted
