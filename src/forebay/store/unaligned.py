"""AUR, the append and unaligned read store: rows of windows that fire at times of their own (FlowKV, section 4.2).

Rows wait in the write buffer by window. A flush writes them ordered by estimated trigger time (ETT). When a window is read
whose rows are on disk, one scan of the index finds them and the rows of the windows with the nearest ETT, which go to the
prefetch buffer.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay.errors import InvalidArgument
from forebay.store import row_kernels as kernels
from forebay.store.addresses import Addresses
from forebay.store.archive import Archive
from forebay.store.disk import LOCAL, Disk
from forebay.store.extent_log import LEAST_COMPACTED, MAX_EXTENTS, SEGMENT_BYTES, ExtentLog, Groups, LogPart, joining
from forebay.store.filenames import Version
from forebay.store.form import Form
from forebay.store.key_index import KeyIndex, Slots
from forebay.store.manifest import KIND_BITS, Counters, Manifest
from forebay.store.metrics import Metrics
from forebay.store.options import Options
from forebay.store.pieces import Pieces, by_trigger_time, cuts
from forebay.store.row_buffer import RowBuffer
from forebay.store.row_kernels import ALL_LOADED, ON_DISK, PARTLY
from forebay.store.segment import Extent
from forebay.windows import ENDLESS

SLOT = "slot"
"""The column that holds the window of a row, wherever rows of several windows are together."""

Merge = Callable[[pl.DataFrame], pl.DataFrame]

_DATA, _PIECES, _INDEX, _PICTURE = range(4)
_NUMBER = (1 << KIND_BITS) - 1
"""The bits of a group that number it among those of its kind."""

_LEAST_CHANGES, _MOST_CHANGES = 1 << 15, 32
_SLOTS_PER_CHANGE = 1 << 13
"""An index of so many times as many slots may be that many micro-batches behind: writing all of it is half a MB for each."""
_PICTURED, _FEW = 1 << 17, 64
"""A picture is made of a key index of so many slots, in a micro-batch that changes less than one in so many of them."""

_CLEARED = 4
"""A commit writes extents again as long as they have less than so many times the bytes that it has written of its own,"""
_LEAST_CLEARED = 4 * SEGMENT_BYTES
"""or less than this."""
_LOOKED = 32
"""Extents are looked through for dead rows when one in so many rows has died since they were looked through last."""


class UnalignedStore:
    """Rows by window, where each key has windows of its own.

    Open a window by placing rows in the `index`; the slots that it gives name windows from then on.

    Parameters
    ----------
    directory : Path
        The instance's own directory.
    version : Version or None
        The version to open, None for an empty store.
    options : Options
        Limits.
    merge : callable, optional
        Merges partial aggregates into one row per window. It takes and gives a frame with a `SLOT` column. With it the
        store is RMW: rows of a window are merged whenever they are written.
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
    >>> store = UnalignedStore(Path(tempfile.mkdtemp()) / "0", None)
    >>> key, start = np.array([1, 2, 1]), np.array([0, 3, 4])
    >>> store.append(pa.record_batch({"price": [3, 7, 4]}), store.index.place_merging(key, key, start, start + 5))
    >>> version = store.commit()
    >>> store = UnalignedStore(store.directory, version)
    >>> store.get(store.index.due(9)).rows()
    [(7, 1), (3, 0), (4, 0)]
    >>> store.remove(store.index.due(9))
    >>> len(store.index), store.metrics.misses
    (0, 2)
    """

    def __init__(
        self,
        directory: Path,
        version: Version | None,
        options: Options | None = None,
        merge: Merge | None = None,
        archive: Archive | None = None,
        form: Form | None = None,
        disk: Disk = LOCAL,
        log: LogPart | None = None,
    ) -> None:
        self.directory = directory
        self.options = options or Options()
        self.merge = merge
        self.form = form
        self._log = log or ExtentLog(directory, version, self.options, archive, disk)
        self._extents = self._groups(_DATA)
        self._known: Addresses | None = None
        self._condemned: list[int] = []
        self._known_dead = self._written_bytes = 0
        self._schema: pa.Schema | None = None
        self._counts = Metrics()

    def catch_up(self, version: Version, archive: Archive | None, disk: Disk) -> bool:
        """Become a later version, which another process has made, if only what it has changed needs to be read.

        That is so if its key index is this one and changes. Nothing must wait to be committed. Gives whether it is so.
        """
        if "index" not in self.__dict__:
            return False
        before, after = self._log, ExtentLog(self.directory, version, self.options, archive, disk)
        had, has = ([*_groups(log, _PICTURE), *_groups(log, _INDEX)] for log in (before, after))
        if before.extents_of(had) != after.extents_of(has[: len(had)]):
            return False
        self._log, extents = after, self._extents
        self._extents = self._groups(_DATA)
        with self._loading():
            self.index.replace(batch for group in has[len(had) :] for batch in after.read(group))
        if self._known:
            others = {n for n in (*extents, *self._extents) if _pieces_at(before, n) != _pieces_at(after, n)}
            for number in others.intersection(extents):
                self._known.drop(number)
            for number in sorted(others.intersection(self._extents)):
                self._known.add(number, self._pieces_of(number))
        for name in ("_written", "_prefetched", "_loaded"):
            self.__dict__.pop(name, None)
        self._condemned.clear()
        self._known_dead = 0
        return True

    def use(self, disk: Disk) -> None:
        """Work on another disk from now on: one on which the same directory is."""
        self._log.use(disk)

    def rest(self) -> None:
        """Let go of the batch that is over. It has the store, too, and a cycle would outlive both."""
        self.merge = None

    @property
    def base(self) -> Manifest:
        """The version that was opened or committed last."""
        return self._log.base

    @property
    def changed(self) -> bool:
        """Whether windows have changed since then; rows are never stored without that."""
        return "index" in self.__dict__ and self.index.touched > 0

    @property
    def schemas(self) -> list[pa.Schema]:
        """The different columns that rows on disk have."""
        return self._log.schemas_of(self._extents)

    @cached_property
    def index(self) -> KeyIndex:
        """The open windows; read from disk when it is first needed."""
        with self._loading():
            changes = (batch for group in self._groups(_INDEX) for batch in self._log.read(group))
            pictures = self._groups(_PICTURE)
            return KeyIndex.restored(changes, self._log.read_private(pictures[0]) if pictures else None)

    @cached_property
    def _written(self) -> RowBuffer:
        return RowBuffer(self.index)

    @cached_property
    def _prefetched(self) -> RowBuffer:
        return RowBuffer(self.index)

    @cached_property
    def _loaded(self) -> Slots:
        """The generation of each slot whose rows on disk are all in the prefetch buffer."""
        return np.zeros(self.index.capacity, np.int32)

    # reading and writing ---------------------------------------------------------------------------------------------

    def append(self, batch: pa.RecordBatch, slots: Slots) -> None:
        """Add rows to their windows."""
        schema = self._schema or batch.schema
        if not batch.schema.equals(schema):
            raise InvalidArgument(f"the store holds rows of {schema.to_string()}; it was given {batch.schema.to_string()}")
        self._schema = schema
        self._counts.writes += batch.num_rows
        self._written.append(batch, slots)
        if self._written.nbytes > self.options.write_buffer_bytes:
            self.flush()

    def get(self, slots: Slots) -> pl.DataFrame:
        """The rows of windows with their `SLOT`, in order of arrival. They stay until `remove` or `renew`."""
        self._fit_loaded()
        where = kernels.places(self.index.columns, self._loaded, slots)
        hits, misses = slots[where == ALL_LOADED], slots[where >= PARTLY]
        self._counts.hits += len(hits)
        self._counts.misses += len(misses)
        in_memory = []
        for buffer, wanted in ((self._prefetched, hits), (self._written, slots)):
            rows, roots = buffer.rows_of(wanted)
            if len(rows):
                in_memory.append((buffer.take(rows), roots))
        on_disk = self._read(misses) if len(misses) else []  # after the hits were taken: it may evict them
        frame = _together([*on_disk, *in_memory])
        self._counts.reads += frame.height
        return frame

    def get_one(self, slot: int) -> list[pa.RecordBatch]:
        """The rows of one window that has absorbed none, in order of arrival. Nothing is scanned, and nothing read ahead."""
        parts = self._addresses().of(slot, self._extent)
        self._counts.misses += bool(parts)
        parts += self._written.of(slot)
        self._counts.reads += sum(part.num_rows for part in parts)
        return parts

    def remove(self, slots: Slots) -> None:
        """End windows; their rows are dead."""
        self.index.remove(slots)

    def renew(self, slots: Slots) -> None:
        """Drop the rows of windows that stay open."""
        self.index.renew(slots)

    # versions --------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what waits in the write buffer."""
        rows, slots = self._written.live()
        if len(rows):
            batch, slots = self._merged(self._written.take(rows), slots)
            order, owners, counts = by_trigger_time(slots, self.index.columns)
            batch, slots = batch.take(pa.array(order)), slots[order]
            self._written_bytes += batch.nbytes
            self._write(batch, slots, self._extents[-1] + 1 if self._extents else 0)
            self._fit_loaded()
            grown = self._loaded[slots] == self.index.columns.generation[slots]
            if grown.any():
                self._prefetched.append(batch.filter(pa.array(grown)), slots[grown])
            self.index.store(owners, self.index.stored(owners) + counts)
            self._room()
        self._written.clear()

    def compact(self) -> None:
        """Clear out dead rows, if there are too many of them: at a time no more than in proportion to what was written.

        So the commit that finds too many of them does not write most of the state again; the following ones go on.
        """
        most = self.options.max_space_amplification
        if not self._condemned:
            found = self._emptiest(most)
            if found is None:
                return
            self._condemned = found
            self._counts.compactions += 1
        left = max(_LEAST_CLEARED, _CLEARED * self._written_bytes)
        while self._condemned and left > 0:
            number = self._condemned.pop()
            if number in self._extents:  # it may have become part of another one
                left -= self._log.bytes_of([number])
                self._rewrite([number])
        if self._condemned:
            return
        self._known_dead = self._log.rows_of(self._extents) - self.index.stored_rows
        if self._log.compact(most) and self._known:
            self._known.forget_rows()  # they have the files from which extents have moved

    def commit(self, fired_until: int | None = None, counters: Counters | None = None, batch: int | None = None) -> Version:
        """Make what the store holds the next version, durable when this returns; the store goes on from there."""
        self.flush()
        self.compact()
        self._combine()
        self._write_index()
        self._written_bytes = 0
        return self._log.commit(fired_until, counters or self.base.counters, batch)

    def snapshot(self, directory: Path) -> None:
        """Give the version committed last to another directory, by hard links where possible."""
        self._log.snapshot(directory)

    def close(self) -> None:
        """Let go of files without committing."""
        self._log.close()

    def bytes_of(self, slots: Slots) -> npt.NDArray[np.floating[Any]]:
        """About how many bytes each window has on disk."""
        return kernels.stored(self.index.columns, slots) * self.row_bytes

    @property
    def memory_bytes(self) -> int:
        """Size of the buffers and the key index, as far as they are in memory."""
        if "index" not in self.__dict__:
            return 0
        addresses = self._known.nbytes if self._known else 0
        return self._written.nbytes + self._prefetched.nbytes + self.index.nbytes + addresses

    @property
    def live_bytes(self) -> int:
        """Bytes on disk of extents, dead rows in them included, and of the indexes."""
        return int(self._log.bytes_of(self._log.groups.tolist()))

    @property
    def metrics(self) -> Metrics:
        """What the store has done since it was opened."""
        counts = self._counts
        self._log.count_into(counts)
        counts.live_bytes = self.live_bytes
        counts.memory_bytes = self.memory_bytes
        return counts

    # private ---------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _loading(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._counts.load_seconds += time.perf_counter() - began

    def _groups(self, kind: int) -> list[int]:
        return _groups(self._log, kind)

    def _read(self, requested: Slots) -> list[tuple[pa.RecordBatch, Slots]]:
        """The rows of windows on disk; those of the nearest other windows go to the prefetch buffer."""
        self._counts.index_scans += 1
        nearby = self._nearest(requested)
        wanted: list[tuple[pa.RecordBatch, Slots]] = []
        ahead: list[tuple[pa.RecordBatch, Slots]] = []
        for number, rows, roots in self._addresses().find(np.concatenate([requested, nearby])):
            batch = self._extent(number)
            unasked = np.isin(roots, nearby)
            for found, mask in ((wanted, ~unasked), (ahead, unasked)):
                if mask.any():
                    found.append((batch.take(pa.array(rows[mask])), roots[mask]))
        if ahead:
            batch = pa.concat_batches([part for part, _ in ahead])
            self._prefetched.append(batch, np.concatenate([roots for _, roots in ahead]))
            self._counts.prefetched_rows += batch.num_rows
            self._counts.prefetched_bytes += batch.nbytes
            kernels.mark(self.index.columns, self._loaded, nearby, True)
        return wanted

    def _emptiest(self, most: float) -> list[int] | None:
        """Extents with too many dead rows, the emptiest one last; None if files are not too many times what is live."""
        rows = {number: self._log.rows_of([number]) for number in self._extents}
        stored = sum(rows.values())
        live = dict(rows)
        if stored > most * self.index.stored_rows:
            dead_rows = stored - self.index.stored_rows
            if dead_rows < self._known_dead + stored // _LOOKED:
                return None
            self._known_dead = dead_rows
            live = {number: self._pieces_of(number).live_rows(self.index.columns) for number in rows}
        dead = sum(self._log.bytes_of([number]) * (1 - live[number] / max(1, rows[number])) for number in rows)
        if self._log.disk_bytes <= max(LEAST_COMPACTED, most * (self.live_bytes - dead)):
            return None
        full = [number for number in rows if live[number] * most < rows[number]]
        return sorted(full, key=lambda number: live[number] / rows[number], reverse=True)

    def _nearest(self, requested: Slots) -> Slots:
        """Windows to read ahead of time: a share of all, those with the nearest ETT, as many as memory has room for.

        Windows that are not expected to fire are read when they are asked for.
        """
        count = int(self.options.read_batch_ratio * len(self.index))
        if not count:
            return np.empty(0, np.int32)
        expected = self.index.due_by_estimate(ENDLESS - 1)
        candidates = expected[kernels.places(self.index.columns, self._loaded, expected) == ON_DISK]
        candidates = np.setdiff1d(candidates, requested, assume_unique=True)
        ett = self.index.columns.ett[candidates]
        if count < len(candidates):
            nearest = np.argpartition(ett, count)[:count]
            candidates, ett = candidates[nearest], ett[nearest]
        candidates = candidates[np.argsort(ett)]
        room = self._room() / max(1.0, self.row_bytes)
        fitting = np.searchsorted(np.cumsum(kernels.stored(self.index.columns, candidates)), room, side="right")
        return candidates[:fitting]

    def _room(self) -> int:
        """Bytes that may still be prefetched. A full buffer loses dead rows, and then windows with the farthest ETT."""
        budget = self.options.memory_bytes // 4
        if self._prefetched.nbytes > budget // 2:
            rows, slots = self._prefetched.live()
            owners = np.unique(slots)
            kept = owners[kernels.places(self.index.columns, self._loaded, owners) == ALL_LOADED]
            row_bytes = self._prefetched.nbytes / len(self._prefetched)
            if np.count_nonzero(np.isin(slots, kept)) * row_bytes > budget // 2:
                kept = kept[np.argsort(self.index.columns.ett[kept])][: len(kept) // 2]
            staying = np.isin(slots, kept)
            self._counts.evictions += len(owners) - len(kept)
            self._counts.unused_rows += int(np.count_nonzero(~staying))
            kernels.mark(self.index.columns, self._loaded, np.setdiff1d(owners, kept), False)
            batch, slots = self._prefetched.take(rows[staying]) if staying.any() else None, slots[staying]
            self._prefetched.clear()
            if batch is not None:
                self._prefetched.append(batch, slots)
        return max(0, budget - self._prefetched.nbytes)

    @property
    def row_bytes(self) -> float:
        """The mean size of a row on disk; 0 if there is none."""
        return self._log.bytes_of(self._extents) / max(1, self._log.rows_of(self._extents))

    def _fit_loaded(self) -> None:
        if len(self._loaded) < self.index.capacity:
            longer = np.zeros(self.index.capacity, np.int32)
            longer[: len(self._loaded)] = self._loaded
            self._loaded = longer

    def _extent(self, number: int) -> pa.RecordBatch:
        batch = next(self._log.read(number))
        return self.form.of(batch) if self.form else batch

    def _pieces_of(self, number: int) -> Pieces:
        return Pieces.read(next(self._log.read(_PIECES << KIND_BITS | number)))

    def _addresses(self) -> Addresses:
        """Where the rows on disk lie; read from disk when it is first needed."""
        if self._known is None or self._known.crowded:
            pieces = [_PIECES << KIND_BITS | number for number in self._extents]
            self._known = Addresses(self.index, self._log.rows_of(pieces))
            with self._loading():
                for number in self._extents:
                    self._known.add(number, self._pieces_of(number))
        return self._known

    def _write(self, batch: pa.RecordBatch, slots: Slots, number: int, most: int | None = None) -> None:
        """Write rows as extents numbered from ``number`` on, ``most`` of them at most."""
        bounds = cuts(batch.num_rows, batch.nbytes, SEGMENT_BYTES, most)
        for begin, end in itertools.pairwise(bounds):
            pieces = Pieces.of(slots[begin:end], self.index)
            self._log.append(number, batch.slice(begin, end - begin))
            self._log.append(_PIECES << KIND_BITS | number, pieces.as_batch())
            if self._known:
                self._known.add(number, pieces)
            self._extents.append(number)
            number += 1
        self._extents.sort()

    def _rewrite(self, numbers: list[int]) -> None:
        """Write neighbouring extents again without their dead rows, together and in order of ETT."""
        parts = []
        for number in numbers:
            rows, slots = self._pieces_of(number).live(self.index.columns)
            if len(rows):
                parts.append((self._extent(number).take(pa.array(rows)), slots))
        for number in numbers:
            self._log.drop([number, _PIECES << KIND_BITS | number])
            self._extents.remove(number)
            if self._known:
                self._known.drop(number)
        if not parts:
            return
        together = pa.concat_batches([part for part, _ in parts])
        before = np.concatenate([slots for _, slots in parts])
        batch, slots = self._merged(together, before)
        self._count_merged(before, slots)
        order, _, _ = by_trigger_time(slots, self.index.columns)
        self._write(batch.take(pa.array(order)), slots[order], numbers[0], len(numbers))

    def _count_merged(self, before: Slots, after: Slots) -> None:
        """Windows have fewer rows on disk since some were merged. A window that had some still has one."""
        if len(after) < len(before):
            (rows, owners), (left, _) = (kernels.counted(slots, self.index.capacity) for slots in (before, after))
            stored = self.index.stored(owners)
            self.index.store(owners, np.maximum(np.minimum(stored, 1), stored - (rows - left)[owners]))

    def _combine(self) -> None:
        sizes = [self._log.bytes_of([number]) for number in self._extents]
        if sum(size < SEGMENT_BYTES // 2 for size in sizes) > MAX_EXTENTS:
            first = joining(sizes, SEGMENT_BYTES // 2)  # extents that are nearly full stay
            if len(sizes) - first > 1:
                self._rewrite(self._extents[first:])

    def _merged(self, batch: pa.RecordBatch, slots: Slots) -> tuple[pa.RecordBatch, Slots]:
        if self.merge is None:
            return batch, slots
        merged = self.merge(pl.DataFrame(batch).with_columns(pl.Series(SLOT, slots)))
        table = merged.to_arrow(compat_level=pl.CompatLevel.oldest()).select(batch.schema.names).cast(batch.schema)
        return table.combine_chunks().to_batches()[0], merged[SLOT].to_numpy()

    def _write_index(self) -> None:
        """Append the windows that changed, or write all of them when that has become cheaper than reading the changes.

        All of a large index are written as a picture of it if few have changed: then opening must not take time for the
        others. Where many change, a picture would be more to write than the windows are.
        """
        index, changes, pictures = self.index, self._groups(_INDEX), self._groups(_PICTURE)
        large = index.capacity >= _PICTURED and 2 * len(index) > index.capacity
        pictured = large and index.touched < index.capacity // _FEW
        behind = changes if pictures else changes[1:]  # the first group has all slots that there were
        rows = self._log.rows_of(behind) + index.touched
        most = max(_MOST_CHANGES, index.capacity // _SLOTS_PER_CHANGE)
        everything = (
            (pictured and not pictures)
            or rows > max(_LEAST_CHANGES, index.capacity // (4 if pictured else 2))
            or len(changes) >= most
        )
        if everything:
            self._log.drop([*changes, *pictures])
        number = 1 + max((group & _NUMBER for group in (*changes, *pictures)), default=0)
        if everything and pictured:
            self._log.append(_PICTURE << KIND_BITS | number, index.picture())
            return
        for batch in index.changes(everything=everything):
            self._log.append(_INDEX << KIND_BITS | number, batch)


def _groups(log: Groups, kind: int) -> list[int]:
    """The groups of a kind, ascending."""
    return [group for group in log.groups.tolist() if group >> KIND_BITS == kind]


def _pieces_at(log: Groups, number: int) -> list[Extent]:
    """Where the pieces of an extent lie."""
    return log.extents_of([_PIECES << KIND_BITS | number])


def _together(parts: list[tuple[pa.RecordBatch, Slots]]) -> pl.DataFrame:
    """Rows of windows as one frame with their windows; without columns when there are none."""
    if not parts:
        return pl.DataFrame(schema={SLOT: pl.Int32})
    batch = parts[0][0] if len(parts) == 1 else pa.concat_batches([batch for batch, _ in parts])
    return pl.DataFrame(batch.append_column(SLOT, pa.array(np.concatenate([slots for _, slots in parts]))))
