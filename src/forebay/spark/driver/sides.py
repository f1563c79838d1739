"""Two DataFrames as one: their rows under common columns, each with a mark of its side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.errors import ForebayError, InvalidArgument, UnknownColumn
from forebay.spark.driver.analysis import require_columns, time_of
from forebay.spark.driver.columns import folding, keys_of, quoted
from forebay.spark.driver.conf import require_classic
from forebay.spark.driver.inputs import nullable_within, require_supported

JoinType = Literal["inner", "left", "right", "full", "semi", "anti"]
_ALSO: dict[str, JoinType] = {
    "outer": "full",
    "fullouter": "full",
    "leftouter": "left",
    "rightouter": "right",
    "leftsemi": "semi",
    "leftanti": "anti",
}

WINDOWS = ("window", "session_window")
"""Columns of either side that give way to the window of the join."""

SIDE = "__right"
"""True in rows of the right side."""

TIME = "__time"

TimeColumn = Column | str | None

Columns = tuple[tuple[str, T.StructField], ...]
"""Common columns, and what each is in the result."""


@dataclass(frozen=True)
class Sides:
    """What a join makes of its rows.

    Attributes
    ----------
    how : str
        The kind of join.
    left, right : tuple of pairs
        The columns of each side: the common column that holds it, and its field in the result.
    """

    how: JoinType
    left: Columns
    right: Columns

    @property
    def columns(self) -> list[str]:
        """The common columns."""
        return list(dict.fromkeys(name for name, _ in (*self.left, *self.right)))

    @property
    def fields(self) -> list[T.StructField]:
        """The fields of the result, after the window and the keys."""
        fields = (field for _, field in (*self.left, *self.right))
        return [nullable_within(T.StructField(field.name, field.dataType)) for field in fields]

    def rows(self, on: Sequence[str]) -> list[Column]:
        """The columns of the result without a window, of rows of either side that have met nobody."""
        sides = ((~F.col(SIDE), self.left), (F.col(SIDE), self.right))
        mine = [F.when(of_side, F.col(name)).alias(field.name) for of_side, side in sides for name, field in side]
        return [*(F.col(quoted(key)) for key in on), *mine]

    @property
    def reads(self) -> dict[str, list[str]]:
        """What the join reads, as a layout tells it."""
        sides = (("left", self.left), ("right", self.right))
        return {f"join({self.how})": []} | {f"{side}.{f.name}": [name] for side, names in sides for name, f in names}


def united(
    left: DataFrame,
    right: DataFrame,
    on: Sequence[str],
    times: tuple[Column, Column],
    how: JoinType,
    suffix: str,
    result: Sequence[str] = WINDOWS,
    marks: Mapping[str, tuple[Column, Column]] | None = None,
) -> tuple[DataFrame, Sides]:
    """The rows of both sides with the columns ``on``, `TIME`, `SIDE`, ``marks`` and common columns, and what is in which.

    A column of one side shares its common column with one of the other side that has the same type. Those whose names
    ``result`` has give way to columns of the result.
    """
    if not isinstance(suffix, str):
        raise InvalidArgument(f"suffix is {suffix!r}; it is a text that is put behind a name that both sides have")
    fold = folding(left.sparkSession)
    taken = {fold(name) for name in (*on, *result)}
    fields = [[f for f in df.schema.fields if fold(f.name) not in taken] for df in (left, right)]
    if how in ("semi", "anti"):
        fields[1] = []
    for field in (*fields[0], *fields[1]):
        require_supported(field.dataType, field.name)
    common = _Common()
    names = [common.names_of(of_side) for of_side in fields]
    taken = {fold(name) for name in (*on, *(field.name for field in fields[0]))}
    renamed = [
        T.StructField(f.name + suffix if fold(f.name) in taken else f.name, f.dataType, metadata=f.metadata)
        for f in fields[1]
    ]
    sides = Sides(how, tuple(zip(names[0], fields[0], strict=True)), tuple(zip(names[1], renamed, strict=True)))
    results = [fold(name) for name in (*on, *result, *(field.name for field in sides.fields))]
    repeated = [name for name, count in Counter(results).items() if count > 1]
    if repeated:
        raise InvalidArgument(f"the result would have two columns {repeated[0]!r}; rename one, or give another suffix")
    own = {fold(name) for name in (TIME, SIDE, *(marks or ()), *common.types)}
    for name in on:
        if fold(name) in own:
            raise InvalidArgument(f"the key {name!r} has the name of a column that the join makes for itself; rename it")
    parts = []
    for of_right, df in enumerate((left, right)):
        empty = {name: F.lit(None).cast(kind) for name, kind in common.types.items()}
        held = {name: F.col(quoted(field.name)) for name, field in zip(names[of_right], fields[of_right], strict=True)}
        own_columns = {
            TIME: times[of_right],
            SIDE: F.lit(bool(of_right)),
            **{name: mark[of_right] for name, mark in (marks or {}).items()},
            **empty,
            **held,
        }
        keys = (F.col(quoted(name)) for name in on)
        parts.append(df.select(*keys, *(column.alias(name) for name, column in own_columns.items())))
    return parts[0].union(parts[1]), sides


class _Common:
    """The columns that both sides share: a column of one side has that of a column of the other that has its type."""

    def __init__(self) -> None:
        self.types: dict[str, T.DataType] = {}
        self._names: dict[tuple[str, int], str] = {}

    def names_of(self, fields: Sequence[T.StructField]) -> list[str]:
        """The names of the common columns that hold those of a side."""
        seen: Counter[str] = Counter()
        names = []
        for field in fields:
            kind = field.dataType.simpleString()
            names.append(self._names.setdefault((kind, seen[kind]), f"__{len(self._names)}"))
            self.types[names[-1]] = field.dataType
            seen[kind] += 1
        return names


def join_type(name: str, how: str) -> JoinType:
    """The kind of a join, whose name may be one that ``DataFrame.join`` has for it."""
    plain = str(how).lower().replace("_", "")
    kinds: dict[str, JoinType] = {kind: kind for kind in get_args(JoinType)}
    if (found := (kinds | _ALSO).get(plain)) is None:
        raise InvalidArgument(f"{name} got how={how!r}; it can be {', '.join(kinds)}")
    return found


def require_joinable(
    name: str, left: DataFrame, right: DataFrame, on: str | Sequence[str], reserved: Sequence[str]
) -> list[str]:
    """The keys of a join that can be; `InvalidArgument` or `UnknownColumn` if it cannot."""
    for df in (left, right):
        require_classic(name, df)
    named, fold = keys_of(name, [on]), folding(left.sparkSession)
    keys = [key for key in named if isinstance(key, str)]
    if len(keys) < len(named):
        raise InvalidArgument(f"{name} got a Column in on=; it takes the names of columns that both sides have")
    if left.isStreaming != right.isStreaming:
        raise InvalidArgument(
            f"{name} got a stream and a batch DataFrame. Join them with DataFrame.join: Spark needs no state for that."
        )
    if not keys:
        raise InvalidArgument(f"{name} needs at least one key column in on=")
    for key in keys:
        for df, side in ((left, "left"), (right, "right")):
            _require_one(key, df, side, fold)
        if fold(key) in reserved:
            raise InvalidArgument(f"the result has a column {key!r} of its own; leave it out of on=, or rename it")
        require_same_type(f"the key {key!r}", *(df.select(F.col(quoted(key))) for df in (left, right)))
    return keys


def _require_one(key: str, df: DataFrame, side: str, fold: Callable[[str], str]) -> None:
    """`UnknownColumn` or `InvalidArgument` unless a side has a key once."""
    found = list(map(fold, df.columns)).count(fold(key))
    if not found:
        raise UnknownColumn(f"the {side} side has no column {key!r}; it has {', '.join(df.columns)}")
    if found > 1:
        raise InvalidArgument(f"the {side} side has several columns {key!r}; rename one of them, or drop it")


def times_of(left: DataFrame, right: DataFrame, first: TimeColumn, second: TimeColumn) -> tuple[Column, Column]:
    """The times of both sides, which have one type; what is wrong with one of them is said of that side."""
    times = []
    for side, df, column in (("left", left, first), ("right", right, second)):
        try:
            require_columns(df, [column] if isinstance(column, str) else [])
            times.append(time_of(df, column))
        except ForebayError as error:
            raise type(error)(f"on the {side} side {error}") from None
    require_same_type("the time", *(df.select(time.alias("time")) for df, time in zip((left, right), times, strict=True)))
    return times[0], times[1]


def require_same_type(what: str, left: DataFrame, right: DataFrame) -> None:
    """`InvalidArgument` unless the only columns of two DataFrames, that are ``what``, have one type."""
    kinds = [df.schema.fields[0].dataType.simpleString() for df in (left, right)]
    if kinds[0] != kinds[1]:
        raise InvalidArgument(f"{what} is {kinds[0]} on the left side and {kinds[1]} on the right; cast one of them")
