"""The agent: one process per host and application that holds, sends, receives and serves files of state.

The first task of a host starts it (`forebay.replication.local`), and it ends when the application has. Together the
agents are the distributed runtime of the Rhino paper (section 3.3).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow.flight as flight

from forebay.errors import CorruptState, ForebayError, ReplicationError, StateDirectoryError, VersionNotFound
from forebay.replication import chain, chunks, local
from forebay.replication.application import Application
from forebay.replication.copies import Held
from forebay.replication.holdings import KEPT_SECONDS, Holdings
from forebay.replication.inventory import Inventory
from forebay.replication.preparations import Preparations
from forebay.replication.protocol import AVOIDED_SECONDS, Peers, Service
from forebay.replication.pulls import Pulls
from forebay.replication.uploads import Uploads
from forebay.store import filenames
from forebay.store import manifest as manifests
from forebay.store.manifest import Manifest

BEAT_SECONDS = 0.5
"""An agent tells the manager so often what it holds."""

ORPHANED_SECONDS = 60.0
"""An agent that has not reached its manager for so long takes the application for ended."""

SETTLING_SECONDS = 20.0
"""A task is answered after so long, though its version is not safe yet: it asks again, so it notices an agent that hangs."""

LOG_BYTES = 16 << 20

_log = logging.getLogger("forebay.agent")


class Agent(Service):
    """The agent of a host.

    Parameters
    ----------
    host : str
        The host's own address.
    root : Path
        The directory that has what it holds.
    application : Application
        Whom it works for.
    """

    def __init__(self, host: str, root: Path, application: Application) -> None:
        super().__init__(host, application.port, application.secret)
        self.host, self._application = host, application
        self._holdings = Holdings(root)
        self._peers = Peers(application.secret)
        self._pulls = Pulls(self._holdings, self._peers, self.address, self._holders, self._pulled, application.copying)
        self._uploads = Uploads(self._holdings, self._pulls.complete)
        self.preparations = Preparations(self._holdings)
        self.inventory = Inventory(self._holdings, self._pulls, self._uploads, self.preparations)
        self._lock = threading.Lock()
        self._chores: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._queries: dict[str, list[str] | None] = {}
        self._told: dict[str, Held] = {}
        self._groups: dict[str, list[str]] = {}
        self._failures: dict[str, str] = {}
        self._avoided: dict[str, float] = {}
        self._sent = self._received = 0
        self.actions = {"commit": self._commit, "settle": self._settle, "fetch": self._fetch, "ping": dict}

    def run(self) -> None:
        """Tell the manager what is held until the application has ended and all is uploaded."""
        reached, tidied = time.monotonic(), float("-inf")
        threading.Thread(target=self._do_chores, name="chores", daemon=True).start()
        threading.Thread(target=self.preparations.serve, args=(self._application,), name="giving", daemon=True).start()
        draining: threading.Thread | None = None
        while draining is None or draining.is_alive():
            try:
                reply = self._manager("beat", **self._beat())
                reached = time.monotonic()
                self._follow(reply)
                ending = reply["ending"]
            except Exception as error:  # an agent that ends takes replicas with it
                ending = time.monotonic() - reached > ORPHANED_SECONDS
                _log.log(logging.WARNING if ending else logging.INFO, "the manager cannot be told what is held: %s", error)
                if ending and draining is None:
                    self._upload_all()
            if ending and draining is None:
                draining = threading.Thread(target=self._uploads.drain, daemon=True)
                draining.start()
                self._pulls.end()
            if self._queries and time.monotonic() - tidied > KEPT_SECONDS / 24:
                tidied = time.monotonic()
                self._chores.put(self._tidy)
            time.sleep(BEAT_SECONDS)
        with contextlib.suppress(ReplicationError):  # a manager that is gone does not wait for anybody
            self._manager("left", address=self.address, uploading=self._uploads.pending.total())
        self.preparations.withdraw()
        self.shutdown()

    # What tasks of this host ask for.

    def _commit(self, instance: str, directory: str, manifest: str, archive: list[str] | None) -> dict[str, Any]:
        """Take the new files of a version that a task of this host has made, and say whether they are safe.

        They are when so many other hosts have them as the application wants, or when the checkpoint has: that may take long,
        and is asked for again by `_settle`.
        """
        version = filenames.version_of(manifest)
        if version is None:
            raise ReplicationError(f"{manifest!r} is not the name of a manifest; nothing was taken")
        made = manifests.read(Path(directory), version)
        with self.inventory.arriving(instance):
            outcome = self._replicate(instance, Path(directory), made)
        enough = len(outcome.held) >= self._application.replicas
        if archive is not None:
            self._uploads.wish(instance, version, (archive[0], archive[1]))
            return {"safe": enough or self._uploads.wait(instance, version, SETTLING_SECONDS)}
        if not enough:
            _log.warning("version %s of %s is on %d hosts beside this one", version, instance, len(outcome.held))
        return {"safe": True}

    def _settle(self, instance: str, manifest: str) -> dict[str, Any]:
        """Whether the checkpoint has a version that was taken, as soon as it has, or after some time."""
        version = filenames.version_of(manifest)
        assert version is not None
        return {"safe": self._uploads.wait(instance, version, SETTLING_SECONDS)}

    def _replicate(self, instance: str, directory: Path, made: Manifest) -> chain.Outcome:
        """Have a version here, and on the hosts that keep replicas of the instance, as far as they can."""
        self._take(instance, directory, made)
        offers = chain.offers_of(self._holdings, instance, made)
        outcome = chain.send(self._peers, self._holdings, offers, self._group(instance))
        with self._lock:
            self._sent += sum(offers[0].files.values()) * len(outcome.held)
            self._failures |= outcome.failed
            self._avoided |= dict.fromkeys(outcome.failed, time.monotonic() + AVOIDED_SECONDS)
        self.inventory.note(instance, made, own=True)
        for address in outcome.behind:
            _log.info("%s does not keep up with %s", address, instance)
        for address, reason in outcome.failed.items():
            _log.warning("%s takes no replica of %s: %s", address, instance, reason)
        return outcome

    def _take(self, instance: str, directory: Path, made: Manifest) -> None:
        """Link the files of a version, and of those that it keeps beside it."""
        here = self._holdings.names(instance)
        for earlier in made.history:
            if filenames.manifest(earlier) not in here:
                with contextlib.suppress(VersionNotFound, CorruptState, StateDirectoryError):
                    kept = manifests.read(directory, earlier)
                    self._holdings.link(instance, directory, [*kept.segments, filenames.manifest(earlier)])
        assert made.version is not None
        new = [name for name in (*made.segments, filenames.manifest(made.version)) if name not in here]
        self._holdings.link(instance, directory, new)

    def _fetch(self, instance: str, name: str) -> dict[str, Any]:
        """Get a file from whichever host holds it; whether it is here now. The task may have removed a damaged one."""
        self.inventory.look(instance)
        while True:
            more = self._holders(instance)["more"]
            self._pulls.complete(instance, [name])
            found = self._holdings.path(instance, name).exists()
            if found or not more:
                return {"found": found}
            time.sleep(BEAT_SECONDS)  # who holds it may have no agent yet

    # What other agents ask for.

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """Receive the files of an `Offer`."""
        del context
        try:
            offer = chain.offer_of(descriptor.command)
            with self.inventory.arriving(offer.instance):
                received = chain.receive(self._peers, self._holdings, self.address, offer, reader, writer)
                if received is not None:
                    made, size = received
                    with self._lock:
                        self._received += size
                    self.inventory.note(offer.instance, made, own=False)
        except ForebayError as error:
            _log.warning("%s", error)
            chain.refuse(reader, writer, str(error))

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """Serve files of an instance, one after the other."""
        del context
        try:
            instance, names = json.loads(ticket.ticket)
            paths = [self._holdings.path(instance, name) for name in names]
        except (TypeError, ValueError, ForebayError) as error:
            raise flight.FlightServerError(f"it cannot be told what is wanted: {error}") from error
        return flight.GeneratorStream(chunks.SCHEMA, chunks.pieces(paths))

    # What it tells the manager, and what it does then.

    def _beat(self) -> dict[str, Any]:
        self._told = self.inventory.held()
        held = {instance: each.said() for instance, each in self._told.items()}
        with self._lock:
            failures, self._failures = self._failures, {}
            sent, received = self._sent, self._received + self._pulls.received
        return {
            "host": self.host,
            "address": self.address,
            "held": held,
            "failures": failures,
            "sent": sent,
            "received": received,
            "uploading": self._uploads.pending,
            "free": _free_bytes(self._holdings.root),
        }

    def _follow(self, reply: dict[str, Any]) -> None:
        """Take the replica groups; upload, pull and drop what the manager says."""
        for query in reply["queries"].keys() - self._queries:
            self._chores.put(functools.partial(self.inventory.find, query))
        for query in self._queries.keys() - reply["queries"]:
            self._chores.put(functools.partial(self.inventory.leave, query))
        self._queries = reply["queries"]
        self._pulls.only_from(reply["alive"])
        self._pulls.want(reply["wanted"])
        for instance in reply["dropped"]:
            self._chores.put(functools.partial(self.inventory.drop, instance, self._told.get(instance)))
        with self._lock:
            self._groups = reply["groups"]
        self.inventory.upload({instance: (place[0], place[1]) for instance, place in reply["uploading"].items()})

    def _upload_all(self) -> None:
        """Have all that is held whole uploaded: with the manager others may be lost that would have done so."""
        places = {each: self._queries.get(each.partition("/")[0]) for each in self.inventory.held()}
        self.inventory.upload({each: (place[0], place[1]) for each, place in places.items() if place is not None})

    def _do_chores(self) -> None:
        """Do what looks at the disk for long, one thing after the other."""
        while True:
            chore = self._chores.get()
            try:
                chore()
            except Exception:  # the manager says again what is to be dropped, and the disk is swept in an hour
                _log.exception("the agent could not tidy up")

    def _tidy(self) -> None:
        """Remove what nobody uses; by now all that there is of the queries is held."""
        self._holdings.touch(list(self.inventory.held()))
        self._holdings.sweep()
        local.sweep(self._holdings.root)

    def _pulled(self, instance: str, made: Manifest) -> None:
        self.inventory.note(instance, made, own=False)

    def _holders(self, instance: str) -> dict[str, Any]:
        return self._manager("holders", instance=instance)

    def _manager(self, action: str, **arguments: Any) -> dict[str, Any]:
        try:
            return self._peers[self._application.manager].call(action, **arguments)
        except ReplicationError:
            self._peers.forget(self._application.manager)
            raise

    def _group(self, instance: str) -> list[str]:
        """The agents that keep replicas of an instance."""
        with self._lock:
            group = self._groups.get(instance)
        if group is None:
            try:
                group = self._manager("group", instance=instance, address=self.address, host=self.host)["members"]
            except ReplicationError as error:
                _log.warning("it is not known who keeps replicas of %s: %s", instance, error)
                return []
            with self._lock:
                self._groups.setdefault(instance, group)
        now = time.monotonic()
        return [address for address in group if address != self.address and self._avoided.get(address, now) <= now]


def _free_bytes(root: Path) -> int:
    while not root.exists():
        root = root.parent
    return shutil.disk_usage(root).free


def main() -> None:
    """Run the agent that the JSON on standard input describes; its own address goes to the file named there."""
    said = json.loads(sys.stdin.read())
    alive = os.open(said["alive"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(alive, fcntl.LOCK_EX)  # until this process ends: there is one agent for a host and an application
    log = RotatingFileHandler(said["log"], maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    logging.basicConfig(handlers=[log], level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        agent = Agent(said["host"], Path(said["root"]), Application(**said["application"]))
    except ForebayError as error:
        _publish(Path(said["found"]), {"error": str(error)})
        raise
    _publish(Path(said["found"]), {"address": agent.address, "pid": os.getpid()})
    _log.info("the agent of %s listens at %s", said["application"]["name"], agent.address)
    try:
        agent.run()
    finally:
        with contextlib.suppress(OSError):
            Path(said["found"]).unlink()
    _log.info("the agent ends")


def _publish(path: Path, found: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(found))
    temporary.replace(path)


if __name__ == "__main__":
    main()
