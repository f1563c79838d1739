"""A driver's Java maps the file of Spark's classes where it fits, and does without where it does not."""

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import forebay as fb
from forebay.cli.app import app
from forebay.spark.driver import configure, shared_classes

SESSION = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
import forebay as fb
from forebay.spark.driver import shared_classes
directory, *options = sys.argv[1:]
shared_classes._directories = lambda: [Path(directory)]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = fb.configure(builder.config(map=dict(zip(options[::2], options[1::2])))).getOrCreate()
java = spark._jvm.java.lang.ProcessHandle.current().pid()
maps = Path(f"/proc/{java}/maps").read_text()
print(spark.range(3).count(), directory in maps)
"""


@pytest.fixture(scope="module")
def made():
    """The file of this Java and this Spark: of `make test`, or a new one."""
    return shared_classes.kept() or shared_classes.make()


@pytest.fixture
def directory(made, tmp_path):
    """A directory of its own with the file, under a path with a blank."""
    directory = tmp_path / "two words"
    directory.mkdir()
    shutil.copy(made, directory)
    return directory


def session(directory, **options):
    """Whether a session's Java has mapped a file of a directory; and it works."""
    words = [word for name, value in options.items() for word in (f"spark.driver.{name}", value)]
    ended = subprocess.run([sys.executable, "-c", SESSION, directory, *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "[warning][cds" not in ended.stdout + ended.stderr
    counted, mapped = ended.stdout.split()
    assert counted == "3"
    return mapped == "True"


@pytest.mark.thorough
def test_a_session_maps_the_file(directory):
    assert session(directory, extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def test_a_part_of_a_file_is_not_taken(directory, monkeypatch):
    """Java would not start with it."""
    monkeypatch.setattr(shared_classes, "_directories", lambda: [directory])
    (file,) = directory.iterdir()
    assert shared_classes.kept() == file
    os.truncate(file, file.stat().st_size // 2)
    assert shared_classes.kept() is shared_classes.options() is None


@pytest.mark.slow
def test_a_session_with_other_classes_does_without(directory):
    assert not session(directory, extraClassPath=str(directory))


@pytest.mark.slow
def test_a_session_does_without_a_file_of_something_else(directory):
    (file,) = directory.iterdir()
    file.write_bytes(bytes(file.stat().st_size))
    assert not session(directory)


@pytest.fixture
def before_java(monkeypatch):
    """A process whose Java has not started, on a machine that has a file."""
    monkeypatch.setattr(configure.SparkContext, "_jvm", None)
    monkeypatch.setattr(configure.SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(shared_classes, "options", lambda: "-XX:SharedArchiveFile=/some")
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)


def given(**settings):
    return fb.configure(SparkSession.builder.master("local[2]").config(map=settings))._options.get(shared_classes.OPTIONS)


@pytest.mark.usefixtures("before_java")
def test_options_of_the_user_are_left_alone():
    assert given() == "-XX:SharedArchiveFile=/some"
    assert given(**{shared_classes.OPTIONS: "-Xss4m"}) == "-Xss4m"


@pytest.mark.usefixtures("before_java")
@pytest.mark.parametrize("option", ["-XX:ArchiveClassesAtExit=mine", "-XX:SharedArchiveFile=mine", "-Xshare:on"])
def test_options_of_the_user_that_do_not_go_with_it(monkeypatch, option):
    """With the first Java would not start."""
    assert given(**{"spark.driver.extraJavaOptions": f"-Xss4m {option}"}) is None
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", option)
    assert given() is None


@pytest.mark.usefixtures("before_java")
def test_java_that_runs_is_given_no_options(monkeypatch):
    with monkeypatch.context() as running:
        running.setattr(configure.SparkContext, "_jvm", object())
        running.setattr(configure, "SparkConf", lambda: SimpleNamespace(getAll=list))
        assert given() is None
    assert given() is not None


def test_another_java_has_another_file(monkeypatch, tmp_path):
    ours = shared_classes._names()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert shared_classes._names()[0] != ours[0]
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert shared_classes._names()[0] != ours[0]


def test_warmup_says_that_java_cannot(monkeypatch, tmp_path):
    """Where settings of Spark are on the path of classes; sessions start without, so it is no failure."""
    (tmp_path / "spark-defaults.conf").write_text("spark.ui.enabled false\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setattr("forebay.engine.rehearsal.rehearse", lambda directory: iter(()))
    monkeypatch.setattr("forebay.compiling.kernels", {})  # docstrings compile some that cannot be kept
    monkeypatch.setattr(shared_classes, "_directories", lambda: [tmp_path / "kept"])
    result = CliRunner().invoke(app, ["warmup"])
    assert result.exit_code == 0
    assert f"Java cannot keep Spark's classes where {tmp_path} has files" in " ".join(result.output.split())
    assert not (tmp_path / "kept").exists()


def test_nowhere_to_keep_it_is_said(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(shared_classes, "_directories", lambda: [tmp_path / "file" / "kept"])
    with pytest.raises(shared_classes.NoSharedClasses, match="nowhere can Spark's classes be kept"):
        shared_classes.make()


@pytest.mark.slow
def test_a_new_file_takes_the_place_of_the_old_one(monkeypatch, tmp_path):
    monkeypatch.setattr(shared_classes, "_directories", lambda: [tmp_path])
    places, _ = shared_classes._names()
    old = tmp_path / f"{places}-other-3.jsa"  # of a Java that has been updated
    old.write_text("old")
    new = shared_classes.make()
    assert list(tmp_path.iterdir()) == [new]
    assert session(tmp_path)
