"""What is compiled of versions of the key index: slots get what a later version has for them."""

from __future__ import annotations

import numpy as np

from forebay.compiling import in_place
from forebay.store.index_kernels import (
    AHEAD,
    BY_END,
    BY_ESTIMATE,
    STORED,
    USED,
    in_directory,
    last_until,
    link_window,
    lower,
    unlink_window,
    vacate,
)


@in_place
def replace_windows(c, directory, earliest, scalars, slots, high, low, start, end, ett, generation, parent, sibling, stored):
    """Slots get the windows that they have in a later version.

    Most are the windows that they had, which keep their place in the chain of their key; then nothing is looked for. Else
    the search goes on from the window of the row before, as in `place_merging`: slots that were taken one after the other
    are neighbours there.
    """
    found, last = 0, np.int32(-1)
    for row in range(len(slots)):
        if row % AHEAD == 0:  # see `look_ahead`
            for other in range(row, min(len(slots), row + AHEAD)):
                found += c[slots[other]].stored
        slot = slots[row]
        listed = slot < scalars[USED] and in_directory(c, slot)
        stays = listed and generation[row] & 1 and parent[row] < 0
        stays = stays and c[slot].low == low[row] and c[slot].high == high[row]
        stays = stays and (c[slot].start == start[row] or (c[slot].newer < 0 and c[slot].older < 0))
        if listed and not stays:
            unlink_window(c, directory, scalars, slot)
        scalars[STORED] += stored[row] - c[slot].stored
        scalars[USED] = max(scalars[USED], slot + 1)
        c[slot].high, c[slot].low = high[row], low[row]
        c[slot].start, c[slot].end, c[slot].ett = start[row], end[row], ett[row]
        c[slot].generation, c[slot].stored = generation[row], stored[row]
        c[slot].parent, c[slot].sibling = parent[row], sibling[row]
        if in_directory(c, slot):
            lower(earliest, BY_END, slot, end[row])
            lower(earliest, BY_ESTIMATE, slot, ett[row])
            if not stays:
                older, newer, place, _ = last_until(c, directory, last, high[row], low[row], start[row])
                link_window(c, directory, scalars, place, newer, slot, older)
            last = slot
    return found


@in_place
def replace_free(c, directory, scalars, slots, generation):
    """No windows live in slots any more in a later version."""
    for row in range(len(slots)):
        slot = slots[row]
        if slot < scalars[USED] and in_directory(c, slot):
            unlink_window(c, directory, scalars, slot)
        scalars[USED] = max(scalars[USED], slot + 1)
        c[slot].generation = generation[row]
        vacate(c, scalars, slot)
