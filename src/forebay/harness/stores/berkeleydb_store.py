"""Berkeley DB: a B-tree with a cache of its own, without transactions and without a log."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from forebay.harness.stores.connector import Connector


class BerkeleyDB(Connector):
    """One B-tree. A merge asks how long the value is, and writes behind its end."""

    def __init__(self, directory: Path, memory: int) -> None:
        from berkeleydb import db

        self.errors = (OSError, db.DBError)
        self._absent = db.DBNotFoundError
        self._environment = db.DBEnv()
        self._environment.set_cachesize(memory >> 30, memory & ((1 << 30) - 1), 1)
        self._environment.open(str(directory), db.DB_CREATE | db.DB_INIT_MPOOL | db.DB_PRIVATE)
        self._tree = db.DB(self._environment)
        self._tree.open("state.db", dbtype=db.DB_BTREE, flags=db.DB_CREATE)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        value: bytes | None = self._tree.get(key)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Give a key a value."""
        self._tree.put(key, value)

    def merge(self, key: bytes, value: bytes) -> None:
        """Append to the value of a key."""
        try:
            end = self._tree.get_size(key)
        except self._absent:
            end = 0
        self._tree.put(key, value, dlen=0, doff=end)

    def delete(self, key: bytes) -> None:
        """Remove a key."""
        with suppress(self._absent):
            self._tree.delete(key)

    def close(self) -> None:
        """Let go of files."""
        self._tree.close()
        self._environment.close()
