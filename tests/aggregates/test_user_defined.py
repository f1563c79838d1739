"""A user's function over the rows of each key and window, without Spark."""

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from forebay.aggregates.user_defined import UserFunction, returned
from forebay.errors import InvalidArgument

YEAR_14645 = 400_000_000_000_000_000
"""Microseconds."""


@pytest.mark.parametrize(
    ("kind", "known", "beyond", "text"),
    [
        (pa.timestamp("us"), dt.datetime(1970, 1, 1), YEAR_14645, "14645-06-30 15:06:40.000000"),
        (pa.date32(), dt.date(1970, 1, 1), 4_000_000, "12921-08-18"),
    ],
)
def test_keys_that_python_does_not_have_are_texts(kind, known, beyond, text):
    """They are in the state already, so an error would stop the query for good."""
    given = []

    def largest(key, rows):
        given.append(key)
        return rows.max()

    rows = pl.DataFrame({"w": [0, 0, 0, 7], "k0": pa.array([0, beyond, 0, beyond], kind), "k1": [1] * 4, "x": [3, 4, 5, 6]})
    results = UserFunction(largest, (("x", "x"),), pa.schema([("x", pa.int64())])).results(
        rows,
        ["k0", "k1"],
        "w",
        lambda starts, columns: pa.record_batch([pa.array(starts), *columns], ["w", "k0", "k1", "x"]),
    )
    found = pa.Table.from_batches(results)
    assert given == [(known, 1), (text, 1), (text, 1)]
    assert found["k0"].type == kind
    assert found["k0"].cast(pa.int64() if kind != pa.date32() else pa.int32()).to_pylist() == [0, beyond, beyond]
    assert found["x"].to_pylist() == [5, 4, 6]
    assert np.array_equal(found["w"], [0, 0, 7])


SCHEMA = pa.schema(
    [("r", pa.struct([("low", pa.float64()), ("high", pa.float64())])), ("n", pa.list_(pa.struct([("x", pa.int64())])))]
)
RIGHT = [{"r": {"high": 2.0, "low": 1.0}, "n": [{"x": 1}]}]
MISSPELLED = [{"r": {"lo": 1.0, "high": 2.0}, "n": [{"x": 1}]}]
WITHIN = [{"r": {"low": 1.0, "high": 2.0}, "n": [{"y": 1}]}]
LACKING = [{"r": {"low": 1.0}, "n": []}]


@pytest.mark.parametrize("library", [pl.DataFrame, pd.DataFrame, pa.Table.from_pylist])
def test_fields_of_structs_have_the_names_of_the_schema(library):
    assert returned(library(RIGHT), SCHEMA, "f", "fb.apply").to_pylist() == RIGHT
    for rows, message in (
        (MISSPELLED, r"f returned r with the fields \['lo', 'high'\]; its schema also names \['low'\]"),
        (WITHIN, r"f returned n with the fields \['y'\]; its schema also names \['x'\]"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            returned(library(rows), SCHEMA, "f", "fb.apply")


def test_fields_may_be_left_out_of_dicts_of_pandas_alone():
    assert returned(pd.DataFrame(LACKING), SCHEMA, "f", "fb.apply").to_pylist() == [
        {"r": {"low": 1.0, "high": None}, "n": []}
    ]
    with pytest.raises(InvalidArgument, match=r"also names \['high'\]"):
        returned(pl.DataFrame(LACKING), SCHEMA, "f", "fb.apply")


@pytest.mark.parametrize("empty", [pl.DataFrame(), pd.DataFrame(), pa.table({})])
def test_a_table_of_nothing_has_no_rows(empty):
    assert returned(empty, SCHEMA, "f", "fb.apply").to_pylist() == []
