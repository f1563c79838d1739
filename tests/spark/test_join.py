"""Windowed joins of streams equal Spark's batch joins within the same windows."""

import pytest
from pyspark.sql import functions as F
from sides_to_join import HOWS, files, run, same, stream

import forebay as fb
from forebay.errors import InvalidArgument, UnknownColumn


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sides")
    return files(directory / "left", 1), files(directory / "right", 2)


def ended(df):
    return df.where(F.col(f"{df.columns[0]}.end") < F.lit("2024-01-01 00:30").cast("timestamp"))


def aligned(spark, sources, how, on, *durations):
    """Spark's join of the rows of each window."""
    left, right = (spark.read.parquet(str(path)).withColumn("window", F.window("ts", *durations)) for path in sources)
    names = [name for name in right.columns if name not in on and name != "window"]
    right = right.withColumnsRenamed({name: f"{name}_right" for name in names if name in left.columns})
    joined = left.join(right, ["window", *on], how)
    first = ["window", *on]
    return joined.select(*first, *(name for name in joined.columns if name not in first))


@pytest.mark.parametrize("how", ["full", *(pytest.param(how, marks=pytest.mark.slow) for how in HOWS if how != "full")])
def test_aligned_windows(spark, sources, tmp_path, how):
    durations = ("20 seconds", "10 seconds") if how in ("full", "left") else ("10 seconds",)
    joined = fb.join(*(stream(spark, path) for path in sources), on="key", window=fb.window("ts", *durations), how=how)
    found, query = run(joined, tmp_path)
    assert same(ended(found), ended(aligned(spark, sources, how, ["key"], *durations))) > 30
    assert fb.progress(query).rowsLate == 0


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[] if how in ("full", "anti") else [pytest.mark.slow]) for how in HOWS]
)
def test_batch(spark, sources, how):
    """Every kind of join, by two keys, one of them a float: NaN equals NaN, zeros are equal, NULL equals nothing."""
    left, right = (spark.read.parquet(str(path)) for path in sources)
    joined = fb.join(left, right, on=["d", "key"], window=fb.window("ts", "30 seconds"), how=how)
    expected = aligned(spark, sources, how, ["d", "key"], "30 seconds").withColumn("d", F.col("d") + F.lit(0.0))
    assert same(joined, expected) > 30


@pytest.mark.slow
@pytest.mark.parametrize("how", ["full", "inner"])
def test_sessions(spark, sources, tmp_path, how):
    """A session is of the rows of both sides."""
    gap = "2 seconds"
    joined = fb.join(*(stream(spark, path) for path in sources), on="key", window=fb.session_window("ts", gap), how=how)
    left, right = (spark.read.parquet(str(path)) for path in sources)
    both = left.select("ts", "key").union(right.select("ts", "key"))
    sessions = both.groupBy(F.session_window("ts", gap), F.col("key").alias("k")).count().drop("count").localCheckpoint()

    def placed(df):
        within = (df.ts >= sessions.session_window.start) & (df.ts < sessions.session_window.end)
        return df.join(sessions, within & df.key.eqNullSafe(sessions.k)).drop("k")

    left, right = placed(left), placed(right)
    names = [name for name in right.columns if name in left.columns and name not in ("key", "session_window")]
    right = right.withColumnsRenamed({name: f"{name}_right" for name in names})
    expected = left.join(right, ["session_window", "key"], how)
    assert same(ended(run(joined, tmp_path)[0]), ended(expected)) > 100


@pytest.mark.slow
def test_sides_with_watermarks_of_their_own_one_of_them_hours_behind(spark, sources, tmp_path):
    """The side that is ahead waits; nothing is late."""
    behind = files(tmp_path / "behind", 3, lag=0)
    ahead = spark.read.parquet(str(sources[0])).withColumn("ts", F.col("ts") + F.expr("interval 3 hours"))
    ahead.coalesce(1).write.parquet(str(tmp_path / "ahead"))
    left, right = stream(spark, tmp_path / "ahead", "1 second"), stream(spark, behind, "20 seconds")
    joined = fb.join(left, right, on="key", window=fb.window("ts", "10 seconds"), how="right")
    found, query = run(joined, tmp_path)
    expected = spark.read.parquet(str(behind)).where("ts < '2024-01-01 00:30'").count()
    assert ended(found).count() == expected
    assert ended(found).where("x is not null").count() == 0
    assert fb.progress(query).rowsLate == 0


@pytest.mark.slow
def test_a_join_of_two_windowed_streams_over_which_another_operator_runs(spark, sources, tmp_path):
    """Three levels: counts of each side, joined by their windows, and the largest sum of a minute."""

    def counts(df, name):
        return fb.groupBy(df, fb.window("ts", "10 seconds"), "key").agg(fb.count("*").alias(name))

    at = F.window_time("window")
    joined = fb.join(
        *(counts(stream(spark, path), name) for path, name in zip(sources, ("n", "m"), strict=True)),
        on="key",
        window=fb.window(at, "10 seconds"),
    )
    assert joined.columns == ["window", "key", "n", "m"]
    top = fb.groupBy(joined, fb.window(at, "1 minute")).agg(fb.max(F.col("n") + F.col("m")).alias("most"), fb.max("m"))
    found, _ = run(top, tmp_path)

    def batch_counts(path, name):
        return spark.read.parquet(str(path)).groupBy(F.window("ts", "10 seconds"), "key").agg(F.count("*").alias(name))

    left, right = (batch_counts(path, name) for path, name in zip(sources, ("n", "m"), strict=True))
    both = left.join(right, ["window", "key"]).withColumn("at", F.col("window.start"))
    expected = both.groupBy(F.window("at", "1 minute")).agg(F.max(F.col("n") + F.col("m")).alias("most"), F.max("m"))
    assert same(ended(found), ended(expected)) >= 2


def test_names_and_types_that_need_quotes(spark, sources):
    left, right = (
        spark.read.parquet(str(path)).select(
            "ts", F.col("key").alias("a.b"), F.struct(F.col("x").alias("user id")).alias("of")
        )
        for path in sources
    )
    joined = fb.join(left, right, on="a.b", window=fb.window("ts", "10 seconds"))
    assert joined.columns == ["window", "a.b", "ts", "of", "ts_right", "of_right"]
    rows = aligned(spark, sources, "inner", ["key"], "10 seconds")
    assert (
        joined.agg(F.sum("of.user id"), F.sum("of_right.user id")).first() == rows.agg(F.sum("x"), F.sum("x_right")).first()
    )


def test_names_that_differ_in_case_alone_where_case_counts(spark):
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        left = spark.sql("select timestamp '2024-01-01 00:00:00' t, 1 k, 'left' K")
        right = spark.sql("select timestamp '2024-01-01 00:00:01' t, 1 k, 'v' v, 'V' V, 'mine' Window")
        found = fb.join(left, right, on="k", window=fb.window("t", "1 minute"))
        assert found.columns == ["window", "k", "t", "K", "t_right", "v", "V", "Window"]
        assert [tuple(row)[3:] for row in found.drop("t_right").collect()] == [("left", "v", "V", "mine")]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_keys_are_found_whatever_their_case_where_case_does_not_count(spark):
    left = spark.sql("select timestamp '2024-01-01 00:00:00' t, 1 id, 'left' l")
    right = spark.sql("select timestamp '2024-01-01 00:00:01' t, 1 ID, 'right' r")
    found = fb.join(left, right, on="Id", window=fb.window("t", "1 minute"))
    assert found.columns == ["window", "Id", "t", "l", "t_right", "r"]
    assert [(row.Id, row.l, row.r) for row in found.collect()] == [(1, "left", "right")]
    twice = left.crossJoin(spark.sql("select 1 id"))
    with pytest.raises(InvalidArgument, match="the left side has several columns 'id'"):
        fb.join(twice, right, on="id", window=fb.window("t", "1 minute"))


@pytest.mark.parametrize("name", ["__0", "__right", "__time"])
def test_a_key_with_the_name_of_a_column_of_the_join(spark, name):
    side = spark.sql(f"select timestamp '2024-01-01 00:00:00' t, 1 `{name}`, 3 a")
    with pytest.raises(InvalidArgument, match=f"the key '{name}' has the name of a column that the join makes"):
        fb.join(side, side, on=name, window=fb.window("t", "1 minute"))


def test_an_empty_side(spark, sources, tmp_path):
    """Spark has no watermark while a source has had no rows, so nothing fires; in a batch all is there."""
    left, right = (spark.read.parquet(str(path)) for path in sources)
    joined = fb.join(left, right.limit(0), on="key", window=fb.window("ts", "10 seconds"), how="left")
    assert joined.count() == left.where("ts IS NOT NULL").count()
    assert joined.where("x_right is not null").count() == 0


def test_joins_have_the_names_that_spark_has_for_them(spark, sources):
    left, right = (spark.read.parquet(str(path)) for path in sources)
    window = fb.window("ts", "10 seconds")
    for kind, name in [("full", "outer"), ("left", "LeftOuter"), ("anti", "left_anti")]:
        assert same(fb.join(left, right, "key", window, name), fb.join(left, right, "key", window, kind)) > 0


def test_what_cannot_be_joined(spark, sources):
    left, right = (spark.read.parquet(str(path)) for path in sources)
    window = fb.window("ts", "10 seconds")
    with pytest.raises(InvalidArgument, match="inner, left, right, full, semi, anti"):
        fb.join(left, right, "key", window, "cross")
    with pytest.raises(UnknownColumn, match="the right side has no column 'key'"):
        fb.join(left, right.drop("key"), "key", window)
    with pytest.raises(InvalidArgument, match="bigint on the left side and string on the right"):
        fb.join(left, right.withColumn("key", F.col("key").cast("string")), "key", window)
    with pytest.raises(InvalidArgument, match="has a column 'window' of its own"):
        fb.join(*(df.withColumn("window", F.window("ts", "1 second")) for df in (left, right)), ["window", "key"], window)
    with pytest.raises(InvalidArgument, match="the time is timestamp on the left side and timestamp_ntz"):
        fb.join(left, right.withColumn("ts", F.col("ts").cast("timestamp_ntz")), "key", window)
    with pytest.raises(InvalidArgument, match="at least one key"):
        fb.join(left, right, [], window)
    with pytest.raises(InvalidArgument, match="a stream and a batch"):
        fb.join(stream(spark, sources[0]), right, "key", window)
    with pytest.raises(InvalidArgument, match="one gap for both sides"):
        fb.join(left, right, "key", fb.session_window("ts", F.lit("1 second")))
    with pytest.raises(InvalidArgument, match="two columns 'x_right'"):
        fb.join(left.withColumn("x_right", F.lit(1)), right, "key", window)
    with pytest.raises(InvalidArgument, match="write for example"):
        fb.join(left, right, "key", fb.count_window(3))
