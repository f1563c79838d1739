"""One store instance at work: rows of a micro-batch in, results of the windows that fire out, a new version committed.

This is the window operator without an engine. `forebay.spark` feeds it what Spark delivers; tests feed it directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from forebay.aggregates.aggregation import ROWS, Aggregation
from forebay.aggregates.user_defined import UserFunction
from forebay.patterns import Pattern
from forebay.store.aligned import AlignedStore
from forebay.store.filenames import Version
from forebay.store.rmw import RmwStore
from forebay.store.slice_log import Options
from forebay.windows import AlignedWindows, Times

SLICE = "slice"
"""The column of a packed batch that holds the start of each row's slice, in microseconds."""

END_OF_TIME = 2**62
"""A watermark (microseconds) after every instant: all windows fire."""


@dataclass(frozen=True)
class WindowPlan:
    """All that an instance needs to know of its operator.

    Attributes
    ----------
    windows : AlignedWindows
        The window function.
    keys : tuple of str
        Key columns of a packed batch.
    aggregation : Aggregation or UserFunction
        What is computed.
    pattern : Pattern
        Which store serves it.
    schema : pyarrow.Schema
        The result: the window struct, the keys, the aggregates.
    options : Options
        Limits of the store.
    """

    windows: AlignedWindows
    keys: tuple[str, ...]
    aggregation: Aggregation | UserFunction
    pattern: Pattern
    schema: pa.Schema
    options: Options = field(default_factory=Options)


class WindowInstance:
    """A store instance, its windows and aggregates, opened at a version for the length of one micro-batch.

    Parameters
    ----------
    plan : WindowPlan
        The operator.
    directory : Path
        The instance's own directory.
    version : Version or None
        The version that the last committed micro-batch left, None at the beginning.
    fired_until : int or None
        The watermark (microseconds) of the last micro-batch: windows that end by then have fired.
    """

    def __init__(self, plan: WindowPlan, directory: Path, version: Version | None, fired_until: int | None = None) -> None:
        self._plan = plan
        self._store: AlignedStore | RmwStore
        if plan.pattern is Pattern.RMW:
            assert isinstance(plan.aggregation, Aggregation)
            self._store = RmwStore(directory, version, plan.keys, plan.aggregation.merge, plan.options)
        else:
            self._store = AlignedStore(directory, version, plan.keys, plan.options)
        self._fired_until = fired_until
        self.counters = self._store.base.counters

    def ingest(self, batch: pa.RecordBatch, *, partial: bool = False) -> None:
        """Take rows, or partial aggregates made before the shuffle, that are sorted by slice.

        Those whose last window has fired are dropped and counted. The others are never lost.
        """
        for start, run in runs(batch):
            rows = int(pa.compute.sum(run[ROWS]).as_py()) if partial else run.num_rows
            self._count(rows_in=rows)
            if self._fired_until is not None:
                slices = np.array([start])
                if self._plan.windows.last_window(slices)[0] + self._plan.windows.size <= self._fired_until:
                    self._count(rows_late=rows)
                    continue
                if self._plan.windows.first_window(slices)[0] + self._plan.windows.size <= self._fired_until:
                    self._count(rows_partly_late=rows)
            self._add(start, run.drop_columns([SLICE]), partial)

    def fire(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Results of every window whose end is at or before ``watermark`` (microseconds) and that has not fired yet.

        Exhaust the iterator; each item holds the results of some keys of one window.
        """
        if self._fired_until is not None and watermark <= self._fired_until:
            return
        windows = self._plan.windows
        slices = self._store.slices
        for start in windows.windows_between(slices, self._fired_until, watermark):
            inside = slices[(slices >= start) & (slices < start + windows.size)]
            for part in self._store.get_window(inside.tolist()):
                for batch in self._results(start, part):
                    self._count(rows_out=batch.num_rows)
                    yield batch
            self._count(windows_fired=1)
            self._drop(start + windows.size)
        self._fired_until = watermark

    def commit(self) -> Version | None:
        """Make the state after this micro-batch the next version; the same one when nothing has changed."""
        base = self._store.base
        if self.counters == base.counters and not base.stale:
            return base.version
        return self._store.commit(self._fired_until, self.counters)

    def close(self) -> None:
        """Let go of files, whether the batch was committed or not."""
        self._store.close()

    def _add(self, start: int, rows: pa.RecordBatch, partial: bool) -> None:
        if isinstance(self._store, AlignedStore):
            self._store.append(start, rows)
        elif partial:
            self._store.put(start, rows)
        else:
            self._store.put(start, partial_batch(self._plan, pl.DataFrame(rows)))

    def _drop(self, until: int) -> None:
        slices = self._store.slices
        ends = self._plan.windows.last_window(slices) + self._plan.windows.size
        self._store.drop(slices[ends <= until].tolist())

    def _results(self, start: int, part: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        aggregation, keys = self._plan.aggregation, list(self._plan.keys)
        if isinstance(aggregation, UserFunction):
            yield from aggregation.results(part, keys, self._window(start), self._plan.schema)
            return
        groups = aggregation.partial(part) if self._plan.pattern is Pattern.AAR else part
        columns = [groups[key].to_arrow(compat_level=pl.CompatLevel.oldest()) for key in keys]
        yield assemble(self._window(start), [*columns, *aggregation.finish(groups)], groups.height, self._plan.schema)

    def _window(self, start: int) -> tuple[int, int]:
        return start, start + self._plan.windows.size

    def _count(self, **more: int) -> None:
        self.counters = replace(
            self.counters, **{name: getattr(self.counters, name) + value for name, value in more.items()}
        )


def assemble(window: tuple[int, int], columns: list[pa.Array], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """Result columns with their window before them, as one record batch of ``schema``."""
    bounds = [
        pa.array(np.full(rows, bound, np.int64)).cast(pa.timestamp("us")).cast(field.type)
        for bound, field in zip(window, schema.field(0).type, strict=True)
    ]
    struct = pa.StructArray.from_arrays(bounds, fields=list(schema.field(0).type))
    arrays = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip([struct, *columns], schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def partial_batch(plan: WindowPlan, rows: pl.DataFrame, by: tuple[str, ...] = ()) -> pa.RecordBatch:
    """Partial aggregates of rows as they are stored and shuffled, sorted by the columns ``by``."""
    assert isinstance(plan.aggregation, Aggregation)
    partials = plan.aggregation.partial(rows, by)
    if by:
        partials = partials.sort(by)
    return pa.concat_batches(partials.to_arrow(compat_level=pl.CompatLevel.oldest()).to_batches())


def runs(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The slices of a batch that is sorted by slice, with their rows (no copies)."""
    slices: Times = batch[SLICE].to_numpy()
    if not len(slices):
        return
    cuts = np.flatnonzero(slices[1:] != slices[:-1]) + 1
    for begin, end in zip([0, *cuts], [*cuts, len(slices)], strict=True):
        yield int(slices[begin]), batch.slice(begin, end - begin)
