"""What is compiled of the unaligned store: loops over buffered rows, and over the pieces of extents."""

from __future__ import annotations

import numpy as np

from forebay.compiling import compiled

IN_MEMORY, ALL_LOADED, PARTLY, ON_DISK = range(4)
"""Where the rows of a window are that are not in the write buffer."""

REQUESTED, NEARBY = 1, 2
"""Marks of windows that a scan looks for: those that are read now, and those that are read ahead of time."""


@compiled
def link(generation, heads, previous, slots, generations, first, added):
    for number in range(len(added)):
        slot, row = added[number], first + number
        slots[row] = slot
        generations[row] = generation[slot]
        previous[row] = heads[slot]
        heads[slot] = row


@compiled
def chain(heads, previous, first, slots):
    for number in range(len(slots)):
        previous[first + number] = heads[slots[number]]
        heads[slots[number]] = first + number


@compiled
def chained(c, heads, previous, generations, slot):
    """What is chained to a window, oldest first."""
    count = 0
    item = heads[slot] if slot < len(heads) else -1
    while item >= 0 and generations[item] == c[slot].generation:
        count += 1
        item = previous[item]
    found = np.empty(count, np.int64)
    item = heads[slot] if slot < len(heads) else -1
    while count > 0:
        count -= 1
        found[count] = item
        item = previous[item]
    return found


@compiled
def count_rows(c, heads, previous, generations, slots):
    count = 0
    for slot in slots:
        member = slot
        while member >= 0:
            row = heads[member] if member < len(heads) else -1
            while row >= 0 and generations[row] == c[member].generation:
                count += 1
                row = previous[row]
            member = c[member].sibling
    return count


@compiled
def collect_rows(c, heads, previous, generations, slots, count):
    rows, roots = np.empty(count, np.int64), np.empty(count, np.int32)
    at = 0
    for slot in slots:
        member = slot
        while member >= 0:
            row = heads[member] if member < len(heads) else -1
            while row >= 0 and generations[row] == c[member].generation:
                rows[at], roots[at] = row, slot
                at += 1
                row = previous[row]
            member = c[member].sibling
    return rows, roots


@compiled
def repeated(slots, capacity):
    """Which of the slots occur more than once."""
    last = np.full(capacity, -1, np.int64)
    repeated = np.zeros(len(slots), np.bool_)
    for number in range(len(slots)):
        before = last[slots[number]]
        if before >= 0:
            repeated[before] = repeated[number] = True
        last[slots[number]] = number
    return repeated


@compiled
def counted(slots, capacity):
    counts = np.zeros(capacity, np.int64)
    owners = np.empty(min(capacity, len(slots)), np.int32)
    found = 0
    for slot in slots:
        if counts[slot] == 0:
            owners[found] = slot
            found += 1
        counts[slot] += 1
    return counts, owners[:found]


@compiled
def scattered(slots, places):
    order = np.empty(len(slots), np.int64)
    for row in range(len(slots)):
        order[places[slots[row]]] = row
        places[slots[row]] += 1
    return order


@compiled
def find_pieces(c, marks, slot, generation, first, rows):
    hits = np.empty(len(slot), np.int64)
    count, found, live = 0, 0, 0
    for piece in range(len(slot)):
        owner = slot[piece]
        if c[owner].generation != generation[piece]:
            continue
        while c[owner].parent >= 0:
            owner = c[owner].parent
        if marks[owner]:
            hits[count] = piece
            count += 1
            found += rows[piece]
        if marks[owner] != REQUESTED:
            live += rows[piece]
    return hits[:count], found, live


@compiled
def expand(c, hits, found, first, rows, slot):
    numbers, roots = np.empty(found, np.int64), np.empty(found, np.int32)
    at = 0
    for piece in hits:
        owner = slot[piece]
        while c[owner].parent >= 0:
            owner = c[owner].parent
        for row in range(rows[piece]):
            numbers[at] = first[piece] + row
            roots[at] = owner
            at += 1
    return numbers, roots


@compiled
def places(c, loaded, slots):
    """Where the rows of each window are that are not in the write buffer.

    After sessions have merged, the rows of only some of them may be in the prefetch buffer.
    """
    places = np.empty(len(slots), np.uint8)
    for number in range(len(slots)):
        here, there = False, False
        member = slots[number]
        while member >= 0:
            if c[member].stored > 0:
                if loaded[member] == c[member].generation:
                    here = True
                else:
                    there = True
            member = c[member].sibling
        places[number] = (PARTLY if here else ON_DISK) if there else (ALL_LOADED if here else IN_MEMORY)
    return places


@compiled
def mark(c, loaded, slots, prefetched):
    """Note of windows, and of those they absorbed, that their rows are in the prefetch buffer, or that they are not."""
    for slot in slots:
        member = slot
        while member >= 0:
            loaded[member] = c[member].generation if prefetched else 0
            member = c[member].sibling


@compiled
def stored(c, slots):
    """Rows on disk of windows and of those they absorbed."""
    rows = np.zeros(len(slots), np.int64)
    for number in range(len(slots)):
        member = slots[number]
        while member >= 0:
            rows[number] += c[member].stored
            member = c[member].sibling
    return rows
