"""Handovers that happen by themselves: executors that join, leave, are lost or have too much to do (Rhino, section 3.5).

A thread for each query whose state has replicas looks at the executors twice a second. If ``spark.forebay.handover`` is
``manual``, it hands nothing over, but still sees to it that hosts have agents. It also keeps what ``forebay cluster status``
shows.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from forebay.errors import ForebayError
from forebay.replication.hostnames import address_of
from forebay.spark.driver import metrics
from forebay.spark.driver import query as queries
from forebay.spark.driver.executors import Executor
from forebay.spark.driver.handover import Handover
from forebay.spark.driver.levelling import SLOW, Levelling, Overload, measured, relieving, weights
from forebay.spark.driver.newcomers import Newcomers
from forebay.state import cluster
from forebay.state.places import Root

SCALE_OUT, LEVELLING = "scale out", "load balancing"

LOOK_SECONDS = 0.5
"""Between two looks at the executors."""

ENLISTED_SECONDS = 600.0
"""An agent that does not start, or has gone, is started again only then, unless a task does it: that takes slots."""

GATHERED_SECONDS = 10.0
"""So long the first placement waits at most for hosts to tell what they hold of a query that was there before."""

PUBLISHED_SECONDS = 5.0
"""What is shown to people is so old at most."""

_log = logging.getLogger("forebay")


class Policies:
    """What looks after one run of a query.

    Parameters
    ----------
    handover : Handover
        The query's handover manager.
    root : Root
        Where the query's state is safe.
    acting : bool
        Whether partitions are handed over.
    resumed : bool
        Whether the query has committed micro-batches before.
    """

    def __init__(self, handover: Handover, root: Root, *, acting: bool, resumed: bool = False) -> None:
        self._handover, self._steering = handover, handover.steering
        self._root, self._acting, self._resumed, self._published = root, acting, resumed, 0.0
        self._newcomers = Newcomers()
        self._overloads = Levelling()
        self._work: dict[int, float] = {}
        self._looked = -1
        self._placed: set[str] = set()
        """The executors among which partitions that had none were placed last."""
        self._enlisted: dict[str, float] = {}
        """When the host of an executor had an agent last, or was to get one."""
        self._gathering: threading.Thread | None = None
        self._gathers_until = 0.0
        self._claims: dict[str, threading.Thread] = {}
        self._enlisting: threading.Thread | None = None
        self._scaling: threading.Thread | None = None
        self._bringing_up: set[str] = set()
        self._levelling: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name="forebay handover", daemon=True)

    def start(self) -> None:
        """Begin to look after the query, until it ends; its first tasks must not have begun."""
        if self._resumed:
            self._handover.expect_hosts()
            self._gathers_until = time.monotonic() + GATHERED_SECONDS
            self._gathering = _in_background(self._gather)
        if self._acting:
            self._steering.on_lost(self._lost)
            self._steering.on_joined(self._joined)
        self._thread.start()

    def _run(self) -> None:
        pause = threading.Event()
        while self._steering.goes_on:
            try:
                if self._steering.partitions:
                    self._look()
                    self._publish()
            except Exception as error:
                if isinstance(error, ForebayError | OSError):
                    self._warn(error, "forebay looks after the executors of the query again soon")
                elif self._steering.goes_on:
                    _log.exception("forebay could not look after the executors of the query")
            pause.wait(LOOK_SECONDS)
        self._handover.close()

    def _gather(self) -> None:
        try:
            self._handover.gather_hosts()
        except Exception as error:  # as when an executor is lost meanwhile
            self._warn(error, "not all hosts have agents yet")

    def _publish(self) -> None:
        now = time.monotonic()
        if now - self._published >= PUBLISHED_SECONDS:
            self._published = now
            cluster.write(self._root.safe, self._handover.status())

    def _look(self) -> None:
        self._handover.opened()
        executors = self._steering.usable()
        if self._acting:
            self._act(executors)
        self._enlist(executors)

    def _enlist(self, executors: list[Executor]) -> None:
        """Have agents on the hosts of executors that Spark has given no task yet, so that these can hold replicas."""
        if self._handover.query.lastProgress is None or _is_going_on(self._enlisting):
            return
        if self._acting:  # those that join are brought up with their share, but for those whose turn is still to come
            turn = self._bringing_up if _is_going_on(self._scaling) else {each.id for each in executors}
            executors = [each for each in executors if each.id in self._newcomers.served or each.id not in turn]
        having, now = self._handover.hosts(), time.monotonic()
        enlisted = {each.id: now for each in executors if address_of(each.host) in having}
        idle = [each.id for each in executors if each.id not in enlisted and self._lacks_agent(each.id, now)]
        self._enlisted |= enlisted | dict.fromkeys(idle, now)
        if idle:
            self._enlisting = _in_background(lambda: self._ready(idle))

    def _lacks_agent(self, executor: str, now: float) -> bool:
        """Whether an executor whose host has no agent is to get one there: its own tasks may be about to start one."""
        return now - self._enlisted.get(executor, -math.inf) >= ENLISTED_SECONDS

    def _ready(self, executors: Collection[str]) -> None:
        for each in sorted(executors):
            try:
                self._handover.ready([each])
            except Exception as error:  # as when it is lost meanwhile: others have to do
                self._warn(error, "no replicas can be held by the executor %s", each)

    def _act(self, executors: list[Executor]) -> None:
        """Hand partitions over to executors that have joined, or from those that are overloaded."""
        if not _is_going_on(self._scaling):
            present = {each.id for each in executors}
            for each, claim in [*self._claims.items()]:
                if each not in present and not _is_going_on(claim):
                    self._claims.pop(each, None)
            joined = self._newcomers.due(present, time.monotonic())
            if joined:
                self._bringing_up = joined
                self._scaling = _in_background(lambda: self._scale_out(joined))
        served = [each for each in executors if each.id in self._newcomers.served]
        self._place(served)
        if not _is_going_on(self._levelling):
            self._level(served)

    def _place(self, executors: list[Executor]) -> None:
        """Have partitions that no executor has, as when a run begins, go to those that have their state, evenly else.

        Spark would run them anywhere, and each operator's somewhere else.
        """
        names = {each.id for each in executors}
        if len(names) < 2 or names <= self._placed or self._gathers:
            return
        here = self._steering.placement()
        nowhere = [partition for partition, at in here.items() if at is None]
        if nowhere:
            there = {partition: at for partition, at in here.items() if at in names}
            self._steering.suggest(there | self._handover.takers(nowhere, executors))
        self._placed = names

    @property
    def _gathers(self) -> bool:
        """Whether hosts are about to tell what they hold."""
        return _is_going_on(self._gathering) and time.monotonic() < self._gathers_until

    def _scale_out(self, joined: set[str]) -> None:
        """Give executors that have joined their share, or say when that will be tried again."""
        others = self._newcomers.waiting - joined
        for each in joined:
            if (claim := self._claims.pop(each, None)) is not None:
                claim.join()  # what follows needs the same slots
        try:
            self._handover.hand(SCALE_OUT, self._handover.balanced(without=others, weights=weights(self._work)))
        except Exception as error:  # whatever it is, it must not be tried again at once, unless it is for one that has gone
            if not joined <= {each.id for each in self._steering.usable()}:
                self._warn(
                    error, "the scale-out to executor %s goes on without those that have gone", ", ".join(sorted(joined))
                )
                return
            seconds = self._newcomers.failed(joined, time.monotonic())
            self._warn(error, "the scale-out to executor %s is tried again in %.0f s", ", ".join(sorted(joined)), seconds)
        else:
            self._newcomers.settled(joined)

    def _hand(self, placement: Mapping[int, str]) -> bool:
        try:
            self._handover.hand(LEVELLING, placement)
        except Exception as error:  # whatever it is, the query goes on as it was
            self._warn(error, LEVELLING)
            return False
        return True

    def _warn(self, error: Exception, what: str, *about: object) -> None:
        """Say what has failed, unless that is because the query has ended."""
        if self._steering.goes_on:
            _log.warning(f"{what}: %s", *about, queries.text_of(error))

    def _joined(self, executor: Executor) -> None:
        """Have an executor claimed before Spark gives it tasks of a micro-batch; its share comes later."""
        self._claims[executor.id] = _in_background(lambda: self._claim(executor))

    def _claim(self, executor: Executor) -> None:
        try:
            self._steering.claim(executor)
        except Exception as error:  # as when it is lost meanwhile
            _log.info("the executor %s, which has joined, could not be claimed: %s", executor.id, queries.text_of(error))

    def _lost(self, executor: Executor, partitions: list[int]) -> Mapping[int, str]:
        """Where the partitions of an executor go that is lost or leaving: to hosts that have their state.

        Executors that were dismissed, or have not been given their share yet, get those that no other one has the state of.
        """
        others = [each for each in self._steering.usable() if each.id != executor.id]
        served = [each for each in others if each.id in self._newcomers.served] or others
        near, nearer = self._handover.near(others), self._handover.near(served)
        alone = [partition for partition in partitions if near.get(partition) and not nearer.get(partition)]
        work = weights(self._work)
        chosen = self._handover.takers(partitions, served, work) | self._handover.takers(alone, others, work)
        placement = {partition: chosen[partition] for partition in partitions if partition in chosen}
        for each in {*placement.values()} - {each.id for each in served}:
            self._newcomers.called_back(each)
        self._handover.lost(executor, placement)
        return placement

    def _level(self, executors: list[Executor]) -> None:
        """Take a partition from an executor that has been overloaded for some time, or all if it is slow."""
        progress = queries.last_micro_batch(self._handover.query)
        if progress is None or progress["batchId"] <= self._looked:
            return
        self._looked = batch = progress["batchId"]
        here = self._steering.placement()
        worked = metrics.worked(str(self._handover.query.id), batch)
        work = measured(worked, self._steering.partitions, here, [each.id for each in executors])
        self._work = {each: self._work.get(each, 0.0) / 2 + some for each, some in work.work.items()}
        if len(executors) < 2:
            return
        lasted = progress["durationMs"].get("triggerExecution", 0.0)
        overload = self._overloads.take(batch, work, lasted, time.monotonic())
        if overload is None:
            return
        if overload.slow:
            slow = _of_slow_host(overload, executors)
            self._overloads.rest(batch, [each for each, at in here.items() if at in slow])
            self._levelling = _in_background(lambda: self._dismiss(slow, here, executors))
            return
        moves = relieving(overload.work, self._handover.near(executors), overload.staying)
        if moves:
            _log.info(
                "the executor %s worked for %.1f times as long as the others (seconds of executors %s, of "
                "partitions %s), so partitions go to other executors: %s",
                overload.executor,
                overload.work.excess,
                _seconds(overload.work.load),
                _seconds(overload.work.work),
                moves,
            )
            self._overloads.rest(batch, moves)
            self._levelling = _in_background(lambda: self._relieve(batch, moves))

    def _relieve(self, batch: int, moves: Mapping[int, str]) -> None:
        if self._hand(moves):
            self._overloads.handed(batch, moves)

    def _dismiss(self, slow: Collection[str], here: Mapping[int, str | None], executors: list[Executor]) -> None:
        """Give what slow executors of a host have to others. They are as those that will join later: it may pass."""
        hosts = {each.host for each in executors if each.id in slow}
        staying = [each for each in executors if each.id not in slow]
        others = [each for each in staying if each.host not in hosts] or staying
        mine = {partition: at for partition, at in here.items() if at in slow}
        chosen = self._handover.takers(mine, others)
        for each in slow:
            seconds = self._newcomers.dismissed(each, time.monotonic())
            _log.warning(
                "the executor %s, or one of the same host, needs at least %g times as long for a row as the others: its "
                "partitions go elsewhere, and it is given its share again in %.0f s",
                each,
                SLOW,
                seconds,
            )
        handed = self._hand({partition: chosen[partition] for partition in mine if partition in chosen})
        if not handed:
            there = self._steering.placement()
            for each in slow:
                if all(there[partition] == each for partition, at in mine.items() if at == each):
                    self._newcomers.called_back(each, undone=True)


def _of_slow_host(overload: Overload, executors: list[Executor]) -> list[str]:
    """The executor that is slow, and the others of its host if all of them that have something to do seem slow, too."""
    host = next(each.host for each in executors if each.id == overload.executor)
    there = [each.id for each in executors if each.host == host]
    busy = [each for each in there if overload.work.load[each]]
    return there if overload.work.suspects.issuperset(busy) else [overload.executor]


def _seconds(times: Mapping[Any, float]) -> dict[Any, float]:
    return {each: round(milliseconds / 1e3, 1) for each, milliseconds in times.items()}


def _in_background(act: Callable[[], object]) -> threading.Thread:
    """Do what takes long while executors are looked at and the status is kept as it should be."""
    thread = threading.Thread(target=act, name="forebay policies", daemon=True)
    thread.start()
    return thread


def _is_going_on(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.is_alive()
