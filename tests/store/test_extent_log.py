"""Compaction of segments: live extents move to other files inside the kernel."""

import pyarrow as pa
import pytest

from forebay.errors import CorruptState
from forebay.store import extent_log
from forebay.store.extent_log import ExtentLog
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
