"""Replicas as an archive: what a task's store commits is safe on other hosts, and what it lacks comes from them."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from forebay.errors import CorruptState, ReplicationError, VersionNotFound
from forebay.replication import local
from forebay.replication.application import Application
from forebay.replication.holdings import Holdings
from forebay.replication.preparations import prepared_of
from forebay.store import filenames
from forebay.store import manifest as manifests
from forebay.store.archive import Archive, archive_at
from forebay.store.prepared import Prepared

COMMIT_SECONDS = 600.0
"""How long a version may take to be safe; what a chain of hosts may take is bounded by its agents."""

ANSWER_SECONDS, _SLOWEST = 90.0, 1 << 20
"""An agent answers after so long, and a second for so many bytes, at most: if not, it stands still."""
SILENT_SECONDS, AVOIDED_SECONDS = 5.0, 60.0
"""An agent that has not answered for so long is not asked for so long."""

FETCH_SECONDS = 120.0

_silent: dict[Path, float] = {}
"""Until when the agents that keep replicas in some directories are not asked."""

_log = logging.getLogger("forebay")


class ReplicatedArchive:
    """An archive on the disks of other hosts, with the checkpoint behind them.

    Versions go to this host's agent, which sends them down the chain of the instance's replica group, and to the checkpoint
    later. What a store lacks comes from what this host holds, by hard links; else from a host that holds it; else from the
    checkpoint. Files that are not of a version are in the checkpoint alone.

    Parameters
    ----------
    disk : Path
        The directory of this host that has what its agent holds.
    application : Application
        Whom the agent works for.
    place : tuple of str
        Where the state is in the checkpoint: a location, and the part of it that has the query's state.
    query : str
        The directory of the query among what agents hold.
    path : str
        Where in the query's state this is.
    """

    def __init__(self, disk: Path, application: Application, place: tuple[str, str], query: str, path: str = "") -> None:
        self._disk, self._application, self._place = disk, application, place
        self._query, self._path = query, path
        self._holdings = Holdings(disk)

    @property
    def _instance(self) -> str:
        return f"{self._query}/{self._path}"

    @property
    def _behind(self) -> Archive:
        location, part = self._place
        return archive_at(location).within(f"{part}/{self._path}" if self._path else part)

    def within(self, part: str) -> ReplicatedArchive:
        path = f"{self._path}/{part}" if self._path else part
        return ReplicatedArchive(self._disk, self._application, self._place, self._query, path)

    def upload(self, directory: Path, names: Sequence[str]) -> None:
        if not names or filenames.version_of(names[-1]) is None:
            self._behind.upload(directory, names)
            return
        began, uploading = time.monotonic(), self._application.uploading
        if uploading and began < _silent.get(self._disk, 0.0):
            self._upload_behind(directory, names[-1])
            return
        try:
            self._commit(directory, names)
        except ReplicationError as error:
            local.agent_of.cache_clear()
            if not uploading:
                raise
            if time.monotonic() - began > SILENT_SECONDS:
                _silent[self._disk] = time.monotonic() + AVOIDED_SECONDS
            _log.warning("a version of %s goes to the checkpoint, not to other hosts: %s", self._instance, error)
            self._upload_behind(directory, names[-1])

    def _commit(self, directory: Path, names: Sequence[str]) -> None:
        """Have a version safe, by this host's agent."""
        uploading, end = self._application.uploading, time.monotonic() + COMMIT_SECONDS
        seconds = ANSWER_SECONDS + sum((directory / name).stat().st_size for name in names) / _SLOWEST
        if not uploading:  # there is no other place: what a chain of hosts may take
            seconds *= 1 + self._application.replicas
        agent, about = local.agent_of(self._disk, self._application), {"instance": self._instance, "manifest": names[-1]}
        reply = agent.call(
            "commit",
            seconds=min(seconds, COMMIT_SECONDS),
            directory=str(directory),
            archive=list(self._place) if uploading else None,
            **about,
        )
        while not reply["safe"]:
            if time.monotonic() > end:
                raise ReplicationError(f"{names[-1]} was not uploaded in {COMMIT_SECONDS:g} s")
            reply = agent.call("settle", seconds=ANSWER_SECONDS, **about)

    def _upload_behind(self, directory: Path, manifest: str) -> None:
        """Upload all of a version that the checkpoint lacks; uploads behind replication may not have come to all of it."""
        version = filenames.version_of(manifest)
        assert version is not None
        there = self._behind.names()
        missing = [name for name in manifests.read(directory, version).segments if name not in there]
        for name in missing:
            if not (directory / name).exists():  # nobody has read it here yet
                self.download(name, directory)
        self._behind.upload(directory, [*missing, manifest])

    def download(self, name: str, directory: Path) -> int:
        if not filenames.is_state(name):
            return self._behind.download(name, directory)
        version = filenames.version_of(name)
        if version is not None:
            with contextlib.suppress(VersionNotFound, CorruptState):
                segments = self._holdings.read(self._instance, version).segments
                for segment in segments.keys() - {path.name for path in directory.glob("*")}:
                    self._holdings.give(self._instance, segment, directory)
        if self._holdings.give(self._instance, name, directory):
            return 0
        try:
            fetched = local.agent_of(self._disk, self._application).call(
                "fetch", seconds=FETCH_SECONDS, instance=self._instance, name=name
            )
            if fetched["found"] and self._holdings.give(self._instance, name, directory):
                return (directory / name).stat().st_size
        except ReplicationError as error:
            local.agent_of.cache_clear()
            _log.warning("%s of %s comes from the checkpoint: %s", name, self._instance, error)
            return self._behind.download(name, directory)
        try:
            return self._behind.download(name, directory)
        except FileNotFoundError as error:
            if version is None:
                raise
            raise VersionNotFound(
                f"no host of this application holds version {version} of {self._instance}, and {self._behind} does not have "
                "it, though Spark's checkpoint names it. Hosts that held it were lost before it was uploaded, or were "
                "started with another spark.forebay.localDirectory. Start them with the disks that they had, or start the "
                "query with a new checkpoint location."
            ) from error

    def prepared(self) -> Prepared | None:
        return prepared_of(self._disk, self._application, self._instance)

    def write(self, name: str, data: bytes) -> None:
        self._behind.write(name, data)

    def read(self, name: str) -> bytes:
        return self._behind.read(name)

    def names(self) -> dict[str, float]:
        return self._behind.names()

    def directories(self) -> list[str]:
        return self._behind.directories()

    def delete(self, names: Sequence[str]) -> None:
        self._behind.delete(names)

    def __str__(self) -> str:
        return str(self._behind)
