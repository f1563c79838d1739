import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from gadget_model import accesses as modelled
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import InvalidArgument
from forebay.harness import driver as drivers
from forebay.harness.access import DELETE, GET, MERGE, PUT
from forebay.harness.arrivals import Poisson
from forebay.harness.distributions import Uniform, Zipfian
from forebay.harness.driver import Driver, Operator
from forebay.harness.events import Events, Source, Watermarks, merged
from forebay.harness.operators import (
    WORKLOADS,
    Aggregation,
    ContinuousJoin,
    IntervalJoin,
    SessionHolistic,
    SlidingIncremental,
    TumblingIncremental,
    each_key,
)

SMALL = 400
"""Microseconds that a generated stream has between events, on average."""

sources = st.builds(
    Source,
    events=st.integers(1, 120),
    arrivals=st.just(Poisson(1e6 / SMALL)),
    keys=st.builds(Uniform, st.just(0), st.integers(0, 4)),
    sizes=st.just(Uniform(0, 20)),
    watermarks=st.builds(Watermarks, events=st.integers(1, 12), delay=st.sampled_from([0, 300])),
    late=st.sampled_from([0.0, 0.4]),
    bound=st.sampled_from([5, 3000]),
    final=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 1000),
)
sizes = st.integers(1, 5000)


def operators(name):
    kind, lateness = WORKLOADS[name], st.sampled_from([0, 700])
    if name.startswith("tumbling"):
        return st.builds(kind, size=sizes, lateness=lateness)
    if name.startswith("sliding"):
        windows = st.tuples(st.integers(1, 40), st.integers(1, 6), st.integers(0, 30))
        return st.builds(lambda at, late: kind(at[0] * at[1] + at[2], late, at[0]), windows, lateness)
    if name.startswith("session"):
        return st.builds(kind, gap=sizes, lateness=lateness)
    if name == "interval-join":
        bounds = st.tuples(st.integers(-3000, 3000), st.integers(-3000, 3000)).map(sorted)
        return bounds.map(lambda both: kind(*both))
    return st.just(kind())


def driven(operator, *streams):
    return pa.Table.from_batches(list(Driver(operator).accesses(streams)))


def rows(table):
    return list(zip(*(table[name].to_pylist() for name in table.schema.names), strict=True))


def counts(table):
    return np.bincount(table["operation"].to_numpy(), minlength=4).tolist()


def settings(operator):
    return {name: value for name, value in vars(operator).items() if name not in ("merging", "inputs")}


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "continuous-join"])
@given(data=st.data())
def test_accesses_are_those_of_the_model(name, data):
    operator = data.draw(operators(name))
    streams = data.draw(st.lists(sources, min_size=operator.inputs, max_size=operator.inputs))
    events = Events.joined(list(merged(streams)))
    assert rows(driven(operator, *streams)) == modelled(events, name, **settings(operator))


@given(data=st.data())
@pytest.mark.parametrize("name", list(WORKLOADS))
def test_the_identities_of_table_1_hold_exactly(name, data):
    operator = data.draw(operators(name))
    table = driven(operator, *data.draw(st.lists(sources, min_size=operator.inputs, max_size=operator.inputs)))
    gets, puts, merges, deletes = counts(table)
    if name in ("tumbling-incremental", "sliding-incremental"):
        assert gets == puts + deletes  # GET = 0.5, PUT + DELETE = 0.5
        assert not merges
    elif ("holistic" in name and "session" not in name) or name in ("tumbling-join", "sliding-join"):
        assert gets == deletes  # MERGE = the rest
        assert not puts
    elif name == "aggregation":
        assert gets == puts  # GET = PUT = 0.5
        assert not merges + deletes
    elif name == "interval-join":
        assert gets == puts
        assert not merges
    elif name == "session-incremental":
        assert puts > 0
    elif name == "session-holistic":
        assert not puts


def test_sessions_cost_what_they_cost_in_flink():
    """Events that are each a session: one reads 3 times, writes twice and deletes 4 times."""
    source = Source(1000, Poisson(1), keys=Uniform(0, 10**9))
    assert counts(driven(SessionHolistic(gap=10), source)) == [3000, 0, 2000, 4000]


def test_a_continuous_join_replaces_matches_waits_and_ends():
    jobs = stream([1, 2, 4], final=[False, False, True])
    tasks = stream([0, 3, 5])
    made = driven(ContinuousJoin(), jobs, tasks)
    replaced = [(GET, 0), (DELETE, 0), (PUT, 0)]
    waits = [(GET, 0), (MERGE, 1)]
    expected = [*waits, *replaced, *replaced, (GET, 0), (DELETE, 0), (DELETE, 1), *waits]
    assert [row[:2] for row in rows(made)] == expected


def test_a_continuous_join_of_totals_gathers_until_the_end():
    rides = stream([1, 4, 6], final=[False, True, False])
    fares = stream([2, 3])
    made = driven(ContinuousJoin(totals=True), rides, fares)
    begins, gathers = [(GET, 0), (PUT, 0)], [(GET, 0), (MERGE, 1)]
    assert [row[:2] for row in rows(made)] == [*begins, *gathers, *gathers, (GET, 1), (DELETE, 1), (PUT, 0), *begins]


def test_a_watermark_ends_windows_before_the_next_event_comes():
    made = rows(driven(TumblingIncremental(size=10), stream([1, 12, 13], watermarks=[1, 12, 12])))
    assert [(row[0], row[3], row[6]) for row in made[:6]] == [
        *((GET, 0, 1), (PUT, 0, 1)),
        *((GET, 10, 12), (PUT, 10, 12)),
        *((GET, 0, 12), (DELETE, 0, 12)),
    ]


def test_late_events_within_the_lateness_count_and_others_do_not():
    events = stream([1, 20, 2], watermarks=[1, 20, 20])
    for lateness, late in ((0, 1), (10, 1), (11, 0)):
        driver = Driver(TumblingIncremental(size=10, lateness=lateness))
        list(driver.accesses([events]))
        assert driver.late == late


def test_a_trace_that_is_not_drained_leaves_windows_open():
    driver = Driver(SlidingIncremental())
    table = pa.Table.from_batches(list(driver.accesses([Source(5000)], drain=False)))
    assert driver.machines > 0
    gets, puts, _, deletes = counts(table)
    assert gets == puts + deletes
    assert puts > deletes


def test_batches_of_any_length_have_the_same_accesses(monkeypatch):
    source = Source(3000, Poisson(1000), keys=Zipfian(50), late=0.1, bound=10_000_000)
    for name in ("sliding-holistic", "session-incremental", "interval-join"):
        operator = WORKLOADS[name]()
        whole = driven(operator, source, source)
        with monkeypatch.context() as patch:
            patch.setattr(drivers, "_BATCH", 64)
            short = driven(operator, source, source)
        assert len(short["key"].chunks) > 10 * len(whole["key"].chunks)
        assert short.combine_chunks() == whole.combine_chunks()


@pytest.mark.parametrize("limit", [1, 1000, 10**6])
def test_a_limit_is_of_accesses_and_events_are_those_that_caused_them(limit):
    source = Source(3000, Poisson(1000), keys=Zipfian(50))
    whole = driven(WORKLOADS["sliding-holistic"](), source)
    driver = Driver(WORKLOADS["sliding-holistic"]())
    made = pa.Table.from_batches(list(driver.accesses([source], limit=limit)))
    assert made.equals(whole.slice(0, limit).combine_chunks())
    if limit == 1:
        assert driver.events <= 2
    assert (driver.events == 3000) == (limit > len(whole))


def test_events_of_many_windows_are_driven_in_pieces(monkeypatch):
    """The rows that say which windows an event is in are made for some events at a time."""
    operator, source = WORKLOADS["sliding-incremental"](size=10_000, slide=10), Source(2000, Poisson(1000))
    made = []

    class Watched(type(operator)):
        def assign_state_machines(self, events):
            rows = super().assign_state_machines(events)
            made.append((len(events), len(rows.event)))
            return rows

    list(Driver(Watched(size=10_000, slide=10)).accesses([source], limit=10))
    monkeypatch.setattr(drivers, "_FEW_EVENTS", 8)
    monkeypatch.setattr(drivers, "_ROWS", 8000)
    made.clear()
    pieces = driven(Watched(size=10_000, slide=10), source)
    assert max(rows for _, rows in made) <= 16_000
    assert sum(events for events, _ in made) == 2000
    assert pieces.combine_chunks() == driven(operator, source).combine_chunks()


def test_memory_is_that_of_open_windows():
    driver = Driver(TumblingIncremental(size=1000))
    for _ in driver.accesses([Source(500_000, Poisson(100_000), keys=Uniform(0, 10**6))]):
        assert len(driver._machines) <= 2048
    assert driver.machines == 0


def test_time_never_falls_and_the_watermark_does_not_either():
    source = Source(20_000, late=0.2, bound=5_000_000)
    for name in ("session-holistic", "interval-join"):
        assert (np.diff(driven(WORKLOADS[name](), source, source)["time"].to_numpy()) >= 0).all()


@dataclass(frozen=True)
class EveryThird(Operator):
    """Writes each third event of a key: an operator of one's own."""

    def assign_state_machines(self, events):
        return each_key(events)

    def run(self, state, side, final):
        count = ((state or 0) + 1) % 3
        return ([PUT] if not count else []), count


def test_an_operator_of_ones_own_is_a_small_class():
    assert counts(driven(EveryThird(), Source(1000, keys=Uniform(0, 0)))) == [0, 333, 0, 0]


def test_a_machine_must_be_finite():
    class Counts(EveryThird):
        def run(self, state, side, final):
            return [PUT], (state or 0) + 1

    with pytest.raises(InvalidArgument, match="more than 4096 states"):
        Driver(Counts())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TumblingIncremental(size=0), "size is 0"),
        (lambda: SlidingIncremental(slide=-1), "slide is -1"),
        (lambda: SlidingIncremental(size=5, slide=6), "must not leave gaps"),
        (lambda: SessionHolistic(gap=0), "gap is 0"),
        (lambda: SessionHolistic(lateness=-1), "lateness is -1"),
        (lambda: IntervalJoin(2, 1), "nothing would match"),
        (lambda: driven(IntervalJoin(), Source(1)), "IntervalJoin has 2 inputs; give it as many sources, not 1"),
    ],
)
def test_bad_settings_are_errors(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()


def test_a_driver_runs_once():
    driver = Driver(Aggregation())
    list(driver.accesses([Source(5)]))
    with pytest.raises(InvalidArgument, match="make another one"):
        list(driver.accesses([Source(5)]))


def test_no_events_are_no_accesses():
    assert list(Driver(Aggregation()).accesses([Source(0)])) == []
    assert list(Driver(IntervalJoin()).accesses([Source(0), Source(0)])) == []
    assert counts(driven(IntervalJoin(), Source(0), Source(1))) == [1, 1, 0, 1]
    assert list(Driver(Aggregation()).accesses([stream([])])) == []


def test_the_harness_needs_no_spark():
    program = """
import sys
import forebay.harness.operators, forebay.harness.traces, forebay.harness.gadget_log
for name, module in list(sys.modules.items()):
    if name.startswith("forebay.harness"):
        source = open(module.__file__).read()
        assert "pyspark" not in source and "forebay.spark" not in source, name
    elif name.startswith("forebay.store"):
        assert "forebay.harness" not in open(module.__file__).read(), name
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@dataclass
class stream:  # noqa: N801
    """Events of one key, given by their times."""

    times: list
    final: list | None = None
    watermarks: list | None = None

    def blocks(self):
        count, time = len(self.times), np.array(self.times)
        zeros = np.zeros(count, np.int64)
        final, watermark = np.array(self.final or [False] * count), np.array(self.watermarks or [-1] * count)
        yield Events(zeros, time, np.maximum.accumulate(time), zeros, zeros.astype(np.int8), final, watermark)
