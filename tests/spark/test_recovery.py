"""Stopping, failing and restarting change nothing; damage and changed queries are refused and lose nothing."""

import functools
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from streams import HOLISTIC, INCREMENTAL, assert_same, generate, oracle

import forebay as fb
from forebay.spark.driver import checkpoint_lock
from forebay.spark.worker.vnodes import vnode_ids

AGGREGATES = {"incremental": INCREMENTAL, "mixed": INCREMENTAL + HOLISTIC}
WINDOW = ("30 seconds", "10 seconds")


@pytest.fixture
def stream(spark, tmp_path):
    return generate(spark, tmp_path, keys=8, rows=150)


def counts(df, window=WINDOW, keys=("key",), *aggregates):
    return fb.groupBy(df, fb.window("ts", *window), *keys).agg(*(aggregates or (fb.count("*").alias("n"), fb.median("x"))))


def push_watermark(stream, hours):
    """Add a file with one row whose event time is that much later, so that all windows before it fire."""
    table = pq.read_table(f"{stream.path}/000.parquet").slice(0, 1)
    later = pa.array([1_704_067_200_000_000 + hours * 3_600_000_000], pa.timestamp("us", "UTC"))
    pq.write_table(table.set_column(0, "ts", later), f"{stream.path}/9{hours:02d}.parquet")


def run(df, checkpoint, output="out"):
    """Run a stream over the files that it has not read yet."""
    query = df.writeStream.format("parquet").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    started = query.start(str(checkpoint.parent / output))
    started.awaitTermination()
    return started


def failure(df, checkpoint):
    with pytest.raises(StreamingQueryException) as caught:
        run(df, checkpoint)
    return str(caught.value)


@pytest.mark.parametrize(
    "aggregates",
    [pytest.param(AGGREGATES["incremental"], marks=pytest.mark.slow), AGGREGATES["mixed"]],
    ids=["incremental", "mixed"],
)
def test_every_batch_fails_once_after_its_state_is_written(spark, stream, tmp_path, aggregates):
    push_watermark(stream, 1)
    expected = oracle(stream.static.where(F.col("ts") < "2024-01-01 00:30"), F.window("ts", *WINDOW), ["key"], aggregates)
    result = counts(stream.streaming("10 minutes"), WINDOW, ["key"], *aggregates)
    total, query = total_when_every_batch_fails_once(spark, result, tmp_path / "ck")
    assert fb.progress(query).rowsIn == stream.static.where("ts is not null").count()
    assert assert_same(total, expected, 1) > 50


def total_when_every_batch_fails_once(spark, result, checkpoint):
    """What a query emits in all, and the query; each micro-batch fails when its state has been written."""
    batches, failed = {}, set()

    def sink(df, batch):
        batches[batch] = df.localCheckpoint()
        if batch not in failed:
            failed.add(batch)
            raise RuntimeError("on purpose")

    def attempt():
        query = result.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
        started = query.trigger(availableNow=True).start()
        started.awaitTermination()
        return started

    attempts = 0
    while True:
        attempts += 1
        spark.conf.set("spark.sql.shuffle.partitions", str(attempts % 3 + 1))  # a checkpoint keeps the one it began with
        spark.conf.set("spark.sql.session.timeZone", ["UTC", "America/New_York"][attempts % 2])
        try:
            query = attempt()
            break
        except StreamingQueryException as error:
            assert "on purpose" in str(error)
        finally:
            spark.conf.set("spark.sql.shuffle.partitions", "2")
            spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert len(failed) == attempts - 1 >= 6
    return functools.reduce(DataFrame.union, (batches[batch] for batch in sorted(batches))), query


@pytest.mark.slow
def test_joins_of_which_every_batch_fails_once(spark, stream, tmp_path):
    push_watermark(stream, 1)

    def joins(df):
        left, right = df.select("ts", "key", "i", "b"), df.where("u % 3 = 0").select("ts", "key", "s")
        for kind, joined in {
            "AAR": fb.join(left, right, "key", fb.window("ts", "10 seconds"), "left"),
            "AUR": fb.join(left, right, "key", fb.session_window("ts", "2 seconds"), "full"),
            "interval": fb.intervalJoin(left, right, "key", "-1 second", "2 seconds", "full", timeColumn="ts"),
            "continuous": fb.continuousJoin(left, right, "key", "i > 80", timeColumn="ts"),
        }.items():
            yield joined.select(F.lit(kind).alias("kind"), F.to_json(F.struct(*joined.columns)).alias("row"))

    expected = counted(functools.reduce(DataFrame.union, joins(stream.static)))
    result = functools.reduce(DataFrame.union, joins(stream.streaming("10 minutes")))
    total, _ = total_when_every_batch_fails_once(spark, result, tmp_path / "ck")
    assert counted(total) == expected
    assert all(sum(kind == row[0] for row in expected) > 50 for kind in ("AAR", "AUR", "interval", "continuous"))


def counted(df):
    """How often each row of a kind is there, but for those of the row that ends all windows."""
    return {tuple(row) for row in df.where("row not like '%T01:%'").groupBy("kind", "row").count().collect()}


@pytest.mark.slow
def test_operators_whose_results_go_by_micro_batches_when_every_one_fails_once(spark, stream, tmp_path):
    push_watermark(stream, 1)

    def results(df):
        grouped = fb.groupBy(df, fb.window("ts", "10 seconds"), "key")
        counts = grouped.agg(fb.count("*"))
        for kind, result in {
            "rolling": fb.rolling(df, "key").agg(fb.sum("u")),
            "dedupe": fb.dedupe(df, "key", "10 seconds").select("key", "u"),
            "panes": grouped.firing(every="5 seconds", allowedLateness="30 seconds", accumulate=False).agg(fb.sum("u")),
            "sessions": fb.groupBy(df, fb.session_window("ts", "1 second"), "key")
            .firing(every="5 seconds", allowedLateness="30 seconds")
            .agg(fb.median("u")),
            "counts": counts,
            "late": fb.late(counts).select("key", "u", F.col("late_by").cast("string").alias("late_by")),
        }.items():
            yield result.select(F.lit(kind).alias("kind"), F.to_json(F.struct(*result.columns)).alias("row"))

    def result():
        return functools.reduce(DataFrame.union, results(stream.streaming("1 second")))

    run(result(), tmp_path / "undisturbed" / "ck")
    expected = counted(spark.read.parquet(str(tmp_path / "undisturbed" / "out")))
    total, _ = total_when_every_batch_fails_once(spark, result(), tmp_path / "ck")
    assert counted(total) == expected
    kinds = ("rolling", "dedupe", "panes", "sessions", "counts", "late")
    assert all(sum(kind == row[0] for row in expected) >= 8 for kind in kinds)


@pytest.mark.slow
def test_restarting_after_every_batch(spark, stream, tmp_path):
    source = tmp_path / "growing"
    source.mkdir()
    push_watermark(stream, 1)
    schema = spark.read.parquet(stream.path).schema
    for file in sorted((tmp_path / "stream-1-8").iterdir()):
        shutil.copy2(file, source)
        df = spark.readStream.schema(schema).parquet(str(source)).withWatermark("ts", "10 minutes")
        run(counts(df, WINDOW, ["key"], *INCREMENTAL), tmp_path / "ck")
    kept = stream.static.where(F.col("ts") < "2024-01-01 00:30")
    expected = oracle(kept, F.window("ts", *WINDOW), ["key"], INCREMENTAL)
    assert assert_same(spark.read.parquet(str(tmp_path / "out")), expected, 1) > 50


@pytest.mark.thorough
@pytest.mark.parametrize(
    "aggregate", [fb.median("x"), pytest.param(fb.sum("x"), marks=pytest.mark.slow)], ids=["AAR", "RMW"]
)
def test_no_row_data_is_left_when_the_last_window_has_fired(stream, tmp_path, aggregate):
    for hours in (1, 2, 3):  # after the first, the watermark moves twice more: the files of older versions go with that
        push_watermark(stream, hours)
    query = run(
        counts(stream.streaming("1 second"), WINDOW, ["key"], aggregate), tmp_path / "ck", f"left_{aggregate.function}"
    )
    assert fb.progress(query).stateRows == 1  # the last row pushed
    rows = [
        pa.ipc.open_stream(path.read_bytes()).read_all().num_rows for path in (tmp_path / "ck").rglob("forebay/*/*/*.arrow")
    ]
    assert sum(rows) <= 3  # and those before it, until the next batches


@pytest.mark.slow
def test_a_changed_query_is_refused_and_the_old_one_goes_on(spark, stream, tmp_path):
    checkpoint = tmp_path / "ck"

    def query(keys=("key",), window=WINDOW, aggregates=(), nodes=False):
        if nodes:
            spark.conf.set("spark.forebay.virtualNodes", "4")
        try:
            return counts(stream.streaming("1 second"), window, keys, *aggregates)
        finally:
            spark.conf.unset("spark.forebay.virtualNodes")

    run(query(), checkpoint)
    push_watermark(stream, 1)
    for changed, named in (
        (query(keys=["k_string"]), "k_string"),
        (query(keys=["key", "k_int"]), "k_int"),
        (query(window=("30 seconds",)), "30 s, every 30 s"),
        (query(aggregates=[fb.collect_list("x")]), "collect_list(x)"),
        (query(nodes=True), "unset spark.forebay.virtualNodes"),
    ):
        message = failure(changed, checkpoint)
        assert "LayoutChanged: the state in" in message
        assert named in message
        assert "new checkpoint location" in message
    assert fb.progress(run(query(), checkpoint)).rowsIn == stream.static.where("ts is not null").count()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("aggregate", "setting", "numbers", "shown"),
    [
        (fb.median("x"), "instancesPerPartition", (2, None, 3), "2 per state partition"),
        pytest.param(fb.sum("x"), "instancesPerPartition", (2, None, 3), "2 per state partition", marks=pytest.mark.slow),
        (fb.sum("x"), "virtualNodes", (4, None, 4), "4 virtual nodes in all state partitions together"),
    ],
    ids=["AAR", "RMW", "virtual nodes"],
)
def test_state_keeps_the_number_of_instances_with_which_it_was_begun(
    spark, stream, tmp_path, capsys, aggregate, setting, numbers, shown
):
    for hour, instances in enumerate(numbers, 1):
        if instances is not None:
            spark.conf.set(f"spark.forebay.{setting}", str(instances))
        try:
            query = run(counts(stream.streaming("1 hour"), WINDOW, ["key"], aggregate), tmp_path / "ck", "results")
        finally:
            spark.conf.unset(f"spark.forebay.{setting}")
        if hour < 3:
            push_watermark(stream, 2 * hour)  # the windows of the rows before fire under the next number
    expected = oracle(stream.static.where("ts < '2024-01-01 03:00'"), F.window("ts", *WINDOW), ["key"], [aggregate])
    assert assert_same(spark.read.parquet(str(tmp_path / "results")), expected, 1) > 50
    assert fb.progress(query).rowsIn == stream.static.where("ts is not null").count()
    fb.explain(query)
    assert f"instances   {shown}" in capsys.readouterr().out
    assert len(list((tmp_path / "ck").glob("forebay/*"))) == 1
    ids = vnode_ids(2, 2) if setting == "instancesPerPartition" else vnode_ids(4, 1)
    assert {path.name.split("-")[0] for path in (tmp_path / "ck").glob("forebay/*/*-*")} == {*map(str, ids)}


def flipped(data, other):
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


DAMAGES = {
    "flipped": flipped,
    "cut": lambda data, other: data[: len(data) // 2],
    "zeroed": lambda data, other: bytes(len(data)),
    "swapped": lambda data, other: other,
    "deleted": None,
}
SOME = [("arrow", "flipped"), ("manifest", "cut")]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "damages",
    [SOME, pytest.param([(kind, name) for kind in ("arrow", "manifest") for name in DAMAGES], marks=pytest.mark.slow)],
    ids=["some", "all"],
)
@pytest.mark.parametrize(
    "window",
    [fb.window("ts", *WINDOW), pytest.param(fb.session_window("ts", "2 seconds"), marks=pytest.mark.slow)],
    ids=["AAR", "AUR"],
)
def test_damage_stops_the_query_with_the_path_and_loses_nothing(stream, tmp_path, damages, window):
    """Files truncated, zeroed, with a bit flipped, deleted, or with the content of another version's."""
    checkpoint, conf = tmp_path / "ck", stream.spark.conf

    def query(number=0):
        """With settings of its own each, since a worker that keeps stores open need not read what it has read."""
        conf.set("spark.forebay.readBatchRatio", str(0.02 + number / 1000))
        counts = fb.groupBy(stream.streaming("1 second"), window, "key").agg(fb.count("*").alias("n"), fb.median("x"))
        conf.unset("spark.forebay.readBatchRatio")
        return counts

    rows = fb.progress(run(query(), checkpoint)).rowsIn
    push_watermark(stream, 1)
    for number, (kind, name) in enumerate(damages):
        whole = {path: path.read_bytes() for path in sorted(checkpoint.rglob(f"forebay/*/*/*.{kind}"))}
        others = [*whole.values()][1:] + [*whole.values()][:1]
        for (path, data), other in zip(whole.items(), others, strict=True):
            assert data != other
            path.write_bytes(DAMAGES[name](data, other)) if DAMAGES[name] else path.unlink()
        message = failure(query(number + 1), checkpoint)
        assert "CorruptState" in message or "VersionNotFound" in message
        assert any(str(path) in message for path in whole)
        for path, data in whole.items():
            path.write_bytes(data)
    assert fb.progress(run(query(), checkpoint)).rowsIn == rows + 1


@pytest.mark.thorough
def test_a_batch_that_runs_again_on_an_older_copy_gives_what_it_gave(spark, stream, tmp_path):
    """A copy of the whole checkpoint is restored after the query has gone on."""
    source, checkpoint, copy = (tmp_path / name for name in ("growing", "ck", "copy"))
    source.mkdir()
    schema = spark.read.parquet(stream.path).schema
    push_watermark(stream, 1)
    files = sorted((tmp_path / "stream-1-8").iterdir())
    given = {}

    def go_on():
        df = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
        result = counts(df.withWatermark("ts", "1 second"), WINDOW, ["key"], *AGGREGATES["mixed"])
        writer = result.writeStream.foreachBatch(lambda df, batch: given.setdefault(batch, []).append(rows_of(df)))
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return fb.progress(query)

    def rows_of(df):
        return sorted(map(repr, df.select("window", "key", "n", "max(s)", "median(d)", "collect_list(s)").collect()))

    for file in files[:2]:
        shutil.copy2(file, source)
    go_on()
    shutil.copytree(checkpoint, copy)
    for file in files[2:]:
        shutil.copy2(file, source)
    first = go_on()
    shutil.rmtree(checkpoint)
    shutil.copytree(copy, checkpoint)
    assert go_on() == first
    again = {batch: results for batch, results in given.items() if len(results) == 2}
    assert len(again) >= 3
    assert sum(len(results[0]) for results in again.values()) > 50
    for results in again.values():
        assert results[0] == results[1]


@pytest.mark.thorough
def test_state_can_live_elsewhere(spark, stream, tmp_path):
    spark.conf.set("spark.forebay.stateDirectory", str(tmp_path / "elsewhere"))
    try:
        query = run(counts(stream.streaming("1 second")), tmp_path / "ck")
        assert fb.progress(query).rowsIn > 0
        assert list((tmp_path / "elsewhere" / str(query.id)).rglob("*.manifest"))
        assert not (tmp_path / "ck" / "forebay").exists()
    finally:
        spark.conf.unset("spark.forebay.stateDirectory")
    push_watermark(stream, 1)
    message = failure(counts(stream.streaming("1 second")), tmp_path / "ck")
    assert "VersionNotFound" in message
    assert "set spark.forebay.stateDirectory as it was" in message


@pytest.mark.thorough
def test_a_full_disk_stops_the_query_with_the_path(spark, stream, tmp_path):
    """A regular file stands where an instance's directory would have to be made."""
    checkpoint = tmp_path / "ck"
    checkpoint.mkdir()
    (checkpoint / "forebay").write_text("in the way")
    message = failure(counts(stream.streaming("1 second")), checkpoint)
    assert "StateDirectoryError: cannot create the state directory" in message
    assert str(checkpoint / "forebay") in message
    (checkpoint / "forebay").unlink()
    assert fb.progress(run(counts(stream.streaming("1 second")), checkpoint)).rowsIn > 0


@pytest.mark.slow
def test_two_queries_and_two_operators_in_one_query_share_nothing(spark, stream, tmp_path):
    other = generate(spark, tmp_path, keys=3, rows=50, seed=2)
    for each in (stream, other):
        push_watermark(each, 1)
    both = counts(stream.streaming("10 minutes")).union(counts(other.streaming("10 minutes")))
    run(both, tmp_path / "ck", "united")
    run(counts(stream.streaming("10 minutes")), tmp_path / "ck alone", "alone")
    aggregates = [fb.count("*").alias("n"), fb.median("x")]
    first, second = (
        oracle(each.static.where(F.col("ts") < "2024-01-01 00:30"), F.window("ts", *WINDOW), ["key"], aggregates)
        for each in (stream, other)
    )
    assert assert_same(spark.read.parquet(str(tmp_path / "alone")), first, 1) > 50
    united = spark.read.parquet(str(tmp_path / "united"))
    rounded = [
        sorted(map(str, df.withColumn("median(x)", F.round("median(x)", 6)).collect()))
        for df in (united, first.union(second))
    ]
    assert rounded[0] == rounded[1]


HOLDING = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.thorough
def test_a_query_that_runs_in_another_process_is_left_alone(stream, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_lock, "WAITED_SECONDS", 0.3)
    result, checkpoint = counts(stream.streaming("10 minutes")), tmp_path / "ck"
    run(result, checkpoint)
    holding = [sys.executable, "-c", HOLDING, checkpoint / "metadata"]  # it waits until this process has let go
    with subprocess.Popen(holding, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name)).unlink()  # a micro-batch is under way
        state = {path for path in (checkpoint / "state").rglob("*") if path.is_file()}
        push_watermark(stream, 1)
        assert "runs in another process" in failure(result, checkpoint)
        assert state <= {path for path in (checkpoint / "state").rglob("*") if path.is_file()}
        other.stdin.close()
    run(result, checkpoint)
