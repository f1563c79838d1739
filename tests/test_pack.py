"""Pack: every row goes to the virtual node of its key, with its slice."""

import numpy as np
import pyarrow as pa
import pytest

from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import BoundAggregate
from forebay.engine.plan import WindowPlan
from forebay.patterns import Pattern
from forebay.spark.worker import blobs
from forebay.spark.worker.pack import pack
from forebay.spark.worker.vnodes import vnode_ids
from forebay.store.aligned import SLICE
from forebay.windows import HIGH, LOW, TIME, AlignedWindows

TOTAL = BoundAggregate("total", "sum", ("a0",), (pa.int64(),), pa.int64(), {"ansi": True})
YEAR_9999 = 253_370_764_800_000_000
"""Microseconds."""


@pytest.mark.parametrize("length", [1, 7, 3_600_000_000])
@pytest.mark.parametrize("last", [30, YEAR_9999])
@pytest.mark.parametrize(("partitions", "instances"), [(1, 1), (20, 2), (200, 2)])
def test_rows_that_are_far_apart(length, last, partitions, instances):
    windows = AlignedWindows(length, length)
    times = np.array([0, 5, 17, 17, -62_135_596_800_000_000 if last == YEAR_9999 else -3, last, last - 1], np.int64)
    keys = np.array([3, -9, 3, 2**63 - 1, 77, -(2**63), 3], np.int64)
    chunk = pa.record_batch({TIME: pa.array(times, pa.timestamp("us", "UTC")), HIGH: keys, "k0": keys, "a0": np.arange(7)})
    packed = pa.schema([("k0", pa.int64()), ("a0", pa.int64())])
    plan = WindowPlan(windows, packed, ("k0",), Aggregation(("k0",), (TOTAL,)), Pattern.AAR, packed)
    vnodes = vnode_ids(partitions, instances)
    found = {}
    for vnode, blob in pack(iter([chunk]), plan, vnodes):
        for batch in blobs.read(blob)[0] if blob else ():
            slices = batch[SLICE].to_numpy()
            assert (np.diff(slices) >= 0).all()
            for row, start in zip(batch["a0"].to_pylist(), slices.tolist(), strict=True):
                found[row] = vnode, start
    which = (keys.view(np.uint64) % np.uint64(len(vnodes))).astype(int)
    assert found == {row: (vnodes[which[row]], times[row] // length * length) for row in range(7)}


@pytest.mark.parametrize("hashed", [False, True])
def test_hashes_of_spark_come_along_only_for_state_that_has_them(hashed):
    """Partial aggregates of update mode, whose keys tell them apart otherwise."""
    keys = np.arange(1000) % 10
    chunk = pa.record_batch(
        {TIME: pa.array(np.zeros(1000, np.int64), pa.timestamp("us")), HIGH: keys * 7, LOW: -keys, "k0": keys, "a0": keys}
    )
    packed = pa.schema([("k0", pa.int64()), ("a0", pa.int64())])
    plan = WindowPlan(AlignedWindows(10, 5), packed, ("k0",), Aggregation(("k0",), (TOTAL,)), Pattern.RMW, packed)
    packs = [blob for _, blob in pack(iter([chunk]), plan, vnode_ids(1, 1), updating=True, hashed=hashed) if blob]
    batches, partial = blobs.read(packs[0])
    (batch,) = batches
    assert (partial, batch.num_rows) == (True, 10)
    if hashed:
        assert batch[HIGH].to_pylist() == [7 * key for key in batch["k0"].to_pylist()]
        assert batch[LOW].to_pylist() == [-key for key in batch["k0"].to_pylist()]
    else:
        assert not {HIGH, LOW} & {*batch.schema.names}


@pytest.mark.parametrize("function", ["sum", "collect_set"])
def test_a_task_that_runs_again_packs_the_same_bytes(function):
    """Spark compares checksums of what tasks shuffle, and ends a query whose stage gives something else the second time."""
    rows = 20_000
    keys = np.random.default_rng(1).integers(0, 5000, rows)
    values = {"sum": pa.int64(), "collect_set": pa.list_(pa.int64())}
    aggregate = BoundAggregate("found", function, ("a0",), (pa.int64(),), values[function], {"ansi": True})
    chunk = pa.record_batch({TIME: pa.array(np.arange(rows), pa.timestamp("us")), HIGH: keys, "k0": keys, "a0": keys % 7})
    packed = pa.schema([("k0", pa.int64()), ("a0", pa.int64())])
    plan = WindowPlan(AlignedWindows(1000, 500), packed, ("k0",), Aggregation(("k0",), (aggregate,)), Pattern.RMW, packed)
    packs = {tuple(pack(iter([chunk]), plan, vnode_ids(4, 1))) for _ in range(5)}
    assert len(packs) == 1
