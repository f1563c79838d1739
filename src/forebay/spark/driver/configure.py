"""The settings of Spark that a session of forebay wants: `configure` gives them to a builder, `missing` says which lack.

docs/configuration.md has the reason of each, and what it trades.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from forebay.errors import InvalidArgument, UnsupportedConfiguration
from forebay.spark.driver import early, shared_classes
from forebay.spark.driver.early import DAEMON, LOADED
from forebay.spark.driver.masters import cores_of, is_local, tries_again
from forebay.spark.properties import BYTES, PREFIX, RECORDS
from forebay.spark.worker import site

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
LOGS = "spark.sql.streaming.checkpointFileManagerClass"
RENAMING = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
USUAL = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
PARTITIONS = "spark.sql.shuffle.partitions"
VIRTUAL_NODES, DURABILITY = PREFIX + "virtualNodes", PREFIX + "durability"
SOCKETS = "spark.python.unix.domain.socket.enabled"
SOCKET_DIRECTORY = "spark.python.unix.domain.socket.dir"
TRACEBACKS = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
PATH = "spark.executorEnv.PYTHONPATH"
LOCALITY, LOCALITY_OF_STATE = "spark.locality.wait", "spark.locality.wait.process"
RETRY_WAIT, RETRIES = "spark.shuffle.io.retryWait", "spark.shuffle.io.maxRetries"
DECOMMISSION, HANDING_SHUFFLES_ON = "spark.decommission.enabled", "spark.storage.decommission.enabled"

STATIC = (SOCKETS, DAEMON, LOCALITY_OF_STATE, RETRY_WAIT, RETRIES, HANDING_SHUFFLES_ON)
"""What counts only if it is set before there is a session, of what `missing` may name."""

LOCAL = "local[*]"
"""The master that pyspark takes where none is given."""

_LONGEST_DIRECTORY = 64
"""Of sockets: Linux takes paths of 107 bytes, and Spark's names have 43."""

_SHARING = re.compile("-Xshare|SharedArchiveFile|SharedSpaces|ArchiveClassesAtExit")
"""Options of Java about shared classes: with two files, or with one that is to be written, it does not start."""

_SETTING = re.compile(r"\s*([^#!\s=:][^\s=:]*)\s*[\s=:]\s*(.*)")


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Give a builder the settings of Spark that forebay needs, and those that make micro-batches short.

    What is set already stays as it is, whether with the builder, with ``spark-submit``, in ``spark-defaults.conf``, or in
    the session that this process has. Call it after ``master``, for some settings are right in local mode alone. What the
    builder is given afterwards counts. In local mode the driver's own Python also becomes that of Spark's workers, by
    ``PYSPARK_PYTHON`` of this process, if that is unset, and a session starts them as soon as it is made, with a job of one
    value.

    Parameters
    ----------
    builder : SparkSession.Builder
        The builder of a classic session.

    Returns
    -------
    SparkSession.Builder
        The same builder.

    Examples
    --------
    >>> from pyspark.sql import SparkSession
    >>> import forebay as fb
    >>> session = fb.configure(SparkSession.builder.master("local[2]")).getOrCreate()
    >>> session.conf.get("spark.sql.streaming.stateStore.providerClass").rpartition(".")[2]
    'RocksDBStateStoreProvider'
    """
    if not isinstance(builder, SparkSession.Builder) and not hasattr(builder, "getOrCreate"):
        raise InvalidArgument(
            f"configure() got a {type(builder).__name__}; it takes the builder of a session. Where there is a session "
            "already, write fb.configure(SparkSession.builder).getOrCreate(): it gives that one what it lacks."
        )
    given = _given(builder)
    if "spark.remote" in given or not isinstance(builder, SparkSession.Builder):
        raise UnsupportedConfiguration(
            f"the builder makes a Spark Connect session, of {given.get('spark.remote', 'some host')}; forebay needs a "
            "classic one. Give it a master, and no remote."
        )
    for name, value in wanted(given).items():
        if name not in given:
            builder.config(name, value)
    if _starts_java() and shared_classes.OPTIONS not in given and not _SHARING.search(_java_options(given)):
        options = shared_classes.options()
        if options is not None:
            builder.config(shared_classes.OPTIONS, options)
    master = given.get("spark.master", LOCAL)
    if tries_again(master) and given.get(LOGS) == RENAMING and _is_left_over(LOGS, builder):
        builder.config(LOGS, USUAL)
    if not is_local(master) and PATH in given and _is_left_over(PATH, builder):
        assert SparkContext._jvm is not None
        SparkContext._jvm.java.lang.System.clearProperty(PATH)  # hosts have paths of their own
    local = master.startswith("local")
    if local and SparkContext._active_spark_context is None:  # not any Python has the module of `DAEMON`
        os.environ.setdefault("PYSPARK_PYTHON", given.get("spark.pyspark.python", sys.executable))
    early.begin_with(builder)
    return builder


def wanted(given: Mapping[str, str]) -> dict[str, str]:
    """The settings that forebay wants where ``given`` are those that there are, whether they are among those or not."""
    master = given.get("spark.master", LOCAL)
    settings = {PROVIDER: ROCKSDB, CHANGELOG: "true", RECORDS: "64000", BYTES: "16m", TRACEBACKS: "false"}
    if sys.platform == "linux":  # elsewhere libraries do not expect that a process forks that has loaded them
        settings[DAEMON] = LOADED
    cores = _cores(master, given)
    if cores is not None:
        settings[PARTITIONS] = str(_partitions(cores, given))
    if not is_local(master) and LOCALITY not in given:
        settings[LOCALITY_OF_STATE] = "30s"
    if not is_local(master):
        settings[RETRY_WAIT] = "1s"
    if not is_local(master) and given.get(DURABILITY) == "replicas":
        settings |= {RETRY_WAIT: "250ms", RETRIES: "1"}
    if not is_local(master) and given.get(DECOMMISSION) == "true":
        settings[HANDING_SHUFFLES_ON] = "true"
    if is_local(master):
        settings[PATH] = str(Path(site.__file__).parent)
        if _is_here(given.get("spark.hadoop.fs.defaultFS", "file:///")) and not tries_again(master):
            settings[LOGS] = RENAMING
        if _has_place_for_sockets(given):
            settings[SOCKETS] = "true"
    return settings


def missing(session: SparkSession) -> dict[str, str]:
    """The settings that forebay wants and that a session leaves unset, but for `PATH`, which is of this machine."""
    settings = wanted(dict(session.sparkContext.getConf().getAll()))
    settings.pop(PATH, None)
    return {name: value for name, value in settings.items() if session.conf.get(name, None) is None}


def _starts_java() -> bool:
    """Whether pyspark will start the driver's Java: it may run already, by an earlier session or by ``spark-submit``."""
    return SparkContext._jvm is None and "PYSPARK_GATEWAY_PORT" not in os.environ


def _is_left_over(name: str, builder: SparkSession.Builder) -> bool:
    """Whether a setting is of an earlier session of this process, whose JVM goes on with what that one was given."""
    ended = SparkContext._jvm is not None and SparkContext._active_spark_context is None
    return ended and "PYSPARK_GATEWAY_PORT" not in os.environ and name not in {**_started_with(), **builder._options}


def _given(builder: SparkSession.Builder) -> dict[str, str]:
    """What is set before the session is made; what counts more comes later."""
    variables = {"spark.master": "MASTER", "spark.remote": "SPARK_REMOTE"}
    settings = {name: os.environ[variable] for name, variable in variables.items() if os.environ.get(variable)}
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()  # with spark-submit the JVM is there, and has read its files
    elif SparkContext._jvm is None:
        settings |= _started_with()
    if SparkContext._jvm is not None:
        settings |= dict(SparkConf().getAll())
    running = SparkContext._active_spark_context
    if running is not None:
        settings |= dict(running.getConf().getAll())
        session = SparkSession.getActiveSession()
        if session is not None:
            settings |= {name: value for name in wanted(settings) if (value := session.conf.get(name, None)) is not None}
    return settings | {name: str(value) for name, value in builder._options.items()}


def _started_with() -> dict[str, str]:
    """What spark-submit will read when pyspark starts a JVM with it: a file of defaults, and ``PYSPARK_SUBMIT_ARGS``."""
    home = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf")
    path, settings = Path(home, "spark-defaults.conf"), {}
    arguments = _arguments(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for name, value in arguments:
        if name == "--properties-file":
            path = Path(value)
        elif name == "--master":
            settings["spark.master"] = value
        elif name in ("--conf", "-c") and "=" in value:
            key, _, settings[key] = value.partition("=")
    lines = path.read_text().splitlines() if path.is_file() else []
    found = [match.groups() for match in map(_SETTING.fullmatch, lines) if match]
    return {name: value.strip() for name, value in found} | settings


def _arguments(text: str) -> Iterator[tuple[str, str]]:
    """Options of a command line with the words that follow them."""
    words = [part for word in shlex.split(text) for part in (word.split("=", 1) if word.startswith("--") else [word])]
    return itertools.pairwise(words)


def _cores(master: str, given: Mapping[str, str]) -> int | None:
    """How many tasks run at a time, where that is known."""
    cores = cores_of(master)
    if cores is not None or given.get("spark.dynamicAllocation.enabled") == "true":
        return cores
    most = given.get("spark.cores.max", "")
    told = [most] if most else [given.get(f"spark.executor.{name}", "") for name in ("instances", "cores")]
    return math.prod(map(int, told)) if all(map(str.isdecimal, told)) else None


def _partitions(cores: int, given: Mapping[str, str]) -> int:
    """A state partition for each core; of a number of virtual nodes a power of two, which divides these."""
    nodes = given.get(VIRTUAL_NODES, "")
    return 1 << min(cores, int(nodes)).bit_length() - 1 if nodes.isdecimal() and int(nodes) else cores


def _is_here(file_system: str) -> bool:
    return file_system.startswith("file:")


def _has_place_for_sockets(given: Mapping[str, str]) -> bool:
    """Whether the paths of Spark's sockets are as short as Linux wants them, and as Spark's workers read them.

    The worker of a stateful operator takes the path of its socket in lower case (pyspark 4.3, ``Conf.get``), so a directory
    with a capital letter would stop every query. The one for temporary files has such letters on macOS.
    """
    told = re.findall(r"-Djava\.io\.tmpdir=(\S+)", _java_options(given))
    usual = "/tmp" if sys.platform == "linux" else tempfile.gettempdir()  # noqa: S108  # where Java puts what is temporary
    directory = given.get(SOCKET_DIRECTORY) or (told or [usual])[-1]
    return len(os.fsencode(directory)) <= _LONGEST_DIRECTORY and directory == directory.lower()


def _java_options(given: Mapping[str, str]) -> str:
    """What the user tells the driver's Java."""
    variables = [os.environ.get(name, "") for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")]
    return " ".join([given.get("spark.driver.extraJavaOptions", ""), *variables])
