"""Every store and every archive of forebay passes the contracts of `forebay.testing`."""

from collections import defaultdict

import polars as pl
import pyarrow as pa
import pytest

from forebay.store.aligned import AlignedStore
from forebay.store.archive import archive_at
from forebay.store.identity import identities
from forebay.store.rmw import open_rmw
from forebay.store.unaligned import SLOT, UnalignedStore
from forebay.testing import ArchiveTests, StoreTests


def batch(rows):
    return pa.record_batch({"user": pa.array([u for u, _ in rows]), "n": pa.array([n for _, n in rows], pa.int64())})


def merged(rows, by=("user",)):
    return rows.group_by(by, maintain_order=True).agg(pl.col("n").sum())


class Sums:
    """A store of one sum for each user and window."""

    def expected(self, rows):
        sums = defaultdict(int)
        for user, n in rows:
            sums[user] += n
        return sorted(sums.items())


class TestAAR(StoreTests):
    def open(self, directory, version=None, options=StoreTests.options, archive=None):
        return AlignedStore(directory, version, ["user"], options, archive=archive)

    def append(self, store, window, rows):
        store.append(window, batch(rows))

    def read(self, store, window):
        return sorted(row for part in store.get_window([window]) for row in part.select("user", "n").rows())

    def end(self, store, window):
        store.drop([window])


class TestAlignedRMW(Sums, TestAAR):
    def open(self, directory, version=None, options=StoreTests.options, archive=None):
        return open_rmw(directory, version, ["user"], merged, options, archive)

    def append(self, store, window, rows):
        store.append(window, batch(merged(pl.DataFrame(batch(rows))).rows()))

    def read(self, store, window):
        return sorted(row for part in store.get_window([window]) for row in merged(part).rows())


class TestAUR(StoreTests):
    merge = None

    def open(self, directory, version=None, options=StoreTests.options, archive=None):
        return UnalignedStore(directory, version, options, self.merge, archive)

    def append(self, store, window, rows):
        given = batch(rows)
        high, low = identities([given["user"]], len(rows), "00" * 16)
        starts = pl.repeat(window, len(rows), dtype=pl.Int64, eager=True).to_numpy()
        store.append(given, store.index.place_exact(high, low, starts, starts + 10))

    def slots(self, store, window):
        live = store.index.live()
        return live[store.index.windows(live)[:, 0] == window]

    def read(self, store, window):
        rows = store.get(self.slots(store, window))
        return sorted(rows.select("user", "n").rows()) if rows.height else []

    def end(self, store, window):
        store.remove(self.slots(store, window))


class TestUnalignedRMW(Sums, TestAUR):
    @staticmethod
    def merge(rows):
        return merged(rows, (SLOT, "user"))

    def read(self, store, window):
        rows = store.get(self.slots(store, window))
        return sorted(merged(rows).select("user", "n").rows()) if rows.height else []


class TestMounted(ArchiveTests):
    def open(self, tmp_path):
        return archive_at(f"file:{tmp_path}/safe")


class TestAnotherFileSystem(ArchiveTests):
    @pytest.fixture
    def archive(self, another_file_system):
        return archive_at(another_file_system).within("0")

    def open(self, tmp_path):
        raise AssertionError


class TestS3(ArchiveTests):
    @pytest.fixture
    def archive(self, s3, tmp_path):
        return archive_at(s3.format(tmp_path.name)).within("0")

    def open(self, tmp_path):
        raise AssertionError
