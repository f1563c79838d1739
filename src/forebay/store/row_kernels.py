"""What is compiled of the unaligned store: loops over buffered rows, and over the pieces of extents."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from forebay.compiling import compiled, in_place
from forebay.store.index_kernels import Records, Slots, root_of

IN_MEMORY, ALL_LOADED, PARTLY, ON_DISK = range(4)
"""Where the rows of a window are that are not in the write buffer."""

# Chains: ``heads`` has for each slot the number of its youngest item, and ``previous`` for each item that of the one before
# it. Numbers are from 1 on, 0 is none: so memory that nothing was written to is chains without items, and costs nothing.


@in_place
def link(generation, heads, previous, slots, generations, first, added):
    for number in range(len(added)):
        slot, row = added[number], first + number
        slots[row] = slot
        generations[row] = generation[slot]
        previous[row] = heads[slot]
        heads[slot] = row + 1


@in_place
def chain(heads, previous, generations, first, slots):
    """Chain what comes after ``first`` to slots, but for what is of an older generation than what is there, and so dead."""
    for number in range(len(slots)):
        item, head = first + number, heads[slots[number]]
        if head == 0 or generations[item] >= generations[head - 1]:
            previous[item] = head
            heads[slots[number]] = item + 1


@in_place
def unlink(heads, previous, generations, slots):
    """Nothing is chained to slots any more, and what was is of no generation."""
    for slot in slots:
        if slot < len(heads):
            item = heads[slot] - 1
            while item >= 0:
                generations[item] = -1
                item = previous[item] - 1
            heads[slot] = 0


@compiled
def chained(c, heads, previous, generations, slot):
    """What is chained to a window, oldest first."""
    count = 0
    item = heads[slot] - 1 if slot < len(heads) else -1
    while item >= 0 and generations[item] == c[slot].generation:
        count += 1
        item = previous[item] - 1
    found = np.empty(count, np.int64)
    item = heads[slot] - 1 if slot < len(heads) else -1
    while count > 0:
        count -= 1
        found[count] = item
        item = previous[item] - 1
    return found


@compiled
def count_items(c, heads, previous, generations, slots):
    """How much is chained to each window, and to those that it absorbed."""
    counts = np.zeros(len(slots), np.int64)
    for number in range(len(slots)):
        member = slots[number]
        while member >= 0:
            item = heads[member] - 1 if member < len(heads) else -1
            while item >= 0 and generations[item] == c[member].generation:
                counts[number] += 1
                item = previous[item] - 1
            member = c[member].sibling
    return counts


@in_place
def collect_items(c, heads, previous, generations, slots, items, roots):
    """Fill ``items`` and ``roots``, see `collected`, as far as there is room in them; gives how many there are."""
    at, room = 0, len(items)
    for slot in slots:
        member = slot
        while member >= 0:
            item = heads[member] - 1 if member < len(heads) else -1
            while item >= 0 and generations[item] == c[member].generation:
                if at < room:
                    items[at], roots[at] = item, slot
                at += 1
                item = previous[item] - 1
            member = c[member].sibling
    return at


def collected(
    c: Records, heads: Slots, previous: Slots, generations: Slots, slots: Slots
) -> tuple[npt.NDArray[np.int64], Slots]:
    """What is chained to windows and to those that they absorbed, and the window of each.

    Most windows have few items, so room for all is there the first time as a rule, and they are gone through once.
    """
    room = 4 * len(slots)
    while True:
        items, roots = np.empty(room, np.int64), np.empty(room, np.int32)
        found = collect_items(c, heads, previous, generations, slots, items, roots)
        if found <= room:
            return items[:found], roots[:found]
        room = found


_CROWDED = 8
"""Looking through places takes less time than sorting items as long as there are at most so many places for each."""


def ascending(items: npt.NDArray[np.int64], roots: Slots, most: int) -> tuple[npt.NDArray[np.int64], Slots]:
    """What `collected` gives in ascending order of items, which are different, and below ``most``."""
    if most > _CROWDED * len(items):
        order = np.argsort(items)
        return items[order], roots[order]
    there = np.zeros(most, np.int32)
    there[items] = roots + 1
    items = np.flatnonzero(there)
    return items, there[items] - 1


@compiled
def find_repeated(slots, last):
    repeated = np.zeros(len(slots), np.bool_)
    for number in range(len(slots)):
        before = last[slots[number]] - 1
        if before >= 0:
            repeated[before] = repeated[number] = True
        last[slots[number]] = number + 1
    return repeated


@compiled
def count_owners(slots, counts):
    owners = np.empty(min(len(counts), len(slots)), np.int32)
    found = 0
    for slot in slots:
        if counts[slot] == 0:
            owners[found] = slot
            found += 1
        counts[slot] += 1
    return owners[:found]


def sparse(rows: int, capacity: int) -> bool:
    """Whether rows are so few among slots that sorting them is cheaper than room for each slot.

    Zeros that numpy gives take memory, and time, where they are written to, and rows that lie far apart touch all of them.
    """
    return capacity > 64 * rows


def looked_up(slots: Slots, values: npt.NDArray[np.int64], wanted: Slots, capacity: int) -> npt.NDArray[np.int64]:
    """The values of some slots, which are all among ``slots``. Those ascend, and have one value each."""
    if sparse(len(wanted), capacity):
        return values[np.searchsorted(slots, wanted)]
    places = np.empty(capacity, np.int64)
    places[slots] = values
    return places[wanted]


def repeated(slots: npt.NDArray[np.int32], capacity: int) -> npt.NDArray[np.bool_]:
    """Which of the slots occur more than once."""
    if sparse(len(slots), capacity):
        _, places, counts = np.unique(slots, return_inverse=True, return_counts=True)
        return counts[places] > 1
    return find_repeated(slots, np.zeros(capacity, np.int32))


def counted(slots: npt.NDArray[np.int32], capacity: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """How many rows each slot has, and the slots that have some."""
    counts = np.zeros(capacity, np.int64)
    return counts, count_owners(slots, counts)


@compiled
def scattered(slots, places):
    order = np.empty(len(slots), np.int64)
    for row in range(len(slots)):
        order[places[slots[row]]] = row
        places[slots[row]] += 1
    return order


@in_place
def live_rows(c, slot, generation, rows):
    """How many rows of pieces are of windows that are open."""
    live = 0
    for piece in range(len(slot)):
        if c[slot[piece]].generation == generation[piece]:
            live += rows[piece]
    return live


@compiled
def live_pieces(c, slot, generation):
    """The pieces of windows that are open, and what the windows belong to now."""
    pieces, roots = np.empty(len(slot), np.int64), np.empty(len(slot), np.int32)
    count = 0
    for piece in range(len(slot)):
        if c[slot[piece]].generation == generation[piece]:
            pieces[count], roots[count] = piece, root_of(c, slot[piece])
            count += 1
    return pieces[:count], roots[:count]


@compiled
def expand(pieces, roots, first, rows):
    """The rows of some pieces, and the window of each."""
    found = 0
    for piece in pieces:
        found += rows[piece]
    numbers, windows = np.empty(found, np.int64), np.empty(found, np.int32)
    at = 0
    for number in range(len(pieces)):
        piece = pieces[number]
        for row in range(rows[piece]):
            numbers[at], windows[at] = first[piece] + row, roots[number]
            at += 1
    return numbers, windows


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


@in_place
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
