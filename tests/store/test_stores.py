"""What both aligned stores must do; each is a list of rows (AAR) or a sum per user (RMW) by slice."""

import random
import resource
from collections import defaultdict

import polars as pl
import pyarrow as pa
import pytest

from forebay.errors import CorruptState, StateDirectoryError, VersionNotFound
from forebay.store.aligned import AlignedStore
from forebay.store.filenames import Version
from forebay.store.manifest import Counters
from forebay.store.options import Options
from forebay.store.rmw import open_rmw

SMALL = Options(memory_bytes=1 << 20)


class Rows:
    """An AAR store and what it must hold."""

    def open(self, directory, version=None, options=SMALL):
        return AlignedStore(directory, version, ["user"], options)

    def add(self, store, start, batch):
        store.append(start, batch)

    def expected(self, rows):
        return sorted(rows)

    def found(self, parts):
        return sorted(row for part in parts for row in part.drop("slice").rows())


class Sums(Rows):
    """An RMW store and what it must hold."""

    def open(self, directory, version=None, options=SMALL):
        return open_rmw(directory, version, ["user"], self.merge, options)

    def add(self, store, start, batch):
        store.append(start, self.as_sums(batch))

    def expected(self, rows):
        sums = defaultdict(int)
        for user, n in rows:
            sums[user] += n
        return sorted(sums.items())

    def found(self, parts):
        return sorted(row for part in parts for row in self.merge(part).rows())

    @staticmethod
    def merge(rows):
        return rows.group_by("user").agg(pl.col("n").sum())

    @classmethod
    def as_sums(cls, batch):
        return cls.merge(pl.DataFrame(batch)).to_arrow(compat_level=pl.CompatLevel.oldest()).to_batches()[0]


@pytest.fixture(params=[Rows(), Sums()], ids=["AAR", "RMW"])
def kind(request):
    return request.param


def rows(*pairs):
    return pa.record_batch({"user": pa.array([u for u, _ in pairs]), "n": pa.array([n for _, n in pairs], pa.int64())})


def commit(store):
    return store.commit(None, Counters())


def data_files(directory):
    return list(directory.rglob("*.arrow"))


def test_a_committed_version_is_read_again(kind, tmp_path):
    store = kind.open(tmp_path)
    kind.add(store, 0, rows(("ann", 1), ("bob", 2)))
    kind.add(store, 10, rows(("ann", 3)))
    version = commit(store)
    again = kind.open(tmp_path, version)
    assert again.slices.tolist() == [0, 10]
    assert kind.found(again.get_window([0, 10])) == kind.expected([("ann", 1), ("bob", 2), ("ann", 3)])


def test_what_is_not_committed_does_not_exist(kind, tmp_path):
    store = kind.open(tmp_path)
    kind.add(store, 0, rows(("ann", 1)))
    version = commit(store)
    other = kind.open(tmp_path, version)
    kind.add(other, 0, rows(("ann", 5)))
    other.close()
    assert kind.found(kind.open(tmp_path, version).get_window([0])) == [("ann", 1)]


def test_two_attempts_at_one_version_do_not_meet(kind, tmp_path):
    base = kind.open(tmp_path)
    kind.add(base, 0, rows(("ann", 1)))
    version = commit(base)
    attempts = [kind.open(tmp_path, version) for _ in range(2)]
    for number, attempt in enumerate(attempts):
        kind.add(attempt, 0, rows(("bob", number)))
    versions = [commit(attempt) for attempt in attempts]
    assert versions[0].number == versions[1].number
    for number, attempt in enumerate(versions):
        assert kind.found(kind.open(tmp_path, attempt).get_window([0])) == kind.expected([("ann", 1), ("bob", number)])


def test_dropped_slices_leave_no_files(kind, tmp_path):
    store = kind.open(tmp_path)
    kind.add(store, 0, rows(("ann", 1)))
    version = commit(store)
    for _ in range(2):
        store = kind.open(tmp_path, version)
        store.drop([0])
        version = commit(store)
    assert data_files(tmp_path) == []
    assert store.slices.tolist() == []


def test_a_window_that_fires_in_its_first_batch_is_never_written(kind, tmp_path):
    store = kind.open(tmp_path)
    kind.add(store, 0, rows(("ann", 1)))
    assert kind.found(store.get_window([0])) == [("ann", 1)]
    store.drop([0])
    commit(store)
    assert data_files(tmp_path) == []


def test_a_large_window_comes_in_key_disjoint_partitions(kind, tmp_path):
    store = kind.open(tmp_path)
    written = []
    for number in range(40):
        batch = [(f"user {(number * 7919 + i) % 20_000}", i) for i in range(2_000)]
        written += batch
        kind.add(store, 0, rows(*batch))
    parts = list(kind.open(tmp_path, commit(store)).get_window([0]))
    assert len(parts) > 1
    users = [set(part["user"]) for part in parts]
    assert sum(map(len, users)) == len(set.union(*users))
    assert kind.found(parts) == kind.expected(written)


def test_many_small_batches_become_few_extents(kind, tmp_path):
    version, expected = None, []
    for number in range(100):
        store = kind.open(tmp_path, version)
        kind.add(store, 0, rows(("ann", number), (f"user {number}", 1)))
        expected += [("ann", number), (f"user {number}", 1)]
        version = commit(store)
    last = kind.open(tmp_path, version)
    assert len(last.base.extents) <= 16
    assert len(data_files(tmp_path)) <= 20
    assert kind.found(last.get_window([0])) == kind.expected(expected)


def test_order_of_arrival_is_kept_within_a_slice(tmp_path):
    version = None
    for number in range(50):
        store = Rows().open(tmp_path, version)
        store.append(0, rows(("ann", number)))
        version = commit(store)
    (part,) = Rows().open(tmp_path, version).get_window([0])
    assert part["n"].to_list() == list(range(50))


def test_versions_older_than_retained_are_collected(kind, tmp_path):
    versions = [None]
    for number in range(6):
        store = kind.open(tmp_path, versions[-1], Options(memory_bytes=1 << 20, retain_versions=3))
        kind.add(store, number, rows(("ann", number)))
        versions.append(commit(store))
    for number in (4, 5, 6):
        assert kind.open(tmp_path, versions[number]).slices.tolist() == list(range(number))
    with pytest.raises(VersionNotFound):
        kind.open(tmp_path, versions[3])


def test_leavings_of_a_failed_attempt_are_collected(kind, tmp_path):
    store = kind.open(tmp_path)
    kind.add(store, 0, rows(("ann", 1)))
    version = commit(store)
    failed = kind.open(tmp_path, version)
    kind.add(failed, 0, rows(("bob", 2)))
    commit(failed)
    for _ in range(3):
        store = kind.open(tmp_path, version)
        kind.add(store, 0, rows(("ann", 1)))
        version = commit(store)
    named = {
        segment
        for path in tmp_path.glob("*.manifest")
        for segment in kind.open(tmp_path, Version.parse(path.stem)).base.segments
    }
    assert {path.name for path in data_files(tmp_path)} == named


def test_an_attempt_that_was_overtaken_cannot_harm_its_successors(kind, tmp_path):
    store = kind.open(tmp_path)
    kind.add(store, 0, rows(("ann", 1)))
    version = commit(store)
    overtaken = kind.open(tmp_path, version)
    kind.add(overtaken, 0, rows(("bob", 2)))
    for _ in range(2):
        store = kind.open(tmp_path, version)
        kind.add(store, 0, rows(("ann", 1)))
        version = commit(store)
    with pytest.raises(StateDirectoryError, match="overtaken"):
        commit(overtaken)
    assert kind.found(kind.open(tmp_path, version).get_window([0])) == kind.expected([("ann", 1)] * 3)


def test_segments_that_die_in_the_batch_that_wrote_them_are_unlinked(kind, tmp_path):
    store = kind.open(tmp_path)
    for number in range(20):
        kind.add(store, 0, rows(*((f"user {number} {i}", i) for i in range(2_000))))
    assert data_files(tmp_path)  # the write buffer was full
    store.drop([0])
    commit(store)
    assert data_files(tmp_path) == []


def test_a_damaged_segment_is_an_error_and_other_slices_survive(kind, tmp_path):
    store = kind.open(tmp_path)
    kind.add(store, 0, rows(("ann", 1)))
    version = commit(store)
    (path,) = data_files(tmp_path)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CorruptState, match=path.name):
        list(kind.open(tmp_path, version).get_window([0]))


def test_a_full_disk_is_an_error_of_ours_and_the_last_commit_survives(kind, tmp_path):
    store = kind.open(tmp_path)
    kind.add(store, 0, rows(("ann", 1)))
    version = commit(store)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    store = kind.open(tmp_path, version)
    kind.add(store, 0, rows(*((f"user {i}", i) for i in range(5_000))))
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # the kernel refuses to let a file grow beyond
    try:
        with pytest.raises(StateDirectoryError, match=r"cannot write to .*: File too large.*Committed state is intact"):
            commit(store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    store.close()
    again = kind.open(tmp_path, version)
    assert kind.found(again.get_window([0])) == [("ann", 1)]
    kind.add(again, 0, rows(("bob", 1)))
    commit(again)


def test_random_operations_against_a_model(kind, tmp_path):
    random.seed(7)
    version, model, committed = None, defaultdict(list), {}
    store = kind.open(tmp_path)
    for step in range(1500):
        action = random.choices(["add", "read", "drop", "commit", "crash"], [6, 2, 1, 3, 1])[0]
        start = random.randrange(6) * 10
        if action == "add":
            batch = [(f"user {random.randrange(20)}", random.randrange(100)) for _ in range(random.randrange(1, 60))]
            kind.add(store, start, rows(*batch))
            model[start] += batch
        elif action == "read":
            window = [s for s in (start, start + 10) if s in model]
            assert kind.found(store.get_window(window)) == kind.expected([row for s in window for row in model[s]]), step
        elif action == "drop":
            store.drop([start])
            model.pop(start, None)
        elif action == "commit":
            version, committed = commit(store), {s: list(kept) for s, kept in model.items()}
            store = kind.open(tmp_path, version)
        else:
            store.close()
            store, model = kind.open(tmp_path, version), defaultdict(list, {s: list(kept) for s, kept in committed.items()})
    assert store.slices.tolist() == sorted(model)
