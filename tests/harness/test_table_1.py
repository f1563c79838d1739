"""The paper's Table 1: streams that have as many events per window as its own give the same shares of operations."""

import numpy as np
import pytest

from forebay.harness.arrivals import ConstantRate, Poisson
from forebay.harness.distributions import Constant, Sequential, Uniform
from forebay.harness.driver import Driver
from forebay.harness.events import Events, Source, merged
from forebay.harness.operators import WORKLOADS, ContinuousJoin


class Shaped:
    """Keys that each have one window's events: so many on average, in so many instants, some of which come too late."""

    def __init__(self, events, instants, late=0.0, gap=10**9, span=10**6):
        self.shape, self.gap, self.span = (events, instants, late), gap, span

    def blocks(self):
        chance = np.random.default_rng(4)
        time, key = [], []
        for number in range(1500):
            draw = chance.random()
            counts = [int(each) + int(draw < each % 1) for each in self.shape]
            distinct = np.sort(chance.choice(self.span, max(counts[1], 1), replace=False))
            begin = number * self.gap
            place = np.sort(
                np.r_[np.arange(len(distinct)), chance.integers(0, len(distinct), max(counts[0] - len(distinct), 0))]
            )
            time += [*(begin + distinct[place]), *([begin] * counts[2])]
            key += [number] * len(place) + [number - 1] * counts[2]
        time, key, rows = np.array(time), np.array(key), len(time)
        back = np.r_[False, np.diff(key) < 0] | (np.arange(rows) > 0) & (key < np.maximum.accumulate(key))
        time = np.where(back, time - 10**3 * self.gap, time)  # long after its window has ended
        arrival = np.maximum.accumulate(time)
        zeros = np.zeros(rows, np.int64)
        yield Events(key, time, arrival, zeros, zeros.astype(np.int8), zeros.astype(bool), arrival)


BORG, TAXI, AZURE = (11.2, 11.2), (1.61, 1.61), (4.2, 4.2)
BORG_SESSIONS, TAXI_SESSIONS, AZURE_SESSIONS = (42.2, 9.3), (1.18, 1.18), (4.85, 1.54, 1.36)
AT_ONCE = [(11.2, 1), (1.61, 1), (4.2, 1)]

TABLE_1 = [
    ("tumbling-incremental", BORG, (0.5, 0.459, 0, 0.041)),
    ("tumbling-incremental", TAXI, (0.5, 0.308, 0, 0.191)),
    ("tumbling-incremental", AZURE, (0.5, 0.405, 0, 0.095)),
    ("tumbling-holistic", BORG, (0.076, 0, 0.847, 0.076)),
    ("tumbling-holistic", TAXI, (0.277, 0, 0.446, 0.277)),
    ("tumbling-holistic", AZURE, (0.165, 0, 0.669, 0.165)),
    ("sliding-incremental", AT_ONCE[0], (0.5, 0.459, 0, 0.041)),
    ("sliding-incremental", AT_ONCE[1], (0.5, 0.308, 0, 0.191)),
    ("sliding-incremental", AT_ONCE[2], (0.5, 0.405, 0, 0.095)),
    ("sliding-holistic", AT_ONCE[0], (0.076, 0, 0.847, 0.076)),
    ("sliding-holistic", AT_ONCE[1], (0.277, 0, 0.446, 0.277)),
    ("sliding-holistic", AT_ONCE[2], (0.159, 0, 0.681, 0.159)),
    ("session-incremental", BORG_SESSIONS, (0.575, 0.281, 0.062, 0.082)),
    ("session-incremental", TAXI_SESSIONS, (0.399, 0.108, 0.109, 0.384)),
    ("session-incremental", AZURE_SESSIONS, (0.544, 0.202, 0.064, 0.189)),
    ("session-holistic", BORG_SESSIONS, (0.409, 0, 0.477, 0.114)),
    ("session-holistic", TAXI_SESSIONS, (0.327, 0, 0.242, 0.430)),
    ("session-holistic", AZURE_SESSIONS, (0.429, 0, 0.334, 0.238)),
    ("interval-join", (4.13, 1), (0.446, 0.446, 0, 0.108)),
    ("interval-join", (1, 1), (0.334, 0.334, 0, 0.332)),
    ("aggregation", BORG, (0.5, 0.5, 0, 0)),
]
"""Events per window or session, instants at which they are, and events that come too late; and the paper's columns."""

SETTINGS = {"tumbling": {"size": 10**6}, "sliding": {"size": 10**6, "slide": 2 * 10**5}, "session": {"gap": 10**7}}


@pytest.mark.parametrize(("name", "shape", "column"), TABLE_1)
def test_streams_of_the_right_shape_give_the_columns_of_table_1(name, shape, column):
    operator = WORKLOADS[name](**SETTINGS.get(name.split("-")[0], {}))
    assert np.abs(shares(operator, *[Shaped(*shape)] * operator.inputs) - column).max() < 0.02


def test_jobs_and_tasks_give_the_column_of_borg():
    """A tenth of the events in Table 2: two tasks in three wait for their job, and a third of the events of jobs end one."""
    waiting = Source(56_000, Poisson(560), Sequential(56_000), seed=1)
    matching = Source(28_000, Poisson(280), Constant(10**9), seed=2)
    jobs = Source(1345, Poisson(13), Uniform(10**6, 2 * 10**6), final=0.36, seed=3)
    standing = Source(1, ConstantRate(1), Constant(10**9))
    found = shares(ContinuousJoin(), Both(standing, jobs), Both(waiting, matching))
    assert np.abs(found - (0.59, 0.006, 0.39, 0.013)).max() < 0.02


def test_rides_and_fares_give_the_column_of_the_taxis():
    """A million pick-ups and drop-offs with half a million fares, in small: as many of each."""
    rides = Source(20_000, Poisson(20), Uniform(0, 1000), final=0.5, seed=1)
    fares = Source(10_000, Poisson(10), Uniform(0, 1000), seed=2)
    found = shares(ContinuousJoin(totals=True), rides, fares)
    assert np.abs(found - (0.429, 0.281, 0.143, 0.147)).max() < 0.02


def shares(operator, *streams):
    counts = np.zeros(4)
    for batch in Driver(operator).accesses(streams):
        counts += np.bincount(batch["operation"].to_numpy(), minlength=4)
    return counts / counts.sum()


class Both:
    """Two streams as one input."""

    def __init__(self, *streams):
        self.streams = streams

    def blocks(self):
        return merged(self.streams)
