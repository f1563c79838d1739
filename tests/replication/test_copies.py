"""Who has which copy of a partition's state, from what agents have told."""

import time
from dataclasses import replace

import pytest

from forebay.replication.copies import IN_STEP, STUCK_SECONDS, Copies, Lag, Replica, behind, is_stuck, newest, uploaders
from forebay.store.filenames import Version


def replica(number, attempt="00000000", *, own=False, complete=True, size=100, batch=None, since=0.0):
    version = Version(number, attempt)
    return Replica(version, size, number if batch is None else batch, own, complete, since)


def test_the_origin_is_who_ran_it_last():
    copies = Copies({"0": {"a": replica(7, own=True), "b": replica(7)}, "1": {"a": replica(3), "b": replica(3, own=True)}})
    assert copies.origin == "a"
    moved = Copies({"0": {"a": replica(7, own=True), "b": replica(8, own=True)}})
    assert moved.origin == "b"


def test_who_has_made_versions_stays_the_origin_until_another_host_is_far_ahead():
    told_later = {"a": replica(7, own=True), "b": replica(7 + IN_STEP)}
    assert Copies({"0": told_later}).origin == "a"
    assert Copies({"0": told_later | {"b": replica(8 + IN_STEP)}}).origin == "b"


def test_without_the_origin_it_is_who_has_most():
    assert Copies({"0": {"b": replica(6), "c": replica(7)}}).origin == "c"


def test_the_newest_of_several_is_that_of_its_maker():
    assert newest({"a": replica(7), "b": replica(7, own=True), "c": replica(6)}) == "b"


def test_every_attempt_that_may_count_is_uploaded_by_one_of_those_that_have_all_of_it():
    held = {"a": replica(7, own=True), "b": replica(7), "c": replica(6), "d": replica(8, complete=False)}
    assert uploaders(held) == {"a"}
    assert uploaders(held | {"e": replica(7, "0000000b")}) == {"a", "e"}  # whose maker has gone
    assert uploaders({"d": held["d"]}) == set()


def test_who_makes_versions_uploads_what_others_have_told_of_first():
    now = time.monotonic()
    maker, told = replica(7, own=True, since=now + 100), {"b": replica(8)}
    assert uploaders({"a": maker} | told) == set()
    assert uploaders({"a": replace(maker, version=Version(8, "00000000"))} | told) == {"a"}
    assert uploaders({"a": replace(maker, since=now - STUCK_SECONDS - 1)} | told) == {"b"}
    assert uploaders({"a": replace(maker, complete=False)} | told) == {"b"}
    assert uploaders({"a": maker, "b": replica(8 + IN_STEP)}) == {"b"}
    assert uploaders({"a": maker, "c": replica(8, "0000000b", own=True)} | told) == {"c"}


def test_a_version_that_is_the_first_for_some_time_is_waited_for():
    now = time.monotonic()
    old, new = now - 10 * STUCK_SECONDS, now - STUCK_SECONDS / 2
    mine = replica(7, since=old)
    assert not is_stuck(mine, {"a": replica(8, own=True, since=new), "b": mine})
    assert is_stuck(mine, {"a": replica(8, own=True, since=old), "b": mine})
    assert is_stuck(mine, {"a": replica(9, own=True, since=new), "b": mine})
    assert uploaders({"a": replace(mine, own=True), "b": replica(8, since=new)}) == set()


@pytest.mark.parametrize(
    ("held", "lag", "keeps_up"),
    [
        ({"b": replica(7)}, Lag(0, 0, complete=True), True),
        ({"b": replica(7 - IN_STEP)}, Lag(IN_STEP, 0, complete=True), True),
        ({"b": replica(6 - IN_STEP)}, Lag(IN_STEP + 1, 0, complete=True), False),
        ({"b": replica(7, complete=False)}, Lag(0, 100, complete=False), False),
        ({}, Lag(7, 100, complete=False), False),
    ],
)
def test_how_far_a_host_is_behind(held, lag, keeps_up):
    copies = Copies({"0": {"a": replica(7, own=True)} | held, "1": {"a": replica(2), "b": replica(2, size=10)}})
    assert copies.lag("b") == lag
    assert copies.kept_by("b") is keeps_up
    assert copies.kept_by("a")
    assert copies.size == 200


def test_a_replica_is_stuck_if_it_has_not_advanced_for_some_time():
    made, now = {"a": replica(7, own=True)}, time.monotonic()
    missed, late = replica(6, since=now - STUCK_SECONDS - 1), replica(6, since=now + 100)
    assert behind(missed, made) == behind(late, made) == 1
    assert is_stuck(missed, made)
    assert not is_stuck(late, made)
    assert not is_stuck(replica(7, since=now - STUCK_SECONDS - 1), made)
