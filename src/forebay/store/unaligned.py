"""AUR, the append and unaligned read store: rows of windows that fire at times of their own (FlowKV, section 4.2).

Rows wait in the write buffer by window. A flush writes them ordered by estimated trigger time (ETT). When a window is read
whose rows are on disk, others are read in the same pass (`forebay.store.read_ahead`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.cutting import together
from forebay.errors import InvalidArgument
from forebay.store import index_log
from forebay.store import row_kernels as kernels
from forebay.store.archive import Archive
from forebay.store.disk import LOCAL, Disk
from forebay.store.extent_log import ExtentLog, LogPart
from forebay.store.filenames import Version
from forebay.store.form import Form, Merge
from forebay.store.key_index import KeyIndex, Slots
from forebay.store.manifest import INDEXES, Counters, Manifest
from forebay.store.metrics import Metrics
from forebay.store.options import Options
from forebay.store.pictures import Array
from forebay.store.pieces import by_trigger_time
from forebay.store.prepared import Prepared, named, within
from forebay.store.read_ahead import ReadAhead
from forebay.store.row_buffer import RowBuffer, Rows
from forebay.store.row_kernels import ALL_LOADED, PARTLY
from forebay.store.window_extents import WindowExtents

SLOT = "slot"
"""The column that holds the window of a row, wherever rows of several windows are together."""

_MANY_ROWS = 32
"""Partial aggregates of a window are merged when it has so many of them on disk; where that leaves more than half of them,
as where it keeps some for each of many slices, only when it has twice as many."""

_LEAST_MERGED, _SHARE = 4096, 8
"""This is done for so many windows at a time, or for this share of those that are written, since many begin together."""


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
        self._extents = WindowExtents(self._log, form)
        self._schema: pa.Schema | None = None
        self._counts = Metrics()
        self._many_rows = _MANY_ROWS

    def catch_up(self, version: Version, archive: Archive | None, disk: Disk) -> bool:
        """Become a later version, which another process has made, if only what it has changed needs to be read.

        That is so if its key index is this one and changes. Nothing must wait to be committed. Gives whether it is so.
        """
        return self._has_index and self.follow(ExtentLog(self.directory, version, self.options, archive, disk))

    def follow(self, log: ExtentLog | LogPart) -> bool:
        """Become what a log of a later version has, as `catch_up` does."""
        if not self._has_index:
            return False
        with self._loading():
            changed = index_log.catch_up(self.index, self._log, log)
            if changed is None:
                return False
            self._extents.moved_to(log)
        self._log = log
        self._ahead.discard(changed)
        return True

    def prepare(self) -> dict[str, Array]:
        """Read what reads would read first, the key index and where rows lie; the arrays that it is in memory.

        All files that it needs are open before the first is read: they may be removed meanwhile.
        """
        if not self._has_index:
            self._log.read_ahead(group for group in self._log.groups.tolist() if group >= INDEXES)
        addresses = self._extents.load(self.index)
        return {
            **named("index", self.index.parts),
            **named("addresses", addresses.parts),
            "extents": addresses.extents,
        }

    def have(self, parts: Mapping[str, Array]) -> None:
        """Have what `prepare` gave in these arrays, which are copies, from now on."""
        self.index.use(within("index", parts))
        self._extents.load(self.index).use(within("addresses", parts), parts["extents"])

    @property
    def index_bytes(self) -> int:
        """Bytes of memory that the key index will have, or a good part of them, without reading it."""
        return index_log.size_of(self._log)

    def leads_to(self, manifest: Manifest) -> bool:
        """Whether `catch_up` to a version is possible."""
        return index_log.changed(self._log, self._log.at(manifest)) is not None

    def adopt(self, prepared: Prepared) -> bool:
        """Go on with what another process has prepared, in place of reading it; whether that is possible.

        It is if the key index of this version is that one and changes.
        """
        index, before = KeyIndex(), self._log.at(prepared.manifest)
        with self._loading():
            index.use(within("index", prepared.parts))
            if index_log.catch_up(index, before, self._log) is None:
                return False
            self._extents.adopt(index, within("addresses", prepared.parts), prepared.parts["extents"], before)
        self.index = index
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
        return self._has_index and self.index.touched > 0

    @property
    def schemas(self) -> list[pa.Schema]:
        """The different columns that rows on disk have."""
        return self._log.schemas_of(self._extents.numbers)

    @cached_property
    def index(self) -> KeyIndex:
        """The open windows; read from disk when it is first needed."""
        with self._loading():
            return index_log.read(self._log)

    @property
    def _has_index(self) -> bool:
        return "index" in self.__dict__

    @cached_property
    def _written(self) -> RowBuffer:
        return RowBuffer(self.index)

    @cached_property
    def _ahead(self) -> ReadAhead:
        return ReadAhead(self.index, self.options, self._counts)

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

    def get(self, slots: Slots, *, ahead: bool = True) -> pl.DataFrame:
        """The rows of windows with their `SLOT`, in order of arrival. They stay until `remove` or `renew`.

        With ``ahead`` the nearest other windows are read, too, where few are asked for.
        """
        where = self._ahead.places(slots)
        hits, misses = slots[where == ALL_LOADED], slots[where >= PARTLY]
        self._counts.hits += len(hits)
        self._counts.misses += len(misses)
        in_memory = []
        for buffer, wanted in ((self._ahead.buffer, hits), (self._written, slots)):
            rows, roots = buffer.rows_of(wanted)
            if len(rows):
                in_memory.append((buffer.take(rows), roots))
        on_disk = self._read(misses, ahead=ahead) if len(misses) else []  # after the hits were taken: it may evict them
        frame = _together([*on_disk, *in_memory])
        self._counts.reads += frame.height
        return frame

    def get_one(self, slot: int) -> list[pa.RecordBatch]:
        """The rows of one window that has absorbed none, in order of arrival. Nothing is scanned, and nothing read ahead."""
        self._load()
        parts = self._extents.of(self.index, slot)
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
        if self.merge is not None and self._merge_many(slots, self.merge):
            rows, slots = self._written.live()
        if len(rows):
            batch, slots = self._merged(self._written.take(rows), slots)
            order, owners, counts = by_trigger_time(slots, self.index.records)
            batch, slots = batch.take(pa.array(order)), slots[order]
            self._extents.append(self.index, batch, slots)
            self._ahead.top_up(batch, slots)
            self.index.store_more(owners, counts)
            self._ahead.make_room(np.empty(0, np.int64), np.empty(0))
        self._written.clear()

    def compact(self) -> None:
        """Clear out dead rows, if there are too many of them."""
        most = self.options.max_space_amplification
        self._counts.compactions += self._extents.clear(self.index, self._merged, most)

    def commit(self, fired_until: int | None = None, counters: Counters | None = None, batch: int | None = None) -> Version:
        """Make what the store holds the next version, durable when this returns; the store goes on from there."""
        self.flush()
        self.compact()
        self._extents.combine(self.index, self._merged)
        named, chance = lambda: self._extents.slots_named, int(self.base.secret or "0", 16)
        if index_log.write(self.index, self._log, named, chance):
            self._forget_slots()
        return self._log.commit(fired_until, counters or self.base.counters, batch)

    def snapshot(self, directory: Path) -> None:
        """Give the version committed last to another directory, by hard links where possible."""
        self._log.snapshot(directory)

    def close(self) -> None:
        """Let go of files without committing."""
        self._log.close()

    def bytes_of(self, slots: Slots) -> npt.NDArray[np.floating[Any]]:
        """About how many bytes each window has on disk."""
        if not kernels.stored(self.index.records, slots).any():
            return np.zeros(len(slots))
        self._load()
        return self._extents.bytes_of(self.index, slots)

    def larger(self, slots: Slots, size: int) -> Slots:
        """Those of some windows, whose slots ascend, that have about so many bytes or more, on disk and in memory."""
        least = size - self._written.nbytes  # what one must have on disk that all in memory belongs to
        if self.live_bytes < least:
            return slots[:0]
        on_disk = self.bytes_of(slots)
        slots, on_disk = slots[on_disk >= least], on_disk[on_disk >= least]
        return slots[on_disk + self._written.bytes_of(slots) >= size]

    def pieces_of(self, slots: Slots) -> npt.NDArray[np.floating[Any]]:
        """In how many places on disk the rows of each window lie."""
        if not kernels.stored(self.index.records, slots).any():
            return np.zeros(len(slots))
        self._load()
        return self._extents.load(self.index).pieces_of(slots)

    @property
    def most_bytes(self) -> float:
        """No fewer bytes than `bytes_of` all windows, and known at once."""
        return self.live_bytes

    def loadable(self, slots: Slots, room: int | None = None) -> Iterator[Slots]:
        """Windows, a few at a time: as many as fit so many bytes, or can be loaded and grouped within the memory budget."""
        room = min(room or self.options.load_bytes, self.options.load_bytes)
        if len(slots) and self.most_bytes <= room:
            yield slots
        elif len(slots):
            yield from self._parts(slots, room)

    @property
    def memory_bytes(self) -> int:
        """Size of the buffers and the key index, as far as they are in memory."""
        if not self._has_index:
            return 0
        return self._written.nbytes + self._ahead.buffer.nbytes + self.index.nbytes + self._extents.nbytes

    @property
    def live_bytes(self) -> int:
        """Bytes on disk of extents, dead rows in them included, and of the indexes."""
        return self._log.bytes

    @property
    def metrics(self) -> Metrics:
        """What the store has done since it was opened."""
        counts = self._counts
        self._log.count_into(counts)
        counts.live_bytes = self.live_bytes
        counts.memory_bytes = self.memory_bytes
        return counts

    # private ---------------------------------------------------------------------------------------------------------

    def _parts(self, slots: Slots, room: int) -> Iterator[Slots]:
        yield from map(slots.__getitem__, together(self.bytes_of(slots), room))

    @contextlib.contextmanager
    def _loading(self) -> Iterator[None]:
        began, fetched = time.perf_counter(), self._log.fetch_seconds
        yield
        self._counts.load_seconds += time.perf_counter() - began - (self._log.fetch_seconds - fetched)

    def _merge_many(self, slots: Slots, merge: Merge) -> bool:
        """Have one row in the write buffer for windows that have many on disk, of those that are about to be written.

        Extents are merged only while they are small, so a window that stays open would have one more row each time. Windows
        that have absorbed others, or were absorbed, are left as they are. Gives whether there were some.
        """
        records, most = self.index.records, max(_LEAST_MERGED, len(slots) // _SHARE)
        most_bytes = self._written.nbytes + self.options.write_buffer_bytes
        many = np.unique(slots[records["stored"][slots] >= self._many_rows])
        many = many[(records["sibling"][many] < 0) & (records["parent"][many] < 0)][:most]
        for some in self.loadable(many, self.options.write_buffer_bytes):
            if self._written.nbytes > most_bytes:
                break  # there is another flush for the others
            rows = self.get(some, ahead=False)
            merged = merge(rows)
            self.renew(some)
            self._written.append(arrow.batch_of(merged.drop(SLOT), self._schema), merged[SLOT].to_numpy())
            if merged.height > rows.height // 2:
                self._many_rows *= 2
        return len(many) > 0

    def _load(self) -> None:
        """Have known where the rows on disk lie."""
        if not self._extents.loaded:
            with self._loading():
                self._extents.load(self.index)

    def _read(self, requested: Slots, *, ahead: bool) -> list[tuple[pa.RecordBatch, Slots]]:
        """The rows of windows on disk; with ``ahead`` those of the nearest other windows go to the prefetch buffer."""
        self._counts.index_scans += 1
        self._load()
        nearby = self._ahead.choose(requested, self._extents) if ahead else np.empty(0, np.int32)
        reads: list[tuple[int, Rows, Slots, bool]] = []
        for number, rows, roots in self._extents.load(self.index).find(np.concatenate([requested, nearby])):
            unasked = np.isin(roots, nearby)
            both = (~unasked, False), (unasked, True)
            reads += [(number, rows[mask], roots[mask], is_ahead) for mask, is_ahead in both if mask.any()]
        batches = self._extents.take([(number, rows) for number, rows, _, _ in reads])
        wanted: list[tuple[pa.RecordBatch, Slots]] = []
        early: list[tuple[pa.RecordBatch, Slots]] = []
        for batch, (_, _, roots, is_ahead) in zip(batches, reads, strict=True):
            (early if is_ahead else wanted).append((batch, roots))
        self._ahead.take(early, nearby)
        return wanted

    def _forget_slots(self) -> None:
        """Have nothing more of what is known by slot: some slots have gone, and will be new ones."""
        self._extents.forget_addresses()
        self._ahead.clear()

    def _merged(self, batch: pa.RecordBatch, slots: Slots) -> tuple[pa.RecordBatch, Slots]:
        if self.merge is None:
            return batch, slots
        merged = self.merge(pl.DataFrame(batch).with_columns(pl.Series(SLOT, slots)))
        return arrow.batch_of(merged, batch.schema), merged[SLOT].to_numpy()


def _together(parts: list[tuple[pa.RecordBatch, Slots]]) -> pl.DataFrame:
    """Rows of windows as one frame with their windows; without columns when there are none."""
    if not parts:
        return pl.DataFrame(schema={SLOT: pl.Int32})
    rows = pa.Table.from_batches([batch for batch, _ in parts]).combine_chunks()  # texts of more than 2 GB to several chunks
    return pl.DataFrame(rows.append_column(SLOT, pa.array(np.concatenate([slots for _, slots in parts]))))
