"""``fb.apply``: a user's function over the rows of each key and window."""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.errors import ForebayError, InvalidArgument, ProcessorFailed

_LISTS = pa.ListType | pa.LargeListType | pa.FixedSizeListType


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
        object.__setattr__(self, "library", library_of(self.function, ("key", "rows"), "fb.apply"))

    def results(
        self, rows: pl.DataFrame, keys: list[str], window: str, assemble: Callable[[Any, list[pa.Array]], pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Call the function for the rows of each key and window.

        ``window`` names the column of window starts. ``assemble`` makes a result of window starts and columns.
        """
        rows, told = _with_texts(rows, keys)
        for (start, *key), group in rows.group_by([window, *told], maintain_order=True):
            if told != keys:
                key = [_value(group[name], text) for name, text in zip(keys, key, strict=True)]
            shown = group.select(pl.col(column).alias(name) for column, name in self.columns)
            try:
                value = self.function(tuple(key), table_of(shown, self.library))
                table = returned(value, self.schema, name_of(self.function), "fb.apply")
            except BaseException as error:  # a panic of polars is no Exception, nor is sys.exit()
                whose = f"the {group.height} rows of the key {tuple(key)!r} in a window"
                raise failure(f"the function {name_of(self.function)} of fb.apply", whose, error) from error
            if table.num_rows:
                first = arrow.of(group.head(1).select(keys))
                repeated = first.take(np.zeros(table.num_rows, np.int64))
                columns = [column.combine_chunks() for column in (*repeated.columns, *table.columns)]
                yield assemble(np.full(table.num_rows, start, np.int64), columns)


def _with_texts(rows: pl.DataFrame, keys: list[str]) -> tuple[pl.DataFrame, list[str]]:
    """Rows, and which of their columns tell the keys: texts of times, where some are of years that Python does not have."""
    texts = {}
    for name in keys:
        if rows[name].dtype.is_temporal():
            try:
                rows[name].unique().to_list()
            except (ValueError, OverflowError):
                texts[name] = pl.Series(f"{name}.text", pl.Series(arrow.of(rows[name]).cast(pa.string())))
    return rows.with_columns(texts.values()), [texts[name].name if name in texts else name for name in keys]


def _value(values: pl.Series, text: Any) -> Any:
    """The first value, or a text of it where Python cannot hold it."""
    try:
        return values[0]
    except (ValueError, OverflowError):
        return text


def library_of(function: Callable[..., Any], given: Sequence[str], caller: str) -> str:
    """Whose tables a function takes: by the annotation of the parameter that gets them, polars' when it has none."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some that are built in tell none
        return "polars"
    try:
        taking = list(signature.bind(*given).arguments)[-1]
    except TypeError as error:
        raise InvalidArgument(
            f"{name_of(function)}{signature} cannot be called as func({', '.join(given)}), which {caller} does: {error}"
        ) from error
    annotation = signature.parameters[taking].annotation
    if isinstance(annotation, str):  # it is one where annotations are postponed, and stays one if its module is not there
        with contextlib.suppress(Exception):
            annotation = typing.get_type_hints(function)[taking]
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__module__", "")
    if name.startswith(("pandas", "pd.")):
        return "pandas"
    return "pyarrow" if name.startswith(("pyarrow", "pa.")) else "polars"


def table_of(frame: pl.DataFrame, library: str) -> Any:
    if library == "polars":
        return frame
    table = arrow.of(frame)
    return table.to_pandas() if library == "pandas" else table


def name_of(function: Callable[..., Any]) -> str:
    """A function's name for messages."""
    return getattr(function, "__name__", type(function).__name__)


def failure(what: str, whose: str, error: BaseException) -> ProcessorFailed:
    """The error for a user's function that has failed for some rows."""
    failed = "failed" if isinstance(error, ForebayError) else f"raised {type(error).__name__}"
    return ProcessorFailed(
        f"{what} {failed} for {whose}: {described(error)}. Correct it and run the query again; a stream goes on "
        "from the micro-batch before, and no row is lost."
    )


def described(error: BaseException) -> str:
    """The text of an error that a user's function has raised, which may be none.

    Examples
    --------
    >>> described(ValueError("a price of -1"))
    'a price of -1'
    """
    try:
        return str(error)
    except Exception:
        return "its text cannot be had"


def returned(value: Any, schema: pa.Schema, name: str, caller: str, *, exactly: bool = False) -> pa.Table:
    """What a function returned as a table of ``schema``; with ``exactly`` it must have no other columns."""
    try:
        if isinstance(value, pl.DataFrame):
            table = arrow.of(value)
        elif isinstance(value, pa.Table):
            table = value
        elif isinstance(value, pd.DataFrame):
            table = pa.Table.from_pandas(value, preserve_index=False)
        else:
            raise InvalidArgument(
                f"{name} returned {type(value).__name__}; "
                f"{caller} needs a polars.DataFrame, pandas.DataFrame or pyarrow.Table"
            )
        if not len(value) and not table.num_columns:
            return schema.empty_table()
        missing = [name for name in schema.names if name not in table.column_names]
        if missing:
            raise InvalidArgument(f"{name} returned the columns {table.column_names}; its schema also names {missing}")
        if exactly and len(table.column_names) > len(schema.names):
            raise InvalidArgument(f"{name} returned the columns {table.column_names}; its schema has only {schema.names}")
        table = table.select(schema.names)
        for had, wanted in zip(table.schema, schema, strict=True):
            _require_fields(f"{name} returned {wanted.name}", had.type, wanted.type, dicts=isinstance(value, pd.DataFrame))
        return table.cast(schema)
    except ForebayError:
        raise
    except BaseException as error:  # a panic of polars is no Exception
        raise InvalidArgument(f"{name} returned rows that do not fit its schema {schema}: {error}") from error


def _require_fields(told: str, had: pa.DataType, wanted: pa.DataType, *, dicts: bool) -> None:
    """`InvalidArgument` where a struct lacks fields, which to cast it would make NULL.

    Structs of pandas are dicts, which may leave fields out, as for Spark; but not have others in their place.
    """
    if pa.types.is_struct(had) and pa.types.is_struct(wanted):
        has, needs = ([field.name for field in kind] for kind in (had, wanted))
        lacks = [name for name in needs if name not in has]
        if lacks and not (dicts and {*has} <= {*needs}):
            raise InvalidArgument(f"{told} with the fields {has}; its schema also names {lacks}")
        for name in (name for name in needs if has.count(name) == 1):
            _require_fields(f"{told}.{name}", had.field(name).type, wanted.field(name).type, dicts=dicts)
    elif isinstance(had, _LISTS) and isinstance(wanted, _LISTS):
        _require_fields(told, had.value_type, wanted.value_type, dicts=dicts)
    elif pa.types.is_map(had) and pa.types.is_map(wanted):
        _require_fields(told, had.item_type, wanted.item_type, dicts=dicts)
