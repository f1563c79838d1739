"""Everything of the unaligned store that is compiled: loops over rows, windows and pieces, and the columns they work on.

Each kernel is called by the module that its section is named for, which says what it is for.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int32]
Times = npt.NDArray[np.int64]

EMPTY, GONE = -1, -2
USED, FREE, FILLED, TOUCHED = range(4)

BLOCK = 6
"""Slots are in blocks of two to this power; a lower bound for the ends in each block says which ones to look at."""

NEVER, ALWAYS = 2**63 - 1, -(2**63)


class Columns(NamedTuple):
    """One array per property of a window.

    ``high`` and ``low`` identify the key; ``start``, ``end`` and ``ett`` (estimated trigger time) are microseconds, or row
    numbers for count windows; ``stored`` is the number of rows on disk.
    """

    high: Times
    low: Times
    start: Times
    end: Times
    ett: Times
    generation: Slots
    parent: Slots
    sibling: Slots
    stored: Slots


IN_MEMORY, ALL_LOADED, PARTLY, ON_DISK = range(4)
"""Where the rows of a window are that are not in the write buffer."""

REQUESTED, NEARBY = 1, 2
"""Marks of windows that a scan looks for: those that are read now, and those that are read ahead of time."""


@numba.njit(cache=True)
def touch(dirty, touched, scalars, slot):
    if not dirty[slot]:
        dirty[slot] = 1
        touched[scalars[TOUCHED]] = slot
        scalars[TOUCHED] += 1


@numba.njit(cache=True)
def touch_all(dirty, touched, scalars, slots):
    for slot in slots:
        touch(dirty, touched, scalars, slot)


@numba.njit(cache=True)
def opened(c, directory, free, earliest, scalars, place, high, low, start, end, ett):
    """A new window, entered at a place of the directory."""
    if scalars[FREE] > 0:
        scalars[FREE] -= 1
        slot = free[scalars[FREE]]
    else:
        slot = np.int32(scalars[USED])
        scalars[USED] += 1
    c.high[slot], c.low[slot] = high, low
    c.start[slot], c.end[slot], c.ett[slot] = start, end, ett
    c.generation[slot] += 1
    c.parent[slot] = c.sibling[slot] = -1
    c.stored[slot] = 0
    earliest[slot >> BLOCK] = min(earliest[slot >> BLOCK], end)
    if directory[place] == EMPTY:
        scalars[FILLED] += 1
    directory[place] = slot
    return slot


@numba.njit(cache=True)
def place_merging(c, directory, free, dirty, touched, earliest, scalars, high, low, start, end, ett):
    slots = np.empty(len(low), np.int32)
    mask = len(directory) - 1
    for row in range(len(low)):
        into, vacant = np.int32(-1), -1
        place = low[row] & mask
        while directory[place] != EMPTY:
            slot = directory[place]
            if slot == GONE:
                if vacant < 0:
                    vacant = place
            elif (
                c.low[slot] == low[row]
                and c.high[slot] == high[row]
                and c.start[slot] <= end[row]
                and start[row] <= c.end[slot]
            ):
                if into < 0:
                    into = slot
                else:
                    c.start[into] = min(c.start[into], c.start[slot])
                    c.end[into] = max(c.end[into], c.end[slot])
                    c.ett[into] = max(c.ett[into], c.ett[slot])
                    c.parent[slot] = into
                    last = slot
                    while c.sibling[last] >= 0:
                        last = c.sibling[last]
                    c.sibling[last] = c.sibling[into]
                    c.sibling[into] = slot
                    directory[place] = GONE
                    touch(dirty, touched, scalars, slot)
                    touch(dirty, touched, scalars, last)
            place = (place + 1) & mask
        if into < 0:
            at = vacant if vacant >= 0 else place
            into = opened(c, directory, free, earliest, scalars, at, high[row], low[row], start[row], end[row], ett[row])
        else:
            c.start[into] = min(c.start[into], start[row])
            c.end[into] = max(c.end[into], end[row])
            c.ett[into] = max(c.ett[into], ett[row])
        touch(dirty, touched, scalars, into)
        slots[row] = into
    return slots


@numba.njit(cache=True)
def looked_up(c, directory, high, low, start, end, exact):
    """The window of a key, with these bounds if ``exact``, or -1; and the place in the directory where a new one goes."""
    mask = len(directory) - 1
    vacant = -1
    place = low & mask
    while directory[place] != EMPTY:
        slot = directory[place]
        if slot == GONE:
            if vacant < 0:
                vacant = place
        elif c.low[slot] == low and c.high[slot] == high and (not exact or (c.start[slot] == start and c.end[slot] == end)):
            return slot, place
        place = (place + 1) & mask
    return np.int32(-1), vacant if vacant >= 0 else place


@numba.njit(cache=True)
def place_exact(c, directory, free, dirty, touched, earliest, scalars, high, low, start, end, ett):
    slots = np.empty(len(low), np.int32)
    for row in range(len(low)):
        slot, at = looked_up(c, directory, high[row], low[row], start[row], end[row], True)
        if slot < 0:
            slot = opened(c, directory, free, earliest, scalars, at, high[row], low[row], start[row], end[row], ett[row])
        c.ett[slot] = max(c.ett[slot], ett[row])
        touch(dirty, touched, scalars, slot)
        slots[row] = slot
    return slots


@numba.njit(cache=True)
def place_counting(c, directory, free, dirty, touched, earliest, scalars, high, low):
    slots = np.empty(len(low), np.int32)
    numbers = np.empty(len(low), np.int64)
    for row in range(len(low)):
        slot, at = looked_up(c, directory, high[row], low[row], 0, 0, False)
        if slot < 0:
            slot = opened(c, directory, free, earliest, scalars, at, high[row], low[row], 0, 0, 0)
        numbers[row] = c.end[slot]
        c.end[slot] += 1
        touch(dirty, touched, scalars, slot)
        slots[row] = slot
    return slots, numbers


@numba.njit(cache=True)
def find(c, directory, high, low):
    found = np.empty(0, np.int32)
    mask = len(directory) - 1
    place = low & mask
    while directory[place] != EMPTY:
        slot = directory[place]
        if slot != GONE and c.low[slot] == low and c.high[slot] == high:
            found = np.append(found, slot)
        place = (place + 1) & mask
    return found


@numba.njit(cache=True)
def roots(c, slots):
    roots = np.empty_like(slots)
    for row in range(len(slots)):
        root = slots[row]
        while c.parent[root] >= 0:
            root = c.parent[root]
        roots[row] = root
    return roots


@numba.njit(cache=True)
def due(c, earliest, used, watermark):
    """Windows that are due, from the blocks that may have one; those blocks' bounds become exact for the others."""
    due = np.empty(64, np.int32)
    count = 0
    for block in range((used + (1 << BLOCK) - 1) >> BLOCK):
        if earliest[block] > watermark:
            continue
        if count + (1 << BLOCK) > len(due):
            longer = np.empty(2 * len(due) + (1 << BLOCK), np.int32)
            longer[:count] = due[:count]
            due = longer
        bound = NEVER
        for slot in range(block << BLOCK, min(used, (block + 1) << BLOCK)):
            if c.generation[slot] & 1 and c.parent[slot] < 0:
                bound = min(bound, c.end[slot])
                if c.end[slot] <= watermark:
                    due[count] = slot
                    count += 1
        earliest[block] = bound
    return due[:count]


@numba.njit(cache=True)
def leave(c, directory, slot):
    mask = len(directory) - 1
    place = c.low[slot] & mask
    while directory[place] != slot:
        place = (place + 1) & mask
    directory[place] = GONE


@numba.njit(cache=True)
def remove(c, directory, free, dirty, touched, earliest, scalars, slots):
    for slot in slots:
        leave(c, directory, slot)
        member = slot
        while member >= 0:
            following = c.sibling[member]
            c.generation[member] += 1
            c.parent[member] = c.sibling[member] = -1
            c.stored[member] = 0
            free[scalars[FREE]] = member
            scalars[FREE] += 1
            touch(dirty, touched, scalars, member)
            member = following


@numba.njit(cache=True)
def enter(c, directory, slots):
    mask = len(directory) - 1
    for slot in slots:
        place = c.low[slot] & mask
        while directory[place] >= 0:
            place = (place + 1) & mask
        directory[place] = slot


@numba.njit(cache=True)
def apply(c, directory, scalars, slots, changed):
    """Slots as a later version has them; those that the directory must not have any more leave it first."""
    used = scalars[USED]
    for row in range(len(slots)):
        slot = slots[row]
        if slot < used and c.generation[slot] & 1 and c.parent[slot] < 0:
            leave(c, directory, slot)
    mask = len(directory) - 1
    for row in range(len(slots)):
        slot = slots[row]
        c.high[slot], c.low[slot] = changed.high[row], changed.low[row]
        c.start[slot], c.end[slot], c.ett[slot] = changed.start[row], changed.end[row], changed.ett[row]
        c.generation[slot] = changed.generation[row]
        c.parent[slot], c.sibling[slot] = changed.parent[row], changed.sibling[row]
        c.stored[slot] = changed.stored[row]
        if c.generation[slot] & 1 and c.parent[slot] < 0:
            place = c.low[slot] & mask
            while directory[place] >= 0:
                place = (place + 1) & mask
            if directory[place] == EMPTY:
                scalars[FILLED] += 1
            directory[place] = slot
        if slot >= scalars[USED]:
            scalars[USED] = slot + 1


@numba.njit(cache=True)
def link(generation, heads, previous, slots, generations, first, added):
    for number in range(len(added)):
        slot, row = added[number], first + number
        slots[row] = slot
        generations[row] = generation[slot]
        previous[row] = heads[slot]
        heads[slot] = row


@numba.njit(cache=True)
def count_rows(c, heads, previous, generations, slots):
    count = 0
    for slot in slots:
        member = slot
        while member >= 0:
            row = heads[member] if member < len(heads) else -1
            while row >= 0 and generations[row] == c.generation[member]:
                count += 1
                row = previous[row]
            member = c.sibling[member]
    return count


@numba.njit(cache=True)
def collect_rows(c, heads, previous, generations, slots, count):
    rows, roots = np.empty(count, np.int64), np.empty(count, np.int32)
    at = 0
    for slot in slots:
        member = slot
        while member >= 0:
            row = heads[member] if member < len(heads) else -1
            while row >= 0 and generations[row] == c.generation[member]:
                rows[at], roots[at] = row, slot
                at += 1
                row = previous[row]
            member = c.sibling[member]
    return rows, roots


@numba.njit(cache=True)
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


@numba.njit(cache=True)
def scattered(slots, places):
    order = np.empty(len(slots), np.int64)
    for row in range(len(slots)):
        order[places[slots[row]]] = row
        places[slots[row]] += 1
    return order


@numba.njit(cache=True)
def find_pieces(c, marks, slot, generation, first, rows):
    hits = np.empty(len(slot), np.int64)
    count, found, live = 0, 0, 0
    for piece in range(len(slot)):
        owner = slot[piece]
        if c.generation[owner] != generation[piece]:
            continue
        while c.parent[owner] >= 0:
            owner = c.parent[owner]
        if marks[owner]:
            hits[count] = piece
            count += 1
            found += rows[piece]
        if marks[owner] != REQUESTED:
            live += rows[piece]
    return hits[:count], found, live


@numba.njit(cache=True)
def expand(hits, found, first, rows, parent, slot):
    numbers, roots = np.empty(found, np.int64), np.empty(found, np.int32)
    at = 0
    for piece in hits:
        owner = slot[piece]
        while parent[owner] >= 0:
            owner = parent[owner]
        for row in range(rows[piece]):
            numbers[at] = first[piece] + row
            roots[at] = owner
            at += 1
    return numbers, roots


@numba.njit(cache=True)
def places(c, loaded, slots):
    """Where the rows of each window are that are not in the write buffer.

    After sessions have merged, the rows of only some of them may be in the prefetch buffer.
    """
    places = np.empty(len(slots), np.uint8)
    for number in range(len(slots)):
        here, there = False, False
        member = slots[number]
        while member >= 0:
            if c.stored[member] > 0:
                if loaded[member] == c.generation[member]:
                    here = True
                else:
                    there = True
            member = c.sibling[member]
        places[number] = (PARTLY if here else ON_DISK) if there else (ALL_LOADED if here else IN_MEMORY)
    return places


@numba.njit(cache=True)
def mark(c, loaded, slots, prefetched):
    """Note of windows, and of those they absorbed, that their rows are in the prefetch buffer, or that they are not."""
    for slot in slots:
        member = slot
        while member >= 0:
            loaded[member] = c.generation[member] if prefetched else 0
            member = c.sibling[member]


@numba.njit(cache=True)
def stored(c, slots):
    """Rows on disk of windows and of those they absorbed."""
    rows = np.zeros(len(slots), np.int64)
    for number in range(len(slots)):
        member = slots[number]
        while member >= 0:
            rows[number] += c.stored[member]
            member = c.sibling[member]
    return rows
