"""KLL sketches of quantiles (Karnin, Lang, Liberty, 2016), which Spark and Apache DataSketches can read.

A state is a list of items: a value, and a level. A value of level h stands for 2^h values. When there are more items than
the levels together have room for, the lowest level that is too large is sorted and every other of its values goes up one
level. Which half goes is drawn from the values themselves, so that a task that runs again makes the same bytes.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.aggregates.grouping import Groups, arranged
from forebay.compiling import compiled, read_only

VALUE, LEVEL = "value", "level"

Values = npt.NDArray[np.generic]
Levels = npt.NDArray[np.uint8]
Ends = npt.NDArray[np.int64]

_LEAST = 8
"""Room that a level has at least (the parameter m)."""

_FAMILY = 15
_SORTED_BELOW, _EMPTY, _SINGLE = 2, 1, 4


def k_of(accuracy: float) -> int:
    """The ``k`` at which ranks are wrong by at most ``1 / accuracy`` in 99 of 100 sketches, between 8 and 65535.

    The largest one gives about 1 / 21,000.

    Examples
    --------
    >>> k_of(75)
    200
    """
    return int(np.clip(np.ceil((2.296 * accuracy) ** (1 / 0.9723)), _LEAST, 65_535))


def states(k: int, groups: Groups, values: pl.Series) -> pl.Series:
    """The sketch of size ``k`` of the values of each group that are not NULL: a list of structs of `VALUE` and `LEVEL`.

    Examples
    --------
    >>> groups, _ = Groups.of(pl.DataFrame({"key": [7, 3, 7]}), ["key"])
    >>> states(8, groups, pl.Series([0.5, None, 0.25])).to_list()
    [[{'value': 0.25, 'level': 0}, {'value': 0.5, 'level': 0}], []]
    """
    lists = arrow.of(groups.lists(values))
    numbers = lists.values.to_numpy()
    return _compressed(k, numbers, np.zeros(len(numbers), np.uint8), lists.offsets.to_numpy()[1:])


def merged(k: int, groups: Groups, sketches: pl.Series) -> pl.Series:
    """Sketches of that size merged by group."""
    values, levels, ends = _flat(sketches)
    owners = np.repeat(groups.numbers.astype(np.int32), np.diff(ends, prepend=0))
    order, ends = arranged(owners, len(groups))
    return _compressed(k, values[order], levels[order], ends)


def _compressed(k: int, values: Values, levels: Levels, ends: Ends) -> pl.Series:
    """Sketches with at most as many items as they have room for."""
    kept, kept_levels, kept_ends = np.empty_like(values), np.empty_like(levels), np.empty_like(ends)
    total = _compress(*map(read_only, (values, levels, ends)), k, kept, kept_levels, kept_ends)
    items = pa.StructArray.from_arrays([pa.array(kept[:total]), pa.array(kept_levels[:total])], [VALUE, LEVEL])
    return arrow.lists(items, kept_ends)


def quantiles(sketches: pl.Series, ranks: list[float]) -> npt.NDArray[np.float64]:
    """A row for each sketch: of each rank the least value that so large a share of the values is not above; 0 if empty."""
    values, levels, ends = _flat(sketches)
    found: npt.NDArray[Any] = np.zeros((len(ends), len(ranks)), values.dtype)
    _quantiles(values, levels, ends, np.array(ranks, np.float64), found)
    return found


def serialized(sketches: pl.Series, least: pl.Series, most: pl.Series, k: int) -> list[bytes]:
    """Sketches in the compact format of DataSketches."""
    values, levels, ends = _flat(sketches)
    begins = np.concatenate([[0], ends[:-1]])
    extremes = least.fill_null(0).to_numpy(), most.fill_null(0).to_numpy()  # with NULLs integers would become floats
    return [
        _bytes(values[begin:end], levels[begin:end], k, (extremes[0][place], extremes[1][place]))
        for place, (begin, end) in enumerate(zip(begins, ends, strict=True))
    ]


def _bytes(values: Values, levels: Levels, k: int, extremes: tuple[np.generic, np.generic]) -> bytes:
    if not len(values):
        return struct.pack("<BBBBHBB", 2, 1, _FAMILY, _EMPTY, k, _LEAST, 0)
    if len(values) == 1 and levels[0] == 0:
        return struct.pack("<BBBBHBB", 2, 2, _FAMILY, _SINGLE, k, _LEAST, 0) + values.tobytes()
    number = int(levels.max()) + 1
    sizes = np.bincount(levels, minlength=number)
    count = int((sizes << np.arange(number)).sum())
    begins = _room(k, number) - np.cumsum(sizes[::-1])[::-1]
    head = struct.pack("<BBBBHBBQHBB", 5, 1, _FAMILY, _SORTED_BELOW, k, _LEAST, 0, count, k, number, 0)
    pair = np.array(extremes, values.dtype)
    return b"".join([head, begins.astype("<i4").tobytes(), pair.tobytes(), values.tobytes()])


def _flat(sketches: pl.Series) -> tuple[Values, Levels, Ends]:
    items, sizes = arrow.elements(sketches)
    return items.struct.field(VALUE).to_numpy(), items.struct.field(LEVEL).to_numpy(), np.cumsum(sizes)


@compiled
def _level_room(k, number, level):
    """About k * (2/3) ** depth, rounded as DataSketches does."""
    depth = number - level - 1
    return max(_LEAST, ((2 * k << depth) // 3**depth + 1) // 2) if depth < 31 else _LEAST


@compiled
def _room(k, number):
    """How many items a sketch of so many levels holds at most."""
    total = 0
    for level in range(number):
        total += _level_room(k, number, level)
    return total


@compiled
def _drawn(values):
    """0 or 1, from the bits of some values."""
    state = np.uint64(len(values))
    for word in values.view(np.uint64):
        state = (state ^ word) * np.uint64(0x9E3779B97F4A7C15)
        state ^= state >> np.uint64(29)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    return np.int64(state >> np.uint64(63))


@compiled
def _compress(values, levels, ends, k, kept, kept_levels, kept_ends):
    begin = written = 0
    room = _room(k, 1)
    for sketch in range(len(ends)):
        items, item_levels = values[begin : ends[sketch]], levels[begin : ends[sketch]]
        begin = ends[sketch]
        if len(items) <= room and not np.any(item_levels):
            kept[written : written + len(items)] = items
            kept_levels[written : written + len(items)] = 0
            kept[written : written + len(items)].sort()
            written += len(items)
            kept_ends[sketch] = written
            continue
        while True:
            number = 1
            for level in item_levels:
                number = max(number, level + 1)
            fits = len(items) <= _room(k, number)
            items, item_levels = _pass(items, item_levels, k, number)
            if fits:
                break
        kept[written : written + len(items)] = items
        kept_levels[written : written + len(items)] = item_levels
        written += len(items)
        kept_ends[sketch] = written
    return written


@compiled
def _pass(items, levels, k, number):
    """Sort each level; while there are too many items, halve levels that are too large, from the lowest on."""
    left = len(items)
    done, done_levels = np.empty_like(items), np.empty_like(levels)
    written = 0
    promoted = items[:0].copy()
    level = 0
    while level < number:
        here = np.sort(np.concatenate((items[levels == level], promoted)))
        promoted = items[:0].copy()
        if left > _room(k, number) and len(here) > _level_room(k, number, level):
            odd = len(here) % 2
            promoted = here[odd + _drawn(here) :: 2].copy()
            left -= len(here) // 2
            here = here[:odd]
            number = max(number, level + 2)
        done[written : written + len(here)] = here
        done_levels[written : written + len(here)] = level
        written += len(here)
        level += 1
    return done[:written].copy(), done_levels[:written].copy()


@compiled
def _quantiles(values, levels, ends, ranks, found):
    begin = 0
    for sketch in range(len(ends)):
        items, item_levels = values[begin : ends[sketch]], levels[begin : ends[sketch]]
        begin = ends[sketch]
        if not len(items):
            continue
        order = np.argsort(items, kind="mergesort")
        reached = np.cumsum(1 << item_levels[order].astype(np.int64))
        for place in range(len(ranks)):
            wanted = np.int64(max(1, np.ceil(ranks[place] * reached[-1])))
            found[sketch, place] = items[order[np.searchsorted(reached, wanted)]]
