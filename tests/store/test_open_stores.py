"""Stores that a process keeps, and how many."""

import numpy as np
import pyarrow as pa
import pytest

from forebay.store import memory, open_stores
from forebay.store.options import Options
from forebay.store.unaligned import UnalignedStore


@pytest.fixture(autouse=True)
def none_kept():
    open_stores.clear()
    yield
    open_stores.clear()


def committed(directory, options):
    keys = np.arange(20_000)
    store = UnalignedStore(directory, None, options)
    store.append(pa.record_batch({"n": keys}), store.index.place_merging(keys, keys, keys, keys + 1))
    store.commit()
    return store


def kept(directories):
    return [directory in open_stores._open for directory in directories]


def test_key_indexes_are_kept_beyond_the_memory_for_rows(tmp_path):
    options = Options(memory_bytes=1 << 20)
    stores = [committed(tmp_path / str(number), options) for number in range(3)]
    assert stores[0].memory_bytes > options.memory_bytes
    for store in stores:
        open_stores.keep(store)
    assert kept(store.directory for store in stores) == [True, True, True]


def test_as_many_stay_as_there_is_memory_for_and_are_used_again(tmp_path):
    options = Options(memory_bytes=1 << 20, kept_bytes=5 << 20)
    stores = [committed(tmp_path / str(number), options) for number in range(3)]
    assert 2 * stores[0].memory_bytes < options.kept_bytes < 3 * stores[0].memory_bytes
    hits = 0
    for _ in range(30):
        for store in stores:
            hits += kept([store.directory]) == [True]
            open_stores.forget(store.directory)
            open_stores.keep(store)
        assert sum(kept(store.directory for store in stores)) == 2
    assert hits > 20


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64 << 30),
        ({"memory.max": "max\n", "cpu.max": "max 100000\n"}, 64 << 30),
        ({"memory.max": f"{8 << 30}\n"}, 8 << 30),
        ({"memory/memory.limit_in_bytes": f"{4 << 30}\n"}, 4 << 30),
    ],
)
def test_what_may_be_kept_follows_from_the_memory_that_there_is(tmp_path, monkeypatch, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.delenv("CONTAINER_ID", raising=False)
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    monkeypatch.setattr(memory.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 16 << 20}.__getitem__)
    monkeypatch.setattr(memory.os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    monkeypatch.setattr(memory.resource, "getrlimit", lambda what: (memory.resource.RLIM_INFINITY,) * 2)
    assert memory.for_kept_stores.__wrapped__() == expected // 16
    monkeypatch.setattr(memory.resource, "getrlimit", lambda what: (512 << 20, 512 << 20))
    assert memory.for_kept_stores.__wrapped__() == min(expected // 16, 128 << 20)
    monkeypatch.setattr(memory.resource, "getrlimit", lambda what: (memory.resource.RLIM_INFINITY,) * 2)
    for quota, cores in (("150000 100000", 2), ("30000 10000", 3), ("9000000 100000", 4)):
        (tmp_path / "cpu.max").write_text(quota)
        assert memory.for_kept_stores.__wrapped__() == expected // 4 // cores
    monkeypatch.setenv("CONTAINER_ID", "container_1_2_3_4")
    assert memory.for_kept_stores.__wrapped__() == 0, (
        "YARN watches its containers, and nothing there says how much they have"
    )
