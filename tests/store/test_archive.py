"""Stores whose versions are safe somewhere else: hard links, copies to another file system, uploads to S3."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from forebay.errors import CorruptState, ForebayError, StateDirectoryError, UnsupportedConfiguration, VersionNotFound
from forebay.state import instances
from forebay.store import filenames, remote_archive
from forebay.store.aligned import AlignedStore
from forebay.store.archive import MountedArchive, archive_at
from forebay.store.manifest import Counters
from forebay.store.options import Options
from forebay.store.unaligned import UnalignedStore


@pytest.fixture(params=["the same file system", "another file system", "S3"])
def archive(request, tmp_path):
    if request.param == "S3":
        yield archive_at(request.getfixturevalue("s3").format(tmp_path.name)).within("0")
        return
    if request.param == "the same file system":
        yield archive_at(f"file:{tmp_path / 'safe'}").within("0")
        return
    yield archive_at(request.getfixturevalue("another_file_system")).within("0")


def lists(directory, version, archive, **options):
    return AlignedStore(directory, version, ["user"], Options(**options), archive=archive)


def rows(*numbers):
    return pa.record_batch({"user": [str(n % 3) for n in numbers], "n": pa.array(numbers, pa.int64())})


def commit(store, *numbers, start=0):
    store.append(start, rows(*numbers))
    return store.commit(None, Counters())


def numbers_in(store, start=0):
    return sorted(n for part in store.get_window([start]) for n in part["n"])


def test_a_store_is_rebuilt_where_nothing_is_left_of_it(tmp_path, archive):
    store = lists(tmp_path / "here", None, archive)
    first = commit(store, 1, 2)
    second = commit(store, 3)
    shutil.rmtree(tmp_path / "here")
    assert numbers_in(lists(tmp_path / "there", second, archive)) == [1, 2, 3]
    assert numbers_in(lists(tmp_path / "here", first, archive)) == [1, 2]


def test_a_commit_sends_only_what_is_new(tmp_path, archive, monkeypatch):
    store = lists(tmp_path / "here", None, archive, retain_versions=20)
    sent, upload = [], archive.upload
    monkeypatch.setattr(archive, "upload", lambda directory, names: (sent.append(list(names)), upload(directory, names)))
    for number in range(5):
        commit(store, number)
    kinds = [[name.rpartition(".")[2] for name in names] for names in sent]
    assert kinds == [["arrow", "manifest"]] * 5
    assert store.metrics.uploaded_bytes == sum(path.stat().st_size for path in (tmp_path / "here").iterdir())


def test_segments_come_when_they_are_read(tmp_path, archive):
    store = lists(tmp_path / "here", None, archive)
    commit(store, 1, start=0)
    version = commit(store, 2, start=10)
    moved = lists(tmp_path / "there", version, archive)
    assert [path.suffix for path in (tmp_path / "there").iterdir()] == [".manifest"]
    assert numbers_in(moved, 10) == [2]
    assert len(list((tmp_path / "there").glob("*.arrow"))) == 1


def test_damage_is_mended(tmp_path, archive):
    """Each file truncated, zeroed, with a bit flipped, or missing; not through a hard link, which the archive has, too."""
    store = lists(tmp_path / "here", None, archive)
    version = commit(store, *range(100))
    for path in sorted((tmp_path / "here").iterdir()):
        whole = path.read_bytes()
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        for damage in (whole[:middle], bytes(len(whole)), flipped, None):
            path.unlink()
            if damage is not None:
                path.write_bytes(damage)
            assert numbers_in(lists(tmp_path / "here", version, archive)) == list(range(100))
            assert path.read_bytes() == whole


def test_what_cannot_be_read_is_mended(tmp_path, archive):
    store = lists(tmp_path / "here", None, archive)
    version = commit(store, *range(100))
    for path in sorted((tmp_path / "here").iterdir()):
        whole = path.read_bytes()
        path.unlink()
        path.symlink_to(path)  # a circle
        assert numbers_in(lists(tmp_path / "here", version, archive)) == list(range(100))
        assert path.read_bytes() == whole


def test_what_cannot_be_read_anywhere_is_not_called_missing(tmp_path):
    """An operator who reads that a version is gone starts anew; and an error tells of the ones before it."""
    archive = MountedArchive(tmp_path / "safe")
    version = commit(lists(tmp_path / "here", None, archive), *range(100))
    for path in sorted((tmp_path / "safe").iterdir(), key=lambda path: path.suffix):  # the manifest last
        (tmp_path / "here" / path.name).unlink()
        path.unlink()
        path.symlink_to(path)
        with pytest.raises(StateDirectoryError, match=f"cannot read {path}: Too many levels") as raised:
            numbers_in(lists(tmp_path / "here", version, archive))
        assert raised.value.__cause__ is raised.value.__context__
        assert not isinstance(raised.value.__cause__, ForebayError)


def test_what_cannot_be_read_or_listed_is_not_passed_over(tmp_path):
    """As if an earlier version was the newest one, or as if there was none."""
    safe = MountedArchive(tmp_path)
    store = lists(tmp_path / "0-0123abcd", None, None)
    first, second = commit(store, 1), commit(store, 2)
    assert [found.version for _, found in instances.newest(safe)] == [second]
    unreadable = tmp_path / "0-0123abcd" / f"{second}.manifest"
    unreadable.unlink()
    assert [found.version for _, found in instances.newest(safe)] == [first]
    unreadable.symlink_to(unreadable)
    with pytest.raises(StateDirectoryError, match=f"cannot read {unreadable}"):
        list(instances.newest(safe))
    assert safe.within("nothing").names() == {}
    with pytest.raises(StateDirectoryError, match=r"cannot read .*: File name too long"):
        safe.within("long" * 80).names()


def test_what_is_damaged_everywhere_is_an_error(tmp_path, archive):
    store = lists(tmp_path / "here", None, archive)
    version = commit(store, *range(100))
    (segment,) = (tmp_path / "here").glob("*.arrow")
    damaged = segment.read_bytes()[:-20] + bytes(20)
    archive.delete([segment.name])
    archive.write(segment.name, damaged)
    segment.unlink()
    with pytest.raises(CorruptState, match=segment.name):
        numbers_in(lists(tmp_path / "here", version, archive))
    archive.delete([segment.name])
    segment.unlink()
    with pytest.raises(CorruptState, match="is missing"):
        numbers_in(lists(tmp_path / "here", version, archive))
    archive.delete([f"{version}.manifest"])
    (tmp_path / "here" / f"{version}.manifest").unlink()
    with pytest.raises(VersionNotFound, match=str(version)):
        lists(tmp_path / "here", version, archive)


def test_an_attempt_that_was_overtaken_ends(tmp_path, archive):
    """Another attempt at the same node has gone on, and collected the version that this one began from."""
    base = commit(lists(tmp_path / "here", None, archive), 1)
    slow = lists(tmp_path / "here", base, archive)
    other = lists(tmp_path / "here", base, archive)
    for number in range(2, 5):
        newest = commit(other, number)
    with pytest.raises(StateDirectoryError, match="was collected while this attempt was working"):
        commit(slow, 2)
    assert numbers_in(lists(tmp_path / "here", newest, archive)) == [1, 2, 3, 4]


def test_the_archive_is_rid_of_old_versions_and_keeps_what_retained_ones_name(tmp_path, archive):
    store = lists(tmp_path / "here", None, archive, retain_versions=3)
    versions = []
    for number in range(20):
        versions.append(commit(store, number, start=number))
        store.drop([number - 3])
    assert len(archive.names()) < 2 * (8 + 3 + 3)
    for version in versions[-3:]:
        moved = lists(Path(tempfile.mkdtemp(dir=tmp_path)), version, archive)
        assert [numbers_in(moved, start) for start in moved.slices.tolist()] == [[start] for start in moved.slices.tolist()]


def test_an_older_version_that_is_damaged_does_not_keep_the_newest_from_going_on(tmp_path):
    versions = [commit(lists(tmp_path, None, None, retain_versions=4), 0)]
    for number in (1, 2):
        versions.append(commit(lists(tmp_path, versions[-1], None, retain_versions=4), number))
    damaged = tmp_path / filenames.manifest(versions[1])
    damaged.write_bytes(damaged.read_bytes()[:-9])
    newest = commit(lists(tmp_path, versions[-1], None, retain_versions=4), 3)
    assert numbers_in(lists(tmp_path, newest, None)) == [0, 1, 2, 3]
    assert numbers_in(lists(tmp_path, versions[0], None)) == [0]


def test_an_archive_that_is_behind_keeps_its_newest_version(tmp_path, monkeypatch):
    """As with replicas, whose hosts upload behind the commits."""
    archive = MountedArchive(tmp_path / "safe")
    store = lists(tmp_path / "here", None, archive)
    for number in range(4):
        safe = commit(store, number)
    with monkeypatch.context() as slow:
        slow.setattr(MountedArchive, "upload", lambda *args: None)
        for number in range(4, 30):
            version = commit(store, number)
    assert [name for name in archive.names() if name.endswith(".manifest")] == [f"{safe}.manifest"]
    shutil.rmtree(tmp_path / "here")
    with pytest.raises(VersionNotFound):
        lists(tmp_path / "there", version, archive)
    assert numbers_in(lists(tmp_path / "there", safe, archive)) == [0, 1, 2, 3]


def test_a_version_is_safe_though_old_ones_cannot_be_deleted(tmp_path, caplog):
    class Kept(MountedArchive):
        def delete(self, names):
            raise StateDirectoryError("objects are locked")

    store = lists(tmp_path / "here", None, Kept(tmp_path / "safe"))
    for number in range(9):
        newest = commit(store, number)
    assert numbers_in(lists(tmp_path / "there", newest, Kept(tmp_path / "safe"))) == list(range(9))
    assert "cannot be deleted: objects are locked" in caplog.text


def test_what_an_archive_refuses_leaves_nothing_behind(tmp_path):
    class Refusing(MountedArchive):
        def upload(self, directory, names):
            raise StateDirectoryError("the bucket is read-only")

    here = tmp_path / "here"
    version = commit(lists(here, None, MountedArchive(tmp_path / "safe")), 1)
    files = {path.name for path in here.iterdir()}
    store = lists(here, version, Refusing(tmp_path / "safe"))
    with pytest.raises(StateDirectoryError, match="read-only"):
        commit(store, 2)
    assert {path.name for path in here.iterdir()} > files
    store.close()
    assert {path.name for path in here.iterdir()} == files
    assert numbers_in(lists(here, version, MountedArchive(tmp_path / "safe"))) == [1]


def test_an_unaligned_store_moves_with_its_key_index(tmp_path, archive):
    store = UnalignedStore(tmp_path / "here", None, archive=archive)
    keys = np.arange(1000)
    store.append(pa.record_batch({"n": keys}), store.index.place_merging(keys, keys, keys, keys + 5))
    version = store.commit()
    moved = UnalignedStore(tmp_path / "there", version, archive=archive)
    found = moved.get(moved.index.due(504))
    assert isinstance(found, pl.DataFrame)
    assert sorted(found["n"]) == list(range(500))


class Flaky(pafs.FileSystemHandler):
    """A local file system on which every request fails at first."""

    def __init__(self):
        self.local, self.failed = pafs.LocalFileSystem(), set()

    def tried(self, name, *arguments):
        if (name, str(arguments)) not in self.failed:
            self.failed.add((name, str(arguments)))
            raise OSError("the connection was reset")
        return getattr(self.local, name)(*arguments)

    def get_type_name(self):
        return "flaky"

    def create_dir(self, path, recursive):
        self.local.create_dir(path, recursive=recursive)

    def get_file_info_selector(self, selector):
        return self.tried("get_file_info", selector)

    def open_output_stream(self, path, metadata):
        return self.tried("open_output_stream", path)

    def open_input_file(self, path):
        return self.tried("open_input_file", path)

    def delete_file(self, path):
        self.tried("delete_file", path)

    def move(self, path, target):
        self.tried("move", path, target)

    def get_file_info(self, paths):
        return self.local.get_file_info(paths)

    def __getattr__(self, name):
        raise AssertionError(f"{name} is not expected")


Flaky.__abstractmethods__ = frozenset()


class Distributed(Flaky):
    """A file system as HDFS is: files are seen while they are written, and none is renamed to the name of another."""

    def __init__(self):
        super().__init__()
        self.breaks = False

    def tried(self, name, *arguments):
        return getattr(self.local, name)(*arguments)

    def open_output_stream(self, path, metadata):
        stream = self.local.open_output_stream(path)
        if self.breaks:
            stream.write(b"half")
            stream.close()
            raise OSError("the writer has died")
        return stream

    def move(self, path, target):
        if Path(target).exists():
            raise OSError("the file exists")
        self.local.move(path, target)


Distributed.__abstractmethods__ = frozenset()


def test_a_file_that_is_half_written_does_not_have_its_name_yet(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_archive, "PAUSE_SECONDS", 0.0)
    system = Distributed()
    archive = remote_archive.RemoteArchive(pafs.PyFileSystem(system), str(tmp_path / "safe"), "hdfs").within("0")
    archive.write("note", b"first")
    archive.write("note", b"second")
    archive.write("note", b"second")  # as another writer may have done meanwhile
    assert list(archive.names()) == ["note"]
    system.breaks = True
    for name in ("note", "other"):
        with pytest.raises(StateDirectoryError, match="the writer has died"):
            archive.write(name, b"third")
    assert archive.read("note") == b"second"
    with pytest.raises(FileNotFoundError):
        archive.read("other")
    assert {name.endswith(".tmp") for name in archive.names() if name != "note"} == {True}


def test_requests_that_fail_are_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_archive, "PAUSE_SECONDS", 0.0)
    archive = remote_archive.RemoteArchive(pafs.PyFileSystem(Flaky()), str(tmp_path / "safe"), "flaky").within("0")
    store = lists(tmp_path / "here", None, archive)
    versions = [commit(store, number) for number in range(9)]
    assert numbers_in(lists(tmp_path / "there", versions[-1], archive)) == list(range(9))
    assert f"{versions[0]}.manifest" not in archive.names()


def test_a_place_that_cannot_be_reached(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_archive, "ATTEMPTS", 1)  # S3's client tries three times itself
    archive = archive_at("s3://id:secret@states/x?scheme=http&region=eu-west-1&endpoint_override=127.0.0.1:9")
    store = lists(tmp_path / "here", None, archive)
    with pytest.raises(
        StateDirectoryError, match=r"cannot .* of s3://states/x, after 1 attempts.*Committed state is intact"
    ):
        commit(store, 1)
    with pytest.raises(UnsupportedConfiguration, match="state cannot be kept at nowhere://x") as raised:
        archive_at("nowhere://secret@x")
    assert "secret" not in str(raised.value)
