"""Stores that are prepared where their replicas are: an agent has read what a store reads first, and follows its versions.

A store of unaligned windows that is opened reads its key index, which takes as long as it has windows. What a handover waits
for is to be bounded by what has changed lately, as in Rhino (section 3.4). So the agent of a host that holds replicas reads
their key indexes before anybody waits, and hands one over, in shared memory, to the task that opens the store.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forebay.errors import ForebayError
from forebay.replication.application import Application
from forebay.replication.holdings import Holdings
from forebay.replication.local import socket_of
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

TAKE_SECONDS = 2.0
"""A task waits so long for a store that is being prepared; then it reads all by itself."""

RESTED = 8
"""After a failure a store is left alone for so many versions, and for twice as many each time that it fails again."""

_MOST_ASKED = 4096

_log = logging.getLogger("forebay.agent")


class _Ready:
    """A store that is prepared, or will be, and its arrays where they can be given away."""

    def __init__(self) -> None:
        self.store: UnalignedStore | None = None
        self.shared = SharedArrays()


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
        self._resting: dict[str, tuple[int, int]] = {}
        self._working: str | None = None
        self._socket: Path | None = None
        try:
            SharedArrays().hold({"some": np.zeros(1)})
        except (OSError, AttributeError) as error:
            self._most_bytes = 0
            _log.warning("key indexes are not read ahead, for memory cannot be shared here: %s", error)
        threading.Thread(target=self._work, name="preparing", daemon=True).start()

    def note(self, instance: str, made: Manifest) -> None:
        """A version has come from another host, with all its files. Stores without a picture are opened soon enough."""
        if not self._most_bytes or not pictured(made):
            return
        number = _number(made)
        with self._changed:
            known = self._wanted.get(instance)
            rests_until, _ = self._resting.get(instance, (0, 0))
            newer = known is None or _number(known) <= number
            if newer and number >= rests_until and instance not in self._too_large:
                self._wanted[instance] = made
                self._changed.notify_all()

    def forget(self, instance: str) -> None:
        """A store works on this host, or its replica is not held any more."""
        with self._changed:
            ready = self._ready.pop(instance, None)
            self._wanted.pop(instance, None)
            self._resting.pop(instance, None)
            self._has_left(instance, ready)
            if self._working == instance:
                self._working = None  # what is being prepared is not wanted any more
                self._changed.notify_all()
        if ready:
            ready.shared.close()

    def take(self, instance: str) -> SharedArrays | None:
        """What is prepared of a store, for one process to go on with; None if nothing is."""
        with self._changed:
            self._wanted.pop(instance, None)
            self._changed.wait_for(lambda: self._working != instance, TAKE_SECONDS)
            ready = self._ready.pop(instance, None)
            self._has_left(instance, ready)
        if ready is None or ready.store is None:
            return None
        _log.info("%s is taken as it was in version %s", instance, ready.store.base.version)
        return ready.shared

    # preparing -------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            self._prepare_next()  # what it has had must not outlive it

    def _prepare_next(self) -> None:
        """Wait for a version, and have its store prepared."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted)
            instance = next(iter(self._wanted))
            made = self._wanted.pop(instance)
            self._working, ready = instance, self._ready.pop(instance, None) or _Ready()
        try:
            kept = self._bring(ready, instance, made)
        except Exception as error:  # tasks read by themselves what is not prepared
            kept = False
            self._rest(instance, made)
            _log.warning("%s could not be prepared: %s", instance, error, exc_info=not isinstance(error, ForebayError))
        with self._changed:
            if kept and self._working == instance:
                self._ready[instance] = ready
            else:
                if ready.shared.nbytes:
                    self._too_large &= {instance}  # others may have room now
                ready.shared.close()
            self._working = None
            self._changed.notify_all()

    def _bring(self, ready: _Ready, instance: str, made: Manifest) -> bool:
        """Have a store prepared for a version, or for one shortly before it; whether there is memory for it.

        It is brought to the version before the last one: if Spark runs a micro-batch again, it goes on from there.
        """
        from forebay.store.unaligned import UnalignedStore  # an agent that has no large stores has no use for it

        store = ready.store
        if store is not None and _number(made) - _number(store.base) <= BEHIND and store.leads_to(made):
            return True
        directory = self._holdings.directory(instance)
        version = next((each for each in made.history[:1] if (directory / filenames.manifest(each)).exists()), made.version)
        assert version is not None
        described = {filenames.manifest(version): np.fromfile(directory / filenames.manifest(version), np.uint8)}
        try:
            if ready.store is None or not ready.store.catch_up(version, None, LOCAL):
                ready.store = UnalignedStore(directory, version)
                if not self._has_room(instance, ready.store.index_bytes):  # as far as can be told without reading it
                    return False
            arrays = described | ready.store.prepare()
            if not self._has_room(instance, sum(array.nbytes for array in arrays.values())):
                return False
            ready.store.have(ready.shared.hold(arrays))
        finally:
            if ready.store is not None:
                ready.store.close()
        with self._changed:
            self._resting.pop(instance, None)
        return True

    def _has_left(self, instance: str, ready: _Ready | None) -> None:
        """A store is prepared no more: what had no room may have some, unless nothing has become free."""
        self._too_large.discard(instance)
        if ready is not None:
            self._too_large.clear()

    def _has_room(self, instance: str, size: int) -> bool:
        """Whether there is memory for a key index; if there is none, it is not tried again before some is free."""
        with self._changed:
            size += sum(ready.shared.nbytes for ready in self._ready.values())
            if size <= self._most_bytes:
                return True
            self._too_large.add(instance)
        _log.info("%s is not prepared: all together would be %d bytes, and may be %d", instance, size, self._most_bytes)
        return False

    def _rest(self, instance: str, made: Manifest) -> None:
        with self._changed:
            _, versions = self._resting.get(instance, (0, RESTED // 2))
            self._resting[instance] = _number(made) + 2 * versions, 2 * versions

    # giving ----------------------------------------------------------------------------------------------------------

    def serve(self, application: Application) -> None:
        """Give stores to the tasks of an application on this host, as they ask for them (`prepared_of`)."""
        path = socket_of(self._holdings.root, application.name)
        try:
            LOCAL.make_directory(path.parent)
            path.unlink(missing_ok=True)
            with socket_at(path) as (listening, address):
                listening.bind(address)
                self._socket = path
                listening.listen()
                while True:
                    self._accept(listening, application.secret)
        except OSError as error:
            self._most_bytes = 0
            _log.warning("key indexes are not read ahead, for no task can ask for one: %s", error)

    def withdraw(self) -> None:
        """Leave no socket behind."""
        if self._socket:
            self._socket.unlink(missing_ok=True)

    def _accept(self, listening: socket.socket, secret: str) -> None:
        try:
            connection, _ = listening.accept()
            threading.Thread(target=self._answer, args=(connection, secret), daemon=True).start()
        except (OSError, RuntimeError) as error:  # there are too many descriptors or threads
            _log.warning("a task could not be answered: %s", error)
            time.sleep(1)

    def _answer(self, connection: socket.socket, secret: str) -> None:
        with connection, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            connection.settimeout(TAKE_SECONDS)
            asked = json.loads(connection.recv(_MOST_ASKED))
            if hmac.compare_digest(asked["secret"], secret):
                shared = self.take(asked["instance"])
                if shared:
                    shared.send(connection)


def prepared_of(disk: Path, application: Application, instance: str) -> Prepared | None:
    """What the agent of this host has prepared of a store, for the caller alone; None if it has not, or is not there."""
    try:
        with socket_at(socket_of(disk, application.name)) as (connection, address):
            connection.settimeout(2 * TAKE_SECONDS)
            connection.connect(address)
            connection.send(json.dumps({"secret": application.secret, "instance": instance}).encode())
            parts = receive(connection)
        described = [name for name in parts if filenames.version_of(name)]
        return Prepared(manifests.parse(parts.pop(described[0]).tobytes(), Path(described[0])), parts) if described else None
    except (OSError, ValueError, ForebayError):
        return None


def _number(manifest: Manifest) -> int:
    assert manifest.version is not None
    return manifest.version.number
