"""The configuration of RocksDB that stands for Lethe clears out what was deleted."""

import time

from forebay.harness.access import PUT, accesses
from forebay.harness.stores import open_store

KEYS = 20_000


def written_and_deleted(name, directory):
    directory.mkdir()
    store = open_store(name, directory)
    keys = store.keys(accesses([(PUT, 0, key, 0, 10, 100, 0) for key in range(KEYS)]))
    for number, key in enumerate(keys):
        store.put(key, number.to_bytes(100, "big"))
    store._database.flush()
    for key in keys:
        store.delete(key)
    store._database.flush()
    return store


def entries(store):
    return sum(file["num_entries"] for file in store._database.live_files())


def test_what_was_deleted_is_cleared_out(tmp_path):
    plain = written_and_deleted("rocksdb", tmp_path / "plain")
    aware = written_and_deleted("rocksdb-delete-aware", tmp_path / "aware")
    until = time.monotonic() + 120
    while entries(aware) and time.monotonic() < until:
        time.sleep(0.1)
    assert entries(aware) == 0
    assert entries(plain) == 2 * KEYS
    plain.close()
    aware.close()
