"""The key index against a plain model: windows of a key that touch become one, through removals and restarts."""

import random

import numpy as np
import pytest

from forebay.store import index_kernels as kernels
from forebay.store import key_index
from forebay.store.key_index import KeyIndex


class Model:
    """Disjoint windows by key."""

    def __init__(self):
        self.windows = {}

    def place(self, key, start, end):
        touching = [(s, e) for s, e in self.windows.get(key, []) if s <= end and start <= e]
        apart = [window for window in self.windows.get(key, []) if window not in touching]
        bounds = [(start, end), *touching]
        self.windows[key] = [*apart, (min(s for s, _ in bounds), max(e for _, e in bounds))]

    def remove(self, watermark):
        for key in self.windows:
            self.windows[key] = [(s, e) for s, e in self.windows[key] if e > watermark]

    def found(self):
        return sorted((key, *window) for key, windows in self.windows.items() for window in windows)


def identities(keys):
    """Two keys in three share all the bits that the directory has of them, and lie around its end; some are negative."""
    keys = np.asarray(keys, np.int64)
    low = np.where(keys % 3 == 0, keys, kernels.TAG) | keys << 40
    return keys, np.where(keys % 2 == 0, low, low | np.int64(-(2**63)))


def found(index):
    live = index.live()
    rows = zip(index.records["high"][live].tolist(), *index.windows(live).T.tolist(), strict=True)
    return sorted(rows)


@pytest.fixture(params=[0, 4], ids=["in order of time", "as they come"])
def _steps(request, monkeypatch):
    """How soon rows are placed in the order of their times."""
    monkeypatch.setattr(key_index, "_STEPS", request.param)


@pytest.mark.usefixtures("_steps")
@pytest.mark.parametrize("seed", range(6))
def test_windows_that_touch_become_one_through_removals_and_restarts(seed):
    pick = random.Random(seed)
    index, model, saved, picture, watermark = KeyIndex(), Model(), [], None, 0
    for _ in range(30):
        rows = [
            (pick.randrange(40), watermark + pick.randrange(400), pick.randrange(1, 30)) for _ in range(pick.randrange(200))
        ]
        if pick.random() < 0.5:
            rows.sort()
        keys, starts, lengths = (
            (np.array(column, np.int64) for column in zip(*rows, strict=True)) if rows else [np.array([], int)] * 3
        )
        slots = index.place_merging(*identities(keys), starts, starts + lengths)
        for key, start, length in rows:
            model.place(key, start, start + length)
        bounds = index.windows(index.roots(slots))
        assert (bounds[:, 0] <= starts).all() and (starts + lengths <= bounds[:, 1]).all()
        watermark += pick.randrange(200)
        index.remove(index.due(watermark))
        model.remove(watermark)
        assert found(index) == model.found()
        if pick.random() < 0.1:
            saved, picture = [], index.picture()
        else:
            saved.extend(index.changes())
        if pick.random() < 0.3:
            rows, index = index.stored_rows, KeyIndex.restored(saved, picture)
            assert found(index) == model.found()
            assert index.stored_rows == rows == index.records["stored"].sum()
            assert index.earliest() == min((end for _, _, end in model.found()), default=kernels.LATEST)
        live = index.live()
        index.store(live[::2], np.arange(len(live[::2])))
        index.store_more(live[1::2], np.arange(len(live[1::2])))
        assert index.stored_rows == index.records["stored"].sum()
    for key in range(40):
        high, low = identities([key])
        there = index.find(int(high[0]), int(low[0]))
        assert sorted(map(tuple, index.windows(there).tolist())) == sorted(model.windows.get(key, []))


def test_rows_on_disk_are_counted_as_far_as_a_slot_can_count():
    index, key = KeyIndex(), np.array([1, 2], np.int64)
    slots = index.place_merging(key, key, key, key)
    index.changes()
    index.store_more(slots, np.array([3, 2**31 - 2], np.int32))
    index.store_more(slots[1:], np.array([5], np.int32))
    assert index.stored(slots).tolist() == [3, 2**31 - 1]
    assert index.stored_rows == 2**31 + 2
    assert index.touched == 2


def test_what_a_window_has_absorbed_goes_with_it_after_a_restart():
    """The changes of a version may have only the window that absorbed others, not those."""
    index, key = KeyIndex(), np.array([1], np.int64)
    for start in (0, 20, 10):  # the last one joins the other two
        (slot,) = index.place_merging(key, key, np.array([start]), np.array([start + 10]))
    saved = index.changes()
    index.schedule(np.array([slot], np.int32), 40)
    restored = KeyIndex.restored([*saved, *index.changes()])
    assert len(restored) == 2
    restored.remove(restored.live())
    assert len(restored) == 0


@pytest.mark.usefixtures("_steps")
@pytest.mark.parametrize("seed", range(3))
def test_a_window_is_found_again_by_its_bounds_whatever_the_order(seed):
    """Windows of a key that begin together, that come as sliding windows do or in no order, removals and restarts."""
    pick = random.Random(seed)
    index, known, saved = KeyIndex(), {}, []
    for step in range(40):
        rows = [(pick.randrange(5), 10 * pick.randrange(8), pick.randrange(1, 4)) for _ in range(pick.randrange(1, 120))]
        if step % 2:
            rows.sort(key=lambda row: (row[0], -row[1]))
        keys, starts, lengths = (np.array(column, np.int64) for column in zip(*rows, strict=True))
        slots = index.place_exact(*identities(keys), starts, starts + lengths)
        for slot, row in zip(slots.tolist(), rows, strict=True):
            assert known.setdefault(row, slot) == slot
        assert len(set(known.values())) == len(known) == len(index)
        for key in range(5):
            chain, _ = index.windows_of(*identities([key]))
            assert sorted(chain.tolist()) == sorted(slot for row, slot in known.items() if row[0] == key)
        gone = [row for row in known if pick.random() < 0.2]
        index.remove(np.array([known.pop(row) for row in gone], np.int32))
        saved.extend(index.changes())
        if step % 7 == 6:
            index = KeyIndex.restored(saved)


@pytest.mark.parametrize("seed", range(4))
def test_windows_are_due_by_their_estimates_through_changes_and_restarts(seed):
    pick = np.random.default_rng(seed)
    index, saved, picture = KeyIndex(), [], None
    for step in range(40):
        keys = pick.integers(0, 3000, 20 if step else 3000)
        slots, _ = index.place_counting(*identities(keys))
        index.schedule(slots, pick.integers(10 * step, 10 * step + 2000, len(slots)))
        index.schedule(pick.choice(index.live(), 5), 10 * step)  # sooner than they were
        live = index.live()
        due = live[index.estimates(live) <= 10 * step]
        assert index.due_by_estimate(10 * step).tolist() == due.tolist()
        later, gone = np.array_split(due, 2)
        index.schedule(later, 10 * step + 50)
        index.remove(gone)
        assert index.earliest_estimate() == index.estimates(index.live()).min()
        saved += index.changes()
        if step % 7 == 6:
            index = KeyIndex.restored(saved, picture)
            saved, picture = [], index.picture()
    index.remove(index.live())
    assert index.earliest_estimate() == kernels.LATEST


def test_nothing_is_left_of_windows_that_have_ended_but_the_generations_of_their_slots():
    """A picture does not have their keys and bounds, nor has an index that got to know of their end by changes."""
    keys = np.random.default_rng(1).integers(-(2**62), 2**62, 20_000)
    index = KeyIndex()
    index.place_merging(keys, keys, keys % 1000, keys % 1000 + 5)
    index.place_merging(keys, keys, keys % 1000 + 20, keys % 1000 + 25)
    index.place_merging(keys, keys, keys % 1000 + 3, keys % 1000 + 21)  # what lies between two windows makes them one
    saved, whole = index.changes(), index.picture().nbytes
    index.remove(index.due(2000))
    saved += index.changes()
    assert len(index) == 0
    parts = index.picture().to_pylist()
    assert len(next(part["data"] for part in parts if part["part"] == "records")) < whole / 100
    for ended in (index, KeyIndex.restored(saved)):
        free = ended.records[: 2 * len(keys)]
        assert (free["generation"] == 2).all()
        assert not any(free[name].any() for name in ("high", "low", "start", "end", "ett", "stored"))


def backwards(count):
    """The times of a session that grows in the bad order: each row two gaps ahead is followed by the one between."""
    times = np.arange(2 * count + 1)
    times[1::2], times[2::2] = times[2::2].copy(), times[1::2].copy()
    return 10 * times


class Records:
    """Records of an index that count how often one is looked at."""

    def __init__(self, index):
        self._records, self.looks = index.records.view(np.recarray), 0

    def __getitem__(self, slot):
        self.looks += 1
        return self._records[slot]


def test_the_shorter_chain_of_two_windows_that_become_one_is_walked_through():
    """Which of two windows has absorbed thousands does not matter."""
    for into_many in (False, True):
        index, times = KeyIndex(), backwards(500)
        key = np.zeros(len(times) + 1, np.int64)
        one = np.array([times.max() + 100])
        slots = index.place_merging(key, key, *(np.append(times, one) + add for add in (0, 10)))
        many, single = index.roots(slots[[0, -1]]).tolist()
        into, other = (many, single) if into_many else (single, many)
        records = Records(index)
        kernels.absorb.py_func(records, index._dirty, index._scalars, into, other)
        assert records.looks < 30
        assert (index.roots(slots) == into).all()
        chain, slot = [into], index.records["sibling"][into]
        while slot >= 0:
            chain.append(int(slot))
            slot = index.records["sibling"][slot]
        assert sorted(chain) == list(range(len(index)))


def test_a_window_that_has_absorbed_thousands_meets_others_before_and_after_it():
    index, times = KeyIndex(), backwards(2000)
    key = np.zeros(len(times), np.int64)
    slots = index.place_merging(key, key, times, times + 10)
    end = int(times.max()) + 10
    assert index.windows(np.unique(index.roots(slots))).tolist() == [[0, end]]
    saved = index.changes()
    for start, length in ((end + 10, 5), (end, 10), (-20, 5), (-15, 15)):
        one = np.array([start])
        index.place_merging(key[:1], key[:1], one, one + length)
    assert index.touched <= 8
    assert len(index.live()) == 1
    restored = KeyIndex.restored([*saved, *index.changes()])
    for known in (index, restored):
        assert known.windows(np.unique(known.roots(slots))).tolist() == [[-20, end + 15]]
        known.remove(known.live())
        assert len(known) == 0


def depth(index, slot):
    """How many windows lie between a slot and what it belongs to."""
    steps, parent = 0, index.records["parent"]
    while parent[slot] >= 0:
        steps, slot = steps + 1, parent[slot]
    return steps


def test_the_way_to_what_has_absorbed_a_window_becomes_short():
    index, times = KeyIndex(), backwards(2000)
    key = np.zeros(len(times), np.int64)
    slots = index.place_merging(key, key, times, times + 10)
    saved = index.changes()
    first = int(slots[0])
    before = depth(index, first)
    assert before > 1000
    for _ in range(12):
        index.roots(slots[:1])
    assert depth(index, first) == 1
    assert index.touched == 0
    assert KeyIndex.restored(saved).roots(slots).tolist() == index.roots(slots).tolist()


@pytest.mark.parametrize("place", [kernels.place_merging, kernels.place_exact])
def test_a_search_ends_after_so_many_steps(place):
    """In order of time, either way, each search takes a step or two, however many windows a key has."""
    count = 4000
    key, random = np.ones(count, np.int64), np.random.default_rng(1)
    index = KeyIndex()
    starts = 10 * np.arange(count)
    index.place_exact(key, key, starts, starts + 5)
    for some, steps in ((starts, 2), (starts[::-1], 2), (random.permutation(starts), 200)):
        found = np.empty(count, np.int32)
        placed = place(*index._state, key, key, some, some + 5, some + 5, steps * count, found)
        assert (placed == count) == (steps == 2)
        assert (index.records["start"][found[:placed]] == some[:placed]).all()


def test_rows_of_neighbours_are_together_and_those_of_a_key_stay_in_their_order():
    random, index = np.random.default_rng(7), KeyIndex()
    keys = random.integers(-(2**63), 2**63 - 1, 20_000)
    index.place_exact(keys, keys, np.zeros(len(keys), np.int64), np.ones(len(keys), np.int64))
    rows = random.permutation(np.repeat(keys, 3))
    order = index.neighbours_together(rows)
    assert np.array_equal(np.sort(order), np.arange(len(rows)))
    places = rows[order] & kernels.TAG & 0xFFFF
    assert (np.diff(places >> 12) >= 0).all() and len(np.unique(places >> 12)) == 16
    for key in keys[:50]:
        assert (np.diff(order[rows[order] == key]) > 0).all()


@pytest.mark.parametrize("pictured", [False, True])
def test_an_index_that_was_read_gives_the_slots_that_one_in_memory_gives(pictured):
    """So an attempt at a micro-batch gives results in the order of the attempt before, wherever it runs."""
    random, index, changes, picture = np.random.default_rng(3), KeyIndex(), [], None
    for batch in range(12):
        keys = random.integers(0, 3000, 4000) * 0x9E3779B97F4A7C1
        start = batch * 10 + random.integers(0, 10, len(keys))
        read = KeyIndex.restored(changes, picture)
        slots = []
        for each in (read, index):
            rows = each.neighbours_together(keys)
            slots.append(each.place_merging(keys[rows], keys[rows], start[rows], start[rows] + 7)[np.argsort(rows)])
        assert np.array_equal(*slots)
        assert np.array_equal(*(each.due(batch * 10) for each in (read, index)))
        index.remove(index.due(batch * 10))
        if pictured:
            changes, picture = [], index.picture()
        else:
            changes += index.changes()


def test_a_key_that_is_there_is_no_change():
    index, keys = KeyIndex(), np.array([5, 7, 5])
    slots, first = index.place_first(keys, keys)
    assert (slots[0] == slots[2], first.tolist()) == (True, [True, True, False])
    assert index.touched == 2
    index.changes()
    slots, first = index.place_first(np.array([7, 9]), np.array([7, 9]))
    assert (first.tolist(), index.touched) == ([False, True], 1)
    assert index.records["high"][slots].tolist() == [7, 9]


def test_a_window_that_is_removed_twice_is_removed_once():
    index, one = KeyIndex(), np.arange(1, dtype=np.int64)
    slots = index.place_merging(one, one, one, one + 5)
    index.remove(np.repeat(slots, 2))
    index.remove(slots)
    assert len(index) == 0
    again = index.place_merging(one, one, one, one + 5)
    assert (again.tolist(), index.generations(again).tolist()) == (slots.tolist(), [3])


def test_windows_that_end_together_are_due_in_the_order_of_their_slots():
    index, keys = KeyIndex(), np.arange(1000, dtype=np.int64)
    index.place_exact(keys, keys, keys * 0, keys % 7)
    assert index.due(7).tolist() == sorted(range(1000), key=lambda slot: slot % 7)
