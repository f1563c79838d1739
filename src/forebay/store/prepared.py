"""What a store of unaligned windows has in memory, as arrays that another process can go on with.

A store that is opened reads its key index and where its rows lie, which takes as long as it has windows. A process that has
done that before, and has followed the versions since, can hand it over instead: then it costs only what has changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from forebay.store.manifest import PICTURES, Manifest
from forebay.store.pictures import Array
from forebay.store.segment import Extent


class Prepared(NamedTuple):
    """What a store had in memory at a version.

    Attributes
    ----------
    manifest : Manifest
        The version.
    parts : dict
        Its arrays by name. They are for one store alone, which changes them.
    """

    manifest: Manifest
    parts: dict[str, Array]


@runtime_checkable
class Preparing(Protocol):
    """An archive on whose hosts stores are prepared."""

    def prepared(self) -> Prepared | None:
        """The store whose archive this is, if it was prepared on this host. Nobody else is given it."""


def pictured(manifest: Manifest) -> list[Extent]:
    """Where the picture of a store's key index lies; nothing as long as it has none (`forebay.store.index_log.write`)."""
    records = manifest.extents.part("")
    return [*manifest.extents.extents(records[records["group"] >= PICTURES])]


def named(prefix: str, parts: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays under names that begin with a prefix.

    Examples
    --------
    >>> import numpy as np
    >>> within("index", named("index", {"free": np.zeros(1)}))
    {'free': array([0.])}
    """
    return {f"{prefix}.{name}": part for name, part in parts.items()}


def within(prefix: str, parts: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays whose names begin with a prefix, under what follows it."""
    found = ((name.partition("."), part) for name, part in parts.items())
    return {name: part for (begin, _, name), part in found if begin == prefix}
