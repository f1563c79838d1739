"""The results of several patterns: as one operator gives them, in columns that patterns share, and as users see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.aggregates.functions import Condition
from forebay.engine.plan import in_common
from forebay.errors import InvalidArgument
from forebay.spark.driver.conditions import matching_where
from forebay.state.layout import key_names

PATTERN = "pattern"
"""The column of results that has the name of the pattern that a result is of."""


@dataclass(frozen=True)
class SharedResults:
    """The results of several patterns.

    Attributes
    ----------
    given : StructType
        The columns that the operator gives: the name of the pattern, the common keys, and what patterns share. A column for
        each of a pattern's own would be nearly empty, and cost as much for each row.
    places : list of tuple of int
        For each pattern, which of these its own are.
    keys : list of Column
        The common keys as users see them.
    own : dict of str to list of Column
        The other columns of each pattern as users see them, by the pattern's name.
    """

    given: T.StructType
    places: list[tuple[int, ...]]
    keys: list[Column]
    own: dict[str, list[Column]]

    @property
    def columns(self) -> list[Column]:
        """What users see: a struct of its own columns for each pattern, which is NULL in the results of others."""
        structs = [F.when(F.col(PATTERN) == name, F.struct(*own)).alias(name) for name, own in self.own.items()]
        return [F.col(PATTERN), *self.keys, *structs]

    def matching(self, results: DataFrame, name: str, conditions: Sequence[Condition]) -> DataFrame:
        """Results as the operator gives them, of a pattern only those for which all conditions are true."""
        seen = results.select(*self.keys, *self.own[name])
        before = "_" * max(map(len, seen.columns))  # no column that a user sees has such a name
        hidden = [F.col(column).alias(before + column) for column in results.columns]
        beside = results.select(*hidden, *self.keys, *self.own[name])
        kept = matching_where(F.col(before + PATTERN) == name, beside, conditions, seen)
        return kept.select(*(F.col(before + column).alias(column) for column in results.columns))


def shared_results(
    common: Sequence[T.StructField], own: Mapping[str, Sequence[T.StructField]], fold: Callable[[str], str]
) -> SharedResults:
    """The results of patterns with these columns, by the patterns' names, beside common keys.

    ``fold`` makes names equal that are of one column.

    Raises
    ------
    InvalidArgument
        If two columns would have one name.
    """
    for name, fields in own.items():
        _require_distinct(f"results of the pattern {name!r}", [*common, *fields], fold)
    every = [T.StructField(PATTERN, T.StringType()), *common, *(_named(name) for name in own)]
    _require_distinct("the results", every, fold)
    described = [[(field.dataType, place == 0) for place, field in enumerate(fields)] for fields in own.values()]
    kinds, places = in_common(described, 1 + len(common))
    marks = {each[0]: fields[0].metadata for each, fields in zip(places, own.values(), strict=True)}  # they are windows
    names = key_names(len(common))
    keys = [T.StructField(name, field.dataType) for name, field in zip(names, common, strict=True)]
    shared = [
        T.StructField(f"p{place}", kind, metadata=marks.get(place)) for place, (kind, _) in enumerate(kinds, 1 + len(common))
    ]
    seen = {
        name: [F.col(f"p{at}").alias(field.name, metadata=field.metadata) for at, field in zip(each, fields, strict=True)]
        for (name, fields), each in zip(own.items(), places, strict=True)
    }
    named = [F.col(name).alias(field.name) for name, field in zip(names, common, strict=True)]
    return SharedResults(T.StructType([T.StructField(PATTERN, T.StringType()), *keys, *shared]), places, named, seen)


def _named(name: str) -> T.StructField:
    return T.StructField(name, T.StructType())


def _require_distinct(what: str, fields: Sequence[T.StructField], fold: Callable[[str], str]) -> None:
    seen: set[str] = set()
    for name in (field.name for field in fields):
        if fold(name) in seen:
            raise InvalidArgument(f"{what} would have two columns {name!r}; give one of them another name")
        seen.add(fold(name))
