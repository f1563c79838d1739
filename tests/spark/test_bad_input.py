"""What cannot run is refused before the query starts, by an error of ours that names the fix."""

import datetime
import logging
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import forebay as fb
from forebay.errors import (
    InvalidArgument,
    MissingWatermark,
    StateDirectoryError,
    UnknownColumn,
    UnsupportedConfiguration,
    UnsupportedType,
)
from forebay.spark.driver import unknown_settings
from forebay.spark.driver.binding import analysis


@pytest.fixture(scope="module")
def df(spark):
    return (
        spark.readStream.format("rate")
        .load()
        .withWatermark("timestamp", "1 minute")
        .selectExpr(
            "timestamp",
            "value as n",
            "cast(value as string) as s",
            "map('a', value) as m",
            "array(value) as a",
            "make_ym_interval(1, 2) as ym",
            "collate('x', 'UTF8_LCASE') as c",
            "timestamp is null as b",
        )
    )


def hourly(df, *keys):
    return fb.groupBy(df, fb.window("timestamp", "1 hour"), *keys)


def test_no_watermark(spark):
    df = spark.readStream.format("rate").load()
    with pytest.raises(MissingWatermark, match=r'df\.withWatermark\("timestamp", "10 minutes"\)'):
        hourly(df).agg(fb.count("*"))


def test_the_watermark_is_on_another_column(spark, df):
    """After a join the event time is that of the pair; to define a second watermark would lose all rows silently."""
    left = df.select("timestamp", "n", "s")
    joined = fb.intervalJoin(left, left.withColumnRenamed("timestamp", "at"), "n", "0 seconds", "1 minute", how="left")
    with pytest.raises(MissingWatermark, match="The watermark of this DataFrame is on event_time: window over that column"):
        fb.groupBy(joined, fb.window("timestamp", "1 hour")).agg(fb.count("*"))
    again = joined.withWatermark("timestamp", "1 minute")
    with pytest.raises(
        InvalidArgument, match="withWatermark on timestamp gives the results of an operator of forebay another"
    ):
        fb.groupBy(again, fb.window("timestamp", "1 hour")).agg(fb.count("*"))
    with pytest.raises(InvalidArgument, match="withWatermark on at"):
        fb.dedupe(joined.withWatermark("at", "1 minute").where("n > 1"), "n", "1 hour")
    fb.groupBy(joined, fb.window("event_time", "1 hour")).agg(fb.count("*"))


def test_results_that_go_by_the_wall_clock_have_no_watermark(df):
    """Spark hands none on: windows over them would never fire."""
    silent = hourly(df, "n").firing(idleTimeout="5 minutes").agg(fb.count("*").alias("many"))
    with pytest.raises(MissingWatermark):
        fb.groupBy(silent, fb.window(F.window_time("window"), "1 day")).agg(fb.sum("many"))
    calm = fb.buffer(df.select("timestamp", "n"), "n", interval="5 seconds")
    with pytest.raises(MissingWatermark):
        hourly(calm).agg(fb.count("*"))
    with pytest.raises(MissingWatermark):
        fb.dedupe(calm, "n", "1 hour")
    hourly(calm.withWatermark("timestamp", "1 minute")).agg(fb.count("*"))


def test_an_idle_timeout_after_a_join_of_streams_by_spark(df):
    """Its results have an earlier watermark than the query, by which an idle timeout goes."""
    left, right = df.select("timestamp", "n"), df.select(F.col("timestamp").alias("at"), F.col("n").alias("m"))
    joined = left.join(right, F.expr("n = m AND at BETWEEN timestamp AND timestamp + INTERVAL 15 minutes"))
    grouped = fb.groupBy(joined, fb.window("timestamp", "1 hour"))
    with pytest.raises(InvalidArgument, match="idleTimeout goes by the watermark of the query"):
        grouped.firing(idleTimeout="1 hour")
    grouped.firing(every="1 minute")
    together = left.join(right.withColumnRenamed("at", "timestamp"), ["timestamp"])
    fb.groupBy(together, fb.window("timestamp", "1 hour")).firing(idleTimeout="1 hour")
    static = df.sparkSession.range(3).withColumnRenamed("id", "n")
    fb.groupBy(left.join(static, "n"), fb.window("timestamp", "1 hour")).firing(idleTimeout="1 hour")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda df: fb.dedupe(df, 3, "1 hour"), "got 3 for a key"),
        (lambda df: fb.join(df, df, 3, fb.window("timestamp", "1 hour")), "got 3 for a key"),
        (lambda df: fb.intervalJoin(df, df, F.col("n"), "0 seconds", "1 hour"), "got a Column in on="),
        (lambda df: fb.continuousJoin(df, df, [F.col("n")], "n > 1"), "got a Column in on="),
        (lambda df: fb.groupBy(df, fb.window("timestamp", "1 hour"), 3), "got 3 for a key"),
        (lambda df: fb.groupBy(df, fb.window("timestamp", "1 hour"), {"n": 1}), r"got \{'n': 1\} for a key"),
        (lambda df: fb.groupBy(df, fb.window("timestamp", "1 hour"), "*"), "name the columns that are keys"),
        (lambda df: hourly(df).agg(fb.percentile("n", F.lit(0.5))), "it must be a number of Python"),
        (lambda df: hourly(df).agg(fb.sum(3)), r"sum\(\) got 3; it takes the name of a column"),
        (lambda df: hourly(df).agg(fb.sum(fb.count("n"))), r"sum\(\) got Aggregate"),
        (lambda df: hourly(df).agg(fb.count("n"), fb.when(None)), r"when\(\) got None"),
        (lambda df: hourly(df).agg(fb.apply(3, "a int")), r"apply\(\) got 3; it takes a function"),
        (lambda df: hourly(df).agg(fb.apply(lambda key, rows: rows, 3)), "got the schema 3"),
        (lambda df: fb.window(None, "1 hour"), r"window\(\) got None"),
        (lambda df: fb.preceding(None, "1 hour"), r"preceding\(\) got None"),
        (lambda df: fb.count_window(True), "size is True"),
        (lambda df: fb.intervalJoin(df, df, "n", "0 seconds", "1 hour", suffix=3), "suffix is 3"),
    ],
)
def test_keys_and_numbers_that_are_none(df, call, message):
    with pytest.raises(InvalidArgument, match=message):
        call(df.select("timestamp", "n"))


def test_a_function_that_cannot_be_sent_to_workers(df):
    lock = threading.Lock()
    with pytest.raises(InvalidArgument, match=r"cannot be sent to Python workers: .*_thread.lock.*make locks"):
        hourly(df.select("timestamp", "n")).agg(fb.apply(lambda key, rows: rows.head(lock.locked()), "n long"))


def test_a_session_that_was_stopped(df, monkeypatch):
    monkeypatch.setattr(df.sparkSession.sparkContext, "_jsc", None)
    with pytest.raises(UnsupportedConfiguration, match="of a session that was stopped"):
        hourly(df)


def test_null_without_a_type(df):
    with pytest.raises(UnsupportedType, match="cast it to the type"):
        hourly(df, F.lit(None).alias("nothing")).agg(fb.count("*"))


def test_an_expression_has_no_watermark(df):
    window = fb.window(F.col("timestamp") + F.expr("interval 1 hour"), "1 hour")
    with pytest.raises(MissingWatermark):
        fb.groupBy(df, window).agg(fb.count("*"))


def test_missing_time_column(df):
    with pytest.raises(UnknownColumn, match=r"'departed'; the DataFrame has timestamp, n, s"):
        fb.groupBy(df, fb.window("departed", "1 hour")).agg(fb.count("*"))


def test_time_column_of_another_type(df):
    with pytest.raises(UnsupportedType, match=r"n is a bigint; a timestamp is needed"):
        fb.groupBy(df, fb.window("n", "1 hour")).agg(fb.count("*"))


def test_unknown_columns(df):
    with pytest.raises(UnknownColumn, match="'carrier'"):
        hourly(df, "carrier").agg(fb.count("*"))
    with pytest.raises(UnknownColumn, match="'price'"):
        hourly(df).agg(fb.median("price"))
    with pytest.raises(UnknownColumn, match="`price`"):
        hourly(df).agg(fb.median(F.col("price") + 1))


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        (("ten minutes",), "windowDuration 'ten minutes' is not a duration; write for example"),
        (("",), "windowDuration '' is not a duration"),
        (("0 seconds",), "windowDuration '0 seconds' is not positive"),
        (("-1 hour",), "windowDuration '-1 hour' is not positive"),
        (("1 month",), "months or years, whose length varies"),
        (("60000000 days",), "is too long: times that are so far away have no results"),
        (("1 hour", "2 hours"), "slideDuration '2 hours' is longer than windowDuration '1 hour'"),
        (("1 hour", "0 seconds"), "slideDuration '0 seconds' is not positive"),
        (("1 hour", None, "90 minutes"), "startTime '90 minutes' must be shorter"),
        ((60,), "windowDuration is 60, neither a string nor a timedelta"),
    ],
)
def test_durations(df, durations, message):
    with pytest.raises(InvalidArgument, match=message):
        fb.groupBy(df, fb.window("timestamp", *durations)).agg(fb.count("*"))


@pytest.mark.parametrize(
    ("aggregate", "error", "message"),
    [
        (fb.median("a"), InvalidArgument, "Spark refuses"),
        (fb.sum("b"), InvalidArgument, "Spark refuses"),
        (fb.avg("a"), InvalidArgument, "Spark refuses"),
        (fb.bool_and("n"), InvalidArgument, "Spark refuses"),
        (fb.max("m"), InvalidArgument, "Spark refuses"),
        (fb.percentile("n", 1.5), InvalidArgument, "Spark refuses"),
        (fb.max("a"), UnsupportedType, r"would have to order array<bigint> values\. Write fb\.max_by\(value, order\)"),
        (fb.min_by("n", "a"), UnsupportedType, r"Write fb\.min_by\(value, order\)"),
        (fb.first("m"), UnsupportedType, r"map<string,bigint>, .* convert it first, for example with F\.to_json"),
        (fb.sum("ym"), UnsupportedType, "interval"),
        ("count", InvalidArgument, "agg.. got 'count'"),
    ],
    ids=str,
)
def test_aggregates_of_the_wrong_type(df, aggregate, error, message):
    with pytest.raises(error, match=message):
        hourly(df).agg(aggregate)


@pytest.mark.parametrize("function", [fb.max, fb.collect_list, fb.first], ids=lambda each: each.__name__)
def test_a_star_is_no_column(df, function):
    """Not even where there is one column, which it could stand for."""
    with pytest.raises(InvalidArgument, match=r"write count\('\*'\)|Spark refuses"):
        hourly(df).agg(function("*"))
    with pytest.raises(InvalidArgument, match=r"write count\('\*'\)"):
        fb.groupBy(df.select("timestamp"), fb.window("timestamp", "1 hour")).agg(function("*"))


def test_no_aggregate(df):
    with pytest.raises(InvalidArgument, match=r"Spark's own count\(n\); it takes forebay's .*, here fb.count$"):
        hourly(df).agg(F.count("n"))
    with pytest.raises(InvalidArgument, match=r"Spark's own skewness\(n\); .* for example fb.sum\('price'\)$"):
        hourly(df).agg(F.skewness("n"))
    with pytest.raises(InvalidArgument, match="got a list; it takes forebay's aggregates one by one"):
        hourly(df).agg([fb.count("n")])
    with pytest.raises(InvalidArgument, match="at least one aggregate"):
        hourly(df).agg()


def test_keys_of_an_unsupported_type(df):
    with pytest.raises(UnsupportedType, match="the key m is a map"):
        hourly(df, "m").agg(fb.count("*"))
    with pytest.raises(UnsupportedType, match=r"the key c is a .*UTF8_BINARY"):
        hourly(df, "c").agg(fb.count("*"))


def test_a_session_in_place_of_a_builder(df):
    with pytest.raises(InvalidArgument, match=r"a SparkSession; .* write fb\.configure\(SparkSession\.builder\)"):
        fb.configure(df.sparkSession)


def test_a_join_whose_sides_call_the_time_by_other_names(df):
    other = df.select(F.col("timestamp").alias("at"), "n")
    with pytest.raises(UnknownColumn, match=r"on the right side there is no column 'timestamp'; .* one name on both sides"):
        fb.join(df.select("timestamp", "n"), other, "n", fb.window("timestamp", "1 hour"))


def test_a_join_of_which_one_side_has_no_watermark(spark):
    raw = spark.readStream.format("rate").load()
    marked = raw.withWatermark("timestamp", "1 second")
    message = "on the right side the time column timestamp has no watermark"
    with pytest.raises(MissingWatermark, match=message):
        fb.join(marked, raw, "value", fb.window("timestamp", "1 hour"))
    with pytest.raises(MissingWatermark, match="on the left side none of the columns timestamp, value has a watermark"):
        fb.intervalJoin(raw, marked, "value", "0 seconds", "1 second")


def test_keys_are_there_where_spark_would_leave_them_out(df):
    had = hourly(df, "n").agg(fb.count("*")).schema
    df.sparkSession.conf.set("spark.sql.retainGroupColumns", "false")
    try:
        assert hourly(df, "n").agg(fb.count("*")).schema == had
        sessions = fb.groupBy(df, fb.session_window("timestamp", "1 hour"), "n").agg(fb.count("*"))
        assert sessions.columns == ["session_window", "n", "count(1)"]
    finally:
        df.sparkSession.conf.unset("spark.sql.retainGroupColumns")


def test_short_ways_that_spark_has(df):
    assert hourly(df, "n").count().columns == ["window", "n", "count"]
    assert hourly(df).max("n", "timestamp").columns == ["window", "max(n)", "max(timestamp)"]
    for name in ("sum", "avg", "mean", "min"):
        assert getattr(hourly(df), name)("n").schema == hourly(df).agg(getattr(fb, name)("n")).schema
    with pytest.raises(InvalidArgument, match="name the columns"):
        hourly(df).sum()


def test_a_window_that_is_none(df):
    with pytest.raises(InvalidArgument, match=r"got 'timestamp' for its window; write for example fb.window"):
        fb.groupBy(df, "timestamp").agg(fb.count("*"))
    with pytest.raises(InvalidArgument, match=r"got Spark's own window\(.*; write for example fb.window"):
        fb.groupBy(df, F.window("timestamp", "1 hour")).agg(fb.count("*"))


def test_durations_of_python(df):
    minutes = datetime.timedelta(minutes=1)
    told = [fb.window("timestamp", 60 * minutes, 10 * minutes, minutes), fb.session_window("timestamp", 2 * minutes)]
    meant = [fb.window("timestamp", "1 hour", "10 minutes", "1 minute"), fb.session_window("timestamp", "2 minutes")]
    for given, expected in zip(told, meant, strict=True):
        bound, wanted = (each.bind(df.sparkSession, F.col("timestamp")) for each in (given, expected))
        assert (bound.windows, bound.text) == (wanted.windows, wanted.text)
        assert given != expected
        assert fb.groupBy(df, given).agg(fb.count("*")).schema == fb.groupBy(df, expected).agg(fb.count("*")).schema
    fb.groupBy(df, told[0]).firing(every=minutes, allowedLateness=60 * minutes)
    fb.dedupe(df.select("timestamp", "n"), "n", within=minutes)
    left = df.select("timestamp", "n")
    fb.intervalJoin(left, left, "n", lower=-minutes, upper=minutes)


def test_triggers_that_change_nothing(df):
    grouped = fb.groupBy(df, fb.window("timestamp", "1 hour"))
    for nothing in (
        {},
        {"accumulate": False},
        {"allowedLateness": "0 seconds"},
        {"accumulate": False, "idleTimeout": "1 hour"},
    ):
        with pytest.raises(InvalidArgument, match=r"firing\(\) needs every or allowedLateness"):
            grouped.firing(**nothing)
    for lateness in (False, "", F.col("n")):
        with pytest.raises(InvalidArgument, match="allowedLateness"):
            grouped.firing(every="1 minute", allowedLateness=lateness)
    with pytest.raises(InvalidArgument, match="called twice"):
        grouped.firing(idleTimeout="1 hour").firing(every="1 minute")


def test_planning_from_two_threads_leaves_errors_logged_as_before():
    logger, entered, left = logging.getLogger("DataFrameQueryContextLogger"), threading.Event(), threading.Event()
    record = logging.makeLogRecord({"levelno": logging.ERROR})

    def plan():
        with analysis():
            entered.set()
            left.wait(10)
            assert not logger.filter(record)

    other = threading.Thread(target=plan)
    with analysis():
        other.start()
        assert entered.wait(10)
        assert not logger.filter(record)
    assert logger.filter(record)
    left.set()
    other.join()
    assert logger.filter(record)
    assert not logger.disabled


def test_all_settings_that_are_wrong_are_named_at_once(spark, df):
    wrong = {
        "spark.sql.streaming.stateStore.providerClass": "org.example.Other",
        "spark.forebay.memoryMB": "much",
        "spark.forebay.durability": "none",
        "spark.forebay.readBatchRatio": "2",
        "spark.forebay.maxSpaceAmplification": "1",
        "spark.forebay.prometheusPort": "99999",
        "spark.forebay.agentPort": "65536",
    }
    before = {name: spark.conf.get(name, None) for name in wrong}
    for name, value in wrong.items():
        spark.conf.set(name, value)
    try:
        with pytest.raises(UnsupportedConfiguration) as caught:
            hourly(df).agg(fb.count("*"))
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)
    assert all(name in str(caught.value) for name in wrong)


def test_a_watermark_within_a_struct_is_no_time_that_is_found(spark):
    events = spark.readStream.format("rate").load()
    for df, told in (
        (events, "Write df.withWatermark"),
        (events.withWatermark("timestamp", "1 second"), "A field of one has"),
    ):
        with pytest.raises(MissingWatermark, match=f"none of the columns event has a watermark.*{told}"):
            fb.dedupe(df.select(F.struct("timestamp", "value").alias("event")), "event.value", within="1 hour")


def test_apply_stands_alone(df):
    with pytest.raises(InvalidArgument, match="only aggregate"):
        hourly(df).agg(fb.apply(lambda key, rows: rows, "n long"), fb.count("*"))
    df = df.select("timestamp", "n")
    with pytest.raises(
        InvalidArgument, match=r"\(rows\) cannot be called as func\(key, rows\), which fb.apply does: too many"
    ):
        hourly(df).agg(fb.apply(lambda rows: rows, "n long"))
    with pytest.raises(InvalidArgument, match=r"\(key, \*, rows\) cannot be called as func\(key, rows\)"):
        hourly(df).agg(fb.apply(lambda key, *, rows: rows, "n long"))
    assert hourly(df).agg(fb.apply(max, "n long")).columns[-1] == "n"  # nobody knows what it takes
    with pytest.raises(InvalidArgument, match="cannot parse"):
        hourly(df).agg(fb.apply(lambda key, rows: rows, "n lon g"))


def test_another_state_store_provider(spark, df):
    name = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(name)
    spark.conf.set(name, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    try:
        with pytest.raises(
            UnsupportedConfiguration, match=r'spark\.conf\.set\("spark.sql.streaming.stateStore.providerClass"'
        ):
            hourly(df).agg(fb.count("*"))
    finally:
        spark.conf.set(name, before)


@pytest.mark.parametrize(
    "program",
    ["exit 1", f"""exec {sys.executable} -c 'import sys; sys.modules["polars"] = None; exec(sys.argv[1])' "$2" """],
    ids=["without forebay", "without polars"],
)
def test_workers_without_forebay(spark, df, monkeypatch, tmp_path, program):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    with pytest.raises(UnsupportedConfiguration, match="which cannot import forebay"):
        hourly(df).agg(fb.count("*"))


def test_workers_of_no_python(spark, df, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python8")
    with pytest.raises(UnsupportedConfiguration, match="'python8', which is no program that can be run"):
        hourly(df).agg(fb.count("*"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memoryMB", "lots"),
        ("instancesPerPartition", "0"),
        ("retainBatches", "1"),
        ("agentPort", "65536"),
        ("prometheusPort", "99999"),
    ],
)
def test_settings_that_cannot_be_used(spark, df, name, value):
    spark.conf.set(f"spark.forebay.{name}", value)
    try:
        with pytest.raises(UnsupportedConfiguration, match=f"spark.forebay.{name} is '{value}'"):
            hourly(df).agg(fb.count("*"))
    finally:
        spark.conf.unset(f"spark.forebay.{name}")


@pytest.mark.parametrize(
    ("directory", "error"), [("/proc/forebay", StateDirectoryError), ("relative/path", UnsupportedConfiguration)]
)
def test_a_state_directory_that_cannot_be_written(spark, df, directory, error):
    spark.conf.set("spark.forebay.stateDirectory", directory)
    try:
        with pytest.raises(error, match=f"spark.forebay.stateDirectory is .*{directory}"):
            hourly(df).agg(fb.count("*"))
    finally:
        spark.conf.unset("spark.forebay.stateDirectory")


def test_a_directory_of_workers_that_cannot_be_made(spark, tmp_path):
    (tmp_path / "file").touch()
    batch = spark.range(3).select(F.timestamp_seconds("id").alias("ts"))
    spark.conf.set("spark.forebay.localDirectory", f"{tmp_path}/file/below")
    try:
        with pytest.raises(
            PySparkException, match=r"StateDirectoryError: cannot make a directory in .*/file/below: Not a dir"
        ):
            fb.groupBy(batch, fb.window("ts", "1 hour")).agg(fb.count("*")).collect()
    finally:
        spark.conf.unset("spark.forebay.localDirectory")


def test_a_local_directory_that_the_driver_cannot_look_into(spark, tmp_path):
    spark.conf.set("spark.forebay.localDirectory", f"{tmp_path}/{'long' * 80}")
    rates = (
        spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load().withWatermark("timestamp", "1 minute")
    )
    try:
        writer = hourly(rates).agg(fb.count("*")).writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/ck")
        query = writer.trigger(availableNow=True).start()
        with pytest.raises(StreamingQueryException, match=r"StateDirectoryError: .*File name too long.* Committed state is"):
            query.awaitTermination()
    finally:
        spark.conf.unset("spark.forebay.localDirectory")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fb.count("*").alias(3), r"alias\(\) got 3; the name of a result column is a text"),
        (lambda: fb.sum("n") / fb.count("*"), "an aggregate of forebay stands alone in agg"),
        (lambda: 1 - fb.avg("n"), "avg is part of an expression"),
        (lambda: fb.max("n") > 3, "fb.when says which results are emitted"),
        (lambda: fb.explain(3), r"explain\(\) got 3; it takes a DataFrame"),
        (lambda: fb.progress(3), r"progress\(\) got 3; it takes a query"),
    ],
)
def test_calls_of_another_kind(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()


def test_a_window_is_no_time(df):
    counts = hourly(df, "s").agg(fb.count("*").alias("n"))
    with pytest.raises(UnsupportedType, match=r'take its time: fb\.window\(F\.window_time\("window"\), "1 hour"\)'):
        fb.groupBy(counts, fb.window("window", "1 day")).agg(fb.sum("n"))
    days = fb.groupBy(counts, fb.window(F.window_time("window"), "1 day"), "s").agg(fb.median("n"))
    assert days.columns == ["window", "s", "median(n)"]


@pytest.mark.parametrize("make", [lambda: F.expr("int(rand() * 3)"), lambda: (F.rand() * 0).cast("int"), lambda: F.uuid()])
def test_keys_that_have_another_value_each_time(spark, df, make):
    key = make()
    for rows in (df, spark.range(3).selectExpr("timestamp_seconds(id) timestamp", "id n")):
        with pytest.raises(InvalidArgument, match="has another value each time that it is computed"):
            hourly(rows, "n", key).agg(fb.count("*"))
        hourly(rows.withColumn("salt", key), "n", "salt").agg(fb.count("*"))
        hourly(rows, F.input_file_name(), F.spark_partition_id()).agg(fb.count("*"))


@pytest.mark.parametrize("make", [lambda: F.expr("int(rand() * 3)"), F.monotonically_increasing_id])
def test_keys_of_rows_and_gaps_that_have_another_value_each_time(df, make):
    again = "has another value each time that it is computed"
    rows = df.select("timestamp", "n")
    for call in (lambda key: fb.dedupe(rows, key, within="1 hour"), lambda key: fb.buffer(rows, key)):
        with pytest.raises(InvalidArgument, match=f"the key .* {again}"):
            call(make())
        call(F.input_file_name())
    gap = F.make_interval(secs=make().cast("decimal(18, 6)"))
    with pytest.raises(InvalidArgument, match=f"the gap .* {again}"):
        fb.groupBy(df, fb.session_window("timestamp", gap)).agg(fb.count("*"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: F.window("timestamp", "4 seconds", "2 seconds"),
        lambda: F.window("timestamp", "4 seconds"),
        lambda: F.explode("a"),
        lambda: F.max("n"),
    ],
)
def test_keys_of_which_a_row_may_have_several_values_or_none(spark, df, make):
    """Rows would come twice, or not at all: those without a time, of windows."""
    batch = spark.range(3).selectExpr("timestamp_seconds(if(id = 0, null, id)) timestamp", "id n", "array(1, 2) a")
    for rows in (df.select("timestamp", "n", "a"), batch):
        calls = [
            lambda key, rows=rows: fb.dedupe(rows, ["n", key], within="1 hour"),
            lambda key, rows=rows: fb.buffer(rows, key),
            lambda key, rows=rows: fb.buffer(rows, key, interval="1 second"),
            lambda key, rows=rows: fb.patterns(rows, key).add("p", fb.count_window(2), fb.count("*")).results(),
            lambda key, rows=rows: fb.patterns(rows).add("p", fb.count_window(2), fb.count("*"), keys=key).results(),
        ]
        for call in calls:
            with pytest.raises(InvalidArgument, match=r"of the key .* a row may have several values, or none"):
                call(make())
    ends = F.window("timestamp", "4 seconds", "2 seconds").end
    with pytest.raises(InvalidArgument, match=r"of the time .* a row may have several values, or none"):
        fb.groupBy(batch, fb.window(ends, "1 minute")).agg(fb.count("*"))
    with pytest.raises(InvalidArgument, match=r"of the condition .* a row may have several values, or none"):
        fb.continuousJoin(batch, batch, on="n", until=ends.isNull(), timeColumn="timestamp")
    with pytest.raises(InvalidArgument, match=r"the time .* has another value each time that it is computed"):
        fb.groupBy(batch, fb.window(F.timestamp_seconds(F.rand()), "1 minute")).agg(fb.count("*"))
    assert fb.buffer(batch.withColumn("key", F.col("a")[0]), "key").count() == fb.buffer(batch, F.col("a")[0]).count() == 3


@pytest.mark.parametrize(
    "make", [lambda: F.session_window("timestamp", "4 seconds"), lambda: F.expr("SESSION_WINDOW(timestamp, '4 seconds') s")]
)
def test_sessions_of_spark_are_no_keys(df, make):
    """Spark's own grouping merges them; here each row would have one of its own."""
    calls = [
        lambda key: fb.rolling(df, key),
        lambda key: hourly(df, "n", key),
        lambda key: fb.dedupe(df, ["n", key], within="1 hour"),
        lambda key: fb.buffer(df, key),
        lambda key: fb.patterns(df, key),
        lambda key: fb.patterns(df).add("p", fb.count_window(2), fb.count("*"), keys=key),
    ]
    for call in calls:
        with pytest.raises(
            InvalidArgument, match=r"for a key: the session of a row alone.*fb\.groupBy\(df, fb\.session_window"
        ):
            call(make())


def test_aggregates_and_keys_that_a_checkpoint_could_not_tell_apart(spark, df):
    other = spark.range(3).selectExpr("id n", "id s2")
    joined = df.join(other, df["n"] == other["s2"])
    one, two = df["n"], other["n"]
    twice = [F.aggregate(F.array("n"), F.lit(0).cast("long"), lambda total, n: total + n) for _ in range(2)]
    with pytest.raises(InvalidArgument, match=r"two aggregates read alike, sum\(n\), and are of different columns"):
        hourly(joined).agg(fb.sum(one).alias("a"), fb.sum(two).alias("b"))
    with pytest.raises(InvalidArgument, match="two keys read alike, n, and are of different columns"):
        hourly(joined, one, two).agg(fb.count("*"))
    hourly(joined, one, one).agg(fb.sum(one).alias("a"), fb.sum(one).alias("b"), fb.sum("s2"))
    hourly(df, "n", df["n"]).agg(fb.sum("n"), fb.sum(df["n"]).alias("b"), *map(fb.sum, twice))
    with pytest.raises(UnsupportedType, match="with two fields of one name; rename one of them"):
        hourly(df, F.struct("n", "n")).agg(fb.count("*"))


def test_a_key_with_two_fields_of_one_name_but_for_case(spark):
    df = spark.range(3).select(F.struct(F.col("id").alias("x"), F.col("id").alias("X")).alias("st"))
    for made in (lambda: fb.rolling(df, "st").agg(fb.count("*")), lambda: fb.dedupe(df, "st", "1 hour")):
        with pytest.raises(InvalidArgument, match="AMBIGUOUS_REFERENCE_TO_FIELDS"):
            made()


def test_columns_of_patterns_that_differ_in_case_alone(spark):
    df = spark.range(3).selectExpr("timestamp_seconds(id) t", "id g", "-id G")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        patterns = fb.patterns(df, "g").add("p", fb.window("t", "1 hour"), fb.count("*"), keys="G")
        patterns = patterns.add("P", fb.window("t", "1 hour"), fb.max("G").alias("most"))
        assert patterns.of("p").columns == ["window", "g", "G", "count(1)"]
        assert [row.most for row in patterns.of("P").orderBy("g").collect()] == [0, -1, -2]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.parametrize("kind", ["varchar(3)", "char(3)", "array<varchar(3)>"])
def test_texts_of_a_length_in_a_schema(df, kind):
    with pytest.raises(UnsupportedType, match=r"char\(3\); .* write string"):
        hourly(df).agg(fb.apply(lambda key, rows: rows, f"x {kind}"))


def test_a_column_in_two_spellings_is_one_column_unless_case_counts(spark):
    df = spark.range(20).selectExpr("timestamp_seconds(id) timestamp", "id % 3 s", "id n")
    made = hourly(df, "s").agg(fb.max("n"), fb.sum(F.col("N")).alias("total"), fb.max_by("n", "N").alias("last"))
    expected = df.groupBy(F.window("timestamp", "1 hour"), "s").agg(F.max("n"), F.sum("n"), F.max("n"))
    assert sorted(made.drop("window").collect()) == sorted(expected.drop("window").collect())


def test_keys_in_lists(spark, df):
    window = fb.window("timestamp", "1 hour")
    keys = ["s", F.col("n") % 2]
    listed = fb.groupBy(df, window, keys).agg(fb.count("*"))
    assert listed.columns == fb.groupBy(df, window, *keys).agg(fb.count("*")).columns
    patterns = fb.patterns(df, ["s"]).add("p", window, fb.count("*"), keys="n")
    assert patterns.of("p").columns == ["window", "s", "n", "count(1)"]
    with pytest.raises(InvalidArgument, match=r"groupBy\(\) got 3 for a key; a key is a column's name or a Column"):
        fb.groupBy(df, window, 3)
    with pytest.raises(InvalidArgument, match=r"rolling\(\) got TimeWindow.* a window is the second argument of fb.groupBy"):
        fb.rolling(df, window)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fb.count_window(0), "size is 0; it must be a whole number of rows"),
        (lambda: fb.count_window(2**63), f"size is {2**63}; it must be a whole number of rows"),
        (lambda: fb.preceding("t", rows=2**63), f"rows is {2**63}; it must be a whole number of rows"),
        (lambda: fb.count_window(5, 6), "slide 6 is larger than size 5"),
        (lambda: fb.global_window(everyRows=-1), "everyRows is -1"),
        (lambda: fb.global_window("10 seconds", 100), "got both every and everyRows"),
        (lambda: fb.custom_window("hourly"), "must be a function from instants to windows"),
        (lambda: fb.custom_window(abs, merge="sometimes"), "merge='sometimes'"),
        (lambda: fb.custom_window(abs, hint="fast"), "hint='fast'"),
        (lambda: fb.custom_window(abs, merge="overlapping", hint="aligned"), "those are never aligned"),
    ],
)
def test_windows_that_make_no_sense(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()


def test_windows_that_do_not_fit_the_stream(df, spark):
    with pytest.raises(InvalidArgument, match="gapDuration 'a while' is not a duration"):
        fb.groupBy(df, fb.session_window("timestamp", "a while")).agg(fb.count("*"))
    with pytest.raises(InvalidArgument, match="gapDuration '0 seconds' is not positive"):
        fb.groupBy(df, fb.session_window("timestamp", "0 seconds")).agg(fb.count("*"))
    with pytest.raises(InvalidArgument, match="every 'a while' is not a duration"):
        fb.groupBy(df, fb.global_window("a while")).agg(fb.count("*"))
    with pytest.raises(InvalidArgument, match="the global window of a stream never ends"):
        fb.groupBy(df, fb.global_window()).agg(fb.count("*"))
    with pytest.raises(InvalidArgument, match="the window is to be incremental, but median"):
        fb.groupBy(df, fb.custom_window(abs, incremental=True)).agg(fb.median("n"))
    with pytest.raises(MissingWatermark, match="withWatermark"):
        fb.groupBy(spark.readStream.format("rate").load(), fb.custom_window(abs)).agg(fb.count("*"))


@pytest.mark.parametrize(
    ("assigner", "message"),
    [
        (lambda times: (times, times - 1), "a window whose end is before its start"),
        (
            lambda times: {}[3],
            r"the assigner <lambda> of fb\.custom_window raised KeyError for \d+ instants: 3\. Correct it",
        ),
        pytest.param(lambda times: 3, "did not give two arrays", marks=pytest.mark.slow),
        pytest.param(lambda times: (times[:1], times[:1] + 1), "gave starts as int64 of shape", marks=pytest.mark.slow),
        pytest.param(lambda times: (times, times + 0.5), "gave ends as float64", marks=pytest.mark.slow),
    ],
)
def test_assigners_that_give_no_windows(spark, assigner, message):
    times = spark.range(10).selectExpr("timestamp_seconds(id) as ts")
    with pytest.raises(Exception, match=message):
        fb.groupBy(times, fb.custom_window(assigner, timeColumn="ts")).agg(fb.count("*")).collect()


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("readBatchRatio", "2", r"spark\.forebay\.readBatchRatio is 2\.0; it is a share"),
        ("readBatchRatio", "much", "it must be a number"),
        ("maxSpaceAmplification", "1", "it must be more than 1"),
        ("writeBufferMB", "100000", r"it is a part of spark\.forebay\.memoryMB, and must be at most 256"),
    ],
)
def test_settings_of_the_stores(df, spark, setting, value, message):
    spark.conf.set(f"spark.forebay.{setting}", value)
    try:
        with pytest.raises(UnsupportedConfiguration, match=message):
            hourly(df).agg(fb.count("*"))
    finally:
        spark.conf.unset(f"spark.forebay.{setting}")


def test_names_of_aliases_and_hidden_columns(spark, tmp_path):
    rows = spark.sql("SELECT timestamp '2024-01-01 00:00:01' ts, 1 x")
    joined = rows.alias("a").join(rows.alias("b"), F.expr("a.x = b.x"))
    found = fb.groupBy(joined, fb.window("a.ts", "1 hour"), "b.x").agg(fb.count("a.x").alias("n"))
    assert found.columns == ["window", "x", "n"] and [row.n for row in found.collect()] == [1]
    rows.write.parquet(str(tmp_path / "files"))
    files = spark.read.parquet(str(tmp_path / "files"))
    by_file = fb.groupBy(files, fb.window("ts", "1 hour"), "_metadata.file_name").agg(fb.count("*"))
    assert by_file.columns[1] == "file_name" and by_file.count() == 1
    with pytest.raises(UnknownColumn, match=r"there is no column 'c\.x'"):
        fb.groupBy(joined, fb.window("a.ts", "1 hour"), "c.x").agg(fb.count("*"))


def test_what_is_no_query(df):
    for call, name in ((fb.recentMetrics, "recentMetrics"), (fb.progress, "progress"), (fb.handover, "handover")):
        with pytest.raises(InvalidArgument, match=rf"{name}\(\) got DataFrame\[.*; it takes a query that was started"):
            call(df)


def test_a_name_that_is_no_setting_is_warned_of_once(spark, df, monkeypatch, caplog):
    monkeypatch.setattr(unknown_settings, "_warned", set())
    names = ("spark.forebay.memoryMb", "spark.forebay.zzz", "spark.forebay.internal.whatever")
    for name in names:
        spark.conf.set(name, "64")
    try:
        with caplog.at_level(logging.WARNING, logger="forebay"):
            hourly(df).agg(fb.count("*"))
            batch = SparkSession(spark.sparkContext, spark._jsparkSession).range(1)  # as each micro-batch has
            fb.groupBy(batch, fb.global_window()).agg(fb.count("*"))
    finally:
        for name in names:
            spark.conf.unset(name)
    near, far = caplog.messages
    assert near.startswith("spark.forebay.memoryMb is no setting of forebay")
    assert near.endswith("Did you mean spark.forebay.memoryMB?")
    assert "memoryMB, prometheusPort" in far


def test_all_settings_are_described():
    described = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    table = described.partition("## Settings of Spark")[0]
    assert set(re.findall(r"^\| `spark\.forebay\.(\w+)`", table, re.MULTILINE)) == set(unknown_settings.SETTINGS)


def test_polars_is_not_imported_with_forebay():
    """It takes its number of threads when it is imported; a worker limits that first."""
    code = "import sys, forebay; sys.exit('polars' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
