"""Windows with early and late firings against a plain model, micro-batch by micro-batch."""

import random
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest

from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import BoundAggregate
from forebay.engine.open import open_instance
from forebay.engine.plan import NEVER, WindowPlan
from forebay.spark.worker.combining import combiner_of
from forebay.spark.worker.pack import ends
from forebay.store import open_stores
from forebay.store.options import Options
from forebay.store.partitions import SLICE
from forebay.windows import TIME, AlignedWindows, CustomWindows, Firing, SessionWindows

GAP = 25
WINDOW = pa.struct([("start", pa.int64()), ("end", pa.int64())])
COUNT = BoundAggregate("n", "count", ("a0",), (pa.int64(),), pa.int64())
TOTAL = BoundAggregate("total", "sum", ("a0",), (pa.int64(),), pa.int64(), {"ansi": True})
MEDIAN = BoundAggregate("median", "median", ("a0",), (pa.int64(),), pa.float64())
AGGREGATES = {Pattern.RMW: (COUNT, TOTAL), Pattern.AUR: (COUNT, MEDIAN)}


@dataclass
class Open:
    """A window of a key: all its values, and those since it last fired."""

    start: int
    end: int
    values: list[int] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)


class Model:
    def __init__(self, windows, firing):
        self.windows, self.firing, self.fired_until = windows, firing, NEVER
        self.open: dict[str, list[Open]] = {}
        self.late = 0

    def ingest(self, rows):
        for time, key, value in rows:
            kept = [w for w in self.windows_of(time) if w[1] + self.firing.allowed_lateness > self.fired_until]
            self.late += not kept
            for start, end in kept:
                window = self.window(self.open.setdefault(key, []), start, end)
                window.values.append(value)
                window.fresh.append(value)

    def windows_of(self, time):
        if isinstance(self.windows, SessionWindows):
            return [(time, time + GAP)]
        first = (time - self.windows.size) // self.windows.slide + 1
        starts = [k * self.windows.slide for k in range(first, time // self.windows.slide + 1)]
        return [(start, start + self.windows.size) for start in starts]

    def window(self, there, start, end):
        if not isinstance(self.windows, SessionWindows):
            found = [w for w in there if w.start == start] or [Open(start, end)]
        else:
            found = [w for w in there if w.start <= end and w.end >= start] or [Open(start, end)]
        one = found[0]
        for other in found[1:]:
            one.values += other.values
            one.fresh += other.fresh
            one.start, one.end = min(one.start, other.start), max(one.end, other.end)
            there.remove(other)
        one.start, one.end = min(one.start, start), max(one.end, end)
        if one not in there:
            there.append(one)
        return one

    def fire(self, watermark):
        every, before, panes = self.firing.every, self.fired_until, []
        passed = every is not None and (before // every + 1) * every <= watermark
        for key, windows in self.open.items():
            for window in list(windows):
                on_time = before < window.end <= watermark
                due = bool(window.fresh) if window.end <= before else on_time or (passed and window.fresh)
                values = window.values if self.firing.accumulating else window.fresh
                if due and values:
                    panes.append((window.start, window.end, key, sorted(values)))
                if due:
                    window.fresh = []
                if window.end + self.firing.allowed_lateness <= watermark:
                    windows.remove(window)
        self.fired_until = max(before, watermark)
        return panes


def batch_of(windows, rows):
    times = np.array([time for time, _, _ in rows], np.int64)
    keys = np.array([int(key[-1]) for _, key, _ in rows], np.int64)
    columns = {"k0": [key for _, key, _ in rows], "a0": [value for _, _, value in rows], "high": keys, "low": keys * 3}
    if isinstance(windows, SessionWindows):
        return pa.record_batch(columns | {"start": times, "end": times + GAP})
    return pa.record_batch(columns | {SLICE: windows.slice_starts(times)})


@pytest.mark.parametrize("accumulating", [True, False], ids=["accumulating", "discarding"])
@pytest.mark.parametrize(("every", "lateness"), [(None, 0), (10, 0), (None, 12), (7, 12)])
@pytest.mark.parametrize("pattern", [Pattern.AUR, Pattern.RMW])
@pytest.mark.parametrize(
    "windows", [AlignedWindows(40, 40), AlignedWindows(40, 15), SessionWindows()], ids=["tumbling", "sliding", "sessions"]
)
def test_equals_the_model(tmp_path, windows, pattern, every, lateness, accumulating):
    chance, firing = random.Random(lateness), Firing(every, lateness, accumulating)
    schema = pa.schema([("window", WINDOW), ("k", pa.string()), *((a.label, a.result) for a in AGGREGATES[pattern])])
    packed, aggregation = pa.schema([("k0", pa.string()), ("a0", pa.int64())]), Aggregation(("k0",), AGGREGATES[pattern])
    options = Options(1 << 20, write_buffer_bytes=1 << 10)
    plan = WindowPlan(windows, packed, ("k0",), aggregation, pattern, schema, options, firing)
    model, version, watermark, panes, combined = Model(windows, firing), None, NEVER, 0, 0
    for number in range(30):
        rows = [
            (number * 12 + chance.randrange(-90, 12), f"user {chance.randrange(6)}", chance.randrange(50))
            for _ in range(chance.choice([0, 1, 20, 20]))
        ]
        if chance.random() < 0.3:
            open_stores.clear()
        instance = open_instance(plan, tmp_path / "0", version, watermark)
        combiner = combiner_of(plan, updating=True, hashed=False, fired_until=watermark)
        assert (combiner is None) == (pattern is Pattern.AUR)
        if rows and combiner is not None and isinstance(windows, SessionWindows) and number % 2:
            batch = batch_of(windows, rows)
            partials, _ = combiner.combined(batch, np.zeros(len(rows), np.int64), batch["high"].to_numpy())
            instance.ingest(partials, partial=True)
            combined += len(rows) - partials.num_rows
        elif rows:
            instance.ingest(batch_of(windows, rows))
        model.ingest(rows)
        watermark = number * 12 - 40 if number < 29 else 10_000
        found = [row for batch in instance.fire(watermark) for row in batch.to_pylist()]
        version = instance.commit(number)
        instance.close()
        summary = (lambda values: sum(values)) if pattern is Pattern.RMW else (lambda values: float(np.median(values)))
        expected = [(start, end, key, len(v), summary(v)) for start, end, key, v in model.fire(watermark)]
        label = "total" if pattern is Pattern.RMW else "median"
        rows = [(r["window"]["start"], r["window"]["end"], r["k"], r["n"], r[label]) for r in found]
        assert (sorted(set(rows) - set(expected)), sorted(set(expected) - set(rows))) == ([], [])
        assert len(rows) == len(expected)
        panes += len(found)
    assert instance.counters.rows_late == model.late
    assert panes > 20
    assert combined > 20 or pattern is Pattern.AUR or isinstance(windows, AlignedWindows)


@pytest.mark.parametrize("pattern", [Pattern.AUR, Pattern.RMW])
def test_the_order_of_results_does_not_depend_on_what_was_read_ahead(tmp_path, pattern):
    """An attempt whose worker has kept the store gives what one gives that has opened it."""
    schema = pa.schema([("window", WINDOW), ("k", pa.string()), *((a.label, a.result) for a in AGGREGATES[pattern])])
    packed, aggregation = pa.schema([("k0", pa.string()), ("a0", pa.int64())]), Aggregation(("k0",), AGGREGATES[pattern])
    options = Options(1 << 20, read_batch_ratio=0.3)
    plan = WindowPlan(SessionWindows(), packed, ("k0",), aggregation, pattern, schema, options)
    rows = [(100 * block + key, f"user {key}", block) for block in range(20) for key in range(10)]
    random.Random(1).shuffle(rows)

    def run(version, fired_until, watermark, rows=()):
        instance = open_instance(plan, tmp_path / "0", version, fired_until)
        if rows:
            instance.ingest(batch_of(plan.windows, rows))
        return instance, [row for batch in instance.fire(watermark) for row in batch.to_pylist()]

    def committed(*arguments):
        instance, _ = run(*arguments)
        version = instance.commit()
        instance.close()
        return version

    open_stores.clear()
    version = committed(None, NEVER, -1, rows)
    version = committed(version, -1, 25)  # it reads some windows ahead of time
    instance, kept = run(version, 25, 1500)
    assert instance.metrics.hits > 0 and instance.metrics.misses > 0
    open_stores.clear()
    instance, opened = run(version, 25, 1500)
    assert instance.metrics.hits == 0
    assert kept == opened and len(kept) > 100


def test_a_window_that_never_ends_is_not_late(tmp_path):
    last = np.iinfo(np.int64).max
    windows = CustomWindows(lambda times: (times * 0, times * 0 + last))
    schema = pa.schema([("window", WINDOW), ("k", pa.string()), ("n", pa.int64())])
    packed, aggregation = pa.schema([("k0", pa.string()), ("a0", pa.int64())]), Aggregation(("k0",), (COUNT,))
    plan = WindowPlan(windows, packed, ("k0",), aggregation, Pattern.RMW, schema, Options(1 << 20), Firing(10, 12, True))
    instance = open_instance(plan, tmp_path / "0", None, NEVER)
    times = pa.array([3, 4], pa.int64())
    columns = {"k0": ["a", "a"], "a0": [1, 2], "high": [1, 1], "low": [1, 1], "start": [0, 0], "end": [last, last]}
    instance.ingest(pa.record_batch(columns))
    assert [row["n"] for batch in instance.fire(10) for row in batch.to_pylist()] == [2]
    assert instance.counters.rows_late == 0
    timed = pa.record_batch({TIME: times.cast(pa.timestamp("us", "UTC"))})
    assert ends(timed, plan).tolist() == [last, last]
