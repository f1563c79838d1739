"""What every archive must do, wherever it keeps files."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from forebay.store.archive import Archive


class ArchiveTests(ABC):
    """Files by name: whole or not there, listed with their times, forgotten without complaint.

    Examples
    --------
    >>> from forebay.store.archive import archive_at
    >>> class TestMounted(ArchiveTests):
    ...     def open(self, tmp_path):
    ...         return archive_at(f"file:{tmp_path}/safe")
    """

    @abstractmethod
    def open(self, tmp_path: Path) -> Archive:
        """An empty archive; each test has a ``tmp_path`` of its own."""

    @pytest.fixture
    def archive(self, tmp_path: Path) -> Archive:
        return self.open(tmp_path)

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        """A directory with two files."""
        here = tmp_path / "here"
        here.mkdir()
        (here / "one").write_bytes(b"1" * 100_000)
        (here / "two").write_bytes(b"")
        return here

    def test_an_archive_that_nothing_was_put_into_is_empty(self, archive: Archive) -> None:
        assert archive.names() == {}
        assert archive.directories() == []
        with pytest.raises(FileNotFoundError):
            archive.read("nothing")

    def test_files_come_back_as_they_were(self, archive: Archive, directory: Path, tmp_path: Path) -> None:
        archive.upload(directory, ["one", "two"])
        for name in ("one", "two"):
            assert archive.download(name, tmp_path / "there") in (0, (directory / name).stat().st_size)
            assert (tmp_path / "there" / name).read_bytes() == (directory / name).read_bytes()
        assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["one", "two"]

    def test_what_is_not_there_is_not_downloaded(self, archive: Archive, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            archive.download("nothing", tmp_path / "there")
        assert not (tmp_path / "there" / "nothing").exists()

    def test_a_file_may_be_uploaded_twice(self, archive: Archive, directory: Path) -> None:
        archive.upload(directory, ["one"])
        archive.upload(directory, ["one", "two"])
        assert {*archive.names()} == {"one", "two"}

    def test_small_files_are_written_and_read_and_written_again(self, archive: Archive) -> None:
        archive.write("further/down/note", b"safe")
        assert archive.read("further/down/note") == b"safe"
        archive.write("further/down/note", b"safer")
        assert archive.read("further/down/note") == b"safer"

    def test_files_are_listed_with_their_times(self, archive: Archive, directory: Path) -> None:
        archive.write("down/note", b"")
        archive.upload(directory, ["one"])
        found = archive.names()
        assert {*found} == {"down/note", "one"}
        assert all(abs(written - time.time()) < 3600 for written in found.values())
        assert archive.directories() == ["down"]

    def test_an_archive_within_another_has_its_files_alone(self, archive: Archive, directory: Path) -> None:
        archive.within("a").upload(directory, ["one"])
        archive.within("b/c").write("note", b"")
        assert {*archive.names()} == {"a/one", "b/c/note"}
        assert {*archive.within("a").names()} == {"one"}
        assert {*archive.within("b").within("c").names()} == {"note"}
        assert archive.read("a/one") == (directory / "one").read_bytes()

    def test_files_are_forgotten_whether_they_were_there_or_not(self, archive: Archive, directory: Path) -> None:
        archive.upload(directory, ["one", "two"])
        archive.delete(["one", "nothing"])
        assert {*archive.names()} == {"two"}
        assert (directory / "one").exists()
