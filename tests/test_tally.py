"""Metrics of an operator added up as tasks tell them, compared with what all reports together say."""

import random

import pytest

from forebay.spark.driver.tally import HOTTEST_KEY, SIZES, UNITS, Tally, Worked
from forebay.spark.worker.vnodes import HOT_KEYS, IDLE, PACKING


def told(rows, size):
    return {**dict.fromkeys(UNITS, 0), "rowsIn": rows, **dict.fromkeys(SIZES, size)}


def row_of(rows, size):
    return {**told(rows, size), HOTTEST_KEY: None}


@pytest.mark.parametrize("seed", range(5))
def test_rows_have_the_sizes_of_virtual_nodes_that_had_nothing_to_do(seed):
    chance, tally = random.Random(seed), Tally()
    sizes, rows, expected = {}, 0, {}
    for batch in range(20):
        working = chance.sample(range(64), chance.randrange(5))
        reports = {vnode: told(chance.randrange(9), chance.randrange(1000)) for vnode in working}
        sizes |= {vnode: report["stateBytes"] for vnode, report in reports.items()}
        rows += sum(report["rowsIn"] for report in reports.values())
        expected[batch] = (sum(report["rowsIn"] for report in reports.values()), sum(sizes.values()))
        first = dict(list(reports.items())[:2])
        for part in (first, {IDLE: {}}, reports):  # a task that ran twice tells its part twice
            tally.take(batch, part)
        tally.fold(8)
    assert tally.rows.keys() == set(range(12, 20))
    assert {batch: (row["rowsIn"], row["stateBytes"]) for batch, row in tally.rows.items()} == {
        batch: expected[batch] for batch in range(12, 20)
    }
    assert tally.total() == told(rows, sum(sizes.values()))


def test_of_what_a_virtual_node_tells_twice_the_last_counts():
    tally = Tally()
    tally.take(3, {0: told(5, 100), 1: told(1, 10)})
    tally.take(3, {0: told(4, 90)})
    assert tally.rows == {3: row_of(5, 100)}
    assert tally.nodes == {0: told(4, 90), 1: told(1, 10)}


def test_a_micro_batch_in_which_nothing_happened_has_a_row_with_the_sizes_from_before():
    tally = Tally()
    tally.take(0, {0: told(5, 100)})
    tally.take(1, {IDLE: {}})
    assert tally.rows == {0: row_of(5, 100), 1: row_of(0, 100)}


def test_the_hottest_key_is_that_of_all_tasks_together():
    tally = Tally()
    tally.take(0, {PACKING: {HOT_KEYS: {"a": 500, "b": 400}}, PACKING - 1: {HOT_KEYS: {"b": 300}}, 0: told(5, 100)})
    assert tally.rows[0][HOTTEST_KEY] == "b"
    tally.take(0, {PACKING - 1: {HOT_KEYS: {"b": 50}}})  # the task ran again
    assert tally.rows[0][HOTTEST_KEY] == "a"
    tally.take(0, {1: told(5, 100)})
    assert tally.rows[0][HOTTEST_KEY] == "a"
    tally.take(1, {PACKING: {}})
    assert tally.rows[1][HOTTEST_KEY] is None


def test_a_micro_batch_that_runs_again_after_its_query_has_ended_counts_once():
    tally = Tally()
    tally.take(0, {0: told(5, 100), 1: told(5, 100)})
    tally.take(1, {0: told(7, 200)})
    tally.retire()
    assert tally.total() == told(17, 300)
    tally.take(1, {0: told(7, 200), 1: told(3, 50)})
    assert tally.rows == {0: row_of(10, 200), 1: row_of(10, 250)}
    assert tally.total() == told(20, 250)


def test_a_query_that_goes_on_from_a_micro_batch_that_was_folded_is_taken_as_it_comes():
    tally = Tally()
    for batch in range(10):
        tally.take(batch, {0: told(1, 1)})
    tally.fold(3)
    for vnode in range(2):
        tally.take(2, {vnode: told(1, 1)})
        tally.fold(3)
    assert tally.rows.keys() == {7, 8, 9}
    assert tally.total() == told(12, 2)


def test_waiting_for_other_hosts_is_no_work():
    tally, times = Tally(), {"openTimeMs": 3, "ingestTimeMs": 5, "fireTimeMs": 1, "commitTimeMs": 90}
    rows = {"rowsIn": 7, "rowsRead": 4, "rowsOut": 1}
    tally.take(
        1,
        {
            0: {**told(1, 1), **times, "uploadTimeMs": 80, "fetchTimeMs": 2, "began": 7, **rows},
            1: {**told(1, 1), "began": 9},
            IDLE: {},
        },
    )
    worked = {0: Worked(7, 24, 12), 1: Worked(9, 9, 1)}
    assert tally.worked(1) == worked
    tally.take(2, {0: told(1, 1)})
    assert tally.worked(1) == worked
    assert tally.worked(3) == {}
