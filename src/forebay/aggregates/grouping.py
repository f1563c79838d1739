"""Rows by key: which rows are of one group, compiled where keys are columns of numbers.

polars groups any rows and aggregates them by any expression, and takes longer for that: it keeps a list for each group, and
makes a plan for each call. What loops can aggregate they aggregate in either case.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from forebay import arrow
from forebay.aggregates.murmur import mixed
from forebay.compiling import compiled, read_only

_MOST_ROWS = 1 << 30
"""So that the table's places, and the numbers of groups in it, are 32-bit integers."""

_DENSE = 4
"""A table by number in place of a hash table may have so many places for each row."""

SEEDS = np.array([secrets.randbits(64), secrets.randbits(64) | 1], np.uint64)
"""Keys come from outside: without these, whoever chooses them could choose such as have one place in the table."""

_PLACE, _NO_KEY = "place of the row", "no key"
"""Columns beside those of the rows, which have no such names."""

_NONE: Mapping[str, pl.Expr] = {}

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """The groups of some rows, in order of arrival, and the rows of each group, too.

    Attributes
    ----------
    order : array
        The rows' positions, group after group.
    ends : array
        Where the positions of each group end in ``order``.
    """

    order: Integers
    ends: Integers

    @classmethod
    def of(
        cls, rows: pl.DataFrame, by: Sequence[str], expressions: Mapping[str, pl.Expr] = _NONE
    ) -> tuple[Groups, dict[str, pl.Series]]:
        """Groups of rows that are equal in some columns; these columns of each group, and what expressions give for it.

        Groups are in order of arrival: a task that runs again must give the same bytes, see note 12.

        Examples
        --------
        >>> rows = pl.DataFrame({"key": [7, 3, 7], "x": [1, 2, 4]})
        >>> groups, found = Groups.of(rows, ["key"], {"most": pl.max("x")})
        >>> groups.order.tolist(), groups.ends.tolist(), pl.DataFrame(found).rows()
        ([0, 2, 1], [2, 3], [(7, 4), (3, 2)])
        """
        if by and not expressions and 0 < rows.height < _MOST_ROWS:
            columns = [numbers for numbers in (_numbers(rows[name]) for name in by) if numbers is not None]
            if len(columns) == len(by):
                groups = cls(*map(read_only, arranged(*numbered(*columns))))
                return groups, {name: groups.first(rows[name]) for name in by}
        beside = {_PLACE: pl.int_range(pl.len(), dtype=pl.Int64)} | ({} if by else {_NO_KEY: pl.lit(0)})
        found = (
            rows.with_columns(**beside).group_by([*by] or _NO_KEY, maintain_order=True).agg(pl.col(_PLACE), **expressions)
        )
        lists = arrow.of(found[_PLACE])
        groups = cls(read_only(lists.values.to_numpy()), read_only(lists.offsets.to_numpy()[1:]))
        return groups, {name: found[name] for name in (*by, *expressions)}

    def __len__(self) -> int:
        return len(self.ends)

    @functools.cached_property
    def begins(self) -> Integers:
        """Where the positions of each group begin in ``order``."""
        return np.concatenate([[0], self.ends])[:-1]

    @functools.cached_property
    def numbers(self) -> Integers:
        """The number of each row's group."""
        numbers = np.empty(len(self.order), np.int64)
        numbers[self.order] = np.repeat(np.arange(len(self)), self.ends - self.begins)
        return numbers

    def counts(self, values: pl.Series | None = None) -> pl.Series:
        """How many values of each group are not NULL; without values, how many rows it has."""
        if values is None or not values.null_count():
            return pl.Series(self.ends - self.begins)
        return self.sums(values.is_not_null().cast(pl.Int64))

    def first(self, values: pl.Series) -> pl.Series:
        """The value in the first row of each group."""
        return _taken(values, self.order[self.begins])

    def last(self, values: pl.Series) -> pl.Series:
        """The value in the last row of each group."""
        return _taken(values, self.order[self.ends - 1])

    def lists(self, values: pl.Series) -> pl.Series:
        """The values of each group that are not NULL."""
        order, ends = self.order, self.ends
        if values.null_count():
            there = values.is_not_null().to_numpy()[order]
            order, ends = order[there], np.cumsum(there)[ends - 1]
        return arrow.lists(arrow.of(_taken(values, order)), ends)

    def sums(self, values: pl.Series) -> pl.Series:
        """Sums of numbers of 64 bits in order of arrival; integers wrap. NULL counts as 0."""
        numbers = (values.fill_null(0) if values.null_count() else values).to_numpy()
        return pl.Series(_summed(read_only(numbers), self.order, self.ends))

    def wide_sums(self, low: Integers, high: Integers) -> tuple[Integers, Integers]:
        """The same of 128-bit integers, which are given by their low and high 64 bits."""
        sums: tuple[Integers, Integers] = _wide_summed(read_only(low), read_only(high), self.order, self.ends)
        return sums

    def moments(self, counts: pl.Series, means: pl.Series, squares: pl.Series) -> tuple[pl.Series, pl.Series]:
        """Means, and sums of squared deviations from them, of sets of values that are merged by group.

        A set without values has NULL or anything else for its mean; a group without values has 0 for both.

        Examples
        --------
        >>> groups, _ = Groups.of(pl.DataFrame({"key": [7, 3, 7]}), ["key"])
        >>> some = pl.Series([2, 1, 1]), pl.Series([3.0, 5.0, 9.0]), pl.Series([8.0, 0.0, 0.0])
        >>> [found.to_list() for found in groups.moments(*some)]
        [[5.0, 5.0], [32.0, 0.0]]
        """
        given = (read_only(each.fill_null(0).to_numpy()) for each in (counts, means, squares))
        merged, deviations = _moments(*given, self.order, self.ends)
        return pl.Series(merged), pl.Series(deviations)

    def least(self, values: pl.Series) -> pl.Series:
        """The least number or instant of each group, NaN where there is no other, NULL where there is none."""
        return self._extremes(np.fmin, values)

    def most(self, values: pl.Series) -> pl.Series:
        """The greatest number or instant of each group, which NaN is; NULL where there is none."""
        return self._extremes(np.maximum, values)

    def _extremes(self, function: np.ufunc, values: pl.Series) -> pl.Series:
        numbers = values.to_physical() if values.dtype.is_temporal() else values
        if values.null_count():
            numbers = numbers.fill_null(_neutral(function, numbers.dtype))
        found = pl.Series(function.reduceat(numbers.to_numpy()[self.order], self.begins))
        if values.null_count():
            found = found.set(self.counts(values) == 0, None)
        return found if found.dtype == values.dtype else found.cast(values.dtype)


def numbered(*columns: Integers) -> tuple[npt.NDArray[np.int32], int]:
    """Groups of rows that are equal in columns of numbers: the number of each row's, in order of arrival, and how many.

    Examples
    --------
    >>> groups, count = numbered(np.array([7, 3, 7, 7]), np.array([1, 1, 1, 2]))
    >>> groups.tolist(), count
    ([0, 1, 0, 2], 3)
    """
    groups, count = np.zeros(len(columns[0]), np.int32), min(1, len(columns[0]))
    for column in columns if count else ():
        groups, count = _refined(groups, count, read_only(column))
    return groups, count


def first_rows(groups: npt.NDArray[np.integer], count: int) -> Integers:
    """The position of the first row of each group.

    Examples
    --------
    >>> first_rows(np.array([0, 1, 0, 2]), 3).tolist()
    [0, 1, 3]
    """
    first: Integers = _first_rows(groups, count)
    return first


def _neutral(function: np.ufunc, dtype: pl.DataType) -> float | int:
    """What changes no extreme."""
    if dtype.is_float():
        return np.nan if function is np.fmin else -np.inf
    limits = np.iinfo(pl.Series([], dtype=dtype).to_numpy().dtype)
    return int(limits.max if function is np.fmin else limits.min)


def _numbers(column: pl.Series) -> Integers | None:
    """A column as 64-bit numbers that are equal where its values are; None where it has others or NULLs."""
    if column.null_count():
        return None
    if column.dtype.is_temporal():
        column = column.to_physical()
    if column.dtype.is_integer() and column.dtype not in (pl.UInt64, pl.Int128, pl.UInt128):
        return column.to_numpy().astype(np.int64, copy=False)
    return None


def _taken(values: pl.Series, order: Integers) -> pl.Series:
    """Values at some positions; polars would make a plan for what numpy does at once."""
    plain = values.dtype.is_integer() or values.dtype.is_float()
    return pl.Series(values.to_numpy()[order]) if plain and not values.null_count() else values.rechunk().gather(order)


def _refined(groups: npt.NDArray[np.int32], count: int, column: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int32], int]:
    """Groups of rows that were in one of ``count`` groups and have one number in a column, and how many groups there are."""
    rows = len(column)
    found = np.empty(rows, np.int32)
    least = int(column.min())
    span = int(column.max()) - least + 1
    if count * span <= _DENSE * rows:
        return found, _number(groups, column, least, span, np.full(count * span, -1, np.int32), found)
    table = np.full(1 << (2 * rows - 1).bit_length(), -1, np.int32)
    return found, _refine(groups, column, SEEDS, table, found, np.empty(rows, np.int32))


@compiled
def _number(groups, column, least, span, table, found):
    """Fill ``found``, where numbers are so close together that the table has a place for each that there may be."""
    count = 0
    for row in range(len(column)):
        place = groups[row] * span + (column[row] - least)
        if table[place] < 0:
            table[place] = count
            count += 1
        found[row] = table[place]
    return count


@compiled
def _first_rows(groups, count):
    """What `first_rows` gives."""
    first = np.empty(count, np.int64)
    for row in range(len(groups) - 1, -1, -1):
        first[groups[row]] = row
    return first


@compiled
def _refine(groups, column, seeds, table, found, firsts):
    """Fill ``found``; the table is searched from the place of a hash on, ``firsts`` has the first row of each group."""
    mask = np.uint64(len(table) - 1)
    count = 0
    for row in range(len(column)):
        value, group = column[row], groups[row]
        hashed = mixed(np.uint64(value) ^ seeds[0]) ^ (np.uint64(group) * seeds[1])
        place = mixed(hashed) & mask
        while True:
            there = table[place]
            if there < 0:
                there = table[place] = count
                firsts[count] = row
                count += 1
                break
            first = firsts[there]
            if column[first] == value and groups[first] == group:
                break
            place = (place + np.uint64(1)) & mask
        found[row] = there
    return count


@compiled
def arranged(groups, count):
    """Positions of rows, group after group, and where those of each group end."""
    ends = np.zeros(count, np.int64)
    for group in groups:
        ends[group] += 1
    places = np.cumsum(ends) - ends
    order = np.empty(len(groups), np.int64)
    for row in range(len(groups)):
        group = groups[row]
        order[places[group]] = row
        places[group] += 1
    return order, places


@compiled
def _summed(values, order, ends):
    """Sums of numbers by group."""
    sums = np.zeros(len(ends), values.dtype)
    begin = 0
    for group in range(len(ends)):
        for place in range(begin, ends[group]):
            sums[group] += values[order[place]]
        begin = ends[group]
    return sums


@compiled
def _moments(counts, means, squares, order, ends):
    """Means and squared deviations by group.

    Means are summed as differences from the first one, so that they are exact where all are equal. What the mean is wrong by
    is in all deviations from it, and is taken from the sum of their squares.
    """
    merged, deviations = np.zeros(len(ends)), np.zeros(len(ends))
    begin = 0
    for group in range(len(ends)):
        number, first, differences = 0, 0.0, 0.0
        for place in range(begin, ends[group]):
            row = order[place]
            if counts[row] > 0:
                first = means[row] if number == 0 else first
                number += counts[row]
                differences += counts[row] * (means[row] - first)
        if number > 0:
            mean = first + differences / number
            square = wrong = 0.0
            for place in range(begin, ends[group]):
                row = order[place]
                if counts[row] > 0:
                    deviation = means[row] - mean
                    square += squares[row] + counts[row] * deviation * deviation
                    wrong += counts[row] * deviation
            if square < np.inf:
                square -= wrong * (wrong / number)
            merged[group], deviations[group] = mean, 0.0 if square < 0.0 else square
        begin = ends[group]
    return merged, deviations


@compiled
def _wide_summed(low, high, order, ends):
    """Sums of 128-bit integers by group."""
    lows, highs = np.zeros(len(ends), np.uint64), np.zeros(len(ends), np.int64)
    begin = 0
    for group in range(len(ends)):
        below, above = np.uint64(0), np.int64(0)
        for place in range(begin, ends[group]):
            word = np.uint64(low[order[place]])
            below += word
            above += high[order[place]] + (1 if below < word else 0)
        lows[group], highs[group] = below, above
        begin = ends[group]
    return lows.view(np.int64), highs
