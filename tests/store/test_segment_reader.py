"""A few rows of an extent are read without the rest of it, and whatever is read was checked."""

import ctypes
import datetime
import decimal
import errno
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from forebay.errors import CorruptState, StateDirectoryError
from forebay.store import blocks, paging, verified
from forebay.store.block_kernels import BLOCK
from forebay.store.segment import SegmentWriter
from forebay.store.segment_reader import SegmentReader, side_by_side

NAME = "000000000001-0123abcd-0000.arrow"
ROWS = 3000
NOON = datetime.datetime(2026, 3, 1, 12)


def columns(seed=0):
    """Every kind of column whose rows can be found alone, each with NULLs."""
    chance = np.random.default_rng(seed)
    some = [bool(each) for each in chance.random(ROWS) < 0.8]
    numbers = [int(each) for each in chance.integers(0, 10**6, ROWS)]

    def nullable(make, kind):
        values = [make(number) if there else None for number, there in zip(numbers, some, strict=True)]
        return pa.array(values, kind)

    return {
        "long": nullable(lambda n: n, pa.int64()),
        "byte": nullable(lambda n: n % 100, pa.int8()),
        "double": nullable(lambda n: n / 7, pa.float64()),
        "bool": nullable(lambda n: n % 3 == 0, pa.bool_()),
        "time": nullable(lambda n: NOON + datetime.timedelta(seconds=n), pa.timestamp("us")),
        "price": nullable(lambda n: decimal.Decimal(n) / 100, pa.decimal128(18, 2)),
        "code": nullable(lambda n: f"{n:08d}".encode(), pa.binary(8)),
        "word": nullable(lambda n: "word" * (n % 40), pa.string()),
        "bytes": nullable(lambda n: bytes(n % 500), pa.binary()),
        "long word": nullable(lambda n: f"{n}" * (n % 30), pa.large_string()),
        "nothing": pa.nulls(ROWS),
        "empty": nullable(lambda n: b"", pa.binary(0)),
        "all": pa.array(numbers),
    }


def written(directory, *batches):
    writer = SegmentWriter(directory, NAME, batches[0].schema)
    extents = [writer.append(number, batch) for number, batch in enumerate(batches)]
    return writer.close(), extents


def take(reader, extent, rows):
    (batch,) = side_by_side([reader.take(extent, rows)])
    return batch


def known(directory):
    found = directory.joinpath(NAME).stat()
    return verified.of(directory / NAME, (found.st_ino, found.st_mtime_ns))


def test_some_rows_are_those_of_the_whole(tmp_path):
    batches = [pa.record_batch(columns(seed)) for seed in range(3)]
    segment, extents = written(tmp_path, *batches)
    reader = SegmentReader(tmp_path, segment)
    chance = np.random.default_rng(1)
    for count in (0, 1, 5, 50, ROWS):
        for extent, batch in zip(extents, batches, strict=True):
            rows = chance.permutation(ROWS)[:count]
            assert take(reader, extent, rows).equals(batch.take(pa.array(rows)))


def test_values_that_are_longer_than_a_block(tmp_path):
    batch = pa.record_batch({"page": pa.array([bytes([number]) * 5000 for number in range(200)], pa.binary(5000))})
    segment, (extent,) = written(tmp_path, batch)
    reader, rows = SegmentReader(tmp_path, segment), np.array([150, 3])
    assert take(reader, extent, rows).equals(batch.take(pa.array(rows)))
    assert 4 <= known(tmp_path).blocks.sum() < 8


def test_a_row_that_is_not_there(tmp_path):
    segment, (extent,) = written(tmp_path, pa.record_batch(columns()))
    with pytest.raises(IndexError, match="out of bounds"):
        take(SegmentReader(tmp_path, segment), extent, np.array([5, 10**9]))


def test_a_file_that_cannot_be_read_is_told_with_what_to_do(tmp_path):
    segment, (extent,) = written(tmp_path, pa.record_batch(columns()))
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).symlink_to(NAME)  # whoever asks cannot follow it
    with pytest.raises(StateDirectoryError, match=rf"cannot read .*{NAME}: Too many levels.*start the query again"):
        SegmentReader(tmp_path, segment).read(extent)


def test_rows_of_several_extents_come_together(tmp_path):
    batches = [pa.record_batch(columns(seed)) for seed in range(3)]
    segment, extents = written(tmp_path, *batches)
    reader, rows = SegmentReader(tmp_path, segment), [np.array([3, 700]), np.arange(ROWS), np.array([], np.int64)]
    found = side_by_side(reader.take(extent, some) for extent, some in zip(extents, rows, strict=True))
    assert found == [batch.take(pa.array(some)) for batch, some in zip(batches, rows, strict=True)]


def test_of_a_few_rows_only_their_blocks_are_checked(tmp_path):
    segment, (extent,) = written(tmp_path, pa.record_batch({"bytes": [bytes(1000)] * ROWS, "n": np.arange(ROWS)}))
    reader = SegmentReader(tmp_path, segment)
    assert take(reader, extent, np.array([7, 2000]))["n"].to_pylist() == [7, 2000]
    assert 4 < known(tmp_path).blocks.sum() < 12
    assert not known(tmp_path).extents - {0}, "the schema alone is checked as a whole"
    reader.read(extent)
    assert extent.offset in known(tmp_path).extents
    assert known(tmp_path).blocks.sum() > extent.length // BLOCK - 2


def test_most_rows_are_read_with_all_others(tmp_path):
    segment, (extent,) = written(tmp_path, pa.record_batch({"bytes": [bytes(1000)] * ROWS}))
    take(SegmentReader(tmp_path, segment), extent, np.arange(0, ROWS, 4))
    assert extent.offset in known(tmp_path).extents


def test_columns_in_columns_are_read_as_a_whole(tmp_path):
    batch = pa.record_batch({"list": [[number, 1] for number in range(30_000)]})
    segment, (extent,) = written(tmp_path, batch)
    for _ in range(2):
        assert take(SegmentReader(tmp_path, segment), extent, np.array([29_999])).to_pydict() == {"list": [[29_999, 1]]}
    assert extent.offset in known(tmp_path).extents


def test_damage_to_what_is_read_is_found(tmp_path):
    batch = pa.record_batch({name: column for name, column in columns().items() if name in ("bool", "word", "bytes")})
    segment, (extent,) = written(tmp_path, batch)
    path, rows = tmp_path / NAME, np.array([5, 1500, 2999])
    whole, expected = path.read_bytes(), batch.take(pa.array(rows))
    found = missed = 0
    for position in range(extent.offset, extent.offset + extent.length, 997):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            assert take(SegmentReader(tmp_path, segment), extent, rows).equals(expected), (
                "what was not found does not matter"
            )
            missed += 1
        except CorruptState as error:
            assert NAME in str(error)
            found += 1
    assert found > 3
    assert missed > found


@pytest.mark.parametrize("place", [-1, -6, -9, -400], ids=["mark", "checksum", "last", "another"])
def test_without_right_checksums_of_blocks_an_extent_is_read_as_a_whole(tmp_path, place):
    segment, (extent,) = written(tmp_path, pa.record_batch({"bytes": [bytes(1000)] * ROWS, "n": np.arange(ROWS)}))
    damaged = bytearray((tmp_path / NAME).read_bytes())
    damaged[place] ^= 1
    (tmp_path / NAME).write_bytes(damaged)
    reader = SegmentReader(tmp_path, segment)
    assert take(reader, extent, np.array([7, 2000]))["n"].to_pylist() == [7, 2000]
    assert extent.offset in known(tmp_path).extents


def test_a_damaged_file_is_got_again(tmp_path):
    batch = pa.record_batch({"bytes": [bytes(1000)] * ROWS, "n": np.arange(ROWS)})
    segment, (extent,) = written(tmp_path, batch)
    path = tmp_path / NAME
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[extent.offset + extent.length - 8] ^= 1
    path.write_bytes(damaged)
    reader = SegmentReader(tmp_path, segment, lambda: path.write_bytes(whole) and None)
    rows = [np.array([7]), np.array([ROWS - 1]), np.array([8])]
    found = side_by_side(reader.take(extent, some) for some in rows)
    assert [batch["n"].to_pylist() for batch in found] == [[7], [ROWS - 1], [8]]
    assert path.read_bytes() == whole


def test_damage_since_an_extent_was_checked_does_not_move(tmp_path):
    segment, (extent,) = written(tmp_path, pa.record_batch({"bytes": [bytes(1000)] * ROWS, "n": np.arange(ROWS)}))
    reader = SegmentReader(tmp_path, segment)
    reader.read(extent)
    with (tmp_path / NAME).open("r+b") as file:
        file.seek(extent.offset + extent.length // 2)
        file.write(b"x")
    writer = SegmentWriter(tmp_path, NAME.replace("0001-", "0002-"), reader.schema_of(extent))
    with pytest.raises(CorruptState, match=NAME):
        reader.move(extent, writer)
    writer.abandon()


def test_a_read_goes_on_when_the_file_is_got_again_meanwhile(tmp_path):
    batches = [pa.record_batch({"bytes": [bytes(1000)] * ROWS, "n": np.arange(ROWS) + number}) for number in range(2)]
    segment, extents = written(tmp_path, *batches)
    path = tmp_path / NAME
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[extents[0].offset + extents[0].length // 2] ^= 1
    path.write_bytes(damaged)

    def fetch():
        path.unlink()
        path.write_bytes(whole)

    reader = SegmentReader(tmp_path, segment, fetch)
    many, few = np.arange(ROWS), np.array([7, 2000])
    found = side_by_side([reader.take(extents[0], many), reader.take(extents[1], few)])
    assert found == [batches[0], batches[1].take(pa.array(few))]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_the_last_offset_is_checked_since_memory_is_reserved_by_it(tmp_path, kind):
    words = pa.array([f"{number:07}" * 40 for number in range(ROWS)], kind)
    segment, (extent,) = written(tmp_path, pa.record_batch({"words": words}))
    data = bytearray((tmp_path / NAME).read_bytes())
    offsets = words.buffers()[1].to_pybytes()[: (ROWS + 1) * (8 if kind == pa.large_string() else 4)]
    data[data.find(offsets) + len(offsets) - 2] ^= 0x40
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(CorruptState):
        take(SegmentReader(tmp_path, segment), extent, np.array([3]))


def test_extents_that_move_have_checksums_of_their_blocks(tmp_path):
    batches = [pa.record_batch(columns(seed)) for seed in range(2)]
    segment, extents = written(tmp_path, *batches)
    reader = SegmentReader(tmp_path, segment)
    writer = SegmentWriter(tmp_path, NAME.replace("0001-", "0002-"), reader.schema_of(extents[1]))
    moved = reader.move(extents[1], writer)
    segment = writer.close()
    assert blocks.checksums_of(paging.mapped(tmp_path / segment.name)) is not None
    assert take(SegmentReader(tmp_path, segment), moved, np.array([3, 4])).equals(batches[1].slice(3, 2))


def test_small_segments_have_none(tmp_path):
    segment, (extent,) = written(tmp_path, pa.record_batch({"n": np.arange(100)}))
    assert (tmp_path / NAME).read_bytes().endswith(b"\xff\xff\xff\xff\x00\x00\x00\x00")
    assert take(SegmentReader(tmp_path, segment), extent, np.array([7]))["n"].to_pylist() == [7]


@pytest.fixture
def on_disk():
    """A directory on a disk: temporary files may be in memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        yield Path(directory)


@pytest.fixture(params=["with the system call", "without", "without a descriptor"])
def call(request, monkeypatch):
    """The system call that takes advice about many parts, or one of the things that may be missing."""
    if request.param == "without":
        monkeypatch.setattr(paging, "_PROCESS_MADVISE", -1)
    if request.param == "without a descriptor":
        monkeypatch.delattr(os, "pidfd_open")
        paging._itself.cache_clear()
    yield
    paging._itself.cache_clear()


def test_large_parts_are_asked_for_in_pieces():
    page, most = 4096, paging._MOST
    parts = np.array([[10 * page + 5, 100], [100 * page, 2 * most + 1], [5 * page, most], [7 * page + 1, most]])
    pieces = [[10 * page, 105], [100 * page, most], [100 * page + most, most], [100 * page + 2 * most, 1]]
    pieces += [[5 * page, most], [7 * page, most], [7 * page + most, 1]]
    assert paging._pieces(parts).tolist() == pieces


@pytest.mark.usefixtures("call")
def test_parts_are_read_ahead(on_disk):
    path = on_disk / "file"
    path.write_bytes(bytes(64 * BLOCK))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    file = paging.mapped(path)
    if len(resident(file)) > 1:  # the first one is read when it is mapped
        pytest.skip("/var/tmp is itself in memory on this machine, so there is no disk from which to read ahead")
    paging.read_ahead(np.array([[file.address + 5 * BLOCK + 100, 10], [file.address + 8 * BLOCK + 5, 2 * BLOCK]]))
    deadline = time.monotonic() + 20
    while len(resident(file)) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert resident(file) == {0, 5, 8, 9, 10}


def resident(file):
    """Which pages of a mapped file are in memory."""
    pages = (ctypes.c_ubyte * -(-file.size // BLOCK))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(file.address), ctypes.c_size_t(file.size), pages) == 0
    return {number for number, page in enumerate(pages) if page & 1}


CUT_OFF = """
import os, sys
from pathlib import Path
import numpy as np, pyarrow as pa
from forebay.errors import StateDirectoryError
from forebay.store.segment import SegmentWriter
from forebay.store.segment_reader import SegmentReader, side_by_side
directory, name, whole, rows = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "whole", np.array([10_000])
writer = SegmentWriter(directory, name, pa.schema([("n", pa.int64())]))
extent = writer.append(0, pa.record_batch({"n": np.arange(20_000)}))
segment, path = writer.close(), directory / name
copy = path.read_bytes()
def restore():
    path.unlink()
    path.write_bytes(copy)
reader = SegmentReader(directory, segment, restore if sys.argv[4] == "archive" else None)
os.truncate(path, 8192)  # its pages cannot be read any more, as with a disk that does not give them
try:
    batch = reader.read(extent) if whole else side_by_side([reader.take(extent, rows)])[0]
    print(batch.num_rows)
except StateDirectoryError as error:
    print(error)
"""


def can_be_asked():
    """Whether Linux has a part of a mapped file read when it is asked to: not before 5.14, and not in each sandbox."""
    whole = paging.mapped(Path(__file__))
    return paging._libc().madvise(whole.address, 1, paging._POPULATE_READ) == 0


@pytest.mark.skipif(
    not can_be_asked(), reason="without that, a page that cannot be read ends the process, as format.md says"
)
@pytest.mark.parametrize("how", ["whole", "few"])
def test_what_a_disk_does_not_give_is_told_and_does_not_end_the_process(tmp_path, how):
    """By itself, to touch such a page of a mapped file is a signal that nobody can catch."""
    run = [sys.executable, "-c", CUT_OFF, tmp_path, NAME, how]
    alone = subprocess.run([*run, "alone"], capture_output=True, text=True, check=True).stdout
    assert re.match(r"cannot read .*\.arrow: Input/output error\. Have its disk mounted", alone)
    (tmp_path / NAME).unlink()
    assert subprocess.run([*run, "archive"], capture_output=True, text=True, check=True).stdout in ("20000\n", "1\n")


def test_no_file_is_fetched_again_for_want_of_memory(tmp_path, monkeypatch):
    """A replica that is asked for again is taken for damaged, and goes."""
    segment, _ = written(tmp_path, pa.record_batch({"n": [1]}))
    asked, error = [], OSError(errno.ENOMEM, "Cannot allocate memory")
    monkeypatch.setattr(paging, "mapped", lambda _: raised(error))
    with pytest.raises(StateDirectoryError, match="Cannot allocate memory"):
        SegmentReader(tmp_path, segment, lambda: asked.append(1))
    assert not asked


def raised(error):
    raise error
