"""An attempt at a micro-batch stalls, others go on, and it publishes its version after all.

Spark may name that version, as long as the next micro-batch has not been committed: where its files of state replace each
other, the one that is written last counts.
"""

import pyarrow as pa
import pytest

from forebay.errors import StateDirectoryError
from forebay.spark.driver.conf import Conf
from forebay.store import extent_log, filenames
from forebay.store.archive import MountedArchive
from forebay.store.disk import Together
from forebay.store.extent_log import ExtentLog
from forebay.store.manifest import Counters


def rows(group, many=1000):
    return pa.record_batch({"n": pa.array(range(group * 1000, group * 1000 + many))})


def read(log):
    return [batch.num_rows for group in log.groups.tolist() for batch in log.read(group)]


def opened(path, version, archive=None, **more):
    return ExtentLog(path, version, Conf().options, archive, **more)


def begun(path, archive=None):
    """Groups 3 and 7 of ten in one segment."""
    log = opened(path, None, archive)
    for group in range(10):
        log.append(group, rows(group))
    log.commit(None, Counters(), 0)
    log.drop([group for group in range(10) if group not in (3, 7)])
    return log.commit(None, Counters(), 1)


def went_on(path, base, archive=None):
    """Another attempt, which writes live rows again, and the next micro-batch."""
    log = opened(path, base, archive)
    log.append(10, rows(10))
    assert log.compact(1.5)
    log.commit(None, Counters(), 2)
    log.append(11, rows(11))
    log.commit(None, Counters(), 3)


@pytest.fixture(autouse=True)
def _compacting(monkeypatch):
    monkeypatch.setattr(extent_log, "LEAST_COMPACTED", 0)


def test_the_segments_of_its_base_are_there(tmp_path):
    base, disk = begun(tmp_path), Together()
    stalled = opened(tmp_path, base, disk=disk)
    stalled.append(10, rows(10))
    made = stalled.commit(None, Counters(), 2)
    went_on(tmp_path, base)
    disk.settle()
    assert read(opened(tmp_path, made)) == [1000] * 3


def test_the_segments_that_it_has_written_are_there(tmp_path):
    """It publishes when the next micro-batch has looked for what can go, and has not removed it yet."""
    base = begun(tmp_path)
    disks = stalled_on, other_on, next_on = Together(), Together(), Together()
    versions = [base]
    for disk, first, many in zip(disks, (base, base, None), (20_000, 20_000, 1000), strict=True):
        log = opened(tmp_path, first or versions[-1], disk=disk)
        log.append(10 if first else 11, rows(10, many))
        versions.append(log.commit(None, Counters(), 2))
        if disk is other_on:
            disk.settle()
    stalled_on.settle()
    next_on.settle()
    assert read(opened(tmp_path, versions[1])) == [1000, 1000, 20_000]


def test_the_segments_of_its_base_are_in_the_archive(tmp_path, monkeypatch):
    monkeypatch.setattr(extent_log, "_COLLECTED_EVERY", 4)
    safe = MountedArchive(tmp_path / "safe")
    base = begun(tmp_path / "here", safe)
    stalled = opened(tmp_path / "here", base, safe)
    stalled.append(10, rows(10))
    went_on(tmp_path / "there", base, safe)
    made = stalled.commit(None, Counters(), 2)
    assert read(opened(tmp_path / "elsewhere", made, safe)) == [1000] * 3


def test_it_ends_if_its_base_is_not_there_any_more(tmp_path):
    base, disk = begun(tmp_path), Together()
    stalled = opened(tmp_path, base, disk=disk)
    stalled.append(10, rows(10))
    made = stalled.commit(None, Counters(), 2)
    other = opened(tmp_path, base)
    for number in range(2, 6):
        other.append(9 + number, rows(number))
        other.commit(None, Counters(), number)
    with pytest.raises(StateDirectoryError, match="overtaken"):
        disk.settle()
    assert not (tmp_path / filenames.manifest(made)).exists()
