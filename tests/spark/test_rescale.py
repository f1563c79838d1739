"""A stopped query gets another number of state partitions, and goes on as if it had always had them."""

import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from streams import generate
from test_recovery import flipped, push_watermark, run

import forebay as fb
from forebay.errors import CorruptState, InvalidArgument, UnsupportedConfiguration, VersionNotFound
from forebay.spark.driver import checkpoint_lock
from forebay.spark.driver.rescale import missing

DELAY = "10 minutes"


@pytest.fixture
def virtual_nodes(spark):
    spark.conf.set("spark.forebay.virtualNodes", "8")
    yield
    spark.conf.unset("spark.forebay.virtualNodes")


@pytest.fixture
def stream(spark, tmp_path, virtual_nodes):
    return generate(spark, tmp_path, keys=20, rows=100)


def operators(df):
    """Results of operators of each pattern, and of one over the results of another."""
    tumbling = fb.groupBy(df, fb.window("ts", "10 seconds"), "key").agg(fb.median("x").alias("value"))
    sliding = fb.groupBy(df, fb.window("ts", "10 seconds", "5 seconds"), "key").agg(fb.sum("l").alias("value"))
    sessions = fb.groupBy(df, fb.session_window("ts", "3 seconds"), "key").agg(fb.count("*").alias("value"))
    again = fb.window(F.window_time("window"), "1 minute")
    left, right = df.select("ts", "key", "u"), df.where("u % 3 = 0").select("ts", "key", F.col("u").alias("v"))
    return {
        "tumbling": tumbling,
        "without keys": fb.groupBy(df, fb.window("ts", "10 seconds")).agg(fb.median("x").alias("value")),
        "sliding": sliding,
        "sessions": sessions,
        "chained": fb.groupBy(sliding, again, "key").agg(fb.max("value").alias("value")),
        "joined": fb.intervalJoin(left, right, "key", "-1 second", "2 seconds", timeColumn="ts").select("key", "u", "v"),
        "patterns": fb.patterns(df, "key")
        .add("medians", fb.window("ts", "10 seconds"), fb.median("x").alias("value"))
        .add("visits", fb.session_window("ts", "3 seconds"), fb.count_distinct("u").alias("value"))
        .results(),
    }


def in_spark(df):
    """The same as Spark has it."""
    sliding = df.groupBy(F.window("ts", "10 seconds", "5 seconds"), "key").agg(F.sum("l").alias("value"))
    left, right = df.select("ts", "key", "u").alias("l"), df.where("u % 3 = 0").select("ts", "key", F.col("u").alias("v"))
    between = (F.unix_micros("r.ts") - F.unix_micros("l.ts")).between(-1_000_000, 2_000_000)
    joined = left.join(right.alias("r"), between & (F.col("l.key") == F.col("r.key")))
    return {
        "tumbling": df.groupBy(F.window("ts", "10 seconds"), "key").agg(F.median("x").alias("value")),
        "without keys": df.groupBy(F.window("ts", "10 seconds")).agg(F.median("x").alias("value")),
        "sliding": sliding,
        "sessions": df.groupBy(F.session_window("ts", "3 seconds"), "key").agg(F.count("*").alias("value")),
        "chained": sliding.groupBy(F.window(F.window_time("window"), "1 minute"), "key").agg(F.max("value").alias("value")),
        "joined": joined.select("l.key", "u", "v"),
        "patterns": patterns_in_spark(df),
    }


def patterns_in_spark(df):
    medians = df.groupBy(F.window("ts", "10 seconds"), "key").agg(F.median("x").alias("value"))
    visits = df.groupBy(F.session_window("ts", "3 seconds"), "key").agg(F.count_distinct("u").alias("value"))
    medians = medians.select(F.lit("medians").alias("pattern"), "key", F.struct("window", "value").alias("medians"))
    visits = visits.select(F.lit("visits").alias("pattern"), "key", F.struct("session_window", "value").alias("visits"))
    return medians.unionByName(visits, allowMissingColumns=True)


def as_text(results, kinds):
    found = {kind: results[kind].select(F.lit(kind).alias("kind"), F.to_json(F.struct("*")).alias("row")) for kind in kinds}
    return functools.reduce(DataFrame.union, found.values())


def counted(df):
    """How often each row of a kind is there, but for those of the rows that end all windows."""
    return sorted(tuple(row) for row in df.where("row not rlike 'T0[12]:'").groupBy("kind", "row").count().collect())


def a_file_at_a_time(stream, directory):
    """The stream with files that arrive one after another, and a function that has the next ones arrive."""
    waiting = sorted(Path(stream.path).iterdir())
    there = directory / "arrived"
    there.mkdir()
    schema = stream.spark.read.parquet(stream.path).schema
    source = stream.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(there))

    def arrive(number):
        for _ in range(number):
            shutil.copy2(waiting[0], there / waiting.pop(0).name)

    return source.withColumn("k_interval", F.lit(None)).withWatermark("ts", DELAY), arrive


def partitions(checkpoint):
    """Which virtual nodes Spark's state has in each partition of each operator."""
    spark, found = SparkSession.getActiveSession(), {}
    for operator in (checkpoint / "state").iterdir():
        state = spark.read.format("statestore").option("operatorId", operator.name).option("stateVarName", "version")
        for row in state.load(str(checkpoint)).collect():
            found.setdefault(operator.name, {}).setdefault(row.partition_id, []).append(row.key.vnode)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kinds", "numbers"),
    [
        (["without keys", "patterns"], [4]),
        pytest.param(
            ["tumbling", "without keys", "sliding", "sessions", "chained", "joined", "patterns"],
            [4, 2, 8, 1],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_rescaled_query_gives_what_spark_gives(spark, stream, tmp_path, kinds, numbers):
    push_watermark(stream, 1)
    push_watermark(stream, 2)  # where an operator is in a query twice, the one below another runs with the next rows only
    df, arrive = a_file_at_a_time(stream, tmp_path)
    result, checkpoint = as_text(operators(df), kinds), tmp_path / "ck"
    arrive(2)
    run(result, checkpoint)
    for number in numbers:
        files = {path for path in (checkpoint / "forebay").rglob("*") if path.is_file()}
        fb.rescale(str(checkpoint), number)
        assert files == {path for path in (checkpoint / "forebay").rglob("*") if path.is_file()}
        for placed in partitions(checkpoint).values():
            assert sorted(map(len, placed.values())) == [8 // number] * number
        arrive(1)
        run(result, checkpoint)
    arrive(5 - len(numbers))
    spark.conf.unset("spark.forebay.virtualNodes")  # state keeps their number
    query = run(as_text(operators(df), kinds), checkpoint)
    for placed in partitions(checkpoint).values():
        assert sorted(map(len, placed.values())) == [8 // numbers[-1]] * numbers[-1]
    expected = counted(as_text(in_spark(stream.static), kinds))
    assert counted(spark.read.schema(result.schema).parquet(str(tmp_path / "out"))) == expected
    assert fb.progress(query).rowsLate == 0


@pytest.mark.thorough
def test_a_change_that_no_micro_batch_ran_with_is_forgotten(spark, stream, tmp_path):
    df, arrive = a_file_at_a_time(stream, tmp_path)
    narrow, wide = (
        fb.groupBy(df.withColumn("n", F.col("i").cast(kind)), fb.window("ts", "1 hour"), "key").agg(fb.sum("n"))
        for kind in ("int", "bigint")
    )
    checkpoint = tmp_path / "ck"
    arrive(2)
    run(narrow, checkpoint)
    run(wide, checkpoint)
    fb.rescale(str(checkpoint), 4)
    arrive(1)
    run(narrow, checkpoint)


@pytest.mark.thorough
def test_what_is_refused(spark, stream, tmp_path):
    df, arrive = a_file_at_a_time(stream, tmp_path)
    arrive(1)
    result, checkpoint = operators(df)["sliding"], tmp_path / "ck"
    with pytest.raises(InvalidArgument, match="not the checkpoint location of a query that has ever run"):
        fb.rescale(str(checkpoint), 4)
    assert not checkpoint.exists()
    writer = result.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    running = writer.start()
    running.processAllAvailable()
    try:
        with pytest.raises(UnsupportedConfiguration, match="is running"):
            fb.rescale(str(checkpoint), 4)
    finally:
        running.stop()
    there = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    for place in ("", None, 5):
        with pytest.raises(InvalidArgument, match=f"checkpointLocation is {place!r}"):
            fb.rescale(place, 4)
    with pytest.raises(InvalidArgument, match=r"Spark finds no way to nowhere://x/y: No FileSystem"):
        fb.rescale("nowhere://x/y", 4)
    with pytest.raises(UnsupportedConfiguration, match="Move it to a path that needs no escapes"):
        fb.rescale(tmp_path / "two words", 4)
    for number in (0, 3, 16, "4"):
        with pytest.raises(InvalidArgument, match=f"partitions is '?{number}'?"):
            fb.rescale(str(checkpoint), number)
    manifest = max((checkpoint / "forebay").rglob("*.manifest"), key=lambda path: path.name)
    assert list(missing(str(checkpoint))) == []
    manifest.rename(tmp_path / "elsewhere")
    (message,) = missing(str(checkpoint))
    assert "both are one unit" in message
    with pytest.raises(VersionNotFound, match="both are one unit"):
        fb.rescale(str(checkpoint), 4)
    manifest.write_bytes(flipped((tmp_path / "elsewhere").read_bytes(), b""))
    with pytest.raises(CorruptState, match="is damaged"):
        fb.rescale(str(checkpoint), 4)
    manifest.write_bytes((tmp_path / "elsewhere").read_bytes())
    commit = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commit.rename(tmp_path / "commit")
    with pytest.raises(UnsupportedConfiguration, match=f"has begun micro-batch {commit.name} and not ended it"):
        fb.rescale(str(checkpoint), 4)
    (tmp_path / "commit").rename(commit)
    assert there == sorted(path for path in checkpoint.rglob("*") if path.is_file())
    fb.rescale(str(checkpoint), 2)  # which it has


RUNNING = """
import sys
from forebay.spark.driver import checkpoint_lock
checkpoint_lock.take("query", sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.thorough
def test_a_query_of_another_process_that_waits_for_rows_is_not_rescaled(stream, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_lock, "WAITED_SECONDS", 0.3)
    df, arrive = a_file_at_a_time(stream, tmp_path)
    arrive(1)
    checkpoint = tmp_path / "ck"
    run(operators(df)["tumbling"], checkpoint)
    running = [sys.executable, "-c", RUNNING, checkpoint]
    with subprocess.Popen(running, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UnsupportedConfiguration, match="runs in another process"):
            fb.rescale(checkpoint, 4)
        other.stdin.close()
    fb.rescale(checkpoint, 4)


def test_the_lock_of_a_rescale_is_its_own(tmp_path, monkeypatch):
    """A listener lets go of a query's lock after the query has been stopped; a query may be started meanwhile."""
    (tmp_path / "metadata").touch()
    checkpoint_lock.take("query", str(tmp_path))
    released = threading.Event()

    def release():
        released.set()
        checkpoint_lock.release("query")

    monkeypatch.setattr(checkpoint_lock, "WAITED_SECONDS", 30)
    threading.Timer(0.1, release).start()
    with checkpoint_lock.rescaling("query", str(tmp_path)):
        assert released.is_set()
        monkeypatch.setattr(checkpoint_lock, "WAITED_SECONDS", 0.3)
        checkpoint_lock.release("query")
        with pytest.raises(UnsupportedConfiguration, match="is rescaled now"):
            checkpoint_lock.take("query", str(tmp_path))
    checkpoint_lock.take("query", str(tmp_path))  # of a session that ends before it
    with checkpoint_lock.rescaling("query", str(tmp_path)):
        pass
    checkpoint_lock.take("query", str(tmp_path))
    checkpoint_lock.release("query")


_UNSET = "virtualNodes: the checkpoint was begun without it, the query now has 8; unset spark.forebay.virtualNodes"


@pytest.mark.slow
def test_queries_that_cannot_be_rescaled(spark, stream, tmp_path):
    df, arrive = a_file_at_a_time(stream, tmp_path)
    arrive(1)
    run(df.dropDuplicatesWithinWatermark(["key"]).select("key"), tmp_path / "foreign")
    with pytest.raises(InvalidArgument, match="has no state of forebay"):
        fb.rescale(str(tmp_path / "foreign"), 4)
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        with pytest.raises(StreamingQueryException, match="virtualNodes is 8 and the query has 3 state partitions"):
            run(operators(df)["sliding"], tmp_path / "uneven", "uneven out")
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.unset("spark.forebay.virtualNodes")
    run(operators(df)["sliding"], tmp_path / "unset", "unset out")
    with pytest.raises(UnsupportedConfiguration, match=r"was begun without\s+spark.forebay.virtualNodes"):
        fb.rescale(str(tmp_path / "unset"), 4)
    spark.conf.set("spark.forebay.virtualNodes", "8")
    arrive(1)
    with pytest.raises(StreamingQueryException, match=_UNSET):
        run(operators(df)["sliding"], tmp_path / "unset", "unset out")
    run(operators(df)["tumbling"].limit(1000), tmp_path / "limited", "limited out")
    with pytest.raises(UnsupportedConfiguration, match="Spark cannot rescale the state of globalLimit"):
        fb.rescale(str(tmp_path / "limited"), 4)
    run(operators(df)["tumbling"], tmp_path / "original", "original out")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    with pytest.raises(UnsupportedConfiguration, match="was copied from"):
        fb.rescale(str(tmp_path / "copy"), 4)


MOMENTS = {
    "begun": "offsets/{batch}",
    "state is being written": "state/*/*/{version}*.zip",
    "almost done": "state/*/_metadata/v2/{batch}",
}


@pytest.mark.slow
def test_a_rescale_that_is_killed_is_completed_by_the_next_one(spark, stream, tmp_path):
    push_watermark(stream, 1)
    df, arrive = a_file_at_a_time(stream, tmp_path)
    kinds = ["tumbling", "sessions"]
    result, checkpoint = as_text(operators(df), kinds), tmp_path / "ck"
    arrive(1)
    run(result, checkpoint)
    interrupted = 0
    for number, moment in zip((4, 8, 2, 4), (None, *MOMENTS), strict=True):
        batch = 1 + max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
        kill_a_rescale(checkpoint, number, moment and MOMENTS[moment].format(batch=batch, version=batch + 1))
        if (checkpoint / "offsets" / str(batch)).exists() and not (checkpoint / "commits" / str(batch)).exists():
            interrupted += 1
            with pytest.raises(StreamingQueryException, match="STREAMING_UNFINISHED_REPARTITION_DETECTED"):
                run(result, checkpoint)
            with pytest.raises(UnsupportedConfiguration, match=f"state partitions was interrupted.* {number}\\) again"):
                fb.rescale(str(checkpoint), 1)
        fb.rescale(str(checkpoint), number)
        for placed in partitions(checkpoint).values():
            assert sorted(map(len, placed.values())) == [8 // number] * number
        arrive(1)
        run(result, checkpoint)
    arrive(1)
    run(result, checkpoint)
    assert interrupted >= 2
    expected = counted(as_text(in_spark(stream.static), kinds))
    assert counted(spark.read.schema(result.schema).parquet(str(tmp_path / "out"))) == expected


def kill_a_rescale(checkpoint, number, moment):
    """Run the command in a process of its own, and kill all of it when a file is there, or right after its start."""
    command = "from forebay.cli.app import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "state", "rescale", str(checkpoint), str(number)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 240
        while moment and process.poll() is None and not any(checkpoint.glob(moment)):
            assert time.monotonic() < until
            time.sleep(0.002)
        if not moment:
            time.sleep(1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.thorough
def test_the_command_line_looks_for_the_versions_that_a_checkpoint_names(spark, stream, tmp_path):
    settings = {"spark.forebay.durability": "local", "spark.forebay.localDirectory": str(tmp_path / "node")}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        df, arrive = a_file_at_a_time(stream, tmp_path)
        arrive(1)
        writer = operators(df)["sliding"].writeStream.format("noop").option("checkpointLocation", str(tmp_path / "ck"))
        writer.trigger(availableNow=True).start().awaitTermination()
    finally:
        for name in settings:
            spark.conf.unset(name)
    given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    program = [sys.executable, "-c", "from forebay.cli.app import main; main()", "state", "tokens", str(tmp_path / "ck")]
    found = subprocess.run([*program, *given], capture_output=True, text=True, check=False)
    assert (found.returncode, "names are there" in found.stdout) == (0, True), found.stderr
    max((tmp_path / "node").rglob("*.manifest"), key=lambda path: path.name).unlink()
    found = subprocess.run([*program, *given], capture_output=True, text=True, check=False)
    assert (found.returncode, "both are one unit" in found.stdout) == (1, True), found.stderr
    found = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (found.returncode, "has no state at all. If the query keeps its state elsewhere" in found.stdout) == (1, True)
