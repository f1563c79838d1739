"""Pack: rows to blobs, on the map side of the shuffle.

Rows are assigned to slices of aligned windows, or to bounds of their own, partitioned by virtual node, and written as one
Arrow stream per virtual node, so that Spark shuffles a handful of blobs. Where aggregates have partial results and
combining pays (`forebay.spark.worker.combining`), a blob holds those instead.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay import arrow
from forebay.engine.assigning import assigned, placement
from forebay.engine.observer import ARRIVAL
from forebay.engine.plan import NO_TIME, WindowPlan
from forebay.engine.window_join import AWAITED, WindowJoin
from forebay.spark.worker.blobs import BLOB_BYTES, BlobWriter
from forebay.spark.worker.combining import combiner_of
from forebay.store.partitions import SLICE
from forebay.windows import (
    END,
    HIGH,
    LOW,
    START,
    TIME,
    AlignedWindows,
    CustomWindows,
    FirstRows,
    Intervals,
    Preceding,
    SessionWindows,
    SharedWindows,
    Times,
    bound_of,
)

CHUNK_ROWS, CHUNK_BYTES = 1 << 17, 16 << 20
"""A chunk is complete when it has so many rows or bytes."""

SAMPLE_ROWS = 1 << 12
"""The most frequent key of a chunk is looked for in about so many rows of it."""

HOT, HOT_ROWS = 0.1, 100
"""A key with such a share of a chunk's rows, and so many of them, is hot."""

KEY_LENGTH = 100
"""So many characters of a hot key are told."""

TASK_BITS = 20
"""So many bits of a row's number in order of arrival say which task it came to."""

_UNFINISHED_BYTES, _LEAST_BYTES = 64 << 20, 64 << 10
"""All unfinished blobs of a task together have about so many bytes at most, but each may have as many as the second."""

_MOST_CELLS = 1 << 62

Codes = npt.NDArray[np.integer]


def pack(
    batches: Iterator[pa.RecordBatch],
    plan: WindowPlan,
    vnodes: npt.NDArray[np.int32],
    *,
    updating: bool = False,
    hashed: bool = False,
    spread: bool = False,
    fired_until: int | None = None,
    task: int = 0,
    packed: Packed | None = None,
) -> Iterator[tuple[int, pa.Buffer]]:
    """Blobs of a task's rows for virtual nodes, each with the id of its own.

    At most a chunk of rows, one unfinished blob per virtual node, and what a combiner keeps are in memory. With ``hashed``
    Spark's hashes of keys come beside the rows, for state that was begun when keys were identified by those; with ``spread``
    windows are shared out in place of keys, of which there are none. Where accesses to state are captured, rows are not
    combined, and have their number in order of arrival: that within the task, then that of the ``task``.
    ``fired_until`` is as in `combiner_of`; what is done is counted in ``packed``.
    """
    size = max(_LEAST_BYTES, min(BLOB_BYTES, _UNFINISHED_BYTES // max(1, len(vnodes))))
    writers = [BlobWriter(size) for _ in vnodes]
    done = Packed() if packed is None else packed
    combiner = combiner_of(plan, updating=updating, hashed=hashed, fired_until=fired_until)
    arrived = chunks(batches, timeless=_counts_without_time(plan))
    for chunk in arrived if plan.capture is None else _numbered(arrived, task):
        cells = Cells.of(chunk, plan, len(vnodes), spread=spread)
        rows = normalized(chunk, plan)
        keys = rows.select(plan.placed_by)
        placed = updating or not isinstance(plan.windows, AlignedWindows)
        beside = _placed(chunk, plan, hashed=hashed) if placed else {}
        if plan.capture is not None:
            beside[ARRIVAL] = chunk[ARRIVAL]
        for name, values in beside.items():
            rows = rows.append_column(name, values)
        codes = cells.codes
        if combiner is not None:
            rows, codes = combiner.combined(rows, codes, cells.owners)
        batch, codes = _arranged(rows, codes)
        if isinstance(plan.windows, AlignedWindows):
            batch = batch.append_column(SLICE, pa.array(cells.slices(codes)))
        cuts = np.searchsorted(codes, np.arange(len(vnodes) + 1) * cells.span)
        for position, blob in _complete(writers, batch, cuts, partial=combiner is not None):
            yield int(vnodes[position]), blob
        done.count(cells.owners, keys, batch.num_rows, combined=combiner is not None)
        if combiner is not None and not combiner.pays(chunk.num_rows, batch.num_rows):
            combiner = None
    for vnode, writer in zip(vnodes, writers, strict=True):
        for blob in writer.finish():
            yield int(vnode), blob


def _arranged(rows: pa.RecordBatch, codes: Codes) -> tuple[pa.RecordBatch, Codes]:
    """Rows in order of their cells, and those."""
    if np.all(codes[1:] >= codes[:-1]):
        return rows, codes
    order = np.argsort(codes, kind="stable")  # a radix sort: codes are 16 bits wide as a rule
    return rows.take(pa.array(order)), codes[order]


def _complete(
    writers: Sequence[BlobWriter], batch: pa.RecordBatch, cuts: npt.NDArray[np.integer], *, partial: bool
) -> Iterator[tuple[int, pa.Buffer]]:
    """Write each part of a batch, between two cuts, with a writer of its own; the blobs that are complete, and whose."""
    for position in np.flatnonzero(cuts[1:] > cuts[:-1]).tolist():
        begin, end = int(cuts[position]), int(cuts[position + 1])
        for blob in writers[position].write(batch.slice(begin, end - begin), partial=partial):
            yield position, blob


@dataclass
class Packed:
    """What a task has packed.

    Attributes
    ----------
    rows, out : int
        Rows that came, and what went on: rows, or partial aggregates.
    combined : int
        Rows of which partial aggregates were made.
    hottest : int
        About how many rows were of the most frequent key of their chunk; of the most frequent window where those are spread.
    hot : Counter of str
        About how many rows were of each key that was hot in a chunk, and that can be shown.
    """

    rows: int = 0
    out: int = 0
    combined: int = 0
    hottest: int = 0
    hot: Counter[str] = field(default_factory=Counter)

    def count(self, owners: Times, keys: pa.RecordBatch, out: int, *, combined: bool) -> None:
        """Count a chunk with rows of these keys. The most frequent one is looked for in a sample."""
        rows = len(owners)
        self.rows += rows
        self.out += out
        self.combined += rows if combined else 0
        step = max(1, rows // SAMPLE_ROWS)
        begins = np.arange(0, rows - step + 1, step)
        # Not every `step`th row: all of these may be of one key, or none of them.
        sampled = begins + np.random.default_rng(rows).integers(0, step, len(begins))
        _, firsts, counts = np.unique(owners[sampled], return_index=True, return_counts=True)
        most = int(counts.argmax())
        hottest = round(int(counts[most]) / len(sampled) * rows)
        self.hottest += hottest
        if keys.num_columns and hottest >= max(HOT_ROWS, HOT * rows):
            with contextlib.suppress(Exception):  # Python has no year 12000, and no texts that are not UTF-8
                key = tuple(column[sampled[firsts[most]]].as_py() for column in keys.columns)
                self.hot[str(key if len(key) > 1 else key[0])[:KEY_LENGTH]] += hottest


class Cells:
    """The cell of a row is its virtual node and slice as one integer, ordered by both, so that one sort serves both.

    Attributes
    ----------
    codes : array
        The cells: the virtual node's position times ``span``, plus the slice's number.
    span : int
        Numbers of slices are below it.
    owners : array
        What decides the virtual node of each row: the hash of its key, or the number of its window.
    """

    def __init__(self, codes: Codes, span: int, slices: Callable[[Times], Times], owners: Times) -> None:
        self.codes, self.span, self._slices, self.owners = codes, span, slices, owners

    @classmethod
    def of(cls, chunk: pa.RecordBatch, plan: WindowPlan, vnodes: int, *, spread: bool = False) -> Cells:
        if isinstance(plan.windows, AlignedWindows):
            length = plan.windows.slice_length
            slices = plan.windows.slice_starts(chunk[TIME].cast(pa.int64()).to_numpy())
            first, last = int(slices.min()), int(slices.max())
        else:  # rows have no slices: all are in one
            length, first, last, slices = 1, 0, 0, np.zeros(1, np.int64)
        owners = slices // length if spread else chunk[HIGH].to_numpy()
        vnode = (owners.view(np.uint64) % np.uint64(vnodes)).astype(np.int64)
        span = (last - first) // length + 1
        if vnodes * span <= _MOST_CELLS and last - first < 1 << 63:
            numbers, starts = (slices - first) // length, lambda numbers: numbers * length + first
        else:  # rows that are far apart: only slices that there are get a number
            there, numbers = np.unique(slices, return_inverse=True)
            span, starts = len(there), there.__getitem__
        codes = vnode * span + numbers if span > 1 else vnode
        return cls(codes.astype(np.uint16) if vnodes * span <= 1 << 16 else codes, span, starts, owners)

    def slices(self, codes: npt.NDArray[np.integer]) -> Times:
        """Starts of the slices of cells."""
        return self._slices(codes.astype(np.int64) % self.span)


def chunks(batches: Iterator[pa.RecordBatch], *, timeless: bool = False) -> Iterator[pa.RecordBatch]:
    """Batches put together to chunks, with the rows of `_with_times`."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if TIME in batch.schema.names:
            batch = _with_times(batch, timeless=timeless)
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield arrow.joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield arrow.joined(waiting)


def _counts_without_time(plan: WindowPlan) -> bool:
    """Whether an operator may have rows without a time among its results."""
    if isinstance(plan.windows, Intervals):
        assert isinstance(plan.aggregation, WindowJoin)
        return plan.aggregation.how in AWAITED
    return isinstance(plan.windows, FirstRows)


def _with_times(batch: pa.RecordBatch, *, timeless: bool) -> pa.RecordBatch:
    """The rows that have a time, and an end if rows have one; with ``timeless`` those without a time, as `NO_TIME`."""
    bounds = [name for name in (TIME, END) if name in batch.schema.names]
    if not any(batch[name].null_count for name in bounds):
        return batch
    kept = functools.reduce(pc.and_, (batch[name].is_valid() for name in bounds))
    if not timeless:
        return batch.filter(kept)
    batch = batch.filter(pc.or_(kept, batch[TIME].is_null()))
    for name in bounds:
        column = batch[name]
        batch = batch.set_column(batch.schema.names.index(name), name, column.fill_null(pa.scalar(NO_TIME, column.type)))
    return batch


def _numbered(chunks: Iterator[pa.RecordBatch], task: int) -> Iterator[pa.RecordBatch]:
    """The chunks of a task with the numbers of their rows in order of arrival, in which the tasks take turns."""
    arrived = 0
    for chunk in chunks:
        numbers = np.arange(arrived, arrived + chunk.num_rows) << TASK_BITS | task & (1 << TASK_BITS) - 1
        arrived += chunk.num_rows
        yield chunk.append_column(ARRIVAL, pa.array(numbers))


def normalized(batch: pa.RecordBatch, plan: WindowPlan) -> pa.RecordBatch:
    """The columns with the types of the plan, whatever the session's time zone and the source's nullability are.

    Float keys have one zero and one NaN, as Spark groups and shows them.
    """
    columns = []
    for wanted in plan.packed:
        column = batch[wanted.name]
        if wanted.name in plan.keys and pa.types.is_floating(wanted.type):
            mask = np.asarray(column.is_null())
            values = column.to_numpy(zero_copy_only=False) + wanted.type.to_pandas_dtype()(0.0)  # -0.0 + 0.0 is 0.0
            values[np.isnan(values)] = np.nan
            column = pa.array(values, wanted.type, mask=mask)
        columns.append(column if column.type.equals(wanted.type) else column.cast(wanted.type))
    return pa.RecordBatch.from_arrays(columns, schema=plan.packed)


def _placed(chunk: pa.RecordBatch, plan: WindowPlan, *, hashed: bool) -> dict[str, pa.Array]:
    """What says which key a row is of, beside what is packed, and which window of its key it is in; by column name."""
    columns = {name: chunk[name] for name in plan.identity if name not in plan.packed.names}
    if hashed:
        columns |= {HIGH: chunk[HIGH], LOW: chunk[LOW] if LOW in chunk.schema.names else chunk[HIGH]}
    windows = plan.windows
    times = chunk[TIME].cast(pa.int64())
    if isinstance(windows, SharedWindows):
        columns[TIME] = times
        for position, member in enumerate(plan.members):
            if isinstance(member.plan.windows, SessionWindows):
                end = bound_of(END, position)
                columns[end] = chunk[end].cast(pa.int64())
            elif isinstance(member.plan.windows, CustomWindows):
                bounds = placement(member.plan.windows, times.to_numpy())
                columns |= {bound_of(name, position): values for name, values in bounds.items()}
    elif isinstance(windows, CustomWindows):
        columns |= placement(windows, times.to_numpy())
        if windows.shared and hashed:
            nothing = pa.array(np.zeros(len(times), np.int64))
            columns |= {HIGH: nothing, LOW: nothing}
    elif isinstance(windows, Preceding):
        columns |= {START: times}
    elif END in chunk.schema.names:
        columns |= {START: times, END: chunk[END].cast(pa.int64())}
    return columns


def ends(batch: pa.RecordBatch, plan: WindowPlan) -> Times:
    """When the last window of each row takes no more rows; the row's time where there are no windows of a user's."""
    windows = plan.windows
    times: Times = batch[TIME].cast(pa.int64()).to_numpy()
    if isinstance(windows, AlignedWindows):
        times = windows.last_window(windows.slice_starts(times)) + windows.size
    elif isinstance(windows, SessionWindows):
        times = batch[END].cast(pa.int64()).to_numpy()
    elif isinstance(windows, CustomWindows):
        times = assigned(windows, times)[END].to_numpy()
    lateness = plan.firing.allowed_lateness if plan.firing else 0
    return np.minimum(times, np.iinfo(np.int64).max - lateness) + lateness
