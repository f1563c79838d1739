"""State looked at from outside: the command line and the data source."""

import csv
import shutil

import polars as pl
import pytest
from pyspark.sql import functions as F
from streams import generate
from test_recovery import WINDOW, counts, run
from typer.testing import CliRunner

import forebay as fb
from forebay.cli.app import app
from forebay.errors import CorruptState, InvalidArgument
from forebay.state.inspection import opened
from forebay.state.verifying import verify


@pytest.fixture(scope="module")
def stream(spark, tmp_path_factory):
    return generate(spark, tmp_path_factory.mktemp("stream"), keys=8, rows=150)


@pytest.fixture(scope="module", params=[pytest.param("AAR", marks=pytest.mark.slow), "RMW", "AUR"])
def checkpoint(request, stream, tmp_path_factory):
    """A query that has seen all its input and has windows open."""
    path = tmp_path_factory.mktemp(request.param) / "ck"
    df = stream.streaming("1 hour")
    if request.param == "AUR":
        query = fb.groupBy(df, fb.session_window("ts", "2 minutes"), "key").agg(fb.median("x"))
    else:
        query = counts(df, WINDOW, ["key"], fb.median("x") if request.param == "AAR" else fb.sum("x"))
    return path, run(query, path)


def shell(*arguments, status=0):
    result = CliRunner().invoke(app, ["state", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


@pytest.mark.thorough
def test_everything_in_state_is_read(spark, stream, checkpoint, tmp_path):
    """As many rows as the query has taken, for no window has fired; and the same ones from the command line."""
    path, query = checkpoint
    fb.registerStateSource(spark)
    state = spark.read.format("forebay-state").load(str(path))
    assert state.columns[:4] == ["vnode", "start", "end", "key"]
    progress = fb.progress(query)
    assert state.count() == progress.stateRows > 0
    keys = {row.key for row in state.select("key").distinct().collect()}
    assert keys == {row.key for row in stream.static.where("ts is not null").select("key").distinct().collect()}
    if "rows" in state.columns:
        assert state.agg(F.sum("rows")).first()[0] == progress.rowsIn
    else:
        assert state.count() == progress.rowsIn
    for suffix in ("csv", "parquet"):
        assert f"{progress.stateRows:,} rows" in shell("export", path, tmp_path / f"state.{suffix}")
    assert pl.read_parquet(tmp_path / "state.parquet").height == progress.stateRows
    with (tmp_path / "state.csv").open() as file:
        assert sum(1 for _ in csv.reader(file)) == progress.stateRows + 1


def test_the_command_line_says_what_there_is(checkpoint):
    path, _ = checkpoint
    listed = shell("list", path)
    assert "keys key " in listed
    assert any(word in listed for word in ("window(ts, 30 s", "session_window(ts, gap"))
    assert any(word in shell("show", path) for word in ("slice from", "absorbed"))
    assert "vnode" in shell("read", path, "--rows", 3)
    assert "2 virtual nodes" in shell("verify", path)


@pytest.mark.thorough
def test_a_micro_batch_that_is_kept_and_one_that_is_not(spark, checkpoint):
    path, query = checkpoint
    fb.registerStateSource(spark)
    last = max(batch["batchId"] for batch in query.recentProgress if batch["numInputRows"])
    source = spark.read.format("forebay-state")
    whole = source.option("batchId", last).load(str(path)).count()
    assert source.option("batchId", last - 1).load(str(path)).count() < whole
    newest = max(int(commit.name) for commit in (path / "commits").iterdir() if commit.name.isdigit())
    for place in (path, path / "forebay"):
        with opened(str(place)) as operators:
            operators[0].chosen(newest)
            for batch in (0, newest + 1):
                there = rf"micro-batch {batch}, but as of those from \d+ to {newest}\. "
                with pytest.raises(InvalidArgument, match=there):
                    operators[0].chosen(batch)
    with pytest.raises(Exception, match=f"micro-batch 99, but as of those from .* to {newest}"):
        source.option("batchId", 99).load(str(path)).count()
    for command in ("read", "show"):
        result = CliRunner().invoke(app, ["state", command, str(path), "--batch", "99"])
        assert isinstance(result.exception, InvalidArgument)


def test_damage_is_found(checkpoint):
    path, _ = checkpoint
    with opened(str(path)) as operators:
        assert list(verify(operators[0])) == []
    for kind in ("manifest", "arrow"):
        damaged = max(path.rglob(f"forebay/*/*/*.{kind}"))
        whole = damaged.read_bytes()
        middle = len(whole) // 2
        damaged.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        assert damaged.name in shell("verify", path, status=1).replace("\n", "")
        damaged.write_bytes(whole)
    shell("verify", path)


def test_an_older_version_does_not_stand_in_for_one_that_is_damaged(checkpoint):
    path, _ = checkpoint
    damaged = max(path.rglob("forebay/*/*/*.manifest"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:100])
    try:
        for command in ("list", "show", "read"):
            with pytest.raises(CorruptState, match=damaged.name):
                CliRunner().invoke(app, ["state", command, str(path)], catch_exceptions=False)
    finally:
        damaged.write_bytes(whole)


def test_what_spark_has_not_committed_is_not_shown_whatever_the_checkpoint_is_called(checkpoint, tmp_path):
    path, _ = checkpoint
    for name in ("forebay", "other"):
        copy = shutil.copytree(path, tmp_path / name)
        commits = sorted((int(each.name), each) for each in (copy / "commits").iterdir() if each.name.isdecimal())
        commits.pop()[1].unlink()
        with opened(str(copy)) as (operator,):
            assert operator.committed == commits[-1][0]
            assert all(found.batch <= commits[-1][0] for _, found in operator.manifests())
        for _, each in commits:
            each.unlink()
        for place in (copy, copy / "forebay"):
            with opened(str(place)) as (operator,):
                assert operator.chosen() == []


@pytest.mark.thorough
def test_rows_that_have_met_others_are_no_damage(stream, tmp_path):
    """Rows that wait in an outer interval join have marks beside them once they have met somebody."""
    df = stream.streaming("1 second")
    joined = fb.intervalJoin(df.select("ts", "key"), df.select("ts", "key", "u"), "key", "0 seconds", "1 hour", "left")
    run(joined, tmp_path / "ck")
    with opened(str(tmp_path / "ck")) as operators:
        (operator,) = operators
        assert sum(batch.num_rows for batch in operator.read()) > 100
        assert list(verify(operator)) == []


def test_a_file_that_cannot_be_written(checkpoint, tmp_path):
    path, _ = checkpoint
    with pytest.raises(InvalidArgument, match="cannot be written"):
        CliRunner().invoke(app, ["state", "export", str(path), str(tmp_path / "no" / "x.csv")], catch_exceptions=False)


def test_a_place_without_state(tmp_path):
    with pytest.raises(InvalidArgument, match="there is no directory /nowhere"), opened("/nowhere"):
        pass
    with pytest.raises(InvalidArgument, match=r"has no state of forebay\. Name the checkpoint"), opened(str(tmp_path)):
        pass
    (tmp_path / "metadata").write_text('{"id":"6a1f"}')
    elsewhere = r"spark\.forebay\.stateDirectory, name STATE_DIRECTORY/6a1f"
    with pytest.raises(InvalidArgument, match=elsewhere), opened(str(tmp_path)):
        pass


@pytest.mark.thorough
def test_the_wall_clock_and_row_numbers(stream, tmp_path):
    """Windows that are not of event time have row numbers for bounds."""
    df = fb.groupBy(stream.streaming("1 hour"), fb.count_window(1000), "key").agg(fb.collect_list("x"))
    run(df, tmp_path / "ck")
    with opened(str(tmp_path / "ck")) as operators:
        (operator,) = operators
        rows = pl.concat([pl.DataFrame(batch) for part in operator.chosen() for batch in operator.rows(*part)])
    assert rows["end"].max() > 10
    assert rows["start"].max() == 0


@pytest.mark.thorough
def test_keys_of_all_types(spark, stream, tmp_path):
    keys = ["k_string", "k_binary", "k_decimal", "k_timestamp", "k_array", "k_struct", "CAST(i AS STRING)"]
    grouping = [*keys[:-1], F.col("i").cast("string")]
    df = fb.groupBy(stream.streaming("1 hour"), fb.window("ts", "1 minute"), *grouping).agg(
        fb.collect_list("s"), fb.max("dec")
    )
    run(df, tmp_path / "ck")
    fb.registerStateSource(spark)
    state = spark.read.format("forebay-state").load(str(tmp_path / "ck"))
    expected = stream.static.where("ts is not null").select(*grouping)
    found = state.select(*(f"`{key}`" for key in keys))
    assert found.exceptAll(expected).count() == expected.exceptAll(found).count() == 0
