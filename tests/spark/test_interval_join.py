"""Interval joins of streams equal Spark's batch joins on keys and times."""

import shutil

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from sides_to_join import HOWS, files, run, same, stream

import forebay as fb
from forebay.errors import InvalidArgument, MissingWatermark, UnsupportedType

BOUNDS = [("-4 seconds", "7 seconds"), ("2 seconds", "9 seconds"), ("-9 seconds", "-2 seconds"), ("0 seconds", "0 seconds")]
SECONDS = {bound: int(bound.split()[0]) for bounds in BOUNDS for bound in bounds}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sides")
    return files(directory / "left", 1, whole=True), files(directory / "right", 2, whole=True)


def expected(spark, sources, how, on, lower, upper):
    """Spark's join, with the column ``event_time`` made from the definition."""
    left, right = (spark.read.parquet(str(path)) for path in sources)
    low, high = SECONDS[lower] * 1_000_000, SECONDS[upper] * 1_000_000
    times = F.unix_micros("l.ts"), F.unix_micros("r.ts")
    meets = (times[1] - times[0]).between(low, high)
    for key in on:
        meets = meets & (F.col(f"l.{key}") == F.col(f"r.{key}"))
    joined = left.alias("l").join(right.alias("r"), meets, how)
    step = max((high - low) // 4, 1_000_000)
    forgotten = {side: F.ceil((F.unix_micros(f"{side}.ts") + more) / step) * step for side, more in waits(low, high).items()}
    alone = F.coalesce(*forgotten.values()) if how not in ("semi", "anti") else forgotten["l"]
    together = F.greatest(*times) if how not in ("semi", "anti") else F.lit(None)
    both = F.lit(False) if how in ("semi", "anti") else times[0].isNotNull() & times[1].isNotNull()
    columns = [F.timestamp_micros(F.when(both, together).otherwise(alone)).alias("event_time")]
    sides = ["l"] if how in ("semi", "anti") else ["l", "r"]
    keys = {key: F.coalesce(*(F.col(f"{side}.{key}") for side in sides)) for key in on}
    columns += [(key + 0.0 if name == "d" else key).alias(name) for name, key in keys.items()]  # -0.0 is shown as 0.0
    columns += [F.col(f"l.{name}") for name in left.columns if name not in on]
    if "r" in sides:
        theirs = [name for name in right.columns if name not in on]
        columns += [F.col(f"r.{name}").alias(f"{name}_right" if name in left.columns else name) for name in theirs]
    return joined.select(*columns)


def waits(low, high):
    return {"l": max(0, high), "r": max(0, -low)}


@pytest.mark.parametrize(
    ("bounds", "how"),
    [
        pytest.param(bounds, how, marks=[] if bounds is BOUNDS[0] and how == "full" else [pytest.mark.slow])
        for bounds in BOUNDS
        for how in HOWS
    ],
)
def test_streams(spark, sources, tmp_path, how, bounds):
    left, right = (stream(spark, path) for path in sources)
    found, _ = run(fb.intervalJoin(left, right, "key", *bounds, how), tmp_path)
    wanted = expected(spark, sources, how, ["key"], *bounds)
    ended = (F.col("event_time") < F.lit("2024-01-01 00:30").cast("timestamp")) | F.isnull("event_time")
    assert same(found.where(ended), wanted.where(ended)) > 40
    assert found.where("event_time IS NULL").count() == {"inner": 0, "semi": 0, "full": 40}.get(how, 20)


@pytest.mark.parametrize("how", ["full", *(pytest.param(how, marks=pytest.mark.slow) for how in HOWS if how != "full")])
def test_batch(spark, sources, how):
    left, right = (spark.read.parquet(str(path)) for path in sources)
    found = fb.intervalJoin(left, right, "key", *BOUNDS[0], how, timeColumn="ts")
    assert same(found, expected(spark, sources, how, ["key"], *BOUNDS[0])) > 40


@pytest.mark.slow
def test_a_side_that_is_hours_behind(spark, sources, tmp_path):
    """Each side has a watermark of its own, and the earlier one counts: the side that is ahead waits, nothing is late."""
    ahead = spark.read.parquet(str(sources[0])).withColumn("ts", F.col("ts") + F.expr("interval 3 hours"))
    ahead.coalesce(1).write.parquet(str(tmp_path / "ahead"))
    left, right = stream(spark, tmp_path / "ahead", "1 second"), stream(spark, sources[1], "20 seconds")
    found, query = run(fb.intervalJoin(left, right, "key", "-10804 seconds", "-10793 seconds"), tmp_path)
    wanted = expected(spark, sources, "inner", ["key"], *BOUNDS[0])
    assert same(*(df.where("ts_right < '2024-01-01 00:30'").select("only_1", "only_2") for df in (found, wanted))) > 100
    assert fb.progress(query).rowsLate == 0


def test_an_empty_side(spark, sources):
    left, right = (spark.read.parquet(str(path)) for path in sources)
    joined = fb.intervalJoin(left, right.limit(0), "key", *BOUNDS[0], "left", timeColumn=(F.col("ts"), "ts"))
    assert joined.where("x_right is null").count() == joined.count() == left.count()


def test_rows_that_would_be_waited_for_beyond_sparks_times_are_dropped(spark):
    times = spark.createDataFrame([(1, 0), (2, 2**63 - 1), (3, 2**63 - 1_000_000)], "key int, us long")
    df = times.select("key", F.timestamp_micros("us").alias("ts"))
    joined = fb.intervalJoin(df, df, "key", "-1 hour", "1 hour", "full", timeColumn=("ts", "ts"))
    assert [row.key for row in joined.select("key").collect()] == [1]


@pytest.mark.slow
def test_windows_over_a_join(spark, sources, tmp_path):
    left, right = (stream(spark, path) for path in sources)
    meetings = fb.intervalJoin(left.select("ts", "key"), right.select("ts", "key", "x"), "key", *BOUNDS[0], "left")
    counts = fb.groupBy(meetings, fb.window("event_time", "10 seconds"), "key").agg(fb.count("x"), fb.count("*").alias("n"))
    found, _ = run(counts, tmp_path)
    wanted = expected(spark, sources, "left", ["key"], *BOUNDS[0]).groupBy(F.window("event_time", "10 seconds"), "key")
    wanted = wanted.agg(F.count("x_right").alias("count(x)"), F.count("*").alias("n"))
    ended = F.col("window.end") < F.lit("2024-01-01 00:30").cast("timestamp")
    assert same(found.where(ended), wanted.where(ended)) > 50


@pytest.mark.slow
def test_columns_may_not_change_under_a_checkpoint(spark, sources, tmp_path):
    mine = shutil.copytree(sources[0], tmp_path / "left")
    left, right = stream(spark, mine), stream(spark, sources[1])
    run(fb.intervalJoin(left, right, "key", *BOUNDS[0]), tmp_path)
    shutil.copy(mine / "000.parquet", mine / "900.parquet")  # without more rows there is no micro-batch
    for other in (
        fb.intervalJoin(left, right, "key", *BOUNDS[1]),
        fb.intervalJoin(left, right, "key", *BOUNDS[0], how="left"),
        fb.intervalJoin(left.drop("x"), right, "key", *BOUNDS[0]),
    ):
        with pytest.raises(StreamingQueryException, match="was written by another operator"):
            run(other, tmp_path)


def test_what_cannot_be_joined(spark, sources):
    left, right = (spark.read.parquet(str(path)) for path in sources)
    with pytest.raises(MissingWatermark, match="timeColumn="):
        fb.intervalJoin(left, right, "key", *BOUNDS[0])
    with pytest.raises(InvalidArgument, match="no row would meet"):
        fb.intervalJoin(left, right, "key", "2 seconds", "1 second", timeColumn="ts")
    with pytest.raises(InvalidArgument, match="upper 'soon' is not a duration"):
        fb.intervalJoin(left, right, "key", "2 seconds", "soon", timeColumn="ts")
    with pytest.raises(UnsupportedType, match="the time column x is a bigint"):
        fb.intervalJoin(left, right, "key", *BOUNDS[0], timeColumn=("ts", "x"))
    with pytest.raises(InvalidArgument, match="'event_time' of its own"):
        sides = (df.withColumn("event_time", F.col("ts")) for df in (left, right))
        fb.intervalJoin(*sides, ["key", "event_time"], *BOUNDS[0], timeColumn="ts")
    with pytest.raises(InvalidArgument, match="a stream and a batch"):
        fb.intervalJoin(stream(spark, sources[0]), right, "key", *BOUNDS[0])


def test_a_duration_may_be_of_many_years(spark):
    """In seconds it has more digits than Spark's intervals take, and so have negative ones."""
    rows = spark.createDataFrame([(1, "2024-01-01 00:00:00.25")], "k long, t string").select(
        "k", F.to_timestamp("t").alias("t")
    )
    bounds = {"lower": "-20000000 days", "upper": "20000000 days"}
    joined = fb.intervalJoin(rows, rows.withColumn("x", F.lit("other")), on="k", timeColumn="t", **bounds)
    assert [(row.k, row.x) for row in joined.collect()] == [(1, "other")]
    assert fb.dedupe(rows.union(rows), "k", within="20000000 days").count() == 1
    with pytest.raises(InvalidArgument, match="at most 36525000 days"):
        fb.dedupe(rows, "k", within="36525001 days")
