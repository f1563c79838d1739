"""A store instance at work: rows of a micro-batch in, results of the windows that fire out, a new version committed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from forebay.engine.observer import Observer
from forebay.engine.plan import NEVER
from forebay.errors import CorruptState
from forebay.store.archive import Archive
from forebay.store.disk import LOCAL, Disk
from forebay.store.filenames import Version
from forebay.store.manifest import Counters, Manifest
from forebay.store.metrics import Metrics


@dataclass(frozen=True)
class Opening:
    """Where a store instance is opened, and at what; `forebay.engine.open.open_instance` says what each of them is."""

    directory: Path
    version: Version | None
    fired_until: int = NEVER
    archive: Archive | None = None
    disk: Disk = LOCAL
    observer: Observer | None = None


class Instance(Protocol):
    """A store instance, its windows and aggregates, opened at a version for the length of one micro-batch."""

    counters: Counters

    def ingest(self, batch: pa.RecordBatch, *, partial: bool = False) -> None:
        """Take rows, or partial aggregates made before the shuffle. Late ones are dropped and counted."""

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Results of every window that is due at ``watermark`` (microseconds). Exhaust the iterator."""

    def commit(self, batch: int | None = None) -> Version | None:
        """Make the state after this micro-batch the next version; the same one when nothing has changed."""

    @property
    def due(self) -> int:
        """After a commit: the watermark (microseconds) from which on there is something to do even if no row comes.

        `NEVER` if that is not known or there is already, `END_OF_TIME` if there will be nothing.
        """

    @property
    def metrics(self) -> Metrics:
        """What the store has done since it was opened."""

    def close(self) -> None:
        """Let go of files, whether the batch was committed or not; nothing is called after that.

        What was committed may stay in memory for the next micro-batch (`forebay.store.open_stores`).
        """


class Counting:
    """What counts what it has done."""

    counters: Counters

    def _count(self, **more: int) -> None:
        self.counters += Counters(**{name: int(value) for name, value in more.items()})


def require_same_time(base: Manifest, opening: Opening) -> None:
    """`CorruptState` when a version has fired windows that its checkpoint has not."""
    directory, fired_until = opening.directory, opening.fired_until
    if (base.fired_until or NEVER) > fired_until:
        raise CorruptState(
            f"version {base.version} in {directory} has fired windows until {base.fired_until}, the checkpoint "
            f"only until {fired_until}: they do not belong together. Restore both from the same copy."
        )
