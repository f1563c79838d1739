"""What is compiled of the driver: its two indexes, and the loop that runs state machines.

The *hIndex* leads from an event's key, and from a window's bounds, to the state machine: `find` in the directory, a hash
table. Windows that merge are found by key alone, and those of a key are a chain. The *vIndex* is a binary heap of machines
in the order in which they expire. A window that has merged with others expires later than the heap says; it is put back
when it comes up.
"""

from __future__ import annotations

import numpy as np

from forebay.compiling import in_place
from forebay.harness.access import DELETE, GET, MERGE, PUT

MACHINE = np.dtype(
    {
        "names": ["key", "start", "end", "low", "high", "expiry", "bytes", "number", "state", "part", "sibling"],
        "formats": [np.int64] * 8 + [np.int32] * 3,
    }
)
"""A state machine: ``start`` and ``end`` name its state key, ``low`` and ``high`` are the bounds of its window now.

``bytes`` is the size of its value, ``number`` counts machines, and ``sibling`` is the next window of its key in a chain.
"""

EMPTY, ABSORBED = -1, -1
NEVER = 2**63 - 1

USED, FREE, HEAP, OPENED, WATERMARK, LATE, AT, WHY = range(8)
"""What ``scalars`` has: slots in use or free, heap entries, machines so far, watermark, late rows, accesses in ``out``."""

DONE, OUT_FULL, SLOTS_FULL = range(3)

MAPPING = 1
"""The family of the state that says which windows of a key have merged into which, as Flink keeps it."""
MAPPING_ENTRY = 32
"""Bytes of an entry: the bounds of two windows."""

_GET, _PUT, _MERGE, _DELETE = int(GET), int(PUT), int(MERGE), int(DELETE)


@in_place
def home(key, start, end, part, mask):
    """Where the search for a state key begins."""
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= (np.uint64(start) + np.uint64(part)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= np.uint64(end) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(32)
    return np.int64(mixed & np.uint64(mask))


@in_place
def home_of(m, slot, merging, mask):
    if merging:
        return home(m[slot].key, 0, 0, 0, mask)
    return home(m[slot].key, m[slot].start, m[slot].end, m[slot].part, mask)


@in_place
def find(m, directory, merging, key, start, end, part):
    """The machine of a state key, or the newest one of a key whose windows merge, or -1; and its place in the directory."""
    mask = len(directory) - 1
    place = home(key, 0, 0, 0, mask) if merging else home(key, start, end, part, mask)
    while directory[place] != EMPTY:
        slot = directory[place]
        if m[slot].key == key and (merging or (m[slot].start == start and m[slot].end == end and m[slot].part == part)):
            return slot, place
        place = (place + 1) & mask
    return np.int32(EMPTY), place


@in_place
def leave(m, directory, merging, place):
    """Empty a place of the directory. What lies after it moves up, so that searches need no trace of what has left."""
    mask = len(directory) - 1
    following = (place + 1) & mask
    while directory[following] != EMPTY:
        first = home_of(m, directory[following], merging, mask)
        if (following - first) & mask >= (following - place) & mask:
            directory[place] = directory[following]
            place = following
        following = (following + 1) & mask
    directory[place] = EMPTY


@in_place
def unlink(m, directory, merging, slot):
    """Take a machine out of the hIndex."""
    found, place = find(m, directory, merging, m[slot].key, m[slot].start, m[slot].end, m[slot].part)
    if found == slot:
        if m[slot].sibling == EMPTY:
            leave(m, directory, merging, place)
        else:
            directory[place] = m[slot].sibling
        return
    while m[found].sibling != slot:
        found = m[found].sibling
    m[found].sibling = m[slot].sibling


@in_place
def refill(m, directory, merging, old):
    """Fill an empty directory with what an old one has."""
    mask = len(directory) - 1
    for slot in old:
        if slot != EMPTY:
            place = home_of(m, slot, merging, mask)
            while directory[place] != EMPTY:
                place = (place + 1) & mask
            directory[place] = slot


@in_place
def earlier(heap, one, other):
    times, numbers, _ = heap
    return times[one] < times[other] or (times[one] == times[other] and numbers[one] < numbers[other])


@in_place
def swap(heap, one, other):
    times, numbers, slots = heap
    times[one], times[other] = times[other], times[one]
    numbers[one], numbers[other] = numbers[other], numbers[one]
    slots[one], slots[other] = slots[other], slots[one]


@in_place
def sink(heap, size, node):
    while True:
        child = 2 * node + 1
        if child >= size:
            return
        if child + 1 < size and earlier(heap, child + 1, child):
            child += 1
        if not earlier(heap, child, node):
            return
        swap(heap, child, node)
        node = child


@in_place
def push(heap, scalars, time, number, slot):
    times, numbers, slots = heap
    node = scalars[HEAP]
    times[node], numbers[node], slots[node] = time, number, slot
    scalars[HEAP] += 1
    while node > 0 and earlier(heap, node, (node - 1) // 2):
        swap(heap, node, (node - 1) // 2)
        node = (node - 1) // 2


@in_place
def pop(heap, scalars):
    scalars[HEAP] -= 1
    swap(heap, 0, scalars[HEAP])
    sink(heap, scalars[HEAP], 0)


@in_place
def emit(out, scalars, operation, family, key, start, end, size, time):
    at = scalars[AT]
    out[0][at] = operation
    out[1][at] = family
    out[2][at] = key
    out[3][at] = start
    out[4][at] = end
    out[5][at] = size
    out[6][at] = time
    scalars[AT] = at + 1


@in_place
def perform(m, slot, requests, first, count, size, time, out, scalars):
    """Make requests of a machine; an event brings so many bytes."""
    for number in range(first, first + count):
        operation, family, whole = requests[number]
        written = 0
        if operation == _MERGE or (operation == _PUT and whole):
            m[slot].bytes += size
            written = m[slot].bytes if operation == _PUT else size
        elif operation == _PUT:
            m[slot].bytes = written = size
        elif operation == _DELETE:
            m[slot].bytes = 0
        emit(out, scalars, operation, family, m[slot].key, m[slot].start, m[slot].end, written, time)


@in_place
def run(m, slot, runs, requests, symbol, size, time, out, scalars):
    """A step of a state machine."""
    first, count, following = runs[m[slot].state, symbol]
    perform(m, slot, requests, first, count, size, time, out, scalars)
    m[slot].state = following


@in_place
def open_machine(m, directory, place, heap, free, scalars, key, start, end, expiry, part, sibling):
    """A new machine at a place of the hIndex, before another one of its key if there is one; and in the vIndex."""
    if scalars[FREE] > 0:
        scalars[FREE] -= 1
        slot = free[scalars[FREE]]
    else:
        slot = np.int32(scalars[USED])
        scalars[USED] += 1
    m[slot].key, m[slot].start, m[slot].end, m[slot].part = key, start, end, part
    m[slot].low, m[slot].high, m[slot].expiry, m[slot].sibling = start, end, expiry, sibling
    m[slot].bytes, m[slot].state, m[slot].number = 0, 0, scalars[OPENED]
    directory[place] = slot
    if expiry != NEVER:
        push(heap, scalars, expiry, scalars[OPENED], slot)
    scalars[OPENED] += 1
    return slot


@in_place
def chain_length(m, slot):
    length = 0
    while slot != EMPTY:
        length += 1
        slot = m[slot].sibling
    return length


@in_place
def remap(m, directory, key, time, out, scalars):
    """The windows of a key have changed: Flink clears the mapping, and writes what is left of it entry by entry."""
    emit(out, scalars, _DELETE, MAPPING, key, 0, 0, 0, time)
    slot, _ = find(m, directory, True, key, 0, 0, 0)
    while slot != EMPTY:
        emit(out, scalars, _MERGE, MAPPING, key, 0, 0, MAPPING_ENTRY, time)
        slot = m[slot].sibling


@in_place
def expire(m, directory, heap, free, scalars, merging, ends, requests, most, watermark, time, out):
    """End the machines whose time has come. False if there was no room for all that they request."""
    while scalars[HEAP] > 0 and heap[0][0] <= watermark:
        slot = heap[2][0]
        if m[slot].state != ABSORBED:
            if m[slot].expiry > heap[0][0]:
                heap[0][0] = m[slot].expiry
                sink(heap, scalars[HEAP], 0)
                continue
            key = m[slot].key
            others = chain_length(m, find(m, directory, True, key, 0, 0, 0)[0]) if merging else 0
            if scalars[AT] + most + 2 * others + 3 > len(out[0]):
                return False
            if merging:
                emit(out, scalars, _GET, MAPPING, key, 0, 0, 0, time)
            first, count = ends[m[slot].state]
            perform(m, slot, requests, first, count, 0, time, out, scalars)
            unlink(m, directory, merging, slot)
            if merging:  # once for the cleared window and once for the fired one, in Flink's WindowOperator.onEventTime
                remap(m, directory, key, time, out, scalars)
                remap(m, directory, key, time, out, scalars)
        pop(heap, scalars)
        free[scalars[FREE]] = slot
        scalars[FREE] += 1
    return True


@in_place
def join_window(m, directory, heap, free, scalars, runs, ends, requests, event, window, out):
    """An event comes to a key whose windows merge where they touch. The earliest one of those that touch goes on."""
    key, size, time, symbol = event
    start, end, expiry, _ = window
    head, place = find(m, directory, True, key, 0, 0, 0)
    emit(out, scalars, _GET, MAPPING, key, 0, 0, 0, time)
    kept, slot = np.int32(EMPTY), head
    while slot != EMPTY:
        if m[slot].low <= end and start <= m[slot].high and (kept == EMPTY or m[slot].low < m[kept].low):
            kept = slot
        slot = m[slot].sibling
    if kept == EMPTY:
        if expiry <= scalars[WATERMARK]:
            scalars[LATE] += 1
            return
        kept = open_machine(m, directory, place, heap, free, scalars, key, start, end, expiry, 0, head)
        changed = True
    else:
        low, high = min(m[kept].low, start), max(m[kept].high, end)
        slot = head
        while slot != EMPTY:
            following = m[slot].sibling
            if slot != kept and m[slot].low <= end and start <= m[slot].high:
                low, high = min(low, m[slot].low), max(high, m[slot].high)
                content = m[slot].bytes
                first, count = ends[m[slot].state]
                perform(m, slot, requests, first, count, 0, time, out, scalars)
                run(m, kept, runs, requests, symbol, content, time, out, scalars)
                unlink(m, directory, True, slot)
                m[slot].state = ABSORBED
            slot = following
        changed = low != m[kept].low or high != m[kept].high
        m[kept].low, m[kept].high, m[kept].expiry = low, high, high + (expiry - end)
    run(m, kept, runs, requests, symbol, size, time, out, scalars)
    if changed:
        remap(m, directory, key, time, out, scalars)


@in_place
def join_machine(m, directory, heap, free, scalars, runs, requests, event, window, out):
    """An event comes to a state key that it has been assigned to."""
    key, size, time, symbol = event
    start, end, expiry, part = window
    if expiry <= scalars[WATERMARK]:
        scalars[LATE] += 1
        return
    slot, place = find(m, directory, False, key, start, end, part)
    if slot == EMPTY:
        slot = open_machine(m, directory, place, heap, free, scalars, key, start, end, expiry, part, EMPTY)
    run(m, slot, runs, requests, symbol, size, time, out, scalars)


@in_place
def lacking(m, directory, scalars, merging, key, most, out):
    """What there may be too little of for an event: slots, or room for accesses."""
    if scalars[FREE] == 0 and scalars[USED] == len(m):
        return SLOTS_FULL
    others = chain_length(m, find(m, directory, True, key, 0, 0, 0)[0]) if merging else 0
    if scalars[AT] + most * (2 * others + 1) + others + 3 > len(out[0]):
        return OUT_FULL
    return DONE


@in_place
def drive(m, directory, heap, free, scalars, merging, runs, ends, requests, most, rows, block, row, out):
    """Run the machines that events were assigned to, from a row on; the row that is next.

    ``scalars[WHY]`` says whether all is done, or there is no more room for accesses or for machines. Then the call can be
    made again, with room. ``most`` is the largest number of requests in a step.
    """
    number, lows, highs, expires, parts = rows
    keys, sizes, arrivals, symbols, watermarks = block
    while True:
        before = (number[row] if row < len(number) else len(keys)) - 1
        if before >= 0 and watermarks[before] > scalars[WATERMARK]:
            watermark, time = watermarks[before], arrivals[before]
            if not expire(m, directory, heap, free, scalars, merging, ends, requests, most, watermark, time, out):
                scalars[WHY] = OUT_FULL
                return row
            scalars[WATERMARK] = watermark
        if row >= len(number):
            scalars[WHY] = DONE
            return row
        at = number[row]
        scalars[WHY] = lacking(m, directory, scalars, merging, keys[at], most, out)
        if scalars[WHY] != DONE:
            return row
        event, window = (keys[at], sizes[at], arrivals[at], symbols[at]), (lows[row], highs[row], expires[row], parts[row])
        if merging:
            join_window(m, directory, heap, free, scalars, runs, ends, requests, event, window, out)
        else:
            join_machine(m, directory, heap, free, scalars, runs, requests, event, window, out)
        row += 1
