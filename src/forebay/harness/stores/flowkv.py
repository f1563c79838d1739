"""forebay's own stores, by the interface that takes a row at a time. They are given the window along with the key.

Reads of Listing 1 remove what they give, since an operator reads a window when it ends or writes it again (FlowKV, section
3.2). Here a read must leave the value, so the connectors use the stores' tables, whose reads do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from forebay.errors import InvalidArgument, StateDirectoryError
from forebay.harness.access import PUT
from forebay.harness.stores.connector import Changes, Connector
from forebay.store.disk import UNSYNCED
from forebay.store.listing import AarStore, AurStore, RmwStore
from forebay.store.options import Options

Window = tuple[int, int]
Key = tuple[bytes, Window]

_KEY = np.dtype([("family", "u1"), ("key", ">i8")])


def keys(batch: pa.RecordBatch) -> Sequence[Key]:
    """The state keys of accesses as pairs of a key, with its family, and a window."""
    named = np.empty(batch.num_rows, _KEY)
    named["family"], named["key"] = batch["family"].to_numpy(), batch["key"].to_numpy()
    text = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_KEY.itemsize), len(named), [None, pa.py_buffer(named.tobytes())])
    windows = zip(batch["start"].to_pylist(), batch["end"].to_pylist(), strict=True)
    return list(zip(text.to_pylist(), windows, strict=True))


class ForebayRmw(Connector):
    """The RMW store. A merge reads the value and writes it again."""

    errors = (OSError, StateDirectoryError)

    def __init__(self, directory: Path, memory: int) -> None:
        self._store = RmwStore(directory / "0", key=pa.binary(), value=pa.binary(), options=Options(memory), disk=UNSYNCED)
        self._table = table = self._store.table
        # What a table does already is called as it is: a call in between takes a twentieth of an access. For mypy a method
        # is no attribute that could be set.
        self.get, self.put, self.delete = table.__getitem__, table.put, table.discard  # type: ignore[method-assign, assignment]

    def keys(self, batch: pa.RecordBatch) -> Sequence[Key]:
        """Keys with their windows."""
        return keys(batch)

    def get(self, key: Key) -> bytes | None:
        """The value of a key, which stays."""
        return self._table[key]

    def put(self, key: Key, value: bytes) -> None:
        """Give a key a value."""
        self._table.put(key, value)

    def merge(self, key: Key, value: bytes) -> None:
        """Append to the value of a key."""
        self._table.put(key, (self._table[key] or b"") + value)

    def delete(self, key: Key) -> None:
        """Remove a key."""
        self._table.discard(key)

    def get_batch(self, keys: Sequence[Key]) -> Sequence[bytes | None]:
        """The values of keys, by one read."""
        return [values[-1] if values else None for values in self._table.read_batch(keys)]

    def write_batch(self, changes: Changes) -> None:
        """Change all keys by one removal and one write. Merges read the values that there are."""
        self._table.discard_batch(changes.deletes)
        merged = zip(changes.merges.items(), self.get_batch(list(changes.merges)), strict=True)
        self._table.give(changes.puts | {key: (before or b"") + value for (key, value), before in merged})

    def close(self) -> None:
        """Let go of files."""
        self._store.close()


class ForebayAur(Connector):
    """The AUR store, which appends without reading. A window is expected to be read when it ends."""

    errors = (OSError, StateDirectoryError)

    def __init__(self, directory: Path, memory: int) -> None:
        self._store = AurStore(directory / "0", key=pa.binary(), value=pa.binary(), options=Options(memory), disk=UNSYNCED)
        self._table = self._store.table

    def keys(self, batch: pa.RecordBatch) -> Sequence[Key]:
        """Keys with their windows."""
        return keys(batch)

    def get(self, key: Key) -> bytes | None:
        """The values of a key, which stay, one after the other."""
        values = self._table.read(key)
        return b"".join(values) if values else None

    def put(self, key: Key, value: bytes) -> None:
        """Give a key a value."""
        self._table.discard(key)
        self._table.append(key, value, key[1][0])

    def merge(self, key: Key, value: bytes) -> None:
        """Append to the value of a key."""
        self._table.append(key, value, key[1][0])

    def delete(self, key: Key) -> None:
        """Remove a key."""
        self._table.discard(key)

    def get_batch(self, keys: Sequence[Key]) -> Sequence[bytes | None]:
        """The values of keys, by one read."""
        return [b"".join(values) if values else None for values in self._table.read_batch(keys)]

    def write_batch(self, changes: Changes) -> None:
        """Change all keys by one removal and one write."""
        self._table.discard_batch([*changes.deletes, *changes.puts])
        self._table.give(changes.puts | changes.merges)

    def close(self) -> None:
        """Let go of files."""
        self._store.close()


class ForebayAar(Connector):
    """The AAR store, for windows that all keys share: the first read of a window reads all its keys.

    From then on the window is in memory until its last key is deleted. All windows must have one length. The store has no
    put. Here one works, on a window that is in memory; accesses with puts are refused all the same, since a window that is
    put would never be in the store.
    """

    errors = (OSError, StateDirectoryError)

    def __init__(self, directory: Path, memory: int) -> None:
        self._store = AarStore(directory / "0", key=pa.binary(), value=pa.binary(), options=Options(memory), disk=UNSYNCED)
        self._read: dict[Window, dict[bytes, list[bytes]]] = {}

    def keys(self, batch: pa.RecordBatch) -> Sequence[Key]:
        """Keys with their windows."""
        lengths = np.unique(batch["end"].to_numpy() - batch["start"].to_numpy())
        if len(lengths) > 1 or (lengths <= 0).any():
            raise InvalidArgument(
                "forebay-aar holds windows that are the same for all keys, and all of one length; "
                "drive forebay-aur or forebay-rmw with this workload"
            )
        if (batch["operation"].to_numpy() == int(PUT)).any():
            raise InvalidArgument("forebay-aar appends, and never puts; drive forebay-rmw with this workload")
        return keys(batch)

    def get(self, key: Key) -> bytes | None:
        """The value of a key, from its window."""
        values = self._window(key[1]).get(key[0])
        return b"".join(values) if values else None

    def put(self, key: Key, value: bytes) -> None:
        """Give a key a value."""
        self._read.setdefault(key[1], self._window(key[1]))[key[0]] = [value]

    def merge(self, key: Key, value: bytes) -> None:
        """Append to the value of a key."""
        window = self._read.get(key[1])
        if window is None:
            self._store.append(key[0], value, key[1])
        else:
            window.setdefault(key[0], []).append(value)

    def delete(self, key: Key) -> None:
        """Remove a key."""
        window = self._window(key[1])
        window.pop(key[0], None)
        if not window:
            self._read.pop(key[1], None)

    def close(self) -> None:
        """Let go of files."""
        self._store.close()

    def _window(self, window: Window) -> dict[bytes, list[bytes]]:
        read = self._read.get(window)
        if read is None:
            read = {}
            while (part := self._store.get_window(window)) is not None:
                for key, values in part.items():
                    read.setdefault(key, []).extend(values)
            if read:
                self._read[window] = read
        return read
