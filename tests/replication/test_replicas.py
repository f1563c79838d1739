"""Replicas on several hosts, whose agents are real processes: what is safe where, and what a host gets from where."""

import os
import resource
import signal
import time
import uuid
from threading import Event, Thread, Timer
from types import SimpleNamespace

import pytest
from loopback_hosts import LAYOUT, QUERY, Hosts, append, hosts, values, wait_for

from forebay.errors import ReplicationError, VersionNotFound
from forebay.replication import agent as agents
from forebay.replication import archive, local, manager, queries
from forebay.replication import hosts as known_hosts
from forebay.replication.holdings import KEPT_SECONDS, Holdings
from forebay.replication.protocol import Peer
from forebay.replication.queries import Queries
from forebay.state.places import Root
from forebay.store import manifest as manifests
from forebay.store.aligned import AlignedStore
from forebay.store.archive import MountedArchive
from forebay.store.filenames import Version
from forebay.store.options import Options


def partitions(some):
    return some.manager.partitions(QUERY)


def caught_up(some, host, partition=0):
    return partitions(some) != [] and some.manager.caught_up(QUERY, partition, some.name(host))


def test_a_version_is_on_another_host_when_it_is_committed(tmp_path):
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        some.start(1)
        store = some.open(0, None)
        version = append(store, 1, 2, 3)
        assert {path.name for path in store.directory.iterdir()} == some.held(1) == some.held(0)
        later = append(store, 4)
        some.kill(0)
        moved = some.open(1, later)
        assert values(moved) == [1, 2, 3, 4]
        segment = next(moved.directory.glob("*.arrow"))
        assert segment.samefile(next((some.disk(1) / QUERY).rglob(segment.name)))  # a hard link, nothing was copied
        assert values(some.open(1, version)) == [1, 2, 3]
        assert not some.safe.exists()


def test_every_version_is_on_another_host_whenever_hosts_tell_what_they_hold(tmp_path):
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        some.start(1)
        store = some.open(0, None)
        for number in range(40):
            assert f"{append(store, number)}.manifest" in some.held(1)


@pytest.mark.slow
def test_a_chain_of_two_has_all_and_goes_on_without_one_that_is_lost(tmp_path):
    with hosts(tmp_path, replicas=2) as some:
        for host in range(3):
            some.start(host)
        store = some.open(0, None)
        append(store, 1)
        assert some.held(0) == some.held(1) == some.held(2)
        some.kill(1)
        version = append(store, 2)
        assert some.held(0) == some.held(2)
        assert values(some.open(2, version)) == [1, 2]
        wait_for(lambda: some.manager.hosts() == [some.name(0), some.name(2)])
        some.start(3)
        wait_for(lambda: some.held(3) >= some.held(0))
        later = append(store, 3)
        assert values(some.open(3, later)) == [1, 2, 3]


def test_the_checkpoint_has_all_behind_replication_and_at_the_end(tmp_path):
    with hosts(tmp_path) as some:
        some.start(0)
        some.start(1)
        store = some.open(0, None)
        for number in range(10):
            version = append(store, number)
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    with hosts(fresh) as others:
        others.safe.parent.mkdir(exist_ok=True)
        some.safe.rename(others.safe)
        others.start(0)
        assert values(others.open(0, version)) == list(range(10))


def test_without_another_host_versions_are_safe_in_the_checkpoint_first(tmp_path, caplog):
    with hosts(tmp_path) as some:
        some.start(0)
        version = append(some.open(0, None), 1)
        some.kill(0)
        for path in (some.disk(0) / QUERY, some.disk(0) / "work"):
            path.rename(tmp_path / f"gone-{path.name}")
        assert values(some.open(0, version)) == [1]


@pytest.mark.slow
def test_a_host_that_comes_later_gets_what_there_is(tmp_path):
    with hosts(tmp_path) as some:
        some.start(0)
        store = some.open(0, None)
        for number in range(5):
            append(store, number)
        some.start(1)
        wait_for(lambda: some.held(1) >= some.held(0) and caught_up(some, 1))
        version = append(store, 5)
        assert some.held(1) >= {f"{version}.manifest"}
        assert values(some.open(1, version)) == list(range(6))


def test_the_origin_and_a_replica_change_places_and_nothing_is_copied(tmp_path):
    with hosts(tmp_path) as some:
        some.start(0)
        some.start(1)
        store = some.open(0, None)
        append(store, *range(1000))
        version = append(store, 1000)
        wait_for(lambda: caught_up(some, 1))
        received = some.manager.status()[some.name(0)]["received"]
        moved = some.open(1, version)
        version = append(moved, 1001)
        assert some.held(0) >= {f"{version}.manifest"}
        wait_for(lambda: [(p.origin, [*p.replicas]) for p in partitions(some)] == [(some.name(1), [some.name(0)])])
        back = some.open(0, append(moved, 1002))
        assert values(back) == list(range(1003))
        wait_for(lambda: some.manager.status()[some.name(0)]["received"] > received)
        assert some.manager.status()[some.name(0)]["received"] - received < 10_000


def test_a_host_that_holds_nothing_reads_from_those_that_do(tmp_path):
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        some.start(1)
        version = append(some.open(0, None), *range(100))
        some.start(2)
        assert values(some.open(2, version)) == list(range(100))


@pytest.mark.slow
def test_a_guest_gets_a_replica_beside_the_group(tmp_path):
    with hosts(tmp_path) as some:
        for host in range(3):
            some.start(host)
        store = some.open(0, None)
        append(store, 1)
        (guest,) = {1, 2} - {host for host in (1, 2) if some.held(host)}
        wait_for(lambda: partitions(some) != [])
        assert not caught_up(some, guest)
        some.manager.invite(QUERY, 0, some.name(guest))
        wait_for(lambda: caught_up(some, guest))
        append(store, 2)
        wait_for(lambda: some.held(guest) == some.held(0))  # its host may not have been told of the guest yet


@pytest.mark.thorough
def test_a_damaged_replica_is_got_again_from_another_host(tmp_path):
    with hosts(tmp_path, replicas=2, uploading=False) as some:
        for host in range(3):
            some.start(host)
        version = append(some.open(0, None), *range(100))
        for path in (some.disk(1) / QUERY).rglob("*.arrow"):
            data = bytearray(path.read_bytes())
            data[-20] ^= 1
            path.write_bytes(data)
        assert values(some.open(1, version)) == list(range(100))


def test_an_origin_that_was_cut_off_cannot_write_what_counts(tmp_path):
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        some.start(1)
        stale = some.open(0, None)
        version = append(stale, 1)
        current = some.open(1, version)
        for number in range(2, 9):
            version = append(current, number)
        append(stale, 100)  # it has been alive all the time
        assert values(some.open(1, version)) == list(range(1, 9))


def test_a_wrong_secret_is_refused(tmp_path):
    refused = pytest.raises(ReplicationError, match="does not accept the secret of this application")
    with hosts(tmp_path) as some, refused:
        Peer(some.manager.address, "a guess").call("holders", instance="x")


def test_two_applications_with_one_port_on_a_host(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with hosts(tmp_path / "a") as first:
        first.start(0)
        port = int(next(iter(first.manager._hosts)).rpartition(":")[2])
        with (
            hosts(tmp_path / "b", port=port) as second,
            pytest.raises(ReplicationError, match=r"set spark\.forebay\.agentPort"),
        ):
            second.start(0)


@pytest.mark.parametrize(
    ("instance", "name"),
    [("../../etc", "passwd"), (f"{QUERY}/{LAYOUT}/0-00000000", "../x.manifest"), (f"{QUERY}/../a", "b")],
)
def test_what_no_store_gives_is_not_taken(tmp_path, instance, name):
    with pytest.raises(ReplicationError, match="nothing was taken"):
        Holdings(tmp_path).path(instance, name)


def test_a_version_that_nobody_has_is_said_to_be_missing(tmp_path):
    with hosts(tmp_path) as some:
        some.start(0)
        with pytest.raises(VersionNotFound, match="no host of this application holds version"):
            some.open(0, Version(3, "00000000"))


def test_a_host_that_lacks_segments_of_the_version_before_does_not_keep_up(tmp_path):
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        some.start(1)
        store = some.open(0, None)
        append(store, 1)
        append(store, 2)
        for path in (some.disk(1) / QUERY).rglob("*.arrow"):
            path.unlink()  # manifests are there, and what they name is not
        version = append(store, 3)
        wait_for(lambda: caught_up(some, 1))
        some.kill(0)
        assert values(some.open(1, version)) == [1, 2, 3]


def test_versions_that_spark_may_go_back_to_are_uploaded_too(tmp_path):
    with hosts(tmp_path) as some:
        some.start(0)
        some.start(1)
        store = some.open(0, None)
        versions = [append(store, number) for number in range(6)]
        assert some.manager.end(60)
        manifests = {path.name for path in some.safe.rglob("*.manifest")}
        assert manifests >= {f"{version}.manifest" for version in versions[-2:]}


@pytest.mark.slow
def test_another_host_uploads_what_the_origin_could_not(tmp_path):
    with hosts(tmp_path) as some:
        some.start(0)
        some.start(1)
        some.safe.write_text("a file is where the directory should be")
        version = append(some.open(0, None), 1)
        wait_for(lambda: caught_up(some, 1))
        some.kill(0)
        some.safe.unlink()
        wait_for(lambda: some.manager.hosts() == [some.name(1)])
        wait_for(lambda: {path.name for path in some.safe.rglob("*.manifest")} == {f"{version}.manifest"})


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["of the application", "of its driver"])
def test_a_replica_is_uploaded_if_the_origin_is_lost_at_the_end(tmp_path, monkeypatch, end):
    monkeypatch.setattr(agents, "ORPHANED_SECONDS", 2.0)
    with hosts(tmp_path) as some:
        some.safe.write_text("a file is where the directory should be")
        some.start(0)
        some.listen(1)
        version = append(some.open(0, None), 1)
        wait_for(lambda: caught_up(some, 1))
        if end == "of its driver":
            some.manager.shutdown()
        some.kill(0)
        some.safe.unlink()
        if end == "of the application":
            some.manager.end(30)
        some.threads[0].join(30)
        assert not some.threads[0].is_alive()
        assert {path.name for path in some.safe.rglob("*.manifest")} == {f"{version}.manifest"}


def test_what_the_checkpoint_has_is_not_fetched_to_commit_a_row(tmp_path):
    with hosts(tmp_path) as some:
        some.start(0)
        store = some.open(0, None)
        for number in range(5):
            version = append(store, number, slice_=number)
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    with hosts(fresh) as others:
        some.safe.rename(others.safe)
        others.start(0)
        later = append(others.open(0, version), 5)
        made = manifests.read(others.disk(0) / "work" / "0-00000000", later)
        assert len(made.segments) == 6
        assert len([name for name in others.held(0) if name.endswith(".arrow")]) == 1
        assert {path.name for path in others.safe.rglob("*")} > {*made.segments, f"{later}.manifest"}


def test_a_host_that_could_not_take_a_replica_is_read_from(tmp_path):
    with hosts(tmp_path, uploading=False) as some:
        for host in range(3):
            some.start(host)
        version = append(some.open(0, None), 1)
        (replica,) = (host for host in (1, 2) if some.held(host))
        some.manager._hosts.fail(some.address(replica), "it did not answer in time", time.monotonic())
        some.kill(0)
        assert values(some.open(3 - replica, version)) == [1]


@pytest.mark.slow
def test_the_end_waits_for_uploads_and_says_if_there_are_some_left(tmp_path):
    with hosts(tmp_path) as some:
        some.start(0)
        some.start(1)
        some.safe.write_text("a file is where the directory should be")
        version = append(some.open(0, None), 1)
        Timer(8, some.safe.unlink).start()  # longer than a host that is silent is taken for lost
        assert some.manager.end(60)
        assert {path.name for path in some.safe.rglob("*.manifest")} == {f"{version}.manifest"}
    (tmp_path / "more").mkdir()
    with hosts(tmp_path / "more") as some:
        some.start(0)
        some.start(1)
        append(some.open(0, None), 1)
        some.kill(1)
        wait_for(lambda: some.manager.hosts() == [some.name(0)])
        some.kill(0)
        assert not some.manager.end(30)


def test_two_attempts_at_a_version_are_both_uploaded(tmp_path):
    with hosts(tmp_path) as some:
        some.start(0)
        store = some.open(0, None)
        first = append(store, 1)
        attempts = [append(some.open(0, first), number) for number in (2, 3)]
        (some.disk(0) / "work").rename(tmp_path / "gone")
        (some.disk(0) / QUERY).rename(tmp_path / "gone too")
        assert [values(some.open(0, attempt)) for attempt in attempts] == [[1, 2], [1, 3]]


@pytest.mark.thorough
def test_versions_go_to_the_checkpoint_while_the_agent_of_the_host_stands_still(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "ANSWER_SECONDS", 6.0)
    with hosts(tmp_path) as some:
        some.start(0)
        some.start(1)
        store = some.open(0, None)
        append(store, 1)
        pid = some.pid(0)
        os.kill(pid, signal.SIGSTOP)
        try:
            versions = [append(store, number) for number in (2, 3)]
            assert values(AlignedStore(some.safe / "forebay" / LAYOUT / "0-00000000", versions[-1], ["k"])) == [1, 2, 3]
            assert archive._silent.keys() == {some.disk(0)}  # so that the second was not waited for
        finally:
            os.kill(pid, signal.SIGCONT)
            archive._silent.clear()
        assert values(some.open(1, versions[-1])) == [1, 2, 3]


@pytest.mark.thorough
def test_an_attempt_does_not_wait_for_long_for_an_agent_that_stands_still_without_uploads(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "ANSWER_SECONDS", 3.0)
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        some.start(1)
        store = some.open(0, None)
        first = append(store, 1)
        pid = some.pid(0)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(ReplicationError):
                append(store, 2)
        finally:
            os.kill(pid, signal.SIGCONT)
        again = some.open(0, first)
        append(again, 3)
        assert values(again) == [1, 3]


@pytest.mark.slow
def test_a_host_counts_once_whatever_has_become_of_its_agent(tmp_path):
    with hosts(tmp_path) as some:
        some.start(0)
        before = some.pid(0)
        os.kill(before, signal.SIGSTOP)
        local.agent_of.cache_clear()
        with pytest.raises(ReplicationError, match="is alive and does not answer"):
            some.start(0)
        os.kill(before, signal.SIGCONT)
        some.start(0)
        assert some.pid(0) == before
        some.kill(0)
        some.start(0)
        assert some.manager.hosts() == [some.name(0)]


@pytest.mark.slow
def test_another_application_leaves_held_files_alone(tmp_path):
    with hosts(tmp_path) as first:
        first.start(0)
        first.start(1)
        store = first.open(0, None)
        versions = [append(store, number) for number in range(4)]
        held = first.held(1)
        second = Hosts(tmp_path, partitions=2)
        second.manager._queries = Queries()
        try:
            second.start(1)
            wait_for(lambda: second.manager.hosts() == [second.name(1)])
            assert second.manager.partitions(QUERY) == []
            assert first.held(1) == held
            assert values(first.open(1, versions[-1])) == [0, 1, 2, 3]
        finally:
            second.close()


STRANGER = f"{uuid.UUID(int=2)}-{0:08x}"


def unused(some, host):
    """Have all that a host holds look as after a jump of its clock, and leave what an application that has ended held."""
    left = some.disk(host) / STRANGER / LAYOUT / "0-00000000"
    left.mkdir(parents=True)
    for directory in some.disk(host).glob("*/*/*/"):
        os.utime(directory, (0, 0))
    return left


def test_what_an_agent_holds_stays_however_the_clock_jumps(tmp_path):
    with hosts(tmp_path) as some:
        some.start(0)
        append(some.open(0, None), 1)
        held, left = some.held(0), unused(some, 0)
        Holdings(some.disk(0)).sweep()  # as the agent of another application does
        assert not left.exists()
        assert some.held(0) == held
        some.kill(0)
        unused(some, 0)

        def swept():
            Holdings(some.disk(0)).sweep()
            return some.held(0) == set()

        wait_for(swept)  # who is dead holds nothing, as soon as the last of its threads has gone


def test_of_a_query_that_has_ended_long_ago_nothing_is_held(tmp_path, monkeypatch):
    with hosts(tmp_path) as some:
        agent = some.listen(0)
        store = some.open(0, None)
        append(store, 1)
        some.manager.retire(QUERY.rpartition("-")[0])
        some.manager.register(QUERY, lambda vnode: vnode % 2, some.place)  # it is started again
        append(store, 2)
        monkeypatch.setattr(queries, "KEPT_SECONDS", 0.0)
        time.sleep(1)
        assert agent.inventory.held()
        some.manager.retire(QUERY.rpartition("-")[0])
        wait_for(lambda: not agent.inventory.held())
        assert not some.manager._groups
        left = some.disk(0) / QUERY / LAYOUT / "0-00000000"
        wait_for(lambda: not agent._holdings._locks)

        def swept() -> bool:
            """Whether it goes when it is old; it is not as long as the agent still removes files there."""
            os.utime(left, (time.time() - 2 * KEPT_SECONDS,) * 2)
            agent._holdings.sweep()
            return not left.exists()

        wait_for(swept)


def test_what_a_worker_begins_to_use_is_not_swept_meanwhile(tmp_path, monkeypatch):
    instance, two_days_ago = tmp_path / QUERY / LAYOUT / "0-00000000", time.time() - 2 * KEPT_SECONDS
    instance.mkdir(parents=True)
    root = Root(instance, MountedArchive(tmp_path / "safe"))
    os.utime(instance, (two_days_ago, two_days_ago))
    root.use()
    Holdings(tmp_path).sweep()
    assert instance.exists()
    os.utime(instance, (two_days_ago, two_days_ago))
    sweeping, go_on, remove = Event(), Event(), Holdings.remove

    def slowly(holdings, name):
        sweeping.set()
        assert go_on.wait(30)
        remove(holdings, name)

    monkeypatch.setattr(Holdings, "remove", slowly)
    sweeper, user = Thread(target=Holdings(tmp_path).sweep), Thread(target=root.use)
    sweeper.start()
    assert sweeping.wait(30)
    user.start()
    user.join(0.2)
    assert user.is_alive()
    go_on.set()
    for each in (sweeper, user):
        each.join(30)
        assert not each.is_alive()
    assert not instance.exists()


def test_an_agent_that_starts_again_removes_nothing_of_its_own(tmp_path):
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        some.start(1)
        version = append(some.open(0, None), 1)
        held = some.held(0)
        some.kill(0)
        left = unused(some, 0)
        some.start(0)
        wait_for(lambda: not left.exists())
        assert some.held(0) == held
        assert values(some.open(0, version)) == [1]


def test_files_that_never_became_whole_are_swept(tmp_path):
    with hosts(tmp_path) as some:
        some.start(0)
        append(some.open(0, None), 1)
        held = some.held(0)
        directory = some.disk(0) / QUERY / LAYOUT / "0-00000000"
        for name, age in (("old", 2 * KEPT_SECONDS), ("young", 0)):
            (directory / f".{name}.tmp").touch()
            os.utime(directory / f".{name}.tmp", (time.time() - age,) * 2)
        Holdings(some.disk(0)).sweep()
        assert some.held(0) == held | {".young.tmp"}


def test_what_agents_have_left_that_ended_long_ago_is_swept(tmp_path):
    with hosts(tmp_path) as some:
        some.start(0)
        agents = some.disk(0) / "agents"
        there = {path.name for path in agents.iterdir()}
        for name in ("app-1.log", "app-1.log.1", "app-1.alive", "app-2.alive", "app-2.log"):
            (agents / name).touch()
        for path in agents.iterdir():
            if path.name != "app-2.log":
                os.utime(path, (time.time() - 2 * KEPT_SECONDS,) * 2)
        local.sweep(some.disk(0))
        assert {path.name for path in agents.iterdir()} == there | {"app-2.alive", "app-2.log"}


@pytest.mark.thorough
def test_a_host_without_room_is_left_out_and_comes_back_when_there_is_some(tmp_path, monkeypatch, caplog):
    """No file may become larger there than 64 KB; what is written beyond fails as it does on a full disk."""
    monkeypatch.setattr(known_hosts, "SHUNNED_SECONDS", 1.0)
    monkeypatch.setattr(manager, "REPAIR_SECONDS", 1.0)
    with hosts(tmp_path) as some:
        some.start(0)
        some.start(1)
        store = some.open(0, None)
        append(store, 1)
        before = resource.prlimit(some.pid(1), resource.RLIMIT_FSIZE)
        resource.prlimit(some.pid(1), resource.RLIMIT_FSIZE, (1 << 16, before[1]))
        full = append(store, *range(100_000))
        assert f"{full}.manifest" not in some.held(1)
        assert (some.safe / "forebay" / LAYOUT / "0-00000000" / f"{full}.manifest").exists()  # before Spark learns of it
        wait_for(lambda: "gets no new replicas for a while" in caplog.text and "File too large" in caplog.text)
        assert values(some.open(0, full)) == sorted([1, *range(100_000)])
        resource.prlimit(some.pid(1), resource.RLIMIT_FSIZE, before)
        later = append(store, 2)
        wait_for(lambda: f"{later}.manifest" in some.held(1))
        some.kill(0)
        assert values(some.open(1, later)) == sorted([1, 2, *range(100_000)])


@pytest.mark.thorough
def test_an_agent_whose_disk_stalls_is_not_taken_for_lost(tmp_path, monkeypatch):
    """It tells what it holds while it looks for the files of a version that has come."""
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        agent = some.listen(1)
        version = made(some)
        names, stalled, mended = agent._holdings.names, Event(), Event()

        def stalls(instance):
            stalled.set()
            assert mended.wait(30)
            return names(instance)

        monkeypatch.setattr(known_hosts, "LOST_SECONDS", 1.5)
        monkeypatch.setattr(agent._holdings, "names", stalls)
        noting = Thread(target=agent.inventory.note, args=[f"{QUERY}/{LAYOUT}/0-00000000", version], kwargs={"own": False})
        noting.start()
        assert stalled.wait(10)
        some.manager.register(f"{uuid.uuid4()}-{0:08x}", lambda vnode: 0, None)  # of which it looks for what it holds
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert some.name(1) in some.manager.hosts()
            time.sleep(0.05)
        mended.set()
        noting.join(30)
        assert not noting.is_alive()


def test_what_was_committed_here_stays_the_hosts_own_when_it_is_found_or_comes_again(tmp_path):
    with hosts(tmp_path, uploading=False) as some:
        agent = some.listen(1)
        some.start(0)
        instance = f"{QUERY}/{LAYOUT}/0-00000000"
        version = made(some)
        agent.inventory.note(instance, version, own=True)
        agent.inventory.note(instance, version, own=False)
        assert agent.inventory.held()[instance].own


def test_what_has_come_since_is_not_dropped(tmp_path):
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        agent = some.listen(1)
        store = some.open(0, None)
        append(store, 1)
        (instance,), (before,) = agent.inventory.held().keys(), agent.inventory.held().values()
        version = append(store, 2)
        agent.inventory.drop(instance, before)
        assert agent.inventory.held()[instance].version == version and f"{version}.manifest" in some.held(1)
        agent._uploads.wish(instance, Version.parse("000000000009-00000000"), some.place)  # whose files never came
        wait_for(lambda: agent._uploads._wishes[instance].failed)
        agent.inventory.drop(instance, agent.inventory.held()[instance])
        assert instance not in agent.inventory.held() and not some.held(1)
        assert not agent._uploads.pending  # or the end of the application would wait for it


def test_what_was_acknowledged_and_is_not_known_yet_is_not_dropped(tmp_path):
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        agent = some.listen(1)
        store = some.open(0, None)
        append(store, 1)
        ((instance, before),) = agent.inventory.held().items()
        note = agent.inventory.note

        def late(*told, **how):
            agent.inventory.drop(instance, before)
            note(*told, **how)

        agent.inventory.note = late
        version = append(store, 2)
        wait_for(lambda: agent.inventory.held()[instance].version == version)
        assert f"{version}.manifest" in some.held(1)
        agent.inventory.note = note
        agent.inventory.drop(instance, agent.inventory.held()[instance])
        assert not some.held(1)


def test_either_of_two_attempts_on_two_hosts_can_be_gone_on_from(tmp_path):
    """Until the version that both began with is no longer kept; then what nobody has gone on from leaves both hosts."""
    with hosts(tmp_path, uploading=False) as some:
        some.start(0)
        some.start(1)
        begun = append(some.open(0, None), 1)
        first, second = append(some.open(0, begun), 2), append(some.open(1, begun), 3)
        for host in (0, 1):
            assert values(some.open(host, first)) == [1, 2]
            assert values(some.open(host, second)) == [1, 3]
        latest = second
        for number in range(4, 4 + Options().retain_versions):
            latest = append(some.open(number % 2, latest), number)
            assert {f"{latest}.manifest"} <= some.held(0) & some.held(1)
        assert f"{first}.manifest" not in some.held(0) | some.held(1)
        assert values(some.open(0, latest)) == values(some.open(1, latest)) == [1, 3, *range(4, number + 1)]


def made(some):
    """A version that the second host has just got."""
    store = some.open(0, None)
    version = append(store, 1)
    return Holdings(some.disk(1)).read(f"{QUERY}/{LAYOUT}/0-00000000", version)


def test_replicas_change_hosts_when_partitions_have_gone_where_they_should(monkeypatch):
    monkeypatch.setattr(manager, "SETTLING_SECONDS", 1000.0)
    monkeypatch.setattr(manager, "STARTING_SECONDS", 0.0)
    monkeypatch.setattr(manager, "_PLANNED_SECONDS", 0.0)
    instances = [f"{QUERY}/{LAYOUT}/{vnode}-00000000" for vnode in range(4)]
    service = manager.Manager("127.0.0.1", "a secret", 1)

    def beat(host, names, *, own=False):
        held = {name: ["000000000001-00000000", 1000, 1, own, True] for name in names}
        return service._beat(host, f"{host}:1", held, {}, 0, 0, {}, 1 << 40)["wanted"]

    try:
        service.register(QUERY, lambda vnode: vnode, None)
        beat("a", instances, own=True)
        beat("b", instances)
        assert beat("c", []) == []  # it has just joined
        monkeypatch.setattr(manager, "SETTLING_SECONDS", 0.0)
        service.invite(QUERY, 0, "c")
        assert beat("c", []) == instances[:1]
        service.dismiss(QUERY, 0, "c")
        assert len(beat("c", [])) == 2
    finally:
        service.shutdown()


def test_what_a_host_has_copied_for_a_handover_is_there_when_it_is_tried_again(monkeypatch):
    monkeypatch.setattr(manager, "_PLANNED_SECONDS", 0.0)
    instance, service = f"{QUERY}/{LAYOUT}/0-00000000", manager.Manager("127.0.0.1", "a secret", 1)

    def dropped(free=1 << 40):
        for host, number in ("a", 20), ("b", 20), ("c", 5):
            held = {instance: [f"{number:012}-00000000", 1000, number, host == "a", True]}
            found = service._beat(host, f"{host}:1", held, {}, 0, 0, {}, free if host == "c" else 1 << 40)["dropped"]
        return found

    try:
        service.register(QUERY, lambda vnode: vnode, None)
        dropped()
        assert dropped() == []
        assert dropped(free=100) == [instance]
        monkeypatch.setattr(manager, "_KEPT_SECONDS", 0.0)
        assert dropped() == [instance]
    finally:
        service.shutdown()


def test_replicas_are_made_while_hosts_are_lost_one_after_the_other(monkeypatch):
    monkeypatch.setattr(manager, "_PLANNED_SECONDS", 0.0)
    now, service = [0.0], manager.Manager("127.0.0.1", "a secret", 1)
    monkeypatch.setattr(manager.time, "monotonic", lambda: now[0])
    instance, wanted = f"{QUERY}/{LAYOUT}/0-00000000", 0
    try:
        service.register(QUERY, lambda vnode: vnode, None)
        for now[0] in range(300):
            others = (f"{now[0] // 14}", f"{now[0] // 14 + 1}")  # one goes, and one comes
            for host in ("a", *others):
                held = {instance: [f"{now[0]:012}-00000000", 1000, now[0], True, True]} if host == "a" else {}
                found = service._beat(host, f"{host}:1", held, {}, 0, 0, {}, 1 << 40)["wanted"]
                wanted += len(found) if now[0] > 100 else 0
        assert wanted > 0
    finally:
        service.shutdown()


def test_hosts_are_asked_to_keep_replicas_in_turn_before_any_has_told_what_it_holds():
    service = manager.Manager("127.0.0.1", "a secret", 1)
    try:
        service.register(QUERY, lambda vnode: vnode, None)
        for host in "abcd":
            service._beat(host, f"{host}:1", {}, {}, 0, 0, {}, 1 << 40)
        names = [f"{QUERY}/{LAYOUT}/{vnode}-00000000" for vnode in range(24)]
        chosen = [service._group(name, f"{'abcd'[i % 4]}:1", "abcd"[i % 4])["members"][0] for i, name in enumerate(names)]
        assert sorted(chosen.count(f"{host}:1") for host in "abcd") == [6, 6, 6, 6]
    finally:
        service.shutdown()


def test_replicas_of_hosts_that_begin_together_are_spread_over_them_at_once(monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(manager, "_PLANNED_SECONDS", 0.0)
    instances = {f"{QUERY}/{LAYOUT}/{vnode}-00000000": ["000000000001-00000000", 1000, 1, True, True] for vnode in range(2)}
    service = manager.Manager("127.0.0.1", "a secret", 1)
    try:
        service.register(QUERY, lambda vnode: vnode, None)
        for host in "abc":
            service._beat(host, f"{host}:1", instances if host == "a" else {}, {}, 0, 0, {}, 1 << 40)
        assert {*map(tuple, service._targets.values())} == {("b:1",), ("c:1",)}
        assert "replicas of partition 0, which a runs: b" in caplog.text
    finally:
        service.shutdown()


@pytest.fixture
def clock(monkeypatch):
    """What the manager takes for the time, in a list."""
    now = [1000.0]
    monkeypatch.setattr(manager, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def beat(clock):
    """What an agent tells of one instance, and what it is told; ``.service`` is the manager."""
    service = manager.Manager("127.0.0.1", "a secret", 1)
    service.register(QUERY, lambda vnode: vnode, None)

    def told(host, *, has=False, own=False, failures=None, port=1):
        held = {INSTANCE: ["000000000001-00000000", 1000, 1, own, True]} if has or own else {}
        return service._beat(host, f"{host}:{port}", held, failures or {}, 0, 0, {}, 1 << 40)

    told.service = service
    yield told
    service.shutdown()


INSTANCE = f"{QUERY}/{LAYOUT}/0-00000000"


@pytest.mark.parametrize("again", [None, 20.0], ids=["once", "twice"])
def test_a_host_that_did_not_take_a_version_keeps_its_replicas_unless_it_takes_no_other(beat, clock, again):
    beat("a", own=True)
    beat("b", has=True)
    for _ in range(200):  # longer than it takes until replicas are levelled
        clock[0] += 0.5
        beat("a", own=True)
        beat("b", has=True)
        beat("c")
    began, groups = clock[0], []
    for _ in range(200):
        clock[0] += 0.5
        failures = {"b:1": "it did not answer in time"} if clock[0] - began in (0.5, again) else None
        beat("a", own=True, failures=failures)
        beat("b", has=True)
        groups.append((clock[0] - began, beat("c")["wanted"], beat.service._targets[QUERY, 0]))
    changed = [when for when, wanted, target in groups if wanted or target != ["b:1"]]
    assert changed == [when for when, _, _ in groups if again is not None and when >= 0.5 + known_hosts.PATIENT_SECONDS]


def test_an_invited_host_that_has_another_agent_stays_invited(beat, clock):
    beat("a", own=True)
    beat("b", has=True)
    beat("c")
    beat.service.invite(QUERY, 0, "c")
    assert beat("c")["wanted"] == [INSTANCE]
    clock[0] += 1
    assert beat("c", port=2)["wanted"] == [INSTANCE]
    beat.service.dismiss(QUERY, 0, "c")
    assert beat("c", port=2)["wanted"] == []


def test_hosts_are_not_lost_when_the_driver_has_stood_still(beat, clock):
    beat("a", own=True)
    beat("b", has=True)
    clock[0] += 60
    assert beat("a", own=True)["groups"] == {INSTANCE: ["b:1"]}
    assert beat.service.hosts() == ["a", "b"]
    for _ in range(11):
        clock[0] += 0.5
        beat("a", own=True)
    assert beat.service.hosts() == ["a"]
