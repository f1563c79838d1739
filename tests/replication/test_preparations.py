"""Key indexes that the agent of another host reads before anybody waits for them."""

import json
import threading
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from loopback_hosts import LAYOUT, QUERY, hosts, wait_for

from forebay.replication import preparations
from forebay.replication.holdings import Holdings
from forebay.replication.preparations import Preparations, prepared_of
from forebay.store import index_log, open_stores
from forebay.store.options import Options
from forebay.store.unaligned import UnalignedStore
from forebay.windows import ENDLESS

INSTANCE, ANOTHER = f"{QUERY}/{LAYOUT}/0-00000000", f"{QUERY}/{LAYOUT}/1-00000000"
KEYS = 70_000
"""So many that their index is written as a picture."""


@pytest.fixture(autouse=True)
def none_kept(monkeypatch):
    monkeypatch.setattr(preparations, "TAKE_SECONDS", 30.0)  # a machine may be slow
    open_stores.clear()
    yield
    open_stores.clear()


@pytest.fixture
def two_hosts(tmp_path):
    """Two hosts, of which the second one has its agent in this process."""
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        some.agent = some.listen(1)
        found = some.disk(1) / "agents" / f"{some.application.name}.json"
        found.parent.mkdir(exist_ok=True)  # the agent may be known before it has made it
        found.write_text(json.dumps({"address": some.agent.address}))  # tasks of the host find this one
        yield some


@pytest.fixture
def held(tmp_path):
    """A store with a picture where an agent holds it, and preparations of that agent."""
    store = UnalignedStore(tmp_path / INSTANCE, None)
    put(store, np.arange(KEYS), 0)
    return store, Preparations(Holdings(tmp_path), 1 << 30)


def open_at(some, host, version):
    """A store as a task on a host opens it."""
    directory = some.disk(host) / "work" / "0-00000000"
    return open_stores.take(directory, version, Options(retain_versions=8), None, some.archive(host), None)


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


def is_read(store):
    """Whether a store that has been opened has its key index."""
    return "index" in store.__dict__


def prepared(some, version=None):
    """Whether the second host has prepared the store, for a version if one is given."""
    ready = some.agent.preparations._ready.get(INSTANCE)
    return ready is not None and version in (None, ready.store.base.version)


@pytest.mark.parametrize("later", [0, 3, *(pytest.param(later, marks=pytest.mark.slow) for later in (1, 20))])
def test_a_host_with_a_replica_opens_the_store_without_reading_its_key_index(two_hosts, later):
    store = open_at(two_hosts, 0, None)
    version = put(store, np.arange(KEYS), 0)
    wait_for(lambda: prepared(two_hosts, version))
    expected = dict.fromkeys(range(KEYS), 0)
    for number in range(1, later + 1):
        changed = range(number * 100, number * 100 + KEYS // 100)
        version = put(store, changed, number)
        expected |= dict.fromkeys(changed, number)
    if later > 8:
        wait_for(lambda: prepared(two_hosts) and two_hosts.agent.preparations._ready[INSTANCE].store.base.version.number > 8)
    moved = open_at(two_hosts, 1, version)
    assert is_read(moved)
    assert [*two_hosts.agent.preparations._ready] == []
    assert content(moved) == expected
    version = put(moved, range(50), -1)
    assert content(open_at(two_hosts, 0, version)) == expected | dict.fromkeys(range(50), -1)


def test_what_is_prepared_is_given_once(two_hosts):
    version = put(open_at(two_hosts, 0, None), np.arange(KEYS), 0)
    wait_for(lambda: prepared(two_hosts))
    first, second = (open_at(two_hosts, 1, version) for _ in range(2))
    assert (is_read(first), is_read(second)) == (True, False)
    put(first, range(KEYS // 2), 1)
    assert content(second) == dict.fromkeys(range(KEYS), 0)


def test_a_micro_batch_that_is_run_again_goes_on_with_what_is_prepared(two_hosts, monkeypatch):
    monkeypatch.setattr(preparations, "BEHIND", 0)
    store = open_at(two_hosts, 0, None)
    put(store, np.arange(KEYS), 0)
    version = put(store, range(10), 1)
    put(store, range(10), 2)  # Spark never learns of it
    wait_for(lambda: prepared(two_hosts, version))
    again = open_at(two_hosts, 1, version)
    assert is_read(again)
    assert content(again) == dict.fromkeys(range(KEYS), 0) | dict.fromkeys(range(10), 1)


def test_a_store_is_not_taken_for_that_of_another_attempt(two_hosts, monkeypatch):
    monkeypatch.setattr(preparations, "BEHIND", 0)
    store = open_at(two_hosts, 0, None)
    begun = put(store, np.arange(KEYS), 0)
    first = put(store, range(10), 1)
    put(store, range(10), 2)
    wait_for(lambda: prepared(two_hosts, first))
    monkeypatch.setattr(two_hosts.agent.preparations, "note", lambda *noted: None)
    other = open_at(two_hosts, 0, begun)
    version = put(other, range(20, 30), 3)
    moved = open_at(two_hosts, 1, version)
    assert not is_read(moved)
    assert content(moved) == dict.fromkeys(range(KEYS), 0) | dict.fromkeys(range(20, 30), 3)


def test_a_store_goes_on_with_the_attempt_that_others_go_on_from(two_hosts):
    store = open_at(two_hosts, 0, None)
    begun = put(store, np.arange(KEYS), 0)
    put(store, range(10), 1)
    lost = put(store, range(10), 2)
    two_hosts.agent.preparations.forget(INSTANCE)
    put(store, range(10), 3)
    wait_for(lambda: prepared(two_hosts, lost))
    other = open_at(two_hosts, 0, begun)
    for value in (4, 5, 6, 7):
        version = put(other, range(10), value)
    wait_for(lambda: prepared(two_hosts) and not prepared(two_hosts, lost))
    moved = open_at(two_hosts, 1, version)
    assert is_read(moved)
    assert content(moved) == dict.fromkeys(range(KEYS), 0) | dict.fromkeys(range(10), 7)


def test_a_picture_that_is_new_is_read(two_hosts):
    store = open_at(two_hosts, 0, None)
    put(store, np.arange(KEYS), 0)
    wait_for(lambda: prepared(two_hosts))
    version = put(store, range(KEYS - 5), 1)  # most have changed
    put(store, range(5), 2)
    wait_for(lambda: prepared(two_hosts, version))


def test_a_replica_that_is_not_held_any_more_is_not_prepared(two_hosts):
    put(open_at(two_hosts, 0, None), np.arange(KEYS), 0)
    wait_for(lambda: prepared(two_hosts))
    two_hosts.agent.inventory.drop(INSTANCE, two_hosts.agent.inventory.held()[INSTANCE])
    assert not prepared(two_hosts)


def test_a_wrong_secret_and_an_unknown_instance_get_nothing(two_hosts):
    version = put(open_at(two_hosts, 0, None), np.arange(KEYS), 0)
    wait_for(lambda: prepared(two_hosts, version))
    application, disk = two_hosts.application, two_hosts.disk(1)
    assert prepared_of(disk, replace(application, secret="another secret"), INSTANCE) is None
    assert prepared_of(disk, replace(application, name="x" * 200), INSTANCE) is None
    assert prepared_of(disk, application, INSTANCE[:-1] + "1") is None
    assert prepared_of(disk / "elsewhere", application, INSTANCE) is None
    assert prepared_of(disk, application, INSTANCE) is not None


def test_small_stores_are_not_prepared(held, tmp_path):
    store, prepares = held
    small = UnalignedStore(tmp_path / ANOTHER, None)
    put(small, np.arange(100), 0)
    prepares.note(ANOTHER, small.base)
    prepares.note(INSTANCE, store.base)
    wait_for(lambda: [*prepares._ready] != [])
    assert [*prepares._ready] == [INSTANCE]


def test_what_is_too_large_is_prepared_when_there_is_room(held, tmp_path):
    store, _ = held
    (tmp_path / ANOTHER).symlink_to(tmp_path / INSTANCE)
    prepares = Preparations(Holdings(tmp_path), 12 << 20)  # one has 8 MiB
    prepares.note(INSTANCE, store.base)
    wait_for(lambda: [*prepares._ready] == [INSTANCE])
    prepares.note(ANOTHER, store.base)
    wait_for(lambda: ANOTHER in prepares._too_large)
    assert [*prepares._ready] == [INSTANCE]
    assert prepares.take(INSTANCE) is not None
    prepares.note(ANOTHER, store.base)
    wait_for(lambda: [*prepares._ready] == [ANOTHER])


def test_what_is_too_large_is_not_read_again_while_nothing_has_become_free(held, tmp_path, monkeypatch):
    store, _ = held
    opened, size = [], UnalignedStore.index_bytes.fget
    monkeypatch.setattr(UnalignedStore, "index_bytes", property(lambda self: (opened.append(1), size(self))[1]))
    prepares = Preparations(Holdings(tmp_path), 4 << 20)  # one has 8 MiB
    for number in range(4):
        put(store, range(10), number)
        prepares.note(INSTANCE, store.base)
        wait_for(lambda: not prepares._wanted and prepares._working is None)
        prepares.forget(ANOTHER)  # one that commits on this host
    assert len(opened) == 1


def test_a_store_that_has_grown_too_large_is_not_kept(held, tmp_path):
    store, _ = held
    prepares = Preparations(Holdings(tmp_path), 12 << 20)  # one has 8 MiB, and twice as much when it grows
    prepares.note(INSTANCE, store.base)
    wait_for(lambda: [*prepares._ready] == [INSTANCE])
    sizes = []
    for number in range(1, 10):
        put(store, range(number * KEYS, (number + 1) * KEYS), number)
        prepares.note(INSTANCE, store.base)
        wait_for(lambda: not prepares._wanted and prepares._working is None)
        sizes.append(sum(each.shared.nbytes for each in prepares._ready.values()))
    assert max(sizes) <= 12 << 20
    assert sizes[-1] == 0


def test_nothing_is_prepared_where_there_may_be_no_memory(held, tmp_path):
    store, _ = held
    prepares = Preparations(Holdings(tmp_path), 0)
    prepares.note(INSTANCE, store.base)
    assert not prepares._wanted


def test_nothing_is_prepared_where_memory_cannot_be_shared(held, tmp_path, monkeypatch):
    store, _ = held
    monkeypatch.setattr("os.memfd_create", lambda name: (_ for _ in ()).throw(PermissionError(1, "not permitted")))
    prepares = Preparations(Holdings(tmp_path), 1 << 30)
    prepares.note(INSTANCE, store.base)
    assert not prepares._wanted


def test_after_a_failure_a_store_is_left_alone_for_some_versions(held, tmp_path):
    store, prepares = held
    versions = [store.base]
    for number in range(20):
        put(store, range(10), number)
        versions.append(store.base)
    for path in (tmp_path / INSTANCE).glob("*.arrow"):
        path.rename(path.with_suffix(".gone"))
    prepares.note(INSTANCE, versions[-10])
    wait_for(lambda: INSTANCE in prepares._resting and prepares._working is None)
    assert [*prepares._ready] == []
    for path in (tmp_path / INSTANCE).glob("*.gone"):
        path.rename(path.with_suffix(".arrow"))
    prepares.note(INSTANCE, versions[-9])
    assert not prepares._wanted
    prepares.note(INSTANCE, versions[-1])
    wait_for(lambda: [*prepares._ready] == [INSTANCE])
    assert not prepares._resting


def test_files_that_go_while_they_are_read_do_not_matter(held, tmp_path, monkeypatch):
    store, prepares = held
    read = index_log.read

    def read_and_remove(log):
        for path in (tmp_path / INSTANCE).glob("*.arrow"):
            path.unlink()
        return read(log)

    monkeypatch.setattr(index_log, "read", read_and_remove)
    prepares.note(INSTANCE, store.base)
    wait_for(lambda: [*prepares._ready] == [INSTANCE])


@pytest.fixture
def blocked(monkeypatch):
    """Preparing waits until the event is set."""
    begun, goes_on, prepare = threading.Event(), threading.Event(), UnalignedStore.prepare

    def waiting(self):
        begun.set()
        assert goes_on.wait(30)
        return prepare(self)

    monkeypatch.setattr(UnalignedStore, "prepare", waiting)
    yield begun, goes_on
    goes_on.set()


def test_what_is_forgotten_while_it_is_prepared_is_not_kept(held, blocked):
    store, prepares = held
    begun, goes_on = blocked
    prepares.note(INSTANCE, store.base)
    assert begun.wait(30)
    prepares.forget(INSTANCE)
    goes_on.set()
    (prepares._holdings.root / ANOTHER).symlink_to(prepares._holdings.root / INSTANCE)
    prepares.note(ANOTHER, store.base)
    wait_for(lambda: [*prepares._ready] != [])
    assert [*prepares._ready] == [ANOTHER]


def test_a_task_waits_for_a_store_that_is_being_prepared(held, blocked):
    store, prepares = held
    begun, goes_on = blocked
    prepares.note(INSTANCE, store.base)
    assert begun.wait(30)
    threading.Timer(0.2, goes_on.set).start()
    assert prepares.take(INSTANCE) is not None
