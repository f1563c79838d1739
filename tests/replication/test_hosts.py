"""Which hosts can take replicas, from what agents tell of each other; times are seconds."""

import pytest

from forebay.replication.hosts import PATIENT_SECONDS, SHUNNED_SECONDS, Host, Hosts


@pytest.fixture
def hosts():
    found = Hosts()
    for address in "ab":
        found.tell(Host(address, address, 0.0))
    return found


def given_up(hosts, every, seconds=3600):
    """When a host loses its replicas that can take no version, where there is one to take every so many seconds."""
    for now in range(seconds):
        if now % every == 0:
            hosts.fail("b", "no route", float(now))
        hosts.forget_failures(now)
        if "b" not in {*hosts.able(), *hosts.keeping(now)}:
            return now
    return None


@pytest.mark.parametrize(("every", "seconds"), [(1, PATIENT_SECONDS), (20, PATIENT_SECONDS), (60, 120), (120, 240)])
def test_a_host_that_can_take_nothing_loses_its_replicas_however_seldom_there_is_one(hosts, every, seconds):
    assert given_up(hosts, every) == seconds


def test_a_host_that_could_not_take_a_version_once_keeps_its_replicas_and_is_soon_given_others(hosts):
    assert given_up(hosts, 300) is None
    hosts.forget_failures(SHUNNED_SECONDS)
    assert "b" in hosts.able()


def test_a_host_that_fails_again_and_again_is_shunned_for_longer_each_time(hosts):
    away = []
    for begins in range(0, 1200, 100):
        hosts.fail("b", "no route", begins)
        away.append(0)
        for now in range(begins, begins + 100):
            hosts.forget_failures(now)
            away[-1] += "b" not in hosts.able()
    assert away[:5] == [25, 25, 50, 100, 100]
    hosts.forget_failures(5000)
    assert "b" in hosts.able()
