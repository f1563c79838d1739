"""Which hosts keep the replicas of which partitions."""

import random
from collections import Counter

import pytest

from forebay.replication.groups import CHANGED_SECONDS, Sizes, assign

HOSTS = ["a", "b", "c", "d"]


def test_what_one_host_runs_is_spread_over_the_others():
    """Though each of the others has less when its turn comes."""
    origins = {0: "a", 1: "b", 2: "c", 3: "a"}
    groups = assign(dict.fromkeys(origins, 100), origins, ["a", "b", "c"], 1, {})
    assert {*groups[0], *groups[3]} == {"b", "c"}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_a_lost_host_leaves_its_partitions_to_as_many_hosts_as_there_are(seed, replicas):
    """They come one after the other, as first commits do, and in any order."""
    pick = random.Random(seed)
    origins, groups = {}, {}
    units = [(host, number) for host in HOSTS for number in range(6)]
    for host, number in pick.sample(units, len(units)):
        origins[host, number] = host
        groups = assign(dict.fromkeys(origins, 10), origins, HOSTS, replicas, groups)
    for host in HOSTS:
        members = Counter(member for unit, group in groups.items() if unit[0] == host for member in group)
        assert host not in members
        assert max(members.values()) == 6 * replicas // 3


def test_members_stay_while_they_can():
    origins = {0: "a", 1: "a", 2: "a"}
    before = {0: ["b"], 1: ["b"], 2: ["c"]}
    assert assign(dict.fromkeys(origins, 5), origins, ["a", "b", "c"], 1, before) == before


def test_what_one_host_runs_is_spread_even_when_others_ran_it_before():
    """Two of the partitions of a have come there later, each from a host whose replicas are on b."""
    origins = {0: "a", 1: "b", 2: "c", 3: "a"}
    groups = assign(dict.fromkeys(origins, 100), origins, ["a", "b", "c"], 1, {0: ["b"], 1: ["c"], 2: ["a"], 3: ["b"]})
    assert {*groups[0], *groups[3]} == {"b", "c"}
    assert [groups[1], groups[2]] == [["c"], ["a"]]


def test_members_stay_after_a_loss_as_long_as_they_must():
    origins = {0: "a", 1: "a"}
    before = {0: ["b"], 1: ["b"]}
    assert assign(dict.fromkeys(origins, 5), origins, ["a", "b", "c"], 1, before, level=False) == before


@pytest.mark.parametrize("seed", range(50))
def test_groups_that_are_made_anew_stay_as_they_are(seed):
    """Wherever partitions were and whatever their sizes: else replicas would be copied for ever."""
    pick = random.Random(seed)
    hosts = HOSTS[: pick.randint(2, 4)]
    sizes = {unit: pick.choice([0, 1, 10, 1000, 1001]) for unit in range(pick.randint(1, 12))}
    origins = {unit: pick.choice(hosts) for unit in sizes}
    groups = {unit: [pick.choice(hosts)] for unit in sizes}
    for _ in range(3):
        before, groups = groups, assign(sizes, origins, hosts, 1, groups)
    assert groups == before


@pytest.mark.parametrize("seed", range(50))
def test_groups_stay_while_state_grows_and_is_compacted(seed):
    pick = random.Random(seed)
    hosts = HOSTS[: pick.randint(2, 4)]
    origins = {unit: pick.choice(hosts) for unit in range(pick.randint(1, 12))}
    kept, groups, changes = Sizes(), {}, 0
    for now in range(60):
        sizes = kept.take({unit: round(400e6 * pick.uniform(0.7, 1.3)) for unit in origins}, now)
        before, groups = groups, assign(sizes, origins, hosts, 1, groups)
        changes += groups != before
    assert changes == 1


@pytest.mark.parametrize("seed", range(20))
def test_groups_stay_while_windows_fire_of_which_hosts_tell_one_after_the_other(seed):
    pick = random.Random(seed)
    origins = {unit: pick.choice(HOSTS) for unit in range(12)}
    full = dict.fromkeys(origins, 400 << 20)
    kept = Sizes()
    begun = assign(kept.take(full, 0), origins, HOSTS, 1, {})
    groups, told = begun, dict(full)
    for now in range(1, 400):
        turn = HOSTS[now % len(HOSTS)]
        told |= {unit: (now // 60 % 2 or 0.02) * size for unit, size in full.items() if origins[unit] == turn}
        groups = assign(kept.take(told, now), origins, HOSTS, 1, groups)
        assert groups == begun


def test_a_unit_that_stays_another_size_counts_with_it_after_some_time():
    sizes = Sizes()
    assert sizes.take({0: 300 << 20}, 0) == {0: 300 << 20}
    assert sizes.take({0: 700 << 20, 1: 5}, 1) == {0: 300 << 20, 1: 5}
    assert sizes.take({0: 400 << 20, 1: 5}, 2) == {0: 300 << 20, 1: 5}
    for now in (3, 2 + CHANGED_SECONDS):
        assert sizes.take({0: 700 << 20, 1: 5}, now) == {0: 300 << 20, 1: 5}
    assert sizes.take({0: 700 << 20}, 3 + CHANGED_SECONDS) == {0: 700 << 20}
