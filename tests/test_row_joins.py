"""Interval and continuous joins against plain models, micro-batch by micro-batch."""

from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from forebay.access_patterns import Pattern
from forebay.engine.open import open_instance
from forebay.engine.plan import END_OF_TIME, NEVER, WindowPlan
from forebay.engine.row_join import JoinInstance, Rows, has_partner, pairs
from forebay.engine.window_join import WindowJoin
from forebay.store import open_stores
from forebay.store.options import Options
from forebay.windows import INSTANT, Intervals, Lives

BATCHES, ROWS, DELAY = 8, 80, 10
SPILLING = Options(memory_bytes=1 << 20, write_buffer_bytes=1 << 10)


def planned(windows, how, options):
    packed = pa.schema([("k0", pa.int64()), ("side", pa.bool_()), ("id", pa.int64()), ("over", pa.bool_())])
    right = () if how in ("semi", "anti") else ("id",)
    results = [("event_time", pa.timestamp("us")), ("key", pa.int64()), ("left", pa.int64()), ("right", pa.int64())]
    join = WindowJoin(how, "side", ("id",), right)
    return WindowPlan(windows, packed, ("k0",), join, Pattern.AUR, pa.schema(results[: 3 + len(right)]), options)


def generated(seed, keys):
    """Micro-batches of rows ``(time, key or None, of the right side, id, ends a life)``, out of order by 30 us."""
    numbers = np.random.default_rng(seed)
    for batch in range(BATCHES):
        times = numbers.integers(batch * 20 - 10, batch * 20 + 20, ROWS)
        key = [None if k == 0 else int(k) for k in numbers.integers(0, keys, ROWS)]
        yield list(
            zip(
                times.tolist(),
                key,
                (numbers.random(ROWS) < 0.5).tolist(),
                range(batch * ROWS, batch * ROWS + ROWS),
                (numbers.random(ROWS) < 0.05).tolist(),
                strict=True,
            )
        )


@pytest.fixture
def small(monkeypatch):
    """Bounds at which work is cut into parts, so small that these tests get there."""
    monkeypatch.setattr("forebay.engine.interval_join.PORTION_ROWS", 50)
    monkeypatch.setattr("forebay.engine.row_join.PORTION_ROWS", 50)
    monkeypatch.setattr("forebay.store.options._LOAD_FACTOR", 1 << 10)
    monkeypatch.setattr("forebay.store.window_extents.LEAST_COMPACTED", 1 << 10)


def joined(plan, batches, directory, *, reopened):
    """Results, and the rows that were not late. The watermark is 10 us behind the newest row, and ends all at the end."""
    version, watermark, results, taken = None, NEVER, [], []
    batches = list(batches)
    for number, rows in enumerate(batches):
        if reopened:
            open_stores.clear()
        instance = open_instance(plan, directory / "0", version, watermark)
        taken += [row for row in rows if row[0] > watermark]
        for part in (rows[: ROWS // 3], rows[ROWS // 3 :]):
            times, keys, of_right, ids, over = zip(*part, strict=True)
            hashed = np.array([k or 0 for k in keys])
            waits = np.where(of_right, *(max(0, w) for w in reversed(waits_of(plan.windows))))
            batch = {"k0": pa.array(keys, pa.int64()), "side": list(of_right), "id": list(ids), "over": list(over)}
            batch |= {"high": hashed, "low": hashed * 7, "start": list(times), "end": np.array(times) + waits}
            instance.ingest(pa.record_batch(batch))
        last = number == len(batches) - 1
        watermark = END_OF_TIME if last else max(watermark, max(row[0] for row in taken) - DELAY)
        for batch in instance.fire(watermark):
            results += batch.set_column(0, "event_time", batch["event_time"].cast(pa.int64())).to_pylist()
        version = instance.commit(number)
        instance.close()
    assert instance.counters.rows_out == len(results)
    assert instance.counters.rows_late == sum(map(len, batches)) - len(taken)
    return results, taken


def waits_of(windows):
    return (windows.upper, -windows.lower) if isinstance(windows, Intervals) else (0, 0)


def split(taken):
    return [row for row in taken if not row[2]], [row for row in taken if row[2]]


@pytest.mark.parametrize(("options", "reopened"), [(Options(), False), (SPILLING, True)], ids=["in memory", "spilling"])
@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
@pytest.mark.parametrize("bounds", [(-4, 7), (2, 9), (-9, -2), (0, 0), (-60, 60)])
def test_interval_join(tmp_path, small, bounds, how, options, reopened):
    lower, upper = bounds
    step = max(1, (upper - lower) // 4)
    plan = planned(Intervals(lower, upper, step), how, options)
    results, taken = joined(plan, generated(abs(lower), 12), tmp_path, reopened=reopened)
    left, right = split(taken)
    pairs = [(a, b) for a in left for b in right if a[1] and a[1] == b[1] and lower <= b[0] - a[0] <= upper]
    met = {a[3] for a, _ in pairs}, {b[3] for _, b in pairs}
    ends = [lambda row: -(-(row[0] + max(0, upper)) // step) * step, lambda row: -(-(row[0] - min(0, lower)) // step) * step]
    both = [(max(a[0], b[0]), a[1], a[3], b[3]) for a, b in pairs]
    alone = [(ends[0](a), a[1], a[3], None) for a in left if a[3] not in met[0]]
    others = [(ends[1](b), b[1], None, b[3]) for b in right if b[3] not in met[1]]
    semi = [(ends[0](a), a[1], a[3], None) for a in left if a[3] in met[0]]
    expected = {"inner": both, "left": both + alone, "right": both + others, "full": both + alone + others}
    expected |= {"semi": semi, "anti": alone}
    found = [(row["event_time"], row["key"], row["left"], row.get("right")) for row in results]
    assert len(pairs) > 20
    assert sorted(found, key=repr) == sorted(expected[how], key=repr)


@pytest.mark.parametrize(
    ("windows", "how"),
    [*((Intervals(-4, 7, 2), how) for how in ("inner", "left", "right", "full")), (Lives("over", 4), "inner")],
)
def test_sides_without_columns_of_their_own(tmp_path, windows, how):
    """Such a side has its key alone, which is a column of both."""
    plan = planned(windows, how, Options())
    found = []
    for columns in ({}, {"right": ()}, {"left": (), "right": ()}):
        join = replace(plan.aggregation, **columns)
        fields = list(plan.schema)[: 2 + len(join.left) + len(join.right)]
        bare = replace(plan, aggregation=join, schema=pa.schema(fields))
        results, _ = joined(bare, generated(5, 12), tmp_path / str(len(fields)), reopened=False)
        found.append(sorted((row["event_time"], str(row["key"])) for row in results))
    assert found[0] == found[1] == found[2] != []


@pytest.mark.parametrize(("options", "reopened"), [(Options(), False), (SPILLING, True)], ids=["in memory", "spilling"])
@pytest.mark.parametrize("keys", [3, 12])
@pytest.mark.parametrize("granularity", [1, 7])
def test_continuous_join(tmp_path, small, keys, granularity, options, reopened):
    results, taken = joined(
        planned(Lives("over", granularity), "inner", options), generated(keys, keys), tmp_path, reopened=reopened
    )
    left, right = split(taken)
    ends = {key: [row[0] for row in taken if row[1] == key and row[4]] for key in range(1, keys)}
    expected = [
        (max(a[0], b[0]), a[1], a[3], b[3])
        for a in left
        for b in right
        if a[1] and a[1] == b[1] and not any(min(a[0], b[0]) <= end < max(a[0], b[0]) for end in ends[a[1]])
    ]
    found = [(row["event_time"], row["key"], row["left"], row["right"]) for row in results]
    assert len(expected) > 100
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_a_side_is_not_read_for_rows_of_its_own(tmp_path):
    plan, version, reads = planned(Lives("over", 1), "inner", Options()), None, []
    for number, of_right in enumerate([False, False, False, True, True, False]):
        instance = open_instance(plan, tmp_path / "0", version, NEVER if number == 0 else number * 100 - 1)
        before = instance.metrics.reads
        rows = {
            "side": [of_right] * 10,
            "id": range(10),
            "over": [False] * 10,
            **dict.fromkeys(("k0", "high", "low"), [7] * 10),
        }
        instance.ingest(pa.record_batch(rows | dict.fromkeys(("start", "end"), range(number * 100, number * 100 + 10))))
        assert sum(batch.num_rows for batch in instance.fire(number * 100 + 99)) == [0, 0, 0, 300, 300, 200][number]
        reads.append(instance.metrics.reads - before)
        version = instance.commit(number)
        instance.close()
    assert reads == [10, 10, 10, 40, 40, 30]  # the ten that came, and those that they meet


def test_older_state_has_windows_of_both_sides(tmp_path, small, monkeypatch):
    """Each row of a micro-batch goes there at random, or to the window of its side."""
    valid, numbers = Lives.valid, np.random.default_rng(0)

    def older(windows, sides):
        starts, ends = valid(windows, sides)
        return np.where(numbers.random(len(sides)) < 0.5, 0, starts), ends

    monkeypatch.setattr(Lives, "valid", older)
    test_continuous_join(tmp_path, small, 12, 7, SPILLING, reopened=True)


def test_rows_that_wait_for_the_watermark_are_not_written_again_while_it_stands_still(tmp_path):
    """As it does while the other side has no rows."""
    plan, version, made = planned(Lives("over", 1_000_000), "inner", Options()), None, []
    for number in range(3):
        instance = open_instance(plan, tmp_path / "0", version, NEVER if number == 0 else 0)
        if number == 0:
            rows = {"k0": range(100), "side": [False] * 100, "id": range(100), "over": [False] * 100, "high": range(100)}
            instance.ingest(pa.record_batch(rows | dict.fromkeys(("low", "start", "end"), range(10, 110))))
        assert list(instance.fire(0)) == []
        version = instance.commit(number)
        made.append((version, instance.counters.windows_fired))
        instance.close()
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("windows", [Intervals(-50, 50, 20), Lives("over", 10)], ids=["interval", "continuous"])
def test_a_large_micro_batch_is_taken_in_parts(tmp_path, monkeypatch, windows):
    """As a whole it took five times its size. `small` has the other tests take micro-batches in parts, too."""
    options, appended, append = Options(memory_bytes=4 << 20), [], JoinInstance._append
    monkeypatch.setattr(
        JoinInstance, "_append", lambda each, rows, slots: appended.append(len(slots)) or append(each, rows, slots)
    )
    instance = open_instance(planned(windows, "inner", options), tmp_path / "0", None, NEVER)
    rows = options.load_bytes // 100
    columns = {"side": [False] * rows, "id": range(rows), "over": [False] * rows}
    columns |= dict.fromkeys(("k0", "high", "low", "start", "end"), range(rows))
    for _ in range(5):
        instance.ingest(pa.record_batch(columns))
    assert not list(instance.fire(0))
    assert max(appended) <= 2 * rows


@pytest.mark.parametrize("portion", [1, 7, 1 << 16], ids="portions of {}".format)
@pytest.mark.parametrize("between", [1, 1 << 40], ids=["close keys", "distant keys"])
@pytest.mark.parametrize("sorted_by_time", [True, False])
def test_the_pairs_of_two_sides(monkeypatch, portion, between, sorted_by_time):
    monkeypatch.setattr("forebay.engine.row_join.PORTION_ROWS", portion)
    drawn = np.random.default_rng(portion)

    def side(rows):
        times = drawn.integers(0, 20, rows)
        keys = drawn.integers(-1, 9, rows)
        return Rows(
            pl.DataFrame({INSTANT: np.sort(times) if sorted_by_time else times}),
            np.where(keys < 0, -1, keys * between),
            np.zeros(rows, bool),
        )

    for rows in [(0, 0), (0, 5), (5, 0), (30, 40), (1, 200), (200, 1)]:
        ours, theirs = map(side, rows)
        lower, upper = -3, 2
        expected = [
            [one, other]
            for one in range(rows[0])
            for other in sorted(range(rows[1]), key=lambda other: (theirs.times[other], other))
            if ours.keys[one] == theirs.keys[other] >= 0 and lower <= theirs.times[other] - ours.times[one] <= upper
        ]
        found = [pair for some in pairs(ours, theirs, lower, upper) for pair in np.column_stack(some).tolist()]
        assert found == expected
        partnered = has_partner(ours, theirs, lower, upper)
        assert np.flatnonzero(partnered).tolist() == sorted({one for one, _ in expected})
