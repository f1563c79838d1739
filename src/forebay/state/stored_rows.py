"""The rows of one version of a virtual node at rest, as tables and some at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from forebay.cutting import cuts
from forebay.engine.row_join import ROW
from forebay.engine.stored_form import StoredForm, unified
from forebay.state import layout as layouts
from forebay.state.layout import Layout
from forebay.state.places import Root
from forebay.store.aligned import AlignedStore
from forebay.store.events import ORDINAL
from forebay.store.extent_log import ExtentLog
from forebay.store.filenames import Version
from forebay.store.key_index import Slots
from forebay.store.manifest import EVENTS, Manifest
from forebay.store.options import Options
from forebay.store.unaligned import SLOT, UnalignedStore
from forebay.windows import ENDLESS, INSTANT, TIME

_READ_BYTES = 32 << 20
"""Rows are read about so many bytes at a time."""


@dataclass(frozen=True)
class Kind:
    """How the rows of an operator are kept, which its layout says."""

    layout: Layout

    @property
    def aligned(self) -> bool:
        """Whether all keys share its windows, and rows lie by slice."""
        by_key = self.layout.get("outputMode") == "update" or "firing" in self.layout
        return layouts.kind_of(self.layout) == "window" and not by_key

    @property
    def shares_events(self) -> bool:
        """Whether it has several patterns, which share events."""
        return layouts.kind_of(self.layout) == "patterns"

    @property
    def in_event_time(self) -> bool:
        """Whether its windows fire at instants of event time."""
        return layouts.kind_of(self.layout) not in ("count_window", "global_window", "buffer")

    @property
    def counts_rows(self) -> bool:
        """Whether its windows are bounded by numbers of rows, not by instants."""
        return not self.in_event_time or layouts.kind_of(self.layout) == "dedupe"


@dataclass(frozen=True)
class StoredRows:
    """The rows of a version.

    Attributes
    ----------
    root : Root
        The directory and archive of the instance.
    vnode : int
        The virtual node that it is the state of.
    kind : Kind
        How its operator keeps rows.
    version : Version
        The version.
    """

    root: Root
    vnode: int
    kind: Kind
    version: Version

    def tables(self) -> Iterator[pl.DataFrame]:
        """The rows with ``vnode`` and the bounds of their windows, ``start`` and ``end``, some at a time.

        Aligned windows share rows by slice: ``start`` is that of the slice, and there is no ``end``. Events that patterns
        share have their time for ``start``.
        """
        of_windows = self._aligned if self.kind.aligned else self._unaligned
        for rows in self._events() if self.kind.shares_events else of_windows():
            bounds = [pl.lit(self.vnode, pl.Int32).alias("vnode"), pl.col("start"), pl.col("end")]
            yield rows.select(*bounds, pl.exclude("start", "end"))

    def unaligned(self) -> UnalignedStore:
        """The store, to read from."""
        return UnalignedStore(self.root.directory, self.version, archive=self.root.archive)

    def expected(self, manifest: Manifest) -> int | None:
        """How many rows there must be by the version's manifest, or by the index of its windows; None if neither says."""
        if self.kind.shares_events:
            return manifest.rows_of(EVENTS)
        if self.kind.aligned:
            return manifest.rows
        if self.kind.layout["pattern"] == "RMW":
            return None
        store = self.unaligned()
        if any(ROW in schema.names for schema in store.schemas):
            return None  # a row that has met another one has a mark beside it
        return store.index.stored_rows

    def check(self) -> None:
        """Read all files; an error of ours if one of them is damaged."""
        log = ExtentLog(self.root.directory, self.version, Options(), self.root.archive)
        for part in (log, *map(log.part, log.parts)):
            for group in part.groups.tolist():
                for _ in part.read(group):
                    pass

    def _events(self) -> Iterator[pl.DataFrame]:
        part = ExtentLog(self.root.directory, self.version, Options(), self.root.archive).part(EVENTS)
        form = StoredForm(unified(part.schemas_of(part.groups.tolist())))
        instant = pl.Datetime("us", "UTC")
        for group in part.groups.tolist():
            for batch in part.read(group):
                events = pl.DataFrame(form.of(batch)).with_columns(pl.col(TIME).cast(instant).alias("start"))
                yield events.drop(TIME, ORDINAL).with_columns(end=pl.lit(None, instant))

    def _aligned(self) -> Iterator[pl.DataFrame]:
        store = AlignedStore(self.root.directory, self.version, [], archive=self.root.archive)
        store.form = StoredForm(unified(store.schemas))
        instant = pl.Datetime("us", "UTC")
        for start in store.slices.tolist():
            for batch in store.rows(start):
                yield pl.DataFrame(batch).with_columns(start=pl.lit(start).cast(instant), end=pl.lit(None, instant))

    def _unaligned(self) -> Iterator[pl.DataFrame]:
        store = self.unaligned()
        live = store.index.live()
        store.form = StoredForm(unified(store.schemas))
        sizes = store.bytes_of(live)
        large = sizes >= _READ_BYTES  # each is read by itself
        bounds = np.union1d(cuts(sizes, _READ_BYTES), np.flatnonzero(large[1:] | large[:-1]) + 1)
        found = np.split(live, bounds) if len(live) else []
        for rows in itertools.chain.from_iterable(_rows_of(store, slots) for slots in found):
            joined = ROW in rows.columns
            if joined:
                rows = rows.filter(pl.col(ROW) >= 0).drop(INSTANT, ROW)  # marks are no rows
            elif INSTANT in rows.columns:  # of windows that precede rows: each row has one
                instants = pl.col(INSTANT).cast(pl.Datetime("us", "UTC"))
                yield rows.drop(SLOT).with_columns(start=instants, end=instants).drop(INSTANT)
                continue
            starts, ends = store.index.bounds(rows[SLOT].to_numpy())
            if joined:
                starts = np.where(ends == ENDLESS, ENDLESS, starts)  # it tells sides apart
            yield rows.drop(SLOT).with_columns(start=self._bound(starts), end=self._bound(ends))

    def _bound(self, values: npt.NDArray[np.int64]) -> pl.Series:
        series = pl.Series(np.ascontiguousarray(values))
        series = series.replace(ENDLESS, None)
        return series if self.kind.counts_rows else series.cast(pl.Datetime("us", "UTC"))


def _rows_of(store: UnalignedStore, slots: Slots) -> Iterator[pl.DataFrame]:
    """The rows of windows with their `SLOT`; those of a single window, which may be large, in parts."""
    if len(slots) == 1 and store.index.records["sibling"][slots[0]] < 0:
        for batch in store.get_one(int(slots[0])):
            yield pl.DataFrame(batch).with_columns(pl.lit(slots[0]).alias(SLOT))
    else:
        yield store.get(slots)
