"""Windows whose rows are references to events that several patterns share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay.store import row_kernels as kernels
from forebay.store.events import EVENT, EventLog, References
from forebay.store.extent_log import ExtentLog, LogPart
from forebay.store.key_index import Slots
from forebay.store.options import Options
from forebay.store.unaligned import SLOT, UnalignedStore


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
        self._read_last: tuple[Slots, Slots, References] | None = None

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
        rows = super().get(slots, ahead=ahead)
        if EVENT not in rows.columns:
            return rows
        references = rows[EVENT].to_numpy()
        self._read_last = np.sort(slots), rows[SLOT].to_numpy(), references
        return rows.with_columns(self._events.take(references, self._columns))

    def remove(self, slots: Slots) -> None:
        """End windows; the references of their rows are given back."""
        self._give_back(slots)
        super().remove(slots)

    def renew(self, slots: Slots) -> None:
        """Drop the rows of windows that stay open; their references are given back."""
        self._give_back(slots)
        super().renew(slots)

    def bytes_of(self, slots: Slots) -> npt.NDArray[np.floating[Any]]:
        """About how many bytes the events of each window have."""
        return (kernels.stored(self.index.records, slots) + self._written.counts(slots)) * self._events.event_bytes

    @property
    def most_bytes(self) -> float:
        return float(self.index.stored_rows + len(self._written)) * self._events.event_bytes

    @property
    def references(self) -> References:
        """All references of windows that are open."""
        found = [np.empty(0, np.int64)]
        found += [batch[EVENT].to_numpy() for batch in self._extents.live(self.index)]
        rows, _ = self._written.live()
        if len(rows):
            found.append(self._written.take(rows)[EVENT].to_numpy())
        return np.concatenate(found)

    def _give_back(self, slots: Slots) -> None:
        if self._read_last is None or not np.isin(slots, self._read_last[0]).all():
            rows = super().get(slots)
            if EVENT not in rows.columns:
                return
            self._read_last = slots, rows[SLOT].to_numpy(), rows[EVENT].to_numpy()
        known, owners, references = self._read_last
        self._events.release(references[np.isin(owners, slots)])
        left = np.setdiff1d(known, slots)
        self._read_last = (left, owners, references) if len(left) else None
