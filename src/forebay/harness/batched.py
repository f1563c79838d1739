"""Accesses of a batch at once: one read of the store, then one write, with what operators would have found one by one.

An operator that works on batches reads the values that it needs, works on them in memory, and writes what has become of
them. So what a batch does to one key again and again reaches the store once, for every store alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forebay.harness.access import GET, MERGE, PUT
from forebay.harness.stores.connector import Changes, Connector

_GET, _PUT, _MERGE = int(GET), int(PUT), int(MERGE)


def serve(store: Connector, operations: Sequence[int], keys: Sequence[Any], values: Sequence[bytes]) -> list[bytes | None]:
    """Give a store accesses in the order in which they happen, and give what each get finds.

    Parameters
    ----------
    store : Connector
        The store, which is read once and written once.
    operations, keys, values : sequence
        The accesses: what is done to which key, in the store's own form, and the value of a put or merge.

    Examples
    --------
    >>> from pathlib import Path
    >>> from forebay.harness.stores import open_store
    >>> store = open_store("dict", Path("unused"))
    >>> serve(store, [MERGE, GET, MERGE, GET], [b"k"] * 4, [b"one", b"", b"two", b""])
    [b'one', b'onetwo']
    >>> store.get(b"k")
    b'onetwo'
    """
    places: dict[Any, int] = {}  # of keys, which are hashed once: those of forebay's stores are tuples, which keep no hash
    at = [places.setdefault(key, len(places)) for key in keys]
    names = list(places)
    needed = _needed(operations, at)
    stored: list[bytes | None] = [None] * len(names)
    for place, value in zip(needed, store.get_batch([names[place] for place in needed]), strict=True):
        stored[place] = value
    found: list[bytes | None] = []
    written: list[list[bytes] | None] = [None] * len(names)  # parts of a value
    replaced = bytearray(len(names))  # whether nothing that is stored stays
    for operation, place, value in zip(operations, at, values, strict=True):
        parts = written[place]
        if operation == _GET:
            if parts is None:
                found.append(None if replaced[place] else stored[place])
            else:
                found.append(b"".join(parts if replaced[place] else (stored[place] or b"", *parts)))
        elif operation == _MERGE:
            if parts is None:
                written[place] = [value]
            else:
                parts.append(value)
        else:
            written[place] = [value] if operation == _PUT else None
            replaced[place] = 1
    changes = _changes(names, written, replaced)
    if any(changes):
        store.write_batch(changes)
    return found


def _needed(operations: Sequence[int], at: Sequence[int]) -> list[int]:
    """The places of keys that are read before they are put or deleted, each once."""
    settled = bytearray(len(at))
    needed = []
    for operation, place in zip(operations, at, strict=True):
        if operation != _MERGE and not settled[place]:
            settled[place] = 1
            if operation == _GET:
                needed.append(place)
    return needed


def _changes(names: Sequence[Any], written: Sequence[list[bytes] | None], replaced: bytearray) -> Changes:
    changes = Changes({}, {}, [])
    for name, parts, all_of_it in zip(names, written, replaced, strict=True):
        if parts is not None:
            (changes.puts if all_of_it else changes.merges)[name] = b"".join(parts)
        elif all_of_it:
            changes.deletes.append(name)
    return changes
