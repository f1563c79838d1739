"""A manifest is one version of a store: the segments and extents that are live, and the counters so far.

The first line of the file names the format, its version and the CRC-32 of everything after that line; the rest is JSON.
A version exists when its manifest does. See docs/format.md.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from isal.isal_zlib import crc32

from forebay.errors import CorruptState, VersionNotFound
from forebay.restoring import RESTORE
from forebay.store import filenames
from forebay.store.disk import LOCAL, Disk, is_there, unreadable
from forebay.store.filenames import Version
from forebay.store.segment import Extent, Header, Segment

FORMAT = 4

FORMAT_OF_PARTS = 5
"""What a manifest with parts has; earlier releases must not take the parts for one store."""

FORMAT_OF_PICTURES = 6
"""What a manifest with pictures of key indexes has, with parts or without."""

FORMAT_OF_STREAMS = 7
"""What a manifest has of which a segment has several streams, whatever else there is but for the next."""

FORMAT_OF_WIDTHS = 8
"""What a manifest has whose references to events say how large these are."""

_READABLE = {b"3", b"4", b"5", b"6", b"7", b"8"}
"""Manifests of format 3 have no secret."""

KIND_BITS = 61
PICTURES = 3 << KIND_BITS
"""Groups from this number on are pictures of key indexes (`forebay.store.index_log`)."""

KEY_INDEXES = 2 << KIND_BITS
"""Groups from this number on are of key indexes: changes of them, or pictures."""

EVENTS = "events"
"""The part that has the events which several patterns share (`forebay.store.events`)."""

INDEXES = 1 << KIND_BITS
"""Groups from this number on hold no rows of the user's but where such are to be found."""

SLICES, UNWEIGHED_SLICES = INDEXES + 1, INDEXES
"""The group of a log with parts that has the slices of events; and what it was while references did not say how large events
are."""


@dataclass(frozen=True)
class Counters:
    """What one store instance has done since it was made, exactly once: they are committed with the state.

    ``rows_late`` were dropped because every window they belong to had fired; ``rows_partly_late`` missed some of their
    sliding windows and are in the others.
    """

    rows_in: int = 0
    rows_late: int = 0
    rows_partly_late: int = 0
    windows_fired: int = 0
    rows_out: int = 0

    def __add__(self, other: Self) -> Self:
        if type(self) is not type(other):
            return NotImplemented
        return type(self)(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


@dataclass(frozen=True)
class Manifest:
    """One version of a store instance.

    ``fired_until`` is the watermark (microseconds) up to which windows have fired, None in the empty store;
    ``history`` names the older versions that are still kept, newest first, and ``stale`` counts the segments that they name
    and this one does not, files that go when those versions do, and one more if what one of them names is not known;
    ``batch`` is the micro-batch that made it; ``secret`` is what keys are identified under (`forebay.store.identity`), None
    in stores that were begun before there was one; ``parts`` are the stores that share the version, by name, each with its
    own counters.
    """

    version: Version | None = None
    history: tuple[Version, ...] = ()
    stale: int = 0
    fired_until: int | None = None
    counters: Counters = field(default_factory=Counters)
    segments: Mapping[str, Segment] = field(default_factory=dict)
    extents: tuple[Extent, ...] = ()
    batch: int | None = None
    secret: str | None = None
    parts: Mapping[str, Counters] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows, or partial aggregates, that the store holds."""
        return sum(extent.rows for extent in self.extents if extent.group < INDEXES)

    def rows_of(self, part: str) -> int:
        """Rows that a part of the store holds."""
        return sum(extent.rows for extent in self.extents if extent.part == part and extent.group < INDEXES)

    @property
    def size(self) -> int:
        """Bytes of the rows and of what is stored to find them."""
        return sum(extent.length for extent in self.extents)


_MOST_WRITTEN = 2048
_written: dict[Path, list[str]] = {}
"""The files of the versions that this process has written last."""
_writing = threading.Lock()


def write(directory: Path, manifest: Manifest, disk: Disk = LOCAL) -> None:
    """Make ``manifest`` a version: from the return on it can be opened, before that it cannot."""
    if manifest.version is None:
        raise ValueError("a manifest without a version is the empty store and is never written")
    body = json.dumps(_to_json(manifest), separators=(",", ":")).encode()
    header = f"forebay manifest {_format_of(manifest)} {crc32(body):08x}\n".encode()
    path = directory / filenames.manifest(manifest.version)
    disk.publish(path, header + body)
    with _writing:
        if len(_written) >= _MOST_WRITTEN:
            del _written[next(iter(_written))]
        _written[path] = [path.name, *manifest.segments]


def read(directory: Path, version: Version) -> Manifest:
    """The manifest of a version; `VersionNotFound` or `CorruptState` when there is none that can be trusted."""
    path = directory / filenames.manifest(version)
    return parse(_bytes_of(path), path)


def files_of(directory: Path, version: Version) -> list[str]:
    """The names of a version's files, the manifest's first, in a fraction of the time that `read` takes.

    Those of the last versions that this process has written are known: no two attempts write a version of one name. Raises
    `VersionNotFound` or `CorruptState` when there is no manifest, or none that can be trusted and is not known.
    """
    path = directory / filenames.manifest(version)
    known = _written.get(path)
    return known if known is not None and is_there(path) else files_in(_bytes_of(path), path)


def files_in(data: bytes, path: Path) -> list[str]:
    """What `files_of` gives, of the manifest in the bytes of a file."""
    content, _ = _content(data, path)
    return [path.name, *(segment.name for segment in _segments(content))]


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise VersionNotFound(
            f"{path} does not exist, though Spark's checkpoint names this version. The state directory and the "
            "checkpoint are one unit: restore both from the same copy, or set spark.forebay.stateDirectory as it was, or "
            "start with a new checkpoint location."
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def parse(data: bytes, path: Path) -> Manifest:
    """The manifest in the bytes of a file; ``path`` is for messages."""
    content, written = _content(data, path)
    manifest = _from_json(content)
    if written != (_format_of(manifest) if "secret" in content else 3):
        raise CorruptState(f"{path} is damaged at offset 0: what it has is of another format version. {RESTORE}")
    return manifest


def _content(data: bytes, path: Path) -> tuple[dict[str, Any], int]:
    """What the bytes of a file say, if they are those that were written of the version that has its name; and the format."""
    header, _, body = data.partition(b"\n")
    words = header.split(b" ")
    if len(words) != 4 or words[:2] != [b"forebay", b"manifest"] or not words[2].isdigit():
        raise CorruptState(f"{path} is damaged at offset 0: it does not begin like a manifest. {RESTORE}")
    if words[2] not in _READABLE:
        raise CorruptState(
            f"{path} has format version {words[2].decode(errors='replace')}; this forebay reads versions 3 to "
            f"{FORMAT_OF_WIDTHS}. "
            "Run the forebay release that wrote it."
        )
    if words[3] != f"{crc32(body):08x}".encode():
        raise CorruptState(f"{path} is damaged in the {len(body)} bytes at offset {len(header) + 1}. {RESTORE}")
    try:
        content = json.loads(body)
    except ValueError as error:  # the checksum of nothing is 0
        raise CorruptState(f"{path} is damaged: {error}. {RESTORE}") from error
    if filenames.version_of(path.name) != Version.parse(content["version"]):
        raise CorruptState(f"{path} is the manifest of another version, {content['version']}. {RESTORE}")
    return content, int(words[2])


def _format_of(manifest: Manifest) -> int:
    """The oldest format that has all that the manifest has, so that releases which can read it do."""
    if manifest.parts and any(extent.group == SLICES and not extent.part for extent in manifest.extents):
        return FORMAT_OF_WIDTHS
    if any(segment.streams for segment in manifest.segments.values()):
        return FORMAT_OF_STREAMS
    if any(extent.group >= PICTURES for extent in manifest.extents):
        return FORMAT_OF_PICTURES
    return FORMAT_OF_PARTS if manifest.parts else FORMAT


_EXTENT_COLUMNS = ("group", "offset", "length", "crc", "rows")


def _to_json(manifest: Manifest) -> dict[str, Any]:
    order = {name: position for position, name in enumerate(manifest.segments)}
    extents: dict[str, list[int]] = {
        column: [getattr(extent, column) for extent in manifest.extents] for column in _EXTENT_COLUMNS
    }
    extents["segment"] = [order[extent.segment] for extent in manifest.extents]
    if any(extent.merged for extent in manifest.extents):
        extents["merged"] = [int(extent.merged) for extent in manifest.extents]
    parts: dict[str, Any] = {}
    if manifest.parts:
        numbers = {name: number for number, name in enumerate(("", *manifest.parts))}
        extents["part"] = [numbers[extent.part] for extent in manifest.extents]
        parts["parts"] = [{"name": name, "counters": vars(counters)} for name, counters in manifest.parts.items()]
    return {
        "version": str(manifest.version),
        "history": [str(version) for version in manifest.history],
        "stale": manifest.stale,
        "batch": manifest.batch,
        "fired_until": manifest.fired_until,
        "secret": manifest.secret,
        "counters": vars(manifest.counters),
        "segments": [_described(segment) for segment in manifest.segments.values()],
        "extents": extents,
        **parts,
    }


def _described(segment: Segment) -> dict[str, Any]:
    """A segment; only where it has several streams do these have a field."""
    found = dict(vars(segment))
    if not segment.streams:
        del found["streams"]
    return found


def _segments(content: dict[str, Any]) -> list[Segment]:
    for segment in content["segments"]:
        if "streams" in segment:
            segment["streams"] = tuple(Header(*each) for each in segment["streams"])
    segments = [Segment(**segment) for segment in content["segments"]]
    for segment in segments:
        if not filenames.is_segment(segment.name):
            raise CorruptState(f"a manifest names {segment.name!r}, which is not a segment's name. {RESTORE}")
    return segments


def _from_json(content: dict[str, Any]) -> Manifest:
    segments = _segments(content)
    columns = content["extents"]
    parts = {part["name"]: Counters(**part["counters"]) for part in content.get("parts", ())}
    names = ("", *parts)
    none = [0] * len(columns["group"])
    others = columns.get("part", none), columns.get("merged", none)
    rows = zip(*(columns[column] for column in (*_EXTENT_COLUMNS, "segment")), *others, strict=True)
    return Manifest(
        version=Version.parse(content["version"]),
        history=tuple(Version.parse(version) for version in content["history"]),
        stale=content["stale"],
        batch=content["batch"],
        fired_until=content["fired_until"],
        secret=content.get("secret"),
        counters=Counters(**content["counters"]),
        segments={segment.name: segment for segment in segments},
        extents=tuple(
            Extent(start, segments[segment].name, offset, length, crc, count, names[part], bool(merged))
            for start, offset, length, crc, count, segment, part, merged in rows
        ),
        parts=parts,
    )
