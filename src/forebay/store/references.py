"""Windows whose rows are references to events that several patterns share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay.cutting import cuts, together
from forebay.store.event_references import References
from forebay.store.events import EVENT, EventLog
from forebay.store.extent_log import ExtentLog, LogPart
from forebay.store.key_index import Slots
from forebay.store.options import Options
from forebay.store.row_buffer import Rows
from forebay.store.unaligned import SLOT, UnalignedStore

_MANY_TIMES = 8
"""What is reckoned of references takes so many times as much memory as these."""


class ReferenceStore(UnalignedStore):
    """An `UnalignedStore` that keeps references, and gives the events that they name.

    A reference is counted when it is appended, and given back when its window ends or is renewed.

    Parameters
    ----------
    directory : Path
        The instance's own directory.
    log : LogPart
        The part of the log in which the references are.
    options : Options
        Limits.
    events : EventLog
        The events.
    columns : sequence of str
        The columns of events that are wanted of it.
    beside : sequence of str
        Columns that are stored beside the references.
    """

    def __init__(
        self,
        directory: Path,
        log: LogPart,
        options: Options,
        events: EventLog,
        columns: Sequence[str],
        beside: Sequence[str] = (),
    ) -> None:
        super().__init__(directory, None, options, log=log)
        self._events, self._columns, self._kept = events, list(columns), [EVENT, *beside]
        self._read_last: tuple[Slots, pl.DataFrame] | None = None

    def follow(self, log: ExtentLog | LogPart) -> bool:
        """Become what a log of a later version has; the events are to follow first."""
        self._read_last = None
        return super().follow(log)

    def append(self, batch: pa.RecordBatch, slots: Slots) -> None:
        """Add rows to their windows; of their columns only the references, and what is stored beside them, are kept."""
        self._read_last = None
        self._events.retain(batch[EVENT].to_numpy())
        super().append(batch.select(self._kept), slots)

    def get(self, slots: Slots, *, ahead: bool = True) -> pl.DataFrame:
        """The events of windows with their `SLOT`, in order of arrival. They stay until `remove` or `renew`."""
        rows = self._rows_of(slots, ahead=ahead)
        if not rows.height:
            return rows.select(SLOT)
        return rows.with_columns(self._events.take(rows[EVENT].to_numpy(), self._columns))

    def remove(self, slots: Slots) -> None:
        """End windows; the references of their rows are given back."""
        self._give_back(slots)
        super().remove(slots)

    def renew(self, slots: Slots) -> None:
        """Drop the rows of windows that stay open; their references are given back."""
        self._give_back(slots)
        super().renew(slots)

    def bytes_of(self, slots: Slots) -> npt.NDArray[np.floating[Any]]:
        """About how many bytes the events of each window have: references to them are read."""
        return self._weighed(slots, self._rows_of(slots))[1]

    @property
    def most_bytes(self) -> float:
        return self._events.referenced_bytes

    @property
    def references(self) -> References:
        """All references of windows that are open."""
        found = [np.empty(0, np.int64)]
        found += [batch[EVENT].to_numpy() for batch in self._extents.live(self.index)]
        rows, _ = self._written.live()
        if len(rows):
            found.append(self._written.take(rows)[EVENT].to_numpy())
        return np.concatenate(found)

    def _parts(self, slots: Slots, room: int) -> Iterator[Slots]:
        """Windows, a few at a time: as many as references can be read of, and of these as many as events fit."""
        for part in together(super().bytes_of(slots), room / _MANY_TIMES):
            some = slots[part]
            rows = self._rows_of(some)
            places, sizes = self._weighed(some, rows)
            ends = cuts(sizes, room)
            owners = np.searchsorted(ends, places, side="right")
            order = np.argsort(owners, kind="stable")
            bounds = np.searchsorted(owners[order], np.arange(len(ends) + 2))
            for windows, (begin, end) in zip(np.split(some, ends), itertools.pairwise(bounds.tolist()), strict=True):
                self._read_last = windows, rows[order[begin:end]]
                yield windows

    def _weighed(self, slots: Slots, rows: pl.DataFrame) -> tuple[Rows, npt.NDArray[np.floating[Any]]]:
        """Which of some windows each row is of, and about how many bytes the events of each have."""
        if not rows.height:
            return np.empty(0, np.int64), np.zeros(len(slots))
        order = np.argsort(slots)
        places = order[np.searchsorted(slots, rows[SLOT].to_numpy(), sorter=order)]
        sizes = np.bincount(places, self._events.sizes_of(rows[EVENT].to_numpy()), len(slots))
        return places, sizes.astype(np.float64)

    def _rows_of(self, slots: Slots, *, ahead: bool = True) -> pl.DataFrame:
        """References of windows, and what is stored beside them. Those that were read last are not read again."""
        if self._read_last is None or not np.isin(slots, self._read_last[0]).all():
            self._read_last = slots, super().get(slots, ahead=ahead)
        known, rows = self._read_last
        return rows if known is slots else rows.filter(np.isin(rows[SLOT].to_numpy(), slots))

    def _give_back(self, slots: Slots) -> None:
        rows = self._rows_of(slots)
        if rows.height:
            self._events.release(rows[EVENT].to_numpy())
        assert self._read_last is not None
        known, rows = self._read_last
        left = np.setdiff1d(known, slots)
        self._read_last = (left, rows) if len(left) else None
