"""`fb.preceding` equals Spark batch's RANGE and ROWS frames over the rows that are not late; `fb.when` is a filter."""

import math
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.window import Window
from streams import HOLISTIC, INCREMENTAL, generate, run, watermarks

import forebay as fb
from forebay.errors import InvalidArgument, MissingWatermark, UnknownColumn, UnsupportedConfiguration

SPARK_HAS_NO_FRAME = ("count_distinct", "mode", "approx_count_distinct", "percentile", "median")
AGGREGATES = [each for each in INCREMENTAL + HOLISTIC if each.function not in SPARK_HAS_NO_FRAME]
FRAMES = {
    "a time": ({"duration": "7 seconds"}, "RANGE BETWEEN INTERVAL 7 SECONDS PRECEDING AND CURRENT ROW"),
    "rows": ({"rows": 6}, "ROWS BETWEEN 5 PRECEDING AND CURRENT ROW"),
}


@pytest.fixture(scope="module")
def stream(spark, tmp_path_factory):
    return generate(spark, tmp_path_factory.mktemp("data"), keys=15, rows=600)


@pytest.fixture
def name(tmp_path):
    return "".join(c if c.isalnum() else "_" for c in tmp_path.name)


def framed(df, frame, keys, aggregates):
    """What Spark computes in batch; rows of one instant in order of arrival, where that makes a difference."""
    order = "ts" if frame.startswith("RANGE") else "ts, u"
    over = f"OVER (PARTITION BY {', '.join(keys)} ORDER BY {order} {frame})"
    df.createOrReplaceTempView("framed")
    calls = [f"{call(each)} {over} AS c{place}" for place, each in enumerate(aggregates)]
    return df.sparkSession.sql(f"SELECT u, ts, {', '.join([*keys, *calls])} FROM framed")


def call(aggregate):
    arguments = ", ".join(aggregate.arguments)
    others = {"rsd": "", "ignorenulls": ""}
    options = "".join(f", {value}" for name, value in aggregate.options.items() if name not in others)
    nulls = " IGNORE NULLS" if aggregate.options.get("ignorenulls") else ""
    return f"{aggregate.function}({arguments}{options}){nulls}"


def by_row(rows, aggregates):
    return {row.u: [row.ts, row.key, *(row[f"c{place}"] for place in range(len(aggregates)))] for row in rows}


def numbered(aggregates):
    return [each.alias(f"c{place}") for place, each in enumerate(aggregates)]


def assert_equal(found, wanted, aggregates):
    assert found.keys() == wanted.keys()
    for row, values in wanted.items():
        for place, (mine, theirs) in enumerate(zip(found[row], values, strict=True)):
            function = aggregates[place - 2].function if place > 1 else ""
            assert same(mine, theirs, function), (row, function, mine, theirs)


def same(mine, theirs, function):
    if function.startswith("collect"):  # in frames by time Spark has rows of an instant in any order
        return Counter(map(str, mine)) == Counter(map(str, theirs))
    if isinstance(mine, float) and isinstance(theirs, float):
        return math.isclose(mine, theirs, rel_tol=1e-9, abs_tol=1e-9) or (math.isnan(mine) and math.isnan(theirs))
    return mine == theirs


@pytest.mark.parametrize("frame", FRAMES)
def test_equals_spark_over_the_rows_that_are_in_time(stream, tmp_path, name, frame):
    window, sql = FRAMES[frame]
    results = fb.groupBy(stream.streaming("5 seconds"), fb.preceding("ts", **window), "key").agg(
        fb.current("u").alias("u"), *numbered(AGGREGATES)
    )
    query = run(results, tmp_path, name)
    before, until = watermarks(query)
    rows = in_time(stream, before)
    wanted = framed(rows, sql, ["key"], AGGREGATES).where(F.unix_micros("ts") <= until * 1000)
    found = stream.spark.table(name).withColumnRenamed("event_time", "ts")
    assert_equal(by_row(found.collect(), AGGREGATES), by_row(wanted.collect(), AGGREGATES), AGGREGATES)
    progress = fb.progress(query)
    assert progress.rowsLate == stream.static.where("ts is not null").count() - rows.count() > 0
    assert progress.rowsOut == found.count() > 500


@pytest.mark.thorough
@pytest.mark.parametrize("frame", FRAMES)
def test_of_a_batch(stream, frame):
    window, sql = FRAMES[frame]
    df = stream.static.where("ts is not null").coalesce(1).sortWithinPartitions("u")
    found = fb.groupBy(df, fb.preceding("ts", **window), "key").agg(fb.current("u").alias("u"), *numbered(AGGREGATES))
    found = found.withColumnRenamed("event_time", "ts").collect()
    assert len(found) > 2000
    assert_equal(by_row(found, AGGREGATES), by_row(framed(df, sql, ["key"], AGGREGATES).collect(), AGGREGATES), AGGREGATES)


@pytest.mark.thorough
def test_rows_that_are_in_a_time(stream, tmp_path, name):
    """Of the last rows those of a time; Spark filters what it has collected over the frame of rows."""
    window = fb.preceding("ts", "2 seconds", rows=4)
    results = fb.groupBy(stream.streaming("5 seconds"), window, "key").agg(
        fb.current("u").alias("u"), fb.collect_list("u").alias("rows")
    )
    query = run(results, tmp_path, name)
    before, until = watermarks(query)
    rows = in_time(stream, before)
    over = Window.partitionBy("key").orderBy("ts", "u")
    last = F.collect_list(F.struct("ts", "u")).over(over.rowsBetween(-3, 0))
    wanted = rows.where(F.unix_micros("ts") <= until * 1000).select(
        "u", F.filter(last, lambda row: row.ts >= F.col("ts") - F.expr("INTERVAL 2 SECONDS")).u.alias("rows")
    )
    found = {row.u: row.rows for row in stream.spark.table(name).collect()}
    assert found == {row.u: row.rows for row in wanted.collect()}
    assert {len(rows) for rows in found.values()} == {1, 2, 3, 4}


def in_time(stream, before):
    """The rows that were not late, by the watermarks before micro-batches of a file each."""
    place = F.regexp_extract("_metadata.file_name", r"(\d+)\.parquet", 1).cast("int") + 1
    passed = F.element_at(F.array(*map(F.lit, before)), place)
    return stream.static.where("ts is not null").where(F.unix_micros("ts") > passed * 1000)


@pytest.mark.thorough
def test_holistic_aggregates_equal_those_of_the_rows_by_themselves(stream):
    """Spark has no median, percentile or mode over a frame: it aggregates a join of each row with those of its window."""
    df = stream.static.where("ts is not null and u % 5 = 0")
    aggregates = [each for each in [*HOLISTIC, fb.approx_count_distinct("s")] if not each.function.startswith("collect")]
    found = fb.groupBy(df, fb.preceding("ts", "9 seconds"), "key").agg(fb.current("u").alias("u"), *numbered(aggregates))
    rows = df.select(F.col("u").alias("of"), F.col("ts").alias("at"), F.col("key").alias("whose"))
    joined = rows.join(df, F.expr("whose <=> key and ts between at - interval 9 seconds and at"))
    columns = [
        getattr(F, each.function)(*each.arguments, **each.options).alias(f"c{place}")
        for place, each in enumerate(aggregates)
    ]
    wanted = (
        joined.groupBy("of", "at", "whose").agg(*columns).toDF("u", "ts", "key", *(f"c{n}" for n in range(len(columns))))
    )
    found = found.withColumnRenamed("event_time", "ts").collect()
    assert len(found) > 400
    assert_equal(by_row(found, aggregates), by_row(wanted.collect(), aggregates), aggregates)


@pytest.mark.thorough
def test_without_keys_and_with_keys_of_many_kinds(stream, tmp_path, name):
    for keys in ([], ["k_double", "k_string"], ["k_struct"]):
        df = stream.static.where("ts is not null").coalesce(1).sortWithinPartitions("u")
        found = fb.groupBy(df, fb.preceding("ts", rows=3), *keys).agg(fb.current("u").alias("u"), fb.sum("u").alias("c0"))
        over = Window.partitionBy(*keys).orderBy("ts", "u").rowsBetween(-2, 0)
        wanted = df.select("u", F.sum("u").over(over).alias("c0"))
        assert sorted(found.select("u", "c0").collect()) == sorted(wanted.collect())


def micro_batches(results, checkpoint, *, failing=False):
    """What each micro-batch of a stream emits; with ``failing`` each fails once, when its state has been written."""
    kept, failed = {}, set()

    def keep(rows, batch):
        found = sorted(map(str, rows.collect()))
        if failing and batch not in failed:
            failed.add(batch)
            raise RuntimeError("on purpose")
        kept[batch] = found

    writer = results.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    while True:
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        except StreamingQueryException as error:
            if "on purpose" not in str(error):
                raise
            continue
        assert not failing or failed == kept.keys()
        return kept


@pytest.mark.slow
@pytest.mark.parametrize("frame", ["a time", "rows"])
def test_every_batch_fails_once_after_its_state_is_written(stream, tmp_path, frame):
    grouped = fb.groupBy(stream.streaming("5 seconds"), fb.preceding("ts", **FRAMES[frame][0]), "key")
    results = grouped.agg(fb.current("u"), fb.median("x").alias("m"), fb.count("*"), fb.when("m > 40"))
    wanted = micro_batches(results, tmp_path / "whole")
    assert sum(map(len, wanted.values())) > 300
    assert micro_batches(results, tmp_path / "failing", failing=True) == wanted


@pytest.mark.thorough
def test_other_aggregates_after_a_restart(stream, tmp_path):
    """Rows that are kept have their columns: an aggregate that is added sees those that another one has read."""
    early, checkpoint = tmp_path / "early", tmp_path / "checkpoint"
    early.mkdir()
    schema = stream.spark.read.parquet(stream.path).schema

    def results(rows, *aggregates):
        df = stream.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(early))
        return fb.groupBy(df.withWatermark("ts", "5 seconds"), fb.preceding("ts", rows=rows), "key").agg(*aggregates)

    shutil.copy2(Path(stream.path, "000.parquet"), early)
    micro_batches(results(4, fb.current("u"), fb.sum("u")), checkpoint)
    shutil.copy2(Path(stream.path, "001.parquet"), early)
    after = fb.current("u").alias("u"), fb.max("u").alias("largest"), fb.count("s"), fb.when("largest >= u")
    found = micro_batches(results(4, *after), checkpoint)
    assert sum(map(len, found.values())) > 100
    shutil.copy2(Path(stream.path, "003.parquet"), early)
    with pytest.raises(Exception, match=r"preceding\(ts, 4 rows\)"):
        micro_batches(results(5, fb.sum("u")), checkpoint)


@pytest.mark.slow
def test_operators_follow(stream, tmp_path, name):
    """Results have an event time that another operator, of forebay or of Spark, can go on with."""
    after_each = fb.groupBy(stream.streaming("5 seconds"), fb.preceding("ts", "7 seconds"), "key").agg(
        fb.count("*").alias("n"), fb.when(F.col("n") >= 3)
    )
    ours = fb.groupBy(after_each, fb.window("event_time", "10 seconds")).agg(fb.count("*").alias("many"))
    theirs = after_each.groupBy(F.window("event_time", "10 seconds")).agg(F.count("*").alias("many"))
    run(ours, tmp_path / "ours", f"{name}_ours")
    run(theirs, tmp_path / "theirs", f"{name}_theirs")
    found, wanted = (sorted(stream.spark.table(f"{name}_{each}").collect()) for each in ("ours", "theirs"))
    assert found == wanted
    assert sum(row.many for row in found) > 100


@pytest.mark.thorough
def test_late_rows_as_a_stream(stream, tmp_path, name):
    results = fb.groupBy(stream.streaming("5 seconds"), fb.preceding("ts", rows=2), "key").agg(fb.count("*").alias("n"))
    both = results.select(F.lit(None).alias("u")).union(fb.late(results).select("u"))
    query = run(both, tmp_path, name)
    late = stream.spark.table(name).where("u is not null").count()
    assert late == sum(progress.rowsLate for progress in [fb.progress(query)]) > 0


@pytest.fixture(scope="module")
def ticks(spark):
    return spark.readStream.format("rate").load().withWatermark("timestamp", "10 seconds")


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda df: fb.preceding("timestamp"), InvalidArgument, "neither duration nor rows; give one of them, or both"),
        (lambda df: fb.preceding("timestamp", rows=0), InvalidArgument, "rows is 0; it must be a whole number of rows"),
        (lambda df: fb.preceding("timestamp", rows=2.5), InvalidArgument, "rows is 2.5"),
        (
            lambda df: agg(df, fb.preceding("timestamp", "0 seconds")),
            InvalidArgument,
            "duration '0 seconds' is not positive",
        ),
        (lambda df: agg(df, fb.preceding("timestamp", "-1 hour")), InvalidArgument, "is not positive"),
        (lambda df: agg(df, fb.preceding("timestamp", "soon")), InvalidArgument, "duration 'soon' is not a duration"),
        (lambda df: agg(df, fb.preceding("timestamp", "1 month")), InvalidArgument, "months or years"),
        (lambda df: agg(df, fb.preceding("when", "1 hour")), UnknownColumn, "there is no column 'when'"),
        (lambda df: agg(df, fb.preceding("value", rows=3)), Exception, "the time column value is a bigint"),
        (lambda df: agg(df.drop("timestamp").withColumn("t", F.now()), fb.preceding("t", rows=3)), MissingWatermark, "t"),
        (lambda df: agg(df, fb.window("timestamp", "1 hour"), fb.current("value")), InvalidArgument, "for the windows of"),
        (lambda df: agg(df, fb.preceding("timestamp", rows=3), fb.when("m > 3")), UnknownColumn, "`m`"),
        (lambda df: agg(df, fb.preceding("timestamp", rows=3), fb.when("n + 1")), InvalidArgument, "which is a bigint"),
        (lambda df: agg(df, fb.preceding("timestamp", rows=3), fb.when("n >")), InvalidArgument, "Spark refuses"),
        (lambda df: agg(df, fb.preceding("timestamp", rows=3), fb.when(F.sum("n") > 3)), InvalidArgument, "Spark refuses"),
        (lambda df: fb.groupBy(df, fb.preceding("timestamp", rows=3)).firing("1 hour"), InvalidArgument, "firing"),
        (lambda df: fb.groupBy(df, fb.preceding("timestamp", rows=3)).agg(fb.when("true")), InvalidArgument, "at least one"),
    ],
)
def test_what_cannot_run_is_refused(ticks, wrong, error, message):
    with pytest.raises(error, match=message):
        wrong(ticks)


def agg(df, window, *more):
    return fb.groupBy(df, window, "value").agg(fb.count("*").alias("n"), *more)


def test_no_trace_can_be_captured(ticks, tmp_path):
    ticks.sparkSession.conf.set("spark.forebay.captureTrace", str(tmp_path))
    try:
        with pytest.raises(UnsupportedConfiguration, match=r"of fb.preceding cannot be captured"):
            agg(ticks, fb.preceding("timestamp", rows=3))
    finally:
        ticks.sparkSession.conf.unset("spark.forebay.captureTrace")


def test_explained(ticks, capsys):
    fb.explain(agg(ticks, fb.preceding("timestamp", "1 hour"), fb.when(F.col("n") >= 5), fb.when("value > 3")))
    told = capsys.readouterr().out
    assert "preceding(timestamp, 3600 s)" in told
    assert "pattern     AUR, append and unaligned read" in told
    assert "  when        >=(n, 5)\n              value > 3\n" in told


@pytest.mark.thorough
def test_the_state_can_be_read(stream, tmp_path, name):
    results = fb.groupBy(stream.streaming("5 seconds"), fb.preceding("ts", rows=3), "key").agg(fb.sum("u").alias("total"))
    query = run(results, tmp_path, name)
    fb.registerStateSource(stream.spark)
    rows = stream.spark.read.format("forebay-state").load(str(tmp_path)).collect()
    assert fb.progress(query).stateRows >= len(rows) > 15
    assert {row.start for row in rows} <= {row.ts for row in stream.static.select("ts").collect()}


def test_numbers_of_rows_may_be_numpys():
    assert fb.preceding("timestamp", rows=np.int64(3)) == fb.preceding("timestamp", rows=3)
    assert fb.count_window(np.int32(4), np.int32(2)) == fb.count_window(4, 2)
    assert fb.global_window(everyRows=np.int64(5)) == fb.global_window(everyRows=5)
