"""Operators over the results of an operator of forebay, in one query, each with its watermark."""

import time
from collections import Counter

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import forebay as fb
from forebay import nexmark
from forebay.nexmark import run

OPTIONS = {"type": "bid", "rate": "500", "avgBidByteSize": "32", "maxEventsPerTrigger": "10000"}
EVENTS = 30_000


@pytest.fixture
def counts_in_batch(spark):
    nexmark.register(spark)
    bids = spark.read.format("nexmark").options(**OPTIONS, events=EVENTS).load()
    last = EVENTS // 500 - 5  # seconds: the watermark is 4 s behind the last bid, which is in the last second
    counts = bids.groupBy(F.window("dateTime", "10 seconds", "5 seconds"), "auction").agg(F.count("*").alias("bids"))
    return counts.localCheckpoint().where(F.unix_seconds("window.end") - 1_704_067_200 <= last)


@pytest.mark.slow
def test_spark_aggregates_the_results(spark, counts_in_batch, tmp_path):
    stream = (
        spark.readStream.format("nexmark").options(**OPTIONS, events=EVENTS).load().withWatermark("dateTime", "4 seconds")
    )
    counts = fb.groupBy(stream, fb.window("dateTime", "10 seconds", "5 seconds"), "auction").agg(fb.count("*").alias("bids"))
    most = counts.groupBy("window").agg(F.max("bids"), F.count("*"))
    run.run(most, tmp_path)
    found = spark.read.schema(most.schema).parquet(str(tmp_path / "out"))
    expected = counts_in_batch.groupBy("window").agg(F.max("bids"), F.count("*"))
    assert Counter(map(tuple, found.collect())) == Counter(map(tuple, expected.collect()))


@pytest.mark.slow
def test_chained_operators_go_on_after_restarts(spark, counts_in_batch, tmp_path):
    for events in (EVENTS // 3, 2 * EVENTS // 3, EVENTS):
        results = run.results(spark, "q5", {**OPTIONS, "events": str(events)})
        run.run(results, tmp_path)
    found = spark.read.schema(results.schema).parquet(str(tmp_path / "out"))
    ranked = counts_in_batch.groupBy("window").agg(F.max("bids").alias("bids")).join(counts_in_batch, ["window", "bids"])
    expected = ranked.select("window", "auction", "bids").collect()
    assert len(expected) >= 10
    assert Counter(map(tuple, found.collect())) == Counter(map(tuple, expected))


@pytest.mark.slow
def test_explain_names_both_operators(spark, capsys):
    nexmark.register(spark)
    fb.explain(run.results(spark, "q5", {**OPTIONS, "events": "1000"}))
    printed = capsys.readouterr().out
    assert printed.count("pattern     RMW") == 2


@pytest.mark.thorough
@pytest.mark.parametrize("through", ["a view", pytest.param("itself", marks=pytest.mark.slow)])
def test_update_mode_is_refused(spark, tmp_path, capsys, through):
    nexmark.register(spark)
    stream = spark.readStream.format("nexmark").options(**OPTIONS, events=1000).load().withWatermark("dateTime", "4 seconds")
    counts = fb.groupBy(stream, fb.window("dateTime", "10 seconds"), "auction").agg(fb.count("*").alias("bids"))
    if through == "a view":
        counts.createOrReplaceTempView("counts")
        counts = spark.table("counts")
        fb.explain(counts)
        assert "pattern     RMW" in capsys.readouterr().out
    totals = fb.groupBy(counts, fb.window(F.window_time("window"), "10 seconds")).agg(fb.sum("bids"))
    writer = totals.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="over the results of another one"):
        query.awaitTermination()


@pytest.mark.thorough
def test_results_that_are_used_twice_in_a_query(spark, tmp_path):
    """Spark would have both operators read one shuffle, and only one of them would have a watermark."""
    ticks = spark.range(100).selectExpr("timestamp_seconds(id) t", "id % 7 item")
    for part in (ticks.where("id < 50"), ticks.where("id >= 50"), spark.sql("select timestamp_seconds(1000) t, 0L item")):
        part.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    reader = spark.readStream.schema(ticks.schema).option("maxFilesPerTrigger", 1)
    stream = reader.parquet(str(tmp_path / "in")).withWatermark("t", "0 seconds")
    medians = fb.groupBy(stream, fb.window("t", "10 seconds"), "item").agg(fb.median(F.unix_seconds("t")))
    both = medians.where("item > 0").union(medians.where("item < 3"))
    writer = both.writeStream.format("memory").queryName("twice").option("checkpointLocation", str(tmp_path / "ck"))
    writer.trigger(availableNow=True).start().awaitTermination()
    expected = ticks.groupBy(F.window("t", "10 seconds"), "item").agg(F.median(F.unix_seconds("t")))
    found = Counter(map(tuple, spark.table("twice").collect()))
    assert found == Counter(map(tuple, expected.where("item > 0").union(expected.where("item < 3")).collect()))
    assert spark.conf.get("spark.sql.exchange.reuse") == "true"


@pytest.mark.thorough
def test_a_micro_batch_without_rows_fires_what_is_due_in_each_operator(spark, tmp_path):
    """Also in one whose input has no rows for any of its virtual nodes."""
    ticks = spark.range(100).selectExpr("timestamp_seconds(id) t", "id % 7 item")
    ticks.coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(ticks.schema).parquet(str(tmp_path / "in")).withWatermark("t", "0 seconds")
    found = fb.groupBy(stream, fb.window("t", "10 seconds"), "item").agg(fb.count("*").alias("n"))
    for length in ("20 seconds", "40 seconds"):
        at = F.window_time("window").alias("at")
        found = fb.groupBy(found.select(at, "item", "n"), fb.window("at", length), "item").agg(fb.sum("n").alias("n"))
    writer = found.writeStream.format("memory").queryName("fired").option("checkpointLocation", str(tmp_path / "ck"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert [batch.numInputRows for batch in query.recentProgress] == [100, 0]
    expected = ticks.where("id < 80").groupBy(F.window("t", "40 seconds"), "item").agg(F.count("*"))
    assert Counter(map(tuple, spark.table("fired").collect())) == Counter(map(tuple, expected.collect()))


@pytest.mark.thorough
def test_late_rows_of_an_operator_are_no_results_of_it(spark, tmp_path):
    """What aggregates them reads the source, so that nothing but a timer runs it in a micro-batch without rows."""
    seconds = spark.range(0, 3 * 3600, 30).selectExpr("timestamp_seconds(id) t", "id % 7 item")
    seconds.coalesce(1).write.parquet(str(tmp_path / "in"))
    for second in (10_770, 9000, 20_000):
        one = spark.sql(f"select timestamp_seconds({second}) t, 99L item")
        one.write.mode("append").parquet(str(tmp_path / "in"))
    reader = spark.readStream.schema(seconds.schema).option("maxFilesPerTrigger", 1)
    stream = reader.parquet(str(tmp_path / "in")).withWatermark("t", "0 seconds")
    late = fb.late(fb.groupBy(stream, fb.window("t", "1 minute"), "item").agg(fb.count("*")))
    found = fb.groupBy(late, fb.window("t", "1 hour")).agg(fb.count("*").alias("n"))
    writer = found.writeStream.format("memory").queryName("hours").option("checkpointLocation", str(tmp_path / "ck"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert [row.n for row in spark.table("hours").collect()] == [1]


@pytest.mark.thorough
def test_checkpoints_with_timers_go_on(spark, tmp_path, caplog):
    ticks = spark.range(100).selectExpr("timestamp_seconds(id) t", "id % 7 item")

    def counts(timers):
        spark.conf.set("spark.forebay.chainedTimers", timers)
        try:
            stream = spark.readStream.schema(ticks.schema).parquet(str(tmp_path / "in")).withWatermark("t", "0 seconds")
            mine = fb.groupBy(stream, fb.window("t", "10 seconds"), "item").agg(fb.count("*").alias("n"))
            mine = fb.groupBy(mine, fb.window(F.window_time("window"), "20 seconds"), "item").agg(fb.sum("n").alias("n"))
        finally:
            spark.conf.unset("spark.forebay.chainedTimers")
        writer = mine.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "ck"))
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()

    ticks.where("id < 50").write.parquet(str(tmp_path / "in"))
    counts("true")
    ticks.where("id >= 50").write.mode("append").parquet(str(tmp_path / "in"))
    with pytest.raises(StreamingQueryException, match="timeMode"):
        counts("false")
    given_up = time.monotonic() + 30
    while "Set spark.forebay.chainedTimers to true" not in caplog.text:  # listeners are told when a query has ended already
        assert time.monotonic() < given_up
        time.sleep(0.05)
    counts("true")
    expected = ticks.where("id < 80").groupBy(F.window("t", "20 seconds"), "item").agg(F.count("*"))
    found = spark.read.parquet(str(tmp_path / "out"))
    assert Counter(map(tuple, found.collect())) == Counter(map(tuple, expected.collect()))


def test_the_same_windows_over_a_source_may_update(spark, tmp_path):
    """That they cannot over the results of another operator is no matter of theirs."""
    ticks = spark.range(100).selectExpr("timestamp_seconds(id) t", "id % 7 item")
    ticks.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(ticks.schema).parquet(str(tmp_path / "in")).withWatermark("t", "1 second")

    def counts(df):
        return fb.groupBy(df, fb.window("t", "50 seconds")).agg(fb.count("*").alias("n"))

    mine = counts(stream)
    counts(fb.dedupe(stream, "item", within="1 hour"))
    writer = mine.writeStream.format("memory").queryName("updates").outputMode("update")
    writer.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start().awaitTermination()
    assert sorted(row.n for row in spark.table("updates").collect()) == [50, 50]


def test_operators_chain_in_a_batch(spark):
    ticks = spark.range(100).selectExpr("timestamp_seconds(id) t", "id % 7 item")
    counts = fb.groupBy(ticks, fb.window("t", "10 seconds"), "item").agg(fb.count("*").alias("n"))
    most = fb.groupBy(counts, fb.window(F.window_time("window"), "10 seconds")).agg(
        fb.max("n"), fb.count("*").alias("items")
    )
    assert [(row["max(n)"], row["items"]) for row in most.orderBy("window").collect()] == [(2, 7)] * 10
