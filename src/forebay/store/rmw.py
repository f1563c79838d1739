"""RMW, the read-modify-write store, for aligned windows: one intermediate aggregate per key and slice (FlowKV, section 4.3).

Aligned windows are read once, when they fire. So a batch does not read the aggregates that it changes: it appends its
own partial aggregates, and they are merged when extents are combined and when the window is read. Every slice has
extents of its own, and expiry is an unlink. docs/notes/ say why this and not a hash table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.store.aligned import AlignedStore
from forebay.store.archive import Archive
from forebay.store.disk import LOCAL, Disk
from forebay.store.extent_log import LogPart
from forebay.store.filenames import Version
from forebay.store.form import Form, Merge
from forebay.store.options import Options


def open_rmw(
    directory: Path,
    version: Version | None,
    keys: Sequence[str],
    merge: Merge,
    options: Options | None = None,
    archive: Archive | None = None,
    form: Form | None = None,
    disk: Disk = LOCAL,
    log: LogPart | None = None,
) -> AlignedStore:
    """A store of partial aggregates by slice: an `AlignedStore` that merges what it combines.

    Parameters
    ----------
    directory : Path
        The instance's own directory.
    version : Version or None
        The version to open, None for an empty store.
    keys : sequence of str
        Names of the key columns.
    merge : callable
        Merges rows of partial aggregates into one row per key, keeping the columns and their types.
    options : Options
        Limits.
    archive : Archive, optional
        Where versions are safe, if not in the directory.
    form : Form, optional
        What rows are to be like, where some may have been stored otherwise.
    disk : Disk
        What the directory is on.
    log : LogPart, optional
        The part of a log that the store is to share with others, in place of a log of its own.

    Returns
    -------
    AlignedStore
        Append partial aggregates to it, and merge the partitions of a window that it gives.

    Examples
    --------
    >>> import tempfile
    >>> add = lambda rows: rows.group_by("user", maintain_order=True).agg(pl.col("n").sum())
    >>> store = open_rmw(Path(tempfile.mkdtemp()) / "0", None, ["user"], add)
    >>> store.append(0, pa.record_batch({"user": ["ann", "bob"], "n": [1, 2]}))
    >>> store.append(0, pa.record_batch({"user": ["ann"], "n": [4]}))
    >>> [add(part).rows() for part in store.get_window([0])]
    [[('ann', 5), ('bob', 2)]]
    """

    def combine(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        merged = merge(pl.concat([pl.DataFrame(batch) for batch in batches]))
        return arrow.batch_of(merged, batches[0].schema)

    options = options or Options()
    largest = options.load_bytes // 2  # twice that is merged at once
    return AlignedStore(directory, version, keys, options, combine, largest, archive, form, disk, log)
