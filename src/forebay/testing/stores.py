"""What every store must do, whatever it stores and in whichever way it is read."""

from __future__ import annotations

import random
import resource
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import CorruptState, StateDirectoryError, VersionNotFound
from forebay.store.archive import archive_at
from forebay.store.filenames import Version
from forebay.store.manifest import Counters
from forebay.store.options import Options

Row = tuple[str, int]
"""A user and a number."""


class StoreTests(ABC):
    """Rows of users by window: durable when committed, versions apart, files that go with what they hold.

    Examples
    --------
    >>> from forebay.store.aligned import AlignedStore
    >>> import pyarrow as pa
    >>> class TestAAR(StoreTests):
    ...     def open(self, directory, version=None, options=StoreTests.options, archive=None):
    ...         return AlignedStore(directory, version, ["user"], options, archive=archive)
    ...     def append(self, store, window, rows):
    ...         store.append(window, pa.record_batch({"user": [u for u, _ in rows], "n": [n for _, n in rows]}))
    ...     def read(self, store, window):
    ...         return sorted(row[:2] for part in store.get_window([window]) for row in part.rows())
    ...     def end(self, store, window):
    ...         store.drop([window])
    """

    options = Options(memory_bytes=1 << 20)

    @abstractmethod
    def open(
        self, directory: Path, version: Version | None = None, options: Options = options, archive: Any | None = None
    ) -> Any:
        """The store in a directory, empty without a version."""

    @abstractmethod
    def append(self, store: Any, window: int, rows: Sequence[Row]) -> None:
        """Add rows to the window that begins at an instant."""

    @abstractmethod
    def read(self, store: Any, window: int) -> list[Row]:
        """What the store has of a window, as `expected` gives it; the window stays."""

    @abstractmethod
    def end(self, store: Any, window: int) -> None:
        """End a window; what it has had is gone."""

    def expected(self, rows: Sequence[Row]) -> list[Row]:
        """What a window must have after rows: those rows, unless the store merges them."""
        return sorted(rows)

    def commit(self, store: Any) -> Version:
        """Make what the store holds its next version."""
        version: Version = store.commit(None, Counters())
        return version

    def _committed(self, directory: Path, version: Version | None, window: int, *rows: Row) -> Version:
        store = self.open(directory, version)
        self.append(store, window, rows)
        return self.commit(store)

    def test_a_committed_version_is_read_again(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        self.append(store, 0, [("ann", 1), ("bob", 2)])
        self.append(store, 10, [("ann", 3)])
        again = self.open(tmp_path, self.commit(store))
        assert self.read(again, 0) == self.expected([("ann", 1), ("bob", 2)])
        assert self.read(again, 10) == self.expected([("ann", 3)])
        assert self.read(again, 20) == []

    def test_a_store_goes_on_after_a_commit(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        self.append(store, 0, [("ann", 1)])
        self.commit(store)
        self.append(store, 0, [("bob", 2)])
        assert self.read(self.open(tmp_path, self.commit(store)), 0) == self.expected([("ann", 1), ("bob", 2)])

    def test_what_is_not_committed_does_not_exist(self, tmp_path: Path) -> None:
        version = self._committed(tmp_path, None, 0, ("ann", 1))
        other = self.open(tmp_path, version)
        self.append(other, 0, [("ann", 5)])
        other.close()
        assert self.read(self.open(tmp_path, version), 0) == [("ann", 1)]

    def test_two_attempts_at_one_version_do_not_meet(self, tmp_path: Path) -> None:
        version = self._committed(tmp_path, None, 0, ("ann", 1))
        attempts = [self.open(tmp_path, version) for _ in range(2)]
        for number, attempt in enumerate(attempts):
            self.append(attempt, 0, [("bob", number)])
        versions = [self.commit(attempt) for attempt in attempts]
        assert versions[0].number == versions[1].number
        for number, attempt in enumerate(versions):
            assert self.read(self.open(tmp_path, attempt), 0) == self.expected([("ann", 1), ("bob", number)])

    def test_an_attempt_that_was_overtaken_cannot_harm_its_successors(self, tmp_path: Path) -> None:
        version = self._committed(tmp_path, None, 0, ("ann", 1))
        overtaken = self.open(tmp_path, version)
        self.append(overtaken, 0, [("bob", 2)])
        for _ in range(2):
            version = self._committed(tmp_path, version, 0, ("ann", 1))
        with pytest.raises(StateDirectoryError, match="overtaken"):
            self.commit(overtaken)
        assert self.read(self.open(tmp_path, version), 0) == self.expected([("ann", 1)] * 3)

    def test_windows_that_have_ended_leave_no_rows_in_files(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        version = self._committed(tmp_path, None, 0, *((f"a user of number {n}", n) for n in range(40_000)))
        size = _size(tmp_path)
        for _ in range(2):
            store = self.open(tmp_path, version)
            self.end(store, 0)
            self.append(store, 10, [("ann", 1)])
            version = self.commit(store)
            self.append(store, 20, [("ann", 1)])
            version = self.commit(store)
        assert self.read(self.open(tmp_path, version), 0) == []
        assert store.metrics.disk_bytes < size / 2

    def test_versions_older_than_retained_are_collected(self, tmp_path: Path) -> None:
        versions: list[Version | None] = [None]
        for number in range(6):
            store = self.open(tmp_path, versions[-1], Options(memory_bytes=1 << 20, retain_versions=3))
            self.append(store, number * 10, [("ann", number)])
            versions.append(self.commit(store))
        for number in (4, 5, 6):
            store = self.open(tmp_path, versions[number])
            assert [self.read(store, each * 10) for each in range(number)] == [[("ann", each)] for each in range(number)]
        with pytest.raises(VersionNotFound):
            self.open(tmp_path, versions[3])

    def test_leavings_of_a_failed_attempt_are_collected(self, tmp_path: Path) -> None:
        version = self._committed(tmp_path, None, 0, ("ann", 1))
        self._committed(tmp_path, version, 0, ("bob", 2))
        for _ in range(3):
            version = self._committed(tmp_path, version, 0, ("ann", 1))
        named: set[str] = set()
        for path in tmp_path.glob("*.manifest"):
            named |= {*self.open(tmp_path, Version.parse(path.stem)).base.segments}
        assert {path.name for path in tmp_path.glob("*.arrow")} == named

    @pytest.mark.parametrize("archived", [False, True], ids=["local", "archived"])
    def test_either_of_two_attempts_can_be_gone_on_from(self, tmp_path: Path, archived: bool) -> None:
        safe = archive_at(str(tmp_path / "safe")) if archived else None
        directory, elsewhere = tmp_path / "store", tmp_path / "elsewhere"

        def opened(version: Version | None, where: Path = directory) -> Any:
            return self.open(where, version, archive=safe)

        version = None
        for number in range(6 if archived else 1):  # an archive is cleared out with every eighth version
            store = opened(version)
            self.append(store, 0, [("ann", number)])
            version = self.commit(store)
        first = opened(version, elsewhere if archived else directory)
        self.append(first, 10, [("bob", 1)])
        overtaken = self.commit(first)
        second = opened(version)
        self.end(second, 0)  # so that it needs nothing of what the first one does
        self.append(second, 10, [("bob", 2)])
        last = opened(self.commit(second))
        self.append(last, 20, [("cid", 3)])
        self.commit(last)
        found = opened(overtaken)
        assert len(self.read(found, 0)) > 0
        assert self.read(found, 10) == [("bob", 1)]
        self.append(found, 30, [("dan", 4)])
        assert self.read(opened(self.commit(found)), 30) == [("dan", 4)]

    def test_a_damaged_segment_is_an_error(self, tmp_path: Path) -> None:
        version = self._committed(tmp_path, None, 0, ("ann", 1))
        for path in tmp_path.glob("*.arrow"):
            path.write_bytes(bytes(path.stat().st_size))
        with pytest.raises(CorruptState, match=r"\.arrow"):
            self.read(self.open(tmp_path, version), 0)

    def test_a_full_disk_is_an_error_of_ours_and_the_last_commit_survives(self, tmp_path: Path) -> None:
        version = self._committed(tmp_path, None, 0, ("ann", 1))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        store = self.open(tmp_path, version)
        self.append(store, 0, [(f"user {n}", n) for n in range(5000)])
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # the kernel refuses to let a file grow beyond
        try:
            with pytest.raises(StateDirectoryError, match=r"cannot write to .*Committed state is intact"):
                self.commit(store)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        store.close()
        assert self.read(self.open(tmp_path, version), 0) == [("ann", 1)]
        assert self._committed(tmp_path, version, 0, ("bob", 1)).number == version.number + 1

    def test_a_snapshot_is_a_store_of_its_own(self, tmp_path: Path) -> None:
        store = self.open(tmp_path / "one")
        self.append(store, 0, [("ann", 1)])
        version = self.commit(store)
        store.snapshot(tmp_path / "two")
        for _ in range(3):
            self.append(store, 0, [("bob", 2)])
            self.commit(store)
        assert self.read(self.open(tmp_path / "two", version), 0) == [("ann", 1)]

    @pytest.mark.parametrize("seed", range(2))
    def test_random_operations_equal_a_model(self, tmp_path: Path, seed: int) -> None:
        chance, version = random.Random(seed), None
        rows: dict[int, list[Row]] = defaultdict(list)
        kept: dict[int, list[Row]] = {}
        store = self.open(tmp_path)
        for step in range(400):
            window, action = chance.randrange(6) * 10, chance.random()
            if action < 0.6:
                some = [(f"user {chance.randrange(20)}", step * 10 + n) for n in range(chance.randrange(1, 40))]
                self.append(store, window, some)
                rows[window] += some
            elif action < 0.75:
                assert self.read(store, window) == self.expected(rows[window])
            elif action < 0.82:
                self.end(store, window)
                rows.pop(window, None)
            elif action < 0.92:
                version, kept = self.commit(store), {window: list(there) for window, there in rows.items()}
                store = self.open(tmp_path, version) if chance.random() < 0.5 else store
            else:
                store.close()
                store = self.open(tmp_path, version)
                rows = defaultdict(list, {window: list(there) for window, there in kept.items()})
        for window in range(0, 60, 10):
            assert self.read(store, window) == self.expected(rows[window])


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.arrow"))
