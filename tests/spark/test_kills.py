"""Workers, executors and drivers killed at random moments: the output is that of a run that nobody disturbed."""

import contextlib
import datetime
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import functions as F

JOB = Path(__file__).with_name("job_to_kill.py")
START = 1_704_067_200_000_000
FILES, ROWS = 8, 2000
CLUSTER = "local-cluster[2,1,1024]"
VICTIMS = {"worker": "daemon\0pyspark.worker", "executor": "CoarseGrainedExecutorBackend"}
PATIENCE = 240
"""Seconds until a job that does not end is taken for stuck."""

QUICK = [("AUR", "driver", 0)]
MANY = [
    ("sessions", "executor", 1),
    ("AAR", "worker", 2),
    ("preceding", "driver", 3),
    ("preceding", "worker", 4),
    ("RMW", "driver", 5),
]
SEEDED = [*itertools.product(("AAR", "AUR", "RMW", "sessions"), ("driver", "executor", "worker"), range(100, 104))]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Rows of 60 s of event time, out of order by less than the watermark allows."""
    numbers = np.random.default_rng(5)
    directory = tmp_path_factory.mktemp("kills")
    for file in range(FILES):
        times = (
            START
            + file * 8_000_000
            + np.sort(numbers.integers(0, 8_000_000, ROWS))
            + numbers.integers(-400_000, 400_000, ROWS)
        )
        columns = {"key": numbers.integers(0, 50, ROWS), "x": numbers.integers(0, 1000, ROWS)}
        table = pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC")), **columns})
        pq.write_table(table, directory / f"{file:03}.parquet")
        os.utime(directory / f"{file:03}.parquet", (file, file))
    return directory


@pytest.fixture(scope="module")
def undisturbed(spark, source):
    """The output when nothing happens, which Spark's own windows give."""
    input_ = spark.read.parquet(str(source))
    (newest,) = input_.agg(F.max("ts")).first()
    tumbling, sliding = F.window("ts", "10 seconds"), F.window("ts", "10 seconds", "5 seconds")
    sessions = F.session_window("ts", "2 seconds")
    queries = {
        "AAR": (tumbling, F.median("x")),
        "AUR": (sessions, F.median("x")),
        "RMW": (sliding, F.sum("x")),
        "sessions": (sessions, F.count("*")),
    }
    until = newest.replace(microsecond=newest.microsecond // 1000 * 1000) - datetime.timedelta(seconds=1)

    def output(kind):
        if kind == "preceding":
            over = "(PARTITION BY key ORDER BY ts RANGE BETWEEN INTERVAL 2 SECONDS PRECEDING AND CURRENT ROW)"
            bounds = F.expr("struct(ts - interval 2 seconds AS start, ts AS end)")
            results = input_.select(bounds.alias("window"), "key", F.expr(f"sum(x) OVER {over}").alias("value"))
        else:
            window, value = queries[kind]
            results = input_.groupBy(window.alias("window"), "key").agg(value.alias("value"))
        whole = results.select("window.start", "window.end", "key", "value").collect()
        return sorted(tuple(row) for row in whole if row.end <= until)

    return output


def prepared(source, directory):
    shutil.copytree(source, directory / "source")
    return directory


@contextlib.contextmanager
def job(kind, master, directory):
    """A running job. All of its processes are gone at the end."""
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, JOB, kind, master, directory], stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        for pid in members(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def members(session, what=""):
    """Processes of a session whose command line has a word in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(path.name)) == session and what in (path / "cmdline").read_text():
                found.append(int(path.name))
    return found


def rows(spark, directory):
    """What the sink has."""
    window = "session_window" if "session_window" in (out := spark.read.parquet(f"{directory}/out")).columns else "window"
    return sorted(map(tuple, out.select(f"{window}.start", f"{window}.end", "key", "value").collect()))


def rows_in(spark, source, starts):
    """Windows of the input and how many rows each has, by key."""
    counted = spark.read.parquet(str(source)).groupBy(F.window("ts", "10 seconds"), "key").count()
    found = counted.select("window.start", "window.end", "key", "count").collect()
    return [row for row in found if row[0] in starts]


def kill_some(process, victim, pick):
    """Wait for a random moment after the first micro-batch has begun, and kill a random victim."""
    time.sleep(pick.uniform(0, 2))
    if process.poll() is None:
        there = [process.pid] if victim == "driver" else members(process.pid, VICTIMS[victim])
        if there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pick.choice(there), signal.SIGKILL)
            return True
    return False


@pytest.mark.parametrize(
    ("kind", "victim", "seed"),
    [
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (*QUICK, *MANY)),
        *(pytest.param(*each, marks=(pytest.mark.slow, pytest.mark.seeds)) for each in SEEDED),
    ],
)
def test_killed_at_random_moments(spark, source, undisturbed, tmp_path, kind, victim, seed):
    expected, pick = undisturbed(kind), random.Random(seed)
    directory, most = prepared(source, tmp_path / "job"), 1 if (kind, victim, seed) in QUICK else 3
    master = "local[2,4]" if victim != "executor" else CLUSTER
    kills, deadline = 0, time.monotonic() + PATIENCE
    while not (directory / "done").exists():
        assert time.monotonic() < deadline, (directory / "log").read_text()[-3000:]
        with job(kind, master, directory) as process:
            while process.poll() is None and not (directory / "checkpoint" / "offsets" / "0").exists():
                time.sleep(0.1)
            while kills < most and process.poll() is None:
                kills += kill_some(process, victim, pick)
                if victim == "driver":
                    break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
    assert kills
    assert rows(spark, directory) == expected


@contextlib.contextmanager
def standalone(directory):
    """A cluster of two executors whose hosts have different names; its URL. Spark speculates on another host only."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        master = f"spark://127.0.0.1:{server.getsockname()[1]}"
    run = [Path(pyspark.__file__).parent / "bin" / "spark-class"]
    deploy, here = "org.apache.spark.deploy", ["--webui-port", "0", "--host"]
    work = ["--cores", "1", "--memory", "1g", "--work-dir", directory]
    commands = [
        [*run, f"{deploy}.master.Master", *here, "127.0.0.1", "--port", master.rpartition(":")[2]],
        *([*run, f"{deploy}.worker.Worker", *here, host, *work, master] for host in ("127.0.0.1", "127.0.0.2")),
    ]
    processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) for command in commands]
    try:
        yield master
    finally:
        for process in processes:
            for pid in members(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize(
    ("kind", "again"),
    [
        pytest.param("failing", "task", marks=pytest.mark.slow),
        pytest.param("losing", "stage", marks=pytest.mark.slow),
        pytest.param("slow", "task", marks=pytest.mark.slow),
    ],
)
def test_tasks_and_stages_that_are_tried_again(spark, source, undisturbed, tmp_path, kind, again):
    """A task fails; an executor is lost with what it had shuffled; a task is slow, and another attempt overtakes it."""
    directory = prepared(source, tmp_path / "job")
    masters = {"failing": "local[2,4]", "losing": CLUSTER}
    cluster = standalone(tmp_path) if kind == "slow" else contextlib.nullcontext(masters[kind])
    with cluster as master, job(kind, master, directory) as process:
        assert process.wait(PATIENCE) == 0, (directory / "log").read_text()[-3000:]
    assert again in (directory / "tried again").read_text()
    found = rows(spark, directory)
    assert [row[:3] for row in found] == [row[:3] for row in undisturbed("AAR")]
    windows = {row[0] for row in found}
    assert sum(row[3] for row in found) == sum(row[3] for row in rows_in(spark, source, windows))
