"""The replication manager: which hosts keep whose replicas, and how far behind they are (Rhino, sections 3.3 and 4.2.2).

It runs in the driver's process, a service that agents tell twice a second what they hold. Virtual nodes of one state
partition, of all operators of a query, go together: a partition is what a handover moves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forebay.replication import groups
from forebay.replication.copies import Copies, Lag, Replica, behind, is_stuck, newest, uploaders
from forebay.replication.delays import Delay
from forebay.replication.hosts import LOST_SECONDS, Host, Hosts
from forebay.replication.protocol import Service
from forebay.replication.pulls import AT_ONCE
from forebay.replication.queries import ArchivePlace, Queries, Unit
from forebay.replication.units import Units

REPAIR_SECONDS = 15.0
"""After a host was lost, new ones get replicas only then: its partitions come first, and it may come back."""

SETTLING_SECONDS = 60.0
"""Replicas are levelled only so long after a host has joined, or a partition was on its way to one: partitions go first."""

STARTING_SECONDS = 15.0
"""But hosts that come so soon after the first one begin with it, while there is little state."""

_PLANNED_SECONDS = 0.5
_KEPT_VERSIONS, _KEPT_SECONDS = 8, 900.0
"""A host that is not in an instance's group drops it when it is so many versions behind, and has got none for so long: a
handover that was given up is tried again ten minutes later at the latest, and copies only what has changed then. It drops it
sooner if there is so little room on its disk that it could not take as much again."""

_log = logging.getLogger("forebay")


@dataclass(frozen=True)
class Partition:
    """Where a partition's state is.

    Attributes
    ----------
    number : int
        The state partition.
    origin : str
        The host that ran it last; if that is lost, the one that has most of its state.
    bytes : int
        Size of the state.
    replicas : dict
        The hosts of its replica group, and how far each is behind.
    """

    number: int
    origin: str
    bytes: int
    replicas: dict[str, Lag]


class Manager(Service):
    """The replication manager of an application.

    Parameters
    ----------
    host : str
        The address of the driver to listen on.
    secret : str
        The secret of the application.
    replicas : int
        How many hosts a replica group has.
    uploading : bool
        Whether versions go to the checkpoint, too.
    advertised : str, optional
        The address by which hosts reach the driver, if it is another one.
    copying : int
        Bytes in a second that an agent copies at most while no task waits for them.
    """

    def __init__(
        self,
        host: str,
        secret: str,
        replicas: int,
        *,
        uploading: bool = True,
        advertised: str | None = None,
        copying: int = 32 << 20,
    ) -> None:
        super().__init__(host, 0, secret)
        if advertised is not None:
            self.address = f"{advertised}:{self.port}"
        self.replicas, self._uploading, self._copying = replicas, uploading, copying
        self._lock = threading.RLock()
        self._hosts = Hosts()
        self._queries = Queries()
        self._followed = Units(self._queries)
        self._groups: dict[Unit, list[str]] = {}
        self._targets: dict[Unit, list[str]] = {}
        self._origins: dict[Unit, str] = {}
        self._sizes = groups.Sizes[Unit]()
        self._guests: dict[Unit, Counter[str]] = {}
        self._gathering: dict[str, float] = {}
        self._planned = 0.0
        self._repaired, self._settled = Delay(), Delay()
        self._ending: tuple[float, float] | None = None
        self._lost_some = False
        self._warned = False
        self.actions = {"beat": self._beat, "group": self._group, "holders": self._holders, "left": self._left}

    # What the driver asks for.

    def register(self, query: str, partition_of: Callable[[int], int], archive: ArchivePlace | None) -> None:
        """Make a query known: which state partition a virtual node is in, and where its checkpoint keeps state."""
        with self._lock:
            self._queries.register(query, partition_of, archive)

    def retire(self, query: str) -> None:
        """The query with an id has ended. Its replicas are kept for a day: it may be started again."""
        with self._lock:
            self._queries.retire(query)

    def gather(self, query: str, seconds: float) -> None:
        """For so long, or until `gathered`, hosts may hold state of a query that have no agent yet.

        What nobody is known to hold is not taken for gone until then.
        """
        with self._lock:
            self._gathering[query] = time.monotonic() + seconds

    def gathered(self, query: str) -> None:
        """The hosts that there are have agents."""
        with self._lock:
            self._gathering.pop(query, None)

    def hosts(self) -> list[str]:
        """The names of the hosts whose agents are alive."""
        with self._lock:
            self._plan()
            return sorted(host.name for host in self._hosts.values())

    def partitions(self, query: str) -> list[Partition]:
        """Where the partitions of a query are."""
        with self._lock:
            self._plan()
            found = []
            units = self._units()
            for unit in sorted(unit for unit in units if unit[0] == query):
                copies = units[unit]
                origin = copies.origin
                group = [address for address in self._groups.get(unit, []) if address in self._hosts and address != origin]
                lags = {self._hosts[address].name: copies.lag(address) for address in group}
                found.append(Partition(unit[1], self._hosts[origin].name, copies.size, lags))
            return found

    def invite(self, query: str, partition: int, host: str) -> None:
        """Have a host keep a replica of a partition until it is dismissed as often, beside the replica group."""
        with self._lock:
            self._hosts.address_of(host)  # it is known
            self._guests.setdefault((query, partition), Counter())[host] += 1
            self._planned = 0.0

    def dismiss(self, query: str, partition: int, host: str) -> None:
        """Undo `invite`, whether the host is lost by now or not."""
        with self._lock:
            self._guests[query, partition] = self._guests.get((query, partition), Counter()) - Counter([host])
            self._settled.begin(time.monotonic(), SETTLING_SECONDS)
            self._planned = 0.0

    def caught_up(self, query: str, partition: int, host: str) -> bool:
        """Whether a host has the partition's state, but for what the last micro-batch has changed."""
        with self._lock:
            copies = self._units().get((query, partition))
            address = self._hosts.address_of(host)
            return copies is None or address == copies.origin or copies.kept_by(address)

    def missing(self, query: str, partition: int, host: str) -> int:
        """The bytes of the partition's store instances that a host does not have whole yet."""
        with self._lock:
            copies = self._units().get((query, partition))
            return 0 if copies is None else copies.lag(self._hosts.address_of(host)).bytes

    def longest(self, query: str, partition: int, host: str) -> float:
        """The seconds that a host may take for what it is missing of a partition, if nothing else is in the way."""
        return self.missing(query, partition, host) * AT_ONCE / self._copying

    def end(self, seconds: float) -> bool:
        """Have all agents upload what waits and end; whether all that was held is in the checkpoint now."""
        with self._lock:
            now = time.monotonic()
            self._ending, self._lost_some = (now, now + seconds / 2), False
        end = now + seconds
        while time.monotonic() < end:
            with self._lock:
                self._forget_lost()
                if not self._hosts:
                    break
            time.sleep(0.05)
        done = not self._hosts and not self._lost_some
        self.shutdown()
        return done

    def status(self) -> dict[str, Any]:
        """What there is to show of hosts."""
        with self._lock:
            self._plan()
            return {
                host.name: {
                    "bytes": sum(replica.bytes for replica in host.held.values()),
                    "free": host.free,
                    "sent": host.sent,
                    "received": host.received,
                    "uploading": sum(host.uploading.values()),
                }
                for host in self._hosts.values()
            }

    # What agents ask for.

    def _beat(
        self,
        host: str,
        address: str,
        held: dict[str, list[Any]],
        failures: dict[str, str],
        sent: int,
        received: int,
        uploading: dict[str, int],
        free: int,
    ) -> dict[str, Any]:
        now = time.monotonic()
        with self._lock:
            before = self._hosts[address].held if address in self._hosts else {}
            known = {name: Replica.heard(each, before.get(name), now) for name, each in held.items()}
            is_new = self._hosts.tell(Host(host, address, now, known, free, sent, received, uploading))
            if is_new and now > self._hosts.began + STARTING_SECONDS:
                self._settled.begin(now, SETTLING_SECONDS)
            for failed, reason in failures.items():
                self._hosts.fail(failed, reason, now)
            if is_new or failures:
                self._planned = 0.0
            self._plan()
            known_too = {"alive": [*self._hosts], "queries": self._queries.archives(), "ending": self._may_end()}
            return {**self._duties(address), **known_too}

    def _group(self, instance: str, address: str, host: str) -> dict[str, Any]:
        with self._lock:
            now = time.monotonic()
            self._hosts.expect(host, address, now)
            unit = self._queries.unit_of(instance)
            sizes = dict.fromkeys([*self._groups, unit], 0)
            current = self._groups | {unit: self._preferred(unit, self._units().get(unit))}
            origins = self._origins | {unit: address}
            able, keeping = self._hosts.able(), self._hosts.keeping(now)
            chosen = groups.assign(sizes, origins, able, self.replicas, current, keeping=keeping, level=False)
            self._groups.setdefault(unit, chosen[unit])  # so that the next one, which may ask before this tells, gets others
            self._origins.setdefault(unit, address)
            return {"members": chosen[unit]}

    def _holders(self, instance: str) -> dict[str, Any]:
        with self._lock:
            held = {address: host.held[instance] for address, host in self._hosts.items() if instance in host.held}
            order = sorted(held, key=lambda address: (held[address].own, held[address].version.number), reverse=True)
            others = [address for address in self._hosts if address not in held]  # they may have got it just now
            return {
                "addresses": sorted((*order, *others), key=self._hosts.failed),  # which could not take a replica
                "version": str(held[newest(held)].version) if held else None,
                "archive": self._queries.archive_of(instance.partition("/")[0]),
                "more": time.monotonic() < self._gathering.get(instance.partition("/")[0], 0.0),
            }

    def _left(self, address: str, uploading: int) -> None:
        with self._lock:
            self._lost_some = self._lost_some or uploading > 0
            self._forget(address)

    def _may_end(self) -> bool:
        """Whether agents are to end: not while one has something to upload, or may be lost, for others do it then.

        One that cannot upload keeps the others for half of the time that there is.
        """
        if self._ending is None:
            return False
        since, until = self._ending
        done = all(host.seen >= since and not host.uploading for host in self._hosts.values())
        return done or time.monotonic() > until

    # How groups are made.

    def _plan(self) -> None:
        """Make the groups anew, if that was not done just now."""
        now = time.monotonic()
        self._forget_lost()
        if now - self._planned < _PLANNED_SECONDS:
            return
        self._planned = now
        self._forget_queries(now)
        self._hosts.forget_failures(now)
        able, keeping = self._hosts.able(), self._hosts.keeping(now)
        if self._hosts and len(self._hosts) <= self.replicas and not self._warned and now > self._hosts.began + LOST_SECONDS:
            self._warned = True
            _log.warning(
                "spark.forebay.replicas is %d, which needs %d hosts with tasks of this application; it has %d. Until it has "
                "them, %s.",
                self.replicas,
                self.replicas + 1,
                len(self._hosts),
                "versions go to the checkpoint before Spark learns of them"
                if self._uploading
                else "state is lost with those hosts, since spark.forebay.uploadBehind is false",
            )
        units = self._units()
        sizes = self._sizes.take({unit: copies.size for unit, copies in units.items()}, now)
        origins = {unit: copies.origin for unit, copies in units.items()}
        current = {unit: self._preferred(unit, copies) for unit, copies in units.items()}
        self._origins = origins
        level = now >= max(self._repaired.until, self._settled.until) and not keeping and not any(self._guests.values())
        before = self._targets
        self._targets = groups.assign(sizes, origins, able, self.replicas, current, keeping=keeping, level=level)
        if now < self._repaired.until:
            self._targets = {
                unit: [each for each in group if each in current[unit]] for unit, group in self._targets.items()
            }
        for unit, copies in units.items():
            target = self._targets[unit]
            if {*target} - {*before.get(unit, ())}:
                names = ", ".join(self._hosts[each].name for each in target)
                _log.info("replicas of partition %d, which %s runs: %s", unit[1], self._hosts[origins[unit]].name, names)
            guests = [address for address in self._hosts if self._is_invited(unit, address) and address not in target]
            arriving = [address for address in target if not copies.kept_by(address)]
            leaving = [
                address
                for address in self._groups.get(unit, ())
                if arriving and address in self._hosts and address not in (*target, *guests, origins[unit])
            ]
            self._groups[unit] = [*target, *guests, *leaving]

    def _is_invited(self, unit: Unit, address: str) -> bool:
        """Whether a handover has invited a host, which may have another agent by now, with another address."""
        known = {address, self._hosts[address].name} if address in self._hosts else {address}
        return not known.isdisjoint(self._guests.get(unit, ()))

    def _preferred(self, unit: Unit, copies: Copies | None) -> list[str]:
        """Who should be in a group, as far as they can: those that are, and then those that have the state anyway."""
        others = [address for address in self._hosts if copies is not None and copies.kept_by(address)]
        return list(dict.fromkeys([*self._targets.get(unit, ()), *others]))

    def _duties(self, address: str) -> dict[str, Any]:
        """For an agent: the groups of the instances of its host, what it should get, upload, and need not keep."""
        sending: dict[str, list[str]] = {}
        uploading: dict[str, list[str]] = {}
        wanted: list[str] = []
        dropped: list[str] = []
        units, kept = self._units(), time.monotonic() - _KEPT_SECONDS
        concerned = units.of_host(address).union(unit for unit in units if address in self._groups.get(unit, ()))
        for unit in sorted(concerned, key=lambda each: (not self._is_invited(each, address), each)):  # a handover waits
            copies = units[unit]
            origin, group = copies.origin, self._groups.get(unit, [])
            archive = self._queries.archive_of(unit[0])
            served = len(group) >= self.replicas and all(copies.kept_by(each) for each in (origin, *group))
            for name, held in copies.instances.items():
                mine = held.get(address)
                if address == origin == self._origins.get(unit):  # else the groups are of another origin: the agent asks
                    sending[name] = [member for member in group if member != address]
                if archive is not None and address in uploaders(held):
                    uploading[name] = list(archive)
                if address == origin or address in group:
                    if mine is None or not mine.complete or is_stuck(mine, held):
                        wanted.append(name)
                elif (
                    mine is not None
                    and served
                    and behind(mine, held) >= _KEPT_VERSIONS
                    and (mine.since < kept or self._hosts[address].free < copies.size)
                ):
                    dropped.append(name)
        return {"groups": sending, "uploading": uploading, "wanted": wanted, "dropped": dropped}

    def _forget_queries(self, now: float) -> None:
        """Let go of queries that have ended long ago, once all of them is uploaded."""
        self._queries.forget_ended(now, self._hosts.uploading)
        known: tuple[dict[Unit, Any], ...] = (self._groups, self._targets, self._guests)
        for units in known:
            for unit in [unit for unit in units if unit[0] not in self._queries]:
                del units[unit]

    def _forget_lost(self) -> None:
        now = time.monotonic()
        if self._hosts.forget_lost(now):
            self._repaired.begin(now, REPAIR_SECONDS)
            self._lost_some, self._planned = True, 0.0

    def _forget(self, address: str) -> None:
        self._hosts.forget(address)
        self._planned = 0.0

    def _units(self) -> Units:
        """The partitions of the queries that are known, as far as any host holds something of them."""
        self._followed.follow(self._hosts)
        return self._followed
