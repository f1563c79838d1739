"""What both aligned stores do beside the contract; each is a list of rows (AAR) or a sum per user (RMW) by slice."""

import errno
from collections import defaultdict

import polars as pl
import pyarrow as pa
import pytest

from forebay.errors import StateDirectoryError
from forebay.store.aligned import AlignedStore
from forebay.store.disk import Disk, Together, reported
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


def test_segments_that_die_in_the_batch_that_wrote_them_are_unlinked(kind, tmp_path):
    store = kind.open(tmp_path)
    for number in range(20):
        kind.add(store, 0, rows(*((f"user {number} {i}", i) for i in range(2_000))))
    assert data_files(tmp_path)  # the write buffer was full
    store.drop([0])
    commit(store)
    assert data_files(tmp_path) == []


def test_what_was_not_committed_is_gone_when_the_store_is_closed(kind, tmp_path):
    store = kind.open(tmp_path)
    kind.add(store, 0, rows(("ann", 1)))
    version = commit(store)
    here = {path.name for path in store.directory.iterdir()}
    for number in range(20):
        kind.add(store, 0, rows(*((f"user {number} {i}", i) for i in range(2_000))))
    assert len(data_files(tmp_path)) > 1
    store.close()
    assert {path.name for path in store.directory.iterdir()} == here
    assert kind.open(tmp_path, version).base.version == version


def test_of_a_task_that_fails_nothing_stays_of_what_its_other_stores_have_committed(tmp_path):
    disk = Together()
    stores = [AlignedStore(tmp_path / name, None, ["user"], SMALL, disk=disk) for name in ("one", "other")]
    for store in stores:
        store.append(0, rows(("ann", 1)))
    commit(stores[0])
    disk.abandon()
    for store in stores:
        store.close()
    disk.settle()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_a_task_puts_is_made_when_it_settles_or_when_it_is_read_or_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr("forebay.store.disk._HELD_BYTES", 10)
    disk, one, other, third = Together(), *(tmp_path / name for name in ("one", "other", "third"))
    disk.put(one, b"12345")
    disk.put(other, b"12345")
    assert list(tmp_path.iterdir()) == []
    disk.flush(one)
    assert list(tmp_path.iterdir()) == [one]
    disk.unlink(other)  # which never was
    disk.put(other, b"1234567890")
    assert list(tmp_path.iterdir()) == [one]
    disk.put(third, b"1")
    assert sorted(tmp_path.iterdir()) == [one, other, third]
    disk.unlink(third)
    assert third.exists()
    disk.settle()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"one": b"12345", "other": b"1234567890"}


def test_a_disk_that_is_full_when_a_task_settles_keeps_nothing_of_it(tmp_path, monkeypatch):
    disk = Together()
    store = AlignedStore(tmp_path / "one", None, ["user"], SMALL, disk=disk)
    store.append(0, rows(("ann", 1)))
    commit(store)

    def full(self, descriptor, data, path):
        with reported("write to", path):
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Disk, "write", full)
    with pytest.raises(StateDirectoryError, match=r"cannot write to .*: No space left"):
        disk.settle()
    store.close()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_write_buffer_holds_what_a_column_of_texts_can():
    """Arrow's usual form of it has offsets of 32 bits."""
    assert Options(memory_bytes=64 << 30).write_buffer_bytes == 1 << 30
    assert Options(memory_bytes=64 << 30, write_buffer_bytes=3 << 30).write_buffer_bytes == 1 << 30
    assert Options(memory_bytes=1 << 30).write_buffer_bytes == 256 << 20
