"""Uploads to the checkpoint, behind replication: of each instance the newest version, what is not there yet."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from forebay.errors import CorruptState, ForebayError, StateDirectoryError, VersionNotFound
from forebay.replication.holdings import Holdings
from forebay.store.archive import Archive, archive_at
from forebay.store.filenames import Version

PAUSE_SECONDS = 1.0
"""After an upload that failed the next one waits so long."""

Place = tuple[str, str]
"""Where an instance's archive is: a location, and the part of it."""

_log = logging.getLogger("forebay.agent")


def archive_of(place: Sequence[str], instance: str) -> Archive:
    """Where an instance is in a checkpoint: the place is a location, and the part of it that has the query's state."""
    location, part = place
    return archive_at(location).within(f"{part}/{instance.partition('/')[2]}")


@dataclass
class _Wish:
    """The version of an instance that is to be uploaded, the number of the one that is, and what is known to be there."""

    version: Version
    place: Place
    done: int = -1
    there: set[str] | None = None
    error: str | None = field(default=None)


class Uploads:
    """Uploads by a thread of their own. A version that is overtaken by a newer one before its turn is left out.

    Parameters
    ----------
    holdings : Holdings
        Where the files are.
    """

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._wishes: dict[str, _Wish] = {}
        self._changed = threading.Condition()
        self._draining = False
        self._thread = threading.Thread(target=self._run, name="uploads", daemon=True)
        self._thread.start()

    def wish(self, instance: str, version: Version, place: Place) -> None:
        """Have a version uploaded some time soon."""
        with self._changed:
            wish = self._wishes.get(instance)
            if wish is None or wish.place != place:
                self._wishes[instance] = _Wish(version, place)
            elif version.number >= wish.version.number:
                if version.number <= wish.done:  # another attempt at the same commit
                    wish.done = version.number - 1
                wish.version = version
            self._changed.notify_all()

    def wait(self, instance: str, version: Version) -> None:
        """Return when a version that was wished for, or one after it, is safe; `StateDirectoryError` when it cannot be."""
        with self._changed:
            wish = self._wishes[instance]
            wish.error = None
            self._changed.wait_for(lambda: wish.done >= version.number or wish.error is not None)
            if wish.done < version.number:
                raise StateDirectoryError(wish.error)

    def lag(self, instance: str) -> int:
        """By how many versions the checkpoint is behind."""
        wish = self._wishes.get(instance)
        return max(0, wish.version.number - max(wish.done, 0)) if wish else 0

    @property
    def pending(self) -> int:
        """How many instances have a version that is not uploaded."""
        with self._changed:
            return sum(wish.done < wish.version.number for wish in self._wishes.values())

    def drain(self, seconds: float = 600.0) -> None:
        """Upload all that waits, or give up after some time."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
        self._thread.join(seconds)
        if self._thread.is_alive():
            _log.error("%d store instances could not be uploaded in %.0f s", self.pending, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                due = self._due()
                while not due:
                    if self._draining:
                        return
                    self._changed.wait()
                    due = self._due()
            for instance in due:
                self._upload(instance)

    def _due(self) -> list[str]:
        return [instance for instance, wish in self._wishes.items() if wish.done < wish.version.number]

    def _upload(self, instance: str) -> None:
        with self._changed:
            wish = self._wishes[instance]
            version, place = wish.version, wish.place
        error = None
        try:
            archive = archive_of(place, instance)
            names = self._holdings.files_of(instance, version)
            if wish.there is None:
                wish.there = set(archive.names())
            missing = [name for name in names if name not in wish.there]
            directory = self._holdings.directory(instance)
            archive.upload(directory, missing)
            wish.there = set(names)
        except (ForebayError, OSError) as failure:
            if isinstance(failure, (VersionNotFound, CorruptState, FileNotFoundError)) and wish.version != version:
                return  # it was collected: the newer one is next
            error = f"version {version} of {instance} cannot be uploaded: {failure}"
            _log.warning("%s", error)
        with self._changed:
            if error is None:
                wish.done = max(wish.done, version.number) if wish.version.number >= version.number else wish.done
            else:
                wish.error = error
            self._changed.notify_all()
            if error is not None:
                self._changed.wait(PAUSE_SECONDS)
