"""What an agent knows of the store instances that its host holds: of each the newest version, and whether it is whole."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from forebay.errors import ForebayError, StateDirectoryError
from forebay.replication.copies import Held
from forebay.replication.holdings import Holdings
from forebay.replication.preparations import Preparations
from forebay.replication.pulls import Pulls
from forebay.replication.queries import ArchivePlace
from forebay.replication.uploads import Uploads
from forebay.store import filenames
from forebay.store.manifest import Manifest


class Inventory:
    """The instances that a host holds, while versions come and go.

    Parameters
    ----------
    holdings : Holdings
        The files.
    pulls : Pulls
        The copies that are under way.
    uploads : Uploads
        What is to go to the checkpoint.
    preparations : Preparations
        The stores that are prepared.
    """

    def __init__(self, holdings: Holdings, pulls: Pulls, uploads: Uploads, preparations: Preparations) -> None:
        self._holdings, self._pulls, self._uploads, self._preparations = holdings, pulls, uploads, preparations
        self._lock = threading.Lock()  # never while the disk is looked at: beats would wait for that
        self._noting = threading.Lock()  # from a look at an instance's files until `_held` has what was found
        self._held: dict[str, Held] = {}
        self._arriving: Counter[str] = Counter()

    def held(self) -> dict[str, Held]:
        """What is known of each instance now."""
        with self._lock:
            return dict(self._held)

    @contextlib.contextmanager
    def arriving(self, instance: str) -> Iterator[None]:
        """Nothing of an instance is dropped while a version of it comes, until that is noted."""
        with self._noting:
            self._arriving[instance] += 1
        try:
            yield
        finally:
            with self._noting:
                self._arriving -= Counter([instance])

    def note(self, instance: str, made: Manifest, *, own: bool) -> None:
        """A version has come, or was committed here if it is the host's ``own``. What no kept version names goes.

        One that was committed here and lacked something may come, too; it stays the host's own.
        """
        assert made.version is not None
        self._holdings.remember(instance, made)
        size = sum(segment.size for segment in made.segments.values())
        with self._noting:
            here = self._holdings.names(instance)
            complete = self._holdings.holds(instance, made.version, here)
            with self._lock:
                held = self._held.get(instance)
                own = own or (held is not None and held.own and held.version == made.version)
                newest = own or held is None or held.version.number <= made.version.number
                if newest:
                    self._held[instance] = Held(made.version, size, -1 if made.batch is None else made.batch, own, complete)
            if own:
                self._preparations.forget(instance)
            elif newest and complete:
                self._preparations.note(instance, made)
        self._holdings.collect(instance, (made.version, *made.history), here)

    def look(self, instance: str) -> None:
        """See whether an instance lacks something by now. Then it is not complete until a version of it is noted again."""
        with self._noting:
            held = self.held().get(instance)
            if held is not None and held.complete:
                complete = self._holdings.holds(instance, held.version, self._holdings.names(instance))
                with self._lock:
                    if self._held.get(instance) is held:
                        self._held[instance] = replace(held, complete=complete)

    def upload(self, places: Mapping[str, ArchivePlace]) -> None:
        """Have the newest versions of instances uploaded, as far as they are complete."""
        with self._lock:  # a commit wishes for its version after it was noted, so later
            for instance, place in places.items():
                held = self._held.get(instance)
                if held is not None and held.complete:
                    self._uploads.wish(instance, held.version, place)

    def find(self, query: str) -> None:
        """Know of what is held of a query since before this agent began."""
        with contextlib.suppress(StateDirectoryError):  # on a disk that is full, say: then nobody sweeps
            self._holdings.hold(query)
        for instance in self._holdings.instances():
            version = filenames.newest(self._holdings.names(instance)) if instance.startswith(f"{query}/") else None
            if version is not None and instance not in self.held():
                with contextlib.suppress(ForebayError):
                    self.note(instance, self._holdings.read(instance, version), own=False)

    def drop(self, instance: str, told: Held | None) -> None:
        """Hold nothing of an instance any more, unless something has come since the manager was told, or is coming."""
        with self._noting:
            coming = self._arriving[instance] or instance in self._pulls.under_way()
            if told is None or self.held().get(instance) is not told or coming:
                return
            aside = self._holdings.put_aside(instance)
            self._forget(instance)
        shutil.rmtree(aside, ignore_errors=True)

    def leave(self, query: str) -> None:
        """Hold nothing of a query that has ended long ago; its files are swept when left alone for as long again."""
        with self._noting:
            for instance in [each for each in self.held() if each.startswith(f"{query}/")]:
                self._forget(instance)
        self._holdings.leave(query)

    def _forget(self, instance: str) -> None:
        with self._lock:
            del self._held[instance]
        self._uploads.forget(instance)
        self._preparations.forget(instance)
