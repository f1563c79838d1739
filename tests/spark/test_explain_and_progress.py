import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import forebay as fb
from forebay.errors import InvalidArgument, StateDirectoryError


@pytest.fixture
def ticks(spark):
    return spark.readStream.format("rate").load().withWatermark("timestamp", "10 seconds")


def test_explain_names_the_pattern_and_the_reason(ticks, capsys):
    result = fb.groupBy(ticks, fb.window("timestamp", "1 hour", "5 minutes"), "value").agg(
        fb.count("*"), fb.median("value").alias("m")
    )
    fb.explain(result.where("m > 0").select("window.start", "m"))
    printed = capsys.readouterr().out
    assert "window(timestamp, 3600 s, every 300 s, from 0 s)" in printed
    assert "keys        value bigint" in printed
    assert "pattern     AAR, append and aligned read" in printed
    assert "because     median(value) needs all rows of a window at once" in printed


def test_explain_of_a_batch(spark, capsys):
    ticks = spark.range(9).selectExpr("timestamp_seconds(id) t", "id")
    medians = fb.groupBy(ticks, fb.window("t", "3 seconds")).agg(fb.median("id").alias("m"))
    assert [row.m for row in medians.orderBy("window").collect()] == [1, 4, 7]
    fb.explain(medians)
    assert "pattern     AAR, append and aligned read" in capsys.readouterr().out


def test_progress_adds_up():
    one = fb.Progress(rowsIn=3, rowsOut=1, stateRows=2, stateBytes=100)
    assert one + one == fb.Progress(rowsIn=6, rowsOut=2, stateRows=4, stateBytes=200)
    assert sum([one, one], fb.Progress()) == one + one


def test_explain_of_another_plan(ticks, capsys):
    fb.explain(ticks)
    assert "no operator of forebay in this plan" in capsys.readouterr().out


def test_progress_of_queries_of_which_nothing_is_known(spark, ticks, tmp_path):
    other = ticks.writeStream.format("noop").queryName("other").option("checkpointLocation", str(tmp_path / "ck")).start()
    try:
        with pytest.raises(InvalidArgument, match="the query other has no operator of forebay that keeps state"):
            fb.progress(other)
    finally:
        other.stop()
    spark.range(9).selectExpr("timestamp_seconds(id) t").write.parquet(str(tmp_path / "in"))
    rows = spark.readStream.schema("t timestamp").parquet(str(tmp_path / "in")).withWatermark("t", "1 second")
    counted = fb.groupBy(rows, fb.window("t", "3 seconds")).agg(fb.count("*"))
    gone = counted.writeStream.format("memory").queryName("gone").trigger(availableNow=True).start()
    gone.awaitTermination()
    with pytest.raises(StateDirectoryError, match="of the query gone does not exist any more"):
        fb.progress(gone)


@pytest.mark.slow
def test_a_program_may_end_without_stopping_spark(tmp_path):
    """Its query has ended; the listener must be gone before the interpreter is."""
    program = f"""
        from pyspark.sql import SparkSession
        import forebay as fb
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        spark = fb.configure(builder).getOrCreate()
        spark.range(10).selectExpr("timestamp_seconds(id) t").write.parquet("{tmp_path}/in")
        stream = spark.readStream.schema("t timestamp").parquet("{tmp_path}/in").withWatermark("t", "1 second")
        query = fb.groupBy(stream, fb.window("t", "2 seconds")).agg(fb.count("*")).writeStream.format("noop")
        query.option("checkpointLocation", "{tmp_path}/ck").trigger(availableNow=True).start().awaitTermination()
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert "Py4JException" not in run.stderr


@pytest.mark.slow
def test_the_example_of_two_streams_side_by_side():
    example = Path(__file__).parents[2] / "examples" / "side_by_side.py"
    run = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.count("as in batch") == 2


@pytest.mark.slow
def test_the_example_of_fraud_finds_what_was_planted():
    example = Path(__file__).parents[2] / "examples" / "fraud.py"
    run = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    found = re.findall(r"│ +(\d+) │ +(\d+) │ +\d+% │ +(\d+) │ +(\d+) │", run.stdout)  # episodes, found, alarms, right
    assert len(found) == 5
    for episodes, seen, alarms, right in (map(int, row) for row in found):
        assert episodes > 25
        assert seen > 0.8 * episodes
        assert right > 0.7 * alarms
    assert (example.parents[1] / "demo" / "fraud" / "fraud.png").stat().st_size > 50_000
