"""Count windows, and rolling aggregates that emit every row, over micro-batches against a plain model."""

import random
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import BoundAggregate
from forebay.engine import counts
from forebay.engine.open import open_instance
from forebay.engine.plan import WindowPlan
from forebay.engine.portions import widths
from forebay.store import open_stores
from forebay.store.options import Options
from forebay.store.unaligned import UnalignedStore
from forebay.store.window_extents import WindowExtents
from forebay.windows import HIGH, LOW, CountWindows

NUMBERS = pa.struct([("start", pa.int64()), ("end", pa.int64())])


def of(function, result, **options):
    return BoundAggregate(function, function, ("a0",), (pa.int64(),), result, options)


INCREMENTAL = [
    (of("count", pa.int64()), len),
    (of("sum", pa.int64(), ansi=True), sum),
    (of("max", pa.int64()), max),
    (of("first", pa.int64(), ignorenulls=False), lambda values: values[0]),
    (of("last", pa.int64(), ignorenulls=False), lambda values: values[-1]),
    (of("var_pop", pa.float64()), lambda values: pytest.approx(np.var(values))),
]
HOLISTIC = [
    *INCREMENTAL,
    (of("median", pa.float64()), np.median),
    (of("collect_list", pa.list_(pa.int64())), list),
    (of("count_distinct", pa.int64()), lambda values: len(set(values))),
]
AGGREGATES = {Pattern.RMW: INCREMENTAL, Pattern.AUR: HOLISTIC}
WINDOWS = [
    CountWindows(1, 1, accumulating=True),
    CountWindows(4, 4, accumulating=True),
    CountWindows(5, 5),
    CountWindows(5, 1),
    CountWindows(6, 4),
    CountWindows(30, 1),
]


def planned(windows, pattern):
    aggregates = [each for each, _ in AGGREGATES[pattern]]
    results = [(each.label, each.result) for each in aggregates]
    schema = pa.schema([("count_window", NUMBERS), ("k", pa.int64()), *results])
    packed = pa.schema([("k0", pa.int64()), ("a0", pa.int64())])
    return WindowPlan(windows, packed, ("k0",), Aggregation(("k0",), aggregates), pattern, schema, Options(1 << 20))


def packed(keys, values):
    columns = {"k0": keys, "a0": values, HIGH: keys, LOW: keys}
    return pa.record_batch({name: pa.array(column, pa.int64()) for name, column in columns.items()})


@pytest.mark.parametrize("windows", WINDOWS, ids=repr)
@pytest.mark.parametrize("pattern", [Pattern.RMW, Pattern.AUR])
def test_equals_the_model(tmp_path, windows, pattern):
    plan, chance = planned(windows, pattern), random.Random(1)
    version, rows_of, found = None, defaultdict(list), {}
    for number in range(30):
        open_stores.clear()
        instance = open_instance(plan, tmp_path / "0", version, 0)
        for _ in range(chance.choice([1, 2])):
            keys = [chance.randrange(6) for _ in range(chance.choice([1, 25]))]
            values = [chance.randrange(-50, 50) for _ in keys]
            for key, value in zip(keys, values, strict=True):
                rows_of[key].append(value)
            instance.ingest(packed(keys, values))
        for batch in instance.fire(0):
            for row in batch.to_pylist():
                window, key, *results = row.values()
                assert (key, *window.values()) not in found
                found[key, *window.values()] = results
        version = instance.commit(number)
        instance.close()
    wanted = {}
    for key, values in rows_of.items():
        for start in range(0, len(values) - windows.size + 1, windows.slide):
            first = 0 if windows.accumulating else start
            wanted[key, first, start + windows.size] = values[first : start + windows.size]
    assert found.keys() == wanted.keys()
    assert len(found) > 50
    for window, values in wanted.items():
        assert found[window] == [model(values) for _, model in AGGREGATES[pattern]], window


@pytest.mark.parametrize("pattern", [Pattern.RMW, Pattern.AUR])
def test_a_key_with_many_rows_costs_no_square(tmp_path, pattern):
    """After each of 100,000 rows, aggregates of all before it: one by one they would take five billion rows."""
    rows = 100_000
    aggregates = tuple(each for each, _ in AGGREGATES[pattern] if each.function != "collect_list")
    schema = pa.schema([("count_window", NUMBERS), ("k", pa.int64()), *((each.label, each.result) for each in aggregates)])
    plan = planned(CountWindows(1, 1, accumulating=True), pattern)
    plan = WindowPlan(plan.windows, plan.packed, ("k0",), Aggregation(("k0",), aggregates), pattern, schema)
    values = np.random.default_rng(1).integers(-1000, 1000, rows)
    instance = open_instance(plan, tmp_path / "0", None, 0)
    for part in np.split(values, 4):
        instance.ingest(packed(np.zeros(len(part), np.int64), part))
    found = pa.Table.from_batches(instance.fire(0))
    instance.close()
    assert found["sum"].to_pylist() == np.cumsum(values).tolist()
    assert found["max"].to_pylist() == np.maximum.accumulate(values).tolist()
    assert found["last"].to_pylist() == values.tolist()


@pytest.mark.parametrize("pattern", [Pattern.RMW, Pattern.AUR])
def test_what_windows_need_of_earlier_rows_is_seldom_written_again(tmp_path, pattern):
    plan, version, rows = planned(CountWindows(100, 1), pattern), None, 500
    for number in range(rows):
        instance = open_instance(plan, tmp_path / "0", version, 0)
        instance.ingest(packed([1], [number]))
        assert sum(batch.num_rows for batch in instance.fire(0)) == (number >= 99)
        version = instance.commit(number)
        instance.close()
    assert instance.metrics.writes < 3 * rows  # 99 of them each time were 40,000


def test_what_windows_need_is_written_again_before_it_lies_scattered(tmp_path, monkeypatch):
    """Where few keys of many have rows at a time, what a key has would be in as many places as it has rows."""
    monkeypatch.setattr(WindowExtents, "combine", lambda *_: None)  # as if all extents were large
    plan, version, keys = planned(CountWindows(100, 1), Pattern.AUR), None, np.arange(50)
    for number in range(60):
        instance = open_instance(plan, tmp_path / "0", version, 0)
        instance.ingest(packed(np.repeat(keys, 99), np.arange(4950)) if number == 0 else packed([7], [number]))
        assert sum(batch.num_rows for batch in instance.fire(0)) == (number > 0)
        version = instance.commit(number)
        instance.close()
        store = UnalignedStore(tmp_path / "0", version)
        assert store.pieces_of(store.index.live()).max() <= 17
    assert instance.metrics.writes < 4950 + 60 + 99 * 60 // 16


SKETCHES = (of("hll_sketch_agg", pa.binary(), lgConfigK=12), *(each for each, _ in INCREMENTAL[:-1]))
CODES = "a0.coupons12"


def sketching(windows):
    schema = pa.schema([("count_window", NUMBERS), ("k", pa.int64()), *((each.label, each.result) for each in SKETCHES)])
    plan = planned(windows, Pattern.RMW)
    return WindowPlan(windows, plan.packed, ("k0",), Aggregation(("k0",), SKETCHES), Pattern.RMW, schema, Options(1 << 20))


@pytest.mark.parametrize("windows", WINDOWS, ids=repr)
def test_partial_aggregates_that_are_merged_a_few_at_a_time_are_the_same(tmp_path, windows, monkeypatch):
    plan, found = sketching(windows), {}
    for most in (1, 700, 8 << 20):
        monkeypatch.setattr(counts, "_MERGED_BYTES", most)
        version, chance, found[most] = None, np.random.default_rng(3), []
        for number in range(8):
            instance = open_instance(plan, tmp_path / str(most), version, 0)
            keys = chance.choice([1, 1, 1, 2, 3, 4], chance.integers(1, 60))
            instance.ingest(packed(keys, chance.integers(0, 1 << 40, len(keys))))
            for batch in instance.fire(0):
                found[most] += batch.to_pylist()
            version = instance.commit(number)
            instance.close()
    assert len(found[1]) > 20
    assert found[1] == found[700] == found[8 << 20]


@pytest.mark.parametrize(
    ("windows", "rows"), [(CountWindows(1, 1, accumulating=True), 4000), (CountWindows(2000, 10), 40_000)], ids=repr
)
def test_sketches_are_merged_as_many_at_a_time_as_fit(tmp_path, windows, rows, monkeypatch):
    """There is one for each row, or one for each window that a slice is in: more than 30 MB of them."""
    merge, merged = Aggregation.merge, []

    def spied(aggregation, partials, by=()):
        merged.append(widths(partials.select(CODES)).sum())
        return merge(aggregation, partials, by)

    monkeypatch.setattr(Aggregation, "merge", spied)
    instance = open_instance(sketching(windows), tmp_path / "0", None, 0)
    keys = np.ones(rows, np.int64)
    instance.ingest(packed(keys, np.random.default_rng(1).integers(0, 1 << 40, len(keys))))
    fired = sum(batch.num_rows for batch in instance.fire(0))
    instance.close()
    assert fired == (rows - windows.size) // windows.slide + 1
    assert max(merged) < 2 * counts._MERGED_BYTES
