"""What a query is told when it starts, and warned of while it runs."""

import logging
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from streams import generate
from test_recovery import run

import forebay as fb
from forebay.errors import LayoutChanged, UnsupportedConfiguration
from forebay.spark.driver import checkpoint, inherited, listener, plans
from forebay.state.layout import as_stored, layout_id
from forebay.state.location import Location
from forebay.state.places import Root

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def stream(spark, tmp_path_factory):
    return generate(spark, tmp_path_factory.mktemp("stream"), keys=8, rows=50, files=2)


@pytest.fixture
def logged(monkeypatch):
    """What forebay logs on the driver."""
    records, handler = [], logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger = logging.getLogger("forebay")
    logger.addHandler(handler)
    monkeypatch.setattr(logger, "propagate", False)
    yield records
    logger.removeHandler(handler)


def hourly(df):
    return fb.groupBy(df, fb.window("ts", "1 hour"), "key").agg(fb.count("*"))


def test_a_watermark_above_an_operator_is_refused_for_operators_of_spark_too(stream, tmp_path):
    counts = hourly(stream.streaming("1 second")).select(F.col("window.start").alias("begun"), "key")
    daily = counts.withWatermark("begun", "1 day").groupBy(F.window("begun", "1 day")).count()
    with pytest.raises(StreamingQueryException, match="given another watermark, on begun"):
        run(daily, tmp_path / "ck")


def shuffles(spark):
    """The files of shuffles."""
    return set(Path(spark.sparkContext.getConf().get("spark.local.dir")).glob("blockmgr-*/*/shuffle_*.data"))


@pytest.mark.parametrize("sink", ["noop", "foreachBatch"])
def test_what_a_micro_batch_has_shuffled_goes_with_it(spark, stream, tmp_path, sink):
    before, seen = shuffles(spark), []
    writer = hourly(stream.streaming("1 second")).writeStream.option("checkpointLocation", str(tmp_path))

    def use(frame, number):
        frame.groupBy("key").count().collect()
        seen.append(shuffles(spark) - before)
        frame.groupBy("key").count().collect()

    query = (writer.format("noop") if sink == "noop" else writer.foreachBatch(use)).start()
    query.processAllAvailable()
    query.stop()
    assert sink == "noop" or any(seen)
    until = time.monotonic() + 30
    while shuffles(spark) - before and time.monotonic() < until:
        time.sleep(0.05)
    assert not shuffles(spark) - before
    assert spark.conf.get(listener._CLEANING) == "false"  # of the session's other work


def test_what_is_shuffled_stays_if_the_user_says_so(spark, stream, tmp_path):
    spark.conf.set(listener._CLEANING, "false")
    try:
        writer = hourly(stream.streaming("1 second")).writeStream.format("noop")
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        query.processAllAvailable()
        assert query._jsq.streamingQuery().sparkSessionForStream().conf().get(listener._CLEANING) == "false"
        query.stop()
    finally:
        spark.conf.unset(listener._CLEANING)


@pytest.mark.parametrize("tagged", ["session", "thread"])
def test_a_query_that_is_started_under_a_tag_runs(spark, stream, tmp_path, tagged):
    adding, clearing = {
        "session": (spark.addTag, spark.clearTags),
        "thread": (spark.sparkContext.addJobTag, spark.sparkContext.clearJobTags),
    }[tagged]
    adding("mine")
    try:
        query = (
            hourly(stream.streaming("1 second"))
            .writeStream.option("checkpointLocation", str(tmp_path))
            .format("noop")
            .start()
        )
    finally:
        clearing()
    query.processAllAvailable()
    query.stop()


def test_a_query_that_is_started_from_within_a_batch_of_another_one_runs(stream, tmp_path):
    started = []

    def start(name, sink):
        writer = hourly(stream.streaming("1 second")).writeStream.option("checkpointLocation", str(tmp_path / name))
        return writer.foreachBatch(sink).start()

    def sink(rows, batch):
        rows.count()
        if not started:
            started.append(start("inner", lambda rows, batch: rows.count()))

    outer = start("outer", sink)
    outer.processAllAvailable()
    started[0].processAllAvailable()
    for query in (outer, *started):
        query.stop()


def test_watermarks_below_operators_are_not_above_them(stream, tmp_path):
    """Of both sides of a join, one of which is an operator's result."""
    counts = hourly(stream.streaming("1 second")).select(F.col("window").alias("w"), "key")
    other = stream.streaming("1 second").select("ts", "key").withWatermark("ts", "5 seconds")
    both = counts.select("key").union(other.select("key"))
    assert plans.redefined(both._jdf.queryExecution().analyzed().toString()) is None


def test_a_line_break_in_an_expression_is_no_node_of_the_plan(spark, stream):
    counts = hourly(stream.streaming("1 second")).withColumn("key", F.regexp_replace("key", "\n", " "))
    again = counts.withWatermark("window", "1 day")
    assert plans.redefined(again._jdf.queryExecution().analyzed().toString()) == "window"
    upper = fb.groupBy(counts, fb.window(F.window_time("window"), "1 day"), "key").agg(fb.count("*").alias("m"))
    (column,) = plans.uppermost(upper._jdf.queryExecution().analyzed().toString())
    assert column not in counts._jdf.queryExecution().analyzed().toString()


def test_results_without_a_watermark_may_be_given_one(spark, stream):
    """Totals that go by the wall clock, or of a stream that has none."""
    unwatermarked = spark.readStream.format("rate").load().withColumnRenamed("timestamp", "ts")
    clocked = fb.groupBy(stream.streaming("1 second"), fb.global_window("1 second"), "key")
    for grouped, key in ((clocked, "key"), (fb.rolling(unwatermarked, "value"), "value")):
        newest = grouped.agg(fb.max("ts").alias("last")).withWatermark("last", "1 second")
        fb.groupBy(newest, fb.window("last", "1 hour"), key).agg(fb.count("*"))
    given = fb.rolling(stream.streaming("1 second"), "key").agg(fb.max("ts").alias("last")).withWatermark("last", "1 second")
    assert plans.redefined(given._jdf.queryExecution().analyzed().toString()) == "last"


@pytest.mark.parametrize(
    ("other", "same"),
    [("s3a://b/ck", True), ("s3://c/ck", False), ("s3://b/other", False), ("/b/ck", False)],
)
def test_schemes_and_hosts_have_several_names(other, same):
    assert checkpoint._same("s3://b/ck", other) is same
    assert checkpoint._same("hdfs://one:8020/ck", "hdfs://nameservice/ck")


def test_a_link_to_a_checkpoint_is_no_copy(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").symlink_to(tmp_path / "here")
    assert checkpoint._same(f"file:{tmp_path}/here", f"{tmp_path}/there")
    assert not checkpoint._same(f"file:{tmp_path}/here", f"{tmp_path}/nowhere")


def layout(*aggregates, **more):
    return {"window": "window(ts)", "keys": [], "pattern": "RMW", "aggregates": {name: {} for name in aggregates}, **more}


@pytest.mark.parametrize(
    "begun",
    [
        {},
        {"identity": "siphash-2-4-128"},
        {"kind": "window", "identity": "siphash-2-4-128"},
        {"kind": "window", "identity": "siphash-2-4-128", "spread": "by window"},
    ],
    ids=["earlier release", "without kinds", "not spread", "now"],
)
@pytest.mark.parametrize("seed", range(8))
def test_of_two_operators_the_one_that_has_changed_gets_its_state(tmp_path, begun, seed):
    """Both are alike but for their aggregates; in which order their directories sort is left to the seed."""
    root, window = Root(tmp_path), f"window(ts, {seed})"
    unchanged, before, after = (layout(*names, window=window) for names in (("s", "n"), ("s", "n", "max"), ("s", "min")))
    names = [Location.new(root, 0, {**each, **begun}).layout for each in (unchanged, before)]
    now = [SimpleNamespace(layout={**each, "kind": "window", "spread": "by window"}) for each in (unchanged, after)]
    found, changed = inherited.directories_of(root, now, 0, updating=False)
    assert changed
    kept = {what: begun[what] for what in ("identity", "spread") if what in begun}
    assert found == {
        layout_id(as_stored(each.layout, updating=False)): {name: kept} for each, name in zip(now, names, strict=True)
    }
    version = "000000000001-00000000"
    for each, name in zip(now[:1], names, strict=False):  # tasks that the listener has told nothing
        stored = as_stored(each.layout, updating=False)
        if "spread" not in begun:  # where windows are spread, rows would not come to this state: better an error
            with pytest.raises(LayoutChanged):
                Location.parse(root, f"{name}/0-00000000/{version}", stored)
            del stored["spread"]  # as in tasks whose state is not known
        assert Location.parse(root, f"{name}/0-00000000/{version}", stored).layout == name


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([("n", "max", "min"), ("n", "s")], [("n", "max", "min", "avg"), ("n",)]),
        ([("max",), ("n", "max")], [("n", "max", "avg"), ("n",)]),
        ([("n", "max", "min"), ("min",)], [("n",), ("n", "max", "min", "avg")]),
    ],
    ids=["either fits both", "one fits one", "the one that fits better is needed"],
)
def test_of_two_operators_that_have_both_changed_each_gets_a_state(tmp_path, before, after, seed):
    root, window = Root(tmp_path), f"window(ts, {seed})"
    before, now = ([layout(*names, window=window) for names in some] for some in (before, after))
    names = [Location.new(root, 0, as_stored(each, updating=False)).layout for each in before]
    found, _ = inherited.directories_of(root, [SimpleNamespace(layout=each) for each in now], 0, updating=False)
    assert [[*found[layout_id(as_stored(each, updating=False))]] for each in now] == [[name] for name in names]


@pytest.mark.slow
def test_a_watermark_that_stays_where_it_is_is_warned_of(spark, tmp_path, logged):
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).option("advanceMillisPerBatch", 0)
    still = rates.option("numPartitions", 1).load().withWatermark("timestamp", "1 second")
    counts = fb.groupBy(still, fb.window("timestamp", "1 hour")).agg(fb.count("*"))
    query = counts.writeStream.format("noop").queryName("still").option("checkpointLocation", str(tmp_path)).start()
    while query.isActive and not logged and (query.lastProgress or {"batchId": 0})["batchId"] < 60:
        query.awaitTermination(0.2)
    query.stop()
    (warning,) = logged
    assert re.match(r"the watermark of the query still has stayed at 1970-\S+ in 10 micro-batches with rows\.", warning)


@pytest.mark.slow
def test_many_partitions_are_warned_of(spark, stream, tmp_path, logged):
    spark.conf.set("spark.sql.shuffle.partitions", "9")
    try:
        run(hourly(stream.streaming("1 second")), tmp_path / "many")
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    (warning,) = logged
    assert "9 state partitions for 2 cores" in warning
    assert "all of them together about 0.3 s" in warning
    assert 'spark.conf.set("spark.sql.shuffle.partitions", ...) near the number of cores' in warning
    logged.clear()
    run(hourly(stream.streaming("1 second")), tmp_path / "few")
    assert not logged


@pytest.mark.thorough
def test_the_partitions_of_a_query_are_those_that_its_checkpoint_has(spark, stream, tmp_path, logged, monkeypatch):
    monkeypatch.setattr(listener, "_FEW_PARTITIONS", 0)
    run(hourly(stream.streaming("1 second")), tmp_path / "ck")
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    try:
        run(hourly(stream.streaming("1 second")), tmp_path / "ck")
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert len(logged) == 2
    assert all("has 2 state partitions" in warning for warning in logged)


def test_whatever_goes_wrong_stops_the_query_with_a_sentence(stream, tmp_path, logged, monkeypatch):
    def broken(execution):
        raise ValueError("no such thing")

    monkeypatch.setattr(listener.queries, "root_of", broken)
    with pytest.raises(StreamingQueryException, match="forebay could not prepare the query: ValueError: no such thing"):
        run(hourly(stream.streaming("1 second")), tmp_path / "ck")
    assert len(logged) == 1


@pytest.mark.slow
def test_a_query_of_another_session_is_refused_wherever_its_state_is(stream, tmp_path):
    """What the driver checks, sets and locks for a query would be missing."""
    stream.spark.conf.set("spark.forebay.stateDirectory", str(tmp_path / "state"))
    try:
        hourly(stream.streaming("1 second")).createOrReplaceGlobalTempView("hourly")
    finally:
        stream.spark.conf.unset("spark.forebay.stateDirectory")
    results = stream.spark.newSession().table("global_temp.hourly")
    with pytest.raises(StreamingQueryException, match=r"has not prepared this query(?s:.*)Start it from its own session"):
        run(results, tmp_path / "ck")
    stream.spark.catalog.dropGlobalTempView("hourly")


def test_a_checkpoint_is_moved_as_the_docs_say(stream, tmp_path, logged):
    old, new = tmp_path / "old", tmp_path / "new place"
    rows = fb.progress(run(hourly(stream.streaming("1 second")), old)).rowsIn
    shutil.copytree(old, new)
    message = re.escape(f"the checkpoint at file:{new} was copied from file:{old}: Spark keeps absolute paths")
    with pytest.raises(UnsupportedConfiguration, match=message):
        checkpoint.require_at_home(f"file:{new}")
    more = generate(stream.spark, tmp_path, keys=8, rows=50, files=2)
    for number, path in enumerate(sorted(Path(more.path).iterdir())):
        shutil.copy2(path, Path(stream.path) / f"{number + 2:03d}.parquet")
    with pytest.raises(StreamingQueryException, match=message):  # the original is there, and would be read
        run(hourly(stream.streaming("1 second")), new)
    shutil.rmtree(old)
    with pytest.raises(StreamingQueryException):
        run(hourly(stream.streaming("1 second")), new)
    assert all(re.match(message, text) for text in logged)
    assert len(logged) == 3
    subprocess.run(
        ["sh", "-euc", commands()], env={"PATH": os.environ["PATH"], "old": str(old), "new": str(new)}, check=True
    )
    assert fb.progress(run(hourly(stream.streaming("1 second")), new)).rowsIn > rows


def commands():
    """The commands of the page on operations that change a checkpoint that was moved."""
    page = (DOCS / "operations.md").read_text()
    return page.partition("## Move a checkpoint")[2].partition("```sh\n")[2].partition("```")[0]
