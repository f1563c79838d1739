"""What is compiled of the key index: loops over the windows of keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.compiling import compiled, in_place

Slots = npt.NDArray[np.int32]
Times = npt.NDArray[np.int64]
Records = npt.NDArray[Any]  # of WINDOW

EMPTY = UNKNOWN = -1
"""What the directory has where no key is; and in place of a place in it."""

USED, FREE, FILLED, TOUCHED, STORED = SCALARS = range(5)
"""Numbers of slots that were ever used, of those that are free again, of keys in the directory, of slots that have changed;
and of rows on disk."""

BLOCK = 6
"""Slots are in blocks of two to this power; lower bounds for the times in each block say which ones to look at."""

BY_END, BY_ESTIMATE = range(2)
"""The two times that blocks have bounds for: the end of a window, and its estimated trigger time."""

TAG = 0x7FFFFFFF
"""The bits of ``low`` that an entry of the directory has beside a slot. They say where it belongs in the directory."""

AHEAD = 16
"""So many rows are looked for together, so that the processor waits for memory once for all of them."""

EARLIEST, LATEST = -(2**63), 2**63 - 1
"""Bounds of a time of which nothing is known."""


WINDOW = np.dtype(
    {
        "names": ["high", "low", "start", "end", "ett", "generation", "parent", "sibling", "stored", "newer", "older"],
        "formats": [np.int64] * 5 + [np.int32] * 6,
    }
)
"""A window in the key index; one fills a cache line.

``high`` and ``low`` identify the key; ``start``, ``end`` and ``ett`` (estimated trigger time) are microseconds, or row
numbers for count windows; ``stored`` is the number of rows on disk. The windows of a key are a chain, ``newer`` and
``older``, from the one that starts last, which the directory has.
"""


@in_place
def touch(dirty, scalars, slot):
    if not dirty[slot]:
        dirty[slot] = 1
        scalars[TOUCHED] += 1


@in_place
def touch_all(dirty, scalars, slots):
    for slot in slots:
        touch(dirty, scalars, slot)


@in_place
def entry(low, slot):
    """What the directory has for a window: the tag of its key above its slot."""
    return (low & TAG) << 32 | slot


@in_place
def slot_of(entry):
    return np.int32(entry & 0xFFFFFFFF)


@compiled
def by_place(low, mask, bits):
    """The order of rows by the places that their keys have in a directory, of which so many bits count."""
    shift = 0
    while mask >> shift >= 1 << bits:
        shift += 1
    counts = np.zeros(1 << bits, np.int64)
    for row in range(len(low)):
        counts[(low[row] & TAG & mask) >> shift] += 1
    begins = np.cumsum(counts) - counts
    order = np.empty(len(low), np.int64)
    for row in range(len(low)):
        part = (low[row] & TAG & mask) >> shift
        order[begins[part]] = row
        begins[part] += 1
    return order


@in_place
def look_ahead(c, directory, free, scalars, low, begin):
    """Touch what the rows from ``begin`` on will need, all of it before any of it is used."""
    mask = len(directory) - 1
    end = min(len(low), begin + AHEAD)
    found = 0
    for row in range(begin, end):
        found += directory[low[row] & TAG & mask]
    for row in range(begin, end):
        there = directory[low[row] & TAG & mask]
        if there != EMPTY:
            found += c[slot_of(there)].low == low[row]
    for number in range(max(0, scalars[FREE] - AHEAD), scalars[FREE]):
        found += c[free[number]].stored
    return found


@in_place
def leave_place(directory, place):
    """Empty a place of the directory. What lies after it moves up, so that searches need no trace of what has left."""
    mask = len(directory) - 1
    following = (place + 1) & mask
    while directory[following] != EMPTY:
        home = directory[following] >> 32 & mask
        if (following - home) & mask >= (following - place) & mask:
            directory[place] = directory[following]
            place = following
        following = (following + 1) & mask
    directory[place] = EMPTY


@in_place
def key_head(c, directory, high, low):
    """The newest window of a key, or -1; and its place in the directory, or where one goes."""
    mask = len(directory) - 1
    tag = low & TAG
    place = tag & mask
    while directory[place] != EMPTY:
        slot = slot_of(directory[place])
        if directory[place] >> 32 == tag and c[slot].low == low and c[slot].high == high:
            return slot, place
        place = (place + 1) & mask
    return np.int32(-1), place


@in_place
def last_until(c, directory, near, high, low, time):
    """The last window of a key that starts by a time, the one that is newer than it, and the key's place in the directory.

    The search begins at ``near`` if that is a window of the key; then the place is not known. And the steps that it took.
    """
    steps = 0
    if near >= 0 and c[near].low == low and c[near].high == high:
        slot = near
        while c[slot].newer >= 0 and c[c[slot].newer].start <= time:
            slot = c[slot].newer
            steps += 1
        newer, place = c[slot].newer, UNKNOWN
    else:
        slot, place = key_head(c, directory, high, low)
        newer = np.int32(-1)
    while slot >= 0 and c[slot].start > time:
        newer, slot = slot, c[slot].older
        steps += 1
    return slot, newer, place, steps


@in_place
def link_window(c, directory, scalars, place, newer, slot, older):
    """A window takes its position in the chain of its key, whose head is at a place of the directory, if that is known."""
    c[slot].newer, c[slot].older = newer, older
    if older >= 0:
        c[older].newer = slot
    if newer >= 0:
        c[newer].older = slot
    else:
        if place == UNKNOWN:
            _, place = key_head(c, directory, c[slot].high, c[slot].low)
        scalars[FILLED] += directory[place] == EMPTY
        directory[place] = entry(c[slot].low, slot)


@in_place
def unlink_window(c, directory, scalars, slot):
    newer, older = c[slot].newer, c[slot].older
    if older >= 0:
        c[older].newer = newer
    if newer >= 0:
        c[newer].older = older
        return
    mask = len(directory) - 1
    sought = entry(c[slot].low, slot)
    place = sought >> 32 & mask
    while directory[place] != sought:
        place = (place + 1) & mask
    if older >= 0:
        directory[place] = entry(c[slot].low, older)
    else:
        leave_place(directory, place)
        scalars[FILLED] -= 1


@in_place
def lower(earliest, by, slot, time):
    """The bound of a slot's block is at most this time."""
    earliest[by, slot >> BLOCK] = min(earliest[by, slot >> BLOCK], time)


@in_place
def schedule(c, dirty, earliest, scalars, slots, etts):
    for row in range(len(slots)):
        c[slots[row]].ett = etts[row]
        lower(earliest, BY_ESTIMATE, slots[row], etts[row])
        touch(dirty, scalars, slots[row])


@in_place
def store_more(c, dirty, scalars, slots, rows, most):
    for number in range(len(slots)):
        slot = slots[number]
        stored = min(most, np.int64(c[slot].stored) + rows[number])
        scalars[STORED] += stored - c[slot].stored
        c[slot].stored = stored
        touch(dirty, scalars, slot)


@in_place
def opened(c, free, earliest, scalars, high, low, start, end, ett):
    """A new window, in no chain yet."""
    if scalars[FREE] > 0:
        scalars[FREE] -= 1
        slot = free[scalars[FREE]]
    else:
        slot = np.int32(scalars[USED])
        scalars[USED] += 1
    c[slot].high, c[slot].low = high, low
    c[slot].start, c[slot].end, c[slot].ett = start, end, ett
    c[slot].generation += 1
    c[slot].parent = c[slot].sibling = -1
    c[slot].stored = 0
    lower(earliest, BY_END, slot, end)
    lower(earliest, BY_ESTIMATE, slot, ett)
    return slot


@in_place
def place_merging(c, directory, free, dirty, earliest, scalars, high, low, start, end, ett, most, slots):
    """Windows of a key do not touch each other, so those that a row's window touches are neighbours in their chain.

    The search goes on from the window of the row before, if that is of the same key. It ends after so many steps from window
    to window. Gives how many rows were placed until then, of which ``slots`` has the windows.
    """
    slot, steps = np.int32(-1), 0
    for row in range(len(low)):
        if row % AHEAD == 0:
            look_ahead(c, directory, free, scalars, low, row)
        slot, newer, place, taken = last_until(c, directory, slot, high[row], low[row], end[row])
        steps += taken
        if slot < 0 or c[slot].end < start[row]:
            older = slot
            slot = opened(c, free, earliest, scalars, high[row], low[row], start[row], end[row], ett[row])
            link_window(c, directory, scalars, place, newer, slot, older)
        else:
            c[slot].start = min(c[slot].start, start[row])
            c[slot].end = max(c[slot].end, end[row])
            c[slot].ett = max(c[slot].ett, ett[row])
            while c[slot].older >= 0 and c[c[slot].older].end >= c[slot].start:
                older = c[slot].older
                unlink_window(c, directory, scalars, older)
                absorb(c, dirty, scalars, slot, older)
        touch(dirty, scalars, slot)
        slots[row] = slot
        if steps > most:
            return row + 1
    return len(low)


@in_place
def absorb(c, dirty, scalars, into, slot):
    """A window becomes a part of another one that it touches.

    What the one has absorbed goes in front of what the other one has, or after it: the order does not matter, and so only
    the shorter chain of siblings is walked through.
    """
    c[into].start = min(c[into].start, c[slot].start)
    c[into].end = max(c[into].end, c[slot].end)
    c[into].ett = max(c[into].ett, c[slot].ett)
    c[slot].parent = into
    last, others = into, slot
    while c[last].sibling >= 0 and c[others].sibling >= 0:
        last, others = c[last].sibling, c[others].sibling
    if c[last].sibling < 0:
        c[last].sibling = slot
    else:
        c[others].sibling = c[into].sibling
        c[into].sibling = slot
        last = others
    touch(dirty, scalars, slot)
    touch(dirty, scalars, last)


@in_place
def place_exact(c, directory, free, dirty, earliest, scalars, high, low, start, end, ett, most, slots):
    """The search goes on and ends as that of `place_merging` does; windows that begin together are in no order."""
    slot, steps = np.int32(-1), 0
    for row in range(len(low)):
        if row % AHEAD == 0:
            look_ahead(c, directory, free, scalars, low, row)
        slot, newer, place, taken = last_until(c, directory, slot, high[row], low[row], start[row])
        steps += taken
        while slot >= 0 and c[slot].start == start[row] and c[slot].end != end[row]:
            newer, slot = slot, c[slot].older
            steps += 1
        if slot < 0 or c[slot].start < start[row]:
            older = slot
            slot = opened(c, free, earliest, scalars, high[row], low[row], start[row], end[row], ett[row])
            link_window(c, directory, scalars, place, newer, slot, older)
        c[slot].ett = max(c[slot].ett, ett[row])
        touch(dirty, scalars, slot)
        slots[row] = slot
        if steps > most:
            return row + 1
    return len(low)


@in_place
def place_counting(c, directory, free, dirty, earliest, scalars, high, low, slots, numbers):
    for row in range(len(low)):
        if row % AHEAD == 0:
            look_ahead(c, directory, free, scalars, low, row)
        slot, place = key_head(c, directory, high[row], low[row])
        if slot < 0:
            slot = opened(c, free, earliest, scalars, high[row], low[row], 0, 0, 0)
            link_window(c, directory, scalars, place, np.int32(-1), slot, np.int32(-1))
        numbers[row] = c[slot].end
        c[slot].end += 1
        touch(dirty, scalars, slot)
        slots[row] = slot


@in_place
def place_first(c, directory, free, dirty, earliest, scalars, high, low, slots, first):
    for row in range(len(low)):
        if row % AHEAD == 0:
            look_ahead(c, directory, free, scalars, low, row)
        slot, place = key_head(c, directory, high[row], low[row])
        first[row] = slot < 0
        if slot < 0:
            slot = opened(c, free, earliest, scalars, high[row], low[row], 0, 0, 0)
            link_window(c, directory, scalars, place, np.int32(-1), slot, np.int32(-1))
            touch(dirty, scalars, slot)
        slots[row] = slot


@compiled
def find(c, directory, high, low):
    found = np.empty(0, np.int32)
    slot, _ = key_head(c, directory, high, low)
    while slot >= 0:
        found = np.append(found, slot)
        slot = c[slot].older
    return found


@in_place
def find_exact(c, directory, high, low, start, end):
    slot, _ = key_head(c, directory, high, low)
    while slot >= 0 and (c[slot].start > start or (c[slot].start == start and c[slot].end != end)):
        slot = c[slot].older
    return slot if slot >= 0 and c[slot].start == start else np.int32(-1)


@compiled
def find_each(c, directory, high, low, start, end):
    slots = np.empty(len(low), np.int32)
    for row in range(len(low)):
        slots[row] = find_exact(c, directory, high[row], low[row], start[row], end[row])
    return slots


@compiled
def windows_of(c, directory, high, low):
    slots, owners = np.empty(len(low), np.int32), np.empty(len(low), np.int64)
    count = 0
    for key in range(len(low)):
        slot, _ = key_head(c, directory, high[key], low[key])
        while slot >= 0:
            if count == len(slots):
                slots, owners = np.append(slots, np.empty_like(slots)), np.append(owners, np.empty_like(owners))
            slots[count], owners[count] = slot, key
            count += 1
            slot = c[slot].older
    return slots[:count], owners[:count]


@in_place
def root_of(c, slot):
    """The window that a slot belongs to now. The way there becomes shorter, half as long for those that are looked at.

    Slots count as unchanged for that: the longer ways that versions have lead to the same window.
    """
    while c[slot].parent >= 0:
        above = c[c[slot].parent].parent
        if above >= 0:
            c[slot].parent = above
        slot = c[slot].parent
    return slot


@compiled
def roots(c, slots):
    roots = np.empty_like(slots)
    for row in range(len(slots)):
        roots[row] = root_of(c, slots[row])
    return roots


@in_place
def in_directory(c, slot):
    return c[slot].generation & 1 and c[slot].parent < 0


@compiled
def due(c, earliest, by, used, watermark):
    """Windows that are due, from the blocks that may have one; those blocks' bounds become exact for the others."""
    due = np.empty(64, np.int32)
    count = 0
    for block in range((used + (1 << BLOCK) - 1) >> BLOCK):
        if earliest[by, block] > watermark:
            continue
        if count + (1 << BLOCK) > len(due):
            longer = np.empty(2 * len(due) + (1 << BLOCK), np.int32)
            longer[:count] = due[:count]
            due = longer
        bound = LATEST
        for slot in range(block << BLOCK, min(used, (block + 1) << BLOCK)):
            if in_directory(c, slot):
                time = c[slot].end if by == BY_END else c[slot].ett
                bound = min(bound, time)
                if time <= watermark:
                    due[count] = slot
                    count += 1
        earliest[by, block] = bound
    return due[:count]


@in_place
def soonest(c, earliest, by, used):
    """The first of all times. The bounds of blocks that might have it become exact."""
    found = LATEST
    for block in range((used + (1 << BLOCK) - 1) >> BLOCK):
        if earliest[by, block] >= found:
            continue
        bound = LATEST
        for slot in range(block << BLOCK, min(used, (block + 1) << BLOCK)):
            if in_directory(c, slot):
                bound = min(bound, c[slot].end if by == BY_END else c[slot].ett)
        earliest[by, block] = bound
        found = min(found, bound)
    return found


@in_place
def vacate(c, scalars, slot):
    """No window lives in a slot any more. Nothing is left of one but zeros, which pictures compress to nothing."""
    scalars[STORED] -= c[slot].stored
    c[slot].high = c[slot].low = c[slot].start = c[slot].end = c[slot].ett = 0
    c[slot].parent = c[slot].sibling = c[slot].newer = c[slot].older = -1
    c[slot].stored = 0


@in_place
def remove(c, directory, free, dirty, earliest, scalars, slots):
    found, mask = 0, len(directory) - 1
    for row in range(len(slots)):
        if row % AHEAD == 0:  # see `look_ahead`
            for other in range(row, min(len(slots), row + AHEAD)):
                found += directory[c[slots[other]].low & TAG & mask] + c[c[slots[other]].newer].stored
        slot = slots[row]
        if not in_directory(c, slot):  # it has been removed before
            continue
        unlink_window(c, directory, scalars, slot)
        member = slot
        while member >= 0:
            following = c[member].sibling
            c[member].generation += 1
            vacate(c, scalars, member)
            free[scalars[FREE]] = member
            scalars[FREE] += 1
            touch(dirty, scalars, member)
            member = following
    return found


@in_place
def widen(before, directory):
    """Move all entries to a larger directory."""
    mask = len(directory) - 1
    for old in before:
        if old != EMPTY:
            place = old >> 32 & mask
            while directory[place] != EMPTY:
                place = (place + 1) & mask
            directory[place] = old
