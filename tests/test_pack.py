"""Pack: every row goes to the virtual node of its key, with its slice."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import BoundAggregate
from forebay.engine.plan import NEVER, WindowPlan
from forebay.spark.worker import blobs
from forebay.spark.worker import pack as packing
from forebay.spark.worker.pack import CHUNK_ROWS, Packed, pack
from forebay.spark.worker.vnodes import vnode_ids
from forebay.store.partitions import SLICE
from forebay.windows import END, HIGH, LOW, START, TIME, AlignedWindows, GlobalWindow, SessionWindows

COUNT = BoundAggregate("n", "count", ("a0",), (pa.int64(),), pa.int64())
TOTAL = BoundAggregate("total", "sum", ("a0",), (pa.int64(),), pa.int64(), {"ansi": True})
YEAR_9999 = 253_370_764_800_000_000
"""Microseconds."""


@pytest.mark.parametrize("length", [1, 7, 3_600_000_000])
@pytest.mark.parametrize("last", [30, YEAR_9999, 2**63 - 1])
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


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("partitions", [3, 4])
def test_virtual_nodes_take_turns_at_windows_without_keys(partitions, offset):
    times, same = np.array([-11, 0, 9, 10, 25, 31, 49], np.int64), np.full(7, 42)
    chunk = pa.record_batch({TIME: pa.array(times, pa.timestamp("us")), HIGH: same, "a0": np.arange(7)})
    packed = pa.schema([("a0", pa.int64())])
    plan = WindowPlan(AlignedWindows(10, 10, offset), packed, (), Aggregation((), (TOTAL,)), Pattern.AAR, packed)
    vnodes = vnode_ids(partitions, 1)
    found = {
        row: (vnode, start)
        for vnode, blob in pack(iter([chunk]), plan, vnodes, spread=True)
        for batch in blobs.read(blob)[0]
        for row, start in zip(batch["a0"].to_pylist(), batch[SLICE].to_pylist(), strict=True)
    }
    windows = (times - offset) // 10
    nodes = vnodes[windows.view(np.uint64) % np.uint64(partitions)]
    assert found == {row: (nodes[row], windows[row] * 10 + offset) for row in range(7)}


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
    packs = {tuple((vnode, bytes(blob)) for vnode, blob in pack(iter([chunk]), plan, vnode_ids(4, 1))) for _ in range(5)}
    assert len(packs) == 1


def session_plan(*aggregates):
    packed = pa.schema([("k0", pa.int64()), ("a0", pa.int64())])
    return WindowPlan(SessionWindows(), packed, ("k0",), Aggregation(("k0",), aggregates), Pattern.RMW, packed)


def sessions_of(rows):
    """Rows of keys, times and values with the bounds of their own sessions, as the projection gives them."""
    key, start, value = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    times = pa.array(start, pa.timestamp("us", "UTC"))
    ends = pa.array(start + GAP, pa.timestamp("us", "UTC"))
    return pa.record_batch({TIME: times, HIGH: key * 7919, LOW: -key, END: ends, "k0": key, "a0": value})


GAP = 10


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 120), st.integers(-5, 5)), min_size=1, max_size=80),
    st.sampled_from([NEVER, 30, 60, 1000]),
)
def test_rows_of_sessions_that_overlap_are_combined_and_those_that_may_be_late_are_not(rows, fired_until):
    packs = pack(iter([sessions_of(rows)]), session_plan(TOTAL, COUNT), vnode_ids(2, 1), fired_until=fired_until)
    found = [row for _, blob in packs for batch in blobs.read(blob)[0] for row in batch.to_pylist()]
    expected = []
    for key in {key for key, *_ in rows}:
        open_ = sorted((time, value) for k, time, value in rows if k == key and time + GAP > fired_until)
        expected += [(key, time, time + GAP, 1, value) for k, time, value in rows if k == key and time + GAP <= fired_until]
        merged = []
        for time, value in open_:
            if merged and time < merged[-1][2]:
                _, start, _, n, total = merged.pop()
                merged.append((key, start, time + GAP, n + 1, total + value))
            else:
                merged.append((key, time, time + GAP, 1, value))
        expected += merged
    assert sorted((row["k0"], row[START], row[END], row["rows"], int(row["a0.sum"])) for row in found) == sorted(expected)


@pytest.mark.parametrize("wrong", ["first", "hashed", "unknown"])
def test_sessions_whose_rows_must_not_be_combined(wrong):
    rows = [(1, 5, 1)] * 20
    first = BoundAggregate("f", "first", ("a0",), (pa.int64(),), pa.int64(), {"ignorenulls": False})
    plan = session_plan(first if wrong == "first" else TOTAL)
    done = Packed()
    until = None if wrong == "unknown" else NEVER
    packs = pack(iter([sessions_of(rows)]), plan, vnode_ids(1, 1), fired_until=until, hashed=wrong == "hashed", packed=done)
    assert [blobs.read(blob)[1] for _, blob in packs] == [False]
    assert done == Packed(20, 20, 0, hottest=20)


def test_a_task_stops_combining_when_it_does_not_pay():
    rows = {TIME: pa.array(np.zeros(200_000, np.int64), pa.timestamp("us")), HIGH: np.arange(200_000)}
    rows |= {LOW: rows[HIGH], "k0": rows[HIGH], "a0": rows[HIGH]}
    packed = pa.schema([("k0", pa.int64()), ("a0", pa.int64())])
    plan = WindowPlan(GlobalWindow(0), packed, ("k0",), Aggregation(("k0",), (TOTAL,)), Pattern.RMW, packed)
    done = Packed()
    chunks = pa.table(rows).to_batches(CHUNK_ROWS)
    assert {blobs.read(blob)[1] for _, blob in pack(iter(chunks), plan, vnode_ids(1, 1), packed=done)} == {False, True}
    assert done == Packed(200_000, 200_000, CHUNK_ROWS, hottest=32 + 16)
    done = Packed()
    rows["k0"] = rows[HIGH] = rows[LOW] = np.arange(200_000) % 5
    chunks = pa.table(rows).to_batches(CHUNK_ROWS)
    assert {blobs.read(blob)[1] for _, blob in pack(iter(chunks), plan, vnode_ids(1, 1), packed=done)} == {True}
    assert done == Packed(200_000, 10, 200_000, done.hottest, done.hot)
    assert set(done.hot) <= set("01234")
    assert sum(done.hot.values()) == done.hottest
    assert done.hottest == pytest.approx(40_000, rel=0.05)
    done = Packed()
    rows["k0"] = rows[HIGH] = rows[LOW] = np.where(np.arange(200_000) % 4, 7, np.arange(200_000))  # a key comes regularly
    list(pack(iter(pa.table(rows).to_batches(CHUNK_ROWS)), plan, vnode_ids(1, 1), packed=done))
    assert done.hottest == pytest.approx(150_000, rel=0.05)
    assert done.hot == {"7": done.hottest}


@pytest.mark.parametrize("partitions", [4, 64])
def test_unfinished_blobs_of_many_virtual_nodes_are_small(partitions, monkeypatch):
    """So that all of them together are bounded: each has less the more there are."""
    monkeypatch.setattr(packing, "_UNFINISHED_BYTES", 4 * blobs.BLOB_BYTES)
    rows, chunks_of_rows = 8 * CHUNK_ROWS, 8
    numbers = np.arange(rows)
    chunk = pa.table(
        {TIME: pa.array(numbers, pa.timestamp("us")), HIGH: numbers, LOW: numbers, "k0": numbers, "a0": numbers}
    )
    packed = pa.schema([("k0", pa.int64()), ("a0", pa.int64())])
    median = BoundAggregate("m", "median", ("a0",), (pa.int64(),), pa.float64())
    plan = WindowPlan(AlignedWindows(10**9, 10**9), packed, ("k0",), Aggregation(("k0",), (median,)), Pattern.AAR, packed)
    made = [len(blob) for _, blob in pack(iter(chunk.to_batches(CHUNK_ROWS)), plan, vnode_ids(partitions, 1)) if blob]
    of_a_chunk = 24 * CHUNK_ROWS // partitions
    writes = -(-(4 * blobs.BLOB_BYTES // partitions) // of_a_chunk)  # until a blob is full
    assert len(made) == partitions * -(-chunks_of_rows // writes)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (pa.array([b"\x00\xff"] * 200), "b'\\x00\\xff'"),
        (pa.nulls(200, pa.string()), "None"),
        (pa.array(["x" * 1000] * 200), "x" * 100),
        (pa.array([{"a": 1}] * 200), "{'a': 1}"),
        (pa.array([10**18] * 200, pa.int64()).cast(pa.timestamp("us", "UTC")), None),  # Python has no such year
        (pa.array([b"\xffa"] * 200).cast(pa.string(), safe=False), None),  # is not UTF-8
    ],
)
def test_a_hot_key_of_any_type(keys, told):
    done = Packed()
    done.count(np.zeros(200, np.int64), pa.record_batch([keys], ["k0"]), 200, combined=False)
    assert (done.hottest, dict(done.hot)) == (200, {} if told is None else {told: 200})


@pytest.mark.parametrize(("windows", "goes_on"), [(GlobalWindow(0), True), (SessionWindows(), False)])
def test_sessions_have_to_leave_fewer_rows_than_cells(windows, goes_on):
    """One key has two rows and the next has one, so combining leaves two thirds of them."""
    keys = np.arange(2 * CHUNK_ROWS) * 2 // 3
    times = pa.array(np.zeros(len(keys), np.int64), pa.timestamp("us", "UTC"))
    ends = pa.array(np.full(len(keys), GAP), pa.timestamp("us", "UTC"))
    rows = pa.table({TIME: times, HIGH: keys, LOW: keys, END: ends, "k0": keys, "a0": keys})
    plan, done = replace(session_plan(TOTAL), windows=windows), Packed()
    until = NEVER if isinstance(windows, SessionWindows) else None
    list(pack(iter(rows.to_batches(CHUNK_ROWS)), plan, vnode_ids(1, 1), fired_until=until, packed=done))
    assert done.combined == (2 if goes_on else 1) * CHUNK_ROWS


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.list_(pa.float64()), pa.struct([("x", pa.binary())])])
def test_keys_with_one_hash_are_not_combined(kind):
    """Keys may be chosen such that Spark's hashes of them are equal."""
    values = {
        pa.int64(): [1, 2, None],
        pa.string(): ["a", "b", None],
        pa.list_(pa.float64()): [[1.0], [None], None],
        pa.struct([("x", pa.binary())]): [{"x": b"a"}, {"x": None}, None],
    }[kind]
    keys, starts = pa.array([values[row % 3] for row in range(90)], kind), np.arange(90)
    rows = {TIME: pa.array(starts, pa.timestamp("us")), END: pa.array(starts + GAP, pa.timestamp("us"))}
    chunk = pa.record_batch({**rows, HIGH: np.full(90, 5), "k0": keys, "a0": starts})
    packed = pa.schema([("k0", kind), ("a0", pa.int64())])
    plan = replace(session_plan(COUNT), packed=packed)
    found = [row for _, blob in pack(iter([chunk]), plan, vnode_ids(2, 1), fired_until=NEVER) for row in rows_of(blob)]
    of_first = [row for row in found if row["k0"] == values[0]]
    assert [(row[START], row[END], row["rows"]) for row in of_first] == [(0, 87 + GAP, 30)]
    assert sum(row["rows"] for row in found) == 90
    assert {str(row["k0"]) for row in found} == set(map(str, values))
    assert all(row[END] - row[START] == GAP for row in found if row["k0"] != values[0])


def test_sessions_without_keys_are_combined():
    starts = np.array([0, 40, 5, 3, 44])
    rows = {TIME: pa.array(starts, pa.timestamp("us")), END: pa.array(starts + GAP, pa.timestamp("us"))}
    chunk = pa.record_batch({**rows, HIGH: np.zeros(5, np.int64), "a0": starts})
    plan = WindowPlan(
        SessionWindows(), pa.schema([("a0", pa.int64())]), (), Aggregation((), (COUNT,)), Pattern.RMW, chunk.schema
    )
    found = [row for _, blob in pack(iter([chunk]), plan, vnode_ids(2, 1), fired_until=NEVER) for row in rows_of(blob)]
    assert sorted((row[START], row[END], row["rows"]) for row in found) == [(0, 15, 3), (40, 54, 2)]


def rows_of(blob):
    return [row for batch in blobs.read(blob)[0] for row in batch.to_pylist()]
