"""The partitions of all queries and who holds what of them, as agents tell it, at the cost of what has changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forebay.replication.copies import Copies, Holders, Replica
from forebay.replication.hosts import Hosts
from forebay.replication.queries import Queries, Unit


class Units(Mapping[Unit, Copies]):
    """The partitions of the queries that are known, as far as any host holds something of them.

    Parameters
    ----------
    queries : Queries
        The queries that are known.
    """

    def __init__(self, queries: Queries) -> None:
        self._queries, self._known = queries, -1
        self._told: dict[str, Mapping[str, Replica]] = {}
        self._instances: dict[Unit, dict[str, Holders]] = {}
        self._copies: dict[Unit, Copies] = {}

    def __getitem__(self, unit: Unit) -> Copies:
        return self._copies[unit]

    def __iter__(self) -> Iterator[Unit]:
        return iter(self._copies)

    def __len__(self) -> int:
        return len(self._copies)

    def follow(self, hosts: Hosts) -> None:
        """Take what agents have told since the last time, and which hosts are gone."""
        if self._known != self._queries.changes:  # partitions may have other numbers
            self._known = self._queries.changes
            self._told, self._instances, self._copies = {}, {}, {}
        changed: set[Unit] = set()
        for address in [*self._told.keys() - hosts.keys(), *hosts]:
            before, held = self._told.get(address, {}), hosts[address].held if address in hosts else {}
            if before is not held:
                names = [name for name in {**before, **held} if before.get(name) is not held.get(name)]
                changed.update(self._put(name, address, held.get(name)) for name in names if self._is_known(name))
                self._told[address] = held
        for unit in changed:
            if self._instances[unit]:
                self._copies[unit] = Copies(self._instances[unit])
            else:
                del self._instances[unit]
                self._copies.pop(unit, None)
        for address in self._told.keys() - hosts.keys():
            del self._told[address]

    def of_host(self, address: str) -> set[Unit]:
        """The partitions of which a host holds something."""
        return {self._queries.unit_of(name) for name in self._told.get(address, {}) if self._is_known(name)}

    def _is_known(self, instance: str) -> bool:
        return instance.partition("/")[0] in self._queries

    def _put(self, instance: str, address: str, replica: Replica | None) -> Unit:
        """A host holds another version of an instance, or nothing of it any more; gives its partition."""
        unit = self._queries.unit_of(instance)
        holders = self._instances.setdefault(unit, {}).setdefault(instance, {})
        if replica is not None:
            holders[address] = replica
        else:
            del holders[address]
            if not holders:
                del self._instances[unit][instance]
        return unit
