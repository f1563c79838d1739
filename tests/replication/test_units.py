"""What the replication manager knows of partitions, from what agents tell."""

import random
import uuid

import pytest

from forebay.replication import manager, queries
from forebay.replication.copies import Copies, Replica
from forebay.replication.hosts import Host, Hosts
from forebay.replication.queries import Queries
from forebay.replication.units import Units
from forebay.store.filenames import Version

NAMES = [f"{uuid.UUID(int=number)}-00000000" for number in range(3)]


def all_of(hosts, known):
    """The partitions, made out of everything."""
    found = {}
    for address, host in hosts.items():
        for name, replica in host.held.items():
            if name.partition("/")[0] in known:
                found.setdefault(known.unit_of(name), {}).setdefault(name, {})[address] = replica
    return found


def told_at_random(chance, before):
    """What an agent holds next: of some instances another version, and some no more; what stays is the same object."""
    held = {}
    for name in (f"{query}/0123456789ab/{vnode}-00000000" for query in NAMES for vnode in range(6)):
        if chance.random() < 0.7:
            version = Version(chance.randrange(9), "00000000")
            told = Replica(version, 10, version.number, chance.random() < 0.5, chance.random() < 0.8, 0.0)
            held[name] = before[name] if name in before and chance.random() < 0.5 else told
    return held


def test_what_is_followed_is_what_there_is():
    chance, known, hosts = random.Random(7), Queries(), Hosts()
    units = Units(known)
    for _ in range(400):
        address, act = f"host-{chance.randrange(4)}", chance.random()
        if act < 0.8:
            before = hosts[address].held if address in hosts else {}
            hosts.tell(Host(address, address, 0.0, told_at_random(chance, before)))
        elif act < 0.9:
            hosts.forget(address)
        else:
            known.register(chance.choice(NAMES), chance.choice([lambda vnode: vnode % 2, lambda vnode: vnode % 3]), None)
        if chance.random() < 0.7:
            units.follow(hosts)
            expected = all_of(hosts, known)
            assert {unit: copies.instances for unit, copies in units.items()} == expected
            for unit, instances in expected.items():
                whole = Copies(instances)
                assert units[unit].origin == whole.origin
                assert [units[unit].lag(each) for each in hosts] == [whole.lag(each) for each in hosts]
                assert [units[unit].kept_by(each) for each in hosts] == [whole.kept_by(each) for each in hosts]
            for address in hosts:
                mine = {unit for unit, held in expected.items() if any(address in each for each in held.values())}
                assert units.of_host(address) == mine


def test_a_beat_makes_nothing_anew_of_what_has_not_changed(monkeypatch):
    made = []
    monkeypatch.setattr("forebay.replication.units.Copies", lambda instances: made.append(instances) or Copies(instances))
    held = {f"{NAMES[0]}/0123456789ab/{vnode}-00000000": ["000000000001-00000000", 1, 1, True, True] for vnode in range(8)}
    with manager.Manager("127.0.0.1", "a secret", 1) as service:
        service.register(NAMES[0], lambda vnode: vnode, None)
        beat(service, held, {})
        assert len(made) == 8
        for number in range(2, 5):
            held[f"{NAMES[0]}/0123456789ab/3-00000000"] = [f"{number:012}-00000000", 1, number, True, True]
            beat(service, held, {})
    assert [[*each] for each in made[8:]] == [[f"{NAMES[0]}/0123456789ab/3-00000000"]] * 3


def beat(service, held, uploading):
    told = {"failures": {}, "sent": 0, "received": 0, "free": 1 << 40}
    return service._beat(host="a", address="a:1", held=held, uploading=uploading, **told)


@pytest.mark.parametrize(("uploading", "left"), [({}, 1), ({NAMES[1]: 2}, 2), ({NAMES[2]: 1}, 1)])
def test_of_the_queries_that_ended_long_ago_those_stay_of_which_something_is_to_be_uploaded(monkeypatch, uploading, left):
    monkeypatch.setattr(queries, "KEPT_SECONDS", 0.0)
    with manager.Manager("127.0.0.1", "a secret", 1) as service:
        for name in NAMES:
            service.register(name, lambda vnode: vnode, ("somewhere", name))
        for name in NAMES[:2]:
            service.retire(name.rpartition("-")[0])
        beat(service, {}, uploading)
        service._planned = 0.0
        assert len(beat(service, {}, uploading)["queries"]) == left
