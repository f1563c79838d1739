"""How long it takes until partitions that have moved have their state, by what tasks tell: Rhino, table 1."""

import time

import pytest

from forebay.spark.driver import metrics
from forebay.spark.driver.handed import Handed, Records
from forebay.spark.driver.openings import Opening
from forebay.spark.worker.vnodes import IDLE, partition_of, vnode_ids

PARTITIONS = 2
VNODES = {
    partition: [vnode for vnode in vnode_ids(PARTITIONS, 2).tolist() if partition_of(vnode, PARTITIONS) == partition]
    for partition in range(PARTITIONS)
}


def told(began, fetching, loading):
    """What a virtual node tells, in seconds after the opening was made."""
    return {"began": 1000 * began, "fetchTimeMs": 1000 * fetching, "loadTimeMs": 1000 * (fetching + loading)}


@pytest.fixture
def opening():
    with Opening("query", [0, 1], PARTITIONS) as opening:
        yield opening


def test_the_slowest_partition_counts_in_each_part(opening):
    now = opening.since
    first, second = VNODES[0]
    opening.take(7, "counts", {first: told(now + 1, 0.25, 0.5), second: told(now + 9, 0.25, 0.5)})
    opening.take(7, "counts", {VNODES[1][0]: told(now + 2, 0.125, 3)})
    assert opening.seconds() == pytest.approx({"scheduling": 2, "fetching": 0.5, "loading": 3}, abs=1e-5)
    assert opening.batch == 7


def test_what_was_before_what_comes_later_and_what_stays_do_not_count():
    with Opening("query", [1], PARTITIONS) as opening:
        now, vnode = opening.since, VNODES[1][0]
        opening.take(3, "counts", {vnode: told(now - 1, 9, 9), IDLE: {}, VNODES[0][0]: told(now + 1, 9, 9)})
        assert opening.seconds() == {}
        opening.take(4, "counts", {vnode: told(now + 1, 0, 1)})
        opening.take(5, "counts", {vnode: told(now + 2, 9, 9)})
        assert opening.seconds() == pytest.approx({"scheduling": 1, "fetching": 0, "loading": 1}, abs=1e-5)


def test_operators_of_a_query_are_added_up(opening):
    vnode = VNODES[0][0]
    for operator in ("counts", "sessions"):
        opening.take(1, operator, {vnode: told(opening.since, 1, 2)})
    assert opening.seconds() == pytest.approx({"scheduling": 0, "fetching": 2, "loading": 4}, abs=1e-5)


class Told:
    """Stands for the accumulator of a context, with what tasks have told."""

    def __init__(self):
        self.value = {}


def test_a_recovery_says_how_long_it_took_when_the_micro_batch_has_ended(monkeypatch):
    accumulator, records = Told(), Records()
    monkeypatch.setattr(metrics, "_accumulators", {"context": accumulator})
    monkeypatch.setattr(metrics, "_tallies", {})
    handed = Handed("recovery", {1: ("0", "2")})
    records.add(handed, Opening("query", [1], PARTITIONS))
    accumulator.value = {(query, 5, "counts", VNODES[1][0]): told(time.time() + 1, 1, 2) for query in ("query", "another")}
    records.opened(4)
    assert handed.seconds == {}
    records.opened(5)
    assert {name: round(seconds) for name, seconds in handed.seconds.items()} == {
        "scheduling": 1,
        "fetching": 1,
        "loading": 2,
    }
    assert (records.recent, records.waiting, metrics._watchers) == ([handed], [], [])


def test_nobody_is_told_of_a_query_that_has_ended():
    records = Records()
    records.add(Handed("recovery", {1: ("0", "2")}), Opening("query", [1], PARTITIONS))
    records.close()
    assert metrics._watchers == []
