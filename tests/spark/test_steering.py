"""State partitions that move between executors while their query goes on."""

import math
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pyspark import SparkContext, TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import forebay as fb
from clusters import MARK, Cluster
from forebay.errors import HandoverError, InvalidArgument
from forebay.spark.driver.executors import Executor
from forebay.spark.driver.steering import Steering

SCHEMA = "ts timestamp, key long"
AT_ONCE = {"spark.ui.liveUpdate.period": "0"}
"""What Spark counts is up to date whenever it is asked for; else `tasks` may find some of them later."""

FIRM = {"spark.locality.wait": "60s", **AT_ONCE}
"""Until then Spark waits for an executor that is busy, or slow because the machine is."""


def sessions(df):
    counted = fb.groupBy(df, fb.session_window("ts", "2 seconds"), "key").agg(fb.count("*").alias("n"))
    return counted.select(F.unix_seconds("session_window.start").alias("start"), "key", "n")


def chained(df):
    counts = fb.groupBy(df, fb.window("ts", "5 seconds"), "key").agg(fb.count("*").alias("n"))
    most = fb.groupBy(counts, fb.window(F.window_time("window"), "5 seconds"), (F.col("key") % 7).alias("key")).agg(
        fb.max("n").alias("n")
    )
    return most.select(F.unix_seconds("window.start").alias("start"), "key", "n")


class Run:
    """A query on a cluster whose rows tell on which host, and in which micro-batch, they were made."""

    def __init__(self, spark, directory, kind):
        self.spark, self.directory, self.kind, self.pushed, self.files = spark, Path(directory), kind, 0, 3
        slow, running = str(self.directory / "slow"), str(self.directory / "running")

        def marked(batches):
            context, host = TaskContext.get(), int(os.environ[MARK].rpartition("/")[2])
            if Path(slow).exists():
                Path(f"{running}-{host}-{context.taskAttemptId()}").touch()
                time.sleep(2)
            import pyarrow as pa

            batch = int(context.getLocalProperty("streaming.sql.batchId"))
            for rows in batches:
                marks = [[host] * len(rows), [batch] * len(rows), [context.partitionId()] * len(rows)]
                arrays = [*rows.columns, *(pa.array(mark, pa.int64()) for mark in marks)]
                yield pa.RecordBatch.from_arrays(arrays, [*rows.schema.names, "host", "batch", "part"])

        (self.directory / "in").mkdir(parents=True)
        stream = spark.readStream.schema(SCHEMA).parquet(str(self.directory / "in")).withWatermark("ts", "1 second")
        results = kind(stream).mapInArrow(marked, "start long, key long, n long, host long, batch long, part long")
        writer = results.writeStream.format("parquet").option("checkpointLocation", str(self.directory / "checkpoint"))
        self.query = writer.start(str(self.directory / "out"))
        self.steering = Steering(self.query)

    def add(self, at=None):
        """Seven seconds of rows for each of 100 keys, ten seconds after the rows before; or one row, at a time."""
        moment = f"id % 7 + {10 * self.pushed}" if at is None else f"{at}"
        rows = self.spark.range(2000 if at is None else 1).selectExpr(f"timestamp_seconds({moment}) ts", "id div 20 key")
        rows.repartition(self.files).write.mode("append").parquet(str(self.directory / "in"))
        self.pushed += 1

    def push(self, at=None):
        """Add rows and have them read; on which hosts the results were made that came of it."""
        before = -1 if self.query.lastProgress is None else self.query.lastProgress["batchId"]
        self.add(at)
        self.query.processAllAvailable()
        return self.hosts(before + 1)

    def hosts(self, batch):
        """The hosts of each state partition from a micro-batch on."""
        made = self.out().where(F.col("batch") >= batch).select("part", "host").distinct().collect()
        return {part: sorted(row.host for row in made if row.part == part) for part in {row.part for row in made}}

    def out(self):
        return self.spark.read.schema("start long, key long, n long, host long, batch long, part long").parquet(
            str(self.directory / "out")
        )

    def host(self, executor):
        """The number of an executor's host."""
        (found,) = (each for each in self.steering.executors() if each.id == executor)
        return int(found.host.rpartition(".")[2]) - 2

    def end(self):
        """The results, and what a batch DataFrame gives of the same rows."""
        for at in range(1000, 1003):  # the watermark of one micro-batch is that of the rows before it
            self.push(at)
        self.steering.close()
        self.query.stop()
        whole = self.kind(self.spark.read.schema(SCHEMA).parquet(str(self.directory / "in")))
        return [
            sorted(map(tuple, df.where("start < 900").select("start", "key", "n").collect())) for df in (self.out(), whole)
        ]


def tasks(spark):
    """How many tasks each executor has run so far."""
    spark._jsc.sc().listenerBus().waitUntilEmpty()
    listed = spark._jsc.sc().statusStore().executorList(True)
    return {listed.apply(number).id(): listed.apply(number).totalTasks() for number in range(listed.length())}


def to_and_fro(spark, cluster, kind):
    """Move all partitions to one executor and to the other."""
    run, seen = Run(spark, f"{cluster.directory}/{kind.__name__}", kind), []
    run.push()
    run.push()
    steering = run.steering
    for executor in steering.executors():
        before = tasks(spark)
        steering.warm([executor.id])
        warmed = [name for name, count in tasks(spark).items() if count > before[name]]
        assert warmed == [executor.id]
        steering.steer(dict.fromkeys(range(steering.partitions), executor.id))
        seen.append([run.host(executor.id), run.push(), run.push(), list(steering.placement().values())])
    return [seen, len(steering.operators), *run.end()]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "operators"), [(sessions, 1), (chained, 2)])
def test_all_partitions_move_and_the_results_stay_the_same(tmp_path, kind, operators):
    with Cluster(hosts=2, directory=tmp_path) as cluster:
        seen, count, found, expected = cluster.run(to_and_fro, kind, conf=FIRM)
    assert count == operators
    assert len({host for host, *_ in seen}) == 2
    for host, *pushes, placement in seen:
        for made in pushes:
            assert made == {str(part): [host] for part in range(4)}
        assert len(set(placement)) == 1
    assert found == expected
    assert len(found) > 50


def joining(spark, cluster):
    """Add a host, and claim its executor as soon as there is one."""
    run, told, joined = Run(spark, f"{cluster.directory}/joining", sessions), [], threading.Event()
    run.push()
    there = {each.id for each in run.steering.executors()}
    run.steering.on_joined(lambda executor: (told.append(executor), joined.set()))
    number = cluster.add()
    assert joined.wait(60)
    (executor,) = told
    before = tasks(spark)
    run.steering.claim(executor)
    claimed = {name: count - before.get(name, 0) for name, count in tasks(spark).items() if count > before.get(name, 0)}
    run.push()
    assert len(told) == 1
    return [
        executor.id in there,
        executor.host == cluster.host(number),
        claimed in ({executor.id: executor.cores}, {executor.id: 2 * executor.cores}),  # twice where a micro-batch may begin
        *run.end(),
    ]


@pytest.mark.slow
def test_who_joins_is_told_of_and_can_be_claimed(tmp_path):
    with Cluster(hosts=1, directory=tmp_path) as cluster:
        known, there, alone, found, expected = cluster.run(joining, conf=AT_ONCE)
    assert (known, there, alone) == (False, True, True)
    assert found == expected


def joining_at_work(spark, cluster):
    """Add a host while tasks wait for a slot, so that it is given one of them; there it would take a minute."""
    directory = Path(cluster.directory, "at-work")
    old, files = cluster.numbers, [str(directory / name) for name in ("waiting", "given", "slept")]

    def slow_at_first(batches):
        waiting, given, slept = map(Path, files)
        if int(os.environ[MARK].rpartition("/")[2]) in old:
            while waiting.exists() and not given.exists():
                (waiting / str(uuid.uuid4())).touch()
                time.sleep(0.5)
        elif not given.exists():
            given.touch()
            time.sleep(120)
            slept.touch()
        yield from batches

    def kind(df):
        return sessions(df.mapInArrow(slow_at_first, df.schema))

    run = Run(spark, directory, lambda df: kind(df) if df.isStreaming else sessions(df))
    run.steering.on_joined(lambda executor: threading.Thread(target=run.steering.claim, args=[executor]).start())
    waiting, given, slept = map(Path, files)
    run.push()
    waiting.mkdir()
    run.files = 12
    run.add()
    while not list(waiting.iterdir()):
        time.sleep(0.1)
    cluster.add(wait=False)
    run.query.processAllAvailable()
    return [given.exists(), slept.exists(), *run.end()]


@pytest.mark.slow
def test_tasks_that_were_given_to_who_joins_are_taken_back(tmp_path):
    with Cluster(hosts=2, directory=tmp_path) as cluster:
        given, slept, found, expected = cluster.run(joining_at_work, conf={"spark.sql.files.maxPartitionBytes": "4m"})
    assert (given, slept) == (True, False)
    assert found == expected


def losing(spark, cluster):
    """Kill a host in the middle of a micro-batch."""
    run = Run(spark, f"{cluster.directory}/losing", sessions)
    for _ in range(3):
        run.push()
    steering, asked = run.steering, []
    first, second, third = (each.id for each in steering.executors())
    steering.steer({0: first, 1: first, 2: second, 3: third})
    steering.on_lost(lambda executor, lost: (asked.append([executor.id, lost]), {0: second, 1: third})[1])
    run.push()
    lost, chosen = run.host(first), [run.host(second), run.host(third)]
    (run.directory / "slow").touch()
    run.add()
    while not all(list(run.directory.glob(f"running-{host}-*")) for host in (lost, *chosen)):
        time.sleep(0.05)
    cluster.kill(lost)
    run.query.processAllAvailable()
    (run.directory / "slow").unlink()
    return [first, asked, chosen, run.push(), *run.end()]


def losing_unseen(spark, cluster):
    """Kill a host in the middle of a micro-batch; nobody looks before its tasks run elsewhere and have told so."""
    run, asked = Run(spark, f"{cluster.directory}/losing", sessions), []
    run.steering.on_lost(lambda executor, lost: asked.append([executor.id, lost]))
    for _ in range(3):
        run.push()
    (run.directory / "slow").touch()
    run.add()
    while not list(run.directory.glob("running-*")):
        time.sleep(0.05)
    placement = run.steering.placement()
    first = placement[0]
    with run.steering._lock:
        cluster.kill(run.host(first))
        while run.steering.placement()[0] in (first, None):
            time.sleep(0.05)
    run.query.processAllAvailable()
    (run.directory / "slow").unlink()
    return [first, list(placement.values()), asked, *run.end()]


@pytest.mark.slow
def test_who_had_a_partition_is_known_after_others_have_taken_it(tmp_path):
    with Cluster(hosts=3, directory=tmp_path) as cluster:
        first, placement, asked, found, expected = cluster.run(losing_unseen)
    assert asked == [[first, [partition for partition, executor in enumerate(placement) if executor == first]]]
    assert found == expected


@pytest.mark.slow
def test_partitions_of_a_lost_executor_go_where_they_are_sent(tmp_path):
    """Though Spark by itself has tasks wait for an hour for executors that they had been chosen for, be they lost."""
    conf = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}  # the rows that come fire earlier windows
    conf["spark.locality.wait.process"] = "1h"
    with Cluster(hosts=3, directory=tmp_path) as cluster:
        first, asked, chosen, after, found, expected = cluster.run(losing, conf=conf)
    ((executor, partitions),) = asked
    assert executor == first
    assert {0, 1} <= set(partitions)
    assert [after["0"], after["1"]] == [[chosen[0]], [chosen[1]]]
    assert found == expected
    assert len(found) > 50


def leaving(spark, cluster):
    """Decommission a host in the middle of a micro-batch, while tasks wait for its slot."""
    run = Run(spark, f"{cluster.directory}/leaving", sessions)
    for _ in range(3):
        run.push()
    first, second = (each.id for each in run.steering.executors())
    run.steering.steer({0: first, 1: first, 2: second, 3: first})
    run.steering.on_lost(lambda executor, partitions: dict.fromkeys(partitions, second))
    run.push()
    (run.directory / "slow").touch()
    run.add()
    while not list(run.directory.glob(f"running-{run.host(first)}-*")):
        time.sleep(0.05)
    cluster.decommission(run.host(first))
    run.query.processAllAvailable()
    (run.directory / "slow").unlink()
    return [first in {each.id for each in run.steering.executors()}, *run.end()]


@pytest.mark.slow
def test_tasks_do_not_wait_for_an_executor_that_leaves(tmp_path):
    """It is there for half a minute more, to hand its shuffles on, and is given no task in that time."""
    conf = {"spark.locality.wait.process": "1h", "spark.storage.decommission.enabled": "true"}
    conf["spark.sql.streaming.noDataMicroBatches.enabled"] = "false"
    with Cluster(hosts=2, directory=tmp_path) as cluster:
        still_there, found, expected = cluster.run(leaving, conf=conf)
    assert still_there
    assert found == expected


@pytest.mark.thorough
def test_there_is_only_the_driver_without_a_cluster(spark, tmp_path):
    rows = spark.range(9).selectExpr("timestamp_seconds(id) ts", "id key")
    rows.coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in")).withWatermark("ts", "1 second")
    writer = sessions(stream).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    try:
        query.processAllAvailable()
        steering = Steering(query)
        assert [each.id for each in steering.executors()] == ["driver"]
        assert steering.placement() == {0: "driver", 1: "driver"}
        sizes = [each.stateBytes for each in fb.handover(query).placement()]
        assert sum(sizes) == sum(each["stateBytes"] for each in fb.recentMetrics(query)[-1]["operators"])
        assert all(sizes)
        steering.steer({0: "driver"})
        with pytest.raises(InvalidArgument, match=r"no executor 'nobody' .* Choose one of those that stay: driver"):
            steering.steer({1: "nobody"})
        with pytest.raises(InvalidArgument, match="no state partition 2: the query has 2"):
            steering.steer({2: "driver"})
        steering.close()
        manager = fb.handover(query)
        for partitions in (None, 0.0, [[0]], "0"):
            with pytest.raises(InvalidArgument, match="they are a whole number, or several"):
                manager.move(partitions, "driver")
        for executor in ("1", ["driver"], None):
            with pytest.raises(InvalidArgument, match="cannot go to executor"):
                manager.move(np.int64(0), executor)
        for timeout in ("5 seconds", math.nan, True):
            with pytest.raises(InvalidArgument, match="it is a number of seconds, or a timedelta"):
                manager.move(0, "driver", timeout=timeout)
        assert not manager.move(0, "driver", timeout=math.inf).moved
    finally:
        query.stop()
    for ask in (manager.placement, manager.rebalance, lambda: manager.move(0, "driver")):
        with pytest.raises(HandoverError, match="the query has ended"):
            ask()


def marking(directory):
    """A function of batches that leaves a file for each, whose name ends with the number of its rows."""

    def mark(frames):
        for frame in frames:
            (directory / f"{uuid.uuid4()}-{len(frame)}").touch()
            yield frame

    return mark


def read_by(query):
    """How many rows the sources of the last micro-batch have given, as Spark counts them."""
    leaves = query._jsq.streamingQuery().lastExecution().executedPlan().collectLeaves()
    metrics = [leaves.apply(number).metrics().get("numOutputRows") for number in range(leaves.length())]
    return sum(each.get().value() for each in metrics if each.isDefined())


def from_files(spark, directory, push):
    """Two micro-batches, the second of 3 rows."""
    rows = spark.range(9).selectExpr("timestamp_seconds(id) ts", "id key")
    rows.coalesce(1).write.parquet(str(directory))
    query = push(spark.readStream.schema(SCHEMA).parquet(str(directory)))
    query.processAllAvailable()
    rows.where("id < 3").coalesce(1).write.mode("append").parquet(str(directory))
    query.processAllAvailable()
    return query, 3


def from_a_source_of_another_kind(spark, _, push):
    """One micro-batch of 5 rows."""
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).option("numPartitions", 1).load()
    query = push(rates.selectExpr("timestamp ts", "value key"))
    while not query.lastProgress:
        query.awaitTermination(0.1)
    return query, 5


@pytest.mark.thorough
@pytest.mark.parametrize("source", [from_files, pytest.param(from_a_source_of_another_kind, marks=pytest.mark.slow)])
def test_an_executor_that_is_warmed_packs_what_a_micro_batch_has_packed(spark, tmp_path, caplog, source):
    def push(stream):
        marked = stream.mapInPandas(marking(marks), "ts timestamp, key long").withWatermark("ts", "1 second")
        writer = sessions(marked).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(processingTime="0 seconds" if source is from_files else "1 hour").start()

    no_data, marks = "spark.sql.streaming.noDataMicroBatches.enabled", tmp_path / "marks"
    marks.mkdir()
    spark.conf.set(no_data, "false")
    query, last = source(spark, tmp_path / "in", push)
    try:
        before, told, state = {*marks.iterdir()}, fb.recentMetrics(query), {*(tmp_path / "checkpoint").rglob("*")}
        rows = read_by(query)
        with caplog.at_level("INFO", "forebay"):
            Steering(query).warm(["driver"])
        packed = {*marks.iterdir()} - before
        assert [path.name.rpartition("-")[2] for path in packed] == [str(last)] * 2  # by each slot
        assert fb.recentMetrics(query) == told
        assert read_by(query) == rows > 0
        assert {*(tmp_path / "checkpoint").rglob("*")} == state
        assert caplog.messages == []  # which would say what could not be done
        assert spark.sparkContext.getLocalProperty("sql.streaming.queryId") is None
        assert SparkSession.getActiveSession()._jsparkSession.equals(spark._jsparkSession)
        warming = threading.Thread(target=lambda: Steering(query).warm(["driver"]))  # one that has no session
        warming.start()
        warming.join()
        assert len({*marks.iterdir()} - before) == 4
        tracker, group, steering = spark.sparkContext.statusTracker(), str(query.runId), Steering(query)
        jobs = {*tracker.getJobIdsForGroup(group)}
        steering.claim(steering.executors()[0])
        assert len({*marks.iterdir()} - before) == 6
        several = len({*tracker.getJobIdsForGroup(group)} - jobs)
        assert several == 1 or source is from_files  # it is asked all the time, so a micro-batch may be about to begin
    finally:
        query.stop()
        spark.conf.unset(no_data)


@pytest.mark.thorough
def test_an_executor_is_warmed_though_the_rows_of_the_last_micro_batch_have_gone(spark, tmp_path, caplog):
    rows = spark.range(9).selectExpr("timestamp_seconds(id) ts", "id key")
    rows.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in")).withWatermark("ts", "1 hour")
    query = sessions(stream).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        shutil.rmtree(tmp_path / "in")
        with caplog.at_level("INFO", "forebay"):
            Steering(query).warm(["driver"])
        assert [message.partition(": ")[0] for message in caplog.messages] == [
            "an executor that is made ready could not pack what has been packed"
        ]
    finally:
        query.stop()


class Losing(Steering):
    """A stand-in that loses an executor, and another one while it is asked where the first one's partitions go.

    The first time it cannot say which ones there are.
    """

    batch = 0

    def __init__(self):
        self.there, self.gone = frozenset("123"), []
        self._query, self._closed, self._lock = SimpleNamespace(isActive=True), threading.Event(), threading.RLock()
        self._context = SimpleNamespace(isStopped=lambda: False)
        self._told_of_joined, self._wanted, self._disturbed, self._before = [], {}, set(), {}
        self._asked = self._leaving = frozenset()
        self._ask_again = 0.0
        self._failures = iter([OSError("no answer")])
        self._executors = SimpleNamespace(
            staying=self.staying,
            leaving=lambda executors: frozenset(),
            excluded=frozenset,
            alive=lambda: self.there,
        )

    def executors(self):
        return [Executor(each, f"host {each}", 1) for each in sorted(self.there)]

    def staying(self):
        for error in self._failures:
            raise error
        return {each.id: each for each in self.executors()}

    def _let_go(self, *known):
        pass

    def _report(self, partitions):
        self.there = self.there - {"3"}

    def _lost(self, executor):
        self.gone.append(executor.id)
        self.there = self.there - {"2"}


def test_an_executor_that_is_lost_while_another_loss_is_dealt_with_is_noticed(monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())  # else there is nothing to go on for
    steering = Losing()
    watching = threading.Thread(target=steering._look_after)
    watching.start()
    end = time.monotonic() + 10
    while len(steering.gone) < 2 and time.monotonic() < end:
        time.sleep(0.02)
    steering._closed.set()
    watching.join(10)
    assert steering.gone == ["3", "2"]


def test_a_task_that_is_taken_back_begins_anew_though_its_executor_goes_on_with_it(tmp_path):
    """As one does that is about to load what Python workers need."""
    code = """
import os, sys, threading, time
from pathlib import Path
from pyspark.sql import SparkSession
from forebay.spark.driver.relief import take_back

builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
spark, marks = builder.config("spark.python.task.killTimeout", "1h").getOrCreate(), Path(sys.argv[1])
context = spark.sparkContext

def stubborn(rows):
    attempt = len(list(marks.iterdir()))
    (marks / str(attempt)).touch()
    while attempt == 0 and not (marks / "1").exists():
        try:
            time.sleep(0.1)
        except BaseException:
            pass
    yield attempt

found = []
job = threading.Thread(target=lambda: found.append(context.parallelize([1], 1).mapPartitions(stubborn).collect()))
job.start()
while not (marks / "0").exists():
    time.sleep(0.1)
take_back(context._jsc.sc(), 0, "it is to begin anew")
job.join()
stage = context._jsc.sc().statusStore().lastStageAttempt(0)
print(found, stage.numKilledTasks(), stage.numFailedTasks())
spark.stop()
"""
    (tmp_path / "marks").mkdir()
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "marks")], capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines()[-1] == "[[1]] 1 0", done.stderr
