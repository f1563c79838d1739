"""How the key index of a store lies in its log: the slots that each version has changed, and now and then all of them.

All slots are a *picture* of the index: its memory, compressed. It has half the bytes of slots as rows, and is opened in less
than half of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from forebay.store import pictures
from forebay.store.extent_groups import Groups
from forebay.store.key_index import KeyIndex, Slots
from forebay.store.manifest import KIND_BITS, PICTURES

CHANGES, PICTURE = 2, PICTURES >> KIND_BITS
"""The kinds of groups that the index has in the log of a store of unaligned windows."""

_NUMBER = (1 << KIND_BITS) - 1
"""The bits of a group that number it among those of its kind."""

_LEAST_CHANGES, _MOST_CHANGES = 1 << 15, 32
_SLOTS_PER_CHANGE = 1 << 13
"""An index of so many times as many slots may be that many micro-batches behind: a picture of it is 0.2 MB for each."""


def groups_of(log: Groups, kind: int) -> list[int]:
    """The groups of a kind, ascending."""
    return log.within(kind << KIND_BITS, (kind + 1) << KIND_BITS)


def read(log: Groups) -> KeyIndex:
    """The index as a log has it."""
    log.read_ahead([*groups_of(log, PICTURE), *groups_of(log, CHANGES)])
    picture = next((batch for group in groups_of(log, PICTURE) for batch in log.read(group)), None)
    return KeyIndex.restored(_batches(log, groups_of(log, CHANGES)), picture)


def size_of(log: Groups) -> int:
    """Bytes of memory that the picture of the index has."""
    return sum(sum(pictures.sizes(batch).values()) for group in groups_of(log, PICTURE) for batch in log.read(group))


def changed(before: Groups, after: Groups) -> list[int] | None:
    """The groups with what has changed from the index of one log to that of another; None if it is not that and changes.

    What an extent has never changes, and no two attempts at a version write to one place. So where it lies is enough.
    """
    had, has = ([*groups_of(log, PICTURE), *groups_of(log, CHANGES)] for log in (before, after))
    same, later = has[: len(had)], has[len(had) :]
    if before.extents_of(had) != after.extents_of(same) or any(group >> KIND_BITS == PICTURE for group in later):
        return None
    return later


def catch_up(index: KeyIndex, before: Groups, after: Groups) -> Slots | None:
    """Bring the index of one log to that of another, if that is the first one and changes; gives the slots that changed."""
    later = changed(before, after)
    return None if later is None else index.replace(_batches(after, later))


def write(index: KeyIndex, log: Groups, slots_named: Callable[[], int], chance: int = 0) -> bool:
    """Append the slots that changed, or a picture when that has become cheaper than reading the changes.

    That is when a half of the slots have changed, or a quarter, or something between, by ``chance``: instances that began
    together are not to write their pictures in the same micro-batch. Before a picture the index lets go of free slots, if it
    has many. ``slots_named`` gives a number above those of all slots that rows on disk name. Gives whether slots have gone.
    """
    changes, drawn = groups_of(log, CHANGES), groups_of(log, PICTURE)
    allowed = max(_LEAST_CHANGES, index.capacity * (4 + chance % 5) // 16)
    most = max(_MOST_CHANGES, index.capacity // _SLOTS_PER_CHANGE)
    number = 1 + max((group & _NUMBER for group in (*changes, *drawn)), default=0)
    if log.rows_of(changes) + index.touched <= allowed and len(changes) < most:
        for batch in index.changes():
            log.append(CHANGES << KIND_BITS | number, batch)
        return False
    trimmed = index.trim(slots_named)
    log.drop([*changes, *drawn])
    log.append(PICTURE << KIND_BITS | number, index.picture())
    return trimmed


def _batches(log: Groups, groups: list[int]) -> Iterator[pa.RecordBatch]:
    return (batch for group in groups for batch in log.read(group))
