"""A store instance says until when it has nothing to do; the operator does not open it before that."""

from dataclasses import replace

import pytest

from forebay.engine.open import open_instance
from forebay.engine.plan import END_OF_TIME, NEVER
from forebay.store import open_stores
from forebay.windows import GlobalWindow
from test_golden import PLANS, batch


@pytest.mark.parametrize("name", PLANS)
def test_nothing_happens_before(name, tmp_path):
    plan, version, fired, idle = PLANS[name], None, NEVER, 0
    for number in range(8):
        open_stores.clear()
        instance = open_instance(plan, tmp_path / "0", version, fired)
        if number < 4:
            instance.ingest(batch(plan, number))
        fired = max(fired, number * 20 - 5)
        list(instance.fire(fired))
        version = instance.commit(number)
        due = instance.due
        instance.close()
        if due > fired:
            idle += 1
            again = open_instance(plan, tmp_path / "0", version, fired)
            assert list(again.fire(min(due, END_OF_TIME) - 1)) == []
            assert again.commit(number) == version
            again.close()
    assert idle > 2


@pytest.mark.parametrize("discarding", [False, True])
def test_a_global_window_is_due_at_the_next_time_by_the_clock(discarding, tmp_path):
    plan = replace(PLANS["global"], windows=GlobalWindow(10, discarding=discarding))
    instance = open_instance(plan, tmp_path / "0", None, 12)
    instance.ingest(batch(plan, 0))
    assert list(instance.fire(15)) == []
    version = instance.commit(0)
    assert instance.due == 20
    instance.close()
    again = open_instance(plan, tmp_path / "0", version, 19)
    assert list(again.fire(19)) == []
    assert again.due == 20
    assert sum(rows.num_rows for rows in again.fire(20)) > 5
    again.commit(1)
    assert again.due == END_OF_TIME
    again.close()


def test_rolling_aggregates_are_due_when_rows_come(tmp_path):
    plan = replace(PLANS["global"], windows=GlobalWindow(0))
    instance = open_instance(plan, tmp_path / "0", None, 12)
    instance.ingest(batch(plan, 0))
    assert sum(rows.num_rows for rows in instance.fire(15)) > 5
    instance.commit(0)
    assert instance.due == END_OF_TIME
    instance.close()
