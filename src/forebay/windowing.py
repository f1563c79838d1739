"""One store instance at work: rows of a micro-batch in, results of the windows that fire out, a new version committed.

This is the window operator without an engine. `forebay.spark` feeds it what Spark delivers; tests feed it directly. Here are
what all operators share and the aligned windows; the others are in `forebay.unaligned_windowing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay.aggregates.aggregation import ROWS, Aggregation
from forebay.aggregates.user_defined import UserFunction
from forebay.errors import CorruptState
from forebay.evolution import StoredForm
from forebay.joins import WindowJoin
from forebay.patterns import Pattern
from forebay.store.aligned import SLICE, AlignedStore
from forebay.store.archive import Archive
from forebay.store.filenames import Version
from forebay.store.manifest import Counters, Manifest
from forebay.store.metrics import Metrics
from forebay.store.options import Options
from forebay.store.rmw import open_rmw
from forebay.windows import AlignedWindows, Firing, Times, Windows

WINDOW = "window"
"""The column that holds the start of a row's window, in microseconds, while windows fire."""

END_OF_TIME = 2**62
"""A watermark (microseconds) after every instant: all windows fire."""

NEVER = -(2**62)
"""A watermark before every instant: nothing has fired."""

_TOGETHER_BYTES = 1 << 18
"""Tumbling windows of this size are grouped one by one."""


@dataclass(frozen=True)
class WindowPlan:
    """All that an instance needs to know of its operator.

    Attributes
    ----------
    windows : Windows
        The window function, or what is there in place of one.
    packed : pyarrow.Schema
        The columns of a packed batch: keys, then inputs of the aggregates.
    keys : tuple of str
        Those that are keys.
    aggregation : Aggregation, UserFunction or WindowJoin
        What is computed.
    pattern : Pattern
        Which store serves it.
    schema : pyarrow.Schema
        The result: the window struct (none for a global window), the keys, the aggregates.
    options : Options
        Limits of the store.
    firing : Firing or None
        When windows fire more than once.
    idle_timeout : int or None
        When the watermark has not moved for so many microseconds of wall time, event time passes with the wall clock.
    identified_by : tuple of str or None
        The columns that tell keys apart, if they are not ``keys``. Those that are not packed come beside what is.
    """

    windows: Windows
    packed: pa.Schema
    keys: tuple[str, ...]
    aggregation: Aggregation | UserFunction | WindowJoin
    pattern: Pattern
    schema: pa.Schema
    options: Options = field(default_factory=Options)
    firing: Firing | None = None
    idle_timeout: int | None = None
    identified_by: tuple[str, ...] | None = None

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that tell keys apart."""
        return self.keys if self.identified_by is None else self.identified_by


class Instance(Protocol):
    """A store instance, its windows and aggregates, opened at a version for the length of one micro-batch."""

    counters: Counters

    def ingest(self, batch: pa.RecordBatch, *, partial: bool = False) -> None:
        """Take rows, or partial aggregates made before the shuffle. Late ones are dropped and counted."""

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Results of every window that is due at ``watermark`` (microseconds). Exhaust the iterator."""

    def commit(self, batch: int | None = None) -> Version | None:
        """Make the state after this micro-batch the next version; the same one when nothing has changed."""

    @property
    def metrics(self) -> Metrics:
        """What the store has done since it was opened."""

    def close(self) -> None:
        """Let go of files, whether the batch was committed or not."""


def open_instance(
    plan: WindowPlan,
    directory: Path,
    version: Version | None,
    fired_until: int,
    *,
    archive: Archive | None = None,
    updating: bool = False,
) -> Instance:
    """The instance that runs a plan, in append or update mode."""
    from forebay import unaligned_windowing as unaligned

    kind: Callable[..., Instance]
    if plan.firing is not None:
        from forebay.triggered_windowing import TriggeredInstance

        kind = TriggeredInstance
    elif isinstance(plan.windows, AlignedWindows):
        kind = unaligned.UpdateInstance if updating else WindowInstance
    else:
        kind = unaligned.kind_of(plan)
    return kind(plan, directory, version, fired_until, archive)


class WindowInstance:
    """Aligned windows, which fire for all keys at once.

    Parameters
    ----------
    plan : WindowPlan
        The operator.
    directory : Path
        The instance's own directory.
    version : Version or None
        The version that the last committed micro-batch left, None at the beginning.
    fired_until : int
        The watermark (microseconds) of the last micro-batch: windows that end by then have fired.
    archive : Archive, optional
        Where versions are safe, if not in the directory.
    """

    def __init__(
        self,
        plan: WindowPlan,
        directory: Path,
        version: Version | None,
        fired_until: int = NEVER,
        archive: Archive | None = None,
    ) -> None:
        assert isinstance(plan.windows, AlignedWindows)
        self._plan, self._windows = plan, plan.windows
        if plan.pattern is Pattern.RMW:
            assert isinstance(plan.aggregation, Aggregation)
            form = StoredForm(plan.packed, plan.aggregation)
            self._store = open_rmw(directory, version, plan.keys, plan.aggregation.merge, plan.options, archive, form)
        else:
            form = StoredForm(plan.packed)
            self._store = AlignedStore(directory, version, plan.keys, plan.options, archive=archive, form=form)
        require_same_time(self._store.base, directory, fired_until)
        self._fired_until = fired_until
        self.counters = self._store.base.counters

    def ingest(self, batch: pa.RecordBatch, *, partial: bool = False) -> None:
        """Take rows, or partial aggregates made before the shuffle, that are sorted by slice.

        Those whose last window has fired are dropped and counted. The others are never lost.
        """
        if self._plan.pattern is Pattern.RMW and not partial:
            batch, partial = partial_batch(self._plan, pl.DataFrame(batch), (SLICE,)), True
        windows = self._windows
        starts, begins = runs(batch[SLICE].to_numpy())
        ends = np.append(begins[1:], batch.num_rows)
        rows = np.add.reduceat(batch[ROWS].to_numpy(), begins) if partial else ends - begins
        late = windows.last_window(starts) + windows.size <= self._fired_until
        partly = ~late & (windows.first_window(starts) + windows.size <= self._fired_until)
        self._count(rows_in=rows.sum(), rows_late=rows[late].sum(), rows_partly_late=rows[partly].sum())
        batch = batch.drop_columns([SLICE])
        for start, begin, end in zip(starts[~late].tolist(), begins[~late], ends[~late], strict=True):
            self._store.append(start, batch.slice(begin, end - begin))

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Results of every window whose end is at or before ``watermark`` (microseconds) and that has not fired yet.

        Exhaust the iterator; each item holds the results of some keys of some windows.
        """
        slices = self._store.slices
        due = self._windows.windows_between(slices, self._fired_until, watermark)
        ends, dropped = self._windows.last_window(slices) + self._windows.size, 0
        for windows in self._loadable(due, slices):
            end = windows[-1] + self._windows.size
            first, last = np.searchsorted(slices, [windows[0], end])
            for part in self._store.get_window(slices[first:last].tolist()):
                for batch in self._results(windows, part):
                    self._count(rows_out=batch.num_rows)
                    yield batch
            self._count(windows_fired=len(windows))
            over = int(np.searchsorted(ends, end, side="right"))
            self._store.drop(slices[dropped:over].tolist())
            dropped = max(dropped, over)
        self._fired_until = max(self._fired_until, watermark)

    def commit(self, batch: int | None = None) -> Version | None:
        """Make the state after this micro-batch the next version; the same one when nothing has changed."""
        base = self._store.base
        if self.counters == base.counters and not base.stale:
            return base.version
        return self._store.commit(self._fired_until, self.counters, batch)

    @property
    def metrics(self) -> Metrics:
        """What the store has done since it was opened."""
        return self._store.metrics

    def close(self) -> None:
        """Let go of files, whether the batch was committed or not."""
        self._store.close()

    def _loadable(self, due: list[int], slices: Times) -> Iterator[list[int]]:
        """Windows that fire, a few at a time: as many as fit into memory together, at least one.

        Of tumbling windows, which have no rows in common, only small ones are together: rows of one window are grouped by
        their keys alone, which takes half the time.
        """
        if not due:
            return
        tumbling = self._windows.slice_length == self._windows.size
        most = min(self._store.window_bytes, _TOGETHER_BYTES) if tumbling else self._store.window_bytes
        sizes = np.cumsum([0, *(self._store.bytes_of([start]) for start in slices.tolist())])
        begins, ends = np.searchsorted(slices, due), np.searchsorted(slices, np.array(due) + self._windows.size)
        together: list[int] = []
        size = 0
        for start, more in zip(due, (sizes[ends] - sizes[begins]).tolist(), strict=True):
            if together and size + more > most:
                yield together
                together, size = [], 0
            together.append(start)
            size += more
        yield together

    def _results(self, windows: list[int], part: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        """Results of windows from the rows, or partial aggregates, of their slices."""
        aggregation = self._plan.aggregation
        if len(windows) == 1:
            part, by = part.drop(SLICE), []
        else:
            part, by = self._by_window(windows, part), [WINDOW]
        placed = part if by or isinstance(aggregation, Aggregation) else part.with_columns(window_column(windows[0]))
        partial = self._plan.pattern is Pattern.RMW
        yield from results(self._plan, placed, self._bounds, only=None if by else windows[0], partial=partial)

    def _bounds(self, starts: Times) -> npt.NDArray[np.int64]:
        return np.stack([starts, starts + self._windows.size], axis=1)

    def _by_window(self, windows: list[int], part: pl.DataFrame) -> pl.DataFrame:
        """Rows of slices as rows of windows: once for each of ``windows`` that contains their slice."""
        if self._windows.slice_length == self._windows.size:
            return part.rename({SLICE: WINDOW})
        slices = part[SLICE].unique().to_numpy()
        positions, starts = self._windows.placements(slices, (windows[0], windows[-1]))
        places = pl.DataFrame({SLICE: slices[positions], WINDOW: starts})
        return part.join(places, on=SLICE, maintain_order="left").drop(SLICE)

    def _count(self, **more: int) -> None:
        self.counters = counted(self.counters, **more)


Bounds = Callable[[Times], npt.NDArray[np.int64]]
"""Start and end of windows that a `WINDOW` column names."""


def results(
    plan: WindowPlan, rows: pl.DataFrame, bounds: Bounds, *, partial: bool, merged: bool = False, only: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Results of windows from their rows, or from partial aggregates.

    Parameters
    ----------
    plan : WindowPlan
        The operator.
    rows : polars.DataFrame
        Rows of windows that fire, with the `WINDOW` of each.
    bounds : callable
        Maps values of that column to starts and ends.
    partial : bool
        Whether the rows are partial aggregates.
    merged : bool
        Whether there is one of them for each window and key already.
    only : int, optional
        All rows are of this window. The column is not needed then, except for a user's function.
    """
    aggregation = plan.aggregation
    if not isinstance(aggregation, Aggregation):
        yield from aggregation.results(
            rows, list(plan.keys), WINDOW, lambda ids, columns: assemble(plan, bounds(ids), columns)
        )
        return
    by = () if only is not None else (WINDOW,)
    groups = rows if merged else aggregation.merge(rows, by) if partial else aggregation.partial(rows, by)
    windows = groups[WINDOW].to_numpy() if by else np.full(groups.height, only, np.int64)
    keys = [groups[key].to_arrow(compat_level=pl.CompatLevel.oldest()) for key in plan.keys]
    yield assemble(plan, bounds(windows), [*keys, *aggregation.finish(groups)])


def assemble(plan: WindowPlan, bounds: npt.NDArray[np.int64], columns: list[pa.Array]) -> pa.RecordBatch:
    """Result columns, with their windows before them, as one record batch of the result's schema."""
    schema = plan.schema
    if len(schema) > len(columns):
        fields = list(schema.field(0).type)
        arrays = [pa.array(np.ascontiguousarray(bounds[:, place])) for place in (0, 1)]
        timed = [
            array.cast(pa.timestamp("us")).cast(field.type) if pa.types.is_timestamp(field.type) else array
            for array, field in zip(arrays, fields, strict=True)
        ]
        columns = [pa.StructArray.from_arrays(timed, fields=fields), *columns]
    arrays = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def window_column(window: int) -> pl.Expr:
    """A `WINDOW` column of rows that are all of one window."""
    return pl.lit(window, pl.Int64).alias(WINDOW)


def counted(counters: Counters, **more: int) -> Counters:
    """Counters with more counted."""
    return replace(counters, **{name: getattr(counters, name) + int(value) for name, value in more.items()})


def require_same_time(base: Manifest, directory: Path, fired_until: int) -> None:
    """`CorruptState` when a version has fired windows that its checkpoint has not."""
    if (base.fired_until or NEVER) > fired_until:
        raise CorruptState(
            f"version {base.version} in {directory} has fired windows until {base.fired_until}, the checkpoint "
            f"only until {fired_until}: they do not belong together. Restore both from the same copy."
        )


def partial_batch(plan: WindowPlan, rows: pl.DataFrame, by: tuple[str, ...] = ()) -> pa.RecordBatch:
    """Partial aggregates of rows as they are stored and shuffled, sorted by the columns ``by``."""
    assert isinstance(plan.aggregation, Aggregation)
    partials = plan.aggregation.partial(rows, by)
    if by:
        partials = partials.sort(by)
    return pa.concat_batches(partials.to_arrow(compat_level=pl.CompatLevel.oldest()).to_batches())


def runs(slices: Times) -> tuple[Times, Times]:
    """The distinct values of sorted slices, and the position at which each begins."""
    begins = np.flatnonzero(np.diff(slices, prepend=slices[:1] - 1))
    return slices[begins], begins
