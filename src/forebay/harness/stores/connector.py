"""What the harness asks of a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from forebay.harness.access import state_keys

MEMORY = 256 << 20
"""Bytes of memory that a store may take unless it is told otherwise: what the paper gives each."""


class Changes(NamedTuple):
    """What a batch does to a store. No key is in two of them.

    Attributes
    ----------
    puts : dict
        Values of keys, in place of those that they may have.
    merges : dict
        What is appended to the values of keys.
    deletes : list
        Keys that go, if they are there.
    """

    puts: dict[Any, bytes]
    merges: dict[Any, bytes]
    deletes: list[Any]


class Connector(ABC):
    """A store, as a few operations on state keys. Values are bytes, and a merge appends to them.

    A connector is made with a directory of its own and with the bytes of memory that it may take, and makes an empty store.
    No store syncs what it writes: state is lost with the machine, as that of a stream processor between checkpoints.
    A store that has an interface for batches may use it in `get_batch` and `write_batch`; otherwise these go key by key.
    `forebay.testing.ConnectorTests` checks a connector.

    Examples
    --------
    >>> class Shouting(Connector):
    ...     def __init__(self, directory, memory):
    ...         self.values = {}
    ...     def get(self, key):
    ...         return self.values.get(key)
    ...     def put(self, key, value):
    ...         self.values[key] = value.upper()
    ...     def merge(self, key, value):
    ...         self.put(key, (self.get(key) or b"") + value)
    ...     def delete(self, key):
    ...         self.values.pop(key, None)
    >>> store = Shouting(Path("unused"), MEMORY)
    >>> store.put(b"k", b"v"); store.get(b"k")
    b'V'
    """

    errors: tuple[type[Exception], ...] = (OSError,)
    """What the store raises when it cannot write, as on a full disk."""

    processes: tuple[int, ...] = ()
    """The ids of processes that are the store's own, whose memory is the store's."""

    def __init__(self, directory: Path, memory: int) -> None:  # noqa: B027  # a store need not do anything here
        """Make an empty store."""

    def keys(self, batch: pa.RecordBatch) -> Sequence[Any]:
        """The state keys of accesses in the form that the store takes; bytes unless it says otherwise."""
        return state_keys(batch).to_pylist()

    @abstractmethod
    def get(self, key: Any) -> bytes | None:
        """The value of a key, which stays; None if there is none."""

    @abstractmethod
    def put(self, key: Any, value: bytes) -> None:
        """Give a key a value, in place of one that it may have."""

    @abstractmethod
    def merge(self, key: Any, value: bytes) -> None:
        """Append to the value of a key, or make it."""

    @abstractmethod
    def delete(self, key: Any) -> None:
        """Remove a key and its value; nothing happens if there is none."""

    def get_batch(self, keys: Sequence[Any]) -> Sequence[bytes | None]:
        """The values of different keys, which stay; None where there is none."""
        return [self.get(key) for key in keys]

    def write_batch(self, changes: Changes) -> None:
        """Do all changes of a batch."""
        for key, value in changes.puts.items():
            self.put(key, value)
        for key, value in changes.merges.items():
            self.merge(key, value)
        for key in changes.deletes:
            self.delete(key)

    def close(self) -> None:  # noqa: B027  # a store need not have anything to let go of
        """Let go of files. What the store holds need not survive."""
