"""Counts of values: exact ones, and those of the most frequent values alone (Misra and Gries, 1982).

A state is a list of values, each with a count. Where it may have at most m values and has more, the count of the one at
place m + 1 is taken from all, and values without a count go (Agarwal et al., Mergeable Summaries, 2012). So a count is never
too large, and too small by at most the number of rows over m + 1.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.aggregates.grouping import Groups, Integers, arranged

ITEM, COUNT = "item", "count"

PLACE = "place"
"""The place of a list among others, where their values are one column."""


def states(groups: Groups, values: pl.Series, most: int | None = None) -> pl.Series:
    """How often each value occurs in each group: lists of structs of `ITEM` and `COUNT`.

    They are in order of arrival. With ``most`` there are so many at most, in order of their counts, the largest first.

    Examples
    --------
    >>> groups, _ = Groups.of(pl.DataFrame({"key": [7, 3, 7, 7, 7]}), ["key"])
    >>> values = pl.Series(["a", "b", "c", "a", "a"])
    >>> states(groups, values).to_list()
    [[{'item': 'a', 'count': 3}, {'item': 'c', 'count': 1}], [{'item': 'b', 'count': 1}]]
    >>> states(groups, values, most=1).to_list()
    [[{'item': 'a', 'count': 2}], [{'item': 'b', 'count': 1}]]
    """
    return counted(groups.numbers, values, len(groups), most)


def merged(groups: Groups, lists: pl.Series, most: int | None = None) -> pl.Series:
    """Such lists merged by group."""
    flat = exploded(lists)
    return counted(groups.numbers[flat[PLACE].to_numpy()], flat[ITEM], len(groups), most, flat[COUNT])


def counted(
    owners: Integers, items: pl.Series, lists: int, most: int | None = None, weights: pl.Series | None = None
) -> pl.Series:
    """So many lists as `states` gives, of values that have owners; with ``weights`` each value stands for so many."""
    flat = pl.DataFrame({PLACE: owners, ITEM: items, COUNT: np.ones(len(owners), np.int64) if weights is None else weights})
    same, columns = Groups.of(flat, (PLACE, ITEM))
    found = pl.DataFrame(columns | {COUNT: same.sums(flat[COUNT])})
    if most is not None:
        found = _most_frequent(found, lists, most)
    order, ends = arranged(found[PLACE].to_numpy().astype(np.int32), lists)
    items = pa.StructArray.from_arrays([arrow.of(found[name][order]) for name in (ITEM, COUNT)], [ITEM, COUNT])
    return arrow.lists(items, ends)


def _most_frequent(found: pl.DataFrame, lists: int, most: int) -> pl.DataFrame:
    """The values that have a count when that of the one at place ``most`` + 1 is taken from those of all in their list."""
    places, counts = found[PLACE].to_numpy(), found[COUNT].to_numpy()
    order = np.lexsort((-counts, places))
    counts, sizes = counts[order], np.bincount(places, minlength=lists)
    begins = np.cumsum(sizes) - sizes
    larger = sizes > most
    beyond = np.zeros(lists, np.int64)
    beyond[larger] = counts[begins[larger] + most]
    left = counts - np.repeat(beyond, sizes)
    return found[order].with_columns(pl.Series(COUNT, left)).filter(pl.Series(left > 0))


def exploded(lists: pl.Series) -> pl.DataFrame:
    """The values of all lists with their counts, and the place of each one's list.

    Examples
    --------
    >>> exploded(pl.Series([[{"item": "a", "count": 2}], [], [{"item": "b", "count": 1}]])).rows()
    [(0, 'a', 2), (2, 'b', 1)]
    """
    flat = pl.DataFrame({PLACE: pl.int_range(len(lists), dtype=pl.Int64, eager=True), "all": lists})
    return flat.filter(pl.col("all").list.len() > 0).explode("all").unnest("all")
