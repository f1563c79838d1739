"""Sketches of a stream, read by Spark's own functions."""

import functools
import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from streams import generate, run
from test_recovery import push_watermark, total_when_every_batch_fails_once

import forebay as fb
from forebay.errors import InvalidArgument, UnsupportedType

RANK_ERROR = 2.296 / 200**0.9723  # of quantiles of 99 of 100 sketches of that k, at most, as DataSketches has measured
SKETCHES = [
    fb.kll_sketch_agg_double("x").alias("kll"),
    fb.kll_sketch_agg_bigint("l").alias("longs"),
    fb.hll_sketch_agg("u").alias("ids"),
    fb.hll_sketch_agg("s").alias("words"),
    fb.count_min_sketch("s", 0.05, 0.9, 3).alias("of_words"),
    fb.count_min_sketch("i", 0.05, 0.9, 3).alias("of_ints"),
    fb.approx_top_k("s", 4).alias("top"),
    fb.approx_percentile("x", [0.0, 0.5, 1.0], 1000).alias("percentiles"),
    fb.approx_percentile("i", 0.25).alias("quarter"),
]
RANKS = [0.1, 0.5, 0.9]


@pytest.mark.thorough
@pytest.mark.parametrize("keys", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_spark_reads_what_micro_batches_and_a_restart_have_merged(spark, tmp_path, keys):
    stream = generate(spark, tmp_path, keys=keys, rows=2000)
    names = [each.name for each in SKETCHES]
    found = {}

    def keep(rows, batch):
        found.update({row.key: row for row in rows.collect()})

    for _ in range(2):  # the second run goes on with the state of the first
        df = fb.rolling(stream.streaming("1 second"), "key").agg(*SKETCHES)
        query = df.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "ck"))
        query = query.trigger(availableNow=True).start()
        query.awaitTermination()
        generate_more(stream, spark, tmp_path, keys)
    rows = spark.createDataFrame(list(found.values()), df.schema)
    mine = rows.select(
        "key",
        F.array(*[F.expr(f"kll_sketch_get_quantile_double(kll, {rank}D)") for rank in RANKS]).alias("quantiles"),
        F.expr("kll_sketch_get_n_bigint(longs)").alias("n"),
        F.hll_sketch_estimate("ids").alias("distinct"),
        F.hll_sketch_estimate("words").alias("distinct_words"),
        *names[4:],
    )
    both = mine.join(oracle(stream.static), "key").collect()
    assert len(both) == keys
    for row in both:
        assert row.n == row.true_n
        for low, quantile, high in zip(row.lower, row.quantiles, row.upper, strict=True):
            assert low <= quantile <= high
        assert row.distinct == pytest.approx(row.true_distinct, rel=0.05)  # three standard deviations at lgConfigK = 12
        assert row.distinct_words == row.true_words
        assert row.of_words == row.true_of_words  # byte for byte
        assert row.of_ints == row.true_of_ints
        assert dict(row.top) == dict(sorted(row.counts, key=lambda pair: -pair[1])[:4])
        assert (row.percentiles[0], row.percentiles[2]) == (row.least, row.most)
        assert row.near[0] <= row.quarter <= row.near[1]


def generate_more(stream, spark, tmp_path, keys):
    """More files in the directory of a stream, once."""
    more = generate(spark, tmp_path / "more", keys=keys, rows=500, seed=2) if not (tmp_path / "more").exists() else None
    for file in sorted(Path(more.path).iterdir()) if more else ():
        shutil.move(file, Path(stream.path) / f"more-{file.name}")


def oracle(rows):
    rows = rows.withColumn("counted", F.count("*").over(Window.partitionBy("key", "s")))
    return rows.groupBy("key").agg(
        F.count("l").alias("true_n"),
        F.percentile("x", [rank - 2 * RANK_ERROR for rank in RANKS]).alias("lower"),
        F.percentile("x", [rank + 2 * RANK_ERROR for rank in RANKS]).alias("upper"),
        F.count_distinct("u").alias("true_distinct"),
        F.count_distinct("s").alias("true_words"),
        F.count_min_sketch("s", 0.05, 0.9, 3).alias("true_of_words"),
        F.count_min_sketch("i", 0.05, 0.9, 3).alias("true_of_ints"),
        F.collect_set(F.struct("s", "counted")).alias("counts"),
        F.min("x").alias("least"),
        F.max("x").alias("most"),
        F.percentile("i", F.array(F.lit(0.24), F.lit(0.26))).alias("near"),
    )


@pytest.mark.slow
def test_sketches_of_windows_are_the_same_bytes_when_every_micro_batch_fails_once(spark, tmp_path):
    stream = generate(spark, tmp_path, keys=6, rows=300)
    push_watermark(stream, 1)

    def results():
        df = stream.streaming("10 seconds")
        windows = {"tumbling": fb.window("ts", "10 seconds"), "sliding": fb.window("ts", "20 seconds", "10 seconds")}
        for kind, window in {**windows, "session": fb.session_window("ts", "1 second")}.items():
            sketches = fb.groupBy(df, window, "key").agg(*SKETCHES)
            yield sketches.select(F.lit(kind).alias("kind"), F.to_json(F.struct(*sketches.columns)).alias("row"))

    result = functools.reduce(DataFrame.union, results())
    run(result, tmp_path / "quiet", "quiet_sketches")
    total, _ = total_when_every_batch_fails_once(spark, result, tmp_path / "ck")
    found, expected = (Counter(map(tuple, rows.collect())) for rows in (total, spark.table("quiet_sketches")))
    assert found == expected
    assert all(sum(kind == row[0] for row in expected) > 50 for kind in ("tumbling", "sliding", "session"))


@pytest.mark.slow
def test_sketches_in_update_mode_end_as_they_do_in_append_mode(spark, tmp_path):
    stream = generate(spark, tmp_path, keys=6, rows=300)
    push_watermark(stream, 1)
    made = fb.groupBy(stream.streaming("10 minutes"), fb.window("ts", "10 seconds"), "key").agg(*SKETCHES)
    made = made.withColumn("top", F.col("top.count"))  # which items come first of those that are as frequent is open
    newest, updates = {}, 0

    def keep(rows, batch):
        nonlocal updates
        for row in rows.select(F.col("window.start").alias("start"), "key", F.to_json(F.struct("*")).alias("row")).collect():
            newest[row.start, row.key] = row.row
            updates += 1

    for mode in ("update", "append"):
        query = made.writeStream.foreachBatch(keep).outputMode(mode).option("checkpointLocation", str(tmp_path / mode))
        query.trigger(availableNow=True).start().awaitTermination()
        if mode == "update":
            updated, newest = newest, {}
            assert updates > 1.5 * len(updated)
    assert len(newest) > 50
    assert newest == {which: row for which, row in updated.items() if which in newest}


def test_sketches_merge_with_those_of_spark(spark):
    rows = spark.range(20_000).selectExpr("id", "cast(id as string) text", "id * 0.5d number").coalesce(1)
    old, new = rows.where("id < 12000"), rows.where("id >= 8000")
    whole = fb.global_window()
    mine = fb.groupBy(old, whole).agg(
        fb.hll_sketch_agg("text").alias("hll"), fb.kll_sketch_agg_double("number").alias("kll")
    )
    theirs = new.agg(F.hll_sketch_agg("text").alias("hll2"), F.kll_sketch_agg_double("number").alias("kll2"))
    row = mine.crossJoin(theirs).selectExpr(
        "hll_sketch_estimate(hll_union(hll, hll2)) distinct",
        "kll_sketch_get_n_double(kll_sketch_merge_double(kll, kll2)) n",
    ).first()  # fmt: skip
    assert row.distinct == pytest.approx(20_000, rel=0.05)
    assert row.n == 24_000


def test_what_spark_has_no_sketch_of_is_refused(spark):
    rows = spark.range(3).selectExpr("id", "cast(id as double) d", "cast(id as string) s", "map(id, id) m")
    grouped = fb.groupBy(rows, fb.global_window())
    for wrong in (
        fb.hll_sketch_agg("d"),
        fb.kll_sketch_agg_double("s"),
        fb.kll_sketch_agg_bigint("d"),
        fb.approx_top_k("m"),
    ):
        with pytest.raises((InvalidArgument, UnsupportedType)):
            grouped.agg(wrong)
