"""RMW, the read-modify-write store, for aligned windows: one intermediate aggregate per key and slice (FlowKV, section 4.3).

Aligned windows are read once, when they fire. So a batch does not read the aggregates that it changes: it appends its
own partial aggregates, and they are merged when extents are combined and when the window is read. Every slice has
extents of its own, and expiry is an unlink. docs/architecture.md says why this and not a hash table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa

from forebay.store.aligned import LOAD_FACTOR, AlignedStore
from forebay.store.filenames import Version
from forebay.store.manifest import Counters, Manifest
from forebay.store.slice_log import Options
from forebay.windows import Times

Merge = Callable[[pl.DataFrame], pl.DataFrame]


class RmwStore:
    """Partial aggregates by slice.

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

    Examples
    --------
    >>> import tempfile
    >>> add = lambda rows: rows.group_by("user", maintain_order=True).agg(pl.col("n").sum())
    >>> store = RmwStore(Path(tempfile.mkdtemp()) / "0", None, ["user"], add)
    >>> store.append(0, pa.record_batch({"user": ["ann", "bob"], "n": [1, 2]}))
    >>> store.append(0, pa.record_batch({"user": ["ann"], "n": [4]}))
    >>> [add(part).rows() for part in store.get_window([0])]
    [[('ann', 5), ('bob', 2)]]
    """

    def __init__(
        self,
        directory: Path,
        version: Version | None,
        keys: Sequence[str],
        merge: Merge,
        options: Options | None = None,
    ) -> None:
        options = options or Options()
        self._merge = merge
        self._rows = AlignedStore(directory, version, keys, options, self._combine, options.memory_bytes // LOAD_FACTOR)

    @property
    def base(self) -> Manifest:
        """The version that was opened."""
        return self._rows.base

    @property
    def slices(self) -> Times:
        """Starts of the slices that have aggregates, ascending."""
        return self._rows.slices

    def append(self, slice_start: int, partials: pa.RecordBatch) -> None:
        """Merge partial aggregates into a slice."""
        self._rows.append(slice_start, partials)

    def get_window(self, slices: Sequence[int]) -> Iterator[pl.DataFrame]:
        """The partial aggregates of some slices, with a `SLICE` column, as key-disjoint partitions; not merged yet."""
        return self._rows.get_window(slices)

    def bytes_of(self, slices: Sequence[int]) -> int:
        """Size of the partial aggregates of some slices, on disk and in the write buffer."""
        return self._rows.bytes_of(slices)

    @property
    def window_bytes(self) -> int:
        """Partial aggregates of this size can be loaded and merged within the memory budget."""
        return self._rows.window_bytes

    def drop(self, slices: Sequence[int]) -> None:
        """Remove slices whose last window has fired."""
        self._rows.drop(slices)

    def commit(self, fired_until: int | None, counters: Counters) -> Version:
        """Make what the store holds the next version; it is durable when this returns."""
        return self._rows.commit(fired_until, counters)

    def close(self) -> None:
        """Let go of files without committing."""
        self._rows.close()

    def _combine(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        merged = self._merge(pl.concat([pl.DataFrame(batch) for batch in batches]))
        return as_batch(merged, batches[0].schema)


def as_batch(frame: pl.DataFrame, schema: pa.Schema) -> pa.RecordBatch:
    """A frame as one record batch of exactly ``schema``."""
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest()).select(schema.names).cast(schema)
    return table.combine_chunks().to_batches()[0] if table.num_rows else schema.empty_table().to_batches()[0]
