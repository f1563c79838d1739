"""Input columns: how often Spark analyses them while an operator is planned, and their names."""

import pytest
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame

import forebay as fb
from forebay.spark.driver.inputs import Inputs, identity
from forebay.state.layout import NAMESAKE


@pytest.fixture
def selects(monkeypatch):
    """The selections that were made so far, each of which Spark analyses."""
    made, select = [], DataFrame.select

    def counted(df, *columns):
        made.append(columns)
        return select(df, *columns)

    monkeypatch.setattr(DataFrame, "select", counted)
    return made


@pytest.mark.parametrize(
    "planned",
    [
        lambda df, columns: fb.groupBy(df, fb.window("t", "1 hour")).agg(*(fb.avg(column) for column in columns)),
        lambda df, columns: fb.groupBy(df.select("t", *columns), fb.window("t", "1 hour")).agg(
            fb.apply(lambda key, rows: rows, "n long")
        ),
        lambda df, columns: fb.buffer(df.select("t", *columns), columns[0], maxRows=9),
        lambda df, columns: fb.join(
            df.select("t", *columns), df.select("t", *columns), on=columns[0], window=fb.window("t", "1 hour")
        ),
    ],
    ids=["aggregates", "a function", "a buffer", "a join"],
)
def test_columns_are_analysed_together_however_many_they_are(spark, selects, planned):
    df = spark.range(1).select(
        F.timestamp_seconds("id").alias("t"), *(F.col("id").alias(f"c{place}") for place in range(12))
    )
    numbers = []
    for columns in (df.columns[1:3], df.columns[1:]):
        del selects[:]
        planned(df, columns)
        numbers.append(len(selects))
    assert numbers[0] == numbers[1]


def test_columns_that_are_shown_alike_keep_the_names_that_checkpoints_have(spark, selects):
    """Each but the first is numbered by its place. One that Spark resolves to the first has its name."""
    df = spark.range(1)
    low, high = F.udf(lambda number: number, "long"), F.udf(lambda number: -number, "long")
    first, *numbered = Inputs(df).add([low("id"), high("id"), high("id"), *[low("id")] * 2])
    assert numbered[:2] == [f"{first}{NAMESAKE}1", f"{first}{NAMESAKE}2"]
    assert numbered[2] == numbered[3]
    assert len(set(Inputs(df).add([F.col("id"), df.id, df["id"]]))) == 1
    del selects[:]
    Inputs(df).add([F.udf(lambda number: number, "long")("id") for _ in range(20)])
    assert len(selects) == 20


def test_an_expression_that_stands_for_several_is_refused(spark):
    df = spark.sql("SELECT timestamp_seconds(1) t, struct(1 a, 2 b) s")
    with pytest.raises(fb.errors.InvalidArgument, match="Spark refuses"):
        fb.groupBy(df, fb.window("t", "1 hour")).agg(fb.count(F.col("s.*")), fb.sum("s.a"))


def test_a_key_is_the_same_whatever_the_size_of_null_is(spark):
    """It is NULL or -1, which follows from settings that may change while there is a checkpoint."""
    values = "(NULL), (array()), (array(NULL)), (array(array('a'), NULL))"
    rows = spark.sql(f"SELECT CAST(k AS array<array<string>>) k FROM VALUES {values} t(k)")
    found = []
    for ansi in ("true", "false"):
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        try:
            found.append([tuple(row) for row in rows.select(*identity([F.col("k")], [rows.schema[0].dataType])).collect()])
        finally:
            spark.conf.unset("spark.sql.ansi.enabled")
    assert found[0] == found[1]
    assert len({*found[0]}) == 4
