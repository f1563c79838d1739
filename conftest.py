"""One Spark session for the whole test session, for tests and for the examples in docstrings."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

import forebay as fb

settings.register_profile("same", derandomize=True, deadline=None)  # what is compiled takes long when it is first called
settings.register_profile("random", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("same")
pytest.register_assert_rewrite("forebay.testing.stores", "forebay.testing.archives", "forebay.testing.connectors")
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def _forget_what_was_compiled() -> None:
    """Loops of other modules have those of ``index_kernels`` in them; numba looks at the time of their own file alone."""
    store = Path(fb.__file__).parent / "store"
    changed = (store / "index_kernels.py").stat().st_mtime
    for path in store.glob("*_kernels.py"):
        if path.stat().st_mtime < changed:
            path.touch()


_forget_what_was_compiled()

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=512m -XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError"
"""To compile well takes longer than a test; and what is compiled for all tests does not fit into the 48 MB of that level."""
TEMPORARY = tempfile.gettempdir()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = (
        fb.configure(SparkSession.builder.master("local[2]"))
        .appName("forebay tests")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.extraJavaOptions", f"{SHORT_LIVED} -Djava.io.tmpdir={TEMPORARY}")
        .config("spark.local.dir", f"{TEMPORARY}/{os.getpid()}")  # of this process alone
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.forceDeleteTempCheckpointLocation", "true")
        .config("spark.sql.streaming.numRecentProgressUpdates", "100000")
        .config("spark.buffer.pageSize", "1m")  # threads that tasks start keep a page each, of 64 MB, for ever
        .config("spark.sql.streaming.stopTimeout", "120s")  # what hangs is to fail, and to say where
        .config("spark.python.worker.idleTimeoutSeconds", "300")
        .config("spark.python.worker.killOnIdleTimeout", "true")
        .config("spark.python.worker.faulthandler.enabled", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The URL of a directory, ``{}``, on an S3 endpoint of this machine."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"scheme=http&region=eu-west-1&endpoint_override={host}:{port}"
    maker, _ = pafs.FileSystem.from_uri(f"s3://id:secret@states?{endpoint}&allow_bucket_creation=true")
    maker.create_dir("states")
    yield f"s3://id:secret@states/{{}}?{endpoint}"
    server.stop()


@pytest.fixture
def another_file_system(tmp_path: Path) -> Iterator[str]:
    """A directory that is on another file system than the temporary one."""
    for candidate in ("/dev/shm", "/var/tmp"):  # noqa: S108  # what is made there has a name of its own
        if Path(candidate).is_dir() and Path(candidate).stat().st_dev != tmp_path.stat().st_dev:
            with tempfile.TemporaryDirectory(dir=candidate) as directory:
                yield directory
            return
    pytest.skip("there is no other file system here")


@pytest.fixture
def read_only(tmp_path: Path) -> dict[str, str]:
    """A copy of the package and an environment in which neither its directories nor a home can be written, whoever asks."""
    package = tmp_path / "package" / "forebay"
    shutil.copytree(Path(fb.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for directory in (package, *(path for path in package.rglob("*") if path.is_dir())):
        (directory / "__pycache__").touch()  # a file, where numba wants a directory
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "NUMBA_"))}
    return environment | {"PYTHONPATH": str(package.parent), "HOME": "/dev/null", "TMPDIR": str(tmp_path)}


@pytest.fixture(autouse=True)
def _spark_in_docstrings(request: pytest.FixtureRequest) -> None:
    if isinstance(request.node, pytest.DoctestItem) and "spark." in request.node.dtest.docstring:
        request.node.dtest.globs["spark"] = request.getfixturevalue("spark")


PROGRAMS = {
    "test_advice.py",
    "test_archive.py",
    "test_benchmarks.py",
    "test_beside.py",
    "test_compiling.py",
    "test_connectors.py",
    "test_delete_aware.py",
    "test_evaluator.py",
    "test_harness_cli.py",
    "test_redis_server.py",
    "test_reports.py",
    "test_warmup.py",
}
"""Tests that run commands, start servers, or drive stores that others have made."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts Spark, a cluster or programs is marked, so that the rest can be run alone. Clusters go first."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        doctest = isinstance(item, pytest.DoctestItem) and "spark." in item.dtest.docstring
        if doctest or "spark" in names or "/tests/spark/" in item.path.as_posix():
            item.add_marker("spark")
        module = getattr(item, "module", None)
        if hasattr(module, "Cluster"):
            item.add_marker("cluster")
        replicated = hasattr(module, "hosts") and "/tests/replication/" in item.path.as_posix()
        if replicated or item.path.name in PROGRAMS:
            item.add_marker("programs")
    items.sort(key=lambda item: item.get_closest_marker("cluster") is None)  # it takes longest: nothing waits for it alone
