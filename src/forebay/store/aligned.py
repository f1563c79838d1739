"""AAR, the append and aligned read store: rows of windows that fire for all keys at one time (FlowKV, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.store.archive import Archive
from forebay.store.disk import LOCAL, Disk
from forebay.store.extent_groups import Combine
from forebay.store.extent_log import ExtentLog, LogPart
from forebay.store.filenames import Version
from forebay.store.form import Form
from forebay.store.manifest import Counters, Manifest
from forebay.store.metrics import Metrics
from forebay.store.options import Options
from forebay.store.partitions import partitions_of
from forebay.store.segment import SEGMENT_BYTES, Extent
from forebay.store.slice_buffer import SliceBuffer
from forebay.windows import Times

_LEAST_MERGED = 4
"""A slice is merged as a whole when it is larger than so many of the largest extents that are combined."""

_LEAST_COMBINED = 256
"""Fewer rows of a slice are written as they are: to merge those of thousands of slices takes longer than to read them."""


class SliceStore(Protocol):
    """What aligned windows ask of a store, see `AlignedStore`."""

    @property
    def base(self) -> Manifest: ...
    @property
    def slices(self) -> Times: ...
    @property
    def window_bytes(self) -> int: ...
    @property
    def metrics(self) -> Metrics: ...
    def append_slices(self, batch: pa.RecordBatch, starts: Times, begins: Times, ends: Times) -> None: ...
    def get_window(self, slices: Sequence[int]) -> Iterator[pl.DataFrame]: ...
    def sizes_of(self, slices: Times) -> npt.NDArray[np.int64]: ...
    def drop(self, slices: Sequence[int]) -> None: ...
    def commit(self, fired_until: int | None, counters: Counters, batch: int | None = None) -> Version: ...
    def close(self) -> None: ...


class AlignedStore:
    """Rows by slice. Nothing is done per key until a window is read.

    Appended rows stay in the write buffer until it is full or the batch is committed; a window that fires before that
    never reaches the disk.

    Parameters
    ----------
    directory : Path
        The instance's own directory.
    version : Version or None
        The version to open, None for an empty store.
    keys : sequence of str
        Names of the key columns, by which a window is partitioned when it is too large to load at once.
    options : Options
        Limits.
    combine, combine_bytes
        How `ExtentLog` combines small extents; the default puts their rows together and leaves large ones alone.
    archive : Archive, optional
        Where versions are safe, if not in the directory.
    form : Form, optional
        What rows are to be like, where some may have been stored otherwise.
    disk : Disk
        What the directory is on.
    log : LogPart, optional
        The part of a log that the store is to share with others, in place of a log of its own.

    Examples
    --------
    >>> import tempfile
    >>> store = AlignedStore(Path(tempfile.mkdtemp()) / "0", None, ["user"])
    >>> store.append(0, pa.record_batch({"user": ["ann", "bob"], "price": [3, 4]}))
    >>> store.append(5, pa.record_batch({"user": ["ann"], "price": [1]}))
    >>> [part.rows() for part in store.get_window([0, 5])]
    [[('ann', 3, 0), ('bob', 4, 0), ('ann', 1, 5)]]
    >>> store.drop([0])
    >>> version = store.commit(fired_until=5, counters=Counters(rows_in=3))
    >>> AlignedStore(store.directory, version, ["user"]).slices.tolist()
    [5]
    """

    def __init__(
        self,
        directory: Path,
        version: Version | None,
        keys: Sequence[str],
        options: Options | None = None,
        combine: Combine | None = None,
        combine_bytes: int = SEGMENT_BYTES,
        archive: Archive | None = None,
        form: Form | None = None,
        disk: Disk = LOCAL,
        log: LogPart | None = None,
    ) -> None:
        self.directory = directory
        self._options = options or Options()
        self._keys = list(keys)
        self._combine, self._merges = combine or pa.concat_batches, combine is not None
        self.form = form
        self._combine_bytes = combine_bytes
        self._log = log or ExtentLog(directory, version, self._options, archive, disk)
        self._buffer = SliceBuffer()
        self._touched: set[int] = set()
        self._counts = Metrics()

    @property
    def base(self) -> Manifest:
        """The version that was opened or committed last."""
        return self._log.base

    @property
    def schemas(self) -> list[pa.Schema]:
        """The different columns that rows on disk have."""
        return self._log.schemas_of(self._log.groups.tolist())

    @property
    def slices(self) -> Times:
        """Starts of the slices that have rows, ascending."""
        return np.union1d(self._log.groups, self._buffer.slices)

    @property
    def buffered_rows(self) -> int:
        """How many rows are in the write buffer."""
        return self._buffer.rows

    def append(self, slice_start: int, batch: pa.RecordBatch) -> None:
        """Add rows to a slice."""
        self.append_slices(batch, np.array([slice_start]), np.array([0]), np.array([batch.num_rows]))

    def append_slices(self, batch: pa.RecordBatch, starts: Times, begins: Times, ends: Times) -> None:
        """Add rows to slices: to each those between two bounds."""
        self._counts.writes += int((ends - begins).sum())
        self._buffer.append(batch, starts, begins, ends)
        if self._buffer.nbytes > self._options.write_buffer_bytes:
            self._write()

    def get_window(self, slices: Sequence[int]) -> Iterator[pl.DataFrame]:
        """The rows of some slices, with a `SLICE` column, as key-disjoint partitions that fit the memory budget.

        Rows of one key are in one partition, in order of arrival within each slice.
        """
        batches = ((start, batch) for start in slices for batch in self.rows(start))
        size = int(self.sizes_of(np.array(slices, np.int64)).sum())
        yield from partitions_of(batches, self._keys, size, self.window_bytes, self.directory)

    def sizes_of(self, slices: Times) -> npt.NDArray[np.int64]:
        """Size of the rows of each of some slices, on disk and in the write buffer."""
        on_disk = np.array([self._log.bytes_of([start]) for start in slices.tolist()], np.int64)
        return on_disk + np.rint(self._buffer.sizes_of(slices)).astype(np.int64)

    @property
    def window_bytes(self) -> int:
        """Rows of this size can be loaded and grouped within the memory budget."""
        return self._options.load_bytes

    def drop(self, slices: Sequence[int]) -> None:
        """Remove slices whose last window has fired, without compaction."""
        self._buffer.drop(slices)
        self._log.drop(slices)

    def flush(self) -> None:
        """Write what waits in the write buffer, and combine small extents of the slices that have changed."""
        self._write()
        for start in sorted(self._touched):
            self._log.combine(start, self._combined, self._combine_bytes)
            if self._merges:
                self._merge(start)
        self._touched.clear()

    def commit(self, fired_until: int | None, counters: Counters, batch: int | None = None) -> Version:
        """Make what the store holds the next version, durable when this returns; the store goes on from there."""
        self.flush()
        self.compact()
        return self._log.commit(fired_until, counters, batch)

    def compact(self) -> None:
        """Move live extents out of files that are mostly dead, if there are too many of those."""
        self._counts.compactions += self._log.compact(self._options.max_space_amplification)

    def snapshot(self, directory: Path) -> None:
        """Give the version committed last to another directory, by hard links where possible."""
        self._log.snapshot(directory)

    @property
    def metrics(self) -> Metrics:
        """What the store has done since it was opened."""
        counts = self._counts
        self._log.count_into(counts)
        counts.live_bytes = self._log.bytes
        counts.memory_bytes = int(self._buffer.nbytes)
        return counts

    def close(self) -> None:
        """Let go of files without committing."""
        self._log.close()

    def rows(self, start: int) -> Iterator[pa.RecordBatch]:
        """The rows of one slice, batch by batch, in order of arrival."""
        yield from map(self._formed, self._log.read(start))
        yield from self._buffer.of(start)

    def rows_where(self, start: int, wanted: Callable[[Extent], bool]) -> Iterator[tuple[Extent | None, pa.RecordBatch]]:
        """The rows of those extents of a slice that are wanted when their turn has come; and those in the write buffer."""
        for extent, batch in self._log.read_where(start, wanted):
            yield extent, self._formed(batch)
        for batch in self._buffer.of(start):
            yield None, batch

    def _merge(self, start: int) -> None:
        """Merge all rows of a slice, key by key, when it has become twice as large since that was done last.

        Only small extents are combined, so the aggregates of keys that come again and again would become ever more.
        """
        if self._log.bytes_of([start]) >= 2 * self._log.merged_bytes(start) + _LEAST_MERGED * self._combine_bytes:
            schema = next(self.rows(start)).schema
            parts = self.get_window([start])
            self._log.replace(start, (self._combine([arrow.batch_of(part, schema)]) for part in parts))

    def _combined(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        return self._combine(list(map(self._formed, batches)))

    def _formed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self.form.of(batch) if self.form else batch

    def _write(self) -> None:
        for start, batches in self._buffer.by_slice():
            few = sum(batch.num_rows for batch in batches) < _LEAST_COMBINED
            combine = pa.concat_batches if few else self._combine
            self._log.append(start, batches[0] if len(batches) == 1 else combine(batches))
            self._touched.add(start)
        self._buffer.clear()
