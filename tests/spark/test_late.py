"""Late rows are exactly those that are missing from the results."""

import functools
import shutil

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from streams import generate

import forebay as fb
from forebay.errors import InvalidArgument, UnsupportedConfiguration
from forebay.spark.driver import late as late_module
from forebay.spark.driver.plans import uppermost


@pytest.fixture(scope="module")
def source(spark, tmp_path_factory):
    return generate(spark, tmp_path_factory.mktemp("late"), keys=8, rows=300)


def written(results, tmp_path):
    """What a query writes that has results and late rows, and its progress."""
    found = []

    def write(batch, number):
        found.append(batch.localCheckpoint())

    late = fb.late(results)
    both = results.select(F.struct("*").alias("result")).unionByName(
        late.select(F.struct("*").alias("late")), allowMissingColumns=True
    )
    query = both.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "ck"))
    started = query.trigger(availableNow=True).start()
    started.awaitTermination()
    total = functools.reduce(DataFrame.union, found)
    parts = (total.where(f"{name} is not null").select(f"{name}.*") for name in ("result", "late"))
    return *parts, fb.progress(started)


def rows(df):
    return sorted(map(repr, df.collect()))


@pytest.mark.parametrize(
    "kind", ["tumbling", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("session", "custom"))]
)
def test_of_windows(source, tmp_path, kind):
    def counted(df):
        window = {
            "tumbling": lambda: fb.window("ts", "10 seconds"),
            "session": lambda: fb.session_window("ts", F.expr("make_interval(0, 0, 0, 0, 0, 0, 1 + key % 3)")),
            "custom": lambda: fb.custom_window(lambda times: (times, times + 3_000_000), timeColumn="ts"),
        }[kind]()
        return fb.groupBy(df, window, "key").agg(fb.count("*").alias("n"), fb.sum("u"))

    results, late, progress = written(counted(source.streaming("1 second")), tmp_path)
    assert late.count() == progress.rowsLate > 50
    assert late.columns == [*source.static.columns, "late_by"]
    in_time = source.static.join(late.select("u"), "u", "anti")
    (last,) = results.agg(F.max(f"{results.columns[0]}.end")).first()
    assert rows(results) == rows(counted(in_time).where(F.col(f"{results.columns[0]}.end") <= last))


@pytest.mark.slow
def test_of_a_join(source, tmp_path):
    df = source.streaming("1 second")
    left, right = df.select("ts", "key", "u"), df.where("u % 2 = 0").select("ts", "key", "s")
    joined = fb.intervalJoin(left, right, "key", "-1 second", "1 second", "inner")
    results, late, progress = written(joined, tmp_path)
    assert late.count() == progress.rowsLate > 50
    assert late.columns == [*results.columns[1:], "late_by"]
    of_left, of_right = late.where("ts is not null"), late.where("ts_right is not null")
    assert of_left.where("s is not null").count() == of_right.where("u is not null").count() == 0
    assert of_left.count() + of_right.count() == progress.rowsLate
    assert of_left.join(left_of(results), "u", "semi").count() == 0


def left_of(results):
    return results.select("u").distinct()


@pytest.mark.slow
def test_by_how_much(source, tmp_path):
    """With so much more delay of the watermark nothing is late."""
    counts = fb.groupBy(source.streaming("1 second"), fb.window("ts", "10 seconds"), "key").agg(fb.count("*"))
    _, late, _ = written(counts, tmp_path / "first")
    (most,) = late.agg(F.max(F.col("late_by"))).first()
    for more, expected in ((0, True), (0.001, False)):
        delay = f"{1 + most.total_seconds() + more:.6f} seconds"
        counts = fb.groupBy(source.streaming(delay), fb.window("ts", "10 seconds"), "key").agg(fb.count("*"))
        _, late, _ = written(counts, tmp_path / delay)
        assert bool(late.count()) == expected


def test_of_what_has_no_late_rows(spark, source, tmp_path):
    batch = fb.groupBy(source.static, fb.window("ts", "10 seconds")).agg(fb.count("*"))
    assert fb.late(batch).count() == 0
    selected = fb.late(batch.where("`count(1)` > 1").select("window"))
    assert selected.columns == fb.late(batch).columns
    with pytest.raises(InvalidArgument, match="the results of 0 operators"):
        fb.late(source.static)
    with pytest.raises(InvalidArgument, match="the results of 2 operators"):
        fb.late(
            batch.select("window").union(
                fb.groupBy(source.static, fb.window("ts", "1 hour")).agg(fb.max("ts")).select("window")
            )
        )
    with pytest.raises(InvalidArgument, match="the results of 0 operators"):
        fb.late(fb.late(batch).select("ts"))
    twice = fb.groupBy(batch, fb.window("window.start", "1 minute")).agg(fb.count("*"))
    assert fb.late(twice).columns == ["window", "count(1)", "late_by"]
    with pytest.raises(InvalidArgument, match="does not depend on event time"):
        fb.late(fb.rolling(source.static, "key").agg(fb.count("*")))
    with pytest.raises(InvalidArgument, match="'late_by' already"):
        renamed = source.static.withColumn("late_by", F.lit(1))
        fb.late(fb.groupBy(renamed, fb.window("ts", "10 seconds")).agg(fb.count("*")))


def test_what_cannot_have_late_rows(source, tmp_path):
    with pytest.raises(UnsupportedConfiguration, match=r"late\(\) got a builtins.str"):
        fb.late("counts")


def test_batch_dataframes_are_not_kept_from_being_forgotten(spark, source):
    """They may be micro-batches, whose rows Spark would keep."""
    results = fb.groupBy(source.static, fb.window("ts", "10 seconds"), "key").agg(fb.count("*"))
    (column,) = uppermost(str(results._jdf.queryExecution().analyzed().toString()))
    known, _ = late_module._batches[column]
    assert known == source.static.schema
    assert fb.late(results).schema.fields[:-1] == source.static.schema.fields


@pytest.mark.thorough
def test_a_query_that_begins_anew_where_another_one_was(spark, tmp_path):
    """Its micro-batches have the numbers that the other one's had, and earlier watermarks; workers have seen both."""
    for day in ("2024-05-02", "2024-05-01"):
        shutil.rmtree(tmp_path / "ck", ignore_errors=True)
        rows = spark.range(300).selectExpr(f"timestamp'{day} 00:00:00' + make_interval(0, 0, 0, 0, 0, 0, id) ts", "id")
        for _ in range(3):
            rows.coalesce(1).write.mode("append").parquet(str(tmp_path / day))
        source = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1)
        df = source.parquet(str(tmp_path / day)).withWatermark("ts", "1 hour")
        counts = fb.groupBy(df, fb.window("ts", "10 seconds")).agg(fb.count("*"))
        late = fb.late(counts)
        both = counts.select(F.lit(0).alias("late")).union(late.select(F.lit(1)))
        writer = both.writeStream.format("memory").queryName(f"late{day[-1]}")
        writer.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start().awaitTermination()
        assert spark.table(f"late{day[-1]}").where("late = 1").count() == 0
