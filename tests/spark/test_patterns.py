"""Patterns that share events: each equals Spark batch over the same rows, through failures, and restarts with others."""

import datetime
import functools
import json

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from streams import assert_same, generate, oracle, run
from test_recovery import push_watermark, total_when_every_batch_fails_once

import forebay as fb
from forebay.errors import InvalidArgument, MissingWatermark, UnknownColumn

PATTERNS = {
    "sliding": (("30 seconds", "10 seconds"), ["key"], [fb.median("x"), fb.count("*").alias("n"), fb.collect_list("s")]),
    "tumbling by s": (("25 seconds",), ["key", "s"], [fb.percentile("d", 0.9)]),
    "totals": (("20 seconds",), ["key"], [fb.sum("i"), fb.count("*").alias("n")]),
    "visits": ("2 seconds", ["key"], [fb.collect_list("s"), fb.median("x")]),
    "visits by s": ("5 seconds", ["key", "s"], [fb.count_distinct("i")]),
    "totals of visits": ("2 seconds", ["key"], [fb.sum("u"), fb.max("d")]),
}


def decades():
    def assigned(times):  # a worker knows no functions of this module
        return times - times % 10_000_000, times - times % 10_000_000 + 10_000_000

    return fb.custom_window(assigned)


@pytest.fixture
def stream(spark, tmp_path):
    return generate(spark, tmp_path, keys=8, rows=150)


def shared(df, names=tuple(PATTERNS)):
    patterns = fb.patterns(df, "key")
    for name in names:
        window, keys, aggregates = PATTERNS[name]
        windows = fb.session_window("ts", window) if isinstance(window, str) else fb.window("ts", *window)
        patterns = patterns.add(name, windows, *aggregates, keys=keys[1:])
    return patterns


def expected(df, name):
    window, keys, aggregates = PATTERNS[name]
    windows = F.session_window("ts", window) if isinstance(window, str) else F.window("ts", *window)
    return oracle(df, windows, keys, aggregates)


@pytest.mark.thorough
def test_a_batch_dataframe(stream):
    patterns = shared(stream.static).add("fives", fb.count_window(5), fb.collect_set("key").alias("keys"))
    for name in PATTERNS:
        assert assert_same(patterns.of(name), expected(stream.static, name), len(PATTERNS[name][1])) > 10
    fives = patterns.of("fives").groupBy("key").agg(F.count("*").alias("windows"), F.max(F.size("keys")).alias("distinct"))
    rows = stream.static.where("ts is not null").groupBy("key").count()
    assert {tuple(row) for row in fives.collect()} == {(row[0], row[1] // 5, 1) for row in rows.collect() if row[1] >= 5}


@pytest.mark.thorough
def test_conditions_are_over_the_results_of_one_pattern(stream, capsys):
    """That of a pattern is not tried on the results of another, whose columns may be zero where its own never are."""
    rows, slides = stream.static, fb.window("ts", "30 seconds", "10 seconds")
    never, count = fb.count(F.lit(None).cast("int")).alias("none"), fb.count("*").alias("n")
    conditions = {
        "sliding": [fb.when("100 div n > 20"), fb.when(F.col("key") % 2 == 0)],
        "visits": [fb.when("minute(session_window.start) = 0 and m is not null")],
        "zeros": [],
        "none": [fb.when("n < 0")],
    }
    given = {
        "sliding": (slides, count),
        "visits": (fb.session_window("ts", "2 seconds"), fb.median("x").alias("m")),
        "zeros": (slides, never),
        "none": (slides, count),
    }
    patterns = all_of_them = fb.patterns(rows, "key")
    for name, (window, aggregate) in given.items():
        patterns = patterns.add(name, window, aggregate, *conditions[name])
        all_of_them = all_of_them.add(name, window, aggregate)
    found = patterns.results()
    assert found.schema == all_of_them.results().schema
    for name, each in conditions.items():
        kept = functools.reduce(lambda df, one: df.where(one.condition), each, all_of_them.of(name))
        assert patterns.of(name).exceptAll(kept).isEmpty()
        assert kept.exceptAll(patterns.of(name)).isEmpty()
        assert kept.isEmpty() == (name == "none")
    assert 0 < patterns.of("sliding").count() < all_of_them.of("sliding").count()
    hours = fb.patterns(rows, "key").add("hourly", fb.window("ts", "1 hour"), count)
    with pytest.raises(InvalidArgument, match="would be called with the results of other patterns, too"):
        hours.add("a", slides, count, fb.when(F.udf(lambda n: n > 3, "boolean")("n"))).results()
    with pytest.raises(UnknownColumn) as raised:
        hours.add("a", slides, count, fb.when("_pattern = 'a'")).results()
    assert "`window`" in str(raised.value)
    assert "__" not in str(raised.value)
    fb.explain(found)
    assert "  when        sliding: 100 div n > 20\n              sliding: " in capsys.readouterr().out


def test_a_gap_of_a_day_is_as_long_as_the_day(spark):
    """In Berlin clocks changed on 2024-03-31, which had 23 hours, and on 2024-10-27, which had 25."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        rows = [("a", "2024-03-30 12:00:00"), ("a", "2024-03-31 12:30:00"), ("b", "2024-10-26 12:00:00")]
        rows += [("b", "2024-10-27 11:30:00"), ("c", "2024-06-01 00:00:00"), ("c", "2024-06-01 23:59:59")]
        df = spark.createDataFrame(rows, "key string, at string").select("key", F.col("at").cast("timestamp").alias("ts"))
        visits = fb.patterns(df, "key").add("visits", fb.session_window("ts", "1 day"), fb.count_distinct("ts").alias("n"))
        alone = fb.groupBy(df, fb.session_window("ts", "1 day"), "key").agg(fb.count_distinct("ts").alias("n"))
        assert assert_same(visits.of("visits"), alone, 1) == 4
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_keys_that_may_be_different_functions_are_refused(stream):
    """Their names are those of columns of stored events, and so must follow from what they are."""
    more, less = F.udf(lambda x: x + 1, "long"), F.udf(lambda x: x - 1, "long")
    windows, count = fb.window("ts", "10 seconds"), fb.count("*").alias("n")
    df = stream.static
    patterns = fb.patterns(df, "key")
    with pytest.raises(InvalidArgument, match="two keys of patterns read alike, <lambda>"):
        patterns.add("a", windows, count, keys=[more("l")]).add("b", windows, count, keys=[less("l")]).results()
    other = df.select("l", F.upper("s").alias("s"))
    with pytest.raises(InvalidArgument, match="two keys of patterns read alike, s, and are of different columns"):
        both = fb.patterns(df.join(other, "l"), "key")
        both.add("a", windows, count, keys=[df["s"]]).add("b", windows, count, keys=[other["s"]]).results()
    alike = [("s",), (F.col("s"),), (df.s,), (F.upper("s"),), (F.upper("s"),), (F.transform("k_array", F.abs),)]
    for number, keys in enumerate((*alike, (F.transform("k_array", F.abs),))):
        patterns = patterns.add(f"p{number}", windows, count, keys=keys)
    assert patterns.results().columns == ["pattern", "key", *(f"p{number}" for number in range(len(alike) + 1))]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("sliding", "tumbling by s", "totals of visits"), id="some"),
        pytest.param((*PATTERNS,), id="all"),
    ],
)
@pytest.mark.slow
def test_every_batch_fails_once_after_its_state_is_written(spark, stream, tmp_path, names):
    push_watermark(stream, 1)
    rows = stream.static.where(F.col("ts") < "2024-01-01 00:30")
    patterns = shared(stream.streaming("10 minutes"), names)
    total, query = total_when_every_batch_fails_once(spark, patterns.results(), tmp_path / "ck")
    for name in names:
        assert assert_same(patterns.of(name, total), expected(rows, name), len(PATTERNS[name][1])) > 10
    assert fb.progress(query).rowsIn == stream.static.where("ts is not null").count()
    assert fb.progress(query).rowsLate == 0


def test_every_batch_fails_once_while_windows_fire(spark, stream, tmp_path):
    """Windows fire in nearly every micro-batch, and rows are late; of all that a failed attempt did, nothing is left."""

    push_watermark(stream, 1)
    names = ("sliding", "tumbling by s", "visits", "totals of visits")
    patterns = shared(stream.streaming("1 second"), names).add(
        "decades", decades(), fb.median("x"), fb.count("s").alias("n")
    )
    quiet = run(patterns.results(), tmp_path / "quiet", "quiet_patterns")
    total, query = total_when_every_batch_fails_once(spark, patterns.results(), tmp_path / "ck")
    for name in (*names, "decades"):
        keys = len(PATTERNS[name][1]) if name in PATTERNS else 1
        assert assert_same(patterns.of(name, total), patterns.of(name, spark.table("quiet_patterns")), keys) > 10
    assert fb.progress(query).rowsLate == fb.progress(quiet).rowsLate > 0
    given = [json.loads(progress.json)["sink"]["numOutputRows"] for progress in quiet.recentProgress]
    assert sum(rows > 0 for rows in given) > 3


@pytest.mark.thorough
def test_windows_that_precede_each_row(spark, stream, tmp_path):
    """They give what they give alone: columns, what Spark knows of these, and rows, of a batch and of a stream."""
    last, recent, count = fb.preceding("ts", rows=3), fb.preceding("ts", "10 seconds"), fb.count("*").alias("n")
    asked = {
        "last": (last, [fb.max("i").alias("m"), fb.current("u").alias("u"), count], []),
        "by s": (recent, [count, fb.when("n > 1")], ["s"]),
    }
    push_watermark(stream, 1)

    def made(df):
        patterns = fb.patterns(df, "key")
        for name, (window, aggregates, keys) in asked.items():
            patterns = patterns.add(name, window, *aggregates, keys=keys)
        return patterns.add("sliding", fb.window("ts", "30 seconds", "10 seconds"), fb.median("x"))

    for df in (stream.static.where(F.col("ts") < "2024-01-01 00:30"), stream.streaming("2 seconds")):
        patterns, found = made(df), None
        if df.isStreaming:
            found = spark.table(run(patterns.results(), tmp_path / "shared", "shared_preceding").name)
        for name, (window, aggregates, keys) in asked.items():
            alone, of = fb.groupBy(df, window, "key", *keys).agg(*aggregates), patterns.of(name, found)
            assert of.columns == alone.columns
            if df.isStreaming:
                assert patterns.of(name).schema == alone.schema
                table = name.replace(" ", "_")
                alone = spark.table(run(alone, tmp_path / table, table).name)
            assert of.exceptAll(alone).isEmpty()
            assert alone.exceptAll(of).isEmpty()
            assert of.count() > 100


@pytest.mark.slow
def test_late_rows_are_those_of_each_pattern_alone(spark, stream, tmp_path):
    push_watermark(stream, 1)
    patterns = shared(stream.streaming("0 seconds"), ("sliding", "visits")).add(
        "fives", fb.count_window(5), fb.count_distinct("u").alias("n")
    )
    query = run(patterns.results(), tmp_path / "shared", "shared")
    found = spark.table("shared")
    for name in ("sliding", "visits"):
        window, keys, aggregates = PATTERNS[name]
        windows = fb.session_window("ts", window) if isinstance(window, str) else fb.window("ts", *window)
        alone = fb.groupBy(stream.streaming("0 seconds"), windows, *keys).agg(*aggregates)
        late = fb.progress(run(alone, tmp_path / name, name)).rowsLate
        assert late > 0
        assert assert_same(patterns.of(name, found), spark.table(name), len(keys)) > 10
    assert fb.progress(query).rowsLate == 0  # the windows of five rows take all
    rows = stream.static.where("ts is not null").groupBy("key").count().collect()
    assert patterns.of("fives", found).count() == sum(row["count"] // 5 for row in rows)


@pytest.mark.thorough
def test_results_go_on_to_another_operator(spark, stream, tmp_path):
    push_watermark(stream, 1)
    sliding = shared(stream.streaming("10 minutes"), ("sliding", "visits")).of("sliding")
    run(
        sliding.groupBy(F.window(F.window_time("window"), "1 minute")).agg(F.sum("n").alias("n")), tmp_path / "ck", "minutes"
    )
    rows = stream.static.where(F.col("ts") < "2024-01-01 00:30")
    by_window = expected(rows, "sliding").groupBy(F.window(F.window_time("window"), "1 minute")).agg(F.sum("n").alias("n"))
    assert set(spark.table("minutes").collect()) == set(by_window.collect())


@pytest.mark.thorough
def test_the_state_can_be_looked_into(stream, tmp_path):
    query = run(shared(stream.streaming("10 minutes"), ("sliding", "totals")).results(), tmp_path / "ck", "looked_into")
    events = stream.static.where("ts is not null").count()
    told = fb.recentMetrics(query)[-1]["operators"][0]
    assert told["storedEvents"] == events
    fb.registerStateSource(stream.spark)
    state = stream.spark.read.format("forebay-state").load(str(tmp_path / "ck"))
    assert {"start", "key", "a_s"} <= set(state.columns)
    assert state.count() == events
    assert state.agg(F.min("start")).first()[0] == stream.static.agg(F.min("ts")).first()[0]


def emitted(df, checkpoint):
    """What a query emits until it has read all files."""
    batches = []
    query = df.writeStream.foreachBatch(lambda batch, _: batches.append(batch.localCheckpoint()))
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    return functools.reduce(DataFrame.union, batches)


def test_patterns_come_and_go_at_restarts(spark, stream, tmp_path):
    """What has stayed goes on as if nothing had changed; windows that are added begin with the events that are there."""
    rows = stream.static.where(F.col("ts") < "2024-01-01 00:30")
    before = shared(stream.streaming("10 minutes"), ("sliding", "totals"))
    assert emitted(before.results(), tmp_path / "ck").isEmpty()
    push_watermark(stream, 1)
    after = shared(stream.streaming("10 minutes"), ("tumbling by s", "sliding", "visits", "totals of visits"))
    after = after.add("decades", decades(), fb.median("x"), fb.count("s").alias("n"))
    found = emitted(after.results(), tmp_path / "ck")
    for name in ("sliding", "visits"):
        assert assert_same(after.of(name, found), expected(rows, name), 1) > 10
    tens = oracle(rows, F.window("ts", "10 seconds"), ["key"], [fb.median("x"), fb.count("s").alias("n")])
    assert assert_same(after.of("decades", found), tens, 1) > 10
    assert after.of("totals of visits", found).isEmpty()  # it reads columns that no pattern had read


@pytest.mark.thorough
def test_windows_of_a_pattern_that_is_added_fire_where_no_rows_come(spark, tmp_path):
    """Virtual nodes that get no rows have not been opened since before there was the pattern."""
    source, keys = str(tmp_path / "source"), 40

    def put(name, minute, *found):
        rows = [(f"{name} {key}", datetime.datetime(2024, 1, 1, 0, minute)) for key in found]
        spark.createDataFrame(rows, "key string, ts timestamp").coalesce(1).write.parquet(source, mode="append")

    put("early", 1, *range(keys))
    events = spark.readStream.schema("key string, ts timestamp").option("maxFilesPerTrigger", 1).parquet(source)
    events = events.withWatermark("ts", "0 seconds")
    listed = fb.collect_list("ts").alias("ts")
    before = fb.patterns(events, "key").add("hourly", fb.window("ts", "1 hour"), listed)
    assert emitted(before.results(), tmp_path / "ck").isEmpty()
    after = before.add("often", fb.window("ts", "10 minutes"), listed)
    for minute in (20, 40):
        put("later", minute, 0)
    found = after.of("often", emitted(after.results(), tmp_path / "ck"))
    assert found.where("key like 'early%'").count() == keys


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda p: p.add("Hourly", fb.window("ts", "1 hour"), fb.count("*")), "there is a pattern 'Hourly' already"),
        (lambda p: p.add("", fb.window("ts", "1 hour"), fb.count("*")), "a text that is not empty"),
        (lambda p: p.add("key", fb.window("ts", "1 hour"), fb.count("*")), "would have two columns 'key'"),
        (lambda p: p.add("a", fb.window("ts", "1 hour"), fb.sum("i").alias("n"), fb.sum("l").alias("n")), "columns 'n'"),
        (lambda p: p.add("a", fb.window("other", "1 hour"), fb.count("*")), "time columns other and ts"),
        (lambda p: p.add("a", fb.global_window(), fb.count("*")), "Write fb.groupBy for others"),
        (lambda p: p.add("a", fb.session_window("ts", F.lit("1 second")), fb.count("*")), "have a fixed one"),
        (lambda p: p.add("a", fb.window("ts", "1 hour")), "at least one aggregate"),
        (lambda p: p.add("a", fb.window("ts", "0 hours"), fb.count("*")), "not positive"),
        (lambda p: p.add("a", fb.window("ts", "1 hour"), fb.when("true")), "at least one aggregate"),
        (lambda p: p.add("a", fb.window("ts", "1 hour"), fb.sum("i").alias("n"), fb.when("n + 1")), "which is a bigint"),
        (lambda p: p.of("daily"), "no pattern 'daily'; there are: hourly"),
    ],
)
def test_what_cannot_be_shared_is_refused(stream, add, message):
    df = stream.static.withColumn("other", F.col("ts"))
    patterns = fb.patterns(df, "key").add("hourly", fb.window("ts", "1 hour"), fb.median("x"))
    with pytest.raises(InvalidArgument, match=message):
        add(patterns).results()


def test_what_is_missing_is_named(stream):
    with pytest.raises(InvalidArgument, match="there is no pattern yet"):
        fb.patterns(stream.static, "key").results()
    with pytest.raises(UnknownColumn, match="nothing"):
        fb.patterns(stream.static, "key").add("a", fb.window("ts", "1 hour"), fb.sum("nothing")).results()
    with pytest.raises(UnknownColumn, match="nothing"):  # the other pattern has such a column
        fb.patterns(stream.static, "key").add("a", fb.window("ts", "1 hour"), fb.sum("i").alias("nothing")).add(
            "b", fb.window("ts", "1 hour"), fb.sum("i"), fb.when("nothing > 1")
        ).results()
    without = stream.spark.readStream.schema(stream.static.drop("k_interval").schema).parquet(stream.path)
    with pytest.raises(MissingWatermark):
        fb.patterns(without, "key").add("a", fb.window("ts", "1 hour"), fb.count("*")).results()
    with pytest.raises(InvalidArgument, match="late for one and in time for another"):
        fb.late(shared(stream.streaming("1 second")).results())


def test_explain_tells_the_patterns(stream, capsys):
    fb.explain(shared(stream.streaming("10 minutes"), ("sliding", "visits by s", "totals")).results())
    told = capsys.readouterr().out
    assert "sliding, window(ts, 30 s, every 10 s, from 0 s) by key: median(x), count(*), collect_list(s); AAR" in told
    assert "visits by s, session_window(ts, gap 5 s) by key, s: " in told
    assert told.count("; AUR") == 1
    assert "totals, window(ts, 20 s, every 20 s, from 0 s) by key: sum(i), count(*); RMW" in told
    assert "2 of 3 patterns need all rows of a window at once, which are stored once for all of them" in told
