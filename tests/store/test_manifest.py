import zlib
from dataclasses import replace

import pytest

from forebay.errors import CorruptState, StateDirectoryError, VersionNotFound
from forebay.store import filenames
from forebay.store import manifest as manifests
from forebay.store.extent_table import ExtentTable
from forebay.store.filenames import Version
from forebay.store.manifest import Counters, Manifest
from forebay.store.segment import Extent, Header, Segment

VERSION = Version(7, "0123abcd")
SEGMENT = Segment("000000000006-89abcdef-0000.arrow", 4096, 312, 77)
EXTENTS = Extent(-60, SEGMENT.name, 312, 500, 99, 8), Extent(0, SEGMENT.name, 812, 500, 98, 2, merged=True)
MANIFEST = Manifest(
    version=VERSION,
    history=(Version(6, "89abcdef"),),
    stale=1,
    fired_until=-5,
    counters=Counters(rows_in=10, rows_late=2, windows_fired=1, rows_out=3),
    segments={SEGMENT.name: SEGMENT},
    extents=ExtentTable.of(EXTENTS, [SEGMENT.name]),
)


@pytest.fixture
def path(tmp_path):
    manifests.write(tmp_path, MANIFEST)
    return tmp_path / f"{VERSION}.manifest"


def test_reads_what_was_written(path):
    assert manifests.read(path.parent, VERSION) == MANIFEST
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_that_cannot_be_read_is_told_with_what_to_do(path):
    path.unlink()
    path.mkdir()
    with pytest.raises(StateDirectoryError, match=r"cannot read .*\.manifest: Is a directory.*start the query again"):
        manifests.read(path.parent, VERSION)


def test_parts_are_told_apart(tmp_path):
    first, second = EXTENTS
    parts = {"events": Counters(rows_in=4), "hourly": Counters(rows_out=1)}
    extents = ExtentTable.of([second._replace(part="hourly"), first], [SEGMENT.name], ("", *parts))
    with_parts = replace(MANIFEST, extents=extents, parts=parts)
    manifests.write(tmp_path, with_parts)
    assert manifests.read(tmp_path, VERSION) == with_parts
    assert [each.rows_of("hourly") for each in (with_parts, manifests.read(tmp_path, VERSION))] == [second.rows] * 2


def test_a_picture_of_a_key_index_is_no_rows(tmp_path):
    first, second = EXTENTS
    extents = ExtentTable.of([first, second._replace(group=manifests.PICTURES | 1)], [SEGMENT.name])
    manifests.write(tmp_path, replace(MANIFEST, extents=extents))
    assert manifests.read(tmp_path, VERSION).rows == first.rows


def test_segments_may_have_several_streams(tmp_path):
    segment = replace(SEGMENT, streams=(Header(1312, 200, 5), Header(2000, 100, 6)))
    with_streams = replace(MANIFEST, segments={segment.name: segment})
    manifests.write(tmp_path, with_streams)
    assert manifests.read(tmp_path, VERSION) == with_streams
    first, second = EXTENTS
    later = second._replace(offset=1512)
    assert [segment.header_of(extent).offset for extent in (first, second, later)] == [0, 0, 1312]


def test_segments_without_extents_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="segments of a manifest are not those in which its extents lie"):
        manifests.write(tmp_path, replace(MANIFEST, extents=ExtentTable.of((), ())))


def test_every_flipped_bit_is_found(path):
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(CorruptState, match=str(path)):
            manifests.read(path.parent, VERSION)


def test_the_manifest_of_another_version_is_found(path):
    other = Version(6, "89abcdef")
    path.rename(path.with_name(f"{other}.manifest"))
    with pytest.raises(CorruptState, match="is the manifest of another version, 000000000007-0123abcd"):
        manifests.read(path.parent, other)


def test_every_truncation_is_found(path):
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptState):
            manifests.read(path.parent, VERSION)


def test_a_version_that_does_not_exist(path):
    with pytest.raises(VersionNotFound, match="restore both"):
        manifests.read(path.parent, Version(8, "0123abcd"))


def test_another_format_is_refused_with_what_to_do(path):
    path.write_bytes(path.read_bytes().replace(b"manifest 9", b"manifest 10", 1))
    with pytest.raises(CorruptState, match="format version 10; this forebay reads versions 3 to 9"):
        manifests.read(path.parent, VERSION)


def test_a_segment_outside_of_the_directory_is_refused(path):
    body = path.read_bytes().partition(b"\n")[2].replace(SEGMENT.name.encode(), b"../../" + SEGMENT.name.encode())
    path.write_bytes(b"forebay manifest 9 %08x\n" % zlib.crc32(body) + body)
    with pytest.raises(CorruptState, match="not a segment's name"):
        manifests.read(path.parent, VERSION)


@pytest.mark.parametrize("sequence", [0, 9_999, 10_000])
def test_names_of_segments_are_read_back(sequence):
    name = filenames.segment(VERSION, sequence)
    assert filenames.is_segment(name)
    assert filenames.number_of(name) == VERSION.number
    assert filenames.number_of(filenames.temporary(name)) == VERSION.number


@pytest.mark.parametrize(
    ("header", "body"),
    [(b"forebay manifest t 00000000", b"{}"), (b"forebay manifest 4 00000000", b"")],
    ids=["a flipped bit in the format", "nothing"],
)
def test_what_is_no_manifest_is_damage(path, header, body):
    path.write_bytes(header + b"\n" + body)
    with pytest.raises(CorruptState, match="is damaged"):
        manifests.read(path.parent, VERSION)
