"""What hosts make of files that are not what they should be, or go while others take them for there."""

import contextlib
import errno
import os
import shutil
import signal
import threading

import pytest
from loopback_hosts import LAYOUT, QUERY, append, hosts, values, wait_for

from forebay.errors import ReplicationError
from forebay.replication import chain, local
from forebay.replication import pulls as pulls_module
from forebay.replication.holdings import Holdings
from forebay.replication.pace import Pace
from forebay.replication.protocol import Peers
from forebay.replication.pulls import Pulls
from forebay.store.aligned import AlignedStore
from forebay.store.disk import reported
from forebay.store.options import Options

INSTANCE = f"{QUERY}/{LAYOUT}/0-00000000"


def test_what_one_host_does_not_hold_comes_from_another(tmp_path):
    with hosts(tmp_path, replicas=0, uploading=False) as some:
        agents = [some.listen(number) for number in range(3)]
        store = some.open(0, None)
        for number in range(4):
            version = append(store, number)
        names = sorted(Holdings(some.disk(0)).files_of(INSTANCE, version))
        for number in (0, 1):  # each holds half of them, the other half is the other's
            for name in names:
                (some.disk(number) / INSTANCE).mkdir(parents=True, exist_ok=True)
                if not (some.disk(number) / INSTANCE / name).exists():
                    shutil.copy(some.disk(0) / INSTANCE / name, some.disk(number) / INSTANCE / name)
        for place, name in enumerate(names):
            (some.disk(place % 2) / INSTANCE / name).unlink()
        pulls = agents[2]._pulls
        pulls._holders = lambda instance: {"addresses": [each.address for each in agents], "archive": None}
        pulls.complete(INSTANCE, [*names, "000000000009-00000000-0000.arrow"])
        assert some.held(2) == set(names)
        assert pulls.received > 0


def test_what_nobody_is_known_to_hold_is_waited_for_while_hosts_are_gathered(tmp_path):
    """An application that was started again has no agent yet where the state is, until a task runs there."""
    with hosts(tmp_path, replicas=0, uploading=False) as some:
        some.listen(0)
        version = append(some.open(0, None), 0)
        shutil.copytree(some.disk(0) / INSTANCE, some.disk(1) / INSTANCE)
        shutil.rmtree(some.disk(0) / INSTANCE)
        asking, (manifest, *_) = some.listen(2), Holdings(some.disk(1)).files_of(INSTANCE, version)
        assert asking._fetch(INSTANCE, manifest) == {"found": False}
        some.manager.gather(QUERY, 60)
        coming = threading.Timer(1, some.listen, [1])
        coming.start()
        assert asking._fetch(INSTANCE, manifest) == {"found": True}
        coming.join()
        threading.Timer(1, some.manager.gathered, [QUERY]).start()
        assert asking._fetch(INSTANCE, "000000000009-00000000.manifest") == {"found": False}


@pytest.mark.thorough
def test_a_host_that_is_cut_off_holds_up_no_copy(tmp_path):
    """Another one has the same. One that is only silent ends no stream, and what it was asked for may take minutes."""
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        some.start(1)
        store = some.open(0, None)
        for number in range(12):
            append(store, *os.urandom(100_000), slice_=number)
        wait_for(lambda: some.manager.caught_up(QUERY, 0, some.name(1)))
        agent = some.listen(2)
        agent._pulls._rate = 1 << 20
        some.manager.invite(QUERY, 0, some.name(2))
        wait_for(lambda: len(some.held(2)) > 2)
        os.kill(some.pid(0), signal.SIGSTOP)
        wait_for(lambda: some.name(0) not in some.manager.hosts())
        agent._pulls._rate = 1 << 30
        wait_for(lambda: some.manager.caught_up(QUERY, 0, some.name(2)), 40)
        some.kill(0)


def test_a_copy_hurries_only_where_as_much_has_changed_meanwhile(tmp_path, monkeypatch):
    rates = []

    class Recorded(Pace):
        def took(self, size):
            rates[-1].add(self.rate)

    monkeypatch.setattr("forebay.replication.pulls.Pace", Recorded)
    monkeypatch.setattr(Recorded, "faster", lambda self: Recorded(2 * self.rate))
    with hosts(tmp_path, replicas=0, uploading=False) as some:
        agent, other = some.listen(0), some.listen(1)
        store = some.open(0, None)
        newest, later = [append(store, *range(100_000))], [100_000, 100_000, 10_000, 10]

        def note(instance, made):
            if later:
                newest.append(append(store, *range(later.pop(0)), slice_=len(later) + 1))
                rates.append(set())

        rates.append(set())
        pulls = other._pulls
        pulls._note, pulls._rate = note, 1.0
        pulls._holders = lambda _: {"addresses": [agent.address], "version": str(newest[-1]), "archive": None}
        pulls._pull(INSTANCE)
        assert some.held(1) >= Holdings(some.disk(0)).files_of(INSTANCE, newest[-1]).keys()
    assert rates == [{1.0}, {1.0}, {2.0}, {4.0}, {4.0}]


@pytest.mark.parametrize("kind", ["arrow", "manifest"])
def test_a_file_that_is_cut_short_comes_again(tmp_path, kind):
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        some.start(1)
        store = some.open(0, None)
        for number in range(3):
            version = append(store, number)
        some.kill(1)
        broken = max((some.disk(1) / INSTANCE).glob(f"*.{kind}"))
        broken.write_bytes(b"")  # replicas are not forced to disk, and the host has lost power
        some.start(1)
        wait_for(lambda: broken.stat().st_size == (some.disk(0) / INSTANCE / broken.name).stat().st_size)
        some.kill(0)
        assert values(some.open(1, version)) == [0, 1, 2]


def test_a_file_that_goes_while_others_come_is_not_taken_for_there(tmp_path):
    with hosts(tmp_path, replicas=0, uploading=False) as some:
        some.start(0)
        agent = some.listen(1)
        store, mine = some.open(0, None), Holdings(some.disk(0))
        base = append(store, 0, slice_=0)
        peers = Peers("a secret")
        chain.send(peers, mine, [chain.Offer(INSTANCE, None, mine.files_of(INSTANCE, base), 1 << 30)], [agent.address])
        assert some.held(1) >= mine.files_of(INSTANCE, base).keys()
        gone = next((some.disk(1) / INSTANCE).glob("*.arrow"))

        class Losing(Holdings):
            """Somebody else removes a file of the base when the first new one is coming."""

            def receiving(self, *arguments):
                gone.unlink(missing_ok=True)
                return super().receiving(*arguments)

        agent._holdings.__class__ = Losing
        version = append(store, 1, slice_=1)
        outcome = chain.send(peers, mine, chain.offers_of(mine, INSTANCE, mine.read(INSTANCE, version)), [agent.address])
        assert outcome.held == []
        assert outcome.behind == [agent.address]


def test_a_file_that_has_gone_and_come_back_is_looked_at_again(tmp_path):
    holdings = Holdings(tmp_path)
    version = append(AlignedStore(tmp_path / INSTANCE, None, ["k"], Options()), 1)
    assert holdings.holds(INSTANCE, version, holdings.names(INSTANCE))
    path = next((tmp_path / INSTANCE).glob("*.arrow"))
    data = path.read_bytes()
    path.unlink()
    assert not holdings.holds(INSTANCE, version, holdings.names(INSTANCE))
    path.write_bytes(data[:10])
    assert not holdings.holds(INSTANCE, version, holdings.names(INSTANCE))


def test_a_file_of_another_size_does_not_come_in(tmp_path):
    holdings = Holdings(tmp_path)
    with (
        pytest.raises(ReplicationError, match="came with 2 bytes; it has 3"),
        holdings.receiving(INSTANCE, "000000000001-00000000-0000.arrow", 3) as incoming,
    ):
        incoming.write(memoryview(b"ab"))
        incoming.whole = True
    assert holdings.names(INSTANCE) == set()


def test_what_is_removed_is_gone_at_once(tmp_path):
    holdings = Holdings(tmp_path)
    append(AlignedStore(tmp_path / INSTANCE, None, ["k"], Options()), 1)
    left = tmp_path / QUERY / LAYOUT / ".0-00000000.tmp"
    (left / "file").parent.mkdir()
    removing = threading.Thread(target=holdings.remove, args=[INSTANCE])
    removing.start()
    removing.join()
    assert holdings.names(INSTANCE) == set()
    holdings.sweep()
    assert [path.name for path in (tmp_path / QUERY / LAYOUT).iterdir()] == []


def test_what_is_named_first_comes_first_though_others_wait_for_longer():
    """A handover waits for a small one while a new host is given all that it will hold."""
    go_on, order = threading.Event(), list[str]()

    class Noted(Pulls):
        def _pull(self, instance):
            order.append(instance)
            go_on.wait(60)

    pulls = Noted(None, None, "here", None, None, 1 << 20)
    many = [f"replica {number}" for number in range(9)]
    pulls.want(many)
    wait_for(lambda: len(order) == pulls_module.AT_ONCE)
    pulls.want(["guest", *many])
    pulls.want(["second guest", "guest", *many[:4], *reversed(many[4:])])
    go_on.set()
    wait_for(lambda: len(order) == 11)
    assert {*order[: pulls_module.AT_ONCE]} == {*many[: pulls_module.AT_ONCE]}
    assert {*order[pulls_module.AT_ONCE :][:2]} == {"guest", "second guest"}


def test_a_disk_that_is_full_here_is_no_fault_of_who_sends(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    with hosts(tmp_path, replicas=0, uploading=False) as some:
        agents = [some.listen(number) for number in range(2)]
        version = append(some.open(0, None), 0)
        name, *_ = Holdings(some.disk(0)).files_of(INSTANCE, version)
        pulls = agents[1]._pulls
        holders = {"addresses": [agents[0].address], "archive": None}
        monkeypatch.setattr(Holdings, "receiving", lambda *_: full("/disk"))
        pulls._get(INSTANCE, {name: None}, holders)
        assert holders["addresses"] == [agents[0].address]
    assert "could not be kept: cannot create /disk: No space left on device" in caplog.text


@contextlib.contextmanager
def full(path):
    with reported("create", path):
        raise OSError(errno.ENOSPC, "")
    yield


def test_nothing_is_left_of_an_agent_that_was_killed_long_ago(tmp_path):
    (tmp_path / "agents").mkdir()
    left = [tmp_path / "agents" / f"app-1.{kind}" for kind in ("alive", "json", "log")]
    for path in (*left, local.socket_of(tmp_path, "app-1")):
        path.touch()
        os.utime(path, (0, 0))
    (tmp_path / "agents" / "app-2.alive").touch()
    local.sweep(tmp_path)
    assert [path.name for path in (tmp_path / "agents").iterdir()] == ["app-2.alive"]
