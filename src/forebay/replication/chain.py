"""Files down a chain of hosts: each stores what it gets and passes it on, and the last one's acknowledgement comes back.

This is the distributed replica transfer of the Rhino paper (section 4.2.2), with credit-based flow control: a sender may
have so many chunks under way as the receiver has given it credits, and one comes back when a chunk has been stored and
passed on. So no host holds more than a few chunks in memory, and the slowest one sets the pace.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from forebay.errors import CorruptState, ReplicationError, StateDirectoryError, VersionNotFound
from forebay.replication import chunks
from forebay.replication.holdings import Holdings
from forebay.replication.protocol import Peers
from forebay.store import filenames
from forebay.store.filenames import Version
from forebay.store.manifest import Manifest

IN_STEP_BYTES = 32 << 20
"""A host that lacks no more than this beside the new files of a version gets it along with them."""

CREDITS = 8

_SLOWEST = 4 << 20
"""Bytes per second below which a transfer counts as failed."""
_PATIENCE = 5.0
"""Seconds that any transfer may take, for each host of the chain."""

_log = logging.getLogger("forebay.agent")


@dataclass(frozen=True)
class Offer:
    """Files of one version of a store instance, for the hosts of a chain.

    Attributes
    ----------
    instance : str
        The path of the instance.
    base : Version or None
        The files are those that the version has and this one has not, for hosts that hold this one; all of them if None.
    files : dict of str to int
        Names and bytes, the manifest last.
    most : int
        A host that lacks more bytes than this is behind, and takes nothing.
    chain : list of str
        Addresses of the agents that the receiver passes the files on to.
    """

    instance: str
    base: Version | None
    files: dict[str, int]
    most: int
    chain: list[str] = field(default_factory=list)

    @property
    def version(self) -> Version:
        """The version that the files are of."""
        version = filenames.version_of(list(self.files)[-1]) if self.files else None
        if version is None:
            raise ReplicationError(f"an offer for {self.instance} does not end with a manifest; nothing was taken")
        return version


@dataclass(frozen=True)
class Outcome:
    """What came of an offer, by addresses of agents.

    ``held``: they have all files; ``behind``: they lack too much, or have newer versions; ``baseless``: they do not hold the
    base; ``failed``: why they could not be reached.
    """

    held: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    baseless: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def offers_of(holdings: Holdings, instance: str, made: Manifest) -> list[Offer]:
    """The offers of a version that is held here: of what is new since the one that it was made from, and of all files."""
    files = holdings.remember(instance, made)
    if not made.history:
        return [Offer(instance, None, files, sum(files.values()) + IN_STEP_BYTES)]
    base = made.history[0]
    try:
        before = holdings.files_of(instance, base)
    except (VersionNotFound, CorruptState):  # it is not known what is new
        return [Offer(instance, None, files, IN_STEP_BYTES)]
    new = {name: size for name, size in files.items() if name not in before}
    most = sum(new.values()) + IN_STEP_BYTES
    return [Offer(instance, base, new, most), Offer(instance, None, files, most)]


def send(peers: Peers, holdings: Holdings, offers: Sequence[Offer], chain: Sequence[str]) -> Outcome:
    """Bring a version that this host holds to all hosts of a chain; returns when each has it, or is known not to.

    A host that cannot take it is left out, and the others get it without it. Hosts that do not hold the base of an offer are
    the chain of the next one.
    """
    held: list[str] = []
    behind: list[str] = []
    baseless = list(chain)
    failed: dict[str, str] = {}
    for offer in offers:
        rest, baseless = baseless, []
        while rest:
            outcome = _send(peers, holdings, offer, rest)
            behind += outcome.behind
            baseless += outcome.baseless
            failed |= outcome.failed
            left_out = {*outcome.behind, *outcome.baseless, *outcome.failed}
            if not left_out:
                held += outcome.held
                break
            rest = [address for address in rest if address not in left_out]
    return Outcome(held, behind, baseless, failed)


def _send(peers: Peers, holdings: Holdings, offer: Offer, chain: list[str]) -> Outcome:
    try:
        with _Link(peers, replace(offer, chain=chain[1:]), chain[0]) as link:
            if link.refusing is not None:
                return link.refusing
            for position, name in enumerate(offer.files):
                if position in link.lacking:
                    link.send_file(holdings, offer.instance, name)
            return link.outcome()
    except VersionNotFound:  # this host itself does not have all of it yet
        return Outcome(behind=list(chain))
    except StateDirectoryError as error:
        _log.warning("other hosts get no replica of %s: %s", offer.instance, error)
        return Outcome(behind=list(chain))
    except ReplicationError as error:
        peers.forget(chain[0])
        return Outcome(failed={chain[0]: str(error)})


def receive(
    peers: Peers,
    holdings: Holdings,
    address: str,
    offer: Offer,
    reader: flight.MetadataRecordBatchReader,
    writer: flight.MetadataRecordBatchWriter,
) -> tuple[Manifest, int] | None:
    """The other side: store the files of an offer and pass them on; the version and the bytes that came.

    What was received with a wrong checksum, or not whole, is not there. None if not all files are here in the end: whether
    they are is looked at again, because others remove some, too.
    """
    version, here = offer.version, holdings.names(offer.instance)  # an offer without a version is refused first
    missing = holdings.lacking(offer.instance, offer.files, here)
    refusal = _refusal(holdings, address, offer, version, here, sum(missing.values()))
    if refusal is not None:
        _say(writer, outcome=asdict(refusal))
        return None
    with contextlib.ExitStack() as stack:
        link: _Link | None = None
        following = offer.chain[0] if offer.chain else ""
        try:
            if following:
                link = stack.enter_context(_Link(peers, replace(offer, chain=offer.chain[1:]), following))
        except ReplicationError as error:
            peers.forget(following)
            _say(writer, outcome=asdict(Outcome(failed={following: str(error)})))
            return None
        if link is not None and link.refusing is not None:
            _say(writer, outcome=asdict(link.refusing))
            return None
        lacking = {position for position, name in enumerate(offer.files) if name in missing}
        _say(writer, lacking=sorted(lacking), credits=CREDITS)
        outcome = Outcome()
        try:
            _store(holdings, offer, lacking, reader, writer, link)
            if link is not None:
                outcome = link.outcome()
        except _Broken as error:
            peers.forget(following)
            outcome = Outcome(failed={following: str(error)})
        made = _whole(holdings, offer)
        if made:
            outcome = replace(outcome, held=[address, *outcome.held])
        else:
            outcome = replace(outcome, behind=[address, *outcome.behind])
        _say(writer, outcome=asdict(outcome))
    return (made, sum(missing.values())) if made else None


def _refusal(
    holdings: Holdings, address: str, offer: Offer, version: Version, here: AbstractSet[str], size: int
) -> Outcome | None:
    """Why a host that has the files ``here``, and lacks ``size`` bytes of those offered, takes none; None if it does."""
    newest = filenames.newest(here)
    if newest is not None and newest.number > version.number:
        _log.warning("version %s of %s was overtaken by %s: a newer run goes on", version, offer.instance, newest)
        return Outcome(behind=[address])
    if offer.base is not None and not holdings.holds(offer.instance, offer.base, here):
        return Outcome(baseless=[address])
    return Outcome(behind=[address]) if size > offer.most else None


def refuse(reader: flight.MetadataRecordBatchReader, writer: flight.MetadataRecordBatchWriter, reason: str) -> None:
    """Tell the sender why nothing more is stored, and take what it sends until it hears that.

    A sender whose writing fails does not get to read what was said before.
    """
    _say(writer, refused=reason)
    with contextlib.suppress(StopIteration, pa.ArrowException, OSError):
        while True:
            reader.read_chunk()


def _whole(holdings: Holdings, offer: Offer) -> Manifest | None:
    """The version that was offered, if all of its files are here."""
    try:
        made = holdings.read(offer.instance, offer.version)
        files = holdings.remember(offer.instance, made)
    except (VersionNotFound, CorruptState):
        return None
    return None if holdings.lacking(offer.instance, files, holdings.names(offer.instance)) else made


def _store(
    holdings: Holdings,
    offer: Offer,
    lacking: set[int],
    reader: flight.MetadataRecordBatchReader,
    writer: flight.MetadataRecordBatchWriter,
    link: _Link | None,
) -> None:
    """Store the files that are lacking here as they come, and pass on those that the next host lacks."""
    broken: _Broken | None = None
    for position, name in enumerate(offer.files):
        passing = link if link is not None and position in link.lacking and broken is None else None
        try:
            if position not in lacking:
                if passing is not None:
                    passing.pass_on(holdings, offer.instance, name)
                continue
            with holdings.receiving(offer.instance, name, offer.files[name]) as incoming:
                for data, crc in chunks.received(reader):
                    incoming.write(data)
                    if passing is not None:
                        try:
                            passing.send(data, crc)
                        except _Broken as error:  # this host goes on
                            broken, passing = error, None
                    if crc is not None:
                        incoming.finish(crc)
                    _say(writer, credits=1)
        except _Broken as error:
            broken = error
    if broken is not None:
        raise broken


class _Broken(ReplicationError):
    """The next host of the chain cannot be sent to any more."""


class _Link:
    """An offer under way to one host."""

    def __init__(self, peers: Peers, offer: Offer, address: str) -> None:
        self._peer = peers[address]
        self._credits, self.lacking = 0, set[int]()
        self.refusing: Outcome | None = None
        self._outcome: Outcome | None = None
        most = min(offer.most, sum(offer.files.values()))
        patience = (_PATIENCE + most / _SLOWEST) * (1 + len(offer.chain))
        described = flight.FlightDescriptor.for_command(json.dumps(vars(offer), default=str).encode())
        with self._peer.failing():
            self._writer, self._reader = self._peer.client.do_exchange(described, self._peer.options(patience))
        self._begun = False
        try:
            self._hear()
        except BaseException:
            self._close()
            raise
        if self._outcome is not None:
            self.refusing = self._outcome

    def __enter__(self) -> _Link:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def send_file(self, holdings: Holdings, instance: str, name: str) -> None:
        """Send a file that this host holds; `VersionNotFound` if it does not hold it any more."""
        try:
            data = chunks.mapped(holdings.path(instance, name))
        except FileNotFoundError as error:
            raise VersionNotFound(f"{name} of {instance} is not held here any more") from error
        for chunk, crc in chunks.cut(data):
            self.send(chunk, crc)

    def pass_on(self, holdings: Holdings, instance: str, name: str) -> None:
        """Send a file that this host holds, where it is one of a chain and takes the others in any case."""
        try:
            self.send_file(holdings, instance, name)
        except (VersionNotFound, StateDirectoryError) as error:
            raise _Broken(str(error)) from error

    def send(self, data: memoryview, crc: int | None) -> None:
        """Send a chunk, as soon as there is a credit; with the file's checksum if it is the last one."""
        try:
            while not self._credits:
                self._hear()
            batch, said = chunks.wrapped(data, crc=crc)
            with self._peer.failing():
                if not self._begun:
                    self._writer.begin(chunks.SCHEMA)
                    self._begun = True
                self._writer.write_with_metadata(batch, said)
        except ReplicationError as error:
            raise _Broken(str(error)) from error
        self._credits -= 1

    def outcome(self) -> Outcome:
        """What came of it, when all that is lacking was sent."""
        try:
            with self._peer.failing():
                self._writer.done_writing()
            while self._outcome is None:
                self._hear()
        except ReplicationError as error:
            raise _Broken(str(error)) from error
        return self._outcome

    def _hear(self) -> None:
        with self._peer.failing():
            said: dict[str, Any] = json.loads(self._reader.read_chunk().app_metadata.to_pybytes())
        if "refused" in said:
            raise ReplicationError(str(said["refused"]))
        self._credits += said.get("credits", 0)
        self.lacking |= set(said.get("lacking", ()))
        if "outcome" in said:
            self._outcome = Outcome(**said["outcome"])

    def _close(self) -> None:
        try:
            with self._peer.failing():
                self._writer.close()
        except ReplicationError:
            pass  # what matters was said before, or was found out by those who waited for it


def offer_of(command: bytes) -> Offer:
    """The offer in a descriptor; `ReplicationError` if it is none."""
    try:
        said = json.loads(command)
        base = said["base"] and Version.parse(said["base"])
        return Offer(**{**said, "base": base, "files": {str(name): int(size) for name, size in said["files"].items()}})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ReplicationError(f"an offer cannot be understood ({error}); are all hosts on one forebay release?") from error


def _say(writer: flight.MetadataRecordBatchWriter, **what: Any) -> None:
    writer.write_metadata(pa.py_buffer(json.dumps(what).encode()))
