"""A store instance says until when it has nothing to do; the operator does not open it before that."""

import pytest

from forebay.engine.open import open_instance
from forebay.engine.plan import END_OF_TIME, NEVER
from forebay.store import open_stores
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
