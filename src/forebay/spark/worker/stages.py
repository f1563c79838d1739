"""The functions that Spark runs over record batches, in the order in which a row meets them: pack, operator, unpack.

The operator of a stream is in `forebay.spark.worker.operator`; here is the one of a batch DataFrame. Nothing is imported
here that imports polars: it takes its number of threads when it is imported, which `Shipped.load` sets first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from forebay.engine.plan import END_OF_TIME, NEVER, WindowPlan
from forebay.errors import UnsupportedConfiguration
from forebay.spark.worker import blobs, startup, task
from forebay.spark.worker.startup import Shipped
from forebay.spark.worker.vnodes import HOT_KEYS, PACKING
from forebay.state.layout import SPREAD, Layout, layout_id, result_names
from forebay.state.places import Place
from forebay.windows import TIME, FirstRows, SessionWindows

if TYPE_CHECKING:
    from pyspark import Accumulator

    from forebay.spark.worker.pack import Packed

ArrowMap = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

VNODE, PAYLOAD = "vnode", "payload"
"""The columns of what pack gives: a virtual node, and a blob for it."""


def packer(
    plan: Shipped, place: Place, layout: Layout, *, streaming: bool, reporter: Accumulator[Any] | None = None
) -> ArrowMap:
    """Pack for an operator over a stream, or over a batch DataFrame, which has no state that lasts.

    The ``reporter`` is told what each task has packed.
    """

    def pack_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stored, updating, hashed, spread = layout, False, False, SPREAD in layout
        if streaming:
            root = task.state_root(place)  # raises here, before any row is read, what is wrong with the query
            stored, updating = task.stored(layout, root), task.updating()
            hashed, spread = task.hashed(stored), task.spreads(stored)
        loaded = plan.load()
        from forebay.spark.worker.pack import Packed, pack

        vnodes = task.vnodes(stored, spread=spread)
        updating = updating or loaded.firing is not None
        fired_until = _fired_until(loaded, streaming=streaming)
        done = Packed()
        # The operator runs for all virtual nodes in every micro-batch, whether rows come or not. With one state partition
        # Spark may leave the shuffle out; then the task of a pack can have any number.
        if task.is_first() or task.state_partitions() == 1:
            yield pa.record_batch([pa.array(vnodes), pa.nulls(len(vnodes), pa.binary())], [VNODE, PAYLOAD])
        packed = pack(
            batches,
            loaded,
            vnodes,
            updating=updating,
            hashed=hashed,
            spread=spread,
            fired_until=fired_until,
            task=task.number(),
            packed=done,
        )
        rows = task.rows_of_batches()
        for vnode, blob in packed:
            beside = 0 if rows is None else blobs.ballast(blob.size, rows)
            column = blobs.column(blob, nulls=beside)
            yield pa.record_batch([pa.array(np.full(1 + beside, vnode, np.int32)), column], [VNODE, PAYLOAD])
        if reporter is not None and done.rows and (batch := task.batch()) is not None:
            _report(reporter, stored, batch, done)

    return pack_batches


def _fired_until(plan: WindowPlan, *, streaming: bool) -> int | None:
    """Up to which watermark (microseconds) windows have fired, or a later one; None if that is not known."""
    if not streaming:
        return NEVER
    if not isinstance(plan.windows, SessionWindows | FirstRows):
        return None  # nobody asks
    try:
        batch = task.batch()
        if batch is None:
            return None
        watermark = task.watermark(batch - 1)
    except UnsupportedConfiguration:  # the offset log cannot be read
        return None
    return NEVER if watermark is None else watermark * 1000


def _report(reporter: Accumulator[Any], layout: Layout, batch: int, done: Packed) -> None:
    """Tell the driver what a task has packed, as the work of a virtual node that there is not."""
    operator = next(iter(task.directories(layout)), layout_id(layout))
    told: dict[str, Any] = {"packedRows": done.rows, "packedOut": done.out, "combinedRows": done.combined}
    told |= {"hottestKeyRows": done.hottest, HOT_KEYS: dict(done.hot)}
    reporter.add({(task.query(), batch, operator, PACKING - task.number()): told})


def buffer(plan: Shipped) -> ArrowMap:
    """A buffer of rows within a task of a micro-batch, which has no state."""

    def buffered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loaded = plan.load()
        from forebay.engine.buffer import passing
        from forebay.spark.worker.pack import chunks, normalized

        yield from map(_by_place, passing((normalized(chunk, loaded) for chunk in chunks(batches)), loaded.aggregation))

    return buffered


def batch_operator(plan: Shipped, place: Place, output: str) -> ArrowMap:
    """The operator over all rows of a virtual node of a batch DataFrame: every window fires at the end."""

    def run_to_end(groups: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loaded = plan.load()
        from forebay.engine.open import open_instance
        from forebay.store.disk import UNSYNCED

        with (
            place.scratch() as directory,
            contextlib.closing(open_instance(loaded, directory, None, NEVER, disk=UNSYNCED)) as instance,
        ):
            packed = (blob.as_buffer() for group in groups for blob in group[PAYLOAD].drop_null())
            for batch, partial in blobs.read_all(packed):
                instance.ingest(batch, partial=partial)
            for blob in blobs.write_all(instance.fire(END_OF_TIME)):
                yield pa.record_batch([blobs.column(blob)], [output])

    run_to_end.__annotations__ = {"groups": Iterator[pa.RecordBatch], "return": Iterator[pa.RecordBatch]}
    return run_to_end


def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in blobs of results."""
    startup.spare_loaded()
    for batch in batches:
        for blob in batch.column(0):
            yield from map(_by_place, blobs.read(blob.as_buffer())[0])


def _by_place(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.rename_columns(result_names(batch.num_columns))


def only_late(plan: Shipped, names: list[str], column: str) -> ArrowMap:
    """The rows of a stream that come too late for a plan, as structs of their columns and by how much."""

    def filtered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batch = task.batch()
        fired_until = None if batch is None else task.watermark(batch - 1)
        if fired_until is None:
            return
        loaded = plan.load()
        from forebay.spark.worker.pack import ends

        for rows in (each.filter(each[TIME].is_valid()) for each in batches):
            if not rows.num_rows:  # an assigner of the user's is never asked about nothing
                continue
            by = fired_until * 1000 - ends(rows, loaded)
            if (by >= 0).any():
                late = rows.filter(pa.array(by >= 0))
                by_how_much = pa.array(by[by >= 0]).cast(pa.duration("us"))
                columns = [late[name] for name in result_names(len(names) - 1)]
                whole = pa.StructArray.from_arrays([*columns, by_how_much], names)
                yield pa.record_batch([whole], [column])

    return filtered
