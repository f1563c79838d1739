"""State that earlier releases wrote: it is read, and the query goes on with it as if nothing had changed.

`tests/golden/format-<n>/<operator>/` is a store instance after two micro-batches, as the release wrote it whose format of
manifests was ``n``; those of format 6 have pictures of their key indexes. ``python tests/test_golden.py`` writes what is
missing of the release at hand.
"""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import BoundAggregate
from forebay.aggregates.processor import Processor
from forebay.engine.open import open_instance
from forebay.engine.plan import END_OF_TIME, NEVER, Member, WindowPlan, in_common
from forebay.engine.window_join import WindowJoin
from forebay.store import filenames, index_log, open_stores
from forebay.store.manifest import FORMAT
from forebay.store.options import Options
from forebay.store.partitions import SLICE
from forebay.windows import (
    END,
    HIGH,
    LOW,
    START,
    TIME,
    AlignedWindows,
    Buffered,
    CountWindows,
    Firing,
    FirstRows,
    GlobalWindow,
    Intervals,
    Lives,
    Preceding,
    SessionWindows,
    SharedWindows,
    bound_of,
)

GOLDEN = Path(__file__).parent / "golden"
TODAYS = f"format-{FORMAT}"
FORMATS = sorted(path.name for path in GOLDEN.iterdir())  # an earlier one lacks the operators that came after it

COUNT = BoundAggregate("n", "count", ("a0",), (pa.int64(),), pa.int64())
TOTAL = BoundAggregate("total", "sum", ("a0",), (pa.int64(),), pa.int64(), {"ansi": True})
MEDIAN = BoundAggregate("median", "median", ("a0",), (pa.int64(),), pa.float64())
BOUNDS = pa.struct([("start", pa.timestamp("us")), ("end", pa.timestamp("us"))])
NUMBERS = pa.struct([("start", pa.int64()), ("end", pa.int64())])
TIMED = "event_time", pa.timestamp("us")
GAP, UNTIL = 7, 25


def planned(windows, pattern, *aggregates, bounds=BOUNDS):
    schema = pa.schema([("window", bounds), ("k", pa.string()), *((each.label, each.result) for each in aggregates)])
    packed = pa.schema([("k0", pa.string()), ("a0", pa.int64())])
    return WindowPlan(windows, packed, ("k0",), Aggregation(("k0",), aggregates), pattern, schema, Options(1 << 20))


def joining(windows, how="full", pattern=Pattern.AUR, *, first=TIMED):
    packed = pa.schema([("k0", pa.string()), ("side", pa.bool_()), ("a0", pa.int64()), ("over", pa.bool_())])
    if isinstance(windows, Intervals):
        packed = packed.remove(3)
    schema = pa.schema([first, ("k", pa.string()), ("left", pa.int64()), ("right", pa.int64())])
    return WindowPlan(windows, packed, ("k0",), WindowJoin(how, "side", ("a0",), ("a0",)), pattern, schema, Options(1 << 20))


def waiting():
    schema = pa.schema([("k", pa.string()), ("a", pa.int64())])
    packed = pa.schema([("k0", pa.string()), ("a0", pa.int64())])
    processor = Processor(None, ("k0",), (("k0", "k"), ("a0", "a")), schema, rows=6, size=1 << 20)
    return WindowPlan(Buffered(30, 6, 1 << 20), packed, ("k0",), processor, Pattern.AUR, schema, Options(1 << 20))


def firing_often(windows, pattern, *aggregates):
    return replace(planned(windows, pattern, *aggregates), firing=Firing(every=10, allowed_lateness=5, accumulating=True))


def without_windows(windows, *aggregates):
    plan = planned(windows, Pattern.RMW, *aggregates)
    return replace(plan, schema=plan.schema.remove(0))


def after_each(windows):
    plan = planned(windows, Pattern.AUR, COUNT, TOTAL, MEDIAN)
    return replace(plan, schema=plan.schema.insert(0, pa.field("event_time", pa.timestamp("us"))))


def remembering():
    schema = pa.schema([("k", pa.string()), ("a", pa.int64())])
    packed = pa.schema([("k0", pa.string()), ("a0", pa.int64())])
    options = Options(1 << 20)
    return WindowPlan(FirstRows(), packed, (), Aggregation((), ()), Pattern.RMW, schema, options, identified_by=("k0",))


def sharing():
    """Several patterns: windows that read the events, references to them, and partial aggregates."""
    patterns = {
        "sliding": planned(AlignedWindows(20, 10), Pattern.AAR, COUNT, MEDIAN),
        "visits": planned(SessionWindows(), Pattern.AUR, COUNT, MEDIAN),
        "fives": planned(CountWindows(5, 3), Pattern.AUR, MEDIAN, bounds=NUMBERS),
        "totals": planned(SessionWindows(), Pattern.RMW, TOTAL),
    }
    types, places = in_common([plan.schema.remove(1).types for plan in patterns.values()], 2)
    members = tuple(
        Member(name, f"{name}-1", plan, 1, each) for (name, plan), each in zip(patterns.items(), places, strict=True)
    )
    columns = [(f"p{place}", kind) for place, kind in enumerate(types, 2)]
    schema = pa.schema([("pattern", pa.string()), ("k", pa.string()), *columns])
    packed = pa.schema([("k0", pa.string()), ("a0", pa.int64())])
    none, options = Aggregation((), ()), Options(1 << 20)
    return WindowPlan(SharedWindows(), packed, ("k0",), none, Pattern.SHARED, schema, options, members=members)


UPDATING = ("updates",)
PICTURED = ("session-median", "session-sum", "count-median", "global", "interval-join", "patterns")
"""Operators of which there is state with a picture, too."""
PLANS = {
    "tumbling-median": planned(AlignedWindows(20, 20), Pattern.AAR, COUNT, MEDIAN),
    "sliding-sum": planned(AlignedWindows(20, 10), Pattern.RMW, COUNT, TOTAL),
    "session-median": planned(SessionWindows(), Pattern.AUR, COUNT, MEDIAN),
    "session-sum": planned(SessionWindows(), Pattern.RMW, COUNT, TOTAL),
    "count-median": planned(CountWindows(5, 3), Pattern.AUR, COUNT, MEDIAN, bounds=NUMBERS),
    "preceding-time": after_each(Preceding(span=12)),
    "preceding-rows": after_each(Preceding(rows=4)),
    "dedupe": remembering(),
    "interval-join": joining(Intervals(-5, 5, 4)),
    "continuous-join": joining(Lives("over", 4), "inner"),
    "window-join": joining(AlignedWindows(20, 10), "inner", Pattern.AAR, first=("window", BOUNDS)),
    "panes": firing_often(AlignedWindows(20, 10), Pattern.AUR, COUNT, MEDIAN),
    "session-panes": firing_often(SessionWindows(), Pattern.RMW, COUNT, TOTAL),
    "updates": planned(AlignedWindows(20, 10), Pattern.RMW, COUNT, TOTAL),
    "global": without_windows(GlobalWindow(10), COUNT, TOTAL),
    "buffer": waiting(),
    "patterns": sharing(),
}


def batch(plan, number):
    """A micro-batch of forty rows in 20 us, as pack hands it over."""
    chance = np.random.default_rng(number)
    times = np.sort(chance.integers(number * 20, number * 20 + 20, 40))
    keys = chance.integers(0, 9, 40)
    columns = {"k0": [f"user {key}" for key in keys], "a0": chance.integers(0, 100, 40), HIGH: keys + 7, LOW: keys * keys}
    if isinstance(plan.windows, SharedWindows):
        sessions = [place for place, each in enumerate(plan.members) if isinstance(each.plan.windows, SessionWindows)]
        ends = {bound_of(END, place): times + GAP for place in sessions}
        return pa.record_batch({"k0": columns["k0"], "a0": columns["a0"], TIME: times, **ends})
    if isinstance(plan.windows, AlignedWindows):
        columns |= {SLICE: plan.windows.slice_starts(times)}
    elif not isinstance(plan.windows, CountWindows):
        columns |= {START: times, END: times + GAP}
    for name in ("side", "over"):
        if name in plan.packed.names:
            columns |= {name: chance.random(40) < (0.5 if name == "side" else 0.1)}
    if isinstance(plan.windows, AlignedWindows) and plan.firing is None:
        del columns[HIGH], columns[LOW]
    return pa.record_batch({**{name: columns[name] for name in plan.packed.names}, **columns})


def run(plan, directory, version, numbers, until, *, updating=False):
    """The results of some micro-batches, one by one, and the version after them."""
    results = []
    for number in numbers:
        open_stores.clear()
        before = NEVER if number == 0 else number * 20 - 5
        instance = open_instance(plan, directory, version, before, updating=updating)
        instance.ingest(batch(plan, number))
        fired = instance.fire(until if number == numbers[-1] else number * 20 + 15)
        results += [row for result in fired for row in result.to_pylist()]
        version = instance.commit(number)
        instance.close()
    return results, version


def newest(directory):
    versions = (filenames.version_of(path.name) for path in directory.iterdir())
    return max((version for version in versions if version), key=lambda version: version.number)


WRITTEN = [(written, name) for written in FORMATS for name in PLANS if (GOLDEN / written / name).is_dir()]


@pytest.mark.parametrize("name", PLANS)
def test_there_is_state_of_every_operator_in_todays_format(name):
    assert (TODAYS, name) in WRITTEN
    assert name not in PICTURED or (f"{TODAYS}-pictured", name) in WRITTEN


@pytest.mark.parametrize(("written", "name"), WRITTEN)
def test_goes_on(tmp_path, written, name):
    plan, directory = PLANS[name], tmp_path / "golden"
    shutil.copytree(GOLDEN / written / name, directory)
    mode = {"updating": name in UPDATING}
    found, _ = run(plan, directory, newest(directory), [2, 3], END_OF_TIME, **mode)
    _, version = run(plan, tmp_path / "fresh", None, [0, 1], 35, **mode)
    expected, _ = run(plan, tmp_path / "fresh", version, [2, 3], END_OF_TIME, **mode)
    assert len(expected) > 5
    assert sorted(map(str, found)) == sorted(map(str, expected))


def write(directory, name):
    """State of an operator; what is there stays as it was written."""
    if not directory.is_dir():
        _, version = run(PLANS[name], directory, None, [0, 1], 35, updating=name in UPDATING)
        sys.stdout.write(f"{directory.relative_to(GOLDEN)}: version {version}\n")


if __name__ == "__main__":
    for name in PLANS:
        write(GOLDEN / TODAYS / name, name)
    index_log._LEAST_CHANGES = index_log._MOST_CHANGES = 0  # a picture in each version
    for name in PICTURED:
        write(GOLDEN / f"{TODAYS}-pictured" / name, name)
