"""What the driver reads in Spark's checkpoint of a query: its micro-batches, and where it was made."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError

from forebay.errors import UnsupportedConfiguration
from forebay.spark.driver.configure import LOGS, RENAMING
from forebay.spark.driver.masters import tries_again
from forebay.state.places import local_path
from forebay.store.archive import Archive, archive_at

_log = logging.getLogger("forebay")

_BUCKETS = ("s3", "s3a", "s3n", "gs", "abfs", "abfss", "wasb", "wasbs")
"""Schemes whose locations begin with a bucket or a container."""


@dataclass(frozen=True)
class Logs:
    """The offset log and the commit log of a checkpoint, objects of the JVM."""

    offsets: Any
    commits: Any

    @property
    def begun(self) -> int:
        """The last micro-batch that has begun, -1 if there is none."""
        return _latest(self.offsets)

    @property
    def committed(self) -> int:
        """The last micro-batch that Spark has committed, -1 if there is none."""
        return _latest(self.commits)

    def partitions(self, batch: int) -> int | None:
        """How many state partitions a micro-batch has; None if the offset log does not say."""
        with contextlib.suppress(Py4JError, TypeError):  # an offset log of another form
            entry = self.offsets.get(batch)
            if entry.isDefined():
                recorded = entry.get().metadataOpt().get().conf().get("spark.sql.shuffle.partitions")
                if recorded.isDefined():
                    return int(recorded.get())
        return None

    def was_rescale(self, batch: int) -> bool:
        """Whether a micro-batch is one that Spark made to rescale: it is the first one with so many state partitions."""
        before, now = self.partitions(batch - 1), self.partitions(batch)
        return batch > 0 and None not in (before, now) and before != now

    def begin_empty(self, jvm: Any) -> None:
        """Have Spark begin with a micro-batch without data, where it has committed all that it began.

        Spark makes such a micro-batch, as the wall clock may need it, after another one of the same run alone. The time of
        this one is that of the last one: what has passed meanwhile is for the next one to see.
        """
        last = self.committed
        if last < 0 or self.begun != last:
            return
        entry = self.offsets.get(last).get()
        try:
            told = entry.metadataOpt().get()
            watermark = max(told.batchWatermarkMs(), self.commits.get(last).get().nextBatchWatermarkMs())
            told = told.copy(watermark, told.batchTimestampMs(), told.conf())
            entry = entry.copy(entry.offsets(), jvm.scala.Some(told))
        except (Py4JError, TypeError):  # an offset log of another form
            return
        self.offsets.add(last + 1, entry)

    @property
    def rescaling(self) -> int | None:
        """How many state partitions an interrupted rescale was to make."""
        return self.partitions(self.begun) if self.begun > self.committed and self.was_rescale(self.begun) else None

    def require_no_rescale(self, location: str) -> None:
        """`UnsupportedConfiguration` if a rescale was interrupted, which only that rescale can end."""
        if self.rescaling is not None:
            message = (
                f"the rescale of {location} to {self.rescaling} state partitions was interrupted, and the query cannot go "
                f"on before it has ended. Run fb.rescale({location!r}, {self.rescaling}) again, then start the query."
            )
            _log.error("%s", message)  # Spark fails before the first task can say so
            raise UnsupportedConfiguration(message)


def replace_uncommitted(location: str, master: str, logs: Logs) -> None:
    """See to it that Spark's state goes on from what committed micro-batches have left.

    The manager of files that `forebay.configure` names is fast, but leaves a file that is there. So what attempts that
    failed have left is removed before the query begins, after which there are no others: where tasks are not tried again.

    Parameters
    ----------
    location : str
        The checkpoint location.
    master : str
        The session's master.
    logs : Logs
        The logs of the checkpoint.

    Raises
    ------
    UnsupportedConfiguration
        If attempts may fail while the query runs, or the checkpoint cannot be reached as a directory.
    """
    path = local_path(location)
    if path is None or tries_again(master):
        raise UnsupportedConfiguration(
            f"{LOGS} is {RENAMING}, which leaves the files of a task that has failed in place of those of the next attempt. "
            "fb.configure sets it where tasks are not tried again, for checkpoints on local disks; this one is at "
            f'{location}, and the master is {master}. Unset it with\n    spark.conf.unset("{LOGS}")\nbefore the query is '
            "started, or give the builder another value."
        )
    committed = max(logs.committed, logs.begun - 1)  # a commit log that is lost is no reason to lose state
    for directory, within, names in os.walk(path / "state"):
        within[:] = [name for name in within if name != _SHARED_FILES]
        for name in names:
            version = _OF_STATE.fullmatch(name)
            if version and int(version[1]) > committed + 1:
                Path(directory, name).unlink(missing_ok=True)


_SHARED_FILES = "SSTs"
_OF_STATE = re.compile(r"\.?(\d+)\.(?:changelog|zip|delta|snapshot)(?:\.crc)?")
"""Files of a version of Spark's state, and their checksums."""


def _latest(log: Any) -> int:
    latest = log.getLatestBatchId()
    return int(latest.get()) if latest.isDefined() else -1


def require_at_home(location: str) -> None:
    """`UnsupportedConfiguration` for a checkpoint that was copied from elsewhere.

    Spark keeps the absolute paths of its state's schemas in the checkpoint, and would read those of the original, or fail.
    """
    for recorded in _schema_paths(location):
        elsewhere = recorded.rpartition("/state/")[0]
        if not _same(location, elsewhere):
            message = (
                f"the checkpoint at {location} was copied from {elsewhere}: Spark keeps absolute paths of its state's "
                "schemas, and these still lead there. docs/operations.md (move a checkpoint) says how to change them."
            )
            _log.error("%s", message)  # Spark may fail before the first task can say so
            raise UnsupportedConfiguration(message)


def _same(location: str, other: str) -> bool:
    """Whether two locations are one directory, as far as can be told."""
    here, there = local_path(location), local_path(other)
    if here is None or there is None:  # schemes and hosts have several names
        return _path(location) == _path(other)
    try:
        return here.resolve() == there.resolve() or here.samefile(there)
    except OSError:
        return False


def _path(location: str) -> str:
    """A location without what has several names: the scheme, and the host where that is not a bucket."""
    scheme, _, rest = location.partition(":")
    return (rest if scheme in _BUCKETS else re.sub("^//[^/]*", "", rest)).rstrip("/")


def _schema_paths(location: str) -> list[str]:
    """Where Spark says that the schemas of its state are; nothing where that cannot be read, which Spark reports itself."""
    found: list[str] = []
    with contextlib.suppress(Exception):  # of any file system, of which only Spark knows how it is reached
        for _, store in stores_in(archive_at(location).within("state")):
            found += store.get("stateSchemaFilePaths", ())
    return found


def stores_in(state: Archive) -> Iterator[tuple[int, dict[str, Any]]]:
    """The state stores that Spark has written down in a checkpoint: the number of the operator, and what is said of each.

    It is the newest form that each operator has.
    """
    for operator in filter(str.isdigit, state.directories()):
        for place in ("_metadata/v2", "_metadata"):
            directory = state.within(f"{operator}/{place}")
            names = [name for name in directory.names() if name.isdigit() or name == "metadata"]
            if names:
                told = json.loads(directory.read(max(names, key=lambda name: (len(name), name))).splitlines()[1])
                yield from ((int(operator), each) for each in told["stateStoreInfo"])
                break
