"""Columns that polars hands over are Arrow arrays that can be put together, written and read."""

import datetime

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from forebay import arrow

STRUCT = pl.Struct({"a": pl.Int32, "b": pl.String, "c": pl.List(pl.Float64)})
SOME = {"a": 1, "b": "x", "c": [0.5, None]}
COLUMNS = {
    "list of structs": pl.Series([[SOME], [], None, [SOME, None], []], dtype=pl.List(STRUCT)),
    "lists in lists": pl.Series([[[1.0]], [], [[]], None, [[], [2.0, None]]], dtype=pl.List(pl.List(pl.Float64))),
    "struct": pl.Series([SOME, None, {"a": None, "b": None, "c": []}, SOME, None], dtype=STRUCT),
    "dates": pl.Series([[datetime.date(2024, 1, 1)], [], None, [None], []], dtype=pl.List(pl.Date)),
    "words": pl.Series(["a", None, "", "b", "c"]),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("length", range(3))
def test_any_part_of_a_column(name, first, length):
    """However polars has come to it: as a slice, by a filter, by a gather from those."""
    column = COLUMNS[name]
    numbers = np.arange(first, min(first + length, 5))
    parts = [column.slice(first, length), column.filter(np.isin(np.arange(5), numbers)), column[numbers]]
    parts += [part[np.arange(len(part))] for part in parts]
    parts += [pl.concat([part, column])[np.arange(len(part))] for part in parts]
    expected = column.to_list()[first : first + length]
    for part in parts:
        array = arrow.of(part)
        array.validate(full=True)
        assert array.to_pylist() == expected
        assert pa.concat_arrays([array, array]).to_pylist() == expected * 2
        batch = pa.record_batch([array, array], ["one", "other"])
        written = pa.ipc.read_record_batch(batch.serialize(), batch.schema)
        written.validate(full=True)
        assert written.equals(batch)
        assert arrow.of(part.to_frame("one"))["one"].to_pylist() == expected


def test_fields_without_values_that_begin_beyond_their_buffers():
    """As they came from polars 2.1 out of a join: Arrow could not put them together."""
    nothing = pa.py_buffer(b"")
    field = pa.Array.from_buffers(pa.int32(), 0, [None, nothing], offset=1)
    struct = pa.Array.from_buffers(pa.struct({"a": pa.int32()}), 0, [None], children=[field])
    lists = pa.Array.from_buffers(pa.list_(struct.type), 1, [None, pa.py_buffer(np.zeros(2, np.int32))], children=[struct])
    with pytest.raises(pa.ArrowIndexError):
        pa.concat_arrays([lists, lists])
    sound = arrow._sound(lists)
    assert pa.concat_arrays([sound, sound]).to_pylist() == [[], []]


def bytes_of(value):
    """What a value has, if numbers have 8 bytes."""
    if isinstance(value, dict):
        return bytes_of(list(value.values()))
    if isinstance(value, list | tuple):
        return sum(map(bytes_of, value))
    return 0 if value is None else 8 if isinstance(value, int) else len(value)


@pytest.mark.parametrize(
    "kind, values",
    [
        (pa.string(), ["a", None, "", "bcd"]),
        (pa.large_binary(), [b"ab", b"", None]),
        (pa.list_(pa.list_(pa.string())), [[["a"], ["b", "cde"]], None, [], [None, []]]),
        (pa.large_list(pa.int64()), [[1, 2], [], [3]]),
        (pa.list_(pa.int64(), 2), [[1, 2], [3, 4], [5, 6]]),
        (pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}), [{"a": 1, "b": ["xy", "z"]}, {"a": 2, "b": []}]),
        (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("bc", 2)], [], [("d", 3)]]),
    ],
    ids=str,
)
def test_how_many_bytes_rows_have(kind, values):
    columns = pa.array(values, kind), pa.array(range(len(values))), pa.array([True] * len(values))
    expected = [9 + bytes_of(value) for value in values]
    assert arrow.row_bytes(columns, len(values)).tolist() == expected
    assert arrow.row_bytes([column.slice(1) for column in columns], len(values) - 1).tolist() == expected[1:]
