"""A Python dict: what the loop itself costs, and the floor that no other store is below."""

from __future__ import annotations

from pathlib import Path

from forebay.harness.stores.connector import Connector


class Dictionary(Connector):
    """A Python dict. A merge keeps a list, so that it does not copy what it appends to."""

    def __init__(self, directory: Path, memory: int) -> None:
        self._values: dict[bytes, list[bytes]] = {}

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        parts = self._values.get(key)
        return None if parts is None else b"".join(parts)

    def put(self, key: bytes, value: bytes) -> None:
        """Give a key a value."""
        self._values[key] = [value]

    def merge(self, key: bytes, value: bytes) -> None:
        """Append to the value of a key."""
        parts = self._values.get(key)
        if parts is None:
            self._values[key] = [value]
        else:
            parts.append(value)

    def delete(self, key: bytes) -> None:
        """Remove a key."""
        self._values.pop(key, None)
