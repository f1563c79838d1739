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


OTHERS = pa.record_batch({"slot": [5]})


@pytest.fixture
def streams(tmp_path):
    writer = SegmentWriter(tmp_path, NAME, BATCHES[0].schema)
    extents = []
    for group, batch in enumerate((*BATCHES, OTHERS, BATCHES[0])):
        writer.turn_to(batch.schema)
        extents.append(writer.append(group, batch))
    return tmp_path, writer.close(), extents


def test_rows_of_several_schemas_are_streams_one_after_the_other(streams):
    directory, segment, extents = streams
    reader = SegmentReader(directory, segment)
    assert [reader.read(extent) for extent in extents] == [*BATCHES, OTHERS, BATCHES[0]]
    with (directory / NAME).open("rb") as file:
        found = [pa.ipc.open_stream(file).read_all() for _ in range(3)]
    assert found == [pa.Table.from_batches(batches) for batches in (BATCHES, [OTHERS], BATCHES[:1])]
    assert len(segment.streams) == 2


def test_never_overwrites(written):
    directory, _, _ = written
    before = (directory / NAME).read_bytes()
    with pytest.raises(StateDirectoryError, match=NAME):
        SegmentWriter(directory, NAME, BATCHES[0].schema).close()
    assert (directory / NAME).read_bytes() == before


@pytest.mark.parametrize("file", ["written", "streams"])
def test_every_flipped_bit_is_found(request, file):
    directory, segment, extents = request.getfixturevalue(file)
    path = directory / NAME
    whole = path.read_bytes()
    marks = {mark - 8 + byte for mark in (*(each.offset for each in segment.streams), len(whole)) for byte in range(8)}
    for position in sorted({*range(len(whole))} - marks):  # the ends of streams are not read
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(CorruptState, match=r"damaged in the \d+ bytes at offset \d+"):
            reader = SegmentReader(directory, segment)
            for extent in extents:
                reader.read(extent)


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
