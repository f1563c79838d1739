"""Uploads to the checkpoint, behind replication: of each instance the versions that are held, what is not there yet."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from forebay.errors import CorruptState, ReplicationError, StateDirectoryError, VersionNotFound
from forebay.replication.holdings import Holdings
from forebay.replication.queries import ArchivePlace
from forebay.store import filenames
from forebay.store.archive import Archive, archive_at
from forebay.store.filenames import Version

PAUSE_SECONDS = 1.0
"""After an upload that failed the next one of that instance waits so long."""

ATTEMPTS = 3
"""Who waits for a version is told that it cannot be uploaded when that has failed so many times in a row."""

AT_ONCE = 8
"""So many instances are uploaded side by side: an archive takes its time for each request, and one may hang."""

_log = logging.getLogger("forebay.agent")


def archive_of(place: Sequence[str], instance: str) -> Archive:
    """Where an instance is in a checkpoint."""
    location, part = place
    return archive_at(location).within(f"{part}/{instance.partition('/')[2]}")


@dataclass
class _Wish:
    """The version of an instance that is to be uploaded, and what is known of the checkpoint."""

    version: Version
    place: ArchivePlace
    done: set[Version] = field(default_factory=set)
    there: set[str] | None = None
    waiting: int = 0
    failed: int = 0
    error: str = ""
    not_before: float = 0.0

    @property
    def due(self) -> bool:
        return self.version not in self.done


class Uploads:
    """Uploads by threads of their own, each of another instance.

    Spark may go back to the version before the newest, so whatever versions are held go along. A version that is gone before
    its turn is left out.

    Parameters
    ----------
    holdings : Holdings
        Where the files are.
    complete : callable
        Gets files of an instance that are not here from other hosts, as far as it can.
    """

    def __init__(self, holdings: Holdings, complete: Callable[[str, list[str]], None]) -> None:
        self._holdings, self._complete = holdings, complete
        self._wishes: dict[str, _Wish] = {}
        self._changed = threading.Condition()
        self._draining = self._ended = False
        self._working: set[str] = set()
        self._threads = [threading.Thread(target=self._run, name="uploads", daemon=True) for _ in range(AT_ONCE)]
        for thread in self._threads:
            thread.start()

    def wish(self, instance: str, version: Version, place: ArchivePlace) -> None:
        """Have a version uploaded some time soon."""
        with self._changed:
            wish = self._wishes.get(instance)
            if wish is None or wish.place != place:
                self._wishes[instance] = _Wish(version, place)
            elif wish.version != version:
                wish.version, wish.failed = version, 0
            self._changed.notify_all()

    def forget(self, instance: str) -> None:
        """An instance is not held any more: whoever has its newest version uploads that."""
        with self._changed:
            wish = self._wishes.pop(instance, None)
            if wish is not None:
                wish.failed, wish.error = ATTEMPTS, f"{instance} is not held here any more"
                self._changed.notify_all()

    def wait(self, instance: str, version: Version, seconds: float) -> bool:
        """Whether a version that was wished for is safe, or one that was made after it; so long it may become so.

        Raises
        ------
        StateDirectoryError
            If it cannot be uploaded.
        ReplicationError
            If this agent is ending, or does not hold the instance any more.
        """
        with self._changed:
            wish = self._wishes.get(instance)
            if wish is None:
                raise ReplicationError(f"{instance} is not held here any more")
            wish.waiting += 1
            try:
                settled = self._changed.wait_for(lambda: self._settled(wish, version), seconds)
                safe = self._safe(wish, version)
                if settled and not safe:
                    if self._ended:
                        raise ReplicationError("the agent of this host is ending")
                    raise StateDirectoryError(wish.error)
                return safe
            finally:
                wish.waiting -= 1

    @property
    def pending(self) -> Counter[str]:
        """How many instances of each query have a version that is not uploaded."""
        with self._changed:
            return Counter(instance.partition("/")[0] for instance, wish in self._wishes.items() if wish.due)

    def drain(self, seconds: float = 600.0) -> None:
        """Upload all that waits, or give up after some time. Nothing is uploaded after that."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if pending := self.pending.total():
            _log.error("%d store instances are not uploaded", pending)

    @staticmethod
    def _safe(wish: _Wish, version: Version) -> bool:
        return version in wish.done or (wish.version.number > version.number and not wish.due)

    def _settled(self, wish: _Wish, version: Version) -> bool:
        return self._ended or wish.failed >= ATTEMPTS or self._safe(wish, version)

    def _run(self) -> None:
        while True:
            with self._changed:
                due = [instance for instance, wish in self._wishes.items() if wish.due]
                if not due and self._draining:
                    return
                now = time.monotonic()
                ready = [each for each in due if each not in self._working and self._wishes[each].not_before <= now]
                if not ready:
                    self._changed.wait(PAUSE_SECONDS / 4 if due else None)
                    continue
                instance = max(ready, key=lambda each: self._wishes[each].waiting)
                wish = self._wishes[instance]
                version = wish.version
                self._working.add(instance)
            error = None
            try:
                done = self._upload(instance, wish, version)
            except Exception as failure:  # whatever it is, the thread goes on
                wish.there = None  # some of it may be there by now, and is not sent again
                if not wish.waiting and self._is_overtaken(instance, version, failure):
                    done = {version}  # who has made the newer one uploads it
                    _log.info("version %s of %s has gone before it was uploaded", version, instance)
                else:
                    error = f"version {version} of {instance} cannot be uploaded: {failure}"
            with self._changed:
                self._working.discard(instance)
                if error is None:
                    wish.done, wish.failed = done, 0
                else:
                    _log.warning("%s", error)
                    wish.failed, wish.error = wish.failed + 1, error
                    wish.not_before = time.monotonic() + PAUSE_SECONDS
                self._changed.notify_all()

    def _is_overtaken(self, instance: str, version: Version, failure: Exception) -> bool:
        """Whether an upload has failed because the version has gone, since there is a newer one."""
        if not isinstance(failure, (VersionNotFound, CorruptState, FileNotFoundError)):
            return False
        try:
            newest = filenames.newest(self._holdings.names(instance))
        except OSError:
            return False
        return newest is not None and newest.number > version.number

    def _absent(self, instance: str, version: Version) -> set[str]:
        """The files of a version that are not here."""
        files = self._holdings.files_of(instance, version)
        return {*self._holdings.lacking(instance, files, self._holdings.names(instance))}

    def _upload(self, instance: str, wish: _Wish, version: Version) -> set[Version]:
        """Upload a version, and those beside it that are held whole."""
        archive = archive_of(wish.place, instance)
        absent = self._absent(instance, version)
        if wish.there is None or absent:
            wish.there = set(archive.names())
        if absent - wish.there:
            self._complete(instance, [*(absent - wish.there)])
            absent = self._absent(instance, version)
        if absent - wish.there:
            raise StateDirectoryError("this host does not have all of its files yet")
        whole = dict.fromkeys([*self._holdings.whole(instance), version])
        there: set[str] = set()
        for each in whole:
            names = self._holdings.files_of(instance, each)
            missing = [name for name in names if name not in wish.there]
            if missing:
                archive.upload(self._holdings.directory(instance), missing)
            wish.there.update(names)
            there.update(names)
        wish.there = there  # what no version names that is held is not asked for again
        return set(whole)
