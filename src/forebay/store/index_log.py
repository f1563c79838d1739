"""How the key index of a store lies in its log: the slots that each version has changed, and now and then all of them.

All slots of a large index are a *picture* of its memory, which is mapped when a store is opened, so that opening takes no
time for what nobody asks for.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from forebay.store.extent_log import Groups
from forebay.store.key_index import KeyIndex
from forebay.store.manifest import KIND_BITS

CHANGES, PICTURE = 2, 3
"""The kinds of groups that the index has in the log of a store of unaligned windows."""

_NUMBER = (1 << KIND_BITS) - 1
"""The bits of a group that number it among those of its kind."""

_LEAST_CHANGES, _MOST_CHANGES = 1 << 15, 32
_SLOTS_PER_CHANGE = 1 << 13
"""An index of so many times as many slots may be that many micro-batches behind: writing all of it is half a MB for each."""

_PICTURED, _FEW = 1 << 17, 64
"""A picture is made of a key index of so many slots, in a micro-batch that changes less than one in so many of them."""


def groups_of(log: Groups, kind: int) -> list[int]:
    """The groups of a kind, ascending."""
    return [group for group in log.groups.tolist() if group >> KIND_BITS == kind]


def read(log: Groups) -> KeyIndex:
    """The index as a log has it."""
    pictures = groups_of(log, PICTURE)
    return KeyIndex.restored(_batches(log, groups_of(log, CHANGES)), log.read_private(pictures[0]) if pictures else None)


def catch_up(index: KeyIndex, before: Groups, after: Groups) -> bool:
    """Bring the index of one log to that of another, if that has all of it and changes; whether it has.

    What an extent has never changes, and no two attempts at a version write to one place. So where it lies is enough.
    """
    had, has = ([*groups_of(log, PICTURE), *groups_of(log, CHANGES)] for log in (before, after))
    if before.extents_of(had) != after.extents_of(has[: len(had)]):
        return False
    index.replace(_batches(after, has[len(had) :]))
    return True


def write(index: KeyIndex, log: Groups) -> None:
    """Append the slots that changed, or write all of them when that has become cheaper than reading the changes.

    All of a large index are written as a picture of it if few have changed: then opening must not take time for the others.
    Where many change, a picture would be more to write than the windows are.
    """
    changes, pictures = groups_of(log, CHANGES), groups_of(log, PICTURE)
    large = index.capacity >= _PICTURED and 2 * len(index) > index.capacity
    pictured = large and index.touched < index.capacity // _FEW
    behind = changes if pictures else changes[1:]  # the first group has all slots that there were
    rows = log.rows_of(behind) + index.touched
    most = max(_MOST_CHANGES, index.capacity // _SLOTS_PER_CHANGE)
    everything = (
        (pictured and not pictures)
        or rows > max(_LEAST_CHANGES, index.capacity // (4 if pictured else 2))
        or len(changes) >= most
    )
    if everything:
        log.drop([*changes, *pictures])
    number = 1 + max((group & _NUMBER for group in (*changes, *pictures)), default=0)
    if everything and pictured:
        log.append(PICTURE << KIND_BITS | number, index.picture())
        return
    for batch in index.changes(everything=everything):
        log.append(CHANGES << KIND_BITS | number, batch)


def _batches(log: Groups, groups: list[int]) -> Iterator[pa.RecordBatch]:
    return (batch for group in groups for batch in log.read(group))
