"""Rows of unaligned windows on disk: in extents that are ordered by estimated trigger time, each with its pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.store import row_kernels as kernels
from forebay.store.addresses import Addresses
from forebay.store.extent_groups import MAX_EXTENTS, Groups, joining
from forebay.store.extent_log import LEAST_COMPACTED, ExtentLog, LogPart
from forebay.store.form import Form
from forebay.store.index_log import groups_of
from forebay.store.key_index import KeyIndex, Slots
from forebay.store.live_rows import LiveRows, Numbers
from forebay.store.manifest import KIND_BITS
from forebay.store.pictures import Array
from forebay.store.pieces import Pieces, by_trigger_time, in_extents
from forebay.store.row_buffer import Rows
from forebay.store.segment import SEGMENT_BYTES, Extent

DATA = 0
"""The kind of group that an extent is in the log: its number is the extent's."""
_PIECES = 1 << KIND_BITS
"""What the group of an extent's pieces has beside the extent's number."""

Merged = Callable[[pa.RecordBatch, Slots], tuple[pa.RecordBatch, Slots]]
"""Rows with their windows, of which some may have become one."""

_MANY = 8
"""So many small extents among large ones stay."""

_CLEARED = 4
"""A commit writes extents again as long as they have less than so many times the bytes that it has written of its own,"""
_LEAST_CLEARED = 4 * SEGMENT_BYTES
"""or less than this."""


class WindowExtents:
    """The extents of a store, and where in them the rows of each window lie.

    Parameters
    ----------
    log : ExtentLog or LogPart
        What has them.
    form : Form, optional
        What rows are to be like, where some may have been stored otherwise.
    """

    def __init__(self, log: ExtentLog | LogPart, form: Form | None) -> None:
        self._log, self._form = log, form
        self._addresses: Addresses | None = None
        self._condemned: list[int] = []
        self._appended = 0

    @property
    def numbers(self) -> list[int]:
        """The extents, ascending."""
        return groups_of(self._log, DATA)

    @cached_property
    def _extents(self) -> LiveRows:
        """They, with their sizes; of those that a log was opened with it is not known how many rows are live.

        It is asked for before the log gets other extents, and told of those.
        """
        rows, pieces = self._log.extents_of(self.numbers), _pieces_in(self._log)
        numbers, sizes, stored = np.array([(each.group, each.length, each.rows) for each in rows], np.int64).reshape(-1, 3).T
        return LiveRows(numbers, sizes, sizes + np.array([each.length for each in pieces], np.int64), stored)

    def moved_to(self, log: ExtentLog | LogPart) -> None:
        """Be those of another log, which goes on from this one."""
        before = self._log
        self._log = log
        vars(self).pop("_extents", None)  # they are those of a store that was opened anew
        self._follow(before)

    def adopt(self, index: KeyIndex, addresses: Mapping[str, Array], extents: Array, before: Groups) -> None:
        """Go on with what another process has known of where rows lie, when the log was as it was before."""
        self._addresses = Addresses(index)
        self._addresses.use(addresses, extents)
        self._follow(before)

    def _follow(self, before: Groups) -> None:
        """Know of the extents that the log has now what was known of those before."""
        had = groups_of(before, DATA)
        others = {extent.group ^ _PIECES for extent in {*_pieces_in(before)} ^ {*_pieces_in(self._log)}}
        self._condemned = [number for number in self._condemned if number not in others]
        if self._addresses:
            for number in others.intersection(had):
                self._addresses.drop(number)
            for number in sorted(others.intersection(self.numbers)):
                self._addresses.add(number, self._pieces_of(number))

    @property
    def nbytes(self) -> int:
        """Bytes of memory of what is known of where rows lie."""
        return self._addresses.nbytes if self._addresses else 0

    @property
    def row_bytes(self) -> float:
        """The mean size of a row; 0 if there is none."""
        return int(self._extents.sizes.sum()) / max(1, self._extents.stored)

    def bytes_of(self, index: KeyIndex, slots: Slots) -> npt.NDArray[np.float64]:
        """About how many bytes windows have: as many as other rows of the extents in which theirs lie."""
        return self.load(index).bytes_of(slots, self._width)

    def _width(self, number: int) -> float:
        return self._log.bytes_of([number]) / max(1, self._log.rows_of([number]))

    @property
    def slots_named(self) -> int:
        """A number above those of all slots that rows on disk name, dead rows included."""
        return max((int(slots.max()) + 1 for n in self.numbers if len(slots := self._pieces_of(n).slot)), default=0)

    def forget_addresses(self) -> None:
        """Read again where rows lie when that is needed next."""
        self._addresses = None

    # reading ---------------------------------------------------------------------------------------------------------

    @property
    def loaded(self) -> bool:
        """Whether it is known where the rows of windows lie."""
        return self._addresses is not None and not self._addresses.crowded

    def load(self, index: KeyIndex) -> Addresses:
        """Where the rows of windows lie; read from disk when it is first needed."""
        if self._addresses is None or self._addresses.crowded:
            pieces = [_PIECES | number for number in self.numbers]
            self._log.read_ahead(pieces)
            count = self._log.rows_of(pieces)
            found = Addresses(index, count + count // 8)
            for number in self.numbers:
                found.add(number, self._pieces_of(number))
            self._addresses = found  # only when it has all of them
        return self._addresses

    def take(self, wanted: Sequence[tuple[int, Rows]]) -> list[pa.RecordBatch]:
        """Some rows of each of some extents."""
        batches = self._log.take(wanted)
        return [self._form.of(batch) for batch in batches] if self._form else batches

    def of(self, index: KeyIndex, slot: int) -> list[pa.RecordBatch]:
        """The rows of one window that has absorbed none, in order of arrival."""
        return self.load(index).of(slot, self.read)

    def live(self, index: KeyIndex) -> Iterator[pa.RecordBatch]:
        """The rows of all open windows."""
        for number in self.numbers:
            rows, _ = self._pieces_of(number).live(index.records)
            yield from self.take([(number, rows)])

    def read(self, number: int) -> pa.RecordBatch:
        """An extent, dead rows included."""
        batch = next(self._log.read(number))
        return self._form.of(batch) if self._form else batch

    # writing ---------------------------------------------------------------------------------------------------------

    def append(self, index: KeyIndex, batch: pa.RecordBatch, slots: Slots) -> None:
        """Write rows, which are in order, as the youngest extents."""
        self._appended += batch.nbytes
        self._write(index, batch, slots, self._extents.last + 1, self._died(index))

    def combine(self, index: KeyIndex, merged: Merged) -> None:
        """Write small extents of consecutive commits again as one, if they have become many."""
        sizes = self._extents.sizes
        small = sizes < SEGMENT_BYTES // 2
        if np.count_nonzero(small) > MAX_EXTENTS:
            youngest = joining(sizes.tolist(), SEGMENT_BYTES // 2) if small[-MAX_EXTENTS - 1 :].all() else len(sizes)
            joined = slice(youngest, None) if youngest < len(sizes) - 1 else _enclosed(sizes)
            if joined:
                self._rewrite(index, merged, self.numbers[joined])

    def clear(self, index: KeyIndex, merged: Merged, most: float) -> bool:
        """Clear out dead rows, if there are too many of them; whether that has begun.

        What is written for it at a time is in proportion to what was appended since. So the commit that finds too many of
        them does not write most of the state again; the following ones go on.
        """
        begun = not self._condemned
        if begun:
            found = self._emptiest(index, most)
            if found is None:
                self._appended = 0
                return False
            self._condemned = found
        left, self._appended = max(_LEAST_CLEARED, _CLEARED * self._appended), 0
        while self._condemned and left > 0:
            number = self._condemned.pop()
            if number in self._extents:  # it may have become part of another one
                left -= self._rewrite(index, merged, [number])
        if not self._condemned and self._log.compact(most) and self._addresses:
            self._addresses.forget_rows()  # they have the files from which extents have moved
        return begun

    def _emptiest(self, index: KeyIndex, most: float) -> list[int] | None:
        """Extents with too many dead bytes, the emptiest one last; None if files are not too many times what is live."""
        size, disk, extents = self._log.bytes, self._log.disk_bytes, self._extents
        others = size - extents.bytes
        if disk <= max(LEAST_COMPACTED, most * (others + extents.least_bytes(index.stored_rows))):
            return None
        extents.look(index.stored_rows, lambda number: self._pieces_of(number).live_rows(index.records))
        allowed = max(LEAST_COMPACTED, most * (others + extents.live_bytes))
        condemned = extents.emptiest(most if disk > allowed else np.inf)
        if not condemned and disk <= max(LEAST_COMPACTED, most * size):
            return None  # nor is there what is dead as whole extents in files with others
        return condemned

    def _died(self, index: KeyIndex) -> int:
        """How many rows have died so far."""
        return self._extents.died(index.stored_rows)

    def _write(
        self, index: KeyIndex, batch: pa.RecordBatch, slots: Slots, number: int, died: int, most: int | None = None
    ) -> None:
        """Write rows as extents numbered from ``number`` on, ``most`` of them at most; ``died`` rows had died before."""
        for rows, owners in in_extents(batch, slots, SEGMENT_BYTES, most):
            pieces = Pieces.of(owners, index)
            self._log.append(number, rows)
            self._log.append(_PIECES | number, pieces.as_batch())
            of_rows, of_all = (self._log.bytes_of(groups) for groups in ([number], [number, _PIECES | number]))
            self._extents.write(number, of_rows, of_all, rows.num_rows, died)
            if self._addresses:
                self._addresses.add(number, pieces)
            number += 1

    def _rewrite(self, index: KeyIndex, merged: Merged, numbers: list[int]) -> int:
        """Write neighbouring extents again without their dead rows, together and in order of ETT.

        Gives the bytes of those that had live rows: nothing is read or written for the others.
        """
        died, stored = self._died(index), self._log.rows_of(numbers)
        live = [(number, *self._pieces_of(number).live(index.records)) for number in numbers]
        live = [(number, rows, slots) for number, rows, slots in live if len(rows)]
        parts = self.take([(number, rows) for number, rows, _ in live])
        size = self._log.bytes_of(number for number, _, _ in live)
        self._extents.clear(numbers, stored - sum(len(rows) for _, rows, _ in live))
        for number in numbers:
            self._log.drop([number, _PIECES | number])
            if self._addresses:
                self._addresses.drop(number)
        if not parts:
            return 0
        before = np.concatenate([slots for _, _, slots in live])
        batch, slots = merged(pa.concat_batches(parts), before)
        _count_merged(index, before, slots)
        order, _, _ = by_trigger_time(slots, index.records)
        self._write(index, batch.take(pa.array(order)), slots[order], numbers[0], died, len(numbers))
        return size

    def _pieces_of(self, number: int) -> Pieces:
        return Pieces.read(next(self._log.read(_PIECES | number)))


def _pieces_in(log: Groups) -> list[Extent]:
    """Where the pieces of extents lie."""
    return log.extents_of(log.within(_PIECES, 2 * _PIECES))


def _enclosed(sizes: Numbers) -> slice | None:
    """Neighbouring small extents that are many; together they are no larger than a full one, and the next one is too large.

    They are what is left of extents when most of their rows have died. It would stay as it is: joining begins with the
    youngest extent, and does not get as far.

    Examples
    --------
    >>> large = SEGMENT_BYTES // 2
    >>> _enclosed(np.array([1, 1, large, *[5] * 9, large, *[7] * 9]))
    slice(3, 12, None)
    """
    ends = np.append(np.flatnonzero(sizes >= SEGMENT_BYTES // 2), len(sizes))
    begins = np.concatenate([[0], ends[:-1] + 1])
    for begin, end in np.stack([begins, ends], axis=1)[ends - begins > _MANY].tolist():
        first, room = begin, SEGMENT_BYTES
        for place, size in enumerate(sizes[begin:end].tolist(), begin):
            if size > room:
                if place - first > _MANY:
                    return slice(first, place)
                first, room = place, SEGMENT_BYTES
            room -= size
        if end - first > _MANY and end < len(sizes):
            return slice(first, end)
    return None


def _count_merged(index: KeyIndex, before: Slots, after: Slots) -> None:
    """Windows have fewer rows on disk since some were merged. A window that had some still has one."""
    if len(after) < len(before):
        (rows, owners), (left, _) = (kernels.counted(slots, index.capacity) for slots in (before, after))
        stored = index.stored(owners)
        index.store(owners, np.maximum(np.minimum(stored, 1), stored - (rows - left)[owners]))
