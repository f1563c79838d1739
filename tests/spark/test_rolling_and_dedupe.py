"""Aggregates over all rows of a key so far, and the first row of each key."""

import os
from collections import Counter
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from streams import assert_same, generate

import forebay as fb
from forebay.errors import InvalidArgument, MissingWatermark, UnsupportedType

AGGREGATES = [fb.count("*").alias("n"), fb.sum("i"), fb.max("s"), fb.approx_count_distinct("u")]
COLUMNS = [F.count, F.sum, F.max, F.approx_count_distinct]


@pytest.fixture
def stream(spark, tmp_path):
    return generate(spark, tmp_path, keys=15, rows=100)


def run(df, tmp_path, name="ck"):
    """The rows of each micro-batch."""
    batches = {}
    writer = df.writeStream.foreachBatch(lambda rows, batch: batches.__setitem__(batch, rows.localCheckpoint()))
    query = writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
    query.awaitTermination()
    return batches, query


def test_rolling_gives_a_row_for_each_key_of_a_batch(stream, tmp_path):
    df = fb.rolling(stream.streaming("1 second"), "key").agg(*AGGREGATES)
    batches, query = run(df, tmp_path)
    seen = []
    for batch, file in enumerate(["000", "001", "002", "003", "004"]):
        seen.append(f"{file}.parquet")
        static = stream.static.withColumn("file", F.col("_metadata.file_name")).where(F.col("file").isin(seen))
        keys = static.where(F.col("file") == seen[-1]).select("key").distinct()
        columns = [make(each.arguments[0]) for make, each in zip(COLUMNS, AGGREGATES, strict=True)]
        expected = static.groupBy("key").agg(columns[0].alias("n"), *columns[1:]).join(keys, "key", "leftsemi")
        if file == "002":  # an empty file
            assert batch not in batches or not batches[batch].count()
            continue
        assert assert_same(batches[batch], expected, 0) > 10
    count = stream.static.count()
    assert fb.progress(query).rowsIn == count
    packed = [operator for batch in fb.recentMetrics(query) for operator in batch["operators"]]
    assert (
        sum(operator["packedRows"] for operator in packed) == sum(operator["combinedRows"] for operator in packed) == count
    )
    assert sum(operator["packedOut"] for operator in packed) <= 15 * 4 * 2  # a partial aggregate for each key of each task
    assert count / 15 < sum(operator["hottestKeyRows"] for operator in packed) < count / 2


def test_a_hot_key_is_named(spark, tmp_path):
    rows = spark.range(20_000).selectExpr("if(id % 4 = 0, id, 7) AS card", "concat('m', id % 2) AS merchant", "id AS amount")
    rows.coalesce(1).write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "rows"))
    two_keys = fb.rolling(fb.rolling(stream, "card", "merchant").agg(fb.count("*").alias("n")), "n").agg(fb.count("*"))
    _, query = run(two_keys, tmp_path)
    operators = [operator for batch in fb.recentMetrics(query) for operator in batch["operators"] if operator["packedRows"]]
    hottest = {operator["packedRows"]: operator["hottestKey"] for operator in operators}
    assert hottest == {20_000: "(7, 'm1')", 5_002: "1"}


@pytest.mark.slow
def test_rolling_gives_a_row_for_each_row(stream, tmp_path):
    df = fb.rolling(stream.streaming("1 second"), "key", emit="every").agg(fb.count("*").alias("n"), fb.sum("i").alias("i"))
    batches, _ = run(df, tmp_path)
    rows = [row for batch in sorted(batches) for row in batches[batch].collect()]
    assert Counter((row.key, row.n) for row in rows) == Counter(
        (key, n) for key, count in stream.static.groupBy("key").count().collect() for n in range(1, count + 1)
    )
    totals = {row.key: row.i for row in sorted(rows, key=lambda row: row.n)}
    assert totals == {row.key: row.i for row in stream.static.groupBy("key").agg(F.sum("i").alias("i")).collect()}


def test_dedupe_keeps_what_spark_keeps_within_a_watermark(stream, tmp_path):
    """Of keys in the same micro-batches, with NULLs; then windows over what was kept."""
    delay = "20 seconds"
    df = stream.streaming(delay).where("ts is not null")
    kept = fb.dedupe(df, ["k_string", F.col("i") % 10], within=delay)
    assert kept.schema == df.schema
    mine, query = run(kept, tmp_path)
    theirs, _ = run(
        df.withColumn("ten", F.col("i") % 10).dropDuplicatesWithinWatermark(["k_string", "ten"]), tmp_path, "ck2"
    )
    ten = F.col("i") % 10
    for batch in theirs:
        found, expected = (
            Counter(map(tuple, df.select("k_string", ten).collect())) if df is not None else Counter()
            for df in (mine.get(batch), theirs[batch])
        )
        assert found == expected
    total = sum(rows.count() for rows in mine.values())
    assert 50 < total < stream.static.count() / 2
    progress = fb.progress(query)
    assert progress.rowsOut == total
    assert progress.stateRows == 0


def test_rows_without_a_time_are_let_through_as_by_spark(spark, tmp_path):
    """As Spark does: they are never late, and remembered until a micro-batch that has a watermark has ended."""
    (tmp_path / "in").mkdir()
    for number in range(4):
        at = datetime(2024, 1, 1, 12, number)
        rows = [(at, f"timed {number}"), (None, "a"), (None, "a"), (None, f"b {number}"), (at, "known"), (None, "known")]
        table = pa.table({"ts": pa.array([ts for ts, _ in rows], pa.timestamp("us", "UTC")), "k": [key for _, key in rows]})
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
        os.utime(tmp_path / "in" / f"{number}.parquet", (number, number))
    source = spark.readStream.schema("ts timestamp, k string").option("maxFilesPerTrigger", 1)
    df = source.parquet(str(tmp_path / "in")).withWatermark("ts", "1 hour")
    mine, query = run(fb.dedupe(df, "k", within="1 hour"), tmp_path)
    theirs, _ = run(df.dropDuplicatesWithinWatermark(["k"]), tmp_path, "ck2")
    found, expected = ([sorted(row.k for row in some[batch].collect()) for batch in range(4)] for some in (mine, theirs))
    assert found == expected
    assert all({f"b {batch}", f"timed {batch}"} <= {*keys} for batch, keys in enumerate(found))
    assert [[key in keys for keys in found] for key in ("a", "known")] == [[True, False, True, True], [True, *[False] * 3]]
    assert fb.progress(query).rowsLate == 0


@pytest.mark.slow
def test_windows_over_what_was_kept(stream, tmp_path):
    df = stream.streaming("20 seconds")
    kept = fb.dedupe(df, ["k_string", "i"], within="1 minute")
    counts = fb.groupBy(kept, fb.window("ts", "10 seconds")).agg(fb.count("*").alias("n"))
    batches, _ = run(counts, tmp_path)
    alone, _ = run(kept, tmp_path, "alone")
    rows = alone[0]
    for batch in sorted(alone)[1:]:
        rows = rows.union(alone[batch])
    expected = {
        row.window: row.n for row in rows.groupBy(F.window("ts", "10 seconds")).agg(F.count("*").alias("n")).collect()
    }
    found = {row.window: row.n for each in batches.values() for row in each.collect()}
    assert len(found) > 3
    assert found.items() <= expected.items()


@pytest.mark.parametrize("streaming", [True, False])
def test_columns_that_are_no_keys_may_have_any_type(stream, tmp_path, streaming):
    """They are not kept in state."""
    beside = [
        "map('i', i) AS headers",
        "named_struct('m', map(1, array(i))) AS nested",
        "collate(k_string, 'UTF8_LCASE') AS word",
        "parse_json(string(i)) AS json",
    ]
    df = (stream.streaming("20 seconds") if streaming else stream.static).selectExpr("ts", "u", "i", *beside)
    df = df.where("ts is not null") if streaming else df
    kept = fb.dedupe(df, "u", within="1 hour")
    assert kept.schema.simpleString() == df.schema.simpleString()
    if not streaming:
        found = kept.collect()
    else:
        batches, _ = run(kept, tmp_path)
        found = [row for each in batches.values() for row in each.collect()]
    assert len(found) > 50
    for row in found:
        assert row.headers == {"i": row.i} and row.nested.m == {1: [row.i]} and (row.json and row.json.toPython()) == row.i
    with pytest.raises(UnsupportedType, match="headers is a map<string,int>"):
        fb.dedupe(df, "headers", within="1 hour")
    with pytest.raises(UnsupportedType, match="month is a interval month, which Spark cannot hand to Python"):
        fb.dedupe(df.selectExpr("*", "interval '1' month AS month"), "u", within="1 hour")


def test_a_batch_is_deduplicated_by_key(stream):
    kept = fb.dedupe(stream.static, "key", within="1 second")
    assert kept.count() == stream.static.select("key").distinct().count()
    assert fb.rolling(stream.static, "key").agg(fb.count("*")).count() == kept.count()


@pytest.mark.thorough
def test_a_day_has_24_hours_where_clocks_change(spark, tmp_path):
    """In the night in which Berlin loses an hour a key is known for 24 hours, not for 23."""
    rows = [
        ("30T12:00", "a"),
        ("31T11:10", "b"),
        ("31T11:15", "c"),
        ("31T11:20", "a"),  # 23.3 hours after the first one
        ("31T12:30", "d"),
        ("31T12:35", "e"),
        ("31T12:40", "a"),
    ]
    (tmp_path / "in").mkdir()
    for number, (time, key) in enumerate(rows):
        ts = pa.array([datetime.fromisoformat(f"2024-03-{time}:00+00:00")], pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"ts": ts, "key": [key]}), tmp_path / "in" / f"{number}.parquet")
        os.utime(tmp_path / "in" / f"{number}.parquet", (number, number))
    source = spark.readStream.schema("ts timestamp, key string").option("maxFilesPerTrigger", 1)
    df = source.parquet(str(tmp_path / "in")).withWatermark("ts", "1 second")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        batches, _ = run(fb.dedupe(df, "key", within="1 day"), tmp_path)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    kept = [row.minute for rows in batches.values() for row in rows.select(F.expr("minute(ts) minute")).collect()]
    assert sorted(kept) == [0, 10, 15, 30, 35, 40]


def test_columns_of_any_name(spark, stream):
    df = stream.streaming("1 second").select(F.col("ts").alias("event.time"), F.col("key").alias("a`b"))
    assert fb.dedupe(df, "`a``b`", within="1 second").schema == df.schema
    counts = fb.groupBy(stream.streaming("1 second"), fb.window("ts", "10 seconds"), "key").agg(fb.count("*"))
    with pytest.raises(UnsupportedType, match="window_time"):
        fb.dedupe(counts, "key", within="1 minute")
    timed = counts.withColumn("at", F.window_time("window"))
    assert fb.dedupe(timed, "key", within="1 minute").columns == ["window", "key", "count(1)", "at"]
    with pytest.raises(InvalidArgument, match=r"key.* is ambiguous"):
        fb.dedupe(stream.static.select("ts", "key", F.col("i").alias("key")), "ts", within="1 minute")


def test_what_is_refused(spark, stream):
    with pytest.raises(InvalidArgument, match="'batch' or 'every'"):
        fb.rolling(stream.static, "key", emit="row")
    with pytest.raises(InvalidArgument, match="at least one key"):
        fb.dedupe(stream.static, [], within="1 second")
    with pytest.raises(InvalidArgument, match="not a duration"):
        fb.dedupe(stream.static, "key", within="often")
    with pytest.raises(InvalidArgument, match="not positive"):
        fb.dedupe(stream.static, "key", within="0 seconds")
    with pytest.raises(MissingWatermark, match="withWatermark"):
        fb.dedupe(spark.readStream.format("rate").load(), "value", within="1 second")
