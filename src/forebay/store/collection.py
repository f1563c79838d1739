"""Which files of a store instance nobody needs any more: on its disk, in its archive, and where its replicas are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from forebay.errors import CorruptState, VersionNotFound
from forebay.store import filenames
from forebay.store.filenames import Version


def collectable(
    names: Collection[str],
    kept: Mapping[Version, Collection[str]],
    files_of: Callable[[Version], Collection[str]],
    *,
    sparing: bool = False,
) -> list[str]:
    """The files, up to the oldest kept version, of no version that is kept or that another attempt has made since.

    Spark may go on from any of several attempts at a micro-batch: where its file systems do not replace files, from the
    first. Files that are numbered after the oldest kept version may also belong to an attempt that is still running. So may
    those that are numbered like it: where stores work, such an attempt is overtaken, and finds that out when it misses them.
    It would not where versions are only copied to.

    Parameters
    ----------
    names : collection of str
        The files that there are.
    kept : mapping of Version to collection of str
        The files of the versions that are kept.
    files_of : callable
        The files of another version, its manifest among them; it is asked rarely.
    sparing : bool
        Whether the files of attempts at the oldest kept version stay: where versions are only copied to.

    Examples
    --------
    >>> one, first, second = Version(1, "0000000a"), Version(2, "0000000b"), Version(2, "0000000c")
    >>> made = {version: [filenames.manifest(version), filenames.segment(version, 0)] for version in (one, first, second)}
    >>> collectable(sum(made.values(), []), {second: made[second]}, made.__getitem__)
    ['000000000001-0000000a.manifest', '000000000001-0000000a-0000.arrow']
    """
    named, oldest = set().union(*kept.values()), min(version.number for version in kept)
    others = [name for name in names if name not in named]
    for version in map(filenames.version_of, others):
        if version is not None and version.number >= oldest and version not in kept:
            try:
                named.update(files_of(version))
            except CorruptState:
                continue
            except (VersionNotFound, OSError):  # gone since the files were listed, or what it needs is not known now
                return []
    numbers = ((name, filenames.number_of(name)) for name in others)
    last = oldest - 1 if sparing else oldest
    return [name for name, number in numbers if number is not None and number <= last and name not in named]
