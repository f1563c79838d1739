"""Rows that wait for the end of a micro-batch: in order, in memory or in a file, and gone when they were asked for."""

import contextlib
import resource
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.errors import StateDirectoryError
from forebay.store.spill import Spill

DESCRIPTORS = Path("/proc/self/fd")


def batch(number):
    return pa.record_batch({"n": [number] * 100, "text": ["x" * number] * 100})


@pytest.mark.parametrize("room", [0, 2000, 1 << 20])
def test_they_come_as_they_went(tmp_path, room):
    spill = Spill(tmp_path, room)
    for _ in range(2):  # what was drained may be used again
        for number in range(30):
            spill.append(batch(number))
            assert spill._size <= room
        assert list(spill.drain()) == [batch(number) for number in range(30)]
        assert list(spill.drain()) == []
    assert list(tmp_path.iterdir()) == []


def test_its_file_is_closed_with_it_though_nobody_has_asked_for_all(tmp_path):
    before = len(list(DESCRIPTORS.iterdir()))
    spill = Spill(tmp_path, 0)
    for number in range(3):
        spill.append(batch(number))
    rows = spill.drain()
    next(rows)
    assert len(list(DESCRIPTORS.iterdir())) > before
    spill.close()
    assert len(list(DESCRIPTORS.iterdir())) == before


def test_a_directory_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StateDirectoryError, match=r"cannot create the state directory .*/file: "):
        Spill(tmp_path / "file" / "here", 0).append(batch(1))


def test_a_disk_that_is_full_when_rows_are_asked_for_is_told(tmp_path):
    spill = Spill(tmp_path, 0)
    spill.append(batch(1))  # it waits in a buffer of Python's
    with size_limit(100), pytest.raises(StateDirectoryError, match=r"cannot write rows .* in .*: File too large"):
        list(spill.drain())


@contextlib.contextmanager
def size_limit(size):
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
