"""RocksDB by rocksdict, which has no merge operators.

In their place a merge puts what it appends under a key of its own, the state key and a number, without reading; a get reads
the range of these keys, and a delete removes them in one batch. That is as lazy as RocksDB's own merge. Which state keys
have such a range is kept in memory. RocksDB's own delete of a range was up to 20 times slower: it keeps ranges and asks all
of them at each read.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay.harness.access import KEY_BYTES
from forebay.harness.stores.connector import Changes, Connector

if TYPE_CHECKING:
    from rocksdict import Options, Rdict, WriteBatch

_NUMBER_BYTES = 8

_DELETES_WITHIN, _DELETES, _DELETED_SHARE = 1024, 256, 0.25
"""A file is compacted that has so many deletes within so many entries, or such a share of them."""
_PERSIST_SECONDS = 30
"""After how many seconds a file is compacted in any case."""


def _numbered(key: bytes, number: int) -> bytes:
    return key + number.to_bytes(_NUMBER_BYTES, "big")


class RocksDB(Connector):
    """An LSM tree with the paper's division of memory: two write buffers of half each, and a quarter as much of cache."""

    errors = (Exception,)  # rocksdict has no errors of its own

    def __init__(self, directory: Path, memory: int) -> None:
        from rocksdict import BlockBasedOptions, Cache, Options, Rdict, WriteBatch, WriteOptions

        options, blocks = Options(raw_mode=True), BlockBasedOptions()
        options.set_write_buffer_size(memory * 2 // 5)
        options.set_max_write_buffer_number(2)
        blocks.set_block_cache(Cache(memory // 5))
        options.set_block_based_table_factory(blocks)
        self._configure(options)
        self._database = Rdict(str(directory), options)
        self._directory, self._reserve = directory, memory
        self._configure_open(self._database)
        unlogged = WriteOptions()
        unlogged.disable_wal = True  # type: ignore[method-assign, assignment]  # a property, whatever the stubs say
        self._database.set_write_options(unlogged)
        self._new_batch = partial(WriteBatch, raw_mode=True)
        self._merged: dict[bytes, int] = {}  # numbers of what was appended, from 0 on

    def keys(self, batch: pa.RecordBatch) -> Sequence[Any]:
        """The state keys of accesses, which may be too much for the disk.

        On a full disk RocksDB waits for space without end, and cannot be interrupted: it must not come to that.
        """
        needed = (pc.sum(batch["size"]).as_py() or 0) + KEY_BYTES * batch.num_rows + self._reserve
        free = shutil.disk_usage(self._directory).free
        if free < needed:
            raise OSError(
                errno.ENOSPC, f"{needed >> 20:,} MB may be needed for the next accesses, of which {free >> 20:,} are free"
            )
        return super().keys(batch)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        value: bytes | None = self._database.get(key)
        if key not in self._merged:
            return value
        parts = [value or b""]
        appended = self._database.iter()
        appended.seek(key + bytes(_NUMBER_BYTES))
        for _ in range(self._merged[key]):
            parts.append(appended.value())
            appended.next()
        return b"".join(parts)

    def put(self, key: bytes, value: bytes) -> None:
        """Give a key a value."""
        if key in self._merged:
            self.write_batch(Changes({key: value}, {}, []))
        else:
            self._database.put(key, value)

    def merge(self, key: bytes, value: bytes) -> None:
        """Append to the value of a key."""
        number = self._merged.get(key, 0)
        self._database.put(_numbered(key, number), value)
        self._merged[key] = number + 1

    def delete(self, key: bytes) -> None:
        """Remove a key."""
        if key in self._merged:
            self.write_batch(Changes({}, {}, [key]))
        else:
            self._database.delete(key)

    def get_batch(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """The values of keys, in one call but for those to which something was appended."""
        whole = [key for key in keys if key not in self._merged]
        values: Any = self._database.get(whole)  # type: ignore[arg-type]  # its stubs want other keys in the list, too
        found = dict(zip(whole, values, strict=True))
        return [found[key] if key in found else self.get(key) for key in keys]

    def write_batch(self, changes: Changes) -> None:
        """Change all keys in one batch of RocksDB's."""
        batch = self._new_batch()
        for key in (*changes.puts, *changes.deletes):
            self._forget(key, batch)
        for key, value in changes.puts.items():
            batch.put(key, value)
        for key, value in changes.merges.items():
            number = self._merged.get(key, 0)
            batch.put(_numbered(key, number), value)
            self._merged[key] = number + 1
        for key in changes.deletes:
            batch.delete(key)
        self._database.write(batch)

    def close(self) -> None:
        """Let go of files."""
        self._database.close()

    def _configure(self, options: Options) -> None:
        """Settings with which the database is opened."""

    def _configure_open(self, database: Rdict) -> None:
        """Settings that an open database takes."""

    def _forget(self, key: bytes, batch: WriteBatch) -> None:
        """Delete what was appended to a key."""
        for number in range(self._merged.pop(key, 0)):
            batch.delete(_numbered(key, number))


class DeleteAwareRocksDB(RocksDB):
    """RocksDB that clears out deleted keys soon. It stands for Lethe, which has no Python package.

    A file with many deletes is compacted as soon as it is written, and every file after some seconds: the bound that Lethe
    sets on how long a deleted value may stay on disk. Lethe's layout by a second key has no counterpart here.
    """

    def _configure(self, options: Options) -> None:
        options.add_compact_on_deletion_collector_factory(_DELETES_WITHIN, _DELETES, _DELETED_SHARE)

    def _configure_open(self, database: Rdict) -> None:
        seconds = str(_PERSIST_SECONDS)
        database.set_options({"ttl": seconds, "periodic_compaction_seconds": seconds})
