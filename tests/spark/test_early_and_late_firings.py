"""Panes of a stream: they add up to, or end with, what Spark's batch gives, and late rows are part of them."""

import time

import pytest
from pyspark.sql import functions as F
from streams import generate, run

import forebay as fb
from forebay.errors import InvalidArgument


@pytest.fixture(scope="module")
def source(spark, tmp_path_factory):
    return generate(spark, tmp_path_factory.mktemp("panes"), keys=8, rows=300)


def counted(spark, source, tmp_path, name, window, **settings):
    """Panes whose window ends before the last watermark, and the query."""
    grouped = fb.groupBy(source.streaming("1 second"), window, "key").firing(**settings)
    query = run(grouped.agg(fb.count("*").alias("n"), fb.sum("u").alias("u"), fb.median("u").alias("m")), tmp_path, name)
    watermark = query.lastProgress["eventTime"]["watermark"]
    panes = spark.table(name)
    return panes.where(F.col(f"{panes.columns[0]}.end") <= F.lit(watermark).cast("timestamp")), query


def expected(source, window, panes):
    rows = source.static.where("ts is not null").groupBy(window, "key").agg(F.count("*").alias("n"), F.sum("u").alias("u"))
    (last,) = panes.agg(F.max("window.end")).first()
    return {(r.window.start, r.key): (r.n, r.u) for r in rows.collect() if r.window.end <= last}


@pytest.mark.parametrize("accumulate", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_panes_of_aligned_windows(spark, source, tmp_path, accumulate):
    window = fb.window("ts", "30 seconds", "10 seconds")
    settings = {"every": "5 seconds", "allowedLateness": "10 minutes", "accumulate": accumulate}
    panes, query = counted(spark, source, tmp_path, f"panes_{accumulate}", window, **settings)
    wanted = expected(source, F.window("ts", "30 seconds", "10 seconds"), panes)
    kind = F.max if accumulate else F.sum  # counts and sums of numbers from 0 on only grow
    found = panes.groupBy("window", "key").agg(kind("n").alias("n"), kind("u").alias("u"), F.count("*").alias("panes"))
    assert {(r.window.start, r.key): (r.n, r.u) for r in found.collect()} == wanted
    assert found.agg(F.max("panes")).first()[0] > 2
    assert fb.progress(query).rowsLate == 0


@pytest.mark.slow
def test_sessions_that_late_rows_change(spark, source, tmp_path):
    panes, query = counted(
        spark, source, tmp_path, "late_sessions", fb.session_window("ts", "1 second"), allowedLateness="10 minutes"
    )
    sessions = source.static.where("ts is not null").groupBy(F.session_window("ts", "1 second").alias("window"), "key")
    (last,) = panes.agg(F.max("session_window.end")).first()
    wanted = {tuple(row) for row in sessions.count().collect() if row.window.end <= last}
    found = {tuple(row) for row in panes.select("session_window", "key", "n").collect()}
    assert wanted <= found
    assert fb.progress(query).rowsLate == 0


@pytest.mark.slow
def test_panes_of_a_function_of_rows(spark, source, tmp_path):
    """Panes of the rows since the last one have each row once; the others are in state, by window and key."""

    def numbers(key, rows):
        return rows.select("u")

    df = source.streaming("1 second").select("ts", "key", "u")
    grouped = fb.groupBy(df, fb.window("ts", "10 seconds"), "key").firing(allowedLateness="1 second", accumulate=False)
    run(grouped.agg(fb.apply(numbers, "u long")), tmp_path, "numbers")
    found = spark.table("numbers")
    assert found.count() == found.select("u").distinct().count() > 500
    fb.registerStateSource(spark)
    state = spark.read.format("forebay-state").option("path", str(tmp_path)).load()
    assert {"start", "end", "a_u"} <= {*state.columns}
    assert state.where("end is null").count() == 0 < state.count()


def test_of_a_batch_and_what_is_refused(source):
    rows = source.static.where("ts is not null")
    once = fb.groupBy(rows, fb.window("ts", "10 seconds"), "key")
    plain, firing = (g.agg(fb.count("*")).collect() for g in (once, once.firing(every="1 second")))
    assert sorted(map(repr, plain)) == sorted(map(repr, firing))
    with pytest.raises(InvalidArgument, match="windows over event time"):
        fb.groupBy(rows, fb.count_window(3), "key").firing(every="1 second")
    with pytest.raises(InvalidArgument, match="every '0 seconds' is not positive"):
        once.firing(every="0 seconds")
    with pytest.raises(InvalidArgument, match="is negative"):
        once.firing(allowedLateness="-1 second")


def silent(df):
    return fb.groupBy(df, fb.window("ts", "10 seconds")).firing(idleTimeout="1 second").agg(fb.count("*").alias("n"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "operator",
    [
        silent,
        lambda df: fb.groupBy(df, fb.global_window(every="15 seconds")).agg(fb.count("*").alias("n")),
        lambda df: fb.buffer(df, F.lit(0), interval="15 seconds").selectExpr("1 n"),
    ],
    ids=["idle timeout", "global window", "buffer"],
)
def test_wall_clock_goes_on_after_a_restart_without_data(spark, tmp_path, operator):
    """The query was stopped when all that it had begun was committed, with rows that waited."""
    rows = spark.range(7).selectExpr("timestamp_seconds(1704067200 + id) ts", "id key")
    for part in range(2):
        rows.where(f"key div 6 = {part}").coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    found, checkpoint = [], tmp_path / "ck"
    results = operator(stream.withWatermark("ts", "1 second"))
    writer = results.writeStream.foreachBatch(lambda batch, _: found.extend(row.n for row in batch.collect()))
    writer = writer.option("checkpointLocation", str(checkpoint))
    time.sleep(15 - time.time() % 15)  # the first micro-batch fires, the second one does not
    query, until = writer.trigger(processingTime="5 seconds").start(), time.monotonic() + 100
    while not (checkpoint / "commits" / "1").exists() and time.monotonic() < until:
        time.sleep(0.1)
    query.stop()
    assert sum(found) < 7
    assert not (checkpoint / "offsets" / "2").exists()
    query = writer.trigger(processingTime="500 milliseconds").start()
    while sum(found) < 7 and time.monotonic() < until:
        time.sleep(0.2)
    query.stop()
    assert found in ([7], [6, 7], [1] * 7)


@pytest.mark.thorough
def test_changed_query_waits_for_a_row(spark, tmp_path):
    """A micro-batch without data would settle the change, though no virtual node has looked at its state."""
    rows = spark.range(3).selectExpr("timestamp_seconds(1704067200 + id) ts", "id")
    rows.coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))

    def started(trigger, *more):
        results = fb.groupBy(stream, fb.global_window(every="1 hour")).agg(fb.count("*"), *more)
        writer = results.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "ck"))
        return writer.trigger(processingTime=trigger).start()

    def until(happened):
        end = time.monotonic() + 60
        while not happened() and time.monotonic() < end:
            time.sleep(0.1)
        assert happened()

    query = started("1 hour")
    until((tmp_path / "ck" / "commits" / "0").exists)
    query.stop()
    query = started("1 second", fb.sum("id"))
    until(lambda: query.status["message"].startswith("Waiting"))
    query.stop()
    assert not (tmp_path / "ck" / "offsets" / "1").exists()
    query = started("1 second")
    until((tmp_path / "ck" / "commits" / "1").exists)
    query.stop()


@pytest.mark.thorough
def test_windows_of_a_stream_that_has_fallen_silent(spark, tmp_path):
    """All rows come out, those of the last windows too; nobody sends a row to move the watermark past them.

    Every micro-batch that has results fails once, after its state is written.
    """
    rows = spark.range(1000).selectExpr("timestamp_millis(1704067200000 + id * 20) ts", "id % 5 key")
    rows.write.parquet(str(tmp_path / "in"))
    df = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in")).withWatermark("ts", "1 second")
    grouped = fb.groupBy(df, fb.window("ts", "2 seconds"), "key").firing(idleTimeout="2 seconds")
    found, failed = {}, set()

    def write(batch, number):
        result = batch.collect()
        if result and number not in failed:
            failed.add(number)
            raise RuntimeError("on purpose")
        found[number] = result

    writer = grouped.agg(fb.count("*").alias("n")).writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(tmp_path / "ck")).trigger(processingTime="500 milliseconds")
    query, until = writer.start(), time.monotonic() + 200
    while sum(row.n for result in found.values() for row in result) < 1000 and time.monotonic() < until:
        time.sleep(0.5)
        if not query.isActive:
            assert "on purpose" in str(query.exception())
            query = writer.start()
    query.stop()
    expected = rows.groupBy(F.window("ts", "2 seconds"), "key").agg(F.count("*").alias("n"))
    assert sorted(repr(row) for result in found.values() for row in result) == sorted(map(repr, expected.collect()))
    assert len(failed) > 1
    with pytest.raises(InvalidArgument, match="goes by the wall clock"):
        fb.late(grouped.agg(fb.count("*")))
