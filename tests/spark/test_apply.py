"""``fb.apply``: a user's function over the rows of each key and window."""

import builtins

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from streams import generate, run

import forebay as fb


def largest():
    """The same function over the three kinds of tables; local ones, since workers cannot import this module."""

    def with_polars(key, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.sort("u", descending=True).head(2).select("u", "s")

    def with_pandas(key, rows: pd.DataFrame) -> pd.DataFrame:
        return rows.sort_values("u", ascending=False).head(2)[["u", "s"]]

    def with_arrow(key, rows: pa.Table) -> pa.Table:
        return rows.sort_by([("u", "descending")]).slice(0, 2).select(["u", "s"])

    return with_polars, with_pandas, with_arrow


@pytest.fixture(scope="module")
def stream(spark, tmp_path_factory):
    return generate(spark, tmp_path_factory.mktemp("data"), keys=6, rows=100)


@pytest.mark.parametrize("function", largest())
def test_rows_of_each_key_and_window(stream, function):
    columns = stream.static.where("ts is not null").drop("k_interval")
    found = fb.groupBy(columns, fb.window("ts", "1 minute"), "key").agg(fb.apply(function, "u long, s string"))
    assert found.columns == ["window", "key", "u", "s"]
    ranked = columns.withColumn("window", F.window("ts", "1 minute")).withColumn(
        "rank", F.expr("row_number() over (partition by window, key order by u desc)")
    )
    expected = ranked.where("rank <= 2").select("window", "key", "u", "s")
    assert sorted(found.collect(), key=str) == sorted(expected.collect(), key=str)


def test_annotations_may_be_postponed(stream):
    """They are strings then, and what they name does not go to the workers."""
    program = """
from __future__ import annotations
from pandas import DataFrame
def kind(key, rows: DataFrame):
    return rows.head(1).assign(kind=type(rows).__module__)[["kind"]]
"""
    names = {"__name__": "__main__"}
    exec(program, names)
    rows = stream.static.where("ts is not null").select("ts")
    kinds = fb.groupBy(rows, fb.window("ts", "1 minute")).agg(fb.apply(names["kind"], "kind string"))
    assert kinds.first().kind.startswith("pandas")


@pytest.mark.thorough
def test_key_is_a_tuple_and_a_window_may_give_nothing(stream, tmp_path):
    def odd(key, rows):
        (only,) = key
        return rows.select(pl.lit(only * 10).alias("ten")).head(1 if only % 2 else 0)

    df = stream.streaming("1 second").drop("k_interval")
    run(fb.groupBy(df, fb.window("ts", "1 minute"), "key").agg(fb.apply(odd, "ten int")), tmp_path, "odd")
    rows = stream.spark.table("odd").collect()
    assert rows
    assert all(row.key % 2 == 1 and row.ten == row.key * 10 for row in rows)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("function", "message"),
    [
        pytest.param(lambda key, rows: 3, "returned int; fb.apply needs a polars.DataFrame", marks=pytest.mark.slow),
        (lambda key, rows: rows.select("s"), r"returned the columns \['s'\]; its schema also names \['u'\]"),
        pytest.param(lambda key, rows: rows.select(u="st"), "do not fit its schema", marks=pytest.mark.slow),
        (lambda key, rows: pd.DataFrame({"u": [1 << 70]}), "do not fit its schema"),
    ],
    ids=["no table", "missing column", "wrong type", "too large"],
)
def test_what_a_function_may_return(stream, tmp_path, function, message):
    result = fb.groupBy(stream.streaming("1 second"), fb.window("ts", "10 seconds")).agg(fb.apply(function, "u long"))
    with pytest.raises(StreamingQueryException, match=message):
        run(result, tmp_path, "wrong")


@pytest.mark.thorough
@pytest.mark.parametrize("raised", ["KeyError", "SystemExit"])
def test_a_function_that_raises_is_named_with_the_key(stream, tmp_path, raised):
    def picky(key, rows):
        raise getattr(builtins, raised)("no such thing")

    result = fb.groupBy(stream.streaming("1 second"), fb.window("ts", "10 seconds"), "key").agg(fb.apply(picky, "u long"))
    message = rf"the function picky of fb\.apply raised {raised} for the \d+ rows of the key \(\d+,\)"
    with pytest.raises(StreamingQueryException, match=message):
        run(result, tmp_path, "picky")


def test_the_schema_of_the_rows_fits_them_though_a_struct_is_null_as_a_whole(spark):
    """The fields of such a struct are not nullable in the schema."""
    df = spark.range(3).select("id", F.when(F.col("id") > 0, F.struct("id")).alias("st"))
    same = fb.groupBy(df, fb.global_window()).agg(fb.apply(lambda key, rows: rows, df.schema))
    assert sorted(same.collect()) == sorted(df.collect())


@pytest.mark.parametrize("streaming", [False, True])
def test_a_function_takes_much_along(stream, tmp_path, streaming):
    """Spark makes a broadcast variable of a function of more than 1 MB, which a stateful operator cannot read."""
    table = list(range(10_000_000, 10_400_000))

    def count(key, rows, scale=2, *, more=1):
        return rows.select(n=pl.len().cast(pl.Int64) * len(table) * scale * more)

    assert all(n and n % 800_000 == 0 for n in counts_of(stream, tmp_path, count, streaming=streaming))


def counts_of(stream, tmp_path, count, *, streaming):
    df = stream.streaming("1 second") if streaming else stream.static.where("ts is not null")
    found = fb.groupBy(df.select("ts", "key"), fb.window("ts", "1 minute"), "key").agg(fb.apply(count, "n long"))
    if streaming:
        run(found, tmp_path, "counted")
        found = stream.spark.table("counted")
    rows = found.collect()
    assert rows
    return [row.n for row in rows]


@pytest.mark.thorough
@pytest.mark.parametrize("streaming", [False, True])
def test_a_function_reads_a_broadcast_variable(stream, tmp_path, streaming):
    factor = stream.spark.sparkContext.broadcast(7)

    def count(key, rows):
        return rows.select(n=pl.len().cast(pl.Int64) * factor.value)

    assert all(n and n % 7 == 0 for n in counts_of(stream, tmp_path, count, streaming=streaming))
