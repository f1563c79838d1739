"""SQLite: a B-tree of Python's own."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from forebay.harness.stores.connector import Connector

_TRANSACTION = 4096
"""Changes in a transaction; each alone would write its pages."""


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
        self._change("INSERT INTO state VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", key, value)

    def merge(self, key: bytes, value: bytes) -> None:
        """Append to the value of a key."""
        appended = "CAST(value || excluded.value AS BLOB)"
        self._change(f"INSERT INTO state VALUES (?, ?) ON CONFLICT DO UPDATE SET value = {appended}", key, value)  # noqa: S608

    def delete(self, key: bytes) -> None:
        """Remove a key."""
        self._change("DELETE FROM state WHERE key = ?", key)

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def _change(self, statement: str, *values: bytes) -> None:
        self._run(statement, values)
        self._changes += 1
        if self._changes == _TRANSACTION:
            self._run("COMMIT")
            self._run("BEGIN")
            self._changes = 0
