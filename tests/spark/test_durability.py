"""State that is safe elsewhere than where stores work: the working directory may go at any time."""

import os
import shutil

import pytest
from pyspark.sql import functions as F
from streams import assert_same, confs, generate, oracle
from test_recovery import WINDOW, counts, failure, push_watermark, run

import forebay as fb
from forebay.state import places

AGGREGATES = [fb.count("*").alias("n"), fb.median("x")]


@pytest.fixture
def stream(spark, tmp_path):
    return generate(spark, tmp_path, keys=8, rows=150)


@pytest.mark.parametrize("place", ["checkpoint", pytest.param("S3", marks=pytest.mark.slow)])
def test_every_run_rebuilds_its_state_from_where_it_is_safe(spark, stream, tmp_path, place, request):
    """A run for each part of the input, on a node that has nothing of the last one."""
    settings = {"localDirectory": tmp_path / "node"}
    if place == "S3":
        settings["stateDirectory"] = request.getfixturevalue("s3").format(tmp_path.name)
    source = tmp_path / "growing"
    source.mkdir()
    push_watermark(stream, 1)
    schema = stream.static.schema
    with confs(spark, **settings):
        for number, file in enumerate(sorted((tmp_path / "stream-1-8").iterdir())):
            shutil.copy2(file, source)
            if number % 2:
                continue
            df = spark.readStream.schema(schema).parquet(str(source)).withWatermark("ts", "10 minutes")
            query = run(counts(df, WINDOW, ["key"], *AGGREGATES), tmp_path / "ck")
            assert list((tmp_path / "node").rglob("*.manifest"))
            shutil.rmtree(tmp_path / "node")
        df = spark.readStream.schema(schema).parquet(str(source)).withWatermark("ts", "10 minutes")
        query = run(counts(df, WINDOW, ["key"], *AGGREGATES), tmp_path / "ck")
        assert fb.progress(query).rowsIn == stream.static.where("ts is not null").count()
        assert (tmp_path / "ck" / "forebay").exists() == (place == "checkpoint")
        push_watermark(stream, 2)
        shutil.copy2(tmp_path / "stream-1-8" / "902.parquet", source)
        message = failure(counts(df, ("1 hour",), ["key"], *AGGREGATES), tmp_path / "ck")
        assert "LayoutChanged: the state in" in message
    expected = oracle(stream.static.where(F.col("ts") < "2024-01-01 00:30"), F.window("ts", *WINDOW), ["key"], AGGREGATES)
    assert assert_same(spark.read.parquet(str(tmp_path / "out")), expected, 1) > 50


def test_operators_of_one_query_keep_their_state_in_one_place(spark, stream, tmp_path):
    with confs(spark, stateDirectory=tmp_path / "one"):
        inner = counts(stream.streaming("1 second"))
    with confs(spark, stateDirectory=tmp_path / "two"):
        outer = fb.groupBy(inner, fb.window(F.window_time("window"), "1 minute")).agg(fb.sum("n"))
    message = failure(outer, tmp_path / "ck")
    assert "UnsupportedConfiguration: operators of the query keep their state in different places" in message
    assert not any((tmp_path / "one").iterdir())


@pytest.mark.thorough
def test_local_state_is_lost_with_its_node_and_says_so(spark, stream, tmp_path):
    with confs(spark, durability="local", localDirectory=tmp_path / "node"):
        query = counts(stream.streaming("1 second"))
        rows = fb.progress(run(query, tmp_path / "ck")).rowsIn
        assert rows > 0
        assert not (tmp_path / "ck" / "forebay").exists()
        push_watermark(stream, 1)
        assert fb.progress(run(query, tmp_path / "ck")).rowsIn == rows + 1
        push_watermark(stream, 2)
        shutil.rmtree(tmp_path / "node")
        assert "VersionNotFound" in failure(query, tmp_path / "ck")


def test_what_was_not_used_for_a_day_is_removed_from_the_node(tmp_path):
    query = "0123abcd-0123-4567-89ab-0123456789ab-0123abcd"
    names = (f"{query}/0123456789ab/0-0123abcd", f"{query}/0123456789ab/1-0123abcd", "a/b/c")
    old, young, stranger = (tmp_path / "work" / name for name in names)
    for path in (old, young, stranger):
        path.mkdir(parents=True)
        (path / "file").touch()
    for path in (old, stranger):
        os.utime(path, (0, 0))
    places._sweep(tmp_path / "work")
    assert [path.exists() for path in (old, young, stranger)] == [False, True, True]
