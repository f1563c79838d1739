"""A query that is restarted with other aggregates, or with wider columns, goes on with the state that it has."""

import os
import shutil
from dataclasses import dataclass
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from streams import assert_same, generate, oracle

import forebay as fb
from forebay.errors import CorruptState, InvalidArgument, LayoutChanged, StateDirectoryError
from forebay.spark.driver import dedupe as dedupe_module
from forebay.spark.driver import listener, planner
from forebay.spark.driver.columns import text_of
from forebay.spark.driver.inherited import directories_of
from forebay.state.layout import as_stored, evolves, record, settled_history
from forebay.state.layout import changed as error_of
from forebay.state.layout import history as history_of
from forebay.state.location import Location
from forebay.state.places import Root
from forebay.store.filenames import Version

WINDOW = ("30 seconds", "10 seconds")
KEPT = [fb.count("*").alias("n"), fb.sum("i"), fb.max("i"), fb.min("f"), fb.avg("i"), fb.count_distinct("i", counted=True)]
DROPPED = [fb.avg("dec"), fb.first("same"), fb.sum("dec")]
ADDED = [
    fb.avg("d"),
    fb.max_by("s", "u"),
    fb.stddev("x"),
    fb.count("s"),
    fb.approx_count_distinct("s"),
    fb.sum("wide"),
    fb.min_by("d", "u"),
    fb.bool_or("b"),
    fb.last("some", ignorenulls=True),
    fb.min("s"),
    fb.var_pop("x"),
    fb.count("*").alias("again"),
]
LATER = ("d", "s", "u", "x", "b", "some", "wide", "i_late")
"""Columns that only the aggregates read that are added."""


def test_expressions_with_functions_are_told_alike_each_time(spark):
    """Spark numbers the variables of functions from the first one of the session on."""

    def total():
        return F.aggregate("items", F.lit(0.0), lambda total, item: total + F.size(F.filter("x_77", lambda x: x > item)))

    assert str(total()) != str(total())
    assert text_of(total()) == text_of(total())
    assert "x_77" in text_of(total())
    assert text_of(F.transform("items", lambda x: x + 1)) != text_of(F.transform("items", lambda x: x + 2))


def test_expressions_that_spark_shows_by_address_are_told_alike_each_time(spark):
    """Python functions, with the place in the program where they are called, and binary values."""
    twice = F.udf(lambda x: 2 * x, "long")
    for make in (
        lambda: twice("i"),
        lambda: twice(F.col("i") + 1),
        lambda: F.when(F.col("i") > 1, twice("i")).otherwise(0),
        lambda: F.transform("items", lambda x: twice(x)),
        lambda: F.col("raw") == F.lit(b"ab"),
    ):
        assert str(make()) != str(make())
        assert text_of(make()) == text_of(make())
        assert "@" not in text_of(make())
    assert text_of(twice("i")) == "<lambda>(i)"
    assert text_of(F.lit(b"ab")) != text_of(F.lit(b"ac"))
    with pytest.raises(InvalidArgument, match="Make it a column of its own with withColumn"):
        text_of(twice(F.lit(b"ab")))


@dataclass
class Growing:
    """Files that a stream reads, and those that it will."""

    spark: object
    whole: object
    path: str

    def grow(self, *numbers):
        for number in numbers:
            shutil.copy2(f"{self.whole.path}/{number:03d}.parquet", self.path)

    def end(self):
        """A row so late that all windows fire."""
        table = pq.read_table(f"{self.whole.path}/000.parquet").slice(0, 1)
        later = pa.array([1_704_067_200_000_000 + 9 * 3_600_000_000], pa.timestamp("us", "UTC"))
        path = f"{self.path}/999.parquet"
        pq.write_table(table.set_column(0, "ts", later), path)
        os.utime(path, (1_700_000_000, 1_700_000_000))

    def streaming(self, *, wide):
        schema = self.whole.static.drop("k_interval").schema.add("k_interval", "long")
        df = self.spark.readStream.schema(schema).parquet(self.path)
        return typed(df, wide=wide).withWatermark("ts", "1 hour")

    def static(self, *early):
        """All rows; those of the early files without the columns that the added aggregates read."""
        df = typed(self.whole.static.where("ts is not null"), wide=True)
        df = df.withColumn("i_late", F.col("i"))
        names = [f"{number:03d}.parquet" for number in early]
        return df.select(
            *(
                F.when(~F.col("_metadata.file_name").isin(names), F.col(name)).alias(name) if name in LATER else name
                for name in df.columns
            )
        )


def typed(df, *, wide):
    changed = {
        "i": F.col("i").cast("long" if wide else "int"),
        "f": F.col("x").cast("float").cast("double" if wide else "float"),
    }
    return df.withColumns({**changed, "wide": F.col("d").cast("decimal(30,2)")})


@pytest.fixture
def growing(spark, tmp_path):
    (tmp_path / "growing").mkdir()
    return Growing(spark, generate(spark, tmp_path, keys=8, rows=150), str(tmp_path / "growing"))


def run(df, tmp_path, mode="append", out="out"):
    writer = df.writeStream.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True)
    if mode == "append":
        query = writer.format("parquet").start(str(tmp_path / out))
    else:
        query = writer.format("noop").outputMode(mode).start()
    query.awaitTermination()
    return query


CASES = {
    "RMW": (fb.window, WINDOW, F.window, []),
    "AAR": (fb.window, WINDOW, F.window, [fb.median("i")]),
    "sessions": (fb.session_window, ["2 seconds"], F.session_window, []),
    "AUR": (fb.session_window, ["2 seconds"], F.session_window, [fb.median("i")]),
}


@pytest.mark.parametrize(
    "case", ["RMW", *(pytest.param(case, marks=pytest.mark.slow) for case in ("AAR", "sessions", "AUR"))]
)
def test_aggregates_come_and_go_and_columns_widen(growing, tmp_path, caplog, case):
    make, durations, of_spark, holistic = CASES[case]
    window = make("ts", *durations)
    growing.grow(0, 1)
    before = fb.groupBy(growing.streaming(wide=False), window, "key").agg(*KEPT, *holistic, *DROPPED)
    first = fb.progress(run(before, tmp_path, out="before"))
    growing.grow(2, 3, 4)
    growing.end()
    late = [] if holistic else [fb.stddev("i").alias("late")]  # of the column that avg("i") has read all the time
    aggregates = [*ADDED, *late, *holistic, *reversed(KEPT)]
    after = fb.groupBy(growing.streaming(wide=True), window, "key").agg(*aggregates)
    query = run(after, tmp_path)
    (told,) = [message for message in caplog.messages if message.startswith("the query has been changed")]
    assert "rows that are in state count where the state has the columns" in told and ", and without " in told
    aggregates = [*ADDED, *(fb.stddev("i_late").alias("late") for _ in late), *holistic, *reversed(KEPT)]
    expected = oracle(growing.static(0, 1), of_spark("ts", *durations), ["key"], aggregates)
    assert assert_same(growing.spark.read.parquet(f"{tmp_path}/out/*.parquet"), expected, 1) > 100
    assert fb.progress(query).rowsIn > first.rowsIn > 0 == first.rowsOut


@pytest.mark.thorough
@pytest.mark.parametrize("holistic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_python_functions_go_on_after_a_restart(growing, tmp_path, holistic):
    """A window that is open then has all its rows: the expression is the same one, wherever the program makes it."""
    aggregate = fb.median if holistic else fb.sum

    def totals():
        tenfold = F.udf(lambda x: None if x is None else 10 * x, "long")
        aggregates = [fb.count("*").alias("n"), aggregate(tenfold("i")).alias("total")]
        return fb.groupBy(growing.streaming(wide=True), fb.window("ts", *WINDOW), "key").agg(*aggregates)

    growing.grow(0, 1)
    run(totals(), tmp_path)
    growing.grow(2, 3, 4)
    growing.end()
    run(totals(), tmp_path)
    tenfold = (F.median if holistic else F.sum)(10 * F.col("i").cast("long")).alias("total")
    expected = growing.static().groupBy(F.window("ts", *WINDOW), "key").agg(F.count("*").alias("n"), tenfold)
    assert assert_same(growing.spark.read.parquet(f"{tmp_path}/out/*.parquet"), expected, 1) > 100


@pytest.mark.thorough
@pytest.mark.parametrize("begun", [pytest.param("now", marks=pytest.mark.slow), "before windows were spread"])
def test_windows_without_keys_stay_where_they_were_begun(growing, tmp_path, monkeypatch, begun):
    aggregates = [fb.count("*").alias("n"), fb.median("i"), fb.sum("i")]

    def result():
        return fb.groupBy(growing.streaming(wide=False), fb.window("ts", "10 seconds")).agg(*aggregates)

    growing.grow(0, 1)
    with monkeypatch.context() as earlier:
        if begun != "now":
            earlier.setattr(planner, "_apart", lambda windows: False)
        run(result(), tmp_path)
    growing.grow(2, 3, 4)
    run(result(), tmp_path)
    (layout,) = (tmp_path / "ck" / "forebay").iterdir()
    vnodes = {path.name.partition("-")[0] for path in layout.iterdir() if path.is_dir()}
    assert len(vnodes) == (2 if begun == "now" else 1)
    growing.end()
    run(result(), tmp_path)
    expected = oracle(growing.static(), F.window("ts", "10 seconds"), [], aggregates)
    found = growing.spark.read.parquet(str(tmp_path / "out"))
    assert assert_same(found, expected, 0) > 5


@pytest.mark.thorough
def test_windows_without_keys_stay_where_the_driver_does_not_see_them(growing, tmp_path, monkeypatch):
    """State of an earlier release on the disk of another machine."""
    confs = {"spark.forebay.durability": "local", "spark.forebay.localDirectory": str(tmp_path / "disk")}
    for name, value in confs.items():
        growing.spark.conf.set(name, value)
    try:
        result = fb.groupBy(growing.streaming(wide=False), fb.window("ts", "10 seconds"))
        growing.grow(0, 1)
        with monkeypatch.context() as earlier:
            earlier.setattr(planner, "_apart", lambda windows: False)
            run(result.agg(fb.median("i")), tmp_path)
        monkeypatch.setattr(listener, "directories_of", lambda *args, **more: ({}, False))
        growing.grow(2, 3, 4)
        run(result.agg(fb.median("i")), tmp_path)
        growing.end()
        run(result.agg(fb.median("i")), tmp_path)
    finally:
        for name in confs:
            growing.spark.conf.unset(name)
    expected = oracle(growing.static(), F.window("ts", "10 seconds"), [], [fb.median("i")])
    assert assert_same(growing.spark.read.parquet(str(tmp_path / "out")), expected, 0) > 5


@pytest.mark.slow
def test_state_of_both_forms_can_be_looked_into(growing, tmp_path):
    """While extents of both forms are there, and back to the first form again."""
    fb.registerStateSource(growing.spark)

    def query(*aggregates, wide=False):
        return fb.groupBy(growing.streaming(wide=wide), fb.window("ts", *WINDOW), "key").agg(*aggregates)

    growing.grow(0)
    run(query(fb.max("i"), fb.count("*")), tmp_path)
    growing.grow(1, 3)
    run(query(fb.max("i"), fb.max("u"), wide=True), tmp_path)
    state = growing.spark.read.format("forebay-state").load(str(tmp_path / "ck"))
    assert {"key", "rows", "a_i.max", "a_u.max"} <= set(state.columns)
    assert dict(state.dtypes)["`a_i.max`".strip("`")] == "bigint"
    static = growing.whole.static.where("ts is not null")
    total = state.agg(F.sum("rows"), F.max("`a_u.max`"), F.max("`a_i.max`")).first()
    files = [f"{number:03d}.parquet" for number in (0, 1, 3)]
    there = static.where(F.col("_metadata.file_name").isin(files)).agg(F.count("*"), F.max("u"), F.max("i")).first()
    assert tuple(total) == tuple(there)
    growing.grow(4)
    growing.end()
    run(query(fb.max("i"), fb.max("u"), fb.count("*"), wide=True), tmp_path, out="last")
    expected = oracle(
        growing.static(0, 2).withColumn("i", F.col("i").cast("long")),
        F.window("ts", *WINDOW),
        ["key"],
        [fb.max("i"), fb.max("u"), fb.count("*")],
    )
    assert assert_same(growing.spark.read.parquet(f"{tmp_path}/last/*.parquet"), expected, 1) > 50


@pytest.mark.slow
def test_update_mode(growing, tmp_path):
    def query(*aggregates):
        return fb.groupBy(growing.streaming(wide=True), fb.window("ts", *WINDOW), "key").agg(*aggregates)

    growing.grow(0, 1)
    run(query(fb.min("i"), fb.sum("i")), tmp_path, "update")
    growing.grow(2, 3, 4)
    batches = []
    aggregates = [fb.sum("i"), fb.max("u")]
    writer = query(*aggregates).writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "ck"))
    started = writer.foreachBatch(lambda df, batch: batches.append(df.localCheckpoint())).trigger(availableNow=True).start()
    started.awaitTermination()
    touched = batches[0].select("window", "key")
    expected = oracle(growing.static(0, 1), F.window("ts", *WINDOW), ["key"], aggregates).join(touched, ["window", "key"])
    assert assert_same(batches[0], expected.select(batches[0].columns), 1) > 50


def layout(**aggregates):
    return {"window": "window(ts)", "keys": [], "pattern": "RMW", "aggregates": aggregates}


@pytest.mark.parametrize(
    ("history", "new", "may"),
    [
        ([{"sum": {"a_x": "int"}}], {"sum": {"a_x": "bigint"}, "max": {"a_y": "int"}}, True),
        ([{"sum": {"a_x": "int"}}, {"sum": {"a_x": "int"}, "avg": {"a_y": "int"}}], {"avg": {"a_y": "int"}}, True),
        ([{"a": {}, "b": {}}, {"b": {}, "c": {}}], {"a": {}, "d": {}}, False),
        ([{"sum": {"a_x": "int"}}, {"sum": {"a_x": "bigint"}}], {"sum": {"a_x": "int"}}, False),
        ([{"n": {}, "sum": {"a_x": "decimal(30,2)"}}], {"n": {}, "avg": {"a_x": "decimal(30,4)"}}, False),
        ([{"n": {}, "sum": {"a_x": "decimal(20,2)"}}, {"n": {}}], {"n": {}, "sum": {"a_x": "decimal(30,2)"}}, False),
        ([{"max": {"a_x": "array<int>"}}], {"max": {"a_x": "array<bigint>"}}, True),
        ([{"sum": {"a_x": "int"}}], {"sum": {"a_other": "int"}}, False),
        ([{"apply": {"a_x": "int"}}], {"apply": {"a_x": "int", "a_y": "string"}}, True),
        ([{"a: apply": {"a_x": "int"}}], {"a: apply": {"a_x": "int", "a_y": "string"}}, True),
        ([{"a by i: n": {"k_i": "int"}, "b: n": {}}], {"a by i: n": {"k_i": "string"}, "b: n": {}}, False),
        ([{"a by i: n": {"k_i": "int"}, "b: n": {}}, {"b: n": {}}], {"a by i: n": {"k_i": "string"}, "b: n": {}}, False),
        ([{"a by i: n": {"k_i": "int"}}], {"a by i: n": {"k_i": "bigint"}}, True),
        ([{"a by i: n": {}}], {"a by i: n": {"k_i": "int"}}, True),
        ([{"a by i: f": {"a_1#1": "int"}}], {"a by i: f": {"a_1#1": "int", "k_i": "int"}}, True),
        ([{"join(inner)": {}, "left.x": {"a_0": "int"}}], {"join(left)": {}, "left.x": {"a_0": "int"}}, True),
        ([{"join(left)": {}, "left.x": {"a_0": "int"}}], {"join(left)": {}, "left.y": {"a_0": "int"}}, False),
        ([{"f(x)": {"a_1#1": "int"}}], {"f(x)": {"a_1#1": "int"}, "n": {}}, False),
        ([{"n": {}, "count(x)": {"a_x": "int"}}], {"n": {}, "count(DISTINCT x)": {"a_x": "int"}}, False),
        ([{"n": {}, "sum(x)": {"a_x": "int"}}], {"n": {}, "sum(X)": {"a_X": "int"}}, False),
        ([{"n": {}, "sum(x)": {"a_x": "int"}}], {"n": {}, "sum(CAST(x AS BIGINT))": {"a_1": "bigint"}}, False),
        ([{"n": {}, "sum(x)": {"a_x": "int"}}], {"n": {}, "sum(y)": {"a_y": "decimal(9,2)"}}, True),
        ([{"n": {}, "sum(x)": {"a_x": "int"}}], {"n": {}, "max(y)": {"a_y": "int"}}, True),
        ([{"n": {}, "sum(x)": {"a_x": "int"}}], {"n": {}, "sum(x)": {"a_x": "int"}, "sum(y)": {"a_y": "int"}}, True),
        ([{"p, window(t): n": {}, "q: m": {}}], {"p, window(u): sum(x)": {"a_x": "int"}, "q: m": {}}, True),
        ([{"p, window(t): sum(x)": {"a_x": "int"}, "q: m": {}}], {"p, window(t): sum(y)": {"a_y": "int"}, "q: m": {}}, True),
        ([{"n": {}, "count(*)": {}}], {"n": {}, "count(1)": {"a_1": "int"}}, False),
        ([{"n": {}, "percentile(x, 0.5)": {"a_x": "int"}}], {"n": {}, "percentile(x, 0.9)": {"a_x": "int"}}, True),
        ([{"count(x)": {"a_x": "int"}}], {"count(x)": {"a_x": "int"}, "count(DISTINCT x)": {"a_x": "int"}}, True),
        ([{"n": {}, "count(DISTINCT x)": {"a_x": "int"}}], {"n": {}, "count(x)": {"a_x": "int"}}, True),
    ],
)
def test_which_layouts_can_follow(history, new, may):
    kind = {"kind": "patterns"} if any(": " in text for text in new) else {}
    assert evolves([layout(**each) | kind for each in history], layout(**new) | kind) is may


def test_the_state_of_patterns_that_an_earlier_release_began_is_found_where_the_driver_does_not_see_it(tmp_path):
    root = Root(tmp_path)
    told, tells = (layout(**{"a by i: n": {"a_x": "int", **keys}}) for keys in ({}, {"k_i": "int"}))
    token = f"{Location.new(root, 0, told).at(Version.parse('000000000001-00000000'), 0, None)}"
    assert str(Location.parse(root, token, tells)) == token


def test_forms_of_a_query_are_kept_in_order_and_a_damaged_one_is_refused(tmp_path):
    root, first, second = Root(tmp_path), layout(sum={"a_x": "int"}), layout(sum={"a_x": "bigint"})
    name = Location.new(root, 0, first).layout
    assert history_of(root, name) == [first]
    record(root, name, [first], second, since=4)
    assert history_of(root, name) == settled_history(root, name, 4) == [first, second]
    assert Location.new(root, 1, second, [name]).layout == name
    described = tmp_path / name / "layout.json"
    described.write_text(described.read_text().replace("int", "string"))
    with pytest.raises(CorruptState, match=r"layout.json .* cannot be read: its content is not that of its name"):
        history_of(root, name)
    described.unlink()
    described.symlink_to(described)  # a circle
    with pytest.raises(StateDirectoryError, match=rf"cannot read {described}: Too many levels"):
        history_of(root, name)


def test_a_form_that_no_micro_batch_was_committed_with_is_forgotten(tmp_path):
    root, first, second = Root(tmp_path), layout(sum={"a_x": "int"}), layout(sum={"a_x": "bigint"})
    name = Location.new(root, 0, first).layout
    record(root, name, [first], second, since=4)
    record(root, name, [first, second], layout(sum={"a_x": "decimal(20,0)"}), since=2)  # of a run before a roll-back
    assert settled_history(root, name, 3) == [first]
    assert settled_history(root, name, 9) == history_of(root, name) == [first]


@pytest.mark.slow
def test_a_wider_column_is_taken_back_after_its_first_micro_batch_failed(growing, tmp_path):
    def query(*, wide, fails=False):
        df = growing.streaming(wide=wide)
        df = df.withColumn("key", F.when(F.lit(fails), F.raise_error(F.lit("broken"))).otherwise(F.col("key")))
        return fb.groupBy(df, fb.window("ts", *WINDOW), F.col("s")).agg(fb.sum("i"), fb.max("key"))

    growing.grow(0)
    run(query(wide=False), tmp_path)
    growing.grow(1)
    with pytest.raises(StreamingQueryException, match="broken"):
        run(query(wide=True, fails=True), tmp_path)
    before = fb.progress(run(query(wide=False), tmp_path)).rowsIn
    growing.grow(3)
    assert fb.progress(run(query(wide=True), tmp_path)).rowsIn > before
    growing.grow(4)
    with pytest.raises(StreamingQueryException, match="LayoutChanged"):
        run(query(wide=False), tmp_path)


@pytest.mark.thorough
def test_what_cannot_be_carried_over_is_refused_before_a_row_is_read(growing, tmp_path):
    def query(*aggregates, wide=True):
        return fb.groupBy(growing.streaming(wide=wide), fb.window("ts", *WINDOW), "key").agg(*aggregates)

    growing.grow(0)
    run(query(fb.sum("i"), fb.sum("dec"), fb.count("i")), tmp_path)
    growing.grow(1)
    refused = {
        "narrower": (query(fb.sum("i"), wide=False), "sum(i) of a_i bigint"),
        "others": (query(fb.max("i"), fb.count("*")), "max(i)"),
        "different": (query(fb.sum("i"), fb.count_distinct("i", counted=True)), "count(DISTINCT i) of a_i"),
        "spelled": (query(fb.sum("i"), fb.sum("DEC"), fb.count("i")), "sum(DEC) may be sum(dec) in another spelling"),
        "pattern": (query(fb.sum("i"), fb.median("i")), "the checkpoint has RMW, the query now has AAR"),
        "scale": (
            fb.groupBy(
                growing.streaming(wide=True).withColumn("dec", F.col("dec").cast("decimal(20,4)")),
                fb.window("ts", *WINDOW),
                "key",
            ).agg(fb.sum("dec")),
            "decimal(20,4)",
        ),
    }
    for changed, named in refused.values():
        with pytest.raises(StreamingQueryException) as caught:
            run(changed, tmp_path)
        assert "LayoutChanged: the state in" in str(caught.value)
        assert named in str(caught.value)
    assert fb.progress(run(query(fb.sum("i"), fb.sum("dec")), tmp_path)).rowsIn > 0


@pytest.mark.thorough
@pytest.mark.parametrize("begun", ["now", "before the event time was told"])
def test_the_event_time_of_a_duplicate_stays_the_same(growing, tmp_path, monkeypatch, begun):
    def query(time):
        rows = growing.streaming(wide=True).select("u", F.col("ts").alias(time))
        return fb.dedupe(rows, "u", within="1 hour")

    growing.grow(0)
    with monkeypatch.context() as earlier:
        if begun != "now":
            earlier.setattr(dedupe_module, "Windowing", lambda *told, event_time: planner.Windowing(*told))
        run(query("one"), tmp_path)
    growing.grow(1)
    if begun == "now":
        with pytest.raises(StreamingQueryException, match="eventTime: the checkpoint has one, the query now has two"):
            run(query("two"), tmp_path)
    run(query("one"), tmp_path)
    keys = growing.spark.read.parquet(str(tmp_path / "out")).select("u")
    assert keys.count() == keys.distinct().count() > 100


def test_what_differs_is_named_as_it_is_set(tmp_path):
    begun = {"window": "w", "instancesPerPartition": 2, "aggregates": {}}
    now = {"window": "w", "virtualNodes": 8, "aggregates": {}, "outputMode": "update", "firing": "every 60 s"}
    told = str(error_of(Root(tmp_path), begun, now))
    assert "outputMode: the checkpoint has append, the query now has update" in told
    assert "firing: the checkpoint has none, the query now has every 60 s" in told
    assert "the query now has none; set spark.forebay.instancesPerPartition to 2" in told
    assert "the query now has 8; unset spark.forebay.virtualNodes" in told
    told = str(error_of(Root(tmp_path), now, begun))
    assert "the checkpoint was begun with 8, the query now has none; set spark.forebay.virtualNodes to 8" in told
    assert "instancesPerPartition" not in told


def test_what_may_differ_is_not_told_beside_what_may_not(tmp_path):
    begun = {"kind": "window", "window": "w", "keys": [], "pattern": "RMW", "virtualNodes": 8}
    begun["aggregates"] = {"sum(x)": {"a_x": "bigint"}}
    more = {**begun, "aggregates": {**begun["aggregates"], "max(x)": {"a_x": "bigint"}}}
    told = str(error_of(Root(tmp_path), begun, {**more, "virtualNodes": 4}))
    assert "max(x)" not in told and "Aggregates may be added" not in told
    told = str(error_of(Root(tmp_path), begun, {**more, "pattern": "AAR"}))
    assert "aggregates that differ: the checkpoint has none, the query now has max(x) of a_x bigint" in told


def test_columns_of_joins_are_told_as_such(tmp_path):
    one = {"left.u": {"a___4": "bigint", "a___right": "boolean"}}
    begun = {"window": "w", "keys": [], "pattern": "AUR", "kind": "interval_join", "aggregates": one}
    now = {**begun, "aggregates": {**one, "right.v": {"a___5": "int", "a___right": "boolean"}}}
    told = str(error_of(Root(tmp_path), begun, now))
    assert "columns that differ: the checkpoint has none, the query now has right.v of a___5 int\n" in told


def test_operators_that_are_alike_have_one_number_of_virtual_nodes(tmp_path):
    """Where two were begun with different numbers, nothing says which operator has which."""
    root = Root(tmp_path)
    plain = {"kind": "session_window", "window": "w", "keys": [], "pattern": "RMW", "aggregates": {"count(*)": {}}}
    for number in (8, 16):
        Location.new(root, 0, as_stored({**plain, "virtualNodes": number}, updating=False))
    operators = [SimpleNamespace(layout={**plain, "instancesPerPartition": 1})] * 2
    with pytest.raises(LayoutChanged, match=r"set .*virtualNodes to"):
        directories_of(root, operators, 5, updating=False)
