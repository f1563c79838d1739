"""Sizes that are read from manifests are those that tasks tell."""

import pytest

from forebay.engine.open import open_instance
from forebay.engine.plan import NEVER
from forebay.spark.driver import sizes
from forebay.spark.driver.tally import Tally
from forebay.store import open_stores
from forebay.store.archive import MountedArchive
from test_golden import PLANS, batch


def worked(plan, directory, batches):
    """What the task of a virtual node tells after some micro-batches."""
    open_stores.clear()
    version = None
    for number in range(batches):
        instance = open_instance(plan, directory, version, NEVER if number == 0 else number * 20 - 5)
        instance.ingest(batch(plan, number))
        list(instance.fire(number * 20 + 15))
        version = instance.commit(number)
        told = instance.metrics
        instance.close()
    return {"stateBytes": told.disk_bytes, "stateLiveBytes": told.live_bytes, "storedEvents": told.events, "memoryBytes": 0}


@pytest.mark.parametrize("name", PLANS)
def test_they_are_those_that_tasks_tell(name, tmp_path):
    told = {vnode: worked(PLANS[name], tmp_path / f"{vnode}-00000000", 2 + vnode) for vnode in range(3)}
    assert sizes._read(MountedArchive(tmp_path)) == told
    assert told[0]["stateBytes"] >= told[0]["stateLiveBytes"] > 0


def test_where_nothing_is_there_are_none(tmp_path):
    assert sizes._read(MountedArchive(tmp_path / "nowhere")) == {}


def test_a_damaged_manifest_gives_way_to_the_version_before(tmp_path):
    plan = PLANS["sliding-sum"]
    told = worked(plan, tmp_path / "0-00000000", 3)
    assert sizes._read(MountedArchive(tmp_path)) == {0: told}
    for path in sorted(tmp_path.glob("*/*.manifest"))[-1:]:
        path.write_bytes(b"damaged")
    assert sizes._read(MountedArchive(tmp_path)).keys() == {0}


def test_they_count_for_virtual_nodes_that_have_told_nothing():
    tally, read = (
        Tally(),
        {vnode: {"stateBytes": 10, "stateLiveBytes": 5, "storedEvents": 0, "memoryBytes": 0} for vnode in range(4)},
    )
    tally.take(7, {2: {"stateBytes": 100, "stateLiveBytes": 50, "storedEvents": 0, "memoryBytes": 1}})
    tally.complete(read)
    tally.take(8, {3: {"stateBytes": 11, "stateLiveBytes": 6, "storedEvents": 0, "memoryBytes": 1}})
    assert [row["stateBytes"] for row in tally.rows.values()] == [130, 131]
    assert tally.total()["stateLiveBytes"] == 50 + 5 + 5 + 6
