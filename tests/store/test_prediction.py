"""The unaligned store: prediction, merged windows and space, where a mistake would lose rows or double them."""

import resource

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from forebay.errors import StateDirectoryError
from forebay.store import index_log, window_extents
from forebay.store.options import Options
from forebay.store.unaligned import SLOT, UnalignedStore
from forebay.windows import ENDLESS

EAGER = Options(memory_bytes=1 << 20, read_batch_ratio=0.9)


def store_at(path, version=None, options=EAGER):
    return UnalignedStore(path / "store", version, options)


def add(store, key, start, end, values=None):
    key, start, end = (np.atleast_1d(np.asarray(each, np.int64)) for each in (key, start, end))
    slots = store.index.place_merging(key, key, start, end)
    values = np.arange(len(key)) if values is None else np.atleast_1d(values)
    store.append(pa.record_batch({"n": pa.array(values), "pad": pa.array(["x" * 100] * len(key))}), slots)
    return slots


def values(store, slots):
    return sorted(store.get(slots)["n"].to_list())


def test_hits_survive_the_evictions_of_misses_that_are_read_with_them(tmp_path):
    store = store_at(tmp_path)
    keys = np.arange(5000)
    slots = add(store, keys, keys + 10_000, keys + 10_001)
    store.commit()
    assert values(store, slots[:1]) == [0]
    store.remove(slots[:1])  # many of the next ones are prefetched
    add(store, keys + 5000, keys, keys + 1, keys + 5000)  # and these are nearer
    store.commit()
    rest = np.concatenate([slots[1:500], slots[4000:]])
    assert values(store, rest) == [*range(1, 500), *range(4000, 5000)]
    assert store.metrics.hits > 0
    assert store.metrics.evictions > 0


@pytest.mark.parametrize("prefetched", [0, 10])
def test_merged_sessions_are_read_once_wherever_their_rows_are(tmp_path, prefetched):
    """Of two sessions that merge, one was prefetched; the row that joins them is in the write buffer, or on disk too."""
    for flushed in (False, True):
        store = store_at(tmp_path / str(flushed), options=Options(1 << 20, read_batch_ratio=0.4))
        others = np.arange(100, 103)
        add(store, [1, 1], [0, 20], [5, 25], [1, 2])
        add(store, others, others * 0 + prefetched, others * 0 + prefetched + 1, [7, 8, 9])
        store.commit()
        gone = store.index.find(100, 100)
        assert values(store, gone) == [7]  # others of the nearest windows are prefetched
        store.remove(gone)
        joined = add(store, 1, 4, 21, 3)
        if flushed:
            store.flush()
        more = store.index.find(101, 101)
        values(store, more)
        store.remove(more)
        assert values(store, store.index.roots(joined)) == [1, 2, 3]


def test_a_merged_window_whose_members_are_evicted_is_read_from_disk(tmp_path):
    store = store_at(tmp_path)
    keys = np.arange(1, 4000)
    add(store, keys, keys, keys + 10)
    store.commit()
    first = store.index.find(1, 1)
    values(store, first)
    store.remove(first)  # most of the others are prefetched now
    far = add(store, [3998, 3998], [4100, 4000], [4200, 4110], [-1, -2])  # joins a session that is in the prefetch buffer
    for key in range(2, 60):
        slots = store.index.find(key, key)
        assert values(store, slots) == [key - 1]
        store.remove(slots)
        assert store._ahead.make_room(np.zeros(1, np.int64), np.array([60_000])).all()  # as if a near window were that large
    assert store.metrics.evictions > 0
    assert values(store, store.index.roots(far[:1])) == [-2, -1, 3997]


@pytest.mark.parametrize("asked", [[], [3999], range(3000, 4000, 7)])
def test_windows_that_are_due_next_stay_when_others_are_asked_for(tmp_path, asked):
    store, keys = store_at(tmp_path), np.arange(4000)
    slots = add(store, keys, keys, keys)
    store.commit()
    for key in [*range(11), *asked]:
        assert values(store, slots[key : key + 1]) == [key]
        store.remove(slots[key : key + 1])
    assert store.metrics.misses == 1 + len(asked)
    for key in range(11, 1500):
        assert values(store, slots[key : key + 1]) == [key]
        store.remove(slots[key : key + 1])
    assert store.metrics.misses == 1 + len(asked)


def test_a_prefetch_buffer_of_rows_that_are_all_gone(tmp_path):
    store = store_at(tmp_path)
    keys = np.arange(4000)
    slots = add(store, keys, keys, keys + 1)
    store.commit()
    for part in np.array_split(slots, 7):
        store.get(part)
        store.remove(part)
    add(store, [9, 10], [0, 0], [5, 5], [1, 2])
    store.commit()
    assert values(store, store.index.due(2**60)) == [1, 2]


def test_the_prefetch_buffer_stays_within_its_budget(tmp_path):
    store = store_at(tmp_path)
    keys = np.arange(100)
    add(store, keys, keys * 0, keys * 0 + 10)
    store.commit()
    first = store.index.find(0, 0)
    store.get(first)
    store.remove(first)
    for turn in range(1, 200):
        add(store, keys[1:], keys[1:] * 0 + turn, keys[1:] * 0 + turn + 10)
        store.commit()
    assert store._ahead.buffer.nbytes <= EAGER.memory_bytes // 4 + (1 << 16)
    assert len(values(store, store.index.due(2**60))) == 99 * 200


@pytest.mark.thorough
def test_windows_that_end_unread_give_their_space_back(tmp_path, monkeypatch):
    monkeypatch.setattr(window_extents, "LEAST_COMPACTED", 0)
    store = store_at(tmp_path)
    for turn in range(8):
        keys = np.arange(20_000) + turn * 20_000
        store.remove(add(store, keys, keys, keys + 1))
        add(store, keys, keys, keys + 1)
        store.commit()
        store.remove(store.index.due(2**60))
    store.commit()
    store.commit()
    assert not store._extents.numbers
    assert store.metrics.disk_bytes < 20_000_000  # the key index


def test_prediction_reads_what_is_due_next(tmp_path):
    store = store_at(tmp_path, options=Options(memory_bytes=8 << 20, read_batch_ratio=0.1))
    keys = np.arange(1000)
    add(store, keys, keys, keys + 10)
    version = store.commit()
    store = store_at(tmp_path, version, Options(memory_bytes=8 << 20, read_batch_ratio=0.1))
    for watermark in range(10, 1010):
        due = store.index.due(watermark)
        assert values(store, due) == [watermark - 10]
        store.remove(due)
    metrics = store.metrics
    assert metrics.hits + metrics.misses == 1000
    assert metrics.misses == metrics.index_scans < 50
    assert metrics.unused_rows == 0


def test_without_prediction_every_read_is_a_miss(tmp_path):
    store = store_at(tmp_path, options=Options(memory_bytes=8 << 20, read_batch_ratio=0.0))
    keys = np.arange(100)
    add(store, keys, keys, keys + 10)
    store.commit()
    for watermark in range(10, 110):
        due = store.index.due(watermark)
        assert values(store, due) == [watermark - 10]
        store.remove(due)
    assert (store.metrics.hits, store.metrics.misses, store.metrics.index_scans) == (0, 100, 100)


def test_a_session_that_grows_after_it_was_prefetched_is_topped_up(tmp_path):
    store = store_at(tmp_path)
    add(store, [1, 2], [0, 1], [5, 6], [10, 20])
    store.commit()
    one = store.index.find(1, 1)
    assert values(store, one) == [10]
    store.remove(one)
    two = add(store, 2, 6, 11, 21)
    store.flush()
    add(store, 2, 7, 12, 22)
    assert values(store, two) == [20, 21, 22]
    assert (store.metrics.hits, store.metrics.misses) == (1, 1)


def test_rows_that_were_merged_count_as_what_is_left_of_them(tmp_path):
    """Sessions that go on have a row of partial aggregates from each commit, until these are merged on disk."""

    def merge(rows):
        return rows.group_by(SLOT, maintain_order=True).agg(pl.col("n").sum())

    store = UnalignedStore(tmp_path / "store", None, merge=merge)
    keys = np.arange(50)
    for step in range(100):
        slots = store.index.place_merging(keys, keys, keys * 0 + step, keys * 0 + step + 5)
        store.append(pa.record_batch({"n": pa.array(keys * 0 + 1)}), slots)
        version = store.commit()
        if step % 30 == 29:
            store = UnalignedStore(tmp_path / "store", version, merge=merge)
    live = store.index.live()
    assert store.bytes_of(live).sum() <= store.live_bytes
    rows = merge(store.get(live))
    assert rows["n"].to_list() == [100] * 50


def test_the_key_index_survives_snapshots_and_changes(tmp_path, monkeypatch):
    """Random placing, merging and removing over many versions, each opened again."""
    monkeypatch.setattr(index_log, "_LEAST_CHANGES", 500)
    numbers = np.random.default_rng(3)
    store, version, expected = store_at(tmp_path), None, {}
    for turn in range(60):
        keys, starts = numbers.integers(0, 300, 200), turn * 10 + numbers.integers(0, 60, 200)
        add(store, keys, starts, starts + 7, turn * 200 + np.arange(200))
        for key, start, value in zip(keys.tolist(), starts.tolist(), range(turn * 200, turn * 200 + 200), strict=True):
            touching = [w for w in expected.get(key, []) if w[0] <= start + 7 and start <= w[1]]
            rest = [w for w in expected.get(key, []) if w not in touching]
            merged = (min([start, *(w[0] for w in touching)]), max([start + 7, *(w[1] for w in touching)]))
            expected[key] = [*rest, (*merged, [value, *(v for w in touching for v in w[2])])]
        due = store.index.due(turn * 10)
        rows = store.get(due)
        bounds = store.index.windows(due)
        found = sorted((*b, sorted(rows.filter(rows["slot"] == s)["n"])) for s, b in zip(due, bounds.tolist(), strict=True))
        closed = sorted((w[0], w[1], sorted(w[2])) for windows in expected.values() for w in windows if w[1] <= turn * 10)
        assert found == closed, turn
        expected = {key: [w for w in windows if w[1] > turn * 10] for key, windows in expected.items()}
        store.remove(due)
        version = store.commit()
        store = store_at(tmp_path, version)
    assert len(store.index.live()) == sum(map(len, expected.values()))


def test_a_full_disk_in_the_middle_of_a_flush(tmp_path):
    """The last commit is intact; the store that failed can only be closed."""
    store = store_at(tmp_path)
    add(store, [1, 2], [0, 0], [5, 5], [10, 20])
    version = store.commit()
    files = {path.name for path in store.directory.iterdir()}
    keys = np.arange(100, 4000)
    add(store, keys, keys, keys + 5)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # the kernel refuses to let a file grow beyond
    try:
        with pytest.raises(StateDirectoryError, match="Committed state is intact"):
            store.commit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(StateDirectoryError, match="open it again"):
        store.commit()
    store.close()
    assert {path.name for path in store.directory.iterdir()} == files  # or a disk that is full would stay so
    again = store_at(tmp_path, version)
    assert values(again, again.index.due(5)) == [10, 20]


def test_windows_that_are_not_expected_to_fire_are_not_read_ahead(tmp_path):
    store, keys = store_at(tmp_path), np.arange(1000)
    slots = add(store, keys, keys, keys + 1)
    store.index.schedule(slots[10:], ENDLESS)
    store.commit()
    assert values(store, slots[:1]) == [0]
    assert store.metrics.prefetched_rows == 9
    assert values(store, slots[500:503]) == [500, 501, 502]


def test_windows_that_are_nearer_than_what_was_read_ahead_are_read_alone_until_they_are_many(tmp_path):
    store, keys = store_at(tmp_path, options=Options(memory_bytes=8 << 20, read_batch_ratio=0.01)), np.arange(1000)
    add(store, keys, keys + 100, keys + 101)
    store.commit()
    ahead = []
    for key in range(1000, 1024):  # each is opened after the last pass, and ends before all that it has read ahead
        slots = add(store, key, 0, 1, key)
        store.commit()
        assert values(store, slots) == [key]
        store.remove(slots)
        ahead.append(store.metrics.prefetched_rows)
    assert ahead == [10] * 11 + [20] * 11 + [30] * 2
    beyond = store.index.due(200)
    assert values(store, beyond[40:41]) == [40]
    assert store.metrics.prefetched_rows == 40
    assert values(store, beyond[:41]) == list(range(41))


def test_narrow_rows_count_in_memory_with_what_finds_them(tmp_path):
    store = UnalignedStore(tmp_path / "store", None, Options(memory_bytes=8 << 20, write_buffer_bytes=1 << 20))
    keys = np.arange(1 << 14)
    for step in range(8):  # 2 MB of links, and 0.1 MB of rows
        store.append(pa.record_batch({"n": (keys % 100).astype(np.int8)}), store.index.place_counting(keys, keys)[0])
        assert store.memory_bytes - store.index.nbytes <= 1 << 20, step
    assert store._extents.numbers


def test_of_windows_that_are_due_together_those_that_were_not_read_ahead_are_soon(tmp_path):
    store, keys = store_at(tmp_path, options=Options(memory_bytes=8 << 20, read_batch_ratio=0.01)), np.arange(2000)
    slots = add(store, keys, keys * 0, keys * 0 + 1)
    store.commit()
    for begin in range(0, 2000, 5):
        some = slots[begin : begin + 5]
        assert values(store, some) == list(range(begin, begin + 5))
        store.remove(some)
    assert store.metrics.hits > 1500
