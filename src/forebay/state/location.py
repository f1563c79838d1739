"""Where a version of a store instance is, and the token that says so in Spark's state."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from forebay.errors import CorruptState
from forebay.state import layout as layouts
from forebay.state.layout import Layout
from forebay.state.places import Root
from forebay.store import filenames
from forebay.store.filenames import Version

_TOKEN = re.compile(
    f"(?P<layout>{filenames.LAYOUT_ID})/(?P<instance>[^/]+)/(?P<version>[0-9]{{12}}-[0-9a-f]{{8}})"
    "(?:@(?P<due>-?[0-9]+)(?:~(?P<patterns>[0-9a-f]{8}))?)?"
)


@dataclass(frozen=True)
class Location:
    """Where one version of a store instance is. Its text is the token that Spark's state holds.

    ``due`` is the watermark (microseconds) from which on the instance has something to do even if no row comes, if known;
    ``patterns`` is the short name of the patterns with which it is, if the operator has any.
    """

    root: Root
    layout: str
    instance: str
    version: Version | None = None
    due: int | None = None
    patterns: str | None = None

    @classmethod
    def new(cls, root: Root, vnode: int, layout: Layout, directories: Sequence[str] = ()) -> Location:
        """The location of an instance that has no state yet. No other instance or attempt ever gets the same.

        ``directories`` are those in which the operator has state.
        """
        if directories:
            return cls(root, directories[0], filenames.new_instance(vnode))
        return cls(root, layouts.describe(root, layout), filenames.new_instance(vnode))

    @classmethod
    def parse(cls, root: Root, token: str, layout: Layout, directories: Sequence[str] = ()) -> Location:
        """The location that a token names; `LayoutChanged` when it is that of another operator's state."""
        match = _TOKEN.fullmatch(token)
        if match is None or not filenames.is_instance(match["instance"]):
            raise CorruptState(f"Spark's state has {token!r} where the version of a store in {root.safe} should be")
        if match["layout"] not in directories and match["layout"] not in layouts.names(layout):
            raise layouts.changed(root, layouts.read(root, match["layout"]), layout)
        due = None if match["due"] is None else int(match["due"])
        return cls(root, match["layout"], match["instance"], Version.parse(match["version"]), due, match["patterns"])

    @property
    def home(self) -> Root:
        """The instance's own directory and archive."""
        return self.root.within(f"{self.layout}/{self.instance}")

    def at(self, version: Version, due: int, patterns: str | None) -> Location:
        """The same instance at another version."""
        return replace(self, version=version, due=due, patterns=patterns)

    def is_due(self, watermark: int, patterns: str | None) -> bool:
        """Whether the instance may have something to do at a watermark, for an operator that has these patterns now."""
        return self.due is None or self.due <= watermark or self.patterns != patterns

    def __str__(self) -> str:
        due = "" if self.due is None else f"@{self.due}" + ("" if self.patterns is None else f"~{self.patterns}")
        return f"{self.layout}/{self.instance}/{self.version}{due}"
