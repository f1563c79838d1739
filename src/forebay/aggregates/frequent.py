"""Counts of values: exact ones, and those of the most frequent values alone (Misra and Gries, 1982).

A state is a list of values, each with a count. Where it may have at most m values and has more, the count of the one at
place m + 1 is taken from all, and values without a count go (Agarwal et al., Mergeable Summaries, 2012). So a count is never
too large, and too small by at most the number of rows over m + 1.
"""

from __future__ import annotations

import polars as pl

ITEM, COUNT = "item", "count"

PLACE = "place"
"""The place of a list among others, where their values are one column."""


def counts(values: pl.Expr) -> pl.Expr:
    """How often each value occurs, in order of arrival: an expression over a group."""
    items = values.unique(maintain_order=True)
    return pl.struct(items.alias(ITEM), values.unique_counts().cast(pl.Int64).alias(COUNT))


def exploded(lists: pl.Series) -> pl.DataFrame:
    """The values of all lists with their counts, and the place of each one's list.

    Examples
    --------
    >>> exploded(pl.Series([[{"item": "a", "count": 2}], [], [{"item": "b", "count": 1}]])).rows()
    [(0, 'a', 2), (2, 'b', 1)]
    """
    flat = pl.DataFrame({PLACE: pl.int_range(len(lists), dtype=pl.Int64, eager=True), "all": lists})
    return flat.filter(pl.col("all").list.len() > 0).explode("all").unnest("all")


def merged(lists: pl.Series, most: int | None = None) -> pl.Series:
    """Lists of values with their counts, in which each value is there once, and at most ``most`` of them.

    They are in order of arrival; with ``most`` in order of their counts, the largest first.

    Examples
    --------
    >>> twice = [{"item": "a", "count": 1}, {"item": "b", "count": 5}, {"item": "a", "count": 2}]
    >>> merged(pl.Series([twice])).to_list()
    [[{'item': 'a', 'count': 3}, {'item': 'b', 'count': 5}]]
    >>> merged(pl.Series([twice]), most=1).to_list()
    [[{'item': 'b', 'count': 2}]]
    """
    flat = exploded(lists).group_by(PLACE, ITEM, maintain_order=True).agg(pl.col(COUNT).sum())
    if most is not None:
        flat = flat.sort(PLACE, COUNT, descending=[False, True], maintain_order=True)
        beyond = pl.col(COUNT).get(most, null_on_oob=True).fill_null(0)
        flat = flat.with_columns((pl.col(COUNT) - beyond).over(PLACE)).filter(pl.col(COUNT) > 0)
    lists_of_all = flat.group_by(PLACE, maintain_order=True).agg(pl.struct(ITEM, COUNT).alias("all"))
    rows = pl.DataFrame({PLACE: pl.int_range(len(lists), dtype=pl.Int64, eager=True)})
    found = rows.join(lists_of_all, on=PLACE, how="left", maintain_order="left")["all"]
    return found.fill_null([]).alias(lists.name)
