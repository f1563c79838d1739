"""Every file name of a state directory is made and read here. See docs/format.md."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

_VERSION = re.compile(r"(\d{12})-([0-9a-f]{8})")
_INSTANCE = re.compile(r"\d+-[0-9a-f]{8}")
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")
_SEGMENT = re.compile(r"(\d{12})-[0-9a-f]{8}-\d{4,}\.arrow")

LAYOUT = "layout.json"
LATER_LAYOUT = "layout-{:04}.json"
LAYOUT_ID = "[0-9a-f]{12}"


@dataclass(frozen=True)
class Version:
    """A version of one store: how many commits led to it, and which attempt wrote it.

    Two attempts at one commit differ in ``attempt``, so neither can write a file of the other.
    """

    number: int
    attempt: str

    @classmethod
    def after(cls, parent: Version | None) -> Version:
        """A fresh attempt at the version that follows ``parent``."""
        return cls(parent.number + 1 if parent else 1, secrets.token_hex(4))

    @classmethod
    def parse(cls, text: str) -> Version:
        """The inverse of ``str``; ValueError for anything else, so that no path can come in as a version."""
        match = _VERSION.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not the name of a version")
        return cls(int(match[1]), match[2])

    def __str__(self) -> str:
        return f"{self.number:012d}-{self.attempt}"


def manifest(version: Version) -> str:
    return f"{version}.manifest"


def segment(version: Version, sequence: int) -> str:
    return f"{version}-{sequence:04d}.arrow"


def temporary(name: str) -> str:
    """A fresh name to write a file under until it is whole."""
    return f".{name}.{secrets.token_hex(4)}.tmp"


def is_segment(name: str) -> bool:
    return _SEGMENT.fullmatch(name) is not None


def is_state(name: str) -> bool:
    """Whether a name is that of a segment or a manifest."""
    return is_segment(name) or version_of(name) is not None


def number_of(name: str) -> int | None:
    """The version number in the name of a segment or manifest, whole or temporary; None for a file that is not ours."""
    match = _TEMPORARY.fullmatch(name)
    name = match[1] if match else name
    if is_segment(name) or (name.endswith(".manifest") and _VERSION.fullmatch(name.removesuffix(".manifest"))):
        return int(name[:12])
    return None


def version_of(name: str) -> Version | None:
    """The version in the name of a manifest; None for any other file."""
    stem, dot, kind = name.rpartition(".")
    return Version.parse(stem) if dot and kind == "manifest" and _VERSION.fullmatch(stem) else None


def newest(names: Iterable[str]) -> Version | None:
    """The highest version of which there is a manifest among some names."""
    versions = [version for version in map(version_of, names) if version is not None]
    return max(versions, key=lambda version: version.number, default=None)


def new_instance(vnode: int) -> str:
    """A fresh directory name for the store instance of a virtual node."""
    return f"{vnode}-{secrets.token_hex(4)}"


def is_query(name: str) -> bool:
    """Whether a directory's name is that of a query on a host: its id, and a hash of its checkpoint location."""
    return re.fullmatch("[0-9a-f-]{36}-[0-9a-f]{8}", name) is not None


def is_layout(name: str) -> bool:
    """Whether a directory's name is that of an operator's layout."""
    return re.fullmatch(LAYOUT_ID, name) is not None


def is_instance(name: str) -> bool:
    return _INSTANCE.fullmatch(name) is not None


def vnode_of(instance: str) -> str:
    """The virtual node in the name of an instance's directory, with the directories above it."""
    return instance.rpartition("-")[0]
