"""What an operator's state looks like, and where each of its store instances is: ``<root>/<layout id>/<instance>/``."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Any

from forebay.errors import CorruptState, LayoutChanged
from forebay.evolution import widens
from forebay.spark.places import Root
from forebay.store import filenames
from forebay.store.archive import MountedArchive
from forebay.store.filenames import Version

Layout = dict[str, Any]
"""Window function, keys, pattern and number of instances, which must not change under a checkpoint; and the aggregates,
each with the columns that it reads and their types, which may change as `evolves` says."""

_TOKEN = re.compile(f"(?P<layout>{filenames.LAYOUT_ID})/(?P<instance>[^/]+)/(?P<version>[0-9]{{12}}-[0-9a-f]{{8}})")


def layout_id(layout: Layout) -> str:
    """A short name for a layout; equal layouts have equal names."""
    return hashlib.sha256(_text(layout)).hexdigest()[:12]


@dataclass(frozen=True)
class Location:
    """Where one version of a store instance is. Its text is the token that Spark's state holds."""

    root: Root
    layout: str
    instance: str
    version: Version | None = None

    @classmethod
    def new(cls, root: Root, vnode: int, layout: Layout) -> Location:
        """A place for an instance that has no state yet. No other instance or attempt ever gets the same."""
        name = layout_id(layout)
        described = root.directory / name / filenames.LAYOUT
        if not described.exists():
            for archive in (root.safe, MountedArchive(root.directory)):
                archive.write(f"{name}/{filenames.LAYOUT}", _text(layout))
        return cls(root, name, filenames.new_instance(vnode))

    @classmethod
    def parse(cls, root: Root, token: str, layout: Layout) -> Location:
        """The place that a token names; `LayoutChanged` when state of that layout cannot become state of this one."""
        match = _TOKEN.fullmatch(token)
        if match is None or not filenames.is_instance(match["instance"]):
            raise CorruptState(f"Spark's state has {token!r} where the version of a store in {root.safe} should be")
        if match["layout"] != layout_id(layout) and not evolves(read(root, match["layout"]), layout):
            raise changed(root, match["layout"], layout)
        return cls(root, match["layout"], match["instance"], Version.parse(match["version"]))

    @property
    def home(self) -> Root:
        """The instance's own directory and archive."""
        return self.root.within(f"{self.layout}/{self.instance}")

    def at(self, version: Version) -> Location:
        """The same instance at another version."""
        return replace(self, version=version)

    def __str__(self) -> str:
        return f"{self.layout}/{self.instance}/{self.version}"


def evolves(before: Layout, layout: Layout) -> bool:
    """Whether a query may go on with the state of another layout.

    It may when nothing but aggregates differ, at least one has stayed, and those that have read the same columns as before,
    with the same types or wider ones. What is added starts as if its columns had been NULL until now.
    """
    old, new = before["aggregates"], layout["aggregates"]
    return (
        {**before, "aggregates": new} == layout
        and not {*old}.isdisjoint(new)
        and all(
            name in old[text] and widens(old[text][name], kind)
            for text in {*old} & {*new}
            for name, kind in new[text].items()
        )
    )


def changed(root: Root, written: str, layout: Layout) -> LayoutChanged:
    """The error for state of the layout named ``written`` under a query that now has ``layout``."""
    before = read(root, written)
    differences = "".join(
        f"\n  {name}: the checkpoint has {_shown(before.get(name))}, the query now has {_shown(layout.get(name))}"
        for name in sorted({*before, *layout})
        if before.get(name) != layout.get(name)
    )
    return LayoutChanged(
        f"the state in {root.safe} was written by another operator:{differences}\n"
        "Aggregates may be added and dropped as long as one stays and the pattern is the same, and columns may become "
        "wider. Change the query back, or start it with a new checkpoint location."
    )


def _shown(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{text} of {', '.join(columns.values())}" if columns else text for text, columns in value.items())


def read(root: Root, name: str) -> Layout:
    """The layout with that name."""
    path = f"{name}/{filenames.LAYOUT}"
    try:
        layout: Layout = json.loads(root.safe.read(path))
        if layout_id(layout) != name:
            raise ValueError("its content is not that of its name")
    except (OSError, ValueError) as error:
        raise CorruptState(
            f"{path} in {root.safe} cannot be read: {error}. Restore the checkpoint together with its state directory "
            "from a copy."
        ) from error
    return layout


def _text(layout: Layout) -> bytes:
    return json.dumps(layout, sort_keys=True, indent=1).encode()
