"""Several patterns over one event log: each gives what it gives alone, and every event is stored once."""

import random
from collections import deque

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import BoundAggregate
from forebay.cli.app import app
from forebay.engine.instance import Opening
from forebay.engine.open import open_instance
from forebay.engine.plan import NEVER, Member, WindowPlan, in_common
from forebay.engine.shared import SharedInstance
from forebay.errors import CorruptState, LayoutChanged
from forebay.state import inspection, verifying
from forebay.state.location import Location
from forebay.state.places import Root
from forebay.store import event_references, open_stores
from forebay.store import events as events_module
from forebay.store import manifest as manifests
from forebay.store.aligned import AlignedStore
from forebay.store.archive import MountedArchive
from forebay.store.events import EventLog
from forebay.store.extent_log import ExtentLog
from forebay.store.key_index import KeyIndex
from forebay.store.manifest import INDEXES, Counters
from forebay.store.options import Options
from forebay.store.partitions import SLICE
from forebay.store.references import ReferenceStore
from forebay.store.segment_reader import SegmentReader
from forebay.windows import (
    END,
    START,
    TIME,
    AlignedWindows,
    CountWindows,
    CustomWindows,
    Preceding,
    SessionWindows,
    SharedWindows,
    bound_of,
)

OPTIONS = Options(1 << 20, max_space_amplification=1.1)
INSTANTS = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
NUMBERS = pa.struct([("start", pa.int64()), ("end", pa.int64())])
COUNT = BoundAggregate("n", "count", (), (), pa.int64())
TOTAL = BoundAggregate("total", "sum", ("a_v",), (pa.int64(),), pa.int64(), {"ansi": True})
VALUES = BoundAggregate("values", "collect_list", ("a_v",), (pa.int64(),), pa.list_(pa.int64()))
SHOPS = BoundAggregate("shops", "collect_list", ("a_s",), (pa.string(),), pa.list_(pa.string()))
COLUMNS = {"k0": pa.string(), "k_shop": pa.string(), "a_v": pa.int64(), "a_s": pa.string()}


def within(gap):
    return lambda times: (times // gap * gap, times // gap * gap + gap)


def pattern(windows, aggregates, keys=("k0",), gap=0):
    holistic = any(each in (VALUES, SHOPS) for each in aggregates)
    unaligned = Pattern.AUR if holistic or isinstance(windows, Preceding) else Pattern.RMW
    aligned = Pattern.AAR if holistic else Pattern.RMW
    chosen = aligned if isinstance(windows, AlignedWindows) else unaligned
    inputs = dict.fromkeys(name for each in aggregates for name in each.inputs)
    window = NUMBERS if isinstance(windows, CountWindows) else INSTANTS
    timed = [("event_time", INSTANTS.field(0).type)] if isinstance(windows, Preceding) else []
    schema = pa.schema(
        [
            *timed,
            ("window", window),
            *((key, pa.string()) for key in keys),
            *((each.label, each.result) for each in aggregates),
        ]
    )
    packed = pa.schema([(name, COLUMNS[name]) for name in (*keys, *inputs)])
    return WindowPlan(windows, packed, keys, Aggregation(keys, tuple(aggregates)), chosen, schema, OPTIONS), gap


PATTERNS = {
    "tumbling list": pattern(AlignedWindows(60, 60), [COUNT, VALUES]),
    "sliding list": pattern(AlignedWindows(90, 30, 10), [VALUES]),
    "sliding list by shop": pattern(AlignedWindows(40, 20), [SHOPS], ("k0", "k_shop")),
    "tumbling total": pattern(AlignedWindows(50, 50), [TOTAL]),
    "sliding count": pattern(AlignedWindows(60, 20), [COUNT]),
    "visits": pattern(SessionWindows(), [VALUES, COUNT], gap=15),
    "long visits by shop": pattern(SessionWindows(), [SHOPS], ("k0", "k_shop"), gap=60),
    "totals of visits": pattern(SessionWindows(), [TOTAL], gap=15),
    "every three": pattern(CountWindows(3, 3), [VALUES]),
    "five every two": pattern(CountWindows(5, 2), [SHOPS, COUNT]),
    "total of four": pattern(CountWindows(4, 2), [TOTAL]),
    "custom": pattern(CustomWindows(within(70)), [VALUES]),
    "last three": pattern(Preceding(rows=3), [VALUES, COUNT]),
    "last half minute by shop": pattern(Preceding(span=30), [TOTAL, VALUES], ("k0", "k_shop")),
}


def own(name):
    """The columns of a pattern's results that not all have."""
    schema = PATTERNS[name][0].schema
    return schema.remove(schema.get_field_index("k0"))


def shared(names):
    types, places = in_common([own(name).types for name in names], 2)
    members = tuple(
        Member(name, f"{name}-1", PATTERNS[name][0], 1, each, PATTERNS[name][1] or None)
        for name, each in zip(names, places, strict=True)
    )
    columns = [(f"p{place}", kind) for place, kind in enumerate(types, 2)]
    schema = pa.schema([("pattern", pa.string()), ("k0", pa.string()), *columns])
    packed = pa.schema(list(COLUMNS.items()))
    return WindowPlan(
        SharedWindows(), packed, ("k0", "k_shop"), Aggregation((), ()), Pattern.SHARED, schema, OPTIONS, members=members
    )


def events(rows):
    """Events (time, key, value) as pack hands them to an operator of several patterns, but for bounds of windows."""
    return pa.record_batch(
        {
            "k0": pa.array([key for _, key, _ in rows], pa.string()),
            "k_shop": pa.array([f"shop {value % 3}" for _, _, value in rows], pa.string()),
            "a_v": pa.array([value for _, _, value in rows], pa.int64()),
            "a_s": pa.array([f"s{value}" for _, _, value in rows], pa.string()),
            TIME: pa.array([time for time, _, _ in rows], pa.int64()),
        }
    )


def bounds(name, times):
    plan, gap = PATTERNS[name]
    if isinstance(plan.windows, Preceding):
        return {START: times}
    if isinstance(plan.windows, SessionWindows):
        return {START: times, END: times + gap}
    if isinstance(plan.windows, CustomWindows):
        start, end = plan.windows.assigner(times)
        return {START: start, END: end}
    return {}


def packed(names, rows):
    batch = events(rows)
    times = batch[TIME].to_numpy()
    for position, name in enumerate(names):
        if isinstance(PATTERNS[name][0].windows, SessionWindows | CustomWindows):
            for column, values in bounds(name, times).items():
                batch = batch.append_column(bound_of(column, position), pa.array(values))
    return batch


def alone(name, rows):
    """The same as pack hands them to an operator of one pattern."""
    plan, _ = PATTERNS[name]
    batch = events(rows)
    times = batch[TIME].to_numpy()
    batch = batch.select(plan.packed.names)
    if isinstance(plan.windows, AlignedWindows):
        slices = plan.windows.slice_starts(times)
        return batch.append_column(SLICE, pa.array(slices)).take(pa.array(np.argsort(slices, kind="stable")))
    for column, values in bounds(name, times).items():
        batch = batch.append_column(column, pa.array(values))
    return batch


class Alone:
    """A pattern in an instance of its own."""

    def __init__(self, name, directory):
        self.name, self.directory, self.version, self.fired_until = name, directory, None, NEVER

    def run(self, rows, watermark):
        instance = open_instance(PATTERNS[self.name][0], self.directory, self.version, self.fired_until)
        if rows:
            instance.ingest(alone(self.name, rows))
        results = [row for batch in instance.fire(watermark) for row in batch.to_pylist()]
        self.version, self.fired_until, self.counters = instance.commit(), watermark, instance.counters
        instance.close()
        return results


class Shared:
    """Several patterns in one instance, opened for each micro-batch by workers who take turns, or by a new one."""

    WORKERS = "ann", "bob", "bob", "ann", "new", "ann"

    def __init__(self, directory):
        self.directory, self.version, self.fired_until, self.runs = directory, None, NEVER, 0
        self.kept = {}

    def run(self, names, rows, watermark):
        self.be(self.WORKERS[self.runs % len(self.WORKERS)])
        self.runs += 1
        plan = shared(names)
        instance = SharedInstance(plan, Opening(self.directory, self.version, self.fired_until))
        if rows:
            instance.ingest(packed(names, rows))
            require_known_sizes(instance)
        results = {name: [] for name in names}
        for batch in instance.fire(watermark):
            for row in batch.to_pylist():
                name = row.pop("pattern")
                (member,) = (each for each in plan.members if each.name == name)
                columns = {each: row.pop(f"p{place}") for each, place in zip(own(name).names, member.places, strict=True)}
                before = {each: columns.pop(each) for each in ("event_time", "window") if each in columns}
                results[name].append({**before, "k0": row.pop("k0"), **columns})
                assert not any(row.values())  # what other patterns have
        self.version, self.fired_until = instance.commit(), watermark
        self.metrics, self.counters = instance.metrics, instance.counters
        require_exact_references(instance)
        instance.close()
        return results

    def be(self, worker):
        """Have what a worker has kept."""
        self.kept.pop("new", None)
        open_stores._open, open_stores._sizes = self.kept.setdefault(worker, ({}, {}))


def all_needed(lasts):
    """All slices are needed."""
    return np.ones(len(lasts), bool)


def require_known_sizes(instance):
    """Windows are loaded a few at a time by the sizes of their events, wherever references to these are."""
    for holder in instance._stores.holders:
        windows = np.unique(holder.index.roots(holder.index.live()))
        assert holder.bytes_of(windows).sum() == instance._stores.events.sizes_of(holder.references).sum()
        assert holder.bytes_of(windows).sum() <= holder.most_bytes


def require_exact_references(instance):
    """What is counted of references is what there is."""
    stores = instance._stores
    found = np.concatenate([np.empty(0, np.int64), *(holder.references for holder in stores.holders)])
    slices = stores.events.slices[stores.events.slices["references"] > 0]
    counted = {number: counts for number, *counts in slices[["number", "references", "live"]].tolist()}
    numbers, places, counts = np.unique(event_references.numbers(found), return_inverse=True, return_counts=True)
    sizes = np.bincount(places, stores.events.sizes_of(found)).astype(int)
    assert counted == dict(zip(numbers.tolist(), map(list, zip(counts.tolist(), sizes.tolist(), strict=True)), strict=True))
    if len(found):
        stores.events.take(found, ["k0"])  # all of them lead to an event


def told(results, name):
    """Results in one order. Values of aligned windows come by slices, which are not those of the pattern alone."""
    if isinstance(PATTERNS[name][0].windows, AlignedWindows):
        results = [{key: sorted(value) if isinstance(value, list) else value for key, value in r.items()} for r in results]
    return sorted(results, key=repr)


ROW = st.tuples(st.integers(-120, 40), st.sampled_from(["ann", "bob", None]), st.integers(0, 9))
BATCHES = st.lists(st.tuples(st.lists(ROW, max_size=25), st.integers(0, 60)), min_size=1, max_size=12)
NAMES = st.lists(st.sampled_from(sorted(PATTERNS)), min_size=1, max_size=6, unique=True)


@settings(max_examples=25, phases=[Phase.generate])  # to shrink an example takes minutes
@given(names=NAMES, batches=BATCHES)
def test_each_pattern_gives_what_it_gives_alone(tmp_path_factory, names, batches):
    directory = tmp_path_factory.mktemp("state")
    together, apart = Shared(directory / "shared"), [Alone(name, directory / name) for name in names]
    now, watermark = 0, NEVER
    for rows, passed in [*batches, ([], 500), ([], 1)]:
        now += passed
        rows = [(now + time, key, value) for time, key, value in rows]
        found = together.run(names, rows, watermark)
        for pattern_alone in apart:
            expected = pattern_alone.run(rows, watermark)
            assert told(found[pattern_alone.name], pattern_alone.name) == told(expected, pattern_alone.name)
        watermark = max(watermark, now - 60)
    assert together.counters.rows_out == sum(each.counters.rows_out for each in apart)
    assert together.counters.windows_fired == sum(each.counters.windows_fired for each in apart)
    late = min(each.counters.rows_late for each in apart)
    assert together.counters.rows_late <= late
    assert len(names) > 1 or together.counters.rows_late == late


def test_rows_that_precede_others_are_shared(tmp_path):
    names = ["last three", "last half minute by shop", "visits", "sliding list"]
    chance, together = random.Random(1), Shared(tmp_path / "shared")
    apart, given = [Alone(name, tmp_path / name) for name in names], 0
    for batch in range(20):
        rows, watermark = some_rows(chance, batch * 20), batch * 20 - 30
        found = together.run(names, rows, watermark)
        for each in apart:
            assert told(found[each.name], each.name) == told(each.run(rows, watermark), each.name)
            given += len(found[each.name])
    assert given > 1000
    together.run(names, [], 10_000)
    together.run(names, [], 10_001)
    assert together.metrics.events < 20  # of 800: what the next row of each key needs, and a few beside


def test_what_no_next_row_needs_goes_even_if_nothing_else_happens(tmp_path):
    together, names = Shared(tmp_path), ["last half minute by shop"]
    assert together.run(names, [(5, "ann", 1)], 10)[names[0]]
    for watermark in range(11, 15):
        assert not together.run(names, [], watermark)[names[0]]
    before = together.version
    for watermark in range(1000, 1004):
        together.run(names, [], watermark)
    assert together.version != before
    assert together.metrics.events == 0


def some_rows(chance, center, count=40):
    return [(center + chance.randrange(-50, 50), chance.choice(["ann", "bob"]), chance.randrange(9)) for _ in range(count)]


def test_a_worker_reads_of_key_indexes_what_others_have_changed(tmp_path, monkeypatch):
    names, read = ["visits", "totals of visits", "long visits by shop"], []
    restored = KeyIndex.restored
    monkeypatch.setattr(KeyIndex, "restored", lambda *args: read.append(1) or restored(*args))
    together, chance = Shared(tmp_path), random.Random(1)
    together.WORKERS = "ann", "bob"
    for batch in range(6):
        together.run(names, some_rows(chance, batch * 30), batch * 30 - 100)
    assert all(together.run(names, [], 10_000).values())
    assert len(read) == 2 * len(names)  # each worker once


def test_a_worker_goes_on_from_the_attempt_that_counts(tmp_path):
    """Its own at the same micro-batch does not count, or it is an earlier version that counts."""
    names, chance = ["sliding list", "visits", "long visits by shop", "totals of visits"], random.Random(3)
    together, plain = Shared(tmp_path / "attempts"), Shared(tmp_path / "plain")
    plain.WORKERS = ("new",)
    for batch in range(12):
        rows, watermark, begun = some_rows(chance, batch * 30), batch * 30 - 60, (together.version, together.fired_until)
        for together.WORKERS in [("ann",), ("bob",)] * 2:
            together.version, together.fired_until = begun
            together.run(names, rows[: chance.randrange(len(rows))], watermark)
        together.WORKERS = chance.choice([("ann",), ("bob",)])
        together.version, together.fired_until = begun
        found, expected = together.run(names, rows, watermark), plain.run(names, rows, watermark)
        assert [told(found[name], name) for name in names] == [told(expected[name], name) for name in names]
    assert any(expected.values())


def test_no_event_is_left_when_all_windows_have_fired(tmp_path):
    names = ["sliding list", "visits", "long visits by shop", "totals of visits", "tumbling total"]
    together, chance = Shared(tmp_path), random.Random(1)
    for batch in range(10):
        together.run(names, some_rows(chance, batch * 30), batch * 30 - 100)
    assert together.metrics.events > 100
    assert list(tmp_path.glob("*.arrow"))
    together.run(names, [], 10_000)
    assert together.metrics.events == 0
    together.run(names, [], 10_001)
    together.run(names, [], 10_002)
    manifest = manifests.read(tmp_path, together.version)
    left = {extent.part for extent in manifest.extents if extent.group < INDEXES}
    assert left <= {f"pattern:{name}-1" for name in names if "visits" in name}  # dead references wait for compaction


def test_an_event_is_stored_once_whatever_the_number_of_patterns(tmp_path):
    rows = some_rows(random.Random(1), 0, 500)
    few, many = Shared(tmp_path / "few"), Shared(tmp_path / "many")
    few.run(["visits"], rows, NEVER)
    many.run(["visits", "sliding list", "tumbling list", "five every two", "custom", "sliding list by shop"], rows, NEVER)
    assert few.metrics.events == many.metrics.events == 500


def test_no_events_are_stored_for_incremental_aggregates_alone(tmp_path):
    together = Shared(tmp_path)
    together.run(["tumbling total", "totals of visits", "total of four"], some_rows(random.Random(1), 0), NEVER)
    assert together.metrics.events == 0


def test_few_long_sessions_do_not_keep_the_events_of_all(tmp_path, monkeypatch):
    """Events to which nothing refers any more go with the others of their slice rewritten."""
    monkeypatch.setattr(events_module, "LEAST_COMPACTED", 0)
    names = ["tumbling list", "visits"]
    together, apart = Shared(tmp_path / "shared"), Alone("visits", tmp_path / "alone")
    stored = []
    for batch in range(30):
        now = batch * 100
        crowd = [(now + number % 20, f"key {batch} {number}", number) for number in range(200)]
        rows = [*crowd, *((now + step, "ann", step) for step in range(0, 100, 10))]
        found = together.run(names, rows, now - 20)
        assert told(found["visits"], "visits") == told(apart.run(rows, now - 20), "visits")
        stored.append(together.metrics.events)
    assert stored[-1] < 210 * 5 + 30 * 10  # of 6,300: those of the newest slices, and of the session that lasts
    assert [row["n"] for row in together.run(names, [], 10_000)["visits"] if row["k0"] == "ann"] == [300]
    assert together.metrics.events == 0


@pytest.mark.parametrize("seed", range(8))
def test_patterns_come_and_go_without_touching_others(tmp_path, monkeypatch, seed):
    """One that is new has the events that are there, if these have its columns; windows that have ended do not fire."""
    if seed % 4 > 1:
        monkeypatch.setattr(events_module, "LEAST_COMPACTED", 0)
    chance, begun = random.Random(seed), 0
    together = Shared(tmp_path / "shared")
    read: dict[int, set[str]] = {}  # with which columns the events of a micro-batch are stored, by its number
    names: list[str] = ["visits"]
    apart = {"visits": Alone("visits", tmp_path / "visits")}
    for batch in range(16):
        if batch % 4 == 3:
            names = ["visits", *chance.sample(sorted(set(PATTERNS) - {"visits"}), chance.randrange(6))]
            chance.shuffle(names)
            rows, columns = there(together)
            assert columns <= set.intersection(*(read[value // 1000] for _, _, value in rows))
            columns &= reading(names)
            before, apart = apart, {}
            for name in names:
                if isinstance(PATTERNS[name][0].windows, AlignedWindows) and holistic(name):
                    continue  # see the next test
                apart[name] = before.get(name) or Alone(name, tmp_path / f"{name} since {batch}")
                if name not in before and set(PATTERNS[name][0].packed.names) <= columns:
                    apart[name].run(rows, together.fired_until)
                    begun += len(rows)
                apart[name].fired_until = together.fired_until
        read[batch] = reading(names)
        rows = some_rows(chance, batch * 30) if batch % 4 != 3 or seed % 2 else []
        rows = [(time, key, batch * 1000 + value) for time, key, value in rows]
        watermark = batch * 30 - 60
        found = together.run(names, rows, watermark)
        for name, each in apart.items():
            assert told(found[name], name) == told(each.run(rows, watermark), name)
    assert begun > 20


def reading(names):
    """The columns that patterns read of events."""
    return {column for name in names if holistic(name) for column in PATTERNS[name][0].packed.names}


def holistic(name):
    return PATTERNS[name][0].pattern is not Pattern.RMW


def there(together):
    """The events (time, key, value) that are stored, and the columns that all of them have."""
    log, found = ExtentLog(together.directory, together.version, OPTIONS), []
    stored = EventLog(together.directory, log, None, OPTIONS)
    for _, batch in stored.everything():
        for row in batch.to_pylist():
            value = row.get("a_v")
            found.append((row[TIME], row["k0"], int(row["a_s"][1:]) if value is None else value))
    log.close()
    return found, stored.columns


def test_aligned_windows_that_are_added_have_the_events_that_are_there(tmp_path):
    """Whatever slices the events lie in; of aligned windows, or by arrival."""
    for first in ("tumbling list", "visits"):
        chance, together = random.Random(1), Shared(tmp_path / first)
        batches = [some_rows(chance, 0, 60), some_rows(chance, 40, 60)]
        together.run([first], batches[0], -100)
        alone = Alone("sliding list", tmp_path / f"{first} alone")
        alone.run(batches[0], -100)
        for rows, watermark in ((batches[1], -90), ([], 1000)):
            found = together.run([first, "sliding list"], rows, watermark)
            assert told(found["sliding list"], "sliding list") == told(alone.run(rows, watermark), "sliding list")
        assert sum(map(len, found.values())) > 5


@pytest.mark.parametrize("windows", [AlignedWindows(50, 50), SessionWindows()])
def test_aggregates_may_be_given_in_another_order_to_stores_that_are_kept(tmp_path, monkeypatch, windows):
    batches = [some_rows(random.Random(1), 0, 30), some_rows(random.Random(2), 10, 30)]
    results = []
    for name, orders in (("alike", [[TOTAL, COUNT]] * 2), ("another", [[TOTAL, COUNT], [COUNT, TOTAL]])):
        together, found = Shared(tmp_path / name), []
        for aggregates, rows, watermark in zip(orders, batches, (-100, 1000), strict=True):
            monkeypatch.setitem(PATTERNS, "totals", pattern(windows, aggregates, gap=15))
            found += together.run(["totals"], rows, watermark)["totals"]
        results.append(sorted((row["k0"], str(row["window"]), row["n"], row["total"]) for row in found))
    assert results[0] == results[1]
    assert sum(row[2] for row in results[0]) == 60


def test_a_commit_that_does_not_come_leaves_the_version_before(tmp_path):
    """Whatever an attempt has written when it stops: before its manifest there is nothing of it."""
    names = ["sliding list", "visits", "tumbling total", "five every two"]
    chance, together = random.Random(2), Shared(tmp_path)
    apart = [Alone(name, tmp_path / name) for name in names]
    for batch in range(8):
        rows, watermark = some_rows(chance, batch * 30), batch * 30 - 60
        failing = SharedInstance(shared(names), Opening(tmp_path, together.version, together.fired_until))
        failing.ingest(packed(names, some_rows(chance, batch * 30)))
        deque(failing.fire(watermark + 30), maxlen=0)
        if batch % 2:
            failing.commit()  # a version that Spark never hears of
        failing.close()
        found = together.run(names, rows, watermark)
        for each in apart:
            assert told(found[each.name], each.name) == told(each.run(rows, watermark), each.name)


def test_another_host_goes_on_from_the_archive(tmp_path):
    names, rows = ["sliding list", "visits", "tumbling total"], some_rows(random.Random(3), 0)
    archive = MountedArchive(tmp_path / "safe")
    here = SharedInstance(shared(names), Opening(tmp_path / "here", None, NEVER, archive))
    here.ingest(packed(names, rows))
    assert list(here.fire(-1000)) == []
    version = here.commit()
    here.close()
    there = SharedInstance(shared(names), Opening(tmp_path / "there", version, -1000, archive))
    found = [row for batch in there.fire(1000) for row in batch.to_pylist()]
    there.close()
    expected = SharedInstance(shared(names), Opening(tmp_path / "expected", None, NEVER))
    expected.ingest(packed(names, rows))
    assert sorted(map(str, found)) == sorted(str(row) for batch in expected.fire(1000) for row in batch.to_pylist())
    assert {row["pattern"] for row in found} == set(names)
    expected.close()


LAYOUT = {
    "kind": "patterns",
    "window": "patterns(time)",
    "keys": ["user string"],
    "aggregates": {"visits": {}},
    "pattern": "SHARED",
    "instancesPerPartition": 1,
}


def test_the_state_can_be_looked_into(tmp_path):
    together = Shared(Location.new(Root(tmp_path), 0, LAYOUT).home.directory)
    names = ["sliding list", "visits", "totals of visits", "tumbling total"]
    rows = some_rows(random.Random(1), 0)
    together.run(names, rows, NEVER)
    (operator,) = inspection.operators(Root(tmp_path))
    found = pa.Table.from_batches(operator.read())
    assert sorted(found["a_v"].to_pylist()) == sorted(value for _, _, value in rows)
    assert sorted(found["start"].cast(pa.int64()).to_pylist()) == sorted(time for time, _, _ in rows)
    assert set(found.column_names) == {"vnode", "start", "end", "user", "a_v"}
    shown = CliRunner().invoke(app, ["state", "show", str(tmp_path)]).output
    assert "events" in shown
    assert all(f"pattern:{name}-1" in shown for name in names if name != "sliding list")
    assert not list(verifying.verify(operator))


def test_damage_in_any_part_is_found(tmp_path):
    together = Shared(Location.new(Root(tmp_path), 0, LAYOUT).home.directory)
    together.run(["sliding list", "visits", "totals of visits"], some_rows(random.Random(1), 0), NEVER)
    (operator,) = inspection.operators(Root(tmp_path))
    ((instance, version),) = operator.chosen()
    extents = instance.manifest(version).extents
    assert {extent.part.partition("-")[0] for extent in extents} == {
        "",
        "events",
        "pattern:visits",
        "pattern:totals of visits",
    }
    for extent in extents:
        segment, at = together.directory / extent.segment, extent.offset + extent.length // 2
        whole = segment.read_bytes()
        segment.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert [name for name, message in verifying.verify(operator) if segment.name in message] == [together.directory.name]
        segment.write_bytes(whole)
    assert not list(verifying.verify(operator))


def test_a_reference_to_what_is_not_there_is_found(tmp_path):
    log = ExtentLog(tmp_path, None, OPTIONS)
    events = EventLog(tmp_path, log, None, OPTIONS)
    references = events.append(np.arange(3), pa.record_batch({"a": [1, 2, 3]}))
    with pytest.raises(CorruptState, match="refers to event 3 of slice 0, which is not stored"):
        events.take(references + 1, ["a"])
    with pytest.raises(CorruptState, match="refers to event 0 of slice 1"):
        events.take(references + (1 << 32), ["a"])


def test_events_are_read_from_the_extents_that_have_them(tmp_path, monkeypatch):
    """However many there are in the slice: a long window of another pattern may have it grow for a day."""
    read = []
    whole = SegmentReader.read
    monkeypatch.setattr(SegmentReader, "read", lambda reader, extent: read.append(extent) or whole(reader, extent))
    log = ExtentLog(tmp_path, None, OPTIONS)
    events = EventLog(tmp_path, log, AlignedWindows(10_000, 10_000), OPTIONS)
    references = []
    for number in range(50):
        texts = [f"{number} {'x' * 20_000}" for _ in range(20)]
        references.append(events.append(np.arange(20) + 20 * number, pa.record_batch({"a": texts})))
        events.retain(references[-1])
        events.write(all_needed, 1, lambda: np.concatenate(references))
        log.commit(None, Counters())
    assert len(events.slices) == 1

    def taken(*numbers):
        read.clear()
        found = events.take(np.concatenate([references[number] for number in numbers]), ["a"])
        assert [text.partition(" ")[0] for text in found["a"].to_list()[::20]] == list(map(str, numbers))
        return len(read)

    assert taken(49, 0) > 4  # which extent has what is not known yet
    assert taken(49) == taken(0) == 1
    assert taken(49, 20, 0) <= 3


def test_slices_that_an_earlier_release_has_numbered_beyond_what_references_have_are_refused(tmp_path, monkeypatch):
    log = ExtentLog(tmp_path, None, OPTIONS)
    events = EventLog(tmp_path, log, AlignedWindows(10, 10), OPTIONS)
    events.append(np.arange(30), pa.record_batch({"a": np.arange(30)}))
    events.write(all_needed, 1, lambda: np.empty(0, np.int64))
    version = log.commit(None, Counters())
    monkeypatch.setattr(event_references, "NUMBERS", 2)
    with pytest.raises(LayoutChanged, match="have numbers from 2 on"):
        EventLog(tmp_path, ExtentLog(tmp_path, version, OPTIONS), AlignedWindows(10, 10), OPTIONS)


@pytest.mark.parametrize("slicing", [AlignedWindows(7, 7, 3), None])
def test_a_batch_with_events_of_many_slices_stays_whole(tmp_path, monkeypatch, slicing):
    """A batch of history has events of tens of thousands of them; with a batch for each it took 25 s in place of 0.1."""
    appended = []
    append = AlignedStore.append_slices
    monkeypatch.setattr(AlignedStore, "append_slices", lambda *args: appended.append(len(args[2])) or append(*args))
    monkeypatch.setattr(events_module, "_ROWS", 50)
    log, numbers = ExtentLog(tmp_path, None, OPTIONS), np.random.default_rng(0)
    events = EventLog(tmp_path, log, slicing, OPTIONS)
    found = []
    for batch in range(3):
        times = numbers.integers(0, 20_000, 900)
        found.append(events.append(times, pa.record_batch({"a": 900 * batch + np.arange(900), "at": times})))
    assert len(appended) == 3
    assert min(appended) >= 18
    references = np.concatenate(found)
    assert len(np.unique(event_references.places(references))) == 2700
    assert events.slices["events"].sum() == 2700
    events.retain(references)
    events.write(all_needed, 1, lambda: references)
    again = EventLog(tmp_path, ExtentLog(tmp_path, log.commit(None, Counters()), OPTIONS), slicing, OPTIONS)
    assert again.take(references, ["a"])["a"].to_list() == list(range(2700))
    for number, start, *told in again.slices[["number", "start", "first", "last", "events"]].tolist():
        times = np.concatenate([batch["at"].to_numpy() for batch in again.rows(number)])
        assert told == [times.min(), times.max(), len(times)]
        assert slicing is None or set(slicing.slice_starts(times)) == {start}


def test_a_slice_that_has_as_many_events_as_can_be_numbered_gets_another_beside_it(tmp_path):
    log = ExtentLog(tmp_path, None, OPTIONS)
    events = EventLog(tmp_path, log, AlignedWindows(1000, 1000), OPTIONS)
    first = events.append(np.array([1, 2]), pa.record_batch({"a": [1, 2]}))
    events.slices["events"] = (1 << 32) - 2  # as after so many
    full = events.append(np.array([3, 4]), pa.record_batch({"a": [3, 4]}))
    more = events.append(np.array([5, 6]), pa.record_batch({"a": [5, 6]}))
    references = np.concatenate([first, full, more])
    assert event_references.numbers(references).tolist() == [0, 0, 0, 0, 1, 1]
    events.retain(references)
    events.write(all_needed, 1, lambda: references)
    version = log.commit(None, Counters())
    again = EventLog(tmp_path, ExtentLog(tmp_path, version, OPTIONS), AlignedWindows(1000, 1000), OPTIONS)
    last = again.append(np.array([7]), pa.record_batch({"a": [7]}))
    assert event_references.numbers(last).tolist() == [1]
    assert again.take(np.concatenate([references, last]), ["a"])["a"].to_list() == list(range(1, 8))


def test_events_of_windows_that_fire_together_are_loaded_as_memory_allows(tmp_path, monkeypatch):
    name, loaded = "long visits by shop", []

    def get(store, slots, get=ReferenceStore.get):
        rows = get(store, slots)
        loaded.append(rows.estimated_size())
        return rows

    monkeypatch.setattr(ReferenceStore, "get", get)
    plan, version, fired_until = shared([name]), None, NEVER
    visits = [(0, f"user {user}", user) for user in range(500)]
    wide = pa.array([f"{user:09}" * 400 for _, _, user in visits])
    for watermark in (1, 2, 1000):
        instance = open_instance(plan, tmp_path, version, fired_until)
        batch = packed([name], visits)
        instance.ingest(batch.set_column(batch.schema.get_field_index("a_s"), "a_s", wide))
        results = sum(each.num_rows for each in instance.fire(watermark))
        version, fired_until = instance.commit(), watermark
        instance.close()
    assert results == 500
    assert 0 < max(loaded) < OPTIONS.memory_bytes // 2 < sum(loaded)


@pytest.mark.parametrize("room", [1, 100, 1000])
def test_patterns_give_the_same_if_few_windows_can_be_loaded_at_a_time(tmp_path, monkeypatch, room):
    monkeypatch.setattr(Options, "load_bytes", property(lambda options: room))
    names = ["visits", "long visits by shop", "five every two", "custom", "last three", "last half minute by shop"]
    chance, together = random.Random(room), Shared(tmp_path / "shared")
    apart = [Alone(name, tmp_path / name) for name in names]
    for batch in range(8):
        rows, watermark = some_rows(chance, batch * 30), batch * 30 - 60
        rows += [(time, f"{key} {time % 7}", value) for time, key, value in rows]
        found = together.run(names, rows, watermark)
        for each in apart:
            assert told(found[each.name], each.name) == told(each.run(rows, watermark), each.name)


def test_slices_are_looked_through_as_often_however_many_windows_fire(tmp_path, monkeypatch):
    monkeypatch.setattr("forebay.engine.aligned._TOGETHER_BYTES", 1)  # each window by itself
    name, looked = "tumbling list", []

    def slice_starts(windows, times, found=AlignedWindows.slice_starts):
        looked.append(len(times))
        return found(windows, times)

    monkeypatch.setattr(AlignedWindows, "slice_starts", slice_starts)
    counts = {}
    for windows in (20, 200):
        instance = open_instance(shared([name]), tmp_path / str(windows), None, NEVER)
        instance.ingest(packed([name], [(60 * window + 5, "user", window) for window in range(windows)]))
        looked.clear()
        assert sum(each.num_rows for each in instance.fire(60 * windows)) == windows
        counts[windows] = len(looked)
        instance.close()
    assert counts[200] == counts[20]
