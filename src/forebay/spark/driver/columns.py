"""Columns as text and as Spark parses them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.errors import InvalidArgument
from forebay.spark.driver.trees import subtree
from forebay.windows import END, TIME

Keys = Column | str | list[Column | str] | tuple[Column | str, ...]
"""What a call takes for keys: one, or several in a list."""

LARGEST_BOUND = (1 << 63) - 1
"""The largest number that a bound for rows or bytes can be: tasks have 64 bits for it."""

_LAMBDA = re.compile(r"(?:\w+|\([\w, ]+\)) -> ")
"""The variables of a function, which Spark numbers from the first one of the session on."""
_NUMBERED = re.compile(r"\b\w+_\d+\b")
_WRAPPED = "columnnodeexpression("
_ATTRIBUTE = re.compile(r"UnresolvedAttribute\(List\(([^()]*)\),None,false\)")
_DAY = 86_400_000_000
_ADDRESS = re.compile(r"\[(?:[BCDFIJSZ]|L[\w.$]+;)@[0-9a-f]+")
"""How Java shows an array: by its address."""


def column_of(given: Column | str) -> Column:
    """A column that may be given by its name."""
    return F.col(given) if isinstance(given, str) else given


def shown(column: Column | str) -> str:
    """A column as Spark shows it."""
    return str(column).removeprefix("Column<'").removesuffix("'>")


def got(value: Any) -> str:
    """How a message names what a call was given in place of something of forebay's."""
    if isinstance(value, Column):
        return f"Spark's own {shown(value)}"
    return f"a {type(value).__name__}" if isinstance(value, list | tuple) else repr(value)


def require_column(what: str, given: Any, taken: str = "the name of a column, or a Column") -> None:
    """`InvalidArgument` unless a call, which ``what`` names, got a Column or a text for what it takes."""
    if not isinstance(given, Column | str):
        raise InvalidArgument(f"{what} got {got(given)}; it takes {taken}")


def fields_of(what: str, schema: T.StructType | str, example: str = "item string, n long") -> list[T.StructField]:
    """The columns of a schema that a call, which ``what`` names, got; `InvalidArgument` if it is none."""
    if not isinstance(schema, str | T.StructType):
        raise InvalidArgument(f"{what} got the schema {schema!r}; it is a StructType, or a text as 'item string'")
    try:
        found = schema if isinstance(schema, T.StructType) else T.DataType.fromDDL(schema)
    except PySparkException as error:
        raise InvalidArgument(f"{what} got the schema {schema!r}, which Spark cannot parse") from error
    if not isinstance(found, T.StructType):
        raise InvalidArgument(f"{what} got the schema {schema!r}; name its columns, as in '{example}'")
    return list(found.fields)


def text_of(column: Column | str) -> str:
    """How a column is shown: the same each time that the same expression is written.

    `InvalidArgument` for an expression that Spark shows in another way each time.
    """
    text = shown(column)
    if isinstance(column, str):
        return text
    if _WRAPPED in text:  # the arguments of a Python function
        text = _without(_without(text, ",Origin(", inner=False), _WRAPPED, inner=True)
        text = _ATTRIBUTE.sub(lambda found: found[1].replace(", ", "."), text)
    if _ADDRESS.search(text):
        for value in _binaries(column._jc.node()):  # type: ignore[operator]  # a py4j object
            text = _ADDRESS.sub(f"X'{value.hex()}'", text, count=1)
        if _ADDRESS.search(text):
            raise InvalidArgument(
                f"Spark shows the expression {text} in another way each time, so a checkpoint could not tell that it is the "
                "same one. Make it a column of its own with withColumn, and name that."
            )
    variables = dict.fromkeys(name for found in _LAMBDA.finditer(text) for name in _NUMBERED.findall(found[0]))
    numbers = {name: f"{name.rpartition('_')[0]}_{place}" for place, name in enumerate(variables)}
    return _NUMBERED.sub(lambda found: numbers.get(found[0], found[0]), text)


def _without(text: str, opening: str, *, inner: bool) -> str:
    """A text without what begins with ``opening``, an open bracket at its end, up to that bracket's end; or with its inside.

    Spark shows where in a program the arguments of a Python function were written.
    """
    while (begin := text.find(opening)) >= 0:
        end, depth = begin + len(opening), 1
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        text = text[:begin] + (text[begin + len(opening) : end - 1] if inner else "") + text[end:]
    return text


def _binaries(node: Any) -> Iterator[bytes]:
    """The binary values that are written in an expression, from left to right."""
    literals = (each for each in subtree(node) if each.getClass().getSimpleName() == "Literal")
    return (literal.value() for literal in literals if isinstance(literal.value(), bytes))


def same_expression(one: Column, other: Column) -> bool:
    """Whether two columns are the same expression, which Spark tells by more than their text."""
    return bool(one._jc.equals(other._jc))  # type: ignore[operator]  # a py4j object


def keys_of(caller: str, keys: Iterable[Any]) -> tuple[Column | str, ...]:
    """The keys that a call got, one by one or in lists, as Spark takes them; ``caller`` names the call in errors."""
    found: list[Column | str] = []
    for key in keys:
        if isinstance(key, str) and key == "*":
            raise InvalidArgument(f"{caller} got '*' for a key; name the columns that are keys")
        if isinstance(key, Column) and text_of(key).lower().startswith("session_window("):
            raise InvalidArgument(
                f"{caller} got {got(key)} for a key: the session of a row alone, which nothing would merge with others. "
                "Write fb.groupBy(df, fb.session_window(...), ...), which merges the sessions of a key."
            )
        if isinstance(key, str | Column):
            found.append(key)
        elif isinstance(key, Iterable) and not isinstance(key, Mapping):
            found += keys_of(caller, key)
        else:
            hint = (
                "; a window is the second argument of fb.groupBy(df, window, *keys)" if hasattr(key, "time_column") else ""
            )
            raise InvalidArgument(f"{caller} got {key!r} for a key; a key is a column's name or a Column{hint}")
    return tuple(found)


def folding(session: SparkSession) -> Callable[[str], str]:
    """What makes names equal that a session takes for the same column."""
    return str if str(session.conf.get("spark.sql.caseSensitive")).lower() == "true" else str.lower


def quoted(name: str) -> str:
    """The name of a column as Spark parses it, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def lasting(time: Column, wait: Column) -> dict[str, Column]:
    """When rows begin and end that last so long. Where the end is beyond what Spark's type has, there is none."""
    return {TIME: time, END: F.try_add(time, wait)}


def interval(microseconds: int) -> Column:
    """A duration as a column, to be added to a time. It has no days, which Spark would take from the session's calendar."""
    hours, rest = divmod(microseconds, _DAY // 24)  # Spark has no room for so many seconds
    return F.make_interval(hours=F.lit(hours), secs=F.lit(Decimal(rest) / 1_000_000).cast("decimal(18, 6)"))
