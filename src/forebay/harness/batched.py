"""Accesses of a batch at once: one read of the store, then one write, with what operators would have found one by one.

An operator that works on batches reads the values that it needs, works on them in memory, and writes what has become of
them. So what a batch does to one key again and again reaches the store once, for every store alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    needed = list(_needed(operations, keys))
    stored = dict(zip(needed, store.get_batch(needed), strict=True))
    found: list[bytes | None] = []
    written: dict[Any, list[bytes] | None] = {}  # parts of a value, or None for what was deleted
    replaced: set[Any] = set()  # keys of which nothing that is stored stays
    for operation, key, value in zip(operations, keys, values, strict=True):
        if operation == _GET:
            parts = written.get(key)
            if parts is None:
                found.append(None if key in written else stored[key])
            else:
                found.append(b"".join(parts if key in replaced else (stored[key] or b"", *parts)))
        elif operation == _MERGE:
            parts = written.get(key)
            if parts is None:
                written[key] = [value]
            else:
                parts.append(value)
        else:
            written[key] = [value] if operation == _PUT else None
            replaced.add(key)
    if written:
        store.write_batch(_changes(written, replaced))
    return found


def _needed(operations: Sequence[int], keys: Sequence[Any]) -> Iterable[Any]:
    """Keys that are read before they are put or deleted, each once."""
    settled = set()
    for operation, key in zip(operations, keys, strict=True):
        if operation != _MERGE and key not in settled:
            settled.add(key)
            if operation == _GET:
                yield key


def _changes(written: dict[Any, list[bytes] | None], replaced: set[Any]) -> Changes:
    changes = Changes({}, {}, [])
    for key, parts in written.items():
        if parts is None:
            changes.deletes.append(key)
        else:
            (changes.puts if key in replaced else changes.merges)[key] = b"".join(parts)
    return changes
