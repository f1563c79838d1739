"""A store instance over micro-batches, opened and closed for each, against a plain model."""

import random
from collections import defaultdict
from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import BoundAggregate
from forebay.engine.aligned import AlignedInstance, partial_batch
from forebay.engine.instance import Opening
from forebay.engine.plan import NEVER, WindowPlan
from forebay.store.options import Options
from forebay.store.partitions import SLICE
from forebay.windows import AlignedWindows

WINDOW = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
COUNT = BoundAggregate("n", "count", ("a0",), (pa.int64(),), pa.int64())
TOTAL = BoundAggregate("total", "sum", ("a0",), (pa.int64(),), pa.int64(), {"ansi": True})
MEDIAN = BoundAggregate("median", "median", ("a0",), (pa.int64(),), pa.float64())


def plan(windows, pattern):
    aggregates = (COUNT, TOTAL) if pattern is Pattern.RMW else (COUNT, MEDIAN)
    schema = pa.schema([("window", WINDOW), ("k", pa.string()), *((a.label, a.result) for a in aggregates)])
    packed = pa.schema([("k0", pa.string()), ("a0", pa.int64())])
    return WindowPlan(windows, packed, ("k0",), Aggregation(("k0",), aggregates), pattern, schema, Options(1 << 20))


def expected(pattern, values):
    return (len(values), sum(values) if pattern is Pattern.RMW else float(np.median(values)))


def packed(windows, rows):
    """Rows (time, key, value) as pack hands them over: by slice, without their time."""
    times = np.array([time for time, _, _ in rows], dtype=np.int64)
    slices = windows.slice_starts(times)
    order = np.argsort(slices, kind="stable")
    batch = pa.record_batch({"k0": pa.array([k for _, k, _ in rows]), "a0": pa.array([v for _, _, v in rows], pa.int64())})
    return batch.append_column(SLICE, pa.array(slices)).take(pa.array(order))


class Model:
    """Windows by the definition: every row in every window that contains it, unless that window has fired."""

    def __init__(self, windows):
        self.windows, self.open, self.fired_until = windows, defaultdict(list), NEVER
        self.late = self.partly = 0

    def ingest(self, rows):
        for time, key, value in rows:
            slices = self.windows.slice_starts(np.array([time]))
            first, last = (int(bound(slices)[0]) for bound in (self.windows.first_window, self.windows.last_window))
            starts = range(first, last + 1, self.windows.slide)
            kept = [s for s in starts if s + self.windows.size > self.fired_until]
            self.late += not kept
            self.partly += 0 < len(kept) < len(starts)
            for start in kept:
                self.open[start, key].append(value)

    def fire(self, watermark):
        due = {at: values for at, values in self.open.items() if at[0] + self.windows.size <= watermark}
        for at in due:
            del self.open[at]
        self.fired_until = watermark
        return due


@pytest.mark.parametrize("pattern", [Pattern.AAR, Pattern.RMW])
@pytest.mark.parametrize(
    "windows",
    [AlignedWindows(100, 100), AlignedWindows(100, 20), AlignedWindows(100, 30, 7)],
    ids=["tumbling", "sliding", "sliding with a remainder and an offset"],
)
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_model(tmp_path, pattern, windows, seed):
    chance = random.Random(seed)
    job, model = plan(windows, pattern), Model(windows)
    version, fired_until, watermark = None, NEVER, -500
    for batch in range(40):
        center = -400 + batch * 25
        rows = [
            (center + chance.randrange(-160, 60), f"user {chance.randrange(8)}", chance.randrange(50))
            for _ in range(chance.choice([0, 1, 30, 30]))
        ]
        instance = AlignedInstance(job, Opening(tmp_path, version, fired_until))
        model.ingest(rows)
        if rows:
            partial = pattern is Pattern.RMW and chance.random() < 0.5
            arrived = packed(windows, rows)
            instance.ingest(partial_batch(job, pl.DataFrame(arrived)) if partial else arrived, partial=partial)
        watermark = max(watermark, center - 100)
        found = {
            (start, row["k"]): tuple(row.values())[2:]
            for result in instance.fire(watermark)
            for start, row in zip(_starts(result), result.to_pylist(), strict=True)
        }
        assert found == {at: expected(pattern, values) for at, values in model.fire(watermark).items()}
        fired_until = watermark
        version = instance.commit()
        instance.close()
        assert (instance.counters.rows_late, instance.counters.rows_partly_late) == (model.late, model.partly)


def _starts(result):
    return result["window"].field("start").cast(pa.int64()).to_pylist()


@pytest.mark.parametrize("pattern", [Pattern.AAR, Pattern.RMW])
def test_no_row_data_is_left_when_all_windows_have_fired(tmp_path, pattern):
    windows = AlignedWindows(100, 50)
    job = plan(windows, pattern)
    version = None
    for center in (0, 60):
        instance = AlignedInstance(job, Opening(tmp_path, version))
        instance.ingest(packed(windows, [(center + i, f"user {i % 3}", i) for i in range(40)]))
        version = instance.commit()
        instance.close()
    assert list(tmp_path.glob("*.arrow"))
    instance = AlignedInstance(job, Opening(tmp_path, version))
    assert sum(batch.num_rows for batch in instance.fire(1000)) > 0
    version = instance.commit()
    instance.close()
    instance = AlignedInstance(job, Opening(tmp_path, version, 1000))  # the next batch, in which nothing happens
    version = instance.commit()
    assert not list(tmp_path.glob("*.arrow"))
    settled = AlignedInstance(job, Opening(tmp_path, version, 1000))
    assert settled.commit() == version


def test_a_batch_without_change_makes_no_version(tmp_path):
    instance = AlignedInstance(plan(AlignedWindows(10, 10), Pattern.AAR), Opening(tmp_path / "0", None))
    assert list(instance.fire(1000)) == []
    assert instance.commit() is None
    assert not (tmp_path / "0").exists()


def test_a_large_window_fires_within_its_memory(tmp_path):
    windows = AlignedWindows(1_000_000, 1_000_000)
    job = replace(plan(windows, Pattern.AAR), options=Options(1 << 20))
    instance = AlignedInstance(job, Opening(tmp_path, None))
    for part in range(10):
        instance.ingest(packed(windows, [(i, f"user {(i * 31 + part) % 5000}", i) for i in range(10_000)]))
    results = list(instance.fire(1_000_000))
    assert len(results) > 1
    assert sum(result.num_rows for result in results) == 5000
    assert sum(n for result in results for n in result["n"].to_pylist()) == 100_000


def test_catching_up_looks_at_each_slice_once(tmp_path, monkeypatch):
    monkeypatch.setattr("forebay.engine.aligned._TOGETHER_BYTES", 1)
    windows = AlignedWindows(10, 10)
    instance, dropped = AlignedInstance(plan(windows, Pattern.AAR), Opening(tmp_path, None)), []
    instance.ingest(packed(windows, [(i, f"user {i % 3}", i) for i in range(3000)]))
    drop = instance._store.drop
    monkeypatch.setattr(instance._store, "drop", lambda slices: (dropped.extend(slices), drop(slices)))
    assert sum(result.num_rows for result in instance.fire(2990)) == 299 * 3
    assert dropped == list(range(0, 2990, 10))


def test_first_and_last_of_sliding_count_windows(tmp_path):
    """Partial aggregates of a key's slices stay in the order of its rows, through flushes and restarts."""
    from forebay.engine.counts import CountInstance
    from forebay.windows import HIGH, LOW, CountWindows

    first = BoundAggregate("first", "first", ("a0",), (pa.int64(),), pa.int64(), {"ignorenulls": False})
    last = BoundAggregate("last", "last", ("a0",), (pa.int64(),), pa.int64(), {"ignorenulls": False})
    numbers = pa.struct([("start", pa.int64()), ("end", pa.int64())])
    schema = pa.schema([("count_window", numbers), ("k", pa.int64()), ("first", pa.int64()), ("last", pa.int64())])
    packed = pa.schema([("k0", pa.int64()), ("a0", pa.int64())])
    counting = WindowPlan(
        CountWindows(7, 2), packed, ("k0",), Aggregation(("k0",), (first, last)), Pattern.RMW, schema, Options(1 << 20)
    )
    chance, version, seen, found = random.Random(2), None, defaultdict(list), {}
    for batch in range(40):
        keys = [chance.randrange(9) for _ in range(30)]
        rows = list(range(batch * 30, batch * 30 + 30))
        for key, row in zip(keys, rows, strict=True):
            seen[key].append(row)
        instance = CountInstance(counting, Opening(tmp_path / "s", version))
        columns = {"k0": keys, "a0": rows, HIGH: keys, LOW: keys}
        instance.ingest(pa.record_batch({name: pa.array(column, pa.int64()) for name, column in columns.items()}))
        for result in instance.fire(0):
            for row in result.to_pylist():
                found[row["k"], row["count_window"]["start"]] = (row["first"], row["last"])
        version = instance.commit()
        instance.close()
    expected = {
        (key, start): (rows[start], rows[start + 6]) for key, rows in seen.items() for start in range(0, len(rows) - 6, 2)
    }
    assert found == expected


def test_a_wall_clock_that_is_set_back(tmp_path):
    from forebay.engine.whole_key import WholeKeyInstance
    from forebay.windows import HIGH, LOW, GlobalWindow

    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("total", pa.int64())])
    packed = pa.schema([("k0", pa.string()), ("a0", pa.int64())])
    clocked = WindowPlan(
        GlobalWindow(10), packed, ("k0",), Aggregation(("k0",), (COUNT, TOTAL)), Pattern.RMW, schema, Options(1 << 20)
    )
    version, until, totals = None, NEVER, []
    for now in (100, 99, 95, 105, 111):
        instance = WholeKeyInstance(clocked, Opening(tmp_path / "s", version, until))
        one = pa.array([1], pa.int64())
        instance.ingest(pa.record_batch({"k0": pa.array(["a"]), "a0": one, HIGH: one, LOW: one}))
        until = max(until, now)
        totals += [row["total"] for result in instance.fire(until) for row in result.to_pylist()]
        version = instance.commit()
        instance.close()
    assert totals == [1, 5]
