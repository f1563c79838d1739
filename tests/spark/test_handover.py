"""State that follows the work: replicas on several hosts, and partitions that are handed over while the query goes on."""

import contextlib
import functools
import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from typer.testing import CliRunner

import forebay as fb
from clusters import Cluster
from forebay.cli.app import app
from forebay.errors import ForebayError, HandoverError, InvalidArgument, UnsupportedConfiguration
from forebay.spark.driver import handover, replicas

SCHEMA = "ts timestamp, key long, x long"
ROWS = 2000
LAST = 100_000
"""An instant, in seconds, after all others: a row of it moves the watermark past everything."""

REPLICATED = {
    "spark.forebay.durability": "replicas",
    "spark.forebay.replicas": "1",
    "spark.network.timeout": "8s",  # a host that cannot be reached is lost after that
    "spark.executor.heartbeatInterval": "2s",
    "spark.network.timeoutInterval": "2s",
    "spark.task.maxFailures": "20",
    "spark.stage.maxConsecutiveAttempts": "20",
}


def aggregates(read):
    counted = fb.groupBy(read(), fb.window("ts", "10 seconds", "5 seconds"), "key").agg(fb.sum("x"), fb.count("*"))
    return counted.toDF("window", "key", "a", "b").select(F.unix_seconds("window.start").alias("start"), "key", "a", "b")


def sessions(read):
    counted = fb.groupBy(read(), fb.session_window("ts", "2 seconds"), "key").agg(fb.median("x"), fb.count("*"))
    found = counted.toDF("session", "key", "a", "b")
    return found.select(F.unix_seconds("session.start").alias("start"), "key", F.col("a").cast("long"), "b")


def joined(read):
    left, right = read().where("x % 2 = 0"), read().where("x % 2 = 1")
    pairs = fb.intervalJoin(left, right, "key", "-100 milliseconds", "100 milliseconds", timeColumn="ts")
    return pairs.select(
        F.unix_seconds("event_time").alias("start"), "key", F.col("x").alias("a"), F.col("x_right").alias("b")
    )


def patterned(read):
    """A sliding window and sessions over the same events; as a batch, by Spark's own windows."""
    rows = read()
    if rows.isStreaming:
        patterns = fb.patterns(rows, "key")
        for name, window in (
            ("slide", fb.window("ts", "10 seconds", "5 seconds")),
            ("visit", fb.session_window("ts", "2 seconds")),
        ):
            patterns = patterns.add(name, window, fb.median("x").alias("a"), fb.count("*").alias("b"))
        found = patterns.results().select(
            F.coalesce("slide.window.start", "visit.session_window.start").alias("start"),
            "key",
            F.coalesce("slide.a", "visit.a").alias("a"),
            F.coalesce("slide.b", "visit.b").alias("b"),
            "pattern",
        )
    else:
        found = functools.reduce(
            lambda some, others: some.union(others),
            (
                rows.groupBy(window.alias("window"), "key")
                .agg(F.median("x").alias("a"), F.count("*").alias("b"))
                .select("window.start", "key", "a", "b", F.lit(name))
                for name, window in (
                    ("slide", F.window("ts", "10 seconds", "5 seconds")),
                    ("visit", F.session_window("ts", "2 seconds")),
                )
            ),
        ).toDF("start", "key", "a", "b", "pattern")
    return found.withColumns({"start": F.unix_seconds("start"), "a": F.col("a").cast("long")})


STUCK = 300
"""Seconds until what does not happen is taken for stuck; a machine may be slow."""

MANY = (pytest.mark.slow, pytest.mark.seeds)
"""The marks of what is run with many seeds."""

KINDS = {each.__name__: each for each in (aggregates, sessions, joined, patterned)}


class Run:
    """A query on a cluster, and the files that it reads."""

    def __init__(self, spark, directory, kind):
        self.spark, self.directory, self.kind, self.pushed = spark, Path(directory), KINDS[kind], 0
        (self.directory / "in").mkdir(parents=True)
        self.checkpoint = str(self.directory / "checkpoint")
        writer = self.kind(self._stream).writeStream.format("parquet").option("checkpointLocation", self.checkpoint)
        self.query = writer.start(str(self.directory / "out"))

    def _stream(self):
        source = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return source.parquet(str(self.directory / "in")).withWatermark("ts", "1 second")

    def _batch(self):
        return self.spark.read.schema(SCHEMA).parquet(str(self.directory / "in"))

    def add(self, at=None):
        """Four seconds of rows, or one row at an instant."""
        rows = self.spark.range(ROWS if at is None else 1)
        moment = (
            f"timestamp_millis({4000 * self.pushed} + id * {4000 // ROWS})" if at is None else f"timestamp_seconds({at})"
        )
        rows = rows.selectExpr(f"{moment} ts", f"hash(id, {self.pushed}) % 500 key", "hash(id) x")
        rows.coalesce(1).write.mode("append").parquet(str(self.directory / "in"))
        self.pushed += 1

    def push(self):
        self.add()
        self.query.processAllAvailable()

    def steady(self):
        """Wait until every partition has its replicas, and all of them keep up."""
        manager, (held,) = (
            replicas.manager(),
            [name for name in replicas.manager()._queries.archives() if str(self.query.id) in name],
        )
        deadline = time.monotonic() + STUCK
        while time.monotonic() < deadline:
            found = manager.partitions(held)
            if found and all(
                len(each.replicas) >= manager.replicas
                and all(lag.complete and lag.versions <= 4 for lag in each.replicas.values())
                for each in found
            ):
                return
            time.sleep(0.1)
        raise AssertionError(f"replicas were not made in time: {found}")

    def end(self):
        """Whether the results are what a batch DataFrame gives of the same rows: how many, too few, too many."""
        self.add(at=LAST)
        self.query.processAllAvailable()
        self.query.stop()
        found = self.spark.read.parquet(str(self.directory / "out")).where(f"start < {LAST - 1000}").cache()
        whole = self.kind(self._batch).where(f"start < {LAST - 1000}").cache()
        return [found.count(), whole.exceptAll(found).count(), found.exceptAll(whole).count()]


def disturbed(spark, cluster, kind, seeds, files):
    """Handovers all the time, and for each seed a host that is killed, or cut off for a while, or both."""
    run = Run(spark, f"{cluster.directory}/run", kind)
    run.push()
    run.push()
    manager, handed, ended = fb.handover(run.query), [0], threading.Event()

    def hand_over(chance):
        while not ended.is_set():
            with contextlib.suppress(ForebayError):
                executors = [each.id for each in manager.steering.usable()]
                manager.move(chance.randrange(4), chance.choice(executors), timeout=20)
                handed[0] += 1
            ended.wait(0.2)

    def disturb(how, chance):
        ended.wait(chance.uniform(0, 3))
        host = chance.choice(cluster.alive)
        if how == "kill":
            cluster.kill(host)
            cluster.add(wait=False)
        else:
            cluster.freeze(host)
            time.sleep(chance.uniform(2, 12))
            cluster.thaw(host)

    handing = threading.Thread(target=hand_over, args=[random.Random(seeds[0])], daemon=True)
    handing.start()
    for done, seed in enumerate(seeds, 1):
        chance = random.Random(seed)
        for how in {"kill": ["kill"], "cut": ["cut"], "both": ["cut", "kill"]}[chance.choice(["kill", "cut", "both"])]:
            wait_for(lambda: len(manager.steering.usable()) == len(cluster.alive) >= 3, run)
            run.steady()
            logging.getLogger(__name__).warning("%s seed %d: %s", time.strftime("%H:%M:%S"), seed, how)
            disturbing = threading.Thread(target=disturb, args=[how, chance], daemon=True)
            disturbing.start()
            for _ in range(files):
                run.push()
            disturbing.join()
            run.push()
        wait_for(lambda done=done: handed[0] >= done, run)
    ended.set()
    handing.join()
    return [handed[0], *run.end()]


@pytest.mark.parametrize(
    ("kind", "seeds", "files"),
    [
        pytest.param("sessions", [1], 2, id="sessions"),  # a kill, which ends soonest
        *(pytest.param(kind, [*range(1, 18)], 4, id=f"{kind}-many", marks=MANY) for kind in KINDS),
    ],
)
def test_nothing_is_lost_or_doubled_by_kills_and_cuts_during_handovers(tmp_path, kind, seeds, files):
    with Cluster(hosts=3, directory=tmp_path) as cluster:
        handed, count, missing, more = cluster.run(disturbed, kind, seeds, files, conf=REPLICATED, timeout=800 * len(seeds))
    assert (missing, more) == (0, 0)
    assert count > 100
    assert handed >= len(seeds)


def warmed_by(manager):
    """The executors that a manager warms from now on."""
    warmed, warm = [], manager.steering.warm

    def noted(executors, place=None):
        executors = set(executors)
        warmed.extend(executors)
        warm(executors, place)

    manager.steering.warm = noted
    return warmed


def to_and_fro(spark, cluster):
    run = Run(spark, f"{cluster.directory}/run", "sessions")
    for _ in range(3):
        run.push()
    run.steady()
    manager = fb.handover(run.query)
    before = {each.partition: each.executor for each in manager.placement()}
    partition, warmed = 0, warmed_by(manager)
    target = next(each.id for each in manager.steering.usable() if each.id != before[partition])
    pushing = threading.Thread(target=lambda: [run.push() for _ in range(6)], daemon=True)
    pushing.start()
    handed = manager.move(partition, target)
    pushing.join()
    after = {each.partition: each.executor for each in manager.placement()}
    errors = []
    for partitions, executor in (([99], target), ([0], "nobody")):
        try:
            manager.move(partitions, executor)
        except InvalidArgument as error:
            errors.append(str(error))
    time.sleep(6)  # what people are shown is written every few seconds
    shown = CliRunner().invoke(app, ["cluster", "status", run.checkpoint]).output
    progress = fb.progress(run.query)
    return [
        before,
        handed.reason,
        dict(handed.moved),
        sorted(handed.seconds),
        warmed,
        after,
        errors,
        shown,
        progress.handovers,
        *run.end(),
    ]


@pytest.mark.slow
def test_a_partition_moves_and_the_query_goes_on(tmp_path):
    with Cluster(hosts=3, directory=tmp_path) as cluster:
        conf = REPLICATED | {"spark.forebay.handover": "manual"}
        before, reason, moved, steps, warmed, after, errors, shown, count, *end = cluster.run(to_and_fro, conf=conf)
    rows, missing, more = end
    assert reason == "move"
    ((partition, (origin, target)),) = moved.items()
    assert (before[partition], after[partition]) == (origin, target)
    assert steps == ["catchUp", "fetching", "loading", "microBatch", "scheduling", "warm"]
    # An executor that runs other partitions needs its cores for them. Which one is usable first is left to Spark.
    assert warmed == ([] if target in before.values() else [target])
    assert "the query has the partitions [0, 1, 2, 3]" in errors[0]
    assert "'nobody'" in errors[1]
    assert "1 replicas" in shown
    assert f"{partition}: {origin} to {target}" in shown
    assert count == 1
    assert (missing, more) == (0, 0)
    assert rows > 100


def elastic(spark, cluster):
    run = Run(spark, f"{cluster.directory}/run", "aggregates")
    run.push()
    run.push()
    run.steady()
    manager = fb.handover(run.query)
    warmed = warmed_by(manager)

    def done():
        return [each.reason for each in manager.recent if each.failed is None]

    run.push()
    new = cluster.host(cluster.add())
    wait_for(lambda: new in {each.host for each in manager.steering.usable()}, run)
    wait_for(lambda: new in {each.host for each in manager.placement()}, run)  # what Spark had no time for is tried again
    wait_for(lambda: "scale out" in done(), run)
    assert set(warmed) >= {each.id for each in manager.steering.usable() if each.host == new}
    leaving = 0 if cluster.host(0) in {each.host for each in manager.placement()} else 1
    cluster.decommission(leaving)
    wait_for(lambda: cluster.host(leaving) not in {each.host for each in manager.placement()}, run)
    wait_for(lambda: manager.recent[-1].seconds.keys() == {"scheduling", "fetching", "loading"}, run)
    return [done(), *run.end()]


def wait_for(condition, run):
    deadline = time.monotonic() + STUCK
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        run.push()


@pytest.mark.slow
def test_hosts_that_come_and_go(tmp_path):
    with Cluster(hosts=2, directory=tmp_path) as cluster:
        reasons, rows, missing, more = cluster.run(elastic, conf=REPLICATED, timeout=600)
    assert "scale in" in reasons[reasons.index("scale out") :]
    assert (missing, more) == (0, 0)
    assert rows > 100


def excluded(spark, cluster):
    run = Run(spark, f"{cluster.directory}/run", "aggregates")
    run.push()
    run.push()
    run.steady()
    manager = fb.handover(run.query)
    broken = manager.placement()[0]

    def failing(rows):
        if os.environ["SPARK_LOCAL_IP"] == broken.host:
            raise OSError("the disk is broken")
        return rows

    while broken.executor in {each.id for each in manager.steering.usable()}:
        with contextlib.suppress(PySparkException, Py4JJavaError):
            spark.sparkContext.parallelize(range(8), 8).mapPartitions(failing).count()
    wait_for(lambda: broken.executor not in {each.executor for each in manager.placement()}, run)
    return [[each.reason for each in manager.recent if each.failed is None], *run.end()]


@pytest.mark.slow
def test_partitions_leave_an_executor_that_spark_excludes(tmp_path):
    """It is alive, and gets no tasks for an hour."""
    conf = {"spark.excludeOnFailure.enabled": "true", "spark.excludeOnFailure.application.maxFailedTasksPerExecutor": "1"}
    with Cluster(hosts=3, directory=tmp_path) as cluster:
        reasons, rows, missing, more = cluster.run(excluded, conf=REPLICATED | conf, timeout=600)
    assert "scale in" in reasons
    assert (missing, more) == (0, 0)
    assert rows > 100


def started(spark, directory):
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 1)
    ticks = rates.option("advanceMillisPerBatch", 1000).load().withWatermark("timestamp", "1 second")
    counts = fb.groupBy(ticks, fb.window("timestamp", "1 second"), "value").agg(fb.count("*"))
    return counts.writeStream.format("noop").option("checkpointLocation", str(directory)).start()


@pytest.fixture
def replicated(spark, tmp_path):
    settings = {"durability": "replicas", "localDirectory": str(tmp_path / "disk")}
    for name, value in settings.items():
        spark.conf.set(f"spark.forebay.{name}", value)
    yield spark
    for name in (*settings, "replicas"):
        spark.conf.unset(f"spark.forebay.{name}")
    replicas.end()


@pytest.mark.slow
def test_one_host_keeps_state_in_the_checkpoint_and_says_so(replicated, tmp_path, caplog):
    query = started(replicated, tmp_path / "checkpoint")
    try:
        while query.isActive and not (query.lastProgress and query.lastProgress["batchId"] > 2):
            time.sleep(0.1)
        assert query.exception() is None
        manifests = list((tmp_path / "checkpoint" / "forebay").glob("*/*/*.manifest"))
        assert manifests
        deadline = time.monotonic() + 20
        while "spark.forebay.replicas is 1, which needs 2 hosts with tasks of this application" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert [each.executor for each in fb.handover(query).placement()] == ["driver", "driver"]
        assert fb.progress(query).handovers == 0
        with pytest.raises(InvalidArgument, match="the executors that can take some are"):
            fb.handover(query).move(0, "nobody")
        replicated.conf.set("spark.forebay.replicas", "3")
        with pytest.raises(UnsupportedConfiguration, match="are those of the whole application, which began with 1"):
            started(replicated, tmp_path / "other")
    finally:
        query.stop()
    with pytest.raises(InvalidArgument, match="which is not running"):
        fb.handover(query)


@pytest.mark.thorough
def test_one_handover_at_a_time(replicated, tmp_path):
    query = started(replicated, tmp_path / "checkpoint")
    try:
        while not query.lastProgress:
            time.sleep(0.1)
        manager = fb.handover(query)
        patience = handover.Patience(0.1)
        with (
            manager._turn(patience),
            pytest.raises(HandoverError, match="another handover of this query has not ended in time"),
            manager._turn(patience),
        ):
            pass
        assert manager.rebalance().moved == {}
    finally:
        query.stop()


def test_status_of_a_query_that_has_none(tmp_path):
    result = CliRunner().invoke(app, ["cluster", "status", str(tmp_path)])
    assert isinstance(result.exception, InvalidArgument)
    assert "nothing is known of hosts" in str(result.exception)
    (tmp_path / "cluster.json").write_text(json.dumps({})[:-1])
    result = CliRunner().invoke(app, ["cluster", "status", str(tmp_path)])
    assert "cannot be read" in str(result.exception)


@pytest.mark.thorough
def test_nothing_of_an_idle_query_is_left_in_the_driver_when_its_session_is_stopped(tmp_path):
    """Spark does not end such a query, and another session may follow in the same process."""
    program = """
import logging, sys, threading, time
from pyspark.sql import SparkSession
import forebay as fb

logging.basicConfig(stream=sys.stdout, format="logged: %(message)s", level=logging.WARNING)
root = sys.argv[1]

def session():
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.forebay.durability", "replicas").config("spark.forebay.localDirectory", root + "/disk")
    return fb.configure(builder).getOrCreate()

spark = session()
rows = spark.range(100).selectExpr("timestamp_seconds(id) ts", "id % 7 key")
rows.write.parquet(root + "/in")
stream = spark.readStream.schema(rows.schema).parquet(root + "/in").withWatermark("ts", "1 second")
counts = fb.groupBy(stream, fb.window("ts", "10 seconds"), "key").agg(fb.count("*"))
query = counts.writeStream.format("noop").option("checkpointLocation", root + "/checkpoint").start()
query.processAllAvailable()
manager = fb.handover(query)
spark.stop()
spark = session()
deadline = time.monotonic() + 20
threads = {"forebay handover", "forebay-steering"}
while threads & {each.name for each in threading.enumerate()} and time.monotonic() < deadline:
    time.sleep(0.1)
print("left:", sorted(threads & {each.name for each in threading.enumerate()}))
for ask in (manager.placement, lambda: manager.move(0, "driver"), lambda: fb.handover(query)):
    try:
        ask()
    except Exception as error:
        print("raised:", type(error).__name__)
spark.stop()
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    raised = ["raised: HandoverError", "raised: HandoverError", "raised: InvalidArgument"]
    assert done.stdout.splitlines()[-4:] == ["left: []", *raised]
    assert "look after" not in done.stdout
    assert "Traceback" not in done.stdout
