"""LMDB: a B+ tree in a memory map. Its memory is the page cache, which no setting bounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from forebay.harness.stores.connector import Changes, Connector

_TRANSACTION = 4096
_MAP_BYTES = 1 << 40
"""How large the file may become; it takes only what it holds."""


class Lmdb(Connector):
    """One database. A merge reads the value and writes it again."""

    def __init__(self, directory: Path, memory: int) -> None:
        import lmdb

        self.errors = (OSError, lmdb.Error)
        self._environment = lmdb.open(str(directory), map_size=_MAP_BYTES, sync=False, metasync=False, lock=False)
        self._begin()

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        value: bytes | None = self._transaction.get(key)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Give a key a value."""
        self._transaction.put(key, value)
        self._changed()

    def merge(self, key: bytes, value: bytes) -> None:
        """Append to the value of a key."""
        self.put(key, self._transaction.get(key, b"") + value)

    def delete(self, key: bytes) -> None:
        """Remove a key."""
        self._transaction.delete(key)
        self._changed()

    def get_batch(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """The values of keys, in one call."""
        found = self._found(keys)
        return [found.get(key) for key in keys]

    def write_batch(self, changes: Changes) -> None:
        """Change all keys in one transaction."""
        old = self._found(changes.merges)
        merged = ((key, old.get(key, b"") + value) for key, value in changes.merges.items())
        self._transaction.cursor().putmulti([*changes.puts.items(), *merged])
        for key in changes.deletes:
            self._transaction.delete(key)
        self._transaction.commit()
        self._begin()

    def close(self) -> None:
        """Let go of the file."""
        self._transaction.abort()
        self._environment.close()

    def _found(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        return dict(self._transaction.cursor().getmulti(keys))

    def _begin(self) -> None:
        self._transaction, self._changes = self._environment.begin(write=True), 0

    def _changed(self) -> None:
        self._changes += 1
        if self._changes == _TRANSACTION:
            self._transaction.commit()
            self._begin()
