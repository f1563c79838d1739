"""The copies of a partition's state: which host has what of it, which one runs it, and how far the others are behind."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from forebay.store.filenames import Version

STUCK_SECONDS = 3.0
"""A replica that does not advance for so long, though there is a newer version, has missed it."""

IN_STEP = 4
"""A replica that is complete, and so few versions behind, keeps up: hosts tell what they hold at different times."""


@dataclass(frozen=True)
class Held:
    """What a host holds of an instance.

    Attributes
    ----------
    version : Version
        The newest version of which it has the manifest.
    bytes : int
        Size of that version's files.
    batch : int
        The micro-batch that made it, -1 if none did.
    own : bool
        Whether it was committed on this host.
    complete : bool
        Whether all its files are here.
    """

    version: Version
    bytes: int
    batch: int
    own: bool
    complete: bool

    def said(self) -> list[Any]:
        """It, as an agent says it to the replication manager; see `Replica.heard`."""
        return [str(self.version), self.bytes, self.batch, self.own, self.complete]


@dataclass(frozen=True)
class Replica(Held):
    """What a host holds of an instance, and since when it is known to hold that version."""

    since: float

    @classmethod
    def heard(cls, said: list[Any], before: Replica | None, now: float) -> Replica:
        """What an agent has said; the same object as before if it is the same."""
        version, size, batch, own, complete = said
        if before is None or str(before.version) != version:
            return cls(Version.parse(version), size, batch, own, complete, now)
        found = cls(before.version, size, batch, own, complete, before.since)
        return before if found == before else found


Holders = dict[str, Replica]
"""What there is of an instance, by the addresses of the agents that hold it."""


@dataclass(frozen=True)
class Lag:
    """How far a host is behind with a partition: in versions of the instance that is furthest behind, and in bytes of all.

    ``complete`` says whether it holds all files of the versions that it has.
    """

    versions: int
    bytes: int
    complete: bool


@dataclass(frozen=True)
class Copies:
    """The instances of a partition, of which there is at least one, with what each host holds of them.

    What is found out of them is kept: when something changes there is another object.
    """

    instances: dict[str, Holders]
    _lags: dict[str, Lag] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def origin(self) -> str:
        """The agent of the host that ran a partition last, or if that is lost, of the one that has most of its state."""
        replicas = [(replica, address) for held in self.instances.values() for address, replica in held.items()]
        last = max(replica.batch for replica, _ in replicas)
        return max((r.own and r.batch >= last - IN_STEP, r.batch, r.version.number, address) for r, address in replicas)[-1]

    @cached_property
    def size(self) -> int:
        """Bytes of state."""
        return sum(max(replica.bytes for replica in held.values()) for held in self.instances.values())

    def lag(self, address: str) -> Lag:
        """How far an agent is behind."""
        if address not in self._lags:
            mine = [(held.get(address), held) for held in self.instances.values()]
            self._lags[address] = Lag(
                versions=max(behind(replica, held) for replica, held in mine),
                bytes=sum(held[newest(held)].bytes for replica, held in mine if not (replica and replica.complete)),
                complete=all(replica is not None and replica.complete for replica, _ in mine),
            )
        return self._lags[address]

    @cached_property
    def _holders(self) -> set[str]:
        """The agents that hold something."""
        return {address for held in self.instances.values() for address in held}

    def kept_by(self, address: str) -> bool:
        """Whether an agent keeps up: it has all but what the last micro-batches have changed."""
        if address not in self._holders:
            return False
        lag = self.lag(address)
        return lag.complete and lag.versions <= IN_STEP


def newest(held: Holders) -> str:
    """Who has the newest version of an instance; of several, who has made it."""
    return max(held, key=lambda address: (held[address].version.number, held[address].own))


def uploaders(held: Holders) -> set[str]:
    """Who upload an instance: one who has all files of each version that may be the newest.

    Several attempts at a task make versions with the same number, and which one counts is not known here. If only hosts with
    replicas have told of the newest version, it is nobody for now: the host that made it will tell of it, and uploads it.
    """
    whole = {address: replica for address, replica in held.items() if replica.complete}
    last = max((replica.version.number for replica in whole.values()), default=0)
    by_version: dict[Version, Holders] = {}
    for address, replica in whole.items():
        if replica.version.number == last:
            by_version.setdefault(replica.version, {})[address] = replica
    chosen = {newest(holders) for holders in by_version.values()}
    if any(each.own and 0 < behind(each, held) <= IN_STEP and not is_stuck(each, held) for each in whole.values()):
        return {address for address in chosen if held[address].own}
    return chosen


def behind(mine: Replica | None, held: Holders) -> int:
    """By how many versions a replica, or a host without one, is behind."""
    return held[newest(held)].version.number - (mine.version.number if mine else 0)


def is_stuck(mine: Replica, held: Holders) -> bool:
    """Whether a host has missed a version, and not only not said yet that it has it.

    That one version is newer says so when it has been known for as long: it may be the first for some time.
    """
    missed, until = behind(mine, held), time.monotonic() - STUCK_SECONDS
    return missed > 0 and mine.since < until and (missed > 1 or held[newest(held)].since < until)
