"""What store instances do, recorded, is what the harness makes of the same operator and events; here without Spark."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import BoundAggregate
from forebay.engine.open import open_instance
from forebay.engine.plan import NEVER, Capture, WindowPlan
from forebay.engine.window_join import WindowJoin
from forebay.harness import access
from forebay.harness.access import DELETE, GET, MERGE, PUT
from forebay.harness.arrivals import ConstantRate
from forebay.harness.capture import About, read_captured, write_captured
from forebay.harness.distributions import Zipfian
from forebay.harness.driver import Driver
from forebay.harness.events import BEGINNING, Source
from forebay.harness.likeness import likeness
from forebay.harness.operators import WORKLOADS
from forebay.harness.recorder import Recorder
from forebay.spark.worker.capture import Recording
from forebay.spark.worker.pack import pack
from forebay.store import open_stores
from forebay.windows import (
    END,
    HIGH,
    TIME,
    AlignedWindows,
    CountWindows,
    CustomWindows,
    GlobalWindow,
    Intervals,
    SessionWindows,
)

SECOND, BATCHES, ROWS, DELAY, GAP = 1_000_000, 12, 500, 1_000_001, 2_000_000
VNODES = np.array([0, 2], np.int32)
WINDOW = pa.struct([("start", pa.int64()), ("end", pa.int64())])
TOTAL = BoundAggregate("total", "sum", ("a0",), (pa.int64(),), pa.int64(), {"ansi": True})
MEDIAN = BoundAggregate("median", "median", ("a0",), (pa.int64(),), pa.float64())
TUMBLING, SLIDING = AlignedWindows(5 * SECOND, 5 * SECOND), AlignedWindows(4 * SECOND, 2 * SECOND)
FIVE, FOUR = {"size": 5 * SECOND}, {"size": 4 * SECOND, "slide": 2 * SECOND}
CUSTOM = CustomWindows(lambda times: (times // (5 * SECOND) * 5 * SECOND, times // (5 * SECOND) * 5 * SECOND + 5 * SECOND))
BOUNDS = {"lower": -2 * SECOND, "upper": SECOND}


def aggregated(windows, pattern):
    packed = pa.schema([("k0", pa.int64()), ("a0", pa.int64())])
    aggregate = TOTAL if pattern is Pattern.RMW else MEDIAN
    results = [("k0", pa.int64()), ("result", pa.float64())]
    schema = pa.schema(results if isinstance(windows, GlobalWindow) else [("window", WINDOW), *results])
    return WindowPlan(windows, packed, ("k0",), Aggregation(("k0",), (aggregate,)), pattern, schema)


def joined(windows, pattern):
    packed = pa.schema([("k0", pa.int64()), ("side", pa.bool_()), ("a0", pa.int64())])
    first = ("at", pa.int64()) if isinstance(windows, Intervals) else ("window", WINDOW)
    schema = pa.schema([first, ("k0", pa.int64()), ("left", pa.int64()), ("right", pa.int64())])
    return WindowPlan(windows, packed, ("k0",), WindowJoin("inner", "side", ("a0",), ("a0",)), pattern, schema)


CASES = {
    "tumbling, incremental": ("tumbling-incremental", FIVE, aggregated(TUMBLING, Pattern.RMW)),
    "tumbling, holistic": ("tumbling-holistic", FIVE, aggregated(TUMBLING, Pattern.AAR)),
    "sliding, incremental": ("sliding-incremental", FOUR, aggregated(SLIDING, Pattern.RMW)),
    "sliding, holistic": ("sliding-holistic", FOUR, aggregated(SLIDING, Pattern.AAR)),
    "custom, incremental": ("tumbling-incremental", FIVE, aggregated(CUSTOM, Pattern.RMW)),
    "custom, holistic": ("tumbling-holistic", FIVE, aggregated(CUSTOM, Pattern.AUR)),
    "tumbling join": ("tumbling-join", FIVE, joined(TUMBLING, Pattern.AAR)),
    "sliding join": ("sliding-join", FOUR, joined(SLIDING, Pattern.AAR)),
    "rolling": ("aggregation", {}, aggregated(GlobalWindow(every=0), Pattern.RMW)),
    "rolling, each row": ("aggregation", {}, aggregated(CountWindows(1, 1, accumulating=True), Pattern.RMW)),
    "session, incremental": ("session-incremental", {"gap": GAP}, aggregated(SessionWindows(), Pattern.RMW)),
    "session, holistic": ("session-holistic", {"gap": GAP}, aggregated(SessionWindows(), Pattern.AUR)),
    "interval join": ("interval-join", BOUNDS, joined(Intervals(**BOUNDS, granularity=1000), Pattern.AUR)),
}
LATE = [name for name in CASES if not name.startswith(("session", "interval"))]


def events(seed, bound):
    """Events whose times are whole milliseconds, a tenth of them late."""
    late = {"late": 0.1, "bound": bound} if bound else {}
    source = Source(BATCHES * ROWS, ConstantRate(200), Zipfian(80), start=1000 * SECOND, seed=seed, **late)
    (block,) = source.blocks()
    block.time[:] = block.time // 1000 * 1000
    return block


def watermarks(sides):
    """The watermark with which each micro-batch fires: of all rows before it, as in Spark; the last one has no rows."""
    times = [np.maximum.accumulate(side.time)[ROWS - 1 :: ROWS] for side in sides]
    return [NEVER, *(np.min(times, axis=0) - DELAY).tolist()]


def live(plan, sides, directory, *, updating=False):
    """Run store instances over events, and record what they do."""
    plan = replace(plan, capture=Capture(str(directory), "it"))
    known = dict.fromkeys(VNODES.tolist())
    before = NEVER
    for number, watermark in enumerate(watermarks(sides)):
        blobs = {vnode: [] for vnode in known}
        for side, block in enumerate(sides):
            for vnode, blob in pack(iter(chunks(plan, block, side, number)), plan, VNODES, updating=updating, task=side):
                blobs[vnode].append(blob)
        for vnode, waiting in blobs.items():
            recorder = Recorder(plan)
            place = directory.parent / f"state-{vnode}"
            open_stores.clear()  # nothing is known but what is on disk
            instance = open_instance(plan, place, known[vnode], before, updating=updating, observer=recorder)
            for batch, partial in Recording.in_order(iter(waiting)):
                instance.ingest(batch, partial=partial)
            list(instance.fire(max(watermark, before)))
            known[vnode] = instance.commit(number)
            instance.close()
            write_captured(directory, About("it", number, vnode, number * SECOND), recorder.accesses())
        before = max(watermark, before)
    return pa.Table.from_batches(read_captured(directory), access.SCHEMA)


def chunks(plan, block, side, number):
    rows = block.part(slice(number * ROWS, (number + 1) * ROWS))
    waits = (GAP, GAP) if not isinstance(plan.windows, Intervals) else (plan.windows.upper, -plan.windows.lower)
    columns = {TIME: pa.array(rows.time, pa.timestamp("us")), HIGH: rows.key, "k0": rows.key, "a0": rows.size}
    if isinstance(plan.windows, SessionWindows | Intervals):
        columns[END] = pa.array(rows.time + waits[side], pa.timestamp("us"))
    if isinstance(plan.aggregation, WindowJoin):
        columns["side"] = np.full(len(rows), bool(side))
    return [pa.record_batch(columns)] if len(rows) else []


class AsItRan:
    """Events with watermarks as in `live`."""

    def __init__(self, events, watermarks):
        self.events = events
        self.events.watermark[:] = BEGINNING
        for batch, watermark in enumerate(watermarks):
            self.events.watermark[min(batch + 1, BATCHES) * ROWS - 1 :] = watermark

    def blocks(self):
        yield self.events


def generated(workload, settings, sides):
    driver = Driver(WORKLOADS[workload](**settings))
    streams = [AsItRan(side, watermarks(sides)) for side in sides]
    return pa.Table.from_batches(driver.accesses(streams, drain=False), access.SCHEMA), driver.late


def rows_of(table):
    return list(zip(*(table[name].to_pylist() for name in ("operation", "family", "key", "start", "end")), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_an_instance_asks_for_what_the_harness_generates(name, tmp_path):
    workload, settings, plan = CASES[name]
    sides = [events(seed, 9 * SECOND if name in LATE else SECOND) for seed in range(WORKLOADS[workload].inputs)]
    other, late = generated(workload, settings, sides)
    assert (late > 50) == (name in LATE and "rolling" not in name)
    mine = live(plan, sides, tmp_path / "captured")
    assert (np.diff(mine["time"].to_numpy()) >= 0).all()
    if not name.startswith("session"):
        assert rows_of(mine) == rows_of(other)
        return
    # where sessions become one, the harness keeps the earliest, and forebay the latest
    assert counted(mine) == counted(other)
    alike = likeness(mine.to_batches(), other.to_batches())
    assert alike.keys.p_value == 1
    assert alike.stacks.p_value > 0.05
    assert alike.sequences <= 0.02


def counted(table):
    return np.bincount(table["operation"].to_numpy(), minlength=4).tolist()


def test_windows_in_update_mode_end_unread(tmp_path):
    workload, settings, plan = CASES["sliding, incremental"]
    sides = [events(1, 9 * SECOND)]
    other, _ = generated(workload, settings, sides)
    gets, puts, _, deletes = counted(other)
    mine = live(plan, sides, tmp_path / "captured", updating=True)
    assert counted(mine) == [gets - deletes, puts, 0, deletes]
    assert [row for row in rows_of(mine) if row[0] == DELETE] == [row for row in rows_of(other) if row[0] == DELETE]


def test_global_windows_are_read_when_they_fire(tmp_path):
    """Of holistic aggregates over all rows so far each micro-batch reads the keys that have had rows."""
    sides = [events(1, 0)]
    keys = sum(len(np.unique(sides[0].key[begin : begin + ROWS])) for begin in range(0, BATCHES * ROWS, ROWS))
    rolling = live(aggregated(GlobalWindow(every=0), Pattern.AUR), sides, tmp_path / "rolling")
    assert counted(rolling) == [keys, 0, BATCHES * ROWS, 0]


def test_sizes_are_those_of_rows_and_of_partial_aggregates(tmp_path):
    sides = [events(1, 0)]
    for name, operation in (("tumbling, incremental", PUT), ("tumbling, holistic", MERGE)):
        mine = live(CASES[name][2], sides, tmp_path / name)
        sizes = mine["size"].to_numpy()[mine["operation"].to_numpy() == operation]
        assert set(sizes.tolist()) == {8 if operation == MERGE else 32}  # a number; a sum of 16 bytes, and two counts
        assert mine["size"].to_numpy()[mine["operation"].to_numpy() == GET].sum() == 0
