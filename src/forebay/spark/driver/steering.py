"""Where the state partitions of a running query are, and how they are moved to other executors.

Spark's state store coordinator, on the driver, knows for each state partition the executor that has loaded it last. When a
stage begins, Spark asks it and prefers that executor. So a partition moves at the next micro-batch when the coordinator is
told that another executor has it; the query goes on as it is. This is what Spark 4.3 makes of it:

*It follows as long as the executor has a free core in time.* A task that has waited for its executor for
``spark.locality.wait.process`` (3 s, or 30 s by `forebay.configure`) goes to the host that the coordinator named, and
``spark.locality.wait.node`` (3 s) later anywhere. An executor whose queue is longer loses partitions to others. Then the
coordinator is told again what is wanted at the beginning of the next micro-batch, and the partition comes back.

*An executor tells the coordinator whenever it loads a partition*, once in each micro-batch. So what is told after the tasks
have begun stays, what is told before may be overwritten, and it is told again when the next micro-batch has been planned.
Partitions of an operator are looked up when its stage begins, after pack, or after the operator before it in a chain. Stages
of forebay's operators have one stateful operator each, because a shuffle comes before it. A join of Spark's asks for each of
its stores, and all of them are told the same.

*The executor that is left keeps the partition of Spark's state loaded* until it loads another partition and learns from the
coordinator's answer that this one is elsewhere, or until its next maintenance (a minute). A store that a task is using is
put aside and closed after it, so a task that is running when its partition is steered elsewhere ends and commits.

*When an executor is lost*, the driver knows it as soon as the connection breaks, and this module a look later. Tasks that
ran there are waiting again in the same attempt at their stage, with the locations that they had: neither the coordinator
nor anything else is asked again. If no other task of the stage has waited for some time they run anywhere at once, else when
both times above have passed, or when `forebay.spark.driver.locality` lets them go. If the executor had output of the
shuffle, the first of them fails to fetch it, Spark runs the missing part of pack and begins a new attempt at the stage, and
only that asks the coordinator. Until the micro-batch has ended, the coordinator is therefore told again and again where the
lost partitions are wanted.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pyspark.sql.streaming import StreamingQuery

from forebay.errors import InvalidArgument
from forebay.spark.driver import query as queries
from forebay.spark.driver.coordinator import Coordinator
from forebay.spark.driver.executors import Executor, Executors
from forebay.spark.driver.locality import let_go
from forebay.spark.driver.relief import relieve
from forebay.spark.driver.warming import Warming
from forebay.state.places import Place

_log = logging.getLogger("forebay")

_PACE = 0.05
"""Seconds between two looks at the executors and at the micro-batch."""
_PACE_OF_EACH = 0.01
"""Seconds for each executor between two looks for those that are about to leave: Spark is asked of each."""

_WARMED_AT_ONCE = 8
"""So many executors are made ready at a time."""

OnLost = Callable[[Executor, list[int]], Mapping[int, str] | None]
"""What is asked where the state partitions of a lost executor go: executors' ids, by state partition."""

OnJoined = Callable[[Executor], None]
"""What is told of an executor that has joined."""


class Steering:
    """The state partitions of a running query, and the executors where they are.

    A state partition has one number for all stateful operators of a query, and all of them move together, Spark's own too:
    who empties an executor wants nothing to be left there.

    Parameters
    ----------
    query : StreamingQuery
        A query started in this session.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._execution = queries.execution(query)
        self._context = queries.context_of(query)
        self._executors = Executors(self._context)
        self._coordinator = Coordinator(query, self._execution)
        self._lock = threading.RLock()  # of the four that follow
        self._wanted: dict[int, Executor] = {}
        self._disturbed: set[int] = set()
        self._callbacks: list[OnLost] = []
        self._told_of_joined: list[OnJoined] = []
        self._before: dict[int, set[str | None]] = {}
        self._seen: tuple[frozenset[str], ...] = ()
        self._asked = self._leaving = frozenset[str]()
        self._ask_again = 0.0
        self._going: threading.Thread | None = None
        self._watcher: threading.Thread | None = None
        self._closed = threading.Event()

    @property
    def goes_on(self) -> bool:
        """Whether the query is active, and the application, too."""
        return queries.goes_on(self._query, self._context)

    def executors(self) -> list[Executor]:
        """The executors that are alive, by number. One that has just come is left out until Spark knows its port."""
        return self._executors.listed()

    def usable(self) -> list[Executor]:
        """The executors that can be given partitions."""
        return list(self._executors.staying().values())

    @property
    def partitions(self) -> int:
        """How many state partitions the query has; 0 before its first micro-batch has been planned."""
        return self._coordinator.partitions

    @property
    def operators(self) -> list[int]:
        """The numbers that Spark has given to the stateful operators of the query, forebay's and its own."""
        return self._coordinator.operators

    def placement(self) -> dict[int, str | None]:
        """The executor of each state partition: the one that has loaded it last, or that it has been steered to.

        It is None for a partition that no executor has, as when its executor is lost. As long as nobody has steered, the
        operators of a query may have the same partition on different executors: this is where the first operator's are.
        """
        first, alive = min(self.operators, default=0), self._executors.alive()
        return {
            partition: next((each for each in self._coordinator.locations(partition, first) if each in alive), None)
            for partition in range(self.partitions)
        }

    def steer(self, placement: Mapping[int, str]) -> None:
        """Have state partitions run on other executors, from the next micro-batch on.

        It holds until the partition is steered elsewhere or the executor is lost. A micro-batch that is under way ends where
        it began.

        Parameters
        ----------
        placement : dict of int to str
            Executors' ids, by state partition. Partitions that are not named stay where they are.
        """
        chosen = self._chosen(placement)
        with self._lock:
            self._wanted.update(chosen)
            self._report(chosen)
        self._watch()

    def suggest(self, placement: Mapping[int, str]) -> None:
        """Have state partitions run on other executors if that is still possible in the stages that begin next.

        Where it is not, they stay where Spark runs them. Parameters are those of `steer`.
        """
        chosen = self._chosen(placement)
        with self._lock:
            for partition, executor in chosen.items():
                if partition not in self._wanted:
                    self._coordinator.report(partition, executor)

    def on_lost(self, callback: OnLost) -> None:
        """Have a function asked where the state partitions of an executor go that is lost, or is about to leave.

        Parameters
        ----------
        callback : callable
            It is called with the executor and a list of its partitions, a fraction of a second after Spark has noticed, in
            a thread of its own. It returns executors' ids by partition, which are steered to at once; partitions that it
            does not name go to wherever Spark runs them.
        """
        with self._lock:
            self._callbacks.append(callback)
        self._watch()

    def on_joined(self, callback: OnJoined) -> None:
        """Have a function told of executors that join, a fraction of a second after they are ready.

        Parameters
        ----------
        callback : callable
            It is called with the executor, and returns at once.
        """
        with self._lock:
            self._told_of_joined.append(callback)
        self._watch()

    def claim(self, executor: Executor) -> None:
        """Take all slots of an executor that has just joined, and load there what Python workers need; returns when it has.

        Else a micro-batch may begin, and wait for its first tasks there, which take half a minute if there is little CPU.
        Tasks that Spark has given it before are taken back when others have time for them. What else there is to do before
        state partitions move there, `warm` does.
        """
        ready = threading.Event()
        of_the_query = self._context, str(self._query.runId), executor, ready
        threading.Thread(target=relieve, args=of_the_query, name="forebay relief", daemon=True).start()
        try:
            Warming(self._execution, executor.location, executor.cores).claim()
        finally:
            ready.set()

    def warm(self, executors: Iterable[str], place: Place | None = None) -> None:
        """Have executors ready for tasks of operators, several at a time, before state partitions move there.

        They read and pack some of what the last micro-batch has read, load what Spark keeps of a
        state partition, and run an operator that does nothing, in Python workers with forebay's modules loaded. It returns
        when they are ready. These are Spark jobs of their own for each executor, which take free cores there, for a minute
        or more where there is little CPU; Spark ends workers that nobody has used for a minute.

        Parameters
        ----------
        executors : iterable of str
            Executors' ids. Those that have been lost are passed over.
        place : Place, optional
            Where state lives; if replicas are kept, the agents of the executors' hosts are started.
        """
        wanted = set(executors)
        found, operators = [each for each in self.executors() if each.id in wanted], self.operators
        if not found:
            return

        def warm(executor: Executor) -> None:
            Warming(self._execution, executor.location, executor.cores).warm(operators, place)

        with ThreadPoolExecutor(min(len(found), _WARMED_AT_ONCE), "forebay warming") as pool:
            for done in [pool.submit(warm, each) for each in found]:
                done.result()

    def close(self) -> None:
        """Steer no longer. Partitions stay where they are as long as Spark leaves them there."""
        self._closed.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()

    def _chosen(self, placement: Mapping[int, str]) -> dict[int, Executor]:
        known, partitions = self._executors.staying(), self.partitions
        for partition, executor in placement.items():
            if not 0 <= partition < partitions:
                raise InvalidArgument(
                    f"there is no state partition {partition!r}: the query has {partitions} of them, and none before its "
                    "first micro-batch has been planned. Name one from 0 on."
                )
            if executor not in known:
                raise InvalidArgument(
                    f"there is no executor {executor!r} for the state partition {partition}: it is lost, about to leave, or "
                    f"never was. Choose one of those that stay: {', '.join(known) or 'none'}."
                )
        return {partition: known[executor] for partition, executor in placement.items()}

    def _watch(self) -> None:
        with self._lock:
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._look_after, name="forebay-steering", daemon=True)
                self._watcher.start()

    def _look_after(self) -> None:
        """Look for lost executors, and tell the coordinator at the beginning of each micro-batch what is wanted.

        Executors tell it where they have loaded a partition, so what it was told during the micro-batch before may be gone.
        """
        batch: int | None = None
        present: Mapping[str, Executor] | None = None
        failed = False
        while not self._closed.wait(0.0 if present is None and not failed else _PACE):
            try:
                if not self.goes_on:
                    return
                if present is None:
                    batch, present = self.batch, self._executors.staying()
                    with self._lock:  # those that partitions were steered to, if they have been lost since
                        present = {**{each.id: each for each in self._wanted.values()}, **present}
                present = self._noticed(present)
                before, batch = batch, self.batch
                self._tell(begun=batch != before)
                failed = False
            except Exception as error:  # whatever it is, the thread goes on: there is no other one
                if not self.goes_on:
                    return
                if not failed:  # it is tried again, and said once
                    _log.warning("forebay could not look for lost executors: %s", queries.text_of(error))
                failed = True

    def _noticed(self, present: Mapping[str, Executor]) -> Mapping[str, Executor]:
        """Have it known which executors are lost, or have joined, since these were present; gives those that are now."""
        alive = self._executors.alive()
        there = alive - self._leaving_of(alive)
        self._let_go(alive, there)
        for gone in present.keys() - there:
            self._lost(replace(present[gone], leaving=gone in alive))
        if present.keys() == there:
            return present
        known = {**present, **{each.id: each for each in self.executors()}}  # which may lack one that was there
        now = {each: known[each] for each in there if each in known}
        self._met(now, present)
        return now

    def _tell(self, *, begun: bool) -> None:
        """Tell the coordinator what is wanted; all of it if a micro-batch has begun."""
        with self._lock:
            if begun:
                self._disturbed.clear()
                self._report(self._wanted)
            else:  # a task that Spark has sent anywhere must not decide where the next attempt at its stage runs
                self._report(self._disturbed)
        if begun:
            self._before = self._where_others_are()

    def _leaving_of(self, alive: frozenset[str]) -> frozenset[str]:
        """Those that are about to leave, of the executors that are alive."""
        now = time.monotonic()
        if alive != self._asked or now >= self._ask_again:
            self._asked, self._ask_again = alive, now + _PACE_OF_EACH * len(alive)
            self._leaving = self._executors.leaving(alive) | (self._executors.excluded() & alive)
        return self._leaving

    def _met(self, executors: Mapping[str, Executor], before: Mapping[str, Executor]) -> None:
        """Tell of executors that were not there before."""
        with self._lock:
            callbacks = list(self._told_of_joined)
        for executor, callback in itertools.product(executors.keys() - before.keys(), callbacks):
            callback(executors[executor])

    def _lost(self, executor: Executor) -> None:
        with self._lock:
            partitions = [partition for partition in range(self.partitions) if self._was_at(partition, executor.id)]
            for partition in [partition for partition, each in self._wanted.items() if each.id == executor.id]:
                del self._wanted[partition]
            callbacks = list(self._callbacks)
        placement: dict[int, str] = {}
        for callback in callbacks:
            try:
                placement.update(callback(executor, partitions) or {})
            except Exception:
                _log.exception("forebay could not ask where the state partitions of executor %s go", executor.id)
        staying = self._executors.staying()
        placement = {partition: each for partition, each in placement.items() if each in staying}
        try:
            self.steer(placement)
        except InvalidArgument as error:
            _log.warning("the state partitions of executor %s go wherever Spark runs them: %s", executor.id, error)
        else:
            with self._lock:
                self._disturbed.update(placement)

    def _let_go(self, *known: frozenset[str]) -> None:
        """Nothing waits in vain for executors that were alive, or stayed, at the last look."""
        before, self._seen = self._seen, known
        fewer = any(earlier - now for earlier, now in zip(before, known, strict=False))
        if fewer and not (self._going is not None and self._going.is_alive()):
            of_the_query = self._context, str(self._query.runId)
            self._going = threading.Thread(target=let_go, args=of_the_query, name="forebay locality", daemon=True)
            self._going.start()

    def _was_at(self, partition: int, executor: str) -> bool:
        """Whether an executor has a partition, or had it when the micro-batch began: another one may run it by now."""
        wanted = self._wanted.get(partition)
        before = {wanted.id} if wanted is not None else self._before.get(partition, set())
        return executor in before.union(self._coordinator.locations(partition))

    def _where_others_are(self) -> dict[int, set[str | None]]:
        """The executors of the partitions that nobody has steered, if it is known for good what stores there are."""
        others = set(range(self.partitions)).difference(self._wanted) if self._coordinator.knows_all else set[int]()
        return {each: set(self._coordinator.locations(each)) for each in others}

    def _report(self, partitions: Iterable[int]) -> None:
        """Tell the coordinator where partitions are wanted."""
        for partition in partitions:
            wanted = self._wanted.get(partition)
            if wanted is not None:
                self._coordinator.report(partition, wanted)

    @property
    def batch(self) -> int | None:
        """The micro-batch that has been planned last in this run."""
        last = self._execution.lastExecution()
        return None if last is None else int(last.currentBatchId())
