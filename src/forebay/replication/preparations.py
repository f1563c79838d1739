"""Stores that are prepared where their replicas are: an agent has read what a store reads first, and follows its versions.

A store of unaligned windows that is opened reads its key index, which takes as long as it has windows. Rhino (section 3.4)
bounds what a handover waits for by what has changed since the last checkpoint. So the agent of a host that holds replicas
reads their key indexes before anybody waits, and hands one over, in shared memory, to the task that opens the store.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forebay.errors import ForebayError
from forebay.replication.application import Application
from forebay.replication.holdings import Holdings
from forebay.replication.shared_arrays import SharedArrays, receive, socket_at
from forebay.store import filenames
from forebay.store import manifest as manifests
from forebay.store.disk import LOCAL
from forebay.store.manifest import Manifest
from forebay.store.memory import for_kept_stores
from forebay.store.prepared import Prepared, pictured

if TYPE_CHECKING:
    from forebay.store.unaligned import UnalignedStore

BEHIND = 8
"""A prepared store follows when it is so many versions behind; the task that takes it reads what has changed since."""

TAKE_SECONDS = 5.0
"""A task waits so long for a store that is being prepared; then it reads all by itself."""

_MOST_ASKED = 4096

_log = logging.getLogger("forebay.agent")


class _Ready:
    """A store that is prepared."""

    def __init__(self) -> None:
        self.store: UnalignedStore | None = None
        self.shared = SharedArrays()

    def follow(self, directory: Path, made: Manifest) -> None:
        """Be prepared for a version, or for one shortly before it."""
        from forebay.store.unaligned import UnalignedStore  # an agent that has no large stores has no use for it

        assert made.version is not None
        if self.store is None or not self._has_followed(self.store, made):
            self.store = UnalignedStore(directory, made.version)
        if self.store.base.version == made.version:
            manifest = filenames.manifest(made.version)
            described = {manifest: np.fromfile(directory / manifest, np.uint8)}
            self.store.have(self.shared.hold(described | self.store.prepare()))
            self.store.close()

    def _has_followed(self, store: UnalignedStore, made: Manifest) -> bool:
        """Whether a store has followed to a version as far as it has to."""
        before, after = store.base.version, made.version
        assert before is not None and after is not None
        near = 0 <= after.number - before.number < BEHIND and pictured(store.base) == pictured(made)
        return near or store.catch_up(after, None, LOCAL)


class Preparations:
    """The prepared stores of an agent.

    Parameters
    ----------
    holdings : Holdings
        What the host holds.
    most_bytes : int, optional
        What they may have of memory together; unless given, what a worker's stores may have between micro-batches.
    """

    def __init__(self, holdings: Holdings, most_bytes: int | None = None) -> None:
        self._holdings = holdings
        self._most_bytes = for_kept_stores() if most_bytes is None else most_bytes
        self._changed = threading.Condition()
        self._wanted: dict[str, Manifest] = {}
        self._ready: dict[str, _Ready] = {}
        self._too_large: set[str] = set()
        self._working: str | None = None
        threading.Thread(target=self._work, name="preparing", daemon=True).start()

    def note(self, instance: str, made: Manifest) -> None:
        """A version has come from another host, with all its files. Small stores are not prepared."""
        if pictured(made):
            with self._changed:
                if instance not in self._too_large:
                    self._wanted[instance] = made
                    self._changed.notify_all()

    def forget(self, instance: str) -> None:
        """A store works on this host, or its replica is not held any more."""
        with self._changed:
            self._too_large.discard(instance)
            self._wanted.pop(instance, None)
            ready = self._ready.pop(instance, None)
            if self._working == instance:
                self._working = None  # what is being prepared is not wanted any more
        if ready:
            ready.shared.close()

    def take(self, instance: str) -> SharedArrays | None:
        """What is prepared of a store, for one process to go on with; None if nothing is."""
        with self._changed:
            self._wanted.pop(instance, None)
            self._changed.wait_for(lambda: self._working != instance, TAKE_SECONDS)
            ready = self._ready.pop(instance, None)
        if ready is None:
            return None
        assert ready.store
        _log.info("%s is taken as it was in version %s", instance, ready.store.base.version)
        return ready.shared

    @property
    def prepared(self) -> list[str]:
        """The instances whose stores are prepared."""
        with self._changed:
            return sorted(self._ready)

    def serve(self, application: Application) -> None:
        """Give stores to the tasks of an application on this host, as they ask for them (`prepared_of`)."""
        path = _socket_of(self._holdings.root, application)
        LOCAL.make_directory(path.parent)
        path.unlink(missing_ok=True)
        with socket_at(path) as (listening, address):
            listening.bind(address)
            listening.listen()
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=self._answer, args=(connection, application.secret), daemon=True).start()

    def _answer(self, connection: socket.socket, secret: str) -> None:
        with connection, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            connection.settimeout(TAKE_SECONDS)
            asked = json.loads(connection.recv(_MOST_ASKED))
            if hmac.compare_digest(asked["secret"], secret):
                shared = self.take(asked["instance"])
                if shared:
                    shared.send(connection)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted)
                instance, made = next(iter(self._wanted.items()))
                del self._wanted[instance]
                self._working, ready = instance, self._ready.pop(instance, None) or _Ready()
            try:
                ready.follow(self._holdings.directory(instance), made)
                kept = True
            except (ForebayError, OSError, MemoryError) as error:  # the next version is another chance
                _log.info("%s could not be prepared: %s", instance, error)
                kept = False
            with self._changed:
                if kept and self._working == instance and self._has_room(instance, ready):
                    self._ready[instance] = ready
                else:
                    ready.shared.close()
                self._working = None
                self._changed.notify_all()

    def _has_room(self, instance: str, another: _Ready) -> bool:
        """Whether there is memory for another one."""
        size = another.shared.nbytes + sum(ready.shared.nbytes for ready in self._ready.values())
        if size > self._most_bytes:
            self._too_large.add(instance)
            _log.info("%s is not prepared: all together would be %d bytes, and may be %d", instance, size, self._most_bytes)
        return size <= self._most_bytes


def prepared_of(disk: Path, application: Application, instance: str) -> Prepared | None:
    """What the agent of this host has prepared of a store, for the caller alone; None if it has not, or is not there."""
    try:
        with socket_at(_socket_of(disk, application)) as (connection, address):
            connection.settimeout(2 * TAKE_SECONDS)
            connection.connect(address)
            connection.send(json.dumps({"secret": application.secret, "instance": instance}).encode())
            parts = receive(connection)
    except (OSError, ValueError):
        return None
    if not parts:
        return None
    (name,) = (name for name in parts if filenames.version_of(name))
    return Prepared(manifests.parse(parts.pop(name).tobytes(), Path(name)), parts)


def _socket_of(disk: Path, application: Application) -> Path:
    """Where the agent of an application listens for tasks of its own host."""
    return disk / "agents" / f"{application.name}.socket"
