"""A stopped query gets another number of state partitions, and goes on as if it had always had them."""

import functools
import json
import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from streams import generate
from test_recovery import push_watermark, run

import forebay as fb
from forebay.errors import CorruptState, InvalidArgument, UnsupportedConfiguration, VersionNotFound
from forebay.state import inspection

DELAY = "10 minutes"
FIELDS = {"tumbling": "window", "sliding": "window", "sessions": "session_window", "chained": "window"}


@pytest.fixture
def virtual_nodes(spark):
    spark.conf.set("spark.forebay.virtualNodes", "8")
    yield
    spark.conf.unset("spark.forebay.virtualNodes")


@pytest.fixture
def stream(spark, tmp_path, virtual_nodes):
    return generate(spark, tmp_path, keys=20, rows=100)


def operators(df):
    """Results of operators of each pattern, and of one over the results of another."""
    tumbling = fb.groupBy(df, fb.window("ts", "10 seconds"), "key").agg(fb.median("x").alias("value"))
    sliding = fb.groupBy(df, fb.window("ts", "10 seconds", "5 seconds"), "key").agg(fb.sum("l").alias("value"))
    sessions = fb.groupBy(df, fb.session_window("ts", "3 seconds"), "key").agg(fb.count("*").alias("value"))
    again = fb.window(F.window_time("window"), "1 minute")
    left, right = df.select("ts", "key", "u"), df.where("u % 3 = 0").select("ts", "key", F.col("u").alias("v"))
    return {
        "tumbling": tumbling,
        "sliding": sliding,
        "sessions": sessions,
        "chained": fb.groupBy(sliding, again, "key").agg(fb.max("value").alias("value")),
        "joined": fb.intervalJoin(left, right, "key", "-1 second", "2 seconds", timeColumn="ts").select("key", "u", "v"),
    }


def in_spark(df):
    """The same as Spark has it."""
    sliding = df.groupBy(F.window("ts", "10 seconds", "5 seconds"), "key").agg(F.sum("l").alias("value"))
    left, right = df.select("ts", "key", "u").alias("l"), df.where("u % 3 = 0").select("ts", "key", F.col("u").alias("v"))
    between = (F.unix_micros("r.ts") - F.unix_micros("l.ts")).between(-1_000_000, 2_000_000)
    joined = left.join(right.alias("r"), between & (F.col("l.key") == F.col("r.key")))
    return {
        "tumbling": df.groupBy(F.window("ts", "10 seconds"), "key").agg(F.median("x").alias("value")),
        "sliding": sliding,
        "sessions": df.groupBy(F.session_window("ts", "3 seconds"), "key").agg(F.count("*").alias("value")),
        "chained": sliding.groupBy(F.window(F.window_time("window"), "1 minute"), "key").agg(F.max("value").alias("value")),
        "joined": joined.select("l.key", "u", "v"),
    }


def as_text(results, kinds):
    found = {kind: results[kind].select(F.lit(kind).alias("kind"), F.to_json(F.struct("*")).alias("row")) for kind in kinds}
    return functools.reduce(DataFrame.union, found.values())


def counted(df):
    """How often each row of a kind is there, but for those of the row that ends all windows."""
    return sorted(tuple(row) for row in df.where("row not like '%T01:%'").groupBy("kind", "row").count().collect())


def a_file_at_a_time(stream, directory):
    """The stream with files that arrive one after another, and a function that has the next ones arrive."""
    waiting = sorted(Path(stream.path).iterdir())
    there = directory / "arrived"
    there.mkdir()
    schema = stream.spark.read.parquet(stream.path).schema
    source = stream.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(there))

    def arrive(number):
        for _ in range(number):
            shutil.copy2(waiting[0], there / waiting.pop(0).name)

    return source.withColumn("k_interval", F.lit(None)).withWatermark("ts", DELAY), arrive


def partitions(checkpoint):
    """Which virtual nodes Spark's state has in each partition of each operator."""
    spark, found = SparkSession.getActiveSession(), {}
    for operator in (checkpoint / "state").iterdir():
        state = spark.read.format("statestore").option("operatorId", operator.name).option("stateVarName", "version")
        for row in state.load(str(checkpoint)).collect():
            found.setdefault(operator.name, {}).setdefault(row.partition_id, []).append(row.key.vnode)
    return found


@pytest.mark.parametrize(
    ("kinds", "numbers"),
    [
        (["sliding", "sessions"], [4]),
        pytest.param(["tumbling", "sliding", "sessions", "chained", "joined"], [4, 2, 8, 1], marks=pytest.mark.slow),
    ],
)
def test_a_rescaled_query_gives_what_spark_gives(spark, stream, tmp_path, kinds, numbers):
    push_watermark(stream, 1)
    df, arrive = a_file_at_a_time(stream, tmp_path)
    result, checkpoint = as_text(operators(df), kinds), tmp_path / "ck"
    arrive(2)
    run(result, checkpoint)
    for number in numbers:
        files = {path for path in (checkpoint / "forebay").rglob("*") if path.is_file()}
        fb.rescale(str(checkpoint), number)
        assert files == {path for path in (checkpoint / "forebay").rglob("*") if path.is_file()}
        for placed in partitions(checkpoint).values():
            assert sorted(map(len, placed.values())) == [8 // number] * number
        arrive(1)
        query = run(result, checkpoint)
    arrive(4 - len(numbers))
    query = run(result, checkpoint)
    expected = counted(as_text(in_spark(stream.static), kinds))
    assert counted(spark.read.schema(result.schema).parquet(str(tmp_path / "out"))) == expected
    assert fb.progress(query).rowsLate == 0
