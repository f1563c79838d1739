"""The results of several patterns: as one operator gives them, in columns that patterns share, and as users see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.engine.plan import in_common
from forebay.errors import InvalidArgument

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
    columns : list of Column
        What users see of these: a struct of its own columns for each pattern, which is NULL in the results of others.
    """

    given: T.StructType
    places: list[tuple[int, ...]]
    columns: list[Column]


def shared_results(common: Sequence[T.StructField], own: Mapping[str, Sequence[T.StructField]]) -> SharedResults:
    """The results of patterns with these columns, by the patterns' names, beside common keys.

    Raises
    ------
    InvalidArgument
        If two columns would have one name.
    """
    for name, fields in own.items():
        _require_distinct(f"results of the pattern {name!r}", [*common, *fields])
    _require_distinct("the results", [T.StructField(PATTERN, T.StringType()), *common, *(_named(name) for name in own)])
    described = [[(field.dataType, place == 0) for place, field in enumerate(fields)] for fields in own.values()]
    kinds, places = in_common(described, 1 + len(common))
    marks = {each[0]: fields[0].metadata for each, fields in zip(places, own.values(), strict=True)}  # they are windows
    keys = [T.StructField(f"k{place}", field.dataType) for place, field in enumerate(common)]
    shared = [
        T.StructField(f"p{place}", kind, metadata=marks.get(place)) for place, (kind, _) in enumerate(kinds, 1 + len(common))
    ]
    columns = [F.col(PATTERN), *(F.col(f"k{place}").alias(field.name) for place, field in enumerate(common))]
    for (name, fields), each in zip(own.items(), places, strict=True):
        values = (
            F.col(f"p{place}").alias(field.name, metadata=field.metadata) for place, field in zip(each, fields, strict=True)
        )
        columns.append(F.when(F.col(PATTERN) == name, F.struct(*values)).alias(name))
    return SharedResults(T.StructType([T.StructField(PATTERN, T.StringType()), *keys, *shared]), places, columns)


def _named(name: str) -> T.StructField:
    return T.StructField(name, T.StructType())


def _require_distinct(what: str, fields: Sequence[T.StructField]) -> None:
    seen: set[str] = set()
    for name in (field.name for field in fields):
        if name.lower() in seen:
            raise InvalidArgument(f"{what} would have two columns {name!r}; give one of them another name")
        seen.add(name.lower())
