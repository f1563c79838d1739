"""A manifest is one version of a store: the segments and extents that are live, and the counters so far.

The first line of the file names the format, its version and the CRC-32 of everything after that line. A line of JSON
follows, and then the extents as records. A version exists when its manifest does. See docs/format.md.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

import numpy as np
from isal.isal_zlib import crc32

from forebay.errors import CorruptState, VersionNotFound
from forebay.restoring import RESTORE
from forebay.store import filenames
from forebay.store.disk import LOCAL, Disk, is_there, unreadable
from forebay.store.extent_table import EMPTY, RECORD, ExtentTable, Records, in_order
from forebay.store.filenames import Version
from forebay.store.segment import Header, Segment

FORMAT = 9

_OLDEST = 3
"""The first format that is read. Manifests of earlier ones than `FORMAT` are JSON alone, and those of this one have no
secret."""

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
    extents: ExtentTable = field(default_factory=lambda: EMPTY)
    batch: int | None = None
    secret: str | None = None
    parts: Mapping[str, Counters] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows, or partial aggregates, that the store holds."""
        return _rows(self.extents.records)

    def rows_of(self, part: str) -> int:
        """Rows that a part of the store holds."""
        return _rows(self.extents.part(part))

    @property
    def size(self) -> int:
        """Bytes of the rows and of what is stored to find them."""
        return int(self.extents.records["length"].sum())


def _rows(extents: Records) -> int:
    return int(extents["rows"][extents["group"] < INDEXES].sum())


_SEGMENT_COLUMNS = ("name", "size", "schema_size", "schema_crc")

_MOST_WRITTEN = 2048
_written: dict[Path, list[str]] = {}
"""The files of the versions that this process has written last."""
_writing = threading.Lock()


def write(directory: Path, manifest: Manifest, disk: Disk = LOCAL) -> None:
    """Make ``manifest`` a version: from the return on it can be opened, before that it cannot."""
    if manifest.version is None:
        raise ValueError("a manifest without a version is the empty store and is never written")
    if tuple(manifest.segments) != tuple(manifest.extents.segments):
        raise ValueError("the segments of a manifest are not those in which its extents lie")
    described = json.dumps(_described(manifest), separators=(",", ":")).encode()
    body = described + b"\n" + manifest.extents.records.tobytes()
    header = f"forebay manifest {FORMAT} {crc32(body):08x}\n".encode()
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
    return _from(*_content(data, path))


def _content(data: bytes, path: Path) -> tuple[dict[str, Any], bytes]:
    """What the bytes of a file say, if they were written of the version that has its name; and its records."""
    header, _, body = data.partition(b"\n")
    words = header.split(b" ")
    if len(words) != 4 or words[:2] != [b"forebay", b"manifest"] or not words[2].isdigit():
        raise CorruptState(f"{path} is damaged at offset 0: it does not begin like a manifest. {RESTORE}")
    if not _OLDEST <= int(words[2]) <= FORMAT:
        raise CorruptState(
            f"{path} has format version {int(words[2])}; this forebay reads versions {_OLDEST} to {FORMAT}. Run the forebay "
            "release that wrote it."
        )
    if words[3] != f"{crc32(body):08x}".encode():
        raise CorruptState(f"{path} is damaged in the {len(body)} bytes at offset {len(header) + 1}. {RESTORE}")
    described, _, records = body.partition(b"\n")
    try:
        content = json.loads(described)
    except ValueError as error:  # the checksum of nothing is 0
        raise CorruptState(f"{path} is damaged: {error}. {RESTORE}") from error
    if filenames.version_of(path.name) != Version.parse(content["version"]):
        raise CorruptState(f"{path} is the manifest of another version, {content['version']}. {RESTORE}")
    return content, records


def _described(manifest: Manifest) -> dict[str, Any]:
    """All of a manifest but its extents."""
    segments = list(manifest.segments.values())
    parts = [{"name": name, "counters": vars(counters)} for name, counters in manifest.parts.items()]
    return {
        "version": str(manifest.version),
        "history": [str(version) for version in manifest.history],
        "stale": manifest.stale,
        "batch": manifest.batch,
        "fired_until": manifest.fired_until,
        "secret": manifest.secret,
        "counters": vars(manifest.counters),
        "segments": {column: list(map(attrgetter(column), segments)) for column in _SEGMENT_COLUMNS},
        "streams": {place: each.streams for place, each in enumerate(segments) if each.streams},
        "parts": parts,
    }


def _segments(content: dict[str, Any]) -> list[Segment]:
    """The segments, which earlier releases describe one by one."""
    columns, streams = content["segments"], content.get("streams", {})
    if isinstance(columns, list):
        streams = {str(place): each["streams"] for place, each in enumerate(columns) if "streams" in each}
        columns = {column: [each[column] for each in columns] for column in _SEGMENT_COLUMNS}
    for name in columns["name"]:
        if not filenames.is_segment(name):
            raise CorruptState(f"a manifest names {name!r}, which is not a segment's name. {RESTORE}")
    further = [tuple(Header(*each) for each in streams.get(str(place), ())) for place in range(len(columns["name"]))]
    return list(map(Segment, *(columns[column] for column in _SEGMENT_COLUMNS), further))


def _extents(content: dict[str, Any], records: bytes, segments: Sequence[str], parts: Sequence[str]) -> ExtentTable:
    """The extents, which are records, or lists of earlier releases."""
    if "extents" not in content:
        return ExtentTable(np.frombuffer(records, RECORD).copy(), segments, parts)
    columns = content["extents"]
    found = np.zeros(len(columns["group"]), RECORD)
    for name, column in columns.items():
        found[name] = column
    return ExtentTable(in_order(found), segments, parts)


def _from(content: dict[str, Any], records: bytes) -> Manifest:
    segments = {segment.name: segment for segment in _segments(content)}
    parts = {part["name"]: Counters(**part["counters"]) for part in content.get("parts", ())}
    return Manifest(
        version=Version.parse(content["version"]),
        history=tuple(Version.parse(version) for version in content["history"]),
        stale=content["stale"],
        batch=content["batch"],
        fired_until=content["fired_until"],
        secret=content.get("secret"),
        counters=Counters(**content["counters"]),
        segments=segments,
        extents=_extents(content, records, tuple(segments), ("", *parts)),
        parts=parts,
    )
