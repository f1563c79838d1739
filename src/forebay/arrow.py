"""Internal: columns of polars as Arrow arrays that can be put together and written."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

_OLDEST = pl.CompatLevel.oldest()

_WITH_OFFSETS = 3
"""Buffers of texts and bytes: which are NULL, where each begins, and all of them together."""


@overload
def of(values: pl.Series) -> pa.Array: ...


@overload
def of(values: pl.DataFrame) -> pa.Table: ...


def of(values: pl.Series | pl.DataFrame) -> pa.Array | pa.Table:
    """A column as an array, or columns as a table, of types that all readers of Arrow know.

    polars may hand over arrays without values that begin beyond the end of their buffers, for example the fields of structs
    of which a list has none. Arrow refuses to put such arrays together, and writes what cannot be read.

    Examples
    --------
    >>> of(pl.Series([[1], []])).to_pylist()
    [[1], []]
    """
    found = values.to_arrow(compat_level=_OLDEST)
    if not isinstance(found, pa.Table):
        return _sound(found)
    if all(_is_sound(chunk) for column in found.columns for chunk in column.chunks):
        return found
    columns = [pa.chunked_array(list(map(_sound, column.chunks)), column.type) for column in found.columns]
    return pa.Table.from_arrays(columns, schema=found.schema)


def batch_of(frame: pl.DataFrame, schema: pa.Schema | None = None, *, without: Container[str] = ()) -> pa.RecordBatch:
    """A frame with rows as one record batch, of exactly ``schema`` if there is one, and without some columns.

    Arrow leaves a column out at once, where polars makes a plan and runs it, which counts where rows are few. Arrow raises
    where a column's values are too large for one array: texts of more than 2 GB.

    Examples
    --------
    >>> batch_of(pl.DataFrame({"a": [1], "b": [2]}), pa.schema({"b": pa.int8()})).to_pydict()
    {'b': [2]}
    """
    table = of(frame)
    if schema is not None:
        table = table.select(schema.names).cast(schema)
    elif without:
        table = table.select([name for name in table.column_names if name not in without])
    return joined(table.to_batches())


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one schema as one; a single one is not copied.

    Examples
    --------
    >>> batch = pa.record_batch({"n": [1]})
    >>> joined([batch]) is batch, joined([batch, batch]).num_rows
    (True, 2)
    """
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def lists(elements: pa.Array, ends: npt.NDArray[np.int64]) -> pl.Series:
    """Elements as lists, of which each ends where the next one begins.

    Examples
    --------
    >>> lists(pa.array([1, 2, 3]), np.array([2, 2, 3])).to_list()
    [[1, 2], [], [3]]
    """
    return pl.Series(pa.LargeListArray.from_arrays(pa.array(np.concatenate([[0], ends])), elements))


def elements(lists: pl.Series) -> tuple[pl.Series, npt.NDArray[np.int64]]:
    """The elements of lists, one list after the other, and how many each has; NULL has none.

    Examples
    --------
    >>> found, sizes = elements(pl.Series([[1, 2], None, [], [3]]))
    >>> found.to_list(), sizes.tolist()
    ([1, 2, 3], [2, 0, 0, 1])
    """
    sizes = lists.list.len().fill_null(0).to_numpy().astype(np.int64)
    return lists.explode(empty_as_null=False, keep_nulls=False), sizes


def binaries(records: npt.NDArray[np.void]) -> pa.BinaryArray:
    """The bytes of records, which are not copied.

    Examples
    --------
    >>> binaries(np.array([(97, 0x6263)], np.dtype([("a", "u1"), ("b", ">u2")]))).to_pylist()
    [b'abc']
    """
    offsets = np.arange(len(records) + 1, dtype=np.int32) * np.int32(records.itemsize)
    return pa.Array.from_buffers(
        pa.binary(), len(records), [None, pa.py_buffer(offsets), pa.py_buffer(records.view(np.uint8))]
    )


def where(batch: pa.RecordBatch, mask: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """The rows of a batch that a mask has; the batch itself where that is all of them, as it is as a rule.

    Examples
    --------
    >>> batch = pa.record_batch({"a": [1, 2]})
    >>> where(batch, np.array([False, True])).to_pydict(), where(batch, np.array([True, True])) is batch
    ({'a': [2]}, True)
    """
    return batch if mask.all() else batch.filter(pa.array(mask))


def row_bytes(columns: Iterable[pa.Array], rows: int) -> npt.NDArray[np.int64]:
    """How many bytes each of some rows has; 1 for a truth value, and none for what tells which values are NULL.

    Examples
    --------
    >>> row_bytes([pa.array([1, None]), pa.array(["one", "three"]), pa.array([["a"], ["b", "cd"]])], 2).tolist()
    [12, 16]
    """
    sizes = np.zeros(rows, np.int64)
    for column in columns:
        sizes += _value_bytes(column)
    return sizes


def row_width(schema: pa.Schema) -> int | None:
    """How many bytes each row has, as `row_bytes` counts them; None where rows are not all alike.

    Examples
    --------
    >>> row_width(pa.schema({"a": pa.int64(), "b": pa.bool_()})), row_width(pa.schema({"a": pa.int64(), "b": pa.string()}))
    (9, None)
    """
    try:
        return sum(-(-int(kind.bit_width) // 8) for kind in schema.types)
    except ValueError:
        return None


def _value_bytes(array: pa.Array) -> npt.NDArray[np.int64] | int:
    """How many bytes each value has, or all alike."""
    kind = array.type
    if pa.types.is_null(kind):
        return 0
    if pa.types.is_struct(kind):
        return row_bytes(array.flatten(), len(array))
    if pa.types.is_fixed_size_list(kind):
        return _parts(array, np.arange(array.offset, array.offset + len(array) + 1) * kind.list_size)
    if kind.num_fields:
        return _parts(array, array.offsets.to_numpy())
    if has_offsets(kind):
        lengths: npt.NDArray[np.int64] = pc.fill_null(pc.binary_length(array), 0).to_numpy().astype(np.int64)
        return lengths
    return -(-int(kind.bit_width) // 8)


def has_offsets(kind: pa.DataType) -> bool:
    """Whether values of a type that is not nested have lengths of their own, as texts and bytes do."""
    return bool(kind.num_buffers == _WITH_OFFSETS)


def _parts(array: pa.Array, begins: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """How many bytes the values of each list have."""
    ends = np.concatenate([[0], np.cumsum(row_bytes([array.values], len(array.values)))])
    sizes: npt.NDArray[np.int64] = np.diff(ends[begins])
    return sizes


def _sound(array: pa.Array) -> pa.Array:
    """The same values, in buffers that have what offsets say."""
    if _is_sound(array):
        return array
    kind = array.type
    if not len(array):
        return pa.array([], kind)
    if pa.types.is_struct(kind):
        fields = [_sound(array.field(place)) for place in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null() if array.null_count else None)
    buffers = array.buffers()[: kind.num_buffers]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset, [_sound(array.values)])


def _is_sound(array: pa.Array) -> bool:
    if not len(array):
        return bool(array.offset == 0 and array.type.num_fields == 0)
    if pa.types.is_struct(array.type):
        return all(_is_sound(array.field(place)) for place in range(array.type.num_fields))
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _is_sound(array.values)
    return True
