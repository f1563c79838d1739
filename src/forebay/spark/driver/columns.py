"""Columns as text and as Spark parses them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from forebay.errors import InvalidArgument

Keys = Column | str | list[Column | str] | tuple[Column | str, ...]
"""What a call takes for keys: one, or several in a list."""

_LAMBDA = re.compile(r"(?:\w+|\([\w, ]+\)) -> ")
"""The variables of a function, which Spark numbers from the first one of the session on."""
_NUMBERED = re.compile(r"\b\w+_\d+\b")


def text_of(column: Column | str) -> str:
    """How a column is shown: the same each time that the same expression is written."""
    if isinstance(column, str):
        return column
    text = str(column).removeprefix("Column<'").removesuffix("'>")
    variables = dict.fromkeys(name for found in _LAMBDA.finditer(text) for name in _NUMBERED.findall(found[0]))
    numbers = {name: f"{name.rpartition('_')[0]}_{place}" for place, name in enumerate(variables)}
    return _NUMBERED.sub(lambda found: numbers.get(found[0], found[0]), text)


def keys_of(caller: str, keys: Iterable[Any]) -> tuple[Column | str, ...]:
    """The keys that a call got, one by one or in lists, as Spark takes them; ``caller`` names the call in errors."""
    found: list[Column | str] = []
    for key in keys:
        if isinstance(key, list | tuple):
            found += keys_of(caller, key)
        elif isinstance(key, str | Column):
            found.append(key)
        else:
            raise InvalidArgument(f"{caller} got {key!r} for a key; a key is a column's name or a Column")
    return tuple(found)


def quoted(name: str) -> str:
    """The name of a column as Spark parses it, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def interval(microseconds: int) -> Column:
    """A duration as a column, to be added to a time. It has no days, which Spark would take from the session's calendar."""
    return F.make_interval(secs=F.lit(Decimal(microseconds) / 1_000_000).cast("decimal(18, 6)"))
