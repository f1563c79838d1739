"""``fb.progress``: what the forebay operators of a query have done, read from the state itself."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from pyspark.sql.streaming import StreamingQuery

from forebay.errors import ForebayError
from forebay.spark import checkpoint
from forebay.store import filenames
from forebay.store import manifest as manifests
from forebay.store.filenames import Version
from forebay.store.manifest import Counters, Manifest


@dataclass(frozen=True)
class Progress(Counters):
    """Totals over all operators and store instances of a query, since it first ran.

    They are written with the state, so restarts and retries neither lose nor double a row. While a batch is being retried
    they may show what its failed attempt wrote.

    Attributes
    ----------
    rows_in : int
        Rows that reached an operator.
    rows_late : int
        Rows dropped because every window they belong to had fired.
    rows_partly_late : int
        Rows that missed some of their sliding windows and are in the others.
    windows_fired : int
        Windows that fired, counted in each store instance that had rows of them.
    rows_out : int
        Result rows emitted.
    state_rows, state_bytes : int
        Rows, or partial aggregates, in state now, and their size on disk in bytes.
    """

    state_rows: int = 0
    state_bytes: int = 0


def progress(query: StreamingQuery) -> Progress:
    """What the forebay operators of ``query`` have done so far.

    Parameters
    ----------
    query : StreamingQuery
        A query started in this session, running or not.

    Returns
    -------
    Progress
        Totals up to the newest version of each store instance.
    """
    instances: dict[str, Manifest] = {}
    for path in sorted(checkpoint.root_of(query).glob("*/*/"), key=lambda path: path.stat().st_mtime):
        manifest = newest(path)
        if manifest:  # a first batch that failed has left an instance of the same virtual node, older than the one in use
            instances[f"{path.parent.name}/{filenames.vnode_of(path.name)}"] = manifest
    current = instances.values()
    totals = sum((manifest.counters for manifest in current), Counters())
    extents = [extent for manifest in current for extent in manifest.extents]
    return Progress(
        **{field.name: getattr(totals, field.name) for field in fields(Counters)},
        state_rows=sum(extent.rows for extent in extents),
        state_bytes=sum(extent.length for extent in extents),
    )


def newest(instance: Path) -> Manifest | None:
    """The newest version in an instance's directory, None when there is none."""
    for version in sorted(filenames.versions(instance), key=lambda v: (v.number, _age(instance, v)), reverse=True):
        try:
            return manifests.read(instance, version)
        except ForebayError:  # collected since it was listed
            continue
    return None


def _age(instance: Path, version: Version) -> float:
    try:
        return (instance / filenames.manifest(version)).stat().st_mtime
    except FileNotFoundError:
        return 0.0
