"""``fb.apply``: a user's function over the rows of each key and window."""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from forebay.errors import ForebayError, InvalidArgument


@dataclass(frozen=True)
class UserFunction:
    """A function bound to the columns it is given.

    Attributes
    ----------
    function : callable
        ``function(key, rows)``.
    columns : tuple of pairs of str
        The columns of a packed batch that it sees, and the names it sees them under.
    schema : pyarrow.Schema
        The columns that it returns.
    library : str
        Whose tables it is given: ``polars``, ``pandas`` or ``pyarrow``.
    """

    function: Callable[..., Any]
    columns: tuple[tuple[str, str], ...]
    schema: pa.Schema
    library: str = field(init=False)

    def __post_init__(self) -> None:
        # when the query is planned: what cannot be called is refused, and annotations do not travel with all that they name
        object.__setattr__(self, "library", _library(self.function))

    def results(
        self, rows: pl.DataFrame, keys: list[str], window: str, assemble: Callable[[Any, list[pa.Array]], pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Call the function for the rows of each key and window.

        ``window`` names the column of window starts. ``assemble`` makes a result of window starts and columns.
        """
        for (start, *key), group in rows.group_by([window, *keys], maintain_order=True):
            shown = group.select(pl.col(column).alias(name) for column, name in self.columns)
            table = _returned(self.function(tuple(key), _table(shown, self.library)), self.schema, self.function)
            if table.num_rows:
                first = group.head(1).select(keys).to_arrow(compat_level=pl.CompatLevel.oldest())
                repeated = first.take(np.zeros(table.num_rows, np.int64))
                columns = [column.combine_chunks() for column in (*repeated.columns, *table.columns)]
                yield assemble(np.full(table.num_rows, start, np.int64), columns)


def _library(function: Callable[..., Any]) -> str:
    """Whose tables a function takes: by the annotation of the second parameter, polars' when it has none."""
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 2:
        raise InvalidArgument(f"{_name(function)} takes {len(parameters)} parameters; fb.apply calls it as func(key, rows)")
    annotation = parameters[1].annotation
    if isinstance(annotation, str):  # it is one where annotations are postponed, and stays one if its module is not there
        with contextlib.suppress(Exception):
            annotation = typing.get_type_hints(function)[parameters[1].name]
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__module__", "")
    if name.startswith(("pandas", "pd.")):
        return "pandas"
    return "pyarrow" if name.startswith(("pyarrow", "pa.")) else "polars"


def _table(frame: pl.DataFrame, library: str) -> Any:
    if library == "polars":
        return frame
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    return table.to_pandas() if library == "pandas" else table


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _returned(value: Any, schema: pa.Schema, function: Callable[..., Any]) -> pa.Table:
    """What the function returned as a table of ``schema``."""
    try:
        if isinstance(value, pl.DataFrame):
            table = value.to_arrow(compat_level=pl.CompatLevel.oldest())
        elif isinstance(value, pa.Table):
            table = value
        elif isinstance(value, pd.DataFrame):
            table = pa.Table.from_pandas(value, preserve_index=False)
        else:
            raise InvalidArgument(
                f"{_name(function)} returned {type(value).__name__}; "
                "fb.apply needs a polars.DataFrame, pandas.DataFrame or pyarrow.Table"
            )
        missing = [name for name in schema.names if name not in table.column_names]
        if missing:
            raise InvalidArgument(
                f"{_name(function)} returned the columns {table.column_names}; its schema also names {missing}"
            )
        return table.select(schema.names).cast(schema)
    except ForebayError:
        raise
    except (pa.ArrowException, ValueError) as error:
        raise InvalidArgument(f"{_name(function)} returned rows that do not fit its schema {schema}: {error}") from error
