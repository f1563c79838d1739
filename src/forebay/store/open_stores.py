"""Stores that this process keeps open from one micro-batch to the next.

A Python worker of Spark serves many batches, but which one gets a partition is up to Spark; with as many workers as
partitions they take turns. So this is only a cache: what it saves is reading the key index, of which a store that another
process has gone on from reads the changes, and the rows that were read ahead of time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from forebay.store import filenames
from forebay.store.archive import Archive
from forebay.store.disk import LOCAL, Disk, is_there
from forebay.store.filenames import Version
from forebay.store.form import Form, Merge
from forebay.store.manifest import Manifest
from forebay.store.memory import for_kept_stores
from forebay.store.options import Options
from forebay.store.prepared import Preparing, pictured
from forebay.store.unaligned import UnalignedStore

_MOST = 1 << 12
"""Memory runs out before, unless stores are tiny."""


class Kept(Protocol):
    """What can be kept: the store of an operator, or the stores that its patterns share."""

    directory: Path
    options: Options
    form: Form | None

    @property
    def base(self) -> Manifest: ...
    @property
    def memory_bytes(self) -> int: ...
    def catch_up(self, version: Version, archive: Archive | None, disk: Disk) -> bool: ...
    def use(self, disk: Disk) -> None: ...
    def rest(self) -> None: ...


_open: dict[Path, Kept] = {}
_sizes: dict[Path, int] = {}
"""Bytes of memory of each, when it was kept."""
_chance = np.random.default_rng(0)


def take(
    directory: Path,
    version: Version | None,
    options: Options,
    merge: Merge | None,
    archive: Archive | None,
    form: Form,
    disk: Disk = LOCAL,
) -> UnalignedStore:
    """The store in a directory: the one that was kept, if options and form are the same, or else a new one.

    If another process has made the version, what was kept catches up, where that is possible. It is not kept any more. A
    batch that fails never gives it back, so what was half done is forgotten. If none was kept, another process may have
    prepared one.
    """
    store = taken(directory, version, options, archive, form, disk)
    if isinstance(store, UnalignedStore):
        store.merge = merge
        return store
    opened = UnalignedStore(directory, version, options, merge, archive, form, disk)
    if isinstance(archive, Preparing) and pictured(opened.base):
        prepared = archive.prepared()
        if prepared is not None:
            opened.adopt(prepared)
    return opened


def taken(
    directory: Path, version: Version | None, options: Options, archive: Archive | None, form: Form, disk: Disk = LOCAL
) -> Kept | None:
    """What was kept of a directory, brought to a version, if that is possible, and options and form are the same.

    It is not kept any more.
    """
    store = _open.get(directory)
    forget(directory)
    if version is None or store is None or store.options != options or store.form is None or store.form.id != form.id:
        return None
    if not _is_at(store, version):
        return store if store.catch_up(version, archive, disk) else None
    store.use(disk)
    return store


def _is_at(store: Kept, version: Version) -> bool:
    """Whether a store is at a version that is still there: a directory that was not used for long is removed."""
    return store.base.version == version and is_there(store.directory / filenames.manifest(version))


def keep(store: Kept) -> None:
    """Keep a store that has been committed and has let go of its files.

    When memory runs short, any go, by chance. Stores come in the same order in each micro-batch, so the one that was used
    longest ago is the next that is needed; if always that one went, none would be used again where there is one too many.
    """
    store.rest()
    store.use(LOCAL)
    _open[store.directory], _sizes[store.directory] = store, store.memory_bytes
    while len(_open) > _MOST or (len(_open) > 1 and sum(_sizes.values()) > _bound(store.options)):
        forget(list(_open)[_chance.integers(len(_open))])


def _bound(options: Options) -> int:
    """Bytes of memory that all kept stores may have.

    It is not `memory_bytes`: a store whose key index has to be read again costs a micro-batch as much as it has windows.
    """
    return options.kept_bytes or max(options.memory_bytes, for_kept_stores())


def forget(directory: Path) -> None:
    """Do not keep the store of a directory any more."""
    _open.pop(directory, None)
    _sizes.pop(directory, None)


def clear() -> None:
    """Keep none any more."""
    _open.clear()
    _sizes.clear()
