"""Keys that somebody chose so that a hash that is known cannot tell them apart are different keys all the same."""

import pytest
from pyspark.sql import functions as F

import forebay as fb
from chosen_keys import chosen_keys


@pytest.fixture(scope="module")
def pairs(spark):
    """Two rows of each of 64 pairs of keys, a second apart, with the number of the key."""
    keys = [bytearray(key) for pair in chosen_keys(64) for key in pair]
    rows = [(key, number) for number, key in enumerate(keys)]
    df = spark.createDataFrame(rows, "key binary, n int")
    alike = df.groupBy(F.xxhash64("key")).count().where("count > 1").count()
    assert alike > 10, "these keys are to be alike for the hash that decides their virtual nodes"
    return df.withColumn("at", F.timestamp_seconds(F.col("n") % 2)).coalesce(1)


def test_sessions(pairs):
    sessions = fb.groupBy(pairs, fb.session_window("at", "10 seconds"), "key").agg(fb.collect_list("n").alias("ns"))
    assert sorted(row.ns for row in sessions.collect()) == [[n] for n in range(128)]


def test_dedupe(pairs):
    assert fb.dedupe(pairs, "key", "1 hour").count() == 128
    assert fb.dedupe(pairs, [F.col("key"), F.lit(1)], "1 hour").count() == 128


def test_rolling(pairs):
    assert {row.total for row in fb.rolling(pairs, "key").agg(fb.sum("n").alias("total")).collect()} == {*range(128)}


def test_interval_join(pairs):
    joined = fb.intervalJoin(pairs, pairs, "key", "-10 seconds", "10 seconds", timeColumn="at")
    assert sorted((row.n, row.n_right) for row in joined.collect()) == [(n, n) for n in range(128)]
