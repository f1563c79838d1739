"""What is done about executors that join, without Spark: a stand-in has executors, and gives partitions to them or fails."""

import time
from types import SimpleNamespace

import pytest

from forebay.errors import HandoverError
from forebay.spark.driver import newcomers
from forebay.spark.driver.newcomers import Newcomers
from forebay.spark.driver.policies import SCALE_OUT, Policies
from forebay.spark.driver.steering import Executor


class Handovers:
    """Gives one partition to each executor, but never to those that are broken."""

    def __init__(self, executors):
        self.executors, self.broken, self.asked = executors, set(), []
        self.query = SimpleNamespace(id="query", isActive=True)
        self.steering = SimpleNamespace(placement=dict, stand_by=lambda placement: None)

    def usable(self):
        return [Executor(each, f"host-{each}", 1) for each in self.executors]

    def near(self, executors):
        return {}

    def balanced(self):
        return dict(enumerate(self.executors))

    def hand(self, reason, placement):
        assert reason == SCALE_OUT
        self.asked.append({*placement.values()})
        if self.broken & {*placement.values()}:
            raise HandoverError("its agent did not start")


@pytest.fixture
def handovers():
    return Handovers(["1", "2"])


@pytest.fixture
def look(handovers):
    policies = Policies(handovers, None, acting=True)

    def look():
        policies._look()
        if policies._handing is not None:
            policies._handing.join()

    look()
    return look


def test_an_executor_that_joins_is_given_its_share_once(handovers, look):
    assert handovers.asked == []
    handovers.executors.append("3")
    look()
    look()
    assert handovers.asked == [{"1", "2", "3"}]


def test_a_scale_out_that_fails_is_not_tried_again_at_once_and_the_log_says_when(handovers, look, caplog):
    handovers.broken = {"3"}
    handovers.executors.append("3")
    for _ in range(5):
        look()
    assert len(handovers.asked) == 1
    assert "the scale-out to executor 3 is tried again in 10 s: its agent did not start" in caplog.text


def test_an_executor_that_can_be_given_nothing_does_not_hold_up_the_next_one(handovers, look, monkeypatch):
    handovers.broken = {"3"}
    handovers.executors.append("3")
    look()
    handovers.executors.append("4")
    look()
    assert handovers.asked[1:] == [{"1", "2", "4"}]
    monkeypatch.setattr(time, "monotonic", lambda real=time.monotonic: real() + newcomers.FIRST_SECONDS)
    look()
    assert "3" in handovers.asked[2]


def test_it_waits_twice_as_long_each_time_up_to_a_bound():
    joining, now, waits = Newcomers(), 0.0, []
    joining.due({"1"}, now)
    for _ in range(9):
        assert joining.due({"1", "2"}, now) == {"2"}
        waits.append(joining.failed({"2"}, now))
        assert joining.due({"1", "2"}, now + waits[-1] - 1) == set()
        now += waits[-1]
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600, 600]


def test_executors_that_have_failed_together_are_tried_one_by_one():
    joining = Newcomers()
    joining.due({"1"}, 0)
    assert joining.due({"1", "2", "3"}, 1) == {"2", "3"}
    joining.failed({"2", "3"}, 1)
    assert joining.due({"1", "2", "3"}, 11) == {"2"}
    joining.failed({"2"}, 11)
    assert joining.due({"1", "2", "3"}, 11) == {"3"}


def test_an_executor_that_has_left_is_forgotten():
    joining = Newcomers()
    joining.due({"1"}, 0)
    joining.due({"1", "2"}, 0)
    joining.failed({"2"}, 0)
    assert joining.due({"1"}, 0) == set()
    assert joining.waiting == set()


def test_those_that_are_left_when_all_others_are_lost_have_all_there_is():
    joining = Newcomers()
    joining.due({"1"}, 0)
    joining.due({"1", "2"}, 0)
    joining.failed({"2"}, 0)
    assert joining.due({"2"}, 100) == set()
