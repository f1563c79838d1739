import pyarrow as pa
import pytest

from forebay.errors import CorruptState, StateDirectoryError
from forebay.store.segment import SegmentWriter
from forebay.store.segment_reader import SegmentReader

NAME = "000000000001-0123abcd-0000.arrow"
BATCHES = [pa.record_batch({"user": ["ann", None], "n": [1, 2]}), pa.record_batch({"user": ["bob"], "n": [3]})]


@pytest.fixture
def written(tmp_path):
    writer = SegmentWriter(tmp_path, NAME, BATCHES[0].schema)
    extents = [writer.append(start, batch) for start, batch in enumerate(BATCHES)]
    return tmp_path, writer.close(), extents


def test_reads_what_was_written(written):
    directory, segment, extents = written
    reader = SegmentReader(directory, segment)
    assert [reader.read(extent) for extent in extents] == BATCHES
    assert (directory / NAME).stat().st_mode & 0o077 == 0


def test_is_an_arrow_stream_that_any_tool_reads(written):
    directory, _, _ = written
    with (directory / NAME).open("rb") as file:
        assert pa.ipc.open_stream(file).read_all() == pa.Table.from_batches(BATCHES)


def test_never_overwrites(written):
    directory, _, _ = written
    before = (directory / NAME).read_bytes()
    with pytest.raises(StateDirectoryError, match=NAME):
        SegmentWriter(directory, NAME, BATCHES[0].schema).close()
    assert (directory / NAME).read_bytes() == before


def test_every_flipped_bit_is_found(written):
    directory, segment, extents = written
    path = directory / NAME
    whole = path.read_bytes()
    for position in range(len(whole) - 8):  # the end-of-stream mark is not read
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(CorruptState, match=r"damaged in the \d+ bytes at offset \d+"):
            reader = SegmentReader(directory, segment)
            assert [reader.read(extent) for extent in extents] == BATCHES


@pytest.mark.parametrize("size", [0, 8, 100])
def test_a_truncated_file_is_found(written, size):
    directory, segment, _ = written
    with (directory / NAME).open("r+b") as file:
        file.truncate(size)
    with pytest.raises(CorruptState, match=f"has {size} bytes"):
        SegmentReader(directory, segment)


def test_a_missing_file_is_named(written):
    directory, segment, _ = written
    (directory / NAME).unlink()
    with pytest.raises(CorruptState, match=f"{NAME} is missing"):
        SegmentReader(directory, segment)
