"""Key indexes that the agent of another host reads before anybody waits for them."""

import json

import numpy as np
import pyarrow as pa
import pytest
from loopback_hosts import LAYOUT, QUERY, hosts, wait_for

from forebay.replication.preparations import Preparations, prepared_of
from forebay.store import index_log, open_stores
from forebay.store.options import Options
from forebay.store.unaligned import UnalignedStore
from forebay.windows import ENDLESS

INSTANCE = f"{QUERY}/{LAYOUT}/0-00000000"
KEYS = 70_000
"""So many that their index is written as a picture."""


@pytest.fixture(autouse=True)
def none_kept():
    open_stores.clear()
    yield
    open_stores.clear()


@pytest.fixture
def two_hosts(tmp_path):
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        some.agent = some.listen(1)
        found = some.disk(1) / "agents" / f"{some.application.name}.json"
        found.write_text(json.dumps({"address": some.agent.address}))  # tasks of the host find this one
        yield some


def open_at(some, host, version):
    """A store as a task on a host opens it."""
    directory = some.disk(host) / "work" / "0-00000000"
    return open_stores.take(directory, version, Options(), None, some.archive(host), None)


def put(store, keys, value):
    """Give keys another row in place of theirs, and commit."""
    keys = np.asarray(keys)
    slots = store.index.place_merging(keys, keys, np.zeros_like(keys), np.full_like(keys, ENDLESS))
    store.renew(slots)
    store.append(pa.record_batch({"key": keys, "value": np.full(len(keys), value)}), slots)
    return store.commit(None, None, 0)


def content(store):
    frame = store.get(store.index.live())
    return dict(frame.select("key", "value").iter_rows())


def prepared(some, version=None):
    """Whether the second host has prepared the store, for a version if one is given."""
    ready = some.agent.preparations._ready.get(INSTANCE)
    return ready is not None and version in (None, ready.store.base.version)


def never_read(monkeypatch):
    def refused(log):
        raise AssertionError("the key index is read from disk")

    monkeypatch.setattr(index_log, "read", refused)


@pytest.mark.parametrize("later", [0, 3, 20])
def test_a_host_with_a_replica_opens_the_store_without_reading_its_key_index(two_hosts, monkeypatch, later):
    store = open_at(two_hosts, 0, None)
    version = put(store, np.arange(KEYS), 0)
    wait_for(lambda: prepared(two_hosts, version))
    expected = dict.fromkeys(range(KEYS), 0)
    for number in range(1, later + 1):
        changed = range(number * 100, number * 100 + KEYS // 100)
        version = put(store, changed, number)
        expected |= dict.fromkeys(changed, number)
    if later > 8:
        wait_for(lambda: two_hosts.agent.preparations._ready[INSTANCE].store.base.version.number > 8)
    never_read(monkeypatch)
    moved = open_at(two_hosts, 1, version)
    assert content(moved) == expected
    version = put(moved, range(50), -1)
    assert not prepared(two_hosts)
    monkeypatch.undo()
    assert content(open_at(two_hosts, 0, version)) == expected | dict.fromkeys(range(50), -1)


def test_what_is_prepared_is_given_once(two_hosts):
    version = put(open_at(two_hosts, 0, None), np.arange(KEYS), 0)
    wait_for(lambda: prepared(two_hosts))
    first, second = (open_at(two_hosts, 1, version) for _ in range(2))
    assert "index" in first.__dict__
    assert "index" not in second.__dict__
    put(first, range(KEYS // 2), 1)
    assert content(second) == dict.fromkeys(range(KEYS), 0)


def test_another_attempt_at_a_version_does_not_get_what_the_first_one_was(two_hosts):
    version = put(open_at(two_hosts, 0, None), np.arange(KEYS), 0)
    put(open_at(two_hosts, 0, version), range(10), 1)  # Spark never learns of it
    wait_for(lambda: prepared(two_hosts))
    second = open_at(two_hosts, 0, version)
    other = put(second, range(10), 2)
    two_hosts.agent.preparations._wanted.clear()
    assert content(open_at(two_hosts, 1, other)) == dict.fromkeys(range(KEYS), 0) | dict.fromkeys(range(10), 2)


def test_a_picture_that_is_new_is_read_at_once(two_hosts):
    store = open_at(two_hosts, 0, None)
    put(store, np.arange(KEYS), 0)
    wait_for(lambda: prepared(two_hosts))
    version = put(store, range(KEYS - 5), 1)  # most have changed
    wait_for(lambda: prepared(two_hosts, version))


def test_a_wrong_secret_and_an_unknown_instance_get_nothing(two_hosts):
    version = put(open_at(two_hosts, 0, None), np.arange(KEYS), 0)
    wait_for(lambda: prepared(two_hosts, version))
    application, disk = two_hosts.application, two_hosts.disk(1)
    stranger = type(application)(application.name, application.manager, "another secret")
    assert prepared_of(disk, stranger, INSTANCE) is None
    assert prepared_of(disk, application, INSTANCE[:-1] + "1") is None
    assert prepared_of(disk / "elsewhere", application, INSTANCE) is None
    assert prepared_of(disk, application, INSTANCE) is not None


def test_small_stores_and_those_that_are_too_large_together_are_not_prepared(two_hosts):
    store = open_at(two_hosts, 0, None)
    put(store, np.arange(100), 0)
    preparations = two_hosts.agent.preparations
    assert not preparations._wanted
    preparations._most_bytes = 1 << 20
    version = put(store, np.arange(KEYS), 0)
    wait_for(lambda: preparations._too_large == {INSTANCE})
    moved = open_at(two_hosts, 1, version)
    assert "index" not in moved.__dict__
    assert len(content(moved)) == KEYS


def test_files_that_have_gone_leave_nothing_prepared(tmp_path):
    from forebay.replication.holdings import Holdings

    directory = tmp_path / INSTANCE
    store = UnalignedStore(directory, None)
    version = put(store, np.arange(KEYS), 0)
    preparations = Preparations(Holdings(tmp_path), 1 << 30)
    made = store.base
    for path in directory.glob("*.arrow"):
        path.rename(path.with_suffix(".gone"))
    preparations.note(INSTANCE, made)
    wait_for(lambda: not preparations._wanted and preparations._working is None)
    assert preparations.prepared == []
    for path in directory.glob("*.gone"):
        path.rename(path.with_suffix(".arrow"))
    preparations.note(INSTANCE, made)
    wait_for(lambda: preparations.prepared == [INSTANCE])
    assert preparations.take(INSTANCE) is not None
    assert version == made.version
