"""SQLite: a B-tree of Python's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from forebay.harness.stores.connector import Changes, Connector

_TRANSACTION = 4096
"""Changes in a transaction; each alone would write its pages."""
_VARIABLES = 500
"""Keys in one statement."""

_PUT = "INSERT INTO state VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
_MERGE = "INSERT INTO state VALUES (?, ?) ON CONFLICT DO UPDATE SET value = CAST(value || excluded.value AS BLOB)"
_DELETE = "DELETE FROM state WHERE key = ?"


class Sqlite(Connector):
    """One table, whose B-tree is that of its keys. A merge copies the value that it appends to."""

    errors = (OSError, sqlite3.Error)

    def __init__(self, directory: Path, memory: int) -> None:
        self._database = sqlite3.connect(directory / "state.sqlite", isolation_level=None, cached_statements=16)
        run = self._run = self._database.execute
        for setting in (
            "journal_mode = OFF",
            "synchronous = OFF",
            "locking_mode = EXCLUSIVE",
            f"cache_size = -{memory >> 10}",
        ):
            run(f"PRAGMA {setting}")
        run("CREATE TABLE state (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
        run("BEGIN")
        self._changes = 0

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        row = self._run("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def put(self, key: bytes, value: bytes) -> None:
        """Give a key a value."""
        self._change(_PUT, key, value)

    def merge(self, key: bytes, value: bytes) -> None:
        """Append to the value of a key."""
        self._change(_MERGE, key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key."""
        self._change(_DELETE, key)

    def get_batch(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """The values of keys, some hundreds in one statement."""
        found: dict[bytes, bytes] = {}
        for first in range(0, len(keys), _VARIABLES):
            some = keys[first : first + _VARIABLES]
            marks = ", ".join("?" * len(some))
            # S608 is about values within the text of a statement; this one has question marks there.
            found.update(self._run(f"SELECT key, value FROM state WHERE key IN ({marks})", some))  # noqa: S608
        return [found.get(key) for key in keys]

    def write_batch(self, changes: Changes) -> None:
        """Change all keys in one transaction."""
        run = self._database.executemany
        run(_PUT, changes.puts.items())
        run(_MERGE, changes.merges.items())
        run(_DELETE, ((key,) for key in changes.deletes))
        self._commit()

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def _change(self, statement: str, *values: bytes) -> None:
        self._run(statement, values)
        self._changes += 1
        if self._changes == _TRANSACTION:
            self._commit()

    def _commit(self) -> None:
        self._run("COMMIT")
        self._run("BEGIN")
        self._changes = 0
