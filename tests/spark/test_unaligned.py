"""Sessions and update mode equal Spark's own streams over the same micro-batches; other windows equal a plain model."""

import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import functions as F
from streams import COUNTED, HOLISTIC, INCREMENTAL, SECOND, assert_same, generate, oracle, run, spark_columns, watermarks

import forebay as fb

SLOW = pytest.mark.slow
STREAMED = [each for each in HOLISTIC if each.function != "count_distinct"]  # which Spark refuses in streams
AGGREGATES = {
    "incremental": INCREMENTAL,
    "mixed": INCREMENTAL + STREAMED,
    "counted": [each for each in COUNTED if each.function != "count_distinct"],
}


@pytest.fixture(scope="module")
def stream(spark, tmp_path_factory):
    return generate(spark, tmp_path_factory.mktemp("data"), keys=40, rows=800)


@pytest.fixture
def names(tmp_path):
    plain = "".join(c if c.isalnum() else "_" for c in tmp_path.name)
    return f"forebay_{plain}", f"spark_{plain}"


def run_both(stream, tmp_path, names, window, spark_window, keys, aggregates, mode="append"):
    """The same query in forebay and in Spark, over the same micro-batches."""
    df = stream.streaming("5 seconds")
    query = run(fb.groupBy(df, window, *keys).agg(*aggregates), tmp_path / "ours", names[0], mode)
    other = run(df.groupBy(spark_window, *keys).agg(*spark_columns(aggregates)), tmp_path / "theirs", names[1], mode)
    assert watermarks(query) == watermarks(other)
    return query, stream.spark.table(names[0]), stream.spark.table(names[1])


def varying_gap():
    third = F.col("key") % 3
    return F.when(third == 0, "2 seconds").when(third == 1, "9 seconds").otherwise("0 seconds")


@pytest.mark.parametrize(
    ("gap", "aggregates"),
    [
        ("fixed", "mixed"),
        ("varying", "counted"),
        pytest.param("varying", "incremental", marks=SLOW),
        pytest.param("fixed", "incremental", marks=SLOW),
        pytest.param("varying", "mixed", marks=SLOW),
    ],
)
def test_sessions(stream, tmp_path, names, gap, aggregates):
    aggregates = AGGREGATES[aggregates]
    gap = "1 second" if gap == "fixed" else varying_gap()
    windows = fb.session_window("ts", gap), F.session_window("ts", gap)
    query, found, expected = run_both(stream, tmp_path, names, *windows, ["key"], aggregates)
    assert assert_same(found, expected, 1) > 100
    assert fb.progress(query).rowsLate > 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    "key",
    [
        ["k_string", "k_array"],
        pytest.param(["k_double"], marks=SLOW),
        pytest.param(["key", "k_string"], marks=SLOW),
        pytest.param(["k_struct"], marks=SLOW),
        pytest.param(["k_string", "k_binary"], marks=SLOW),
    ],
)
def test_sessions_of_all_kinds_of_keys(stream, tmp_path, names, key):
    windows = fb.session_window("ts", "500 milliseconds"), F.session_window("ts", "500 milliseconds")
    aggregates = [fb.count("*"), fb.sum("l"), fb.max("s"), fb.median("x")]
    _, found, expected = run_both(stream, tmp_path, names, *windows, key, aggregates)
    assert assert_same(found, expected, len(key)) > 50


@pytest.mark.thorough
@pytest.mark.parametrize("holistic", [[], pytest.param([fb.median("x")], marks=SLOW)])
def test_sessions_without_keys(stream, tmp_path, names, holistic):
    """Spark cannot stream these, but with a key that is always the same it can."""
    aggregates = [fb.count("*"), fb.sum("l"), *holistic]
    run(
        fb.groupBy(stream.streaming("5 seconds"), fb.session_window("ts", "9 milliseconds")).agg(*aggregates),
        tmp_path,
        names[0],
    )
    df = stream.streaming("5 seconds").groupBy(F.session_window("ts", "9 milliseconds"), (F.col("key") * 0).alias("one"))
    run(df.agg(*spark_columns(aggregates)).drop("one"), tmp_path / "theirs", names[1])
    assert assert_same(stream.spark.table(names[0]), stream.spark.table(names[1]), 0) > 100


@SLOW
@pytest.mark.parametrize("aggregates", [[fb.count("*"), fb.sum("i")], [fb.median("x"), fb.collect_list("s")]])
def test_sessions_of_many_keys(spark, tmp_path, names, aggregates):
    many = generate(spark, tmp_path, keys=20_000, rows=30_000)
    windows = fb.session_window("ts", "8 seconds"), F.session_window("ts", "8 seconds")
    query, found, expected = run_both(many, tmp_path, names, *windows, ["key"], aggregates)
    assert assert_same(found, expected, 1) > 10_000
    assert fb.progress(query).rowsOut == found.count()


@pytest.mark.thorough
@pytest.mark.parametrize("aggregates", AGGREGATES.values(), ids=AGGREGATES)
def test_sessions_of_a_batch(stream, aggregates):
    df = stream.static.where("ts is not null")
    found = fb.groupBy(df, fb.session_window("ts", "1 second"), "key").agg(*aggregates)
    assert assert_same(found, oracle(df, F.session_window("ts", "1 second"), ["key"], aggregates), 1) > 100


@pytest.mark.thorough
@pytest.mark.parametrize("window", [pytest.param(("10 seconds",), marks=SLOW), ("25 seconds", "10 seconds", "3 seconds")])
def test_update_mode(stream, tmp_path, names, window):
    """Every micro-batch emits the results that it changed."""
    windows = fb.window("ts", *window), F.window("ts", *window)
    aggregates = [fb.count("*").alias("n"), fb.sum("i"), fb.max("s"), fb.min("dec"), fb.approx_count_distinct("u")]
    aggregates += [fb.median("x", counted=True), fb.mode("i", deterministic=True, counted=True)]
    query, found, expected = run_both(stream, tmp_path, names, *windows, ["key"], aggregates, "update")
    rows = sorted(map(str, found.collect()))
    assert rows == sorted(map(str, expected.collect()))
    assert len(rows) > 400
    assert fb.progress(query).rowsOut == len(rows)


def test_sessions_count_distinct_values(stream):
    """Against the sizes of sets: where sessions merge, Spark counts a value again in its count(DISTINCT)."""
    df = stream.static.where("ts is not null")
    found = fb.groupBy(df, fb.session_window("ts", "1 second"), "key").agg(fb.count_distinct("s").alias("n"))
    sizes = df.groupBy(F.session_window("ts", "1 second"), "key").agg(F.size(F.collect_set("s")).cast("long").alias("n"))
    assert assert_same(found, sizes, 1) > 100


def test_update_mode_of_what_it_cannot_do(stream, tmp_path, names):
    medians = fb.groupBy(stream.streaming("5 seconds"), fb.window("ts", "10 seconds"), "key").agg(fb.median("x"))
    with pytest.raises(Exception, match=r"outputMode\('update'\) is not possible.*median"):
        run(medians, tmp_path, names[0], "update")


def rows_by_key(stream):
    """Rows of each key in the order in which a stream reads them: by file, and within it as written."""
    rows = stream.static.select("key", "i", "u", "ts").orderBy("u").collect()
    keys = defaultdict(list)
    for row in rows:
        keys[row.key].append(row)
    return keys


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("slide", "holistic"),
    [(2, True), *(pytest.param(*each, marks=SLOW) for each in [(1, False), (2, False), (3, False), (1, True), (3, True)])],
)
def test_count_windows(stream, tmp_path, names, slide, holistic):
    aggregate = fb.collect_list("u") if holistic else fb.sum("u")
    df = fb.groupBy(stream.streaming("5 seconds"), fb.count_window(3, slide), "key").agg(aggregate.alias("value"))
    run(df, tmp_path, names[0])
    expected = {}
    for key, rows in rows_by_key(stream).items():
        values = [row.u for row in rows]
        for start in range(0, len(values) - 2, slide):
            window = values[start : start + 3]
            expected[start, start + 3, key] = window if holistic else sum(window)
    found = {(*row.count_window, row.key): row.value for row in stream.spark.table(names[0]).collect()}
    assert found == expected
    assert len(found) > 100


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("accumulate", "holistic"),
    [(True, False), (False, True), pytest.param(True, True, marks=SLOW), pytest.param(False, False, marks=SLOW)],
)
def test_a_global_window_every_so_many_rows(stream, tmp_path, names, accumulate, holistic):
    aggregate = fb.collect_list("u") if holistic else fb.sum("u")
    window = fb.global_window(everyRows=7, accumulate=accumulate)
    run(fb.groupBy(stream.streaming("5 seconds"), window, "key").agg(aggregate.alias("value")), tmp_path, names[0])
    expected = set()
    for key, rows in rows_by_key(stream).items():
        values = [row.u for row in rows]
        for end in range(7, len(values) + 1, 7):
            window = values[:end] if accumulate else values[end - 7 : end]
            expected.add((key, tuple(window) if holistic else sum(window)))
    rows = stream.spark.table(names[0]).collect()
    found = {(row.key, tuple(row.value) if holistic else row.value) for row in rows}
    assert found == expected
    assert len(rows) == len(found) > 100


@pytest.mark.thorough
@pytest.mark.parametrize("accumulate", [False, True], ids=["discarding", "accumulating"])
def test_a_global_window_by_the_clock(stream, tmp_path, names, accumulate):
    """Spark runs a query with processing time triggers until it is stopped, so results are awaited."""
    window = fb.global_window("1 second", accumulate=accumulate)
    df = fb.groupBy(stream.streaming("5 seconds"), window, "key").agg(fb.sum("u").alias("sum"), fb.median("u").alias("m"))
    writer = df.writeStream.format("memory").queryName(names[0]).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(processingTime="100 milliseconds").start()
    expected = {key: sum(row.u for row in rows) for key, rows in rows_by_key(stream).items()}
    try:
        for _ in range(100):
            query.awaitTermination(1)
            totals = defaultdict(list)
            for row in stream.spark.table(names[0]).collect():
                totals[row.key].append(row["sum"])
            last = {key: max(sums) if accumulate else sum(sums) for key, sums in totals.items()}
            if last == expected:
                break
        assert last == expected
    finally:
        query.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("hint", [None, "aligned", pytest.param("incremental", marks=SLOW)])
def test_custom_windows(stream, tmp_path, names, hint):
    incremental, hint = (True, None) if hint == "incremental" else (False, hint)

    def turns(times, second=SECOND):
        phase = times % (10 * second)
        first, middle = phase < 3 * second, phase < 8 * second
        start = np.where(first, 0, np.where(middle, 3, 8)) * second
        end = np.where(first, 3, np.where(middle, 8, 10)) * second
        return times - phase + start, times - phase + end

    aggregates = [fb.count("*").alias("n"), fb.sum("u").alias("sum")]
    aggregates += [] if incremental else [fb.collect_list("u").alias("all")]
    df = fb.groupBy(stream.streaming("5 seconds"), fb.custom_window(turns, hint=hint, incremental=incremental), "key").agg(
        *aggregates
    )
    query = run(df, tmp_path, names[0])
    before, until = watermarks(query)
    expected, late, read = defaultdict(list), 0, 0
    for key, rows in rows_by_key(stream).items():
        for row in (row for row in rows if row.ts is not None):
            time = int(row.ts.timestamp() * SECOND + 0.5)
            start, end = (int(bound) for bound in turns(np.array(time)))
            file = batch_of(stream, row.u)
            if before[file] and end <= before[file] * 1000:
                late += 1
            elif end <= until * 1000:
                expected[start, end, key].append(row.u)
            read += 1
    found = stream.spark.table(names[0]).selectExpr(
        "unix_micros(window.start) s", "unix_micros(window.end) e", "key", "n", "sum", *([] if incremental else ["`all`"])
    )
    rows = {(row.s, row.e, row.key): row for row in found.collect()}
    assert {at: (row.n, row["sum"]) for at, row in rows.items()} == {at: (len(v), sum(v)) for at, v in expected.items()}
    if not incremental:
        assert {at: row["all"] for at, row in rows.items()} == expected
    assert fb.progress(query).rowsLate == late > 0
    assert fb.progress(query).rowsIn == read


@pytest.mark.thorough
@pytest.mark.parametrize("shared", [True, pytest.param(False, marks=SLOW)])
def test_explain_says_what_custom_windows_turned_out_to_be(stream, tmp_path, names, capsys, shared):
    def ten_seconds(times):
        return times // 10_000_000 * 10_000_000, times // 10_000_000 * 10_000_000 + 10_000_000

    def own(times):
        return times, times + 10_000_000

    window = fb.custom_window(ten_seconds if shared else own)
    query = run(fb.groupBy(stream.streaming("5 seconds"), window, "key").agg(fb.median("x")), tmp_path, names[0])
    fb.explain(query)
    printed = capsys.readouterr().out
    assert "pattern     AUR, append and unaligned read" in printed
    assert ("hint='aligned' would store them" in printed) is shared
    assert "open windows of" in printed


def batch_of(stream, unique):
    """The micro-batch of a row: files have 800 rows each, and the third is empty."""
    file = unique // 800
    return file if file < 2 else file + 1


def test_state_of_custom_windows_knows_whether_all_keys_share_them(stream):
    texts = {fb.custom_window(abs, hint=hint).bind(stream.spark, F.col("ts")).text for hint in (None, "aligned")}
    assert len(texts) == 2  # else a query could go on with state in which other keys are together


@pytest.mark.thorough
def test_custom_windows_that_merge_are_sessions(stream, tmp_path, names):
    def session(times):
        return times, times + 1_000_000

    window = fb.custom_window(session, merge="overlapping", ett=lambda starts, ends, times: ends)
    aggregates = [fb.count("*"), fb.median("x")]
    _, found, expected = run_both(
        stream, tmp_path, names, window, F.session_window("ts", "1 second").alias("window"), ["key"], aggregates
    )
    assert assert_same(found, expected, 1) > 100


def restarted(stream, tmp_path, build, mode):
    """Rows that come out of a query that is started again for every file."""
    collected = []

    def keep(df, batch):
        collected.extend(map(str, df.collect()))

    growing = tmp_path / "growing"
    growing.mkdir(parents=True)
    schema = stream.spark.read.parquet(stream.path).schema
    for file in sorted(Path(stream.path).glob("*.parquet")):
        shutil.copy2(file, growing)
        df = stream.spark.readStream.schema(schema).parquet(str(growing)).withWatermark("ts", "5 seconds")
        writer = build(df).writeStream.foreachBatch(keep).outputMode(mode).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    return sorted(collected)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["append", pytest.param("update", marks=SLOW)])
def test_restarts(stream, tmp_path, mode):
    """A forebay query and one of Spark that are started again for every file give the same rows."""
    ours, theirs = fb.session_window("ts", "1 second"), F.session_window("ts", "1 second")
    aggregates = [fb.count("*").alias("n"), fb.sum("u").alias("sum"), fb.median("x").alias("m")]
    if mode == "update":
        ours, theirs, aggregates = fb.window("ts", "10 seconds"), F.window("ts", "10 seconds"), aggregates[:2]
    found = restarted(stream, tmp_path / "a", lambda df: fb.groupBy(df, ours, "key").agg(*aggregates), mode)
    columns = spark_columns(aggregates)
    assert found == restarted(stream, tmp_path / "b", lambda df: df.groupBy(theirs, "key").agg(*columns), mode)
    assert len(found) > 50


@SLOW
def test_restarts_of_count_windows(stream, tmp_path, names):
    def build(df):
        return fb.groupBy(df, fb.count_window(5, 2), "key").agg(fb.count("*").alias("n"), fb.median("u").alias("m"))

    run(build(stream.streaming("5 seconds")), tmp_path / "one", names[0])
    found = restarted(stream, tmp_path, build, "append")
    assert found == sorted(map(str, stream.spark.table(names[0]).collect()))
    assert len(found) > 50
