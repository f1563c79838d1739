"""What is compiled of aggregates over frames that move: each row enters once and leaves once.

Frames are ranges ``[begins[i], ends[i])`` of rows, none empty, whose begins and ends never fall.
"""

from __future__ import annotations

import numpy as np

from forebay.compiling import compiled, in_place


@compiled
def extremes(codes, valid, begins, ends):
    """The row with the largest code in each frame, the last of several; -1 if there is none that is valid.

    Rows that can still be the largest of a frame wait in a queue, in falling order of their codes.
    """
    found = np.empty(len(begins), np.int64)
    queue = np.empty(len(codes), np.int64)
    head = tail = following = 0
    for frame in range(len(begins)):
        begin, end = begins[frame], ends[frame]
        following = max(following, begin)
        while following < end:
            if valid[following]:
                while tail > head and codes[queue[tail - 1]] <= codes[following]:
                    tail -= 1
                queue[tail] = following
                tail += 1
            following += 1
        while head < tail and queue[head] < begin:
            head += 1
        found[frame] = queue[head] if head < tail else -1
    return found


@compiled
def sums(values, begins, ends):
    """The sum of each frame, of which nothing is ever subtracted: two stacks.

    ``front`` has the sums from each row to the middle, and ``back`` is the sum from there to the end of the frame. When the
    frame has passed the middle, its end becomes the middle.
    """
    found = np.empty(len(begins))
    front = np.empty(len(values))
    middle = following = 0
    back = 0.0
    for frame in range(len(begins)):
        begin, end = begins[frame], ends[frame]
        following = max(following, begin)
        while following < end:
            back += values[following]
            following += 1
        if begin >= middle:
            back = 0.0
            for row in range(end - 1, begin - 1, -1):
                back += values[row]
                front[row] = back
            middle, back = end, 0.0
        found[frame] = front[begin] + back
    return found


@compiled
def moments(values, valid, begins, ends):
    """Number, and sum of squared deviations from the mean, of the valid values of each frame: two stacks, as in `sums`."""
    counts, squares = np.empty(len(begins)), np.empty(len(begins))
    front = np.empty((len(values), 3))
    middle = following = 0
    back = (0.0, 0.0, 0.0)
    for frame in range(len(begins)):
        begin, end = begins[frame], ends[frame]
        following = max(following, begin)
        while following < end:
            if valid[following]:
                back = combined(back, (1.0, values[following], values[following] - values[following]))  # NaN if infinite
            following += 1
        if begin >= middle:
            back = (0.0, 0.0, 0.0)
            for row in range(end - 1, begin - 1, -1):
                if valid[row]:
                    back = combined(back, (1.0, values[row], values[row] - values[row]))  # the same
                front[row, 0], front[row, 1], front[row, 2] = back
            middle, back = end, (0.0, 0.0, 0.0)
        counts[frame], _, squares[frame] = combined((front[begin, 0], front[begin, 1], front[begin, 2]), back)
    return counts, squares


@compiled
def combined(one, other):
    """Number, mean and squared deviations of two sets of values together (Chan, Golub and LeVeque)."""
    n = one[0] + other[0]
    if n == 0.0 or other[0] == 0.0:
        return one
    if one[0] == 0.0:
        return other
    delta = other[1] - one[1]
    return n, one[1] + delta * (other[0] / n), one[2] + other[2] + delta * delta * (one[0] * other[0] / n)


@compiled
def distinct(codes, valid, begins, ends):
    """How many different codes the valid rows of each frame have; codes are below the number of rows."""
    found = np.empty(len(begins), np.int64)
    times = np.zeros(len(codes), np.int64)
    leaving = following = different = 0
    for frame in range(len(begins)):
        begin, end = begins[frame], ends[frame]
        while following < end:
            if valid[following]:
                different += times[codes[following]] == 0
                times[codes[following]] += 1
            following += 1
        while leaving < begin:
            if valid[leaving]:
                times[codes[leaving]] -= 1
                different -= times[codes[leaving]] == 0
            leaving += 1
        found[frame] = different
    return found


@compiled
def modes(codes, valid, begins, ends, most):
    """The code that most valid rows of each frame have, the smallest of several; -1 if there is none.

    Codes are below ``most``. A tree of them has in each node the winner of those below it.
    """
    found = np.empty(len(begins), np.int64)
    leaves = 1
    while leaves < most:
        leaves *= 2
    times = np.zeros(leaves, np.int64)
    winners = np.zeros(2 * leaves, np.int64)
    for code in range(leaves):
        winners[leaves + code] = code
    for node in range(leaves - 1, 0, -1):
        winners[node] = winners[2 * node]
    leaving = following = 0
    for frame in range(len(begins)):
        begin, end = begins[frame], ends[frame]
        while following < end:
            if valid[following]:
                counted(times, winners, codes[following], 1)
            following += 1
        while leaving < begin:
            if valid[leaving]:
                counted(times, winners, codes[leaving], -1)
            leaving += 1
        found[frame] = winners[1] if times[winners[1]] > 0 else -1
    return found


@in_place
def counted(times, winners, code, change):
    """A code occurs more, or less, often; the winners above it follow."""
    times[code] += change
    node = (len(times) + code) // 2
    while node > 0:
        left, right = winners[2 * node], winners[2 * node + 1]
        winners[node] = right if times[right] > times[left] else left
        node //= 2


@compiled
def percentiles(ranks, valid, values, begins, ends, percentages):
    """Interpolated percentiles of the valid rows of each frame, and how many of them there are.

    ``ranks`` are positions in the sorted ``values``. A Fenwick tree counts the rows of each rank.
    """
    found = np.zeros((len(begins), len(percentages)))
    sizes = np.zeros(len(begins), np.int64)
    top = 1
    while top * 2 <= len(values):
        top *= 2
    tree = np.zeros(len(values) + 1, np.int64)
    leaving = following = size = 0
    for frame in range(len(begins)):
        begin, end = begins[frame], ends[frame]
        while following < end:
            if valid[following]:
                shifted(tree, ranks[following], 1)
                size += 1
            following += 1
        while leaving < begin:
            if valid[leaving]:
                shifted(tree, ranks[leaving], -1)
                size -= 1
            leaving += 1
        sizes[frame] = size
        if size > 0:
            for place in range(len(percentages)):
                position = (size - 1) * percentages[place]
                lower = int(np.floor(position))
                below = values[ranked(tree, top, lower)]
                above = below if position == lower else values[ranked(tree, top, lower + 1)]
                found[frame, place] = below if below == above else below + (above - below) * (position - lower)
    return found, sizes


@in_place
def shifted(tree, rank, change):
    """A rank has more, or fewer, rows."""
    node = rank + 1
    while node < len(tree):
        tree[node] += change
        node += node & -node


@in_place
def ranked(tree, top, place):
    """The rank of the row that has so many before it."""
    node = 0
    step = top
    while step > 0:
        if node + step < len(tree) and tree[node + step] <= place:
            node += step
            place -= tree[node]
        step //= 2
    return node
