"""Pulls: what this host lacks of an instance comes from any host that holds it, or from the checkpoint."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow.flight as flight

from forebay.errors import CorruptState, ReplicationError, StateDirectoryError, VersionNotFound
from forebay.replication import chunks
from forebay.replication.holdings import Holdings
from forebay.replication.pace import Pace
from forebay.replication.protocol import Peers
from forebay.replication.uploads import archive_of
from forebay.store import filenames
from forebay.store.filenames import Version
from forebay.store.manifest import Manifest
from forebay.store.segment import SEGMENT_BYTES

FETCH_SECONDS = 60.0
"""How long files may take, and as long as it takes"""
_SLOWEST = 1 << 20
"""at so many bytes in a second, or at the pace of a copy that nobody waits for."""

_TOGETHER = 64 << 20
"""So many bytes are asked for at once: a host whose share of the cores is used up answers late."""

AT_ONCE = 2
"""So many instances are pulled at the same time."""

_log = logging.getLogger("forebay.agent")

Sources = dict[str, Any]
"""What the manager says of an instance: agents that may have it, its newest version, and where it is in the checkpoint."""


class Pulls:
    """Copies of instances under way to this host, and single files that a task waits for.

    Parameters
    ----------
    holdings : Holdings
        Where the files go.
    peers : Peers
        The other agents.
    address : str
        This agent's own address.
    holders : callable
        Asks the manager who holds an instance.
    note : callable
        Is told of each version that has come, with its instance.
    rate : float
        Bytes in a second that all copies together may take.
    """

    def __init__(
        self,
        holdings: Holdings,
        peers: Peers,
        address: str,
        holders: Callable[[str], Sources],
        note: Callable[[str, Manifest], None],
        rate: float,
    ) -> None:
        self._holdings, self._peers, self._address = holdings, peers, address
        self._holders, self._note, self._rate = holders, note, rate / AT_ONCE
        self._lock = threading.Lock()
        self._under_way: set[str] = set()
        self._waiting: list[str] = []
        self._streams: list[tuple[str, flight.FlightStreamReader]] = []
        self._doubted: list[tuple[str, flight.FlightStreamReader]] = []
        self._pool = ThreadPoolExecutor(AT_ONCE, "pull")
        self._ended = False
        self.received = 0
        """Bytes so far."""

    def want(self, instances: Iterable[str]) -> None:
        """Have the newest versions of instances here some time soon, in this order, and before those not named now."""
        order = {instance: place for place, instance in enumerate(instances)}
        with self._lock:
            new = [instance for instance in order if instance not in self._under_way and not self._ended]
            self._under_way.update(new)
            self._waiting = sorted([*self._waiting, *new], key=lambda each: order.get(each, len(order)))
            for _ in new:  # each takes what is first when its turn comes
                self._pool.submit(self._pull_next)

    def _pull_next(self) -> None:
        with self._lock:
            instance = self._waiting.pop(0)
        self._pull(instance)

    def under_way(self) -> set[str]:
        """The instances of which there are copies under way."""
        with self._lock:
            return set(self._under_way)

    def only_from(self, alive: Container[str]) -> None:
        """Wait no more for files of hosts that are lost: a host that is cut off does not end a stream.

        What one reply of the manager says may be older than a stream, so it takes two in a row.
        """
        with self._lock:
            lost = [each for each in self._streams if each[0] not in alive]
            ended, self._doubted = [each for each in lost if each in self._doubted], lost
        for _, stream in ended:
            stream.cancel()

    def end(self) -> None:
        """Copy no more: the application has ended."""
        with self._lock:
            self._ended = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def complete(self, instance: str, names: Iterable[str]) -> None:
        """Have files here that others hold, as far as they do: a task waits for them."""
        here = self._holdings.names(instance)
        missing = dict.fromkeys(name for name in names if name not in here)
        if missing:
            self._get(instance, missing, self._holders(instance))

    def _pull(self, instance: str) -> None:
        """Get the newest version of an instance, and what is new since then, until this host has all there is."""
        began, sizes = time.monotonic(), list[int]()
        try:
            before, most, pace = None, math.inf, Pace(self._rate)
            while True:
                holders = self._holders(instance)
                if holders["version"] in (None, before):
                    if any(sizes):
                        took = time.monotonic() - began
                        _log.info("%s is here in version %s: %s bytes in %.1f s", instance, before, sizes, took)
                    return
                before = holders["version"]
                made, size = self._version(instance, Version.parse(before), holders, pace)
                self._note(instance, made)
                sizes.append(size)
                if size > most / 2:  # as much has changed meanwhile: at this pace it might never end
                    pace = pace.faster()
                most = size
        except Exception as error:  # the next beat tries again
            _log.info("%s is not complete yet: %s", instance, error)
        finally:
            with self._lock:
                self._under_way.discard(instance)

    def _version(self, instance: str, version: Version, holders: Sources, pace: Pace) -> tuple[Manifest, int]:
        """Have a version and those before it here; gives it, and how many bytes were not here."""
        made = self._manifest(instance, version, holders)
        size = self._files(instance, made, holders, pace)
        for earlier in made.history:  # Spark may go back to it
            with contextlib.suppress(VersionNotFound, CorruptState):
                size += self._files(instance, self._manifest(instance, earlier, holders), holders, pace)
        return made, size

    def _manifest(self, instance: str, version: Version, holders: Sources) -> Manifest:
        """The manifest of a version, got again if what is here cannot be read."""
        with contextlib.suppress(VersionNotFound, CorruptState):
            return self._holdings.read(instance, version)
        self._get(instance, {filenames.manifest(version): None}, holders)
        return self._holdings.read(instance, version)

    def _files(self, instance: str, made: Manifest, holders: Sources, pace: Pace) -> int:
        """Get the files of a version that are not here, or not whole; gives their bytes."""
        files = self._holdings.remember(instance, made)
        lacking = self._holdings.lacking(instance, files, self._holdings.names(instance))
        if lacking:
            self._get(instance, lacking, holders, pace)
        return sum(lacking.values())

    def _get(self, instance: str, files: Mapping[str, int | None], holders: Sources, pace: Pace | None = None) -> None:
        """Have files here, names and bytes, in the place of those that are; nothing changes for those that nobody has.

        A host that does not answer is a holder no more.
        """
        lacking = dict(files)
        for address in list(holders["addresses"]):
            if address == self._address:
                continue
            try:
                for together in _cut(lacking):
                    self._get_from(address, instance, together, lacking, pace)
            except ReplicationError as error:
                _log.info("files of %s did not come: %s", instance, error)
                holders["addresses"].remove(address)
            except StateDirectoryError as error:
                _log.info("files of %s could not be kept: %s", instance, error)
        if holders["archive"] is not None:
            archive = archive_of(holders["archive"], instance)
            for name, size in lacking.items():
                self._check(pace)
                with contextlib.suppress(FileNotFoundError):
                    archive.download(name, self._holdings.directory(instance))
                    if pace is not None and size is not None:
                        pace.took(size)

    def _get_from(
        self, address: str, instance: str, names: list[str], lacking: dict[str, int | None], pace: Pace | None
    ) -> None:
        """Have files here that another host holds; those that have come are lacking no more."""
        size = sum(lacking[name] or SEGMENT_BYTES for name in names)
        seconds = FETCH_SECONDS + size / (_SLOWEST if pace is None else min(_SLOWEST, pace.rate))
        peer = self._peers[address]
        peer.call("ping")  # what a host is asked for has much more time than it takes to find that it is silent
        with peer.failing():
            stream = peer.client.do_get(flight.Ticket(json.dumps([instance, names]).encode()), peer.options(seconds))
            with self._lock:
                self._streams.append((address, stream))
            try:
                for name in names:
                    self._check(pace)
                    with contextlib.suppress(chunks.NotHeld):
                        self._receive(stream, instance, name, lacking, pace)
            finally:
                with self._lock:
                    self._streams.remove((address, stream))
                stream.cancel()

    def _receive(
        self, stream: flight.FlightStreamReader, instance: str, name: str, lacking: dict[str, int | None], pace: Pace | None
    ) -> None:
        """Store the file that comes next; one that is not what it should be is left out, for others follow."""
        over = False
        try:
            with self._holdings.receiving(instance, name, lacking[name]) as incoming:
                for data, crc in chunks.received(stream):
                    incoming.write(data)
                    if pace is not None:
                        pace.took(len(data))
                    if crc is not None:
                        over = True
                        incoming.finish(crc)
        except ReplicationError as error:
            if not over:
                raise
            _log.info("%s of %s did not come: %s", name, instance, error)
            return
        del lacking[name]
        with self._lock:
            self.received += incoming.size

    def _check(self, pace: Pace | None) -> None:
        """Go on, unless the application has ended and nobody waits for the copy."""
        if self._ended and pace is not None:
            raise ReplicationError("the application has ended")


def _cut(files: Mapping[str, int | None]) -> Iterator[list[str]]:
    """Files in groups, each of which is asked for at once."""
    group, size = list[str](), 0
    for name, each in list(files.items()):
        group.append(name)
        size += each or SEGMENT_BYTES
        if size >= _TOGETHER:
            yield group
            group, size = [], 0
    if group:
        yield group
