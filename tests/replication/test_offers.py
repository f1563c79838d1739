"""What hosts are offered, and what they make of it: a commit names its new files alone, and nobody believes too much."""

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from loopback_hosts import LAYOUT, QUERY, append, hosts, values, wait_for

from forebay.errors import CorruptState, ReplicationError, StateDirectoryError
from forebay.replication import chain
from forebay.replication.holdings import Holdings
from forebay.replication.protocol import Peers
from forebay.store import paging
from forebay.store.aligned import AlignedStore
from forebay.store.options import Options

INSTANCE = f"{QUERY}/{LAYOUT}/0-00000000"


class Counted(Holdings):
    """Holdings that count the files that they look at."""

    looked = 0

    def _size(self, instance, name):
        self.looked += 1
        return super()._size(instance, name)


def offers_of(some, version):
    """The offers of a version that host 0 holds."""
    holdings = Holdings(some.disk(0))
    return chain.offers_of(holdings, INSTANCE, holdings.read(INSTANCE, version))


def send(some, offers, *others):
    """What comes of it when host 0 makes these offers to other hosts: who holds the version, and who is left out."""
    addresses = {some.address(host): host for host in others}
    outcome = chain.send(Peers("a secret"), Holdings(some.disk(0)), offers, list(addresses))
    assert not outcome.failed
    return [[addresses[address] for address in each] for each in (outcome.held, outcome.behind, outcome.baseless)]


def files_of(some, version):
    return Holdings(some.disk(0)).files_of(INSTANCE, version).keys()


def modules_of(some, host):
    """The compiled modules that the agent of a host has loaded; what takes long to load delays its first answer."""
    return Path(f"/proc/{some.pid(host)}/maps").read_text()


def is_complete(some, host):
    """Whether the manager counts the host as one that has all files."""
    held = some.manager._hosts[some.address(host)].held
    return INSTANCE in held and held[INSTANCE].complete


def test_a_commit_offers_its_new_files_whatever_there_is_besides(tmp_path):
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        listening = some.listen(1)
        store = some.open(0, None)
        for number in range(50):
            version = append(store, number, slice_=number)
        assert len(files_of(some, version)) == 51
        assert some.held(1) >= files_of(some, version)
        named = [len(json.loads(offer)["files"]) for offer in listening.offers]
        assert named == [2] * 50
        assert max(map(len, listening.offers)) < 500


def test_files_are_looked_at_once_and_looked_for_each_time(tmp_path):
    holdings = Counted(tmp_path)
    store = AlignedStore(tmp_path / INSTANCE, None, ["k"], Options())
    for number in range(50):
        version = append(store, number, slice_=number)
    assert holdings.holds(INSTANCE, version, holdings.names(INSTANCE))
    assert holdings.looked >= 50
    holdings.looked = 0
    later = append(store, 50, slice_=50)
    assert holdings.whole(INSTANCE) == [version, later]
    assert holdings.looked <= 4
    min((tmp_path / INSTANCE).glob("*.arrow")).unlink()
    assert holdings.whole(INSTANCE) == []


def test_a_chain_of_hosts_with_the_base_and_without_it(tmp_path):
    with hosts(tmp_path, replicas=0, uploading=False) as some:
        for host in range(4):
            some.start(host)
        store = some.open(0, None)
        first, version = [append(store, number, slice_=number) for number in range(2)]
        assert send(some, offers_of(some, first), 1, 3) == [[1, 3], [], []]
        assert send(some, offers_of(some, version)[:1], 1, 2, 3) == [[1, 3], [], [2]]
        assert some.held(2) == set()
        later = append(store, 2, slice_=2)
        assert send(some, offers_of(some, later), 3, 2, 1) == [[3, 1, 2], [], []]
        assert all(some.held(host) >= files_of(some, later) for host in (1, 2, 3))
        assert not any("pandas" in modules_of(some, host) for host in (1, 2, 3))


def test_a_host_that_lacks_the_base_and_much_besides_is_behind(tmp_path):
    with hosts(tmp_path, replicas=0, uploading=False) as some:
        for host in range(3):
            some.start(host)
        store = some.open(0, None)
        first, version = [append(store, number, slice_=number) for number in range(2)]
        send(some, offers_of(some, first), 1)
        new, whole = offers_of(some, version)
        most = sum(new.files.values())
        assert send(some, [replace(new, most=most), replace(whole, most=most)], 1, 2) == [[1], [2], []]
        assert some.held(2) == set()


MORE_LOST = (("*.arrow", False), ("*.manifest", True), ("*", True), ("*", False))


@pytest.mark.parametrize(
    ("lost", "running"),
    [("*.arrow", True), ("*.manifest", False), *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE_LOST)],
)
def test_a_host_that_has_lost_files_of_the_base_gets_them_again(tmp_path, lost, running):
    with hosts(tmp_path, replicas=0, uploading=False) as some:
        some.start(0)
        some.start(1)
        store = some.open(0, None)
        for number in range(3):
            assert send(some, offers_of(some, append(store, number, slice_=number)), 1) == [[1], [], []]
        version = append(store, 3, slice_=3)
        if not running:
            some.kill(1)
        directory = some.disk(1) / INSTANCE
        if lost == "*":
            shutil.rmtree(directory)
        else:
            max(directory.glob(lost)).unlink()
        if not running:
            some.start(1)
        assert send(some, offers_of(some, version)[:1], 1) == [[], [], [1]]
        assert send(some, offers_of(some, version), 1) == [[1], [], []]
        assert some.held(1) >= files_of(some, version)


def test_the_base_is_one_attempt_at_a_version_and_no_other(tmp_path):
    with hosts(tmp_path, replicas=0, uploading=False) as some:
        some.start(0)
        some.start(1)
        first = append(some.open(0, None), 1)
        one, other = some.open(0, first), some.open(0, first)
        send(some, offers_of(some, append(one, 2)), 1)
        append(other, 3)
        version = append(other, 4)
        assert send(some, offers_of(some, version)[:1], 1) == [[], [], [1]]
        assert send(some, offers_of(some, version), 1) == [[1], [], []]
        some.kill(0)
        assert values(some.open(1, version)) == [1, 3, 4]


def test_a_host_that_gave_a_damaged_file_back_does_not_count_until_it_has_another_one(tmp_path):
    with hosts(tmp_path, replicas=0, uploading=False) as some:
        some.start(0)
        some.start(1)
        store = some.open(0, None)
        first, version = [append(store, number, slice_=number) for number in range(2)]
        send(some, offers_of(some, first), 1)
        wait_for(lambda: is_complete(some, 1))
        some.kill(0)  # nobody else can give it
        damaged = next((some.disk(1) / INSTANCE).glob("*.arrow"))
        damaged.write_bytes(bytes(byte ^ 1 for byte in damaged.read_bytes()))
        with pytest.raises(CorruptState):
            values(some.open(1, first))
        assert damaged.name not in some.held(1)
        wait_for(lambda: not is_complete(some, 1))
        assert send(some, offers_of(some, version)[:1], 1) == [[], [], [1]]
        assert send(some, offers_of(some, version), 1) == [[1], [], []]
        wait_for(lambda: is_complete(some, 1))
        shutil.rmtree(some.disk(1) / "work")
        assert values(some.open(1, first)) == [0]


@pytest.mark.parametrize("offer", [b"", b"[]", b"{}", b'{"base": "../x", "files": {}}', b'{"base": null, "files": []}'])
def test_an_offer_that_is_none(offer):
    with pytest.raises(ReplicationError, match="are all hosts on one forebay release"):
        chain.offer_of(offer)


def test_who_cannot_store_says_why_though_the_sender_goes_on(tmp_path, monkeypatch):
    """The sender has credits for the other files when the first one is refused."""
    with hosts(tmp_path, replicas=0, uploading=False) as some:
        some.start(0)
        agent = some.listen(1)
        store = some.open(0, None)
        for number in range(6):
            version = append(store, *range(300_000), slice_=number)

        def full(instance, name, size):
            raise StateDirectoryError("no room")

        monkeypatch.setattr(agent._holdings, "receiving", full)
        for _ in range(20):
            offers = offers_of(some, version)[1:]
            outcome = chain.send(Peers("a secret"), Holdings(some.disk(0)), offers, [agent.address])
            assert outcome.failed == {agent.address: "no room"}


def test_a_file_that_its_disk_does_not_give_is_not_sent_and_does_not_end_the_agent(tmp_path, monkeypatch):
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        version = append(some.open(0, None), 0)
        some.start(1)

        def unreadable(parts):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(paging, "require_readable", unreadable)
        assert send(some, offers_of(some, version), 1) == [[], [1], []]  # and so the commit goes on
        monkeypatch.undo()
        assert send(some, offers_of(some, version), 1) == [[1], [], []]
