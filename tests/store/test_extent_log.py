"""Compaction of segments: live extents move to other files inside the kernel."""

import errno
import os
import time
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.errors import CorruptState, StateDirectoryError, VersionNotFound
from forebay.store import extent_log, filenames, manifest, segment_reader
from forebay.store.archive import MountedArchive
from forebay.store.collection import collectable
from forebay.store.extent_log import ExtentLog
from forebay.store.filenames import Version
from forebay.store.manifest import Counters
from forebay.store.options import Options


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Groups 0 to 9 in one segment, committed; all but 3 and 7 dropped."""
    monkeypatch.setattr(extent_log, "LEAST_COMPACTED", 0)
    log = ExtentLog(tmp_path, None, Options())
    for group in range(10):
        log.append(group, rows(group))
    log.commit(None, Counters())
    log.drop([group for group in range(10) if group not in (3, 7)])
    return log


def rows(group):
    return pa.record_batch({"n": pa.array(range(group * 1000, group * 1000 + 1000)), "s": [f"row {group}"] * 1000})


def test_live_extents_move_without_being_read(log, tmp_path):
    assert log.compact(1.5)
    version = log.commit(None, Counters())
    again = ExtentLog(tmp_path, version, Options())
    assert again.groups.tolist() == [3, 7]
    assert [batch for group in (3, 7) for batch in again.read(group)] == [rows(3), rows(7)]
    assert log.zero_copy_bytes == again.bytes_of([3, 7])
    assert again.disk_bytes < 1.5 * log.zero_copy_bytes


@pytest.mark.parametrize("each", [1, 3])
def test_files_do_not_become_many_where_each_commit_writes_to_other_groups(tmp_path, monkeypatch, each):
    """Few rows in a commit, and many slices: extents of one slice alone are combined."""
    monkeypatch.setattr(extent_log, "_MOST_SMALL", 16)
    log, files, version = ExtentLog(tmp_path, None, Options()), [], None
    for commit in range(200):
        for group in range(each):
            log.append(commit * each + group, rows(commit))
        log.compact(1.5)
        version = log.commit(None, Counters())
        files.append(len(log.base.segments))
    assert max(files) <= 16 + 1
    assert log.zero_copy_bytes < 8 * log.bytes_of(log.groups.tolist())
    again = ExtentLog(tmp_path, version, Options())
    assert [next(again.read(group)) for group in range(200 * each)] == [rows(group // each) for group in range(200 * each)]
    again.drop(range(1, 200 * each))
    again.compact(1.5)
    again.commit(None, Counters())
    assert len(again.base.segments) == 1


def test_files_of_many_schemas_stay_where_they_are(tmp_path, monkeypatch):
    """A file has rows of one schema, so those of several never become one."""
    monkeypatch.setattr(extent_log, "_MOST_SMALL", 4)
    log = ExtentLog(tmp_path, None, Options())
    for group in range(12):
        log.append(group, pa.record_batch({f"column {group}": [group]}))
    assert not log.compact(1.5)


def test_a_process_compares_the_checksum_of_an_extent_once(tmp_path, monkeypatch):
    """However often the store is opened, and in whatever version."""
    log = ExtentLog(tmp_path, None, Options())
    for group in range(3):
        log.append(group, rows(group))
    version = log.commit(None, Counters())
    bytes_of, checked, crc32 = log.bytes_of([0, 1, 2]), [], zlib.crc32
    for _ in range(3):
        log = ExtentLog(tmp_path, version, Options())
        monkeypatch.setattr(segment_reader, "crc32", lambda data, *value: checked.append(len(data)) or crc32(data, *value))
        assert [batch for group in (0, 1, 2) for batch in log.read(group)] == [rows(0), rows(1), rows(2)]
        monkeypatch.undo()
        log.append(3, rows(3))
        version = log.commit(None, Counters())
    assert bytes_of <= sum(checked) < 1.1 * bytes_of


def test_an_extent_that_was_right_and_is_damaged_since_is_found(tmp_path):
    log = ExtentLog(tmp_path, None, Options())
    log.append(0, rows(0))
    version = log.commit(None, Counters())
    assert list(ExtentLog(tmp_path, version, Options()).read(0)) == [rows(0)]
    (path,) = tmp_path.glob("*.arrow")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    time.sleep(0.02)  # clocks of files tick every few milliseconds
    path.write_bytes(data)
    with pytest.raises(CorruptState, match="is damaged in the"):
        list(ExtentLog(tmp_path, version, Options()).read(0))


@pytest.mark.parametrize("refusal", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV])
def test_live_extents_move_where_the_kernel_cannot_copy(log, tmp_path, monkeypatch, refusal):
    def refused(*_, **__):
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(os, "copy_file_range", refused)
    monkeypatch.setattr("forebay.store.disk._COPIED_AT_ONCE", 1000)
    test_live_extents_move_without_being_read(log, tmp_path)


def test_a_full_disk_is_no_reason_to_copy_otherwise(log, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(StateDirectoryError, match="No space left"):
        log.compact(1.5)


@pytest.mark.parametrize("when", ["before it looks", "while it looks"])
def test_an_attempt_that_was_overtaken_removes_nothing(tmp_path, monkeypatch, when):
    """A newer run commits twice, so that the version that the older attempt began from goes."""

    def overtake():
        monkeypatch.setattr(extent_log, "is_there", is_there)
        for group in (1, 2):
            newer.append(group, rows(group))
            versions.append(newer.commit(None, Counters()))

    def look_at_last(path):
        overtake()
        return is_there(path)

    first = ExtentLog(tmp_path, None, Options())
    first.append(0, rows(0))
    version, versions, is_there = first.commit(None, Counters()), [], extent_log.is_there
    older, newer = (ExtentLog(tmp_path, version, Options()) for _ in range(2))
    older.append(1, rows(1))
    if when == "before it looks":
        overtake()
    else:
        monkeypatch.setattr(extent_log, "is_there", look_at_last)
    with pytest.raises(StateDirectoryError, match="a newer run of the query has overtaken it"):
        older.commit(None, Counters())
    for number, there in enumerate(versions):
        again = ExtentLog(tmp_path, there, Options())
        assert [batch for group in again.groups for batch in again.read(group)] == [rows(n) for n in range(number + 2)]


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "too many files"), StateDirectoryError("not now")])
def test_what_another_attempt_needs_stays_while_that_cannot_be_read(error):
    """Spark may go on from the other attempt."""
    one, first, second = Version(1, "0000000a"), Version(2, "0000000b"), Version(2, "0000000c")
    made = {version: [filenames.manifest(version), filenames.segment(version, 0)] for version in (one, first, second)}
    names, kept = [name for files in made.values() for name in files], {second: made[second]}

    def unreadable(version):
        raise error

    assert collectable(names, kept, unreadable) == []
    assert collectable(names, kept, made.__getitem__) == made[one]


def test_files_that_are_mostly_live_stay(log):
    assert not log.compact(10.0)
    assert log.zero_copy_bytes == 0


def test_damage_does_not_move(log, tmp_path):
    (segment,) = tmp_path.glob("*.arrow")
    data = bytearray(segment.read_bytes())
    for position in range(0, len(data), 500):
        data[position] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptState, match=segment.name):
        log.compact(1.5)


def test_the_version_before_is_still_readable(log, tmp_path):
    before = log.base.version
    log.compact(1.5)
    log.commit(None, Counters())
    assert ExtentLog(tmp_path, before, Options()).groups.tolist() == list(range(10))


def test_parts_have_groups_of_their_own_and_share_versions(tmp_path, monkeypatch):
    monkeypatch.setattr(extent_log, "LEAST_COMPACTED", 0)
    log = ExtentLog(tmp_path, None, Options())
    log.append(3, rows(0))
    for group, part in enumerate(["left", "right"], 1):
        log.part(part).append(3, rows(group))
    log.part("left").commit(None, Counters(rows_in=5))
    version = log.commit(None, Counters(rows_in=7))
    log = ExtentLog(tmp_path, version, Options())
    assert log.parts == ["left", "right"]
    assert [list(part.read(3)) for part in (log, log.part("left"), log.part("right"))] == [[rows(n)] for n in range(3)]
    assert [log.part(part).base.counters.rows_in for part in ("left", "right")] == [5, 0]
    assert log.base.counters.rows_in == 7
    log.drop_part("left")
    assert log.compact(1.5)
    version = log.commit(None, Counters())
    log = ExtentLog(tmp_path, version, Options())
    assert log.parts == ["right"]
    assert [list(part.read(3)) for part in (log, log.part("right"), log.part("left"))] == [[rows(0)], [rows(2)], []]


class Hosts(MountedArchive):
    """An archive as that of replicas: it says why a version is gone."""

    def download(self, name, directory):
        raise VersionNotFound(f"no host holds {name}")


def committed(directory, version, number, archive=None):
    """One more version, in a process that has not written the ones before."""
    manifest._written.clear()
    log = ExtentLog(directory, version, Options(retain_versions=3), archive)
    log.append(number, rows(number))
    version = log.commit(None, Counters())
    log.close()
    return version


@pytest.mark.parametrize("archived", [False, True])
def test_a_version_that_cannot_be_read_for_once_is_kept(tmp_path, monkeypatch, archived):
    archive = Hosts(tmp_path / "safe") if archived else None
    tmp_path /= "here"
    versions = [None]
    for number in range(4):
        versions.append(committed(tmp_path, versions[-1], number, archive))
    read, older, failed = Path.read_bytes, filenames.manifest(versions[-2]), []

    def failing(path):
        if path.name == older and not failed:
            failed.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    fifth = committed(tmp_path, versions[-1], 4, archive)
    assert failed
    assert archived or ExtentLog(tmp_path, fifth, Options()).base.stale
    assert ExtentLog(tmp_path, versions[-2], Options()).groups.tolist() == [0, 1, 2]
    sixth = committed(tmp_path, fifth, 5, archive)
    kept = {filenames.manifest(version) for version in (versions[-1], fifth, sixth)}
    assert {path.name for path in tmp_path.glob("*.manifest")} == kept


@pytest.mark.parametrize("name", ["stat", "scandir"])
def test_what_a_directory_does_not_tell_is_an_error_of_ours(tmp_path, monkeypatch, name):
    first = committed(tmp_path, None, 0)
    called = getattr(os, name)

    def failing(path, *args, **how):
        if str(path).startswith(str(tmp_path)) and not str(path).endswith(".arrow"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return called(path, *args, **how)

    with monkeypatch.context() as broken:
        broken.setattr(os, name, failing)
        with pytest.raises(StateDirectoryError, match="Input/output error"):
            committed(tmp_path, first, 1)
    second = committed(tmp_path, first, 1)
    assert ExtentLog(tmp_path, second, Options()).groups.tolist() == [0, 1]


def test_a_directory_in_the_place_of_an_old_file_is_left_alone(tmp_path):
    stray = tmp_path / filenames.segment(Version(1, "0badf00d"), 0)
    stray.mkdir()
    version = None
    for number in range(5):
        version = committed(tmp_path, version, number)
    assert stray.is_dir()
