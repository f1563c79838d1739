"""How long it takes until partitions that have moved have their state, by what tasks tell: Rhino, table 1."""

import pytest

from forebay.spark.driver import metrics
from forebay.spark.driver.handed import KEPT, Handed, Records
from forebay.spark.driver.openings import Reopening
from forebay.spark.driver.tally import KEPT_OPENINGS
from forebay.spark.worker.vnodes import IDLE, partition_of, vnode_ids

PARTITIONS = 2
VNODES = {
    partition: [vnode for vnode in vnode_ids(PARTITIONS, 2).tolist() if partition_of(vnode, PARTITIONS) == partition]
    for partition in range(PARTITIONS)
}
DECIDED = 1000.0


class Accumulator:
    """Stands for that of a context, with what tasks have told."""

    def __init__(self):
        self.value = {}


@pytest.fixture
def tell(monkeypatch):
    """What has a virtual node tell when it began, and how long it took then, in seconds."""
    accumulator = Accumulator()
    monkeypatch.setattr(metrics, "_accumulators", {"context": accumulator})
    monkeypatch.setattr(metrics, "_tallies", {})

    def tell(batch, vnode, after, fetching, loading, *, query="query", operator="counts"):
        times = {"began": DECIDED + after, "fetchTimeMs": fetching, "loadTimeMs": loading}
        told = {name: 1000 * seconds for name, seconds in times.items()}
        accumulator.value[query, batch, operator, vnode] = told

    tell.accumulator = accumulator
    return tell


def opening(*moved, first=7):
    return Reopening("query", moved, PARTITIONS, first, DECIDED)


def test_the_slowest_partition_counts_in_each_part(tell):
    first, second = VNODES[0]
    tell(7, first, 1, 0.25, 0.5)
    tell(7, second, 9, 0.25, 0.5)
    tell(7, VNODES[1][0], 2, 0.125, 3)
    assert opening(0, 1).seconds() == {"scheduling": 2, "fetching": 0.5, "loading": 3}


def test_operators_of_a_query_are_added_up_and_those_of_others_do_not_count(tell):
    for query, operator in (("query", "counts"), ("query", "sessions"), ("another", "counts")):
        tell(7, VNODES[0][0], 0, 1, 2, query=query, operator=operator)
    assert opening(0).seconds() == {"scheduling": 0, "fetching": 2, "loading": 4}


def test_the_first_time_after_the_move_counts_also_if_clocks_differ(tell):
    vnode = VNODES[1][0]
    tell(6, vnode, -20, 9, 9)  # before
    tell(8, vnode, -1, 1, 2)
    metrics.take()
    for batch in range(9, 8 + KEPT_OPENINGS):  # another worker opens it, again and again
        tell(batch, vnode, 5, 9, 9)
    tell(8, VNODES[0][0], 0, 9, 9)  # has not moved
    tell.accumulator.value["query", 8, "counts", IDLE] = {}
    assert opening(1).seconds() == {"scheduling": -1, "fetching": 1, "loading": 2}
    assert len(metrics.opened("query")["counts", vnode]) == KEPT_OPENINGS


def test_a_store_that_was_open_already_says_nothing(tell):
    tell(7, VNODES[0][0], 1, 0, 2)
    assert opening(0).seconds() == {}


def test_of_two_attempts_the_last_one_counts(tell):
    vnode = VNODES[0][0]
    tell(7, vnode, 1, 9, 9)
    metrics.take()
    tell(7, vnode, 3, 1, 2)
    assert opening(0).seconds() == {"scheduling": 3, "fetching": 1, "loading": 2}


def test_a_recovery_says_how_long_it_took_when_all_its_partitions_have_run(tell):
    records = Records()
    handed = Handed("recovery", {1: ("0", "2")})
    records.add(handed, opening(1))
    tell(7, VNODES[1][0], 1, 1, 2)
    records.opened(7)
    assert records.recent == [handed]
    records.opened(8)
    (whole,) = records.recent
    assert whole.seconds == {"scheduling": 1, "fetching": 1, "loading": 2}
    assert records.waiting == []


def test_a_recovery_of_which_nobody_tells_is_not_waited_for(tell):
    records = Records()
    records.add(Handed("recovery", {1: ("0", "2")}), opening(1))
    records.opened(9)
    assert (records.waiting, records.recent[0].seconds) == ([], {})


def test_handovers_that_moved_something_are_counted_however_many_are_remembered():
    records = Records()
    for number in range(KEPT + 1):
        records.add(Handed("move", {0: (str(number), "there")}))
    records.add(Handed("recovery"))
    records.add(Handed("move", {0: (None, "there")}, failed="it took too long"))
    assert (records.done, len(records.recent)) == (KEPT + 1, KEPT)
