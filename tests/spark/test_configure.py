"""What a session is given, what it keeps, and what is said of one that lacks something."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession
from streams import generate

import forebay as fb
from forebay.errors import UnsupportedConfiguration
from forebay.spark.driver import checkpoint, conf, configure, shared_classes
from forebay.spark.driver.configure import (
    BYTES,
    CHANGELOG,
    DAEMON,
    HANDING_SHUFFLES_ON,
    LOADED,
    LOCALITY_OF_STATE,
    LOGS,
    PARTITIONS,
    PATH,
    PROVIDER,
    RECORDS,
    RENAMING,
    RETRIES,
    RETRY_WAIT,
    ROCKSDB,
    SOCKETS,
    TRACEBACKS,
    USUAL,
)
from forebay.spark.worker import site


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A process that has neither a JVM nor a session yet, nor settings of its machine."""
    monkeypatch.setattr(configure.SparkContext, "_jvm", None)
    monkeypatch.setattr(configure.SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(shared_classes, "options", lambda: None)
    monkeypatch.setenv("PYSPARK_PYTHON", os.environ.get("PYSPARK_PYTHON", sys.executable))  # it is undone
    for name in ("MASTER", "SPARK_REMOTE", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path


def settings(builder):
    return {name: value for name, value in fb.configure(builder)._options.items() if name != "spark.master"}


ANYWHERE = {PROVIDER: ROCKSDB, CHANGELOG: "true", RECORDS: "64000", BYTES: "16m", TRACEBACKS: "false"}
ANYWHERE |= {DAEMON: LOADED} if sys.platform == "linux" else {}
LOCAL = ANYWHERE | {LOGS: RENAMING, SOCKETS: "true", PATH: str(Path(site.__file__).parent)}
CLUSTER = ANYWHERE | {LOCALITY_OF_STATE: "30s", RETRY_WAIT: "1s"}


def test_what_a_local_session_has_left_is_not_for_a_cluster(fresh, monkeypatch):
    """A JVM keeps what the first session of its process was given."""

    class Left:
        def getAll(self):
            return [(LOGS, RENAMING)]

    monkeypatch.setattr(configure.SparkContext, "_jvm", object())
    monkeypatch.setattr(configure, "SparkConf", Left)
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    assert settings(builder)[LOGS] == USUAL
    assert LOGS not in settings(SparkSession.builder.master("local[2]"))
    (fresh / "spark-defaults.conf").write_text(f"{LOGS} {RENAMING}")
    assert LOGS not in settings(SparkSession.builder.master("local-cluster[2,1,1024]"))  # a query is refused, and says why


@pytest.mark.thorough
def test_a_path_of_this_machine_is_not_left_for_the_hosts_of_a_cluster(fresh, monkeypatch):
    """In a process of its own, since a JVM is begun with it."""
    program = f"""
import os, sys
import forebay as fb
from pyspark import SparkConf
from pyspark.sql import SparkSession
fb.configure(SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")).getOrCreate().stop()
left = SparkConf().get({PATH!r})
fb.configure(SparkSession.builder.master("local[2]"))
again = SparkConf().get({PATH!r})
fb.configure(SparkSession.builder.master("spark://master:7077"))
print(left == again != None, SparkConf().get({PATH!r}))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "None"]


@pytest.mark.parametrize(
    ("master", "given"),
    [
        ("local", LOCAL | {PARTITIONS: "1"}),
        ("local[3]", LOCAL | {PARTITIONS: "3"}),
        ("local[2, 4]", {name: value for name, value in LOCAL.items() if name != LOGS} | {PARTITIONS: "2"}),
        ("local[*]", LOCAL | {PARTITIONS: str(len(os.sched_getaffinity(0)))}),
        ("local-cluster[2,3,1024]", CLUSTER | {PARTITIONS: "6"}),
        ("spark://master:7077", CLUSTER),
        ("yarn", CLUSTER),
    ],
)
def test_what_a_session_of_a_master_is_given(fresh, master, given):
    assert settings(SparkSession.builder.master(master)) == given


@pytest.mark.parametrize(
    ("told", "partitions"),
    [
        ({"spark.executor.instances": 3, "spark.executor.cores": 2}, "6"),
        ({"spark.executor.instances": 3}, None),
        ({"spark.cores.max": 5, "spark.executor.cores": 2}, "5"),
        ({"spark.cores.max": 5, "spark.dynamicAllocation.enabled": "true"}, None),
        ({"spark.cores.max": "many"}, None),
        ({"spark.cores.max": 6, "spark.forebay.virtualNodes": 64}, "4"),
        ({"spark.cores.max": 8, "spark.forebay.virtualNodes": 4}, "4"),
        ({"spark.cores.max": 6, "spark.forebay.virtualNodes": "many"}, "6"),
    ],
)
def test_the_cores_of_a_cluster_count_where_they_are_told(fresh, told, partitions):
    builder = SparkSession.builder.master("spark://master:7077").config(map=told)
    assert fb.configure(builder)._options.get(PARTITIONS) == partitions


def test_tasks_give_a_lost_host_up_sooner_where_state_has_replicas(fresh):
    for master, tries, wait in (("spark://master:7077", "1", "250ms"), ("local[2]", None, None)):
        builder = SparkSession.builder.master(master).config("spark.forebay.durability", "replicas")
        assert settings(builder).get(RETRIES) == tries
        assert settings(builder).get(RETRY_WAIT) == wait
    assert RETRIES not in settings(SparkSession.builder.master("spark://master:7077"))


def test_an_executor_that_is_retired_hands_its_shuffles_on(fresh):
    for master, value in (("spark://master:7077", "true"), ("local[2]", None)):
        builder = SparkSession.builder.master(master).config("spark.decommission.enabled", "true")
        assert settings(builder).get(HANDING_SHUFFLES_ON) == value
        builder = SparkSession.builder.master(master).config("spark.decommission.enabled", "false")
        assert HANDING_SHUFFLES_ON not in settings(builder)


def test_what_is_set_is_left_alone(fresh, monkeypatch):
    (fresh / "spark-defaults.conf").write_text(
        f"# of the machine\nspark.master local[7]\n{RECORDS}=1000\n{PARTITIONS}   9\n\n{SOCKETS}: false\n"
    )
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS", f"--master 'local[5]' --conf {CHANGELOG}=false --conf={PARTITIONS}=8 pyspark-shell"
    )
    left = {RECORDS, PARTITIONS, SOCKETS, CHANGELOG}
    assert settings(SparkSession.builder) == {name: value for name, value in LOCAL.items() if name not in left}
    assert settings(SparkSession.builder.config(PROVIDER, "org.example.Other"))[PROVIDER] == "org.example.Other"
    assert settings(SparkSession.builder.config(PATH, "/opt/modules"))[PATH] == "/opt/modules"
    other = fresh / "other.conf"
    other.write_text("spark.master yarn\n")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {other} pyspark-shell")
    assert settings(SparkSession.builder) == CLUSTER
    assert LOCALITY_OF_STATE not in settings(SparkSession.builder.config("spark.locality.wait", "1s"))
    assert settings(SparkSession.builder.config(RETRY_WAIT, "5s"))[RETRY_WAIT] == "5s"


def test_what_a_running_session_has_is_left_alone(spark):
    spark.conf.set(RECORDS, "500")
    try:
        assert RECORDS not in fb.configure(SparkSession.builder)._options
        assert fb.configure(SparkSession.builder).getOrCreate().conf.get(RECORDS) == "500"
    finally:
        spark.conf.set(RECORDS, "64000")


@pytest.mark.parametrize(
    ("name", "value", "left_out"),
    [
        ("spark.driver.extraJavaOptions", f"-Xmx1g -Djava.io.tmpdir=/{'long/' * 13}", SOCKETS),
        ("spark.python.unix.domain.socket.dir", f"/{'long/' * 13}", SOCKETS),
        ("spark.driver.extraJavaOptions", "-Djava.io.tmpdir=/Volumes/Temporary", SOCKETS),
        ("spark.hadoop.fs.defaultFS", "hdfs://name:8020", LOGS),
    ],
)
def test_what_cannot_work_there_is_left_out(fresh, name, value, left_out):
    assert settings(SparkSession.builder.master("local").config(name, value)).keys() >= LOCAL.keys() - {left_out}
    assert left_out not in settings(SparkSession.builder.master("local").config(name, value))
    assert left_out in settings(SparkSession.builder.master("local").config(name, "file:///tmp"))


@pytest.mark.parametrize(
    ("told", "python"),
    [
        ({"spark.master": "local[2]"}, sys.executable),
        ({"spark.master": "local[2]", "spark.pyspark.python": "python9"}, "python9"),
        ({"spark.master": "spark://master:7077"}, None),
    ],
)
def test_workers_of_a_local_session_have_the_drivers_python(fresh, monkeypatch, told, python):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    fb.configure(SparkSession.builder.config(map=told))
    assert os.environ.get("PYSPARK_PYTHON") == python
    monkeypatch.setenv("PYSPARK_PYTHON", "python8")
    fb.configure(SparkSession.builder.config(map=told))
    assert os.environ["PYSPARK_PYTHON"] == "python8"


def test_connect_is_refused(fresh):
    with pytest.raises(UnsupportedConfiguration, match="Spark Connect session, of sc://host"):
        fb.configure(SparkSession.builder.remote("sc://host"))


@pytest.mark.parametrize(("location", "master"), [("hdfs://name/ck", "local[2]"), ("/ck", "local[2,4]"), ("/ck", "yarn")])
def test_where_spark_may_not_replace_files_it_is_refused(location, master):
    with pytest.raises(
        UnsupportedConfiguration, match=rf"this one is at {location}, and the master is (?s:.)*Unset it with"
    ):
        checkpoint.replace_uncommitted(location, master, SimpleNamespace(committed=-1, begun=-1))


@pytest.mark.parametrize(("committed", "begun"), [(2, 2), (2, 3), (-1, 3)])
def test_what_is_left_of_uncommitted_micro_batches_is_removed_from_sparks_state(tmp_path, committed, begun):
    kept = [
        "0/0/1.changelog",
        "0/0/.1.changelog.crc",
        "0/0/2.zip",
        "0/0/3.delta",
        "0/0/SSTs/4.zip",
        "0/_metadata/v2/4",
        "4.x",
    ]
    gone = ["0/0/4.changelog", "0/0/.4.changelog.crc", "0/1/5.zip", "1/0/left/4.snapshot"]
    for name in (*kept, *gone):
        path = tmp_path / "state" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    checkpoint.replace_uncommitted(f"file:{tmp_path}", "local[2]", SimpleNamespace(committed=committed, begun=begun))
    found = (path for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert {str(path.relative_to(tmp_path / "state")) for path in found} == {*kept}


@pytest.fixture
def stream(spark, tmp_path):
    return generate(spark, tmp_path, keys=8, rows=50, files=2)


def count(stream):
    return fb.groupBy(stream.streaming("1 second"), fb.window("ts", "1 hour"), "key").agg(fb.count("*"))


@pytest.fixture
def bare(spark):
    """The session without what may be unset while it runs."""
    names = (PROVIDER, CHANGELOG, LOGS, RECORDS)
    before = {name: spark.conf.get(name) for name in names}
    for name in names:
        spark.conf.unset(name)
    yield names
    for name, value in before.items():
        spark.conf.set(name, value)


def test_one_error_names_all_settings_that_are_missing(stream, bare):
    with pytest.raises(UnsupportedConfiguration, match=r"fb\.configure\(SparkSession\.builder\)") as caught:
        count(stream)
    assert all(f'spark.conf.set("{name}"' in str(caught.value) for name in bare)


def test_what_only_costs_time_is_warned_of_once(spark, stream, bare, monkeypatch, caplog):
    spark.conf.set(PROVIDER, ROCKSDB)
    monkeypatch.setattr(conf, "_advised", set())
    with caplog.at_level(logging.WARNING, logger="forebay"):
        count(stream)
        count(stream)
    (warning,) = caplog.messages
    assert all(f'spark.conf.set("{name}"' in warning for name in bare if name != PROVIDER)
    assert PROVIDER not in warning
