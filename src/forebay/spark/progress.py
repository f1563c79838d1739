"""``fb.progress``: what the forebay operators of a query have done, read from the state itself."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, fields
from pathlib import Path

from pyspark.sql.streaming import StreamingQuery

from forebay.errors import ForebayError
from forebay.spark import checkpoint
from forebay.spark.places import Root
from forebay.store import filenames
from forebay.store import manifest as manifests
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
    instances: dict[str, tuple[float, Manifest]] = {}
    for name, (age, manifest) in newest_versions(checkpoint.root_of(query)).items():
        vnode = filenames.vnode_of(name)
        if vnode not in instances or instances[vnode][0] < age:  # a first batch that failed has left an older instance
            instances[vnode] = age, manifest
    current = [manifest for _, manifest in instances.values()]
    totals = sum((manifest.counters for manifest in current), Counters())
    return Progress(
        **{field.name: getattr(totals, field.name) for field in fields(Counters)},
        state_rows=sum(manifest.rows for manifest in current),
        state_bytes=sum(manifest.size for manifest in current),
    )


def newest_versions(root: Root) -> dict[str, tuple[float, Manifest]]:
    """The newest version of each store instance, by ``<layout>/<instance>``, with the time at which it was written."""
    written = root.safe.names()
    versions: dict[str, list[tuple[int, float, str]]] = {}
    for name, age in written.items():
        instance, _, file = name.rpartition("/")
        version = filenames.version_of(file)
        if version is not None:
            versions.setdefault(instance, []).append((version.number, age, file))
    newest = {}
    for instance, candidates in versions.items():
        for _, age, file in sorted(candidates, reverse=True):
            with contextlib.suppress(ForebayError, FileNotFoundError):  # collected since it was listed
                newest[instance] = age, manifests.parse(root.safe.read(f"{instance}/{file}"), Path(instance, file))
                break
    return newest
