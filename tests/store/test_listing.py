"""Listing 1: what all three stores must do, each against a dict, and random histories with crashes against the same dict."""

import copy
import random
import tempfile
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from forebay.errors import CorruptState, InvalidArgument, StateDirectoryError, VersionNotFound
from forebay.store import extent_log, index_log, segments, window_extents
from forebay.store.filenames import Version
from forebay.store.listing import AarStore, AurStore, RmwStore
from forebay.store.options import Options
from forebay.store.predictors import session

TINY = Options(
    memory_bytes=1 << 20, write_buffer_bytes=600, read_batch_ratio=0.3, max_space_amplification=1.2, retain_versions=3
)
KEYS = ["ann", "bob", "", "ä", "a longer name that is no prefix of another"]
WINDOWS = [(0, 10), (10, 20), (-10, 0), (2**40, 2**40 + 10)]


class Aar:
    """A list per key and window, read by window."""

    def open(self, directory, version=None, options=TINY):
        return AarStore(directory, version, value=pa.int64(), options=options)

    def add(self, store, model, key, value, window):
        store.append(key, value, window)
        model[window].setdefault(key, []).append(value)

    def add_batch(self, store, model, rows):
        for key, value, window in rows:
            store.append_batch(batch([(key, value)]), window)
            model[window].setdefault(key, []).append(value)

    def read(self, store, model, key, window):
        found = {}
        while (part := store.get_window(window)) is not None:
            assert not found.keys() & part.keys()
            found |= part
        assert found == model.pop(window, {})


class Aur(Aar):
    """A list per key and window, read by both."""

    def open(self, directory, version=None, options=TINY):
        return AurStore(directory, version, value=pa.int64(), options=options, predictor=session(5))

    def add(self, store, model, key, value, window):
        store.append(key, value, window, window[0] + value % 10)
        model[window].setdefault(key, []).append(value)

    def add_batch(self, store, model, rows):
        keyed = batch([(key, value) for key, value, _ in rows])
        store.append_batch(keyed, [window for *_, window in rows], [value for _, value, _ in rows])
        for key, value, window in rows:
            model[window].setdefault(key, []).append(value)

    def read(self, store, model, key, window):
        assert store.get(key, window) == model[window].pop(key, [])


class Rmw(Aar):
    """The newest value per key and window."""

    def open(self, directory, version=None, options=TINY):
        return RmwStore(directory, version, value=pa.int64(), options=options)

    def add(self, store, model, key, value, window):
        before = store.get(key, window)
        assert before == model[window].get(key)
        store.put(key, window, (before or 0) + value)
        model[window][key] = (before or 0) + value

    def add_batch(self, store, model, rows):
        store.put_batch(batch([(key, value) for key, value, _ in rows]), [window for *_, window in rows])
        for key, value, window in rows:
            model[window][key] = value

    def read(self, store, model, key, window):
        assert store.get(key, window) == model[window].pop(key, None)


KINDS = {"AAR": Aar(), "AUR": Aur(), "RMW": Rmw()}


def batch(rows):
    return pa.record_batch({"key": pa.array([k for k, _ in rows]), "value": pa.array([v for _, v in rows], pa.int64())})


def read_all(kind, store, model):
    for window in list(model):
        for key in list(model[window]) or [None]:
            kind.read(store, model, key, window)


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request):
    return request.param


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    """Extents, segments and compaction at sizes that tests reach."""
    for name, value, module in (("SEGMENT_BYTES", 1500, segments), ("LEAST_COMPACTED", 0, extent_log)):
        monkeypatch.setattr(module, name, value)
        monkeypatch.setattr(window_extents, name, value)
    monkeypatch.setattr(index_log, "_LEAST_CHANGES", 100)


class TestStores:
    """Every store passes these."""

    def filled(self, kind, directory, rows=500, options=TINY):
        store, model, chance = kind.open(directory, options=options), defaultdict(dict), random.Random(5)
        for number in range(rows):
            kind.add(store, model, f"user {chance.randrange(60)}", number, WINDOWS[chance.randrange(4)])
        return store, model

    def test_what_was_added_is_read_once(self, kind, tmp_path):
        store, model = self.filled(kind, tmp_path / "s")
        expected = copy.deepcopy(model)
        read_all(kind, store, model)
        assert expected
        for window, keys in expected.items():
            for key in keys:
                kind.read(store, defaultdict(dict), key, window)

    def test_a_version_is_opened_again(self, kind, tmp_path):
        store, model = self.filled(kind, tmp_path / "s")
        version = store.commit()
        read_all(kind, store, copy.deepcopy(model))  # the store goes on, but this is not committed
        read_all(kind, kind.open(tmp_path / "s", version), model)

    def test_rows_and_batches_are_one_state(self, kind, tmp_path):
        store, model = self.filled(kind, tmp_path / "s", 50)
        kind.add_batch(store, model, [(f"user {n % 60}", n, WINDOWS[n % 4]) for n in range(100)])
        kind.add(store, model, "ann", 7, (0, 10))
        read_all(kind, store, model)

    def test_versions_go_back(self, kind, tmp_path):
        store, model = kind.open(tmp_path / "s"), defaultdict(dict)
        history = []
        for number in range(3):
            kind.add(store, model, "ann", number, (0, 10))
            history.append((store.commit(), copy.deepcopy(model)))
        for version, then in history:
            read_all(kind, kind.open(tmp_path / "s", version), then)

    def test_a_version_that_does_not_exist(self, kind, tmp_path):
        with pytest.raises(VersionNotFound):
            kind.open(tmp_path / "s", Version(3, "0123abcd"))

    def test_a_window_that_ends_before_it_starts(self, kind, tmp_path):
        with pytest.raises(InvalidArgument, match="ends before"):
            kind.add(kind.open(tmp_path / "s"), defaultdict(dict), "ann", 1, (10, 0))

    def test_rows_of_another_type_are_refused_and_change_nothing(self, kind, tmp_path):
        store, model = self.filled(kind, tmp_path / "s", 20)
        with pytest.raises(InvalidArgument, match="the store holds"):
            kind.add_batch(store, defaultdict(dict), [("ann", 1, (0, 10))][:0] or [(1, 1, (0, 10))])
        read_all(kind, store, model)

    def test_a_snapshot_is_a_store_of_its_own(self, kind, tmp_path):
        store, model = self.filled(kind, tmp_path / "s")
        version = store.snapshot(tmp_path / "copy")
        for path in (tmp_path / "s").iterdir():
            path.unlink()
        read_all(kind, kind.open(tmp_path / "copy", version), model)

    def test_damage_is_found_and_named(self, kind, tmp_path):
        """Of bytes that no live row needs it need not be found; it never changes what is read."""
        store, model = self.filled(kind, tmp_path / "s")
        version = store.commit()
        for path in sorted((tmp_path / "s").iterdir()):
            original, found = path.read_bytes(), 0
            for damaged in (original[: len(original) // 2], *(flipped(original, place / 8) for place in range(1, 8))):
                path.write_bytes(damaged)
                try:
                    read_all(kind, kind.open(tmp_path / "s", version), copy.deepcopy(model))
                except CorruptState as error:
                    found += path.name in str(error)
            assert found > 3
            path.write_bytes(original)
        read_all(kind, kind.open(tmp_path / "s", version), model)

    def test_a_second_writer_is_refused_when_the_first_has_gone_on(self, kind, tmp_path):
        store, model = self.filled(kind, tmp_path / "s", 20)
        version = store.commit()
        other = kind.open(tmp_path / "s", version)
        for _ in range(4):
            kind.add(store, model, "ann", 1, (0, 10))
            store.commit()
        with pytest.raises((StateDirectoryError, CorruptState)):  # by the first who finds that its files have gone
            kind.add(other, defaultdict(dict), "new key", 1, (0, 10))
            other.commit()
        read_all(kind, kind.open(tmp_path / "s", store.version), model)

    def test_space_is_given_back(self, kind, tmp_path):
        store, model = kind.open(tmp_path / "s"), defaultdict(dict)
        for number in range(60):
            rows = [(f"user {number} {n}", n, (number * 10, number * 10 + 10)) for n in range(40)]
            kind.add_batch(store, model, rows)
            store.commit()
            old = (number - 3) * 10
            for key in list(model[old, old + 10]) or [None]:
                kind.read(store, model, key, (old, old + 10))
        for _ in range(4):
            store.commit()
        size = sum(path.stat().st_size for path in (tmp_path / "s").iterdir())
        assert size < 40_000  # 4 of 60 windows, and the key index
        read_all(kind, store, model)

    def test_metrics_count(self, kind, tmp_path):
        store, _ = self.filled(kind, tmp_path / "s")
        store.commit()
        assert store.metrics.writes == 500
        assert store.metrics.disk_bytes > 0


def flipped(data, share):
    place = int(len(data) * share)
    return data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :]


class Histories(RuleBasedStateMachine):
    """Random accesses, commits, crashes and compactions; the store must be the dict at all times."""

    kind = Aar()

    @initialize()
    def begin(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.directory = Path(self.scratch.name, "store")
        self.store, self.model = self.kind.open(self.directory), defaultdict(dict)
        self.versions = []

    @rule(key=st.sampled_from(KEYS), value=st.integers(0, 99), window=st.sampled_from(WINDOWS))
    def add(self, key, value, window):
        self.kind.add(self.store, self.model, key, value, window)

    @rule(many=st.integers(1, 60), seed=st.integers(0, 99))
    def add_many(self, many, seed):
        chance = random.Random(seed)
        rows = [(f"user {chance.randrange(30)}", n, WINDOWS[chance.randrange(4)]) for n in range(many)]
        self.kind.add_batch(self.store, self.model, rows)

    @rule(seed=st.integers(0, 99), window=st.sampled_from(WINDOWS))
    def read(self, seed, window):
        keys = sorted(self.model[window]) or KEYS
        self.kind.read(self.store, self.model, keys[seed % len(keys)], window)

    @rule()
    def commit(self):
        self.versions.append((self.store.commit(), copy.deepcopy(self.model)))
        self.versions = self.versions[-TINY.retain_versions :]

    @rule()
    def compact(self):
        self.store.compact()

    @rule(back=st.integers(0, 2))
    def crash(self, back):
        """The process is gone; the store is opened at one of the versions that are retained."""
        if back < len(self.versions):
            self.versions = self.versions[: len(self.versions) - back]
            version, model = self.versions[-1]
            self.store, self.model = self.kind.open(self.directory, version), copy.deepcopy(model)
        elif not self.versions:
            self.store, self.model = self.kind.open(self.directory), defaultdict(dict)

    def teardown(self):
        read_all(self.kind, self.store, self.model)
        self.scratch.cleanup()


def run_histories(kind, examples):
    class Machine(Histories):
        done = 0

        @invariant()
        def count(self):
            Machine.done += 1

    Machine.kind = kind
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return Machine.done


@pytest.mark.hypothesis
def test_histories(kind):
    run_histories(kind, 20)


@pytest.mark.hypothesis
@pytest.mark.slow
def test_ten_thousand_steps(kind):
    assert run_histories(kind, 300) >= 10_000


def test_null_is_a_key(tmp_path):
    store = AurStore(tmp_path / "s", value=pa.int64())
    store.append_batch(batch([(None, 1), ("ann", 2), (None, 3)]), [(0, 5)] * 3, [0, 0, 0])
    assert (store.get(None, (0, 5)), store.get("ann", (0, 5))) == ([1, 3], [2])
