"""The queries of an application as its replication manager knows them."""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from dataclasses import dataclass, replace

from forebay.replication.holdings import KEPT_SECONDS
from forebay.store.filenames import vnode_of

Unit = tuple[str, int]
"""A state partition: the directory of its query among what agents hold, and its number."""

ArchivePlace = tuple[str, str]
"""Where a query's archive is, which its checkpoint has: a location, and the part of it that has the state."""


@dataclass(frozen=True)
class _Query:
    partition_of: Callable[[int], int]
    archive: ArchivePlace | None
    ended: float = float("inf")


class Queries:
    """Which queries there are, where their checkpoints keep state, and which partitions their virtual nodes are in."""

    def __init__(self) -> None:
        self._known: dict[str, _Query] = {}
        self._units: dict[str, Unit] = {}
        self.changes = 0
        """How often others became known."""

    def __contains__(self, query: str) -> bool:
        return query in self._known

    def register(self, query: str, partition_of: Callable[[int], int], archive: ArchivePlace | None) -> None:
        """Know a query that runs from now on."""
        self._known[query] = _Query(partition_of, archive)
        self._have_changed()

    def retire(self, query: str) -> None:
        """The query with an id has ended; its name has the checkpoint's place beside the id."""
        for name, known in self._known.items():
            if name.startswith(f"{query}-"):
                self._known[name] = replace(known, ended=time.monotonic())

    def forget_ended(self, now: float, uploading: Container[str]) -> None:
        """Let go of queries that have ended long ago and whose checkpoints have what agents hold, but for those named."""
        gone = [
            name
            for name, query in self._known.items()
            if now - query.ended >= KEPT_SECONDS
            and query.archive is not None  # else nobody else has it
            and name not in uploading
        ]
        for name in gone:
            del self._known[name]
        if gone:
            self._have_changed()

    def _have_changed(self) -> None:
        self._units.clear()
        self.changes += 1

    def archive_of(self, query: str) -> ArchivePlace | None:
        """Where a query's checkpoint keeps state; None if it is not known, or keeps none."""
        known = self._known.get(query)
        return None if known is None else known.archive

    def archives(self) -> dict[str, ArchivePlace | None]:
        """Where the checkpoints keep state, by the names of their queries."""
        return {name: query.archive for name, query in self._known.items()}

    def unit_of(self, instance: str) -> Unit:
        """The partition that a store instance is in; one of an unknown query is its own."""
        if instance not in self._units:
            query, _, path = instance.partition("/")
            vnode = int(vnode_of(path).rpartition("/")[2])
            known = self._known.get(query)
            if known is None:
                return query, vnode
            self._units[instance] = query, known.partition_of(vnode)
        return self._units[instance]
