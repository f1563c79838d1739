"""What a commit of the unaligned store writes, and what a read looks at."""

import itertools
import random

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from forebay.store import extent_log, index_log, key_index, unaligned, window_extents
from forebay.store.disk import LOCAL
from forebay.store.manifest import PICTURES
from forebay.store.options import Options
from forebay.store.pieces import Pieces
from forebay.store.unaligned import SLOT, UnalignedStore


def test_a_change_of_few_windows_writes_few(tmp_path):
    """Of a key index with more slots than what any commit writes of changes alone."""
    options, keys = Options(1 << 22), np.arange(50_000)
    store = UnalignedStore(tmp_path, None, options)
    store.index.place_merging(keys, keys, keys, keys + 5)
    version = store.commit()
    for batch in range(20):
        store = UnalignedStore(tmp_path, version, options)
        some = keys[batch * 100 : batch * 100 + 100]
        store.index.place_merging(some, some, some + 5, some + 9)
        version = store.commit()
        assert sum(path.stat().st_size for path in tmp_path.glob(f"{version}*.arrow")) < 20_000
    index = UnalignedStore(tmp_path, version, options).index
    assert index.windows(index.live()).tolist() == [[key, key + 9 if key < 2000 else key + 5] for key in keys.tolist()]


def test_a_small_commit_writes_two_segments(tmp_path):
    """Rows with their pieces, which go together, and what has changed in the key index."""
    store, made = UnalignedStore(tmp_path, None), []
    for number in range(3):
        keys = np.arange(number * 10, number * 10 + 10)
        store.append(rows(keys), store.index.place_merging(keys, keys, keys, keys + 5))
        if number == 2:
            store.remove(store.index.due(15))  # windows and free slots change
        version = store.commit()
        made += tmp_path.glob(f"{version}*.arrow")
    assert [len(schemas) for schemas in map(schemas_in, sorted(made))] == [2, 1, 2, 1, 2, 2]
    store = UnalignedStore(tmp_path, version)
    assert sorted(store.get(store.index.live())["value"]) == list(range(11, 30))


def schemas_in(path):
    """The schemas of the streams of a segment."""
    found = []
    with path.open("rb") as file:
        while file.tell() < path.stat().st_size:
            found.append(pa.ipc.open_stream(file).read_all().schema)
    return found


def rows(values):
    return pa.record_batch({"value": pa.array(values, pa.int64()), "text": [f"{value:>200}" for value in values]})


def extend(known, key, start, length, value):
    """A row comes, and its window becomes one with those that it touches."""
    touching = [w for w in known if w[0] == key and w[1] <= start + length and start <= w[2]]
    merged = sorted([value, *(v for w in touching for v in known.pop(w))])
    known[key, min([start, *(w[1] for w in touching)]), max([start + length, *(w[2] for w in touching)])] = merged


def check(store, slots, expected):
    """Whether windows have the rows that they should have, in order of arrival if they have absorbed none."""
    found = store.get(slots)
    for slot, values in zip(slots.tolist(), expected, strict=True):
        mine = found.filter(pl.col(SLOT) == slot)["value"].to_list()
        assert sorted(mine) == values
        if store.index.records["sibling"][slot] < 0:
            assert mine == values
            assert [value for part in store.get_one(slot) for value in part["value"].to_pylist()] == values


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
def test_rows_are_found_in_order_of_arrival_whatever_was_written_again(tmp_path, monkeypatch, seed):
    """Extents of few rows, which are combined and cleared a few at a time, pictures of the key index, and restarts."""
    for name, value in (("SEGMENT_BYTES", 1 << 10), ("LEAST_COMPACTED", 0), ("_LEAST_CLEARED", 1), ("_CLEARED", 1)):
        monkeypatch.setattr(window_extents, name, value)
    for name, value in (("_LEAST_CHANGES", 400), ("_MOST_CHANGES", 8)):
        monkeypatch.setattr(index_log, name, value)
    pick = random.Random(seed)
    options = Options(memory_bytes=1 << 20, write_buffer_bytes=1 << 11, read_batch_ratio=pick.choice([0.0, 0.1]))
    store, known, number, pictures = UnalignedStore(tmp_path, None, options), {}, 0, 0
    other, caught_up = None, 0
    for _ in range(60):
        starts = np.array([10 * pick.randrange(30) for _ in range(pick.randrange(1, 80))])
        keys = np.array([pick.randrange(8) for _ in starts])
        lengths = np.array([pick.choice([4, 4, 4, 12]) for _ in starts])  # a long one joins its neighbours
        slots = store.index.place_merging(keys, keys, starts, starts + lengths)
        values = list(range(number, number := number + len(starts)))
        store.append(rows(values), slots)
        for window in zip(keys.tolist(), starts.tolist(), lengths.tolist(), values, strict=True):
            extend(known, *window)
        live = store.index.live()
        some = live[[pick.random() < 0.4 for _ in live]]
        windows = list(zip(store.index.records["high"][some].tolist(), *store.index.windows(some).T.tolist(), strict=True))
        check(store, some, [known[window] for window in windows])
        if pick.random() < 0.7:
            store.remove(some)
            known = {window: values for window, values in known.items() if window not in windows}
        version = store.commit()
        pictures += any(group >= PICTURES for group in store._log.groups.tolist())
        turn = pick.random()
        if turn < 0.2:
            store = UnalignedStore(tmp_path, version, options)
        elif turn < 0.6:  # another process goes on, which has an older version, or none
            other, store = store, other
            if store is None or not store.catch_up(version, None, LOCAL):
                store = UnalignedStore(tmp_path, version, options)
            else:
                caught_up += 1
    assert pictures > 3
    assert caught_up > 3


def test_a_read_looks_at_the_extents_that_have_its_windows_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(window_extents, "SEGMENT_BYTES", 1 << 16)
    options = Options(read_batch_ratio=0)
    store = UnalignedStore(tmp_path, None, options)
    for batch in range(40):
        keys = np.arange(1000) + 1000 * batch
        store.append(rows(keys), store.index.place_merging(keys, keys, keys, keys))
        store.flush()
    version = store.commit()
    store, looked = UnalignedStore(tmp_path, version, options), []
    extents = store._extents
    monkeypatch.setattr(extents, "take", lambda wanted, take=extents.take: looked.extend(wanted) or take(wanted))
    slots = np.concatenate([store.index.find(key, key) for key in (7, 8, 21_500)])
    assert sorted(store.get(slots)["value"].to_list()) == [7, 8, 21_500]
    assert len(looked) == 2 < len(extents.numbers) / 10


def test_dead_rows_are_cleared_out_a_part_at_a_time(tmp_path, monkeypatch):
    """A commit writes in proportion to what came, though half of all rows have died; after some, files are small again."""
    monkeypatch.setattr(window_extents, "_LEAST_CLEARED", 2 << 20)
    monkeypatch.setattr(window_extents, "SEGMENT_BYTES", 1 << 18)
    store, keys = UnalignedStore(tmp_path, None), np.arange(100_000)
    store.append(rows(keys), store.index.place_merging(keys, keys, keys, keys))
    store.commit()
    live, whole = store.live_bytes, store.metrics.disk_bytes
    store.remove(np.random.default_rng(1).permutation(store.index.live())[:60_000])
    written = []
    for step in range(30):
        some = keys[:100] + 100_000 + 100 * step
        store.append(rows(some), store.index.place_merging(some, some, some, some))
        version = store.commit()
        written.append(sum(path.stat().st_size for path in tmp_path.glob(f"{version}*.arrow")))
    index = store._log.bytes_of(group for group in store._log.groups.tolist() if group >= PICTURES)
    assert sorted(written)[-2] < 4 << 20  # one of them has the key index, too
    assert sum(size > 1 << 20 for size in written) > 3
    assert store.live_bytes - index < live * 0.55
    assert store.metrics.disk_bytes < whole


def test_rows_read_ahead_are_there_when_another_process_had_a_turn(tmp_path):
    found = {}
    for turns in (1, 2):
        directory, keys = tmp_path / str(turns), np.arange(20_000)
        store = UnalignedStore(directory, None)
        store.append(rows(keys), store.index.place_merging(keys, keys, keys, keys))
        version, stores, hits, times = store.commit(), [None] * turns, 0, np.ones(len(keys), np.int64)
        for turn in range(12):
            store = stores[turn % turns]
            if store is None or not (store.base.version == version or store.catch_up(version, None, LOCAL)):
                store = stores[turn % turns] = UnalignedStore(directory, version)
            before = store.metrics.hits
            due = store.index.due(100 * turn + 100)
            later = store.index.due(100 * turn + 600)
            grown = later[~np.isin(later, due)][::9]  # rows come for some that may have been read ahead
            values = store.index.records["high"][grown]
            times[values] += 1
            store.append(rows(values), grown)
            ended = np.sort(store.index.records["high"][due])
            assert sorted(store.get(due)["value"]) == np.repeat(ended, times[ended]).tolist()
            hits += store.metrics.hits - before
            store.remove(due)
            version = store.commit()
        found[turns] = hits
    assert found[1] > 800
    assert found[2] > found[1] // 2


def test_a_store_without_windows_does_not_catch_up_with_all_of_an_index(tmp_path, monkeypatch):
    monkeypatch.setattr(index_log, "_LEAST_CHANGES", 10)
    kept, keys = UnalignedStore(tmp_path, None), np.arange(200)
    kept.index.place_merging(keys[:0], keys[:0], keys[:0], keys[:0])
    other = UnalignedStore(tmp_path, kept.commit())
    other.append(rows(keys), other.index.place_merging(keys, keys, keys, keys))
    version = other.commit()
    assert any(group >= PICTURES for group in other._log.groups.tolist())
    assert not kept.catch_up(version, None, LOCAL)


def test_where_rows_lie_is_known_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(window_extents, "SEGMENT_BYTES", 1 << 12)
    store, keys = UnalignedStore(tmp_path, None), np.arange(300)
    store.append(rows(keys), store.index.place_merging(keys, keys, keys, keys))
    store = UnalignedStore(tmp_path, store.commit())
    read, calls = store._extents._pieces_of, itertools.count()

    def failing(number):
        if next(calls) == 2:
            raise OSError("too many open files")
        return read(number)

    monkeypatch.setattr(store._extents, "_pieces_of", failing)
    with pytest.raises(OSError, match="too many open files"):
        store.get(store.index.live())
    assert sorted(store.get(store.index.live())["value"].to_list()) == keys.tolist()


def small(values):
    return pa.record_batch({"value": pa.array(values, pa.int64())})


def test_rows_that_are_smaller_than_their_pieces_are_cleared_out(tmp_path, monkeypatch):
    for name, value in (("SEGMENT_BYTES", 1 << 14), ("LEAST_COMPACTED", 1 << 14), ("_LEAST_CLEARED", 1 << 16)):
        monkeypatch.setattr(window_extents, name, value)
    store, each = UnalignedStore(tmp_path, None), 4000
    random = np.random.default_rng(3)
    for batch in range(30):
        keys = random.integers(0, 2**62, each)
        store.append(small(keys), store.index.place_merging(keys, keys, keys * 0 + batch, keys * 0 + batch + 2))
        store.remove(store.index.due(batch))
        store.commit()
    assert store._log.rows_of(store._extents.numbers) < 4 * store.index.stored_rows


@pytest.mark.thorough
def test_processes_that_take_turns_look_for_dead_rows_as_seldom_as_one(tmp_path, monkeypatch):
    for name, value in (("SEGMENT_BYTES", 1 << 14), ("LEAST_COMPACTED", 1 << 14), ("_LEAST_CLEARED", 1 << 14)):
        monkeypatch.setattr(window_extents, name, value)
    looked = []
    monkeypatch.setattr(
        Pieces, "live_rows", lambda self, columns, look=Pieces.live_rows: looked.append(1) or look(self, columns)
    )
    counts = {}
    for turns in (1, 2):
        random, directory, stores = np.random.default_rng(5), tmp_path / str(turns), [None] * turns
        directory.mkdir()
        version, keys = None, np.arange(20_000)
        hashes = random.integers(0, 2**62, len(keys))
        for batch in range(60):
            store = stores[batch % turns]
            if store is None or (store.base.version != version and not store.catch_up(version, None, LOCAL)):
                store = stores[batch % turns] = UnalignedStore(directory, version)
            some = hashes[random.permutation(keys)[:500]] if batch else hashes
            slots, _ = store.index.place_counting(some, some)
            store.get(slots)
            store.renew(slots)
            store.append(rows(some), slots)
            version = store.commit()
        counts[turns] = len(looked)
        looked.clear()
    assert 0 < counts[2] < 2 * counts[1]


def wide(count):
    return pa.record_batch({"value": pa.array(np.zeros(count), pa.int64()), "text": ["x" * 10_000] * count})


def narrow(count):
    return pa.record_batch({"value": pa.array(np.zeros(count), pa.int64()), "text": ["x"] * count})


def looked_through(monkeypatch):
    """How many rows the extents have that are looked through for dead rows from now on, one number for each of them."""
    looked = []
    monkeypatch.setattr(
        Pieces,
        "live_rows",
        lambda self, columns, look=Pieces.live_rows: looked.append(self.rows.sum()) or look(self, columns),
    )
    return looked


def test_wide_rows_that_die_are_cleared_out_from_among_many_narrow_ones(tmp_path, monkeypatch):
    """Few rows have died, but most of all bytes; the many rows that live are not looked through for each of those."""
    looked = looked_through(monkeypatch)
    store, keys, random = UnalignedStore(tmp_path, None), np.arange(100_000), np.random.default_rng(1)
    store.append(narrow(len(keys)), store.index.place_merging(keys, keys, keys + 10**9, keys + 10**9))
    version = store.commit()
    live, written, disk = store.live_bytes, 0, []
    for batch in range(40):
        some = random.integers(10**6, 2**62, 300)
        store.append(wide(300), store.index.place_merging(some, some, some * 0 + batch, some * 0 + batch))
        store.remove(store.index.due(batch - 1))
        version = store.commit()
        written += sum(path.stat().st_size for path in tmp_path.glob(f"{version}*.arrow"))
        disk.append(store.metrics.disk_bytes)
    assert max(disk) < 2 * (live + 2 * 3 * 10**6)
    assert written < 2 * 40 * 3 * 10**6
    assert sum(looked) < 64 * 40 * 300


def test_rows_that_lived_long_are_cleared_out_when_nothing_else_comes(tmp_path, monkeypatch):
    looked = looked_through(monkeypatch)
    store, keys = UnalignedStore(tmp_path, None), np.arange(100_000)
    store.append(narrow(len(keys)), store.index.place_merging(keys, keys, keys + 10**9, keys + 10**9))
    store.commit()
    live, some = store.live_bytes, keys[:1000] + 10**6
    store.append(wide(len(some)), store.index.place_merging(some, some, some, some))
    store.commit()
    for batch in range(40):
        store.index.schedule(some[-1:] * 0, batch)  # a micro-batch in which no row dies
        store.commit()
    assert not looked
    store.remove(store.index.due(10**8))
    store.index.schedule(np.zeros(1, np.int32), 7)
    store.commit()
    assert sum(looked) <= 32 * len(some)
    assert store.metrics.disk_bytes < 1.5 * live


def test_narrow_rows_that_die_do_not_have_wide_ones_written_again(tmp_path):
    store, keys = UnalignedStore(tmp_path, None), np.arange(50_000)
    store.append(wide(1000), store.index.place_merging(keys[:1000], keys[:1000], keys[:1000], keys[:1000] + 10**9))
    store.flush()
    store.append(narrow(len(keys)), store.index.place_merging(keys, keys + 1, keys + 2 * 10**9, keys + 2 * 10**9))
    store.commit()
    store.remove(store.index.live()[1000:])
    version = store.commit()
    assert sum(path.stat().st_size for path in tmp_path.glob(f"{version}*.arrow")) < 3 * 10**6


def narrow_and_wide(directory, options):
    """A store with 50,000 windows of a narrow row, and 2,000 that end sooner, of a wide one."""
    store, keys = UnalignedStore(directory, None, options), np.arange(50_000)
    store.append(narrow(len(keys)), store.index.place_merging(keys, keys, keys + 10**9, keys + 10**9))
    store.commit()
    for some in np.split(keys[:2000] + 10**6, 10):
        store.append(wide(len(some)), store.index.place_merging(some, some, some, some))
        version = store.commit()
    return UnalignedStore(directory, version, options)


def test_wide_rows_are_read_ahead_as_far_as_they_fit_however_many_narrow_ones_there_are(tmp_path):
    options = Options(4 << 20, read_batch_ratio=0.1)
    store = narrow_and_wide(tmp_path, options)
    store.get(store.index.due(10**6))
    assert options.memory_bytes // 8 < store.metrics.prefetched_bytes <= options.memory_bytes // 4


def test_the_bytes_of_windows_are_those_of_the_extents_in_which_their_rows_lie(tmp_path, monkeypatch):
    store = narrow_and_wide(tmp_path, Options(read_batch_ratio=0))
    due = store.index.due(10**8)
    expected = np.array([wide(1).nbytes] * len(due))
    assert store.bytes_of(due) == pytest.approx(expected, rel=0.05)
    monkeypatch.setattr(window_extents, "MAX_EXTENTS", 0)
    store.index.schedule(due, 10**8)
    store.commit()  # has put extents together
    assert store.bytes_of(due) == pytest.approx(expected, rel=0.05)
    store.remove(due[:1500])
    store.commit()
    store.append(wide(1), due[-1:])
    store.flush()
    expected[-1] *= 2
    assert store.bytes_of(due[1500:]) == pytest.approx(expected[1500:], rel=0.05)


def test_where_rows_lie_is_not_read_to_weigh_windows_that_have_none_on_disk(tmp_path):
    store = narrow_and_wide(tmp_path, Options())
    key = np.array([7], np.int64)
    slots = store.index.place_merging(key, key, key, key)
    store.append(wide(1), slots)
    assert store.bytes_of(slots).tolist() == [0]
    assert not store._extents.loaded


@pytest.mark.parametrize("seed", range(4))
def test_slots_that_many_windows_had_go_when_few_are_left_and_no_row_comes_back(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(key_index, "_LEAST_TRIMMED", 1 << 10)
    monkeypatch.setattr(index_log, "_MOST_CHANGES", 3)
    for module in (extent_log, window_extents):
        monkeypatch.setattr(module, "LEAST_COMPACTED", 1 << 12)
    pick, options = np.random.default_rng(seed), Options(1 << 20, write_buffer_bytes=1 << 14, read_batch_ratio=0.3)
    store, other, version, expected, trimmed, number = None, None, None, {}, 0, 0
    for step in range(60):
        if store is None or not store.catch_up(version, None, LOCAL):
            store = UnalignedStore(tmp_path / "store", version, options)
        some = 4000 if step % 20 == 3 else int(pick.integers(1, 60))
        keys = np.concatenate([np.arange(number, number + some), [key for key in expected if pick.random() < 0.1]]).astype(
            int
        )
        number += some
        slots = store.index.place_exact(keys * 0x9E3779B9, keys, keys * 0, keys % 97)
        store.append(pa.record_batch({"n": keys * 100 + step}), slots)
        for key in keys.tolist():
            expected.setdefault(key, []).append(key * 100 + step)
        ending = np.array([key for key in expected if pick.random() < 0.6], int)
        slots = store.index.find_each(ending * 0x9E3779B9, ending, ending * 0, ending % 97)
        assert sorted(store.get(slots)["n"] if len(slots) else []) == sorted(n for key in ending for n in expected.pop(key))
        store.remove(slots)
        before = store.index.capacity
        version = store.commit()
        trimmed += store.index.capacity < before
        assert len(store.index) == len(expected)
        store, other = (other, store) if step % 4 else (None, None)  # two take turns, and now and then there are new ones
    assert trimmed > 1
    store = UnalignedStore(tmp_path / "store", version, options)
    assert sorted(store.get(store.index.live())["n"]) == sorted(n for numbers in expected.values() for n in numbers)
    assert store.index.capacity < 4000


@pytest.mark.parametrize("often", [1, 2, 3])
def test_nothing_in_memory_names_slots_that_have_gone(tmp_path, monkeypatch, often):
    """Windows that come later get slots, and generations, that others had of whom rows were read ahead."""
    monkeypatch.setattr(key_index, "_LEAST_TRIMMED", 64)
    monkeypatch.setattr(index_log, "_MOST_CHANGES", 1)
    for module in (extent_log, window_extents):
        monkeypatch.setattr(module, "LEAST_COMPACTED", 0)
    store, keys = UnalignedStore(tmp_path / "store", None, Options(64 << 20, read_batch_ratio=0.5)), np.arange(2000)

    def put(first, some=keys):
        slots = store.index.place_exact(some + first, some + first, some, some + 10)
        store.append(pa.record_batch({"n": some + first}), slots)
        return slots

    slots = put(0)
    for turn in range(1, often):  # the slots have later generations
        store.commit()
        store.get(slots)
        store.remove(slots)
        slots = put(turn * 10_000)
    store.commit()
    assert store.get(slots[1000:1001])["n"].to_list() == [(often - 1) * 10_000 + 1000]
    assert store.metrics.prefetched_rows >= 900
    store.remove(slots)
    before = store.index.capacity
    for _ in range(10):
        store.commit()
        store.remove(put(0, keys[:1]))
    store.commit()
    assert store.index.capacity < before // 4
    assert len(store._ahead.buffer) == 0
    slots = put(90_000)
    store.commit()
    assert sorted(store.get(slots)["n"]) == (keys + 90_000).tolist()
    assert store.get(slots[1500:1501])["n"].to_list() == [91_500]


@pytest.mark.parametrize("merging", [True, False], ids=["sums", "one for each of many slices"])
def test_windows_that_stay_open_do_not_gain_a_partial_aggregate_with_each_commit(tmp_path, monkeypatch, merging):
    """Large extents are merged no more: here none is, as where a commit has several megabytes."""
    monkeypatch.setattr(window_extents, "MAX_EXTENTS", 1000)
    monkeypatch.setattr(unaligned, "_LEAST_MERGED", 50)
    chance, sums, version, stored = np.random.default_rng(0), np.zeros(300, np.int64), None, []

    def merged(frame):
        if merging:
            return frame.group_by(SLOT, maintain_order=True).agg(pl.col("value").sum()).select("value", SLOT)
        return frame

    for commit in range(200):
        store = UnalignedStore(tmp_path, version, Options(retain_versions=2), merged)
        keys = np.sort(chance.choice(300, 200, replace=False))
        values = chance.integers(0, 100, 200)
        sums[keys] += values
        slots = store.index.place_exact(keys, keys, np.zeros(200, np.int64), np.full(200, 10**6))
        store.append(pa.record_batch({"value": values}), slots)
        if commit % 50 == 7:  # one absorbs another one, and is left as it is
            store.append(pa.record_batch({"value": [0, 0, 0]}), absorbing(store, commit))
        version = store.commit()
        stored.append(int(store.index.records["stored"].max()))
    assert (max(stored) <= 2 * unaligned._MANY_ROWS) == merging
    store = UnalignedStore(tmp_path, version, Options(), merged)
    found = store.get(store.index.due(10**6)).group_by(SLOT).agg(pl.col("value").sum())
    assert sorted(found["value"]) == sorted(sums)


def test_windows_that_have_many_partial_aggregates_at_once_do_not_fill_the_memory(tmp_path, monkeypatch):
    """As those have that began together, and whose aggregates are not made smaller."""
    monkeypatch.setattr(unaligned, "_MANY_ROWS", 8)
    monkeypatch.setattr(unaligned, "_LEAST_MERGED", 20_000)
    options, keys, most, renew = Options(8 << 20), np.arange(20_000), [], UnalignedStore.renew
    monkeypatch.setattr(UnalignedStore, "renew", lambda self, *args: (most.append(self._written.nbytes), renew(self, *args)))
    store = UnalignedStore(tmp_path, None, options, lambda frame: frame)
    for commit in range(12):
        store.append(rows(keys + commit), store.index.place_exact(keys, keys, keys * 0, keys * 0 + 10**6))
        store.commit()
    assert most
    assert max(most) < 5 * options.write_buffer_bytes
    assert len(store.get(store.index.live())) == 12 * len(keys)


def absorbing(store, commit):
    """The windows of three rows, of which the third is near both of the others."""
    key, start = np.full(3, 1000 + commit), np.array([0, 20, 10]) + 10**7
    return store.index.place_merging(key, key, start, start + 15)


def test_what_is_left_of_extents_becomes_few(tmp_path, monkeypatch):
    """One window in fifty never ends: each commit would leave a small extent among the large ones of later commits."""
    monkeypatch.setattr(window_extents, "SEGMENT_BYTES", 1 << 17)
    monkeypatch.setattr(window_extents, "_LEAST_CLEARED", 1 << 19)
    monkeypatch.setattr(extent_log, "LEAST_COMPACTED", 0)
    store, extents = UnalignedStore(tmp_path, None, Options(retain_versions=2)), []
    for commit in range(120):
        keys = np.arange(commit * 1000, commit * 1000 + 1000)
        end = np.where(keys % 50 == 0, 10**9, commit + 2)
        store.append(rows(keys), store.index.place_exact(keys, keys, np.zeros(1000, np.int64), end))
        store.remove(store.index.due(commit))
        version = store.commit()
        extents.append(len(store._extents.numbers))
    assert max(extents) < 60
    store = UnalignedStore(tmp_path, version)
    assert sorted(store.get(store.index.due(10**9)).filter(pl.col("value") % 50 == 0)["value"]) == [*range(0, 120_000, 50)]
