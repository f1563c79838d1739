"""Continuous joins of streams equal Spark's batch joins with a condition on the ends of lives."""

import logging

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from sides_to_join import files, run, same, stream

import forebay as fb
from forebay.errors import InvalidArgument, UnknownColumn


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sides")
    return files(directory / "left", 1), files(directory / "right", 2)


def expected(spark, sources, ends):
    """Pairs between whose times nothing has ended their key's life; ``ends`` are conditions for the sides."""
    left, right = (spark.read.parquet(str(path)).where("ts IS NOT NULL") for path in sources)
    over = [df.where(end).select("ts", "key") for df, end in zip((left, right), ends, strict=True)]
    pairs = left.alias("l").join(right.alias("r"), F.col("l.key") == F.col("r.key"))
    first, last = F.least("l.ts", "r.ts"), F.greatest("l.ts", "r.ts")
    between = (F.col("e.key") == F.col("l.key")) & (F.col("e.ts") >= first) & (F.col("e.ts") < last)
    mine = [F.col(f"l.{name}") for name in left.columns if name != "key"]
    theirs = [(name, f"{name}_right" if name in left.columns else name) for name in right.columns if name != "key"]
    columns = [last.alias("event_time"), F.col("l.key"), *mine, *(F.col(f"r.{name}").alias(shown) for name, shown in theirs)]
    return pairs.join(over[0].union(over[1]).distinct().alias("e"), between, "anti").select(columns)


@pytest.mark.parametrize("until", ["x > 900", pytest.param("only_1 > 1", marks=pytest.mark.slow)])
def test_streams(spark, sources, tmp_path, until):
    left, right = (stream(spark, path) for path in sources)
    found, _ = run(fb.continuousJoin(left, right, "key", until), tmp_path)
    wanted = expected(spark, sources, (until, until if until.startswith("x") else "false"))
    ended = F.col("event_time") < F.lit("2024-01-01 00:30").cast("timestamp")
    assert same(found.where(ended), wanted.where(ended)) > 200


def test_batch_with_a_column_of_the_right_side(spark, sources):
    left, right = (spark.read.parquet(str(path)) for path in sources)
    found = fb.continuousJoin(left, right, ["key"], F.col("only_2") < -1, timeColumn="ts")
    assert same(found, expected(spark, sources, ("false", "only_2 < -1"))) > 200


@pytest.mark.parametrize("expression", [F.expr, F.col], ids=["sql", "column"])
def test_a_condition_of_one_side_is_no_error_to_log(spark, sources, expression):
    records = []
    loggers = [logging.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
    handler = logging.Handler()
    handler.emit = records.append
    for logger in loggers:
        logger.addHandler(handler)
    left, right = (spark.read.parquet(str(path)) for path in sources)
    try:
        until = "only_2 < -1" if expression is F.expr else F.col("only_2") < -1
        fb.continuousJoin(left, right, ["key"], until, timeColumn="ts")
        assert not records
        with pytest.raises(AnalysisException):
            left.select(expression("only_2"))
        assert len(records) == 1
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def test_what_cannot_be_joined(spark, sources):
    left, right = (spark.read.parquet(str(path)) for path in sources)
    with pytest.raises(InvalidArgument, match="until is a bigint, not a condition"):
        fb.continuousJoin(left, right, "key", "x + 1", timeColumn="ts")
    with pytest.raises(UnknownColumn, match="missing"):
        fb.continuousJoin(left, right, "key", "missing = 1", timeColumn="ts")
    with pytest.raises(InvalidArgument, match="write a condition"):
        fb.continuousJoin(left, right, "key", None, timeColumn="ts")
