"""The settings of forebay, Spark confs under ``spark.forebay``, read once when a query is planned."""

from __future__ import annotations

import functools
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from pyspark.sql import DataFrame, SparkSession

from forebay.errors import ForebayError, StateDirectoryError, UnsupportedConfiguration
from forebay.spark.driver.capture import CAPTURE
from forebay.spark.driver.configure import PROVIDER, ROCKSDB, STATIC, missing
from forebay.spark.driver.unknown_settings import warn_of_unknown
from forebay.spark.properties import PREFIX
from forebay.state.places import Durability, Place, local_path
from forebay.store.archive import archive_at
from forebay.store.options import Options

WATERMARK = "spark.watermarkDelayMs"
"""The key under which Spark keeps a watermark's delay in its column's metadata."""

MOST_VNODES = 1 << 12
"""More virtual nodes than that would only cost time."""

MOST_PORTS = (1 << 16) - 1
"""The highest port of a host."""

LARGEST = (1 << 31) - 1
"""The most that a setting can be that has no bound of its own: so many megabytes can still be counted in bytes."""

_log = logging.getLogger("forebay")

_advised: weakref.WeakSet[SparkSession] = weakref.WeakSet()

Setting = TypeVar("Setting")


@dataclass(frozen=True)
class Conf:
    """The settings, with their defaults. docs/configuration.md describes each.

    Attributes
    ----------
    memory_mb : int
        ``spark.forebay.memoryMB``: what one Python worker may hold of state.
    instances_per_partition : int
        ``spark.forebay.instancesPerPartition``: store instances in each state partition (FlowKV's m), where the next one is
        not set.
    virtual_nodes : int or None
        ``spark.forebay.virtualNodes``: store instances in all state partitions together, a power of two.
    retain_batches : int
        ``spark.forebay.retainBatches``: versions of the state that stay readable.
    place : Place
        ``spark.forebay.durability``, ``.stateDirectory``, ``.localDirectory``: where state lives.
    replicas : int
        ``spark.forebay.replicas``: how many other hosts have a version before Spark learns of it.
    upload_behind : bool
        ``spark.forebay.uploadBehind``: whether versions that are replicated go to the checkpoint later.
    copy_mb_per_second : int
        ``spark.forebay.copyMBPerSecond``: how fast a host copies state that no task waits for, at most.
    agent_port : int
        ``spark.forebay.agentPort``: where the agents of hosts listen; 0 for any free port.
    handover : str
        ``spark.forebay.handover``: whether partitions are handed over by themselves (``auto``) or only by `fb.handover`.
    chained_timers : bool
        ``spark.forebay.chainedTimers``: whether operators that read the results of others by event time have timers, as
        in checkpoints of earlier releases.
    write_buffer_mb : int or None
        ``spark.forebay.writeBufferMB``: rows are written when so many wait; a quarter of ``memoryMB`` unless set.
    kept_mb : int or None
        ``spark.forebay.keptMB``: what one Python worker keeps of stores between micro-batches; by the memory unless set.
    read_batch_ratio : float
        ``spark.forebay.readBatchRatio``: the share of open windows that is read ahead of time.
    max_space_amplification : float
        ``spark.forebay.maxSpaceAmplification``: bytes on disk over live bytes above which state is compacted.
    prometheus_port : int or None
        ``spark.forebay.prometheusPort``: where the driver shows its metrics to Prometheus.
    capture_trace : str or None
        ``spark.forebay.captureTrace``: a directory in which the state accesses of streams are recorded.
    """

    memory_mb: int = 256
    instances_per_partition: int = 1
    virtual_nodes: int | None = None
    retain_batches: int = 2
    place: Place = field(default_factory=Place)
    replicas: int = 1
    upload_behind: bool = True
    copy_mb_per_second: int = 32
    agent_port: int = 0
    handover: str = "auto"
    chained_timers: bool = False
    write_buffer_mb: int | None = None
    kept_mb: int | None = None
    read_batch_ratio: float = 0.02
    max_space_amplification: float = 1.5
    prometheus_port: int | None = None
    capture_trace: str | None = None

    @classmethod
    def of(cls, session: SparkSession, *, streaming: bool = False) -> Conf:
        """The settings of a session in which an operator can run; an error of ours has all that is wrong with them.

        ``streaming`` says whether it is to run over a stream, which needs more.
        """
        problems: list[ForebayError] = []
        warn_of_unknown(session)

        def read(reader: Callable[..., Setting], *arguments: Any) -> Setting:
            try:
                return reader(session, *arguments)
            except ForebayError as error:
                problems.append(error)
                return cast(Setting, None)

        read(require_forebay_in_workers)
        if streaming:
            read(_require_rocksdb)
        conf = cls(
            memory_mb=read(_integer, "memoryMB", cls.memory_mb, 8),
            instances_per_partition=read(_integer, "instancesPerPartition", cls.instances_per_partition, 1, MOST_VNODES),
            virtual_nodes=read(_virtual_nodes),
            retain_batches=read(_integer, "retainBatches", cls.retain_batches, 2),
            place=Place(
                state_directory=read(_state_directory),
                local_directory=read(_local_directory),
                durability=cast(Durability, read(_choice, "durability", "checkpoint", "replicas", "local")),
            ),
            replicas=read(_integer, "replicas", cls.replicas, 1),
            upload_behind=read(_choice, "uploadBehind", "true", "false") == "true",
            copy_mb_per_second=read(_integer, "copyMBPerSecond", cls.copy_mb_per_second, 1),
            agent_port=read(_integer, "agentPort", cls.agent_port, 0, MOST_PORTS),
            handover=read(_choice, "handover", "auto", "manual"),
            chained_timers=read(_choice, "chainedTimers", "false", "true") == "true",
            write_buffer_mb=read(_write_buffer, cls.memory_mb) or None,
            kept_mb=read(_integer, "keptMB", 0, 0) or None,
            read_batch_ratio=read(_share, "readBatchRatio", cls.read_batch_ratio),
            max_space_amplification=read(_amplification, "maxSpaceAmplification", cls.max_space_amplification),
            prometheus_port=read(_integer, "prometheusPort", 0, 0, MOST_PORTS) or None,
            capture_trace=read(_capture_trace) if streaming else None,
        )
        if len(problems) == 1:
            raise problems[0]
        if problems:
            raise UnsupportedConfiguration("\n".join(f"* {problem}" for problem in problems))
        return conf

    @property
    def options(self) -> Options:
        """The limits of one store instance."""
        return Options(
            memory_bytes=self.memory_mb << 20,
            retain_versions=self.retain_batches + 1,  # an attempt at the last but one may still go on (note 30)
            write_buffer_bytes=(self.write_buffer_mb or 0) << 20,
            kept_bytes=(self.kept_mb or 0) << 20,
            read_batch_ratio=self.read_batch_ratio,
            max_space_amplification=self.max_space_amplification,
        )


def require_classic(name: str, df: DataFrame) -> None:
    """`UnsupportedConfiguration` unless a function got a DataFrame of a classic session that runs."""
    kind = f"{type(df).__module__}.{type(df).__name__}"
    if kind.startswith("pyspark.sql.connect."):
        raise UnsupportedConfiguration(
            f"{name} got a {kind}; forebay needs a DataFrame of a classic Spark session. Spark Connect sessions are not "
            "supported."
        )
    if not hasattr(df, "_jdf"):
        raise UnsupportedConfiguration(f"{name} got a {kind}; it takes a DataFrame of a classic Spark session")
    if df.sparkSession.sparkContext._jsc is None:
        raise UnsupportedConfiguration(f"{name} got a DataFrame of a session that was stopped; read it in one that runs")


def ready(df: DataFrame) -> Conf:
    """The configuration of a DataFrame's session, in which an operator can run."""
    return Conf.of(df.sparkSession, streaming=df.isStreaming)


def _require_rocksdb(session: SparkSession) -> None:
    """Spark's own state must be in RocksDB: ``transformWithStateInPandas`` runs on no other provider.

    What else is missing only costs time. The error has it too, or else a warning, once for each session.
    """
    provider = session.conf.get(PROVIDER, None)
    absent = missing(session)
    if provider is None or not provider.endswith(".RocksDBStateStoreProvider"):
        raise UnsupportedConfiguration(
            f"{PROVIDER} is {provider or 'not set'}; streaming queries of forebay need the RocksDB provider. Make the "
            "session with\n    spark = fb.configure(SparkSession.builder).getOrCreate()\n"
            "or set this before the query is started:\n" + _calls({PROVIDER: ROCKSDB, **absent})
        )
    if absent and session not in _advised:
        _advised.add(session)
        _log.warning(
            "settings of Spark that make micro-batches shorter are not set. Make the session with "
            "fb.configure(SparkSession.builder), or set them before the query is started:\n%s",
            _calls(absent),
        )


def _calls(settings: Mapping[str, str]) -> str:
    """Settings as calls that make them; those that a session has from its beginning, as calls of its builder."""
    return "\n".join(
        f'    builder.config("{name}", "{value}")  # of a new session'
        if name in STATIC
        else f'    spark.conf.set("{name}", "{value}")'
        for name, value in settings.items()
    )


def use_this_python(session: SparkSession) -> None:
    """Have a local session run its workers with the driver's own Python, unless the user has named another one.

    A setting that names one is read by spark-submit alone, which puts it into the environment.
    """
    context = session.sparkContext
    if str(context.master).startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = context.getConf().get("spark.pyspark.python", sys.executable)


def require_forebay_in_workers(session: SparkSession) -> None:
    """The Python that a local session runs its workers with must have forebay. Of a cluster's nothing is known here."""
    use_this_python(session)
    context = session.sparkContext
    if not str(context.master).startswith("local"):
        return
    found = shutil.which(context.pythonExec)
    if found is not None and not _lacks_forebay(found):
        return
    wrong = "is no program that can be run" if found is None else "cannot import forebay"
    raise UnsupportedConfiguration(
        f"Spark runs its Python workers with {context.pythonExec!r}, which {wrong}. Set the environment variable "
        f"PYSPARK_PYTHON, or spark.pyspark.python, to {sys.executable} before the session is made, or leave both unset."
    )


@functools.cache
def _lacks_forebay(program: str) -> bool:
    if Path(program).parent == Path(sys.executable).parent:
        return False
    code = "from forebay.spark.worker import startup; startup.load_all()"  # what it needs beside forebay, too
    tried = subprocess.run([program, "-c", code], capture_output=True, check=False)  # noqa: S603 - Spark runs it too
    return tried.returncode != 0


def _integer(session: SparkSession, name: str, default: int, least: int, most: int = LARGEST) -> int:
    text = session.conf.get(PREFIX + name, str(default)) or ""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        bounds = f"between {least} and {most}" if value > most or most < LARGEST else f"of at least {least}"
        raise UnsupportedConfiguration(f"{PREFIX}{name} is {text!r}; it must be a whole number {bounds}")
    return value


def _write_buffer(session: SparkSession, memory: int) -> int:
    """The size of the write buffer, which is part of the memory; 0 where it follows from that one.

    ``memory`` is the default of ``memoryMB``.
    """
    value = _integer(session, "writeBufferMB", 0, 0)
    try:
        memory = _integer(session, "memoryMB", memory, 8)
    except UnsupportedConfiguration:  # of which reading memoryMB tells
        return value
    if value > memory:
        raise UnsupportedConfiguration(
            f"{PREFIX}writeBufferMB is {value}; it is a part of {PREFIX}memoryMB, and must be at most {memory} as that is"
        )
    return value


def _virtual_nodes(session: SparkSession) -> int | None:
    value = _integer(session, "virtualNodes", 0, 0)
    if value & (value - 1) or value > MOST_VNODES:
        raise UnsupportedConfiguration(
            f"{PREFIX}virtualNodes is {value}; it must be a power of two of at most {MOST_VNODES}, so that every smaller "
            "power of two of state partitions gets equally many"
        )
    return value or None


def _number(session: SparkSession, name: str, default: float) -> float:
    text = session.conf.get(PREFIX + name, str(default)) or ""
    try:
        return float(text)
    except ValueError:
        raise UnsupportedConfiguration(f"{PREFIX}{name} is {text!r}; it must be a number, for example {default}") from None


def _share(session: SparkSession, name: str, default: float) -> float:
    value = _number(session, name, default)
    if not 0 <= value <= 1:
        raise UnsupportedConfiguration(f"{PREFIX}{name} is {value}; it is a share, between 0 and 1")
    return value


def _amplification(session: SparkSession, name: str, default: float) -> float:
    value = _number(session, name, default)
    if not value > 1:
        raise UnsupportedConfiguration(f"{PREFIX}{name} is {value}; it must be more than 1")
    return value


def _choice(session: SparkSession, name: str, *choices: str) -> str:
    value = session.conf.get(PREFIX + name, choices[0]) or choices[0]
    if value not in choices:
        raise UnsupportedConfiguration(f"{PREFIX}{name} is {value!r}; it must be one of {', '.join(choices)}")
    return value


def _local_directory(session: SparkSession) -> str | None:
    """A directory of the executors' nodes, of which nothing is known here."""
    text = session.conf.get(PREFIX + "localDirectory", None) or None
    if text is not None and not text.startswith("/"):
        raise UnsupportedConfiguration(f"{PREFIX}localDirectory is {text!r}; it must be an absolute path")
    if text is None and session.conf.get(PREFIX + "durability", None) == "local":
        raise UnsupportedConfiguration(
            f"{PREFIX}durability is 'local', which keeps state in {PREFIX}localDirectory alone. Set that to a directory of "
            "each node."
        )
    return text


def _state_directory(session: SparkSession) -> str | None:
    """A URL, or a directory that can be written."""
    text = session.conf.get(PREFIX + "stateDirectory", None)
    if not text:
        return None
    path = local_path(text)
    if path is None:
        if not re.match(r"[a-z][a-z0-9+.-]*:", text):
            raise UnsupportedConfiguration(f"{PREFIX}stateDirectory is {text!r}; it must be an absolute path or a URL")
        archive_at(text)
        return text
    return _writable("stateDirectory", path)


def _capture_trace(session: SparkSession) -> str | None:
    """A directory that can be written."""
    text = session.conf.get(CAPTURE, None)
    if not text:
        return None
    path = local_path(text)
    if path is None:
        raise UnsupportedConfiguration(
            f"{CAPTURE} is {text!r}; it must be the absolute path of a directory that the driver and all executors can write"
        )
    return _writable("captureTrace", path)


def _writable(name: str, path: Path) -> str:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise StateDirectoryError(
            f"{PREFIX}{name} is {path}, which cannot be written: {os.strerror(error.errno or 0)}. "
            "Give the driver and executors write access, or name another directory."
        ) from error
    return str(path)
