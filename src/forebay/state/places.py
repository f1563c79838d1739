"""Where state lives: the directory that the stores of a query work in, and where their versions are safe.

With ``spark.forebay.durability`` at ``checkpoint`` a version is safe in ``<checkpointLocation>/forebay`` (or under
``spark.forebay.stateDirectory``) before Spark learns its token. Where that is mounted, stores work right there, unless
``spark.forebay.localDirectory`` is set. Otherwise they work in a directory of the node and archive what they commit. With
``replicas`` a version is safe on other hosts before Spark learns its token, and in the checkpoint later. With ``local`` the
directory of the node is all there is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from forebay.errors import StateDirectoryError
from forebay.replication.application import Application
from forebay.replication.holdings import KEPT_SECONDS, Holdings
from forebay.state.scratch import scratch_in
from forebay.store.archive import Archive, MountedArchive, archive_at
from forebay.store.disk import PRIVATE_DIRECTORY, reported

DIRECTORY = "forebay"

Durability = Literal["checkpoint", "replicas", "local"]


@dataclass(frozen=True)
class Root:
    """The state of one query.

    Attributes
    ----------
    directory : Path
        Where stores work.
    archive : Archive or None
        Where their versions are safe, if not there.
    """

    directory: Path
    archive: Archive | None = None

    @property
    def safe(self) -> Archive:
        """Where the query's versions are safe."""
        return self.archive or MountedArchive(self.directory)

    def within(self, part: str) -> Root:
        """What lies in a directory below."""
        return Root(self.directory / part, self.archive.within(part) if self.archive else None)

    def use(self) -> None:
        """Of an instance: begin to use it. No other process of this host takes its directory for forgotten."""
        if self.archive is not None:
            query = self.directory.parents[1]
            Holdings(query.parent).use(str(self.directory.relative_to(query.parent)))


@dataclass(frozen=True)
class Place:
    """Where the user wants state to live, see `forebay.spark.driver.conf.Conf`; with replicas, whose agents keep them."""

    state_directory: str | None = None
    local_directory: str | None = None
    durability: Durability = "checkpoint"
    application: Application | None = field(default=None, repr=False)

    def root(self, checkpoint: str, query: str) -> Root:
        """The root of a query with that checkpoint location and id."""
        if self.durability == "local":
            return Root(self._node("only") / query)
        location, part = self._safe(checkpoint, query)
        mounted = local_path(location)
        if mounted is not None and self.local_directory is None and self.durability == "checkpoint":
            return Root(mounted / part)
        working = self._node("work")
        _sweep(working)
        return Root(working / copy_of(location, query), archive_at(location).within(part))

    def root_of_task(self, checkpoint: str, query: str) -> Root:
        """The same for a task, whose host may keep replicas."""
        root = self.root(checkpoint, query)
        if self.application is None:
            return root
        from forebay.replication.archive import ReplicatedArchive  # what it imports is for those who want replicas

        place = self._safe(checkpoint, query)
        archive = ReplicatedArchive(self._node("held"), self.application, place, copy_of(place[0], query))
        return Root(root.directory, archive)

    def prepare(self) -> None:
        """On a host that has run nothing of the query yet: have its agent started, if it has to keep replicas."""
        if self.application is not None:
            from forebay.replication import local

            local.agent_of(self._node("held"), self.application)

    def held(self, checkpoint: str, query: str) -> tuple[str, tuple[str, str]]:
        """The name of a query among what agents hold; where its state is in the checkpoint: a location, and a part of it."""
        place = self._safe(checkpoint, query)
        return copy_of(place[0], query), place

    def _safe(self, checkpoint: str, query: str) -> tuple[str, str]:
        return (self.state_directory, query) if self.state_directory else (checkpoint, DIRECTORY)

    def scratch(self) -> contextlib.AbstractContextManager[Path]:
        """A directory of this node for what ends with a task."""
        with reported("make a directory in", self._disk):
            self._disk.mkdir(parents=True, exist_ok=True)
        return scratch_in(self._node("scratch"))

    def _node(self, what: str) -> Path:
        """A directory of this node and user alone."""
        return _own(self._disk / f"{DIRECTORY}-{what}-{os.getuid()}")

    @property
    def _disk(self) -> Path:
        """Where this node keeps what is large: by default a directory of Spark's own, which it removes in the end."""
        if self.local_directory is not None:
            return Path(self.local_directory)
        directory = Path((os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(",")[0])
        return _outliving(directory) if self.durability == "replicas" else directory


_owned: set[Path] = set()


def _own(path: Path) -> Path:
    """A directory that no other user can have put anything into, or can: it may lie where all users can write.

    It is made, unless what is above it is missing yet. Where a volume is mounted for a group, its members may write there.
    """
    if path in _owned:
        return path
    with contextlib.suppress(OSError):  # it is there already; or who writes there will be told
        path.mkdir(mode=PRIVATE_DIRECTORY)
    try:
        found = path.lstat()
    except OSError:
        return path
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & stat.S_IWOTH:
        raise StateDirectoryError(
            f"{path} is not a directory that the user {os.getuid()} has and others cannot write, so nothing in it can be "
            "trusted. Remove it, or have its owner and its mode (700) put right; or name another directory with "
            "spark.forebay.localDirectory."
        )
    _owned.add(path)
    return path


_OF_AN_EXECUTOR = re.compile("(blockmgr|executor|spark)-[0-9a-f-]{36}")


def _outliving(directory: Path) -> Path:
    """The directory above those that Spark removes with an executor, as far up as it can be written on the same disk."""
    disk = directory.stat().st_dev
    while (
        _OF_AN_EXECUTOR.fullmatch(directory.name)
        and directory.parent.stat().st_dev == disk
        and os.access(directory.parent, os.W_OK)
    ):
        directory = directory.parent
    return directory


def copy_of(location: str, query: str) -> str:
    """A name for a query with that checkpoint: one that was copied is another query's."""
    return f"{query}-{hashlib.sha256(location.encode()).hexdigest()[:8]}"


def local_path(location: str) -> Path | None:
    """The path that Spark means by a location such as ``file:/data/ck`` or ``/data/ck``; None on another file system.

    Spark does not escape the paths that it prints, so they are no URLs.
    """
    match = re.fullmatch(r"(?:file:(?://)?)?(/.*)", location)
    return Path(match[1]) if match else None


def path_of(location: str) -> Path | None:
    """The same for a location that a user has given on the command line, where a path may be relative."""
    if ":" in location:
        return local_path(location)
    return Path(os.path.normpath(Path(location).absolute()))  # Spark takes ".." by its name, whatever links there are


_swept: dict[Path, float] = {}


def _sweep(working: Path) -> None:
    """Now and then remove the directories of instances that have moved to other nodes, or whose queries have ended."""
    now = time.time()
    if now - _swept.get(working, 0.0) >= KEPT_SECONDS / 24:
        _swept[working] = now
        Holdings(working).sweep()
