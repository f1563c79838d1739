"""What is compiled of reading a few rows of an extent: which blocks of the file they are on.

The layout of an extent is that of `forebay.store.blocks.layout_of`. numba keeps compiled code until this file changes: who
changes the constants there changes this file, too.
"""

from __future__ import annotations

import numpy as np

from forebay.compiling import compiled, in_place
from forebay.store.blocks import BITS, BLOCK, BYTES


@compiled
def of_rows(layout, rows, count, first, last, known, address):
    """The blocks, between two, that have the values of some of ``count`` rows, or say where these lie.

    Given are those that are not ``known`` to be right, in ascending order, and all of them as parts of memory: address and
    size of each run of neighbours, where ``address`` is that of the file.
    """
    seen = np.zeros(last - first + 1, np.uint8)
    for column in range(len(layout)):
        kind, width, validity, values = layout[column, 0], layout[column, 1], layout[column, 2], layout[column, 3]
        if kind == BYTES:  # Arrow looks at the first offset and at the last one to see how much memory it may need
            _mark(seen, first, values, width)
            _mark(seen, first, values + count * width, width)
        if validity >= 0:
            _mark_bits(seen, first, validity, rows)
        if kind == BITS:
            _mark_bits(seen, first, values, rows)
        else:
            _mark_values(seen, first, values, rows, width, 2 * width if kind == BYTES else width)
    return _found(seen, first, known, address)


@compiled
def of_values(layout, rows, first, last, known, address, data):
    """The blocks, between two, that have the bytes to which some rows' offsets lead; as `of_rows` gives them."""
    seen = np.zeros(last - first + 1, np.uint8)
    for column in range(len(layout)):
        if layout[column, 0] != BYTES:
            continue
        width, offsets, values = layout[column, 1], layout[column, 3], layout[column, 4]
        for row in rows:
            begin, end = np.int64(0), np.int64(0)
            for byte in range(width):
                begin += np.int64(data[offsets + row * width + byte]) << 8 * byte
                end += np.int64(data[offsets + (row + 1) * width + byte]) << 8 * byte
            _mark(seen, first, values + begin, end - begin)
    return _found(seen, first, known, address)


@in_place
def _mark_bits(seen, first, begin, rows):
    """Mark the blocks of some rows' bits."""
    for row in rows:
        seen[(begin + (row >> 3)) // BLOCK - first] = 1


@in_place
def _mark_values(seen, first, begin, rows, width, length):
    """Mark the blocks of some rows' values: ``length`` bytes each, and ``width`` bytes from one value to the next.

    A value is on two blocks at most unless it is longer than a block, so nearly always no loop over the blocks is needed.
    """
    if length > BLOCK:
        for row in rows:
            _mark(seen, first, begin + row * width, length)
    else:
        for row in rows:
            at = begin + row * width
            seen[at // BLOCK - first] = 1
            seen[(at + length - 1) // BLOCK - first] = 1


@in_place
def _mark(seen, first, begin, length):
    for block in range(max(0, begin // BLOCK - first), min(len(seen), (begin + length - 1) // BLOCK + 1 - first)):
        seen[block] = 1


@compiled
def _found(seen, first, known, address):
    unknown, parts, count, runs = np.empty(len(seen), np.int64), np.empty((len(seen), 2), np.int64), 0, 0
    for place in range(len(seen)):
        if not seen[place]:
            continue
        if not known[first + place]:
            unknown[count] = first + place
            count += 1
        if runs and parts[runs - 1, 0] + parts[runs - 1, 1] == address + (first + place) * BLOCK:
            parts[runs - 1, 1] += BLOCK
        else:
            parts[runs, 0], parts[runs, 1] = address + (first + place) * BLOCK, BLOCK
            runs += 1
    return unknown[:count], parts[:runs]
