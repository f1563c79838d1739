"""The hosts of an application as its replication manager knows them: what their agents tell, and which can take replicas."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from forebay.errors import ReplicationError
from forebay.replication.copies import Replica
from forebay.replication.protocol import AVOIDED_SECONDS

LOST_SECONDS = 5.0
"""A host whose agent has said nothing for so long is lost."""

SHUNNED_SECONDS = 25.0
"""A host that could not take a version gets no new replicas for so long. In that time hosts try it once more."""

PATIENT_SECONDS, TRIES = 30.0, 3
"""It loses those that it keeps after so long, if it could not take another version meanwhile, or when it could not take so
many of them, one after the other: commits may be minutes apart. Then it is shunned for twice as long, and up to"""
MOST_DOUBLED = 4
"""so often twice as long."""

APART_SECONDS = 150.0
"""Versions that it could not take at times that are further apart are not one after the other."""

LEAST_FREE = 64 << 20
"""A host with less free disk gets no more replicas."""

_PAUSE_SECONDS = 2.0
"""Longer than it takes until some agent tells something again."""

_log = logging.getLogger("forebay")


@dataclass
class Host:
    """A host as its agent has described it last; ``uploading`` says how many instances of each query are to be uploaded."""

    name: str
    address: str
    seen: float
    held: dict[str, Replica] = field(default_factory=dict)
    free: int = 1 << 62
    sent: int = 0
    received: int = 0
    uploading: dict[str, int] = field(default_factory=dict)


class Hosts(Mapping[str, Host]):
    """Hosts whose agents are alive, by the addresses of these.

    Attributes
    ----------
    began : float
        When the first one was heard of; infinity before.
    """

    def __init__(self) -> None:
        self._known: dict[str, Host] = {}
        self._failures: dict[str, tuple[float, float]] = {}
        """Of hosts that could not take a version: since when, and until when that counts."""
        self._tries: dict[str, tuple[int, float]] = {}
        """How many versions a host could not take, and when that was last."""
        self._looked = self._heard = 0.0
        self.began = float("inf")

    def __getitem__(self, address: str) -> Host:
        return self._known[address]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def uploading(self) -> set[str]:
        """The queries of which one has something that the checkpoint does not have yet."""
        return {query for host in self.values() for query in host.uploading}

    def address_of(self, host: str) -> str:
        """The address of a host's agent, by the host's name or by that address; `ReplicationError` if it has none."""
        for address, known in self.items():
            if host in (known.name, address):
                return address
        names = ", ".join(sorted(known.name for known in self.values()))
        raise ReplicationError(f"no agent is known on the host {host}; there are agents on {names or 'no host'}")

    def tell(self, told: Host) -> bool:
        """An agent has told how its host is; whether it is a new agent.

        A host counts once, whatever has become of its agent before.
        """
        self.began = min(self.began, told.seen)
        is_new = told.address not in self
        if is_new:
            _log.info("the host %s keeps replicas now", told.name)
            for other in [address for address, there in self.items() if there.name == told.name]:
                self.forget(other)
        self._known[told.address] = told
        return is_new

    def expect(self, name: str, address: str, now: float) -> None:
        """A task has an agent on a host that may not have told anything yet."""
        if address not in self and all(there.name != name for there in self.values()):
            self._known[address] = Host(name, address, now)

    def fail(self, address: str, reason: str, now: float) -> None:
        """A host could not take a version."""
        if address in self and address not in self._failures:
            _log.warning("the host %s gets no new replicas for a while: %s", self[address].name, reason)
        since, _ = self._failures.get(address, (now, now))
        if since == now or now - since >= AVOIDED_SECONDS:  # what fails meanwhile had begun before
            tries, last = self._tries.get(address, (0, now - AVOIDED_SECONDS))
            tries = min(tries + 1, TRIES - 1 + MOST_DOUBLED) if now - last >= AVOIDED_SECONDS else tries
            self._failures[address] = since, now + SHUNNED_SECONDS * 2 ** max(0, tries - TRIES + 1)
            self._tries[address] = tries, now

    def failed(self, address: str) -> bool:
        """Whether a host could not take a version of late."""
        return address in self._failures

    def forget(self, address: str) -> None:
        """A host is lost, or its agent: it may have another one soon."""
        self._known.pop(address, None)

    def forget_lost(self, now: float) -> bool:
        """Forget hosts that have been silent for too long; whether there were some."""
        if now - self._looked > _PAUSE_SECONDS:  # this process has stood still: what agents have told waits to be heard
            self._heard = now
        self._looked = now
        silent = [address for address, host in self.items() if now - max(host.seen, self._heard) > LOST_SECONDS]
        for address in silent:
            _log.warning("the agent of the host %s is silent: the host is taken for lost", self[address].name)
            self.forget(address)
        return bool(silent)

    def forget_failures(self, now: float) -> None:
        """Forget what was long enough ago."""
        self._failures = {address: times for address, times in self._failures.items() if times[1] > now}
        self._tries = {
            address: tries
            for address, tries in self._tries.items()
            if address in self._failures or now - tries[1] < APART_SECONDS
        }

    def able(self) -> list[str]:
        """Agents that can take replicas."""
        return [address for address in self._roomy() if not self.failed(address)]

    def keeping(self, now: float) -> list[str]:
        """Agents that could not take a version of late, and have not been given up."""
        patient = [
            address
            for address, (since, _) in self._failures.items()
            if now < since + PATIENT_SECONDS and self._tries[address][0] < TRIES
        ]
        return [address for address in self._roomy() if address in patient]

    def _roomy(self) -> list[str]:
        return [address for address, host in self.items() if host.free >= LEAST_FREE]
