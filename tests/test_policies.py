"""What is done about executors that join, without Spark: a stand-in has executors, and gives partitions to them or fails."""

import threading
import time
from types import SimpleNamespace

import pytest

from forebay.errors import HandoverError
from forebay.spark.driver import levelling, metrics, newcomers
from forebay.spark.driver.executors import Executor
from forebay.spark.driver.levelling import Levelling, Work, measured, relieving
from forebay.spark.driver.newcomers import Newcomers
from forebay.spark.driver.policies import SCALE_OUT, Policies
from forebay.spark.driver.tally import Worked
from forebay.spark.worker.vnodes import partition_of


class Handovers:
    """Gives one partition to each executor, but never to those that are broken."""

    def __init__(self, executors):
        self.executors, self.broken, self.asked, self.readied = executors, set(), [], []
        self.agents, self.at = set(executors), {}
        self.query = SimpleNamespace(id="query", isActive=True, lastProgress={"batchId": -1, "durationMs": {}})
        self.steering = SimpleNamespace(placement=dict, partitions=4, usable=self.usable, goes_on=True)

    def usable(self):
        return [Executor(each, f"127.0.0.{self.at.get(each, each)}", 1) for each in self.executors]

    def near(self, executors):
        return {}

    def balanced(self, *, without=(), weights=()):
        return {place: each for place, each in enumerate(self.executors) if each not in without}

    def hosts(self):
        return {f"127.0.0.{each}" for each in self.agents}

    def ready(self, executors):
        self.readied.append({*executors})
        if self.broken & {*executors}:
            raise HandoverError("they were lost")

    def opened(self):
        pass

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
        for thread in (policies._scaling, policies._levelling):
            if thread is not None:
                thread.join()

    look()
    return look


@pytest.mark.parametrize("acting", [True, False])
def test_hosts_that_were_given_no_task_get_an_agent_once(handovers, acting, caplog, monkeypatch):
    policies = Policies(handovers, None, acting=acting)
    handovers.agents, handovers.broken = {"1"}, {"2"}

    def enlist():
        policies._look()
        if policies._enlisting is not None:
            policies._enlisting.join()

    handovers.query.lastProgress = None  # Spark may be about to give it one
    enlist()
    assert handovers.readied == []
    handovers.query.lastProgress = {"batchId": -1, "durationMs": {}}
    enlist()
    enlist()
    assert handovers.readied == [{"2"}]
    assert "no replicas can be held by the executor 2: they were lost" in caplog.text
    handovers.agents = {"1", "2"}
    enlist()
    handovers.agents = {"1"}  # one that has fallen silent: a commit of its host starts it again, if it has any
    enlist()
    assert handovers.readied == [{"2"}]
    monkeypatch.setattr("forebay.spark.driver.policies.ENLISTED_SECONDS", 0.0)
    enlist()
    assert handovers.readied == [{"2"}, {"2"}]


def test_an_executor_that_comes_after_another_one_of_its_host_has_an_agent_started(handovers):
    policies = Policies(handovers, None, acting=False)
    handovers.agents = {"1", "2"}
    policies._look()
    handovers.agents, handovers.executors[1], handovers.at = {"1"}, "3", {"3": "2"}  # the host was started again
    policies._look()
    policies._enlisting.join()
    assert handovers.readied == [{"3"}]


def test_a_host_that_cannot_have_an_agent_does_not_keep_others_from_having_one(handovers, caplog):
    handovers.executors.append("3")
    handovers.agents, handovers.broken = {"1"}, {"2"}
    policies = Policies(handovers, None, acting=False)
    policies._look()
    policies._enlisting.join()
    assert handovers.readied == [{"2"}, {"3"}]
    assert "no replicas can be held by the executor 2: they were lost" in caplog.text


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


def test_an_executor_that_is_being_dismissed_is_no_newcomer():
    """One thread judges executors while another one gives partitions to those that are new."""
    found = []

    class Asking(dict):
        def __setitem__(self, executor, wait):
            thread = threading.Thread(target=lambda: found.append(joining.due({"1", "2"}, now=1)))
            thread.start()
            thread.join(0.2)
            super().__setitem__(executor, wait)

    joining = Newcomers()
    joining.due({"1", "2"}, now=0)
    joining._waits = Asking()
    joining.dismissed("1", now=0)
    while not found:
        time.sleep(0.01)
    assert found == [set()]


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


VNODES = [next(vnode for vnode in range(100) if partition_of(vnode, 4) == partition) for partition in range(4)]
"""A virtual node of each partition."""


class Loaded(Handovers):
    """Four partitions of two executors, and a third executor that has the state of the first one's."""

    def __init__(self):
        super().__init__(["1", "2", "3"])
        self.here = {0: "1", 1: "1", 2: "2", 3: "2"}
        self.steering.placement = lambda: dict(self.here)
        self.work, self.scaling = {}, threading.Event()
        self.scaling.set()

    def near(self, executors):
        return {0: ["1", "3"], 1: ["1", "3"], 2: ["2"], 3: ["2"]}

    def takers(self, partitions, executors, weights=()):
        self.weights = weights
        return dict.fromkeys(partitions, executors[-1].id)

    def lost(self, executor, placement):
        pass

    def hand(self, reason, placement):
        if reason == SCALE_OUT:
            self.scaling.wait()
        else:
            self.asked.append((self.batch, placement))
            if self.broken & {*placement.values()}:
                raise HandoverError("Spark ran them elsewhere")

    @property
    def batch(self):
        return self.query.lastProgress["batchId"]

    def ends(self, work, lasted=0):
        """A micro-batch has ended after so many milliseconds."""
        durations = {"triggerExecution": lasted, "addBatch": lasted}
        self.query.lastProgress, self.work = {"batchId": self.batch + 1, "durationMs": durations}, work
        self.policies._look()
        if self.policies._levelling is not None:
            self.policies._levelling.join()


@pytest.fixture
def loaded(monkeypatch):
    found = Loaded()
    monkeypatch.setattr(metrics, "worked", lambda query, batch: found.work if batch == found.batch else {})
    found.query.lastProgress = {"batchId": -1, "durationMs": {}}
    found.policies = Policies(found, None, acting=True)
    found.ends({})
    return found


def one_after_the_other(work, rows=None):
    """When virtual nodes work that take so many milliseconds, by executors that do one thing at a time."""
    intervals = [(0, work[0]), (work[0], work[0] + work[1]), (0, work[2]), (work[2], work[2] + work[3])]
    found = zip(VNODES, intervals, rows or work, strict=True)
    return {vnode: [Worked(*interval, of_it)] for vnode, interval, of_it in found}


def works(loaded, batches, work, rows=None, lasted=0):
    """So many micro-batches in which partitions take so many milliseconds."""
    for _ in range(batches):
        loaded.ends(one_after_the_other(work, rows), lasted)


@pytest.mark.parametrize(
    ("work", "batch"),
    [((1000, 1000, 900, 900), 4), ((4000, 4000, 1000, 1000), 2), ((500, 500, 50, 50), 2)],
)
def test_an_overloaded_executor_loses_a_partition_to_one_that_has_its_state(loaded, work, batch):
    works(loaded, batch, work)
    ((found, placement),) = loaded.asked
    assert (found, *placement.values()) == (batch, "3")


def test_what_is_little_beside_the_rest_of_a_micro_batch_moves_nothing(loaded):
    """Most of it may be Spark's: reading, packing and the shuffle, of which no handover takes anything away."""
    works(loaded, 9, (500, 500, 100, 100), lasted=4500)
    assert loaded.asked == []
    works(loaded, 2, (500, 500, 100, 100), lasted=3500)
    assert len(loaded.asked) == 1


@pytest.mark.parametrize("work", [(40, 40, 0, 0), (600, 600, 900, 900), (9000, 0, 900, 900)])
def test_little_work_a_little_more_work_or_a_single_partition_moves_nothing(loaded, work):
    loaded.executors.remove("3")
    works(loaded, 10, work)
    assert loaded.asked == []


def test_after_a_handover_only_much_more_work_counts_for_some_time(loaded):
    works(loaded, 2, (4000, 4000, 1000, 1000))
    works(loaded, 15, (1000, 1000, 900, 900))
    assert len(loaded.asked) == 1
    works(loaded, 2, (4000, 4000, 1000, 1000))
    assert [batch for batch, _ in loaded.asked] == [2, 19]


def test_a_partition_stays_if_little_would_be_gained(loaded):
    loaded.executors.remove("3")
    works(loaded, 10, (1000, 500, 700, 0))
    assert loaded.asked == []


def test_partitions_that_make_each_other_slow_do_not_wander(loaded):
    """Four partitions of three executors with a processor each: wherever two of them are, those take twice as long."""
    loaded.here[3] = "3"
    for _ in range(10):
        loaded.ends({vnode: [Worked(0, 2200 if place < 2 else 1000, 1)] for place, vnode in enumerate(VNODES)})
    assert loaded.asked == []


def test_one_micro_batch_in_which_an_executor_had_little_to_do_moves_nothing_there(loaded):
    loaded.here[3] = "3"
    for third in (1700, 1700, 1700, 500, 1700, 1700, 500):
        times = zip(VNODES, (3400, 3400, third, 1700), strict=True)
        loaded.ends({vnode: [Worked(0, milliseconds, 1)] for vnode, milliseconds in times})
    assert loaded.policies._levelling is None


def test_after_a_handover_only_what_was_measured_since_tells_what_to_do(loaded):
    """The partitions of the first executor had much to do; now it is one of the second executor's."""
    works(loaded, 2, (8000, 8000, 1000, 1000))
    loaded.here[0] = "3"
    works(loaded, 3, (200, 200, 2000, 2000))
    assert [{*placement} <= {0, 1} for _, placement in loaded.asked] == [True, False]


def test_a_micro_batch_of_another_kind_begins_the_count_anew(loaded):
    loaded.executors.remove("3")
    for _ in range(5):
        works(loaded, 1, (4000, 4000, 1000, 1000))
        works(loaded, 1, (1000, 1000, 900, 900))
    assert loaded.asked == []
    works(loaded, 2, (4000, 4000, 1000, 1000))
    assert len(loaded.asked) == 1


@pytest.mark.parametrize(("quiet", "found"), [(1, 1), (9, 1), (10, 0)])
def test_micro_batches_with_little_to_do_say_nothing_until_they_are_many(loaded, quiet, found):
    """Windows fire in the micro-batches without rows that follow those with rows, or once in a few."""
    for _ in range(2):
        works(loaded, quiet, (1, 1, 1, 1))
        works(loaded, 1, (4000, 4000, 1000, 1000))
    assert len(loaded.asked) == found


def test_partitions_that_no_executor_has_are_placed_once(loaded):
    """When a run begins, and when executors have come back after all had gone."""
    steered = []
    loaded.steering.suggest = steered.append
    loaded.policies = Policies(loaded, None, acting=True)
    loaded.here = {0: None, 1: "1", 2: None, 3: None}
    loaded.policies._look()
    loaded.policies._look()
    assert steered == [{0: "3", 1: "1", 2: "3", 3: "3"}]
    loaded.here = dict.fromkeys(range(4))
    loaded.executors[:] = []
    loaded.policies._look()
    loaded.executors[:] = ["5", "6"]
    loaded.policies._look()
    assert steered[1:] == [dict.fromkeys(range(4), "6")]


def test_a_query_that_has_state_is_placed_when_the_hosts_have_told_what_they_hold(handovers):
    """They have no agents yet where its application was started again; nobody may ask before it is known that they come."""
    called, told, suggested = [], threading.Event(), []
    handovers.expect_hosts, handovers.close = lambda: called.append("expect"), lambda: None
    handovers.gather_hosts = lambda: (called.append("gather"), told.wait(60))
    handovers.takers = lambda partitions, executors: dict.fromkeys(partitions, "2")
    handovers.steering = SimpleNamespace(
        **vars(handovers.steering) | {"goes_on": False, "on_lost": called.append, "on_joined": called.append},
        suggest=suggested.append,
    )
    handovers.steering.placement = lambda: dict.fromkeys(range(2))
    policies = Policies(handovers, None, acting=True, resumed=True)
    policies.start()
    assert called[0] == "expect"
    policies._look()
    assert not suggested
    told.set()
    policies._gathering.join()
    policies._look()
    assert suggested == [{0: "2", 1: "2"}]
    assert called.count("gather") == 1


def test_what_spark_says_when_there_were_no_rows_for_some_time_is_not_taken_for_a_micro_batch(loaded):
    """It has the number of the one that is to come."""
    for _ in range(2):
        works(loaded, 1, (4000, 4000, 1000, 1000))
        ended, loaded.work = loaded.query.lastProgress, {}
        loaded.query.lastProgress = {"batchId": loaded.batch + 1, "durationMs": {"triggerExecution": 3}}
        loaded.policies._look()
        loaded.query.lastProgress = ended
    assert len(loaded.asked) == 1


def test_a_scale_out_goes_on_at_once_without_an_executor_that_has_gone(handovers, look):
    handovers.executors += ["3", "4"]
    handovers.broken = {"4"}
    hand = handovers.hand

    def gone(reason, placement):
        handovers.executors.remove("4")
        handovers.hand = hand
        hand(reason, placement)

    handovers.hand = gone
    look()
    look()
    assert [{"3"} <= each for each in handovers.asked] == [True, True]
    assert "4" not in handovers.asked[1]


def test_an_overloaded_executor_is_relieved_while_another_one_is_brought_up(loaded):
    loaded.scaling.clear()
    loaded.executors.append("4")
    works(loaded, 2, (4000, 4000, 1000, 1000))
    assert loaded.policies._scaling.is_alive()
    loaded.scaling.set()
    assert [list(placement.values()) for _, placement in loaded.asked] == [["3"]]


def test_a_micro_batch_in_which_partitions_went_elsewhere_does_not_count(loaded):
    for origin in ("3", "2", "3", "2", "3", "2"):
        loaded.here[2] = origin
        works(loaded, 1, (8000, 8000, 1000, 1000))
    assert loaded.asked == []


SLOW = (8000, 8000, 1000, 1000), (100, 100, 100, 100)


def test_a_slow_executor_loses_all_its_partitions_and_is_said_to_be_slow(loaded, caplog):
    works(loaded, 2, *SLOW)
    assert loaded.asked == [(2, {0: "3", 1: "3"})]
    assert "the executor 1, or one of the same host, needs at least 3 times as long for a row" in caplog.text
    assert "its share again in 600 s" in caplog.text


def test_a_slow_executor_is_given_nothing_until_it_is_tried_again_and_then_its_share(loaded, monkeypatch):
    monkeypatch.setattr(levelling, "COLD_SECONDS", 0.0)
    works(loaded, 2, *SLOW)
    loaded.here.update({0: "3", 1: "3"})
    works(loaded, 30, (9000, 9000, 100, 100))
    assert {executor for _, placement in loaded.asked[1:] for executor in placement.values()} == {"2"}
    scaled = []
    monkeypatch.setattr(loaded, "hand", lambda reason, placement: scaled.append((reason, set(placement.values()))))
    for seconds in (newcomers.DISMISSED_SECONDS - 60, newcomers.DISMISSED_SECONDS):
        monkeypatch.setattr(time, "monotonic", lambda real=time.monotonic, seconds=seconds: real() + seconds)
        loaded.policies._look()
        if loaded.policies._scaling is not None:
            loaded.policies._scaling.join()
        scaled.append(seconds)
    assert scaled[1:] == [(SCALE_OUT, {"1", "2", "3"}), newcomers.DISMISSED_SECONDS]


def test_who_has_more_rows_is_not_slow(loaded):
    works(loaded, 2, (8000, 8000, 1000, 1000), (800, 800, 100, 100))
    ((_, placement),) = loaded.asked
    assert len(placement) == 1


def test_who_has_one_heavy_partition_is_not_slow(loaded):
    works(loaded, 2, (9000, 300, 1000, 1000), (100, 100, 100, 100))
    assert [len(placement) for _, placement in loaded.asked] in ([], [1])


@pytest.mark.parametrize("before", [300, 9000])
def test_a_single_partition_is_slow_if_it_was_not_before(loaded, before):
    loaded.here.update({1: "3"})
    loaded.executors.remove("2")
    loaded.here.update({2: "3", 3: "3"})
    rows = (100, 100, 100, 100)
    works(loaded, 2, (before, 300, 300, 300), rows)
    works(loaded, 2, (9000, 300, 300, 300), rows)
    assert [placement for _, placement in loaded.asked] == ([{0: "3"}] if before == 300 else [])


@pytest.mark.parametrize(("executors", "overloaded"), [(4, 1), (4, 2), (6, 3), (10, 5)])
def test_one_of_several_overloaded_executors_is_relieved_whichever_is_the_busiest(executors, overloaded):
    levelling, names = Levelling(), "abcdefghij"[:executors]
    here = dict(enumerate([each for each in names for _ in range(8 if each in names[:overloaded] else 4)]))
    for batch in range(8):
        load = {each: 100.0 * sum(at == each for at in here.values()) for each in names}
        load[names[batch % overloaded]] *= 1.1  # another one each time
        work = dict.fromkeys(here, 100.0)
        overload = levelling.take(batch, Work(here, load, work, work, work), lasted=1000)
        if overload is not None:
            break
    assert overload is not None
    assert not overload.slow
    assert relieving(overload.work, {})


@pytest.mark.parametrize(("hosts", "each"), [(2, 2), (3, 2), (3, 4)])
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_slow_host_with_several_executors_loses_all_it_has(hosts, each, partitions):
    """Its other executors are slow, too: neither with them nor with what was slow there is one compared."""
    executors = [f"{host}.{number}" for host in range(hosts) for number in range(each)]
    here, levelling = dict(enumerate(executors * partitions)), Levelling()
    served = set(executors)
    for batch in range(80):
        slow = 5 if batch >= 20 else 1
        times = {each: 200.0 * (slow if at.startswith("0.") else 1) for each, at in here.items()}
        load = {executor: sum(times[each] for each, at in here.items() if at == executor) for executor in served}
        overload = levelling.take(batch, Work(here, load, times, times, dict.fromkeys(here, 10.0)), max(load.values()))
        if overload is None:
            continue
        if overload.slow:
            mine = [each for each, at in here.items() if at == overload.executor]
            served.discard(overload.executor)
            others = sorted((each for each in served if not each.startswith("0.")), key=lambda other: load.get(other, 0.0))
            moves = {each: others[place % len(others)] for place, each in enumerate(mine)}
        else:
            moves = relieving(overload.work, {}, overload.staying)
            levelling.handed(batch, moves)
        levelling.rest(batch, [*moves])
        here = here | moves
    assert not any(at.startswith("0.") for at in here.values())


@pytest.mark.parametrize("neighbour", ["slow", "idle", "fast"])
def test_a_slow_host_loses_what_all_its_executors_have_at_once(loaded, neighbour):
    """One of the others that is not slow says that it is not the host."""
    loaded.executors.append("4")
    loaded.at = {"2": "1"}
    loaded.here.update({2: "3", 3: "4"} if neighbour == "idle" else {1: "2", 2: "3", 3: "4"})
    rows = (100, 100, 100, 100)
    works(loaded, 5, (20, 20, 20, 20), rows)
    works(loaded, 4, (8000, 1000 if neighbour == "fast" else 7000, 1000, 1000), rows)
    assert loaded.asked[0][1] == ({0: "4"} if neighbour == "fast" else {0: "4", 1: "4"})
    assert loaded.policies._newcomers.served == ({"2", "3", "4"} if neighbour == "fast" else {"3", "4"})


def test_who_turns_slow_is_found_as_soon_after_micro_batches_with_little_to_do():
    """What there was to do before these, with more rows and at the usual pace, does not hide it."""
    levelling, here, rows = Levelling(), {0: "a", 1: "b", 2: "a", 3: "c"}, dict.fromkeys(range(4), 100)
    usual, more = {0: 600_000, 1: 200_000, 2: 600_000, 3: 200_000}, {0: 300, 1: 100, 2: 300, 3: 100}
    little, slow = dict.fromkeys(here, 50), {0: 4000, 1: 400, 2: 4000, 3: 400}
    assert [levelling.take(batch, levelled(here, usual, more, "abc"), lasted=700_000) for batch in range(2)] == [None] * 2
    assert [levelling.take(batch, levelled(here, little, rows, "abc"), lasted=4000) for batch in range(2, 10)] == [None] * 8
    found = [levelling.take(batch, levelled(here, slow, rows, "abc"), lasted=6000) for batch in range(10, 13)]
    assert any(overload is not None and overload.slow for overload in found)


def test_an_overloaded_executor_that_is_about_to_leave_is_forgotten():
    """It has partitions until they have gone, but nothing more is asked of it."""
    levelling, here = Levelling(), dict(enumerate("aabbcc"))
    times = dict.fromkeys(here, 1000.0)
    for batch in range(2):  # the first one only says where partitions are
        levelling.take(batch, Work(here, {"a": 9000.0, "b": 1000.0, "c": 1000.0}, times, times, times))
    for batch in range(2, 7):
        assert levelling.take(batch, Work(here, {"b": 1000.0, "c": 1000.0}, times, times, times)) is None


def test_a_partition_that_keeps_whoever_runs_it_busy_for_longest_does_not_wander():
    """On executors with a processor for each partition: those beside it do not wait for it."""
    here, levelling, handed = {partition: "abc"[partition % 3] for partition in range(24)}, Levelling(), 0
    for batch in range(200):
        times = {partition: 2000 if partition == 0 else 200 for partition in here}
        overload = levelling.take(batch, levelled(dict(here), times, times, "abc"), lasted=2600)
        if overload is not None:
            assert not overload.slow
            moves = relieving(overload.work, {}, overload.staying)
            handed += bool(moves)
            here |= moves
            if moves:
                levelling.rest(batch, moves)
                levelling.handed(batch, moves)
    assert handed <= 4


@pytest.mark.parametrize("partitions", [4, 8, 16, 40])
@pytest.mark.parametrize("near", [(), "c", "bc", "a"])
def test_as_many_partitions_move_as_it_takes(partitions, near):
    """Each of them alone would make a difference that is not worth a handover."""
    here = {partition: "abac"[partition % 4] for partition in range(partitions)}
    times = dict.fromkeys(here, 100)
    loads = {each: 100 * sum(at == each for at in here.values()) for each in "abc"}
    holders = {partition: {near[partition // 4 % len(near)]} if near else set() for partition in here}
    moves = relieving(Work(here, loads, times, times, times), holders)
    assert all(here[partition] == "a" for partition in moves)
    assert near not in {"c", "bc"} or all(target in holders[partition] for partition, target in moves.items())
    least, *_, most = sorted(sum(at == each for at in (here | moves).values()) for each in "abc")
    assert most <= (least + 1 if partitions == 4 else 1.5 * least)
    assert len(moves) <= max(1, partitions // 6)


def levelled(here, times, rows, executors):
    """A micro-batch whose partitions are worked at side by side for so many milliseconds."""
    vnodes = {partition_of(vnode, len(here)): vnode for vnode in range(len(here) ** 2)}
    worked = {vnodes[each]: [Worked(0, times[each], rows[each])] for each in here}
    return measured(worked, len(here), here, executors)


def test_who_works_at_many_partitions_side_by_side_is_not_slow_for_one_that_has_much_to_do():
    """Those beside it wait for it, in shares of their executor's time; for themselves they took no longer."""
    here = {partition: "abcd"[partition % 4] for partition in range(32)}
    rows = dict.fromkeys(here, 100) | {0: 500}
    work, levelling = levelled(here, {each: 10 * some for each, some in rows.items()}, rows, "abcd"), Levelling()
    found = [overload for batch in range(9) if (overload := levelling.take(batch, work))]
    assert found and not any(overload.slow for overload in found)
    slow = levelled(here, {each: 500 if here[each] == "a" else 100 for each in here}, dict.fromkeys(here, 10), "abcd")
    assert slow.is_slow({})


def test_who_was_slow_while_that_was_little_is_found_when_it_is_much():
    """What it took then is not taken for what its partition usually takes."""
    levelling, here, rows = Levelling(), dict(enumerate("abcd")), dict.fromkeys(range(4), 100)
    for batch in range(30):
        times = {0: 300 if batch < 5 else 960, 1: 300, 2: 300, 3: 300}
        assert levelling.take(batch, levelled(here, times, rows, "abcd"), lasted=4000) is None
    found = [levelling.take(batch, levelled(here, {**times, 0: 2000}, rows, "abcd"), lasted=6000) for batch in range(30, 36)]
    assert any(overload is not None and overload.slow for overload in found)


@pytest.mark.parametrize(("rate", "found"), [(1, False), (4, True)])
def test_who_makes_micro_batches_long_by_what_spark_does_there_is_found_by_the_little_that_is_measured(rate, found):
    """Reading, packing and the shuffle take longer there, too, so the share of the operator stays what it was."""
    levelling, here, rows = Levelling(), {0: "a", 1: "b", 2: "a", 3: "c"}, dict.fromkeys(range(4), 100)
    times = {0: 600, 1: 300, 2: 600, 3: 300}  # two beside each other take twice as long
    for batch in range(10):
        assert levelling.take(batch, levelled(here, times, rows, "abc"), lasted=4000) is None
    slow = times | {0: 600 * rate, 2: 600 * rate}
    overloads = [levelling.take(batch, levelled(here, slow, rows, "abc"), lasted=4000 * rate) for batch in range(10, 15)]
    assert [overload.slow for overload in overloads if overload is not None][:1] == [True] * found


def test_micro_batches_without_rows_do_not_say_what_is_usual():
    levelling, here, rows = Levelling(), {0: "a", 1: "b", 2: "a", 3: "c"}, dict.fromkeys(range(4), 100)
    times, none = {0: 900, 1: 120, 2: 900, 3: 120}, dict.fromkeys(range(4), 0)
    for batch in range(10):
        assert levelling.take(batch, levelled(here, none, none, "abc"), lasted=300) is None
    for batch in range(10, 30):
        assert levelling.take(batch, levelled(here, times, rows, "abc"), lasted=4000) is None


@pytest.mark.parametrize("lasts", [1, 9])
def test_an_executor_that_always_has_more_to_do_loses_all_when_it_turns_slow_and_nothing_for_a_pause(lasts):
    """It is overloaded before, so its first slow micro-batch would take one of its partitions, and the rest would stay."""
    levelling, here, rows = Levelling(), {0: "a", 1: "b", 2: "a", 3: "c"}, dict.fromkeys(range(4), 100)
    found = {}
    for batch in range(14):
        slow = 5 if 12 <= batch < 12 + lasts else 1
        times = {0: 1600 * slow, 1: 800, 2: 1600 * slow, 3: 800}  # two beside each other take twice as long
        overload = levelling.take(batch, levelled(here, times, rows, "abc"), lasted=3000 * slow)
        found |= {} if overload is None else {batch: overload.slow}
    assert found == dict.fromkeys(range(4, 12), False) | {13: lasts > 1}


def test_a_partition_that_has_become_heavy_does_not_make_one_executor_slow_after_the_other():
    levelling, here, rows, moves = Levelling(), {0: "a", 1: "b", 2: "c", 3: "d"}, dict.fromkeys(range(4), 100), 0
    for batch in range(100):
        times = {0: 90 if batch < 3 else 1800, 1: 90, 2: 90, 3: 90}
        overload = levelling.take(batch, levelled(dict(here), times, rows, "abcdefgh"))
        if overload is not None and overload.slow:
            levelling.rest(batch, here)
            here[0], moves = "aefghaefgh"[moves + 1], moves + 1
    assert moves == 1


def test_a_dismissed_executor_whose_partitions_cannot_go_is_served_and_tried_again_later(loaded):
    loaded.broken = {"3"}
    works(loaded, 2, *SLOW)
    assert loaded.policies._newcomers.served == {"1", "2", "3"}
    works(loaded, 10, (1000, 1000, 1000, 1000))
    loaded.broken = set()
    works(loaded, 2, *SLOW)
    assert [placement for _, placement in loaded.asked] == [{0: "3", 1: "3"}] * 2
    assert loaded.policies._newcomers.dismissed("1", 0) == 1200


@pytest.mark.parametrize(("first", "second"), [((2000, 1000), (8000, 1000)), ((3000, 2000), (3500, 1000))])
def test_an_executor_that_became_slow_in_the_middle_of_a_micro_batch_is_slow_after_the_next(loaded, first, second):
    """By both together; or by the second alone, which the first does not contradict."""
    for mine, others in (first, second):
        works(loaded, 1, (mine, mine, others, others), (100, 100, 100, 100))
    assert loaded.asked == [(2, {0: "3", 1: "3"})]


def test_who_was_not_slow_enough_at_first_is_slow_with_the_partitions_that_are_left(loaded):
    rows = (100, 100, 100, 100)
    works(loaded, 1, (20, 20, 20, 20), rows)
    works(loaded, 2, (2500, 2500, 1000, 1000), rows)
    ((_, (moved,)),) = loaded.asked
    loaded.here[moved] = "3"
    times = [1000 if partition == moved or partition > 1 else 4000 for partition in range(4)]
    works(loaded, 4, times, rows)
    assert loaded.asked[1:] == [(7, {1 - moved: "3"})]


def test_who_has_more_rows_and_is_slow_for_once_is_not_slow(loaded):
    loaded.executors.remove("3")
    rows = (180, 180, 100, 100)
    works(loaded, 10, (1800, 1800, 1000, 1000), rows)
    works(loaded, 1, (7200, 7200, 1000, 1000), rows)
    assert not loaded.policies._newcomers._dismissals


def test_who_has_just_been_given_a_partition_may_be_slow_for_some_micro_batches(loaded):
    rows = (100, 100, 100, 100)
    works(loaded, 1, (20, 20, 20, 20), rows)
    loaded.here.update({0: "3"})
    works(loaded, 4, (4000, 1000, 1000, 1000), rows)
    works(loaded, 10, (1000, 1000, 1000, 1000), rows)
    assert not loaded.policies._newcomers._dismissals


def test_an_executor_that_is_left_with_a_heavy_partition_is_not_slow(loaded):
    times, rows = (9000, 4000, 1000, 1000), (100, 400, 100, 100)
    works(loaded, 1, (20, 20, 20, 20), rows)
    works(loaded, 2, times, rows)
    ((_, placement),) = loaded.asked
    loaded.here.update(placement)
    works(loaded, 30, times, rows)
    assert not loaded.policies._newcomers._dismissals


def test_what_a_dismissed_executor_does_makes_no_other_one_slow(loaded):
    """The first one is as fast as it was, but has a partition again: it counts neither rows nor time."""
    works(loaded, 2, *SLOW)
    loaded.here.update({0: "1", 1: "3"})
    loaded.policies._newcomers._settled.discard("1")
    works(loaded, 40, (10, 1000, 2000, 2000), (10000, 100, 100, 100))
    assert all(len(placement) == 1 for _, placement in loaded.asked[1:])


def test_partitions_of_a_lost_executor_go_to_a_dismissed_one_only_if_it_alone_has_them(loaded):
    works(loaded, 2, *SLOW)
    loaded.here.update({0: "3", 1: "3"})
    lost = Executor("2", "127.0.0.2", 1)
    held = {1: ["1", "3"], 2: ["1"]}
    loaded.near = lambda executors: {
        partition: [each.id for each in executors if each.id in some] for partition, some in held.items()
    }
    loaded.takers = lambda partitions, executors, weights: {
        each: next((near for near in loaded.near(executors).get(each, ())), executors[0].id) for each in partitions
    }
    assert loaded.policies._lost(lost, [1, 3]) == {1: "3", 3: "3"}
    assert loaded.policies._newcomers.served == {"2", "3"}
    assert loaded.policies._lost(lost, [1, 2]) == {1: "3", 2: "1"}
    assert "1" in loaded.policies._newcomers.served  # so that load balancing looks at it


def test_a_partition_that_is_elsewhere_for_once_does_not_undo_the_patience_with_another_executor(loaded):
    for batch in range(8):
        loaded.here[3] = "32"[batch % 2]
        works(loaded, 2, (1000, 1000, 400, 400))
    assert loaded.asked


def test_when_all_others_are_gone_those_that_were_dismissed_have_what_there_is_and_newcomers_their_share_to_come():
    joining = Newcomers()
    joining.due({"1", "2"}, 0)
    joining.dismissed("1", 0)
    joining.due({"1", "2", "3"}, 1)
    joining.failed({"3"}, 1)
    assert joining.due({"1", "3"}, 5) == set()
    assert joining.served == {"1"}
    assert joining.due({"1", "3"}, 11) == {"3"}


def test_a_dismissed_executor_that_is_out_of_sight_for_a_moment_waits_on():
    joining = Newcomers()
    joining.due({"1", "2"}, 0)
    joining.dismissed("1", 0)
    joining.due({"2"}, 1)
    assert joining.due({"1", "2"}, 2) == set()
    assert joining.due({"1", "2"}, newcomers.DISMISSED_SECONDS) == {"1"}


def test_who_was_slow_once_is_not_slow(loaded):
    works(loaded, 1, *SLOW)
    works(loaded, 1, (8000, 8000, 1000, 1000), (800, 800, 100, 100))
    ((_, placement),) = loaded.asked
    assert len(placement) == 1


def test_an_executor_that_is_slow_again_waits_for_twice_as_long():
    joining, now, waits = Newcomers(), 0.0, []
    joining.due({"1", "2"}, now)
    for _ in range(3):
        waits.append(joining.dismissed("2", now))
        assert joining.served == {"1"}
        assert joining.due({"1", "2"}, now + waits[-1] - 1) == set()
        now += waits[-1]
        assert joining.due({"1", "2"}, now) == {"2"}
        joining.settled({"2"})
    assert waits == [600, 1200, 2400]


def test_it_waits_twice_as_long_each_time_up_to_a_bound():
    joining, now, waits = Newcomers(), 0.0, []
    joining.due({"1"}, now)
    for _ in range(9):
        assert joining.due({"1", "2"}, now) == {"2"}
        waits.append(joining.failed({"2"}, now))
        assert joining.due({"1", "2"}, now + waits[-1] - 1) == set()
        now += waits[-1]
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600, 600]


def test_newcomers_that_come_again_and_again_and_those_that_wait_take_turns():
    newcomers, tried = Newcomers(), []
    newcomers.due({"1"}, 0)
    newcomers.failed({"2"}, 0)
    for now in range(10, 40):  # another one joins each time
        due = newcomers.due({"1", "2", f"{now}"}, now)
        tried.append(due)
        newcomers.failed(due, now) if due == {"2"} else newcomers.settled(due)
    assert {"2"} in tried[:2]
    assert tried.count({"2"}) == 2  # after 10 s, and after 20 s more
    assert all(tried)


def test_what_has_just_been_given_partitions_is_not_overloaded_for_some_seconds():
    """Its processes are not warm, and micro-batches may be short."""
    work, here, at = dict.fromkeys(range(4), 500.0), {0: "a", 1: "a", 2: "a", 3: "b"}, {0: "a", 1: "b", 2: "a", 3: "b"}
    load, found = {"a": 2000.0, "b": 400.0}, Levelling()
    found.take(0, Work(at, load, work, work, work), now=0.0)
    found.take(1, Work(here, load, work, work, work), now=1.0)  # partition 1 has gone to "a"
    overloads = [found.take(batch, Work(here, load, work, work, work), now=float(batch)) for batch in range(2, 30)]
    assert [overload is not None for overload in overloads].index(True) + 2 == 16


def test_a_scale_out_goes_by_the_work_of_partitions(loaded):
    """Else the heaviest ones may go to one executor."""
    asked = []
    loaded.balanced = lambda **known: asked.append(known["weights"]) or {}
    works(loaded, 3, (8000, 1000, 1000, 1000))
    loaded.executors.append("4")
    loaded.policies._look()
    loaded.policies._scaling.join()
    assert asked == [{0: 8.0, 1: 1.0, 2: 1.0, 3: 1.0}]


def test_those_that_take_over_from_a_lost_executor_do_so_by_the_work_of_partitions(loaded):
    works(loaded, 3, (8000, 1000, 1000, 1000))
    loaded.policies._lost(Executor("1", "127.0.0.1", 1), [0, 1])
    assert loaded.weights == {0: 8.0, 1: 1.0, 2: 1.0, 3: 1.0}


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
