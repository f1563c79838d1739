"""The handover manager: state partitions change executors while their query goes on (Rhino, sections 3.3 and 4.1).

A handover takes place at the barrier between two micro-batches, which stands for the markers and the alignment of the paper.
Its steps: the target's host catches up with the state, in the background; its workers are warmed; Spark is told; the next
micro-batch runs there and takes up the version that Spark's token names. Whatever fails before that, the query goes on where
it was.
"""

from __future__ import annotations

import contextlib
import operator
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming import StreamingQuery

from forebay.errors import HandoverError, InvalidArgument
from forebay.replication.hostnames import address_of
from forebay.replication.spreading import spread
from forebay.spark.driver import metrics, replicas
from forebay.spark.driver import query as queries
from forebay.spark.driver.executors import Executor
from forebay.spark.driver.handed import Handed, Placed, Records
from forebay.spark.driver.openings import Reopening
from forebay.spark.driver.patience import Patience
from forebay.spark.driver.steering import Steering
from forebay.spark.driver.transfer import Transfer
from forebay.spark.driver.warming import start_agents

if TYPE_CHECKING:
    from forebay.replication.manager import Partition

WARM_SECONDS = 30.0
"""A target is warmed again if catching up took longer: Spark ends workers that have had nothing to do for a minute."""

GATHER_SECONDS = 30.0
"""When a query begins that has state, tasks wait so long at most for hosts that may hold it to have agents."""
_PACE = 0.05


def handover(query: StreamingQuery) -> Handover:
    """The handover manager of a running query.

    Parameters
    ----------
    query : StreamingQuery
        A query started in this session, with operators of forebay.

    Returns
    -------
    Handover
        Always the same one for a run of the query.

    Raises
    ------
    InvalidArgument
        If the query is not running.

    Examples
    --------
    >>> import tempfile
    >>> import forebay as fb
    >>> rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 1)
    >>> ticks = rates.option("advanceMillisPerBatch", 1000).load().withWatermark("timestamp", "1 minute")
    >>> counts = fb.groupBy(ticks, fb.window("timestamp", "1 hour"), "value").agg(fb.count("*"))
    >>> query = counts.writeStream.format("noop").option("checkpointLocation", tempfile.mkdtemp()).start()
    >>> while not query.lastProgress:
    ...     _ = query.awaitTermination(0.1)
    >>> [(placed.partition, placed.executor) for placed in fb.handover(query).placement()]
    [(0, 'driver'), (1, 'driver')]
    >>> query.stop()
    """
    queries.require_query("handover()", query)
    if not queries.goes_on(query, queries.context_of(query)):
        raise InvalidArgument(
            f"fb.handover got the query {query.name or query.id}, which is not running. State is handed over between the "
            "executors of a running query; a query that is started finds its state by itself."
        )
    run = str(query.runId)
    with _lock:
        ended = [_managers.pop(each) for each, manager in list(_managers.items()) if not manager.steering.goes_on]
        if run not in _managers:
            _managers[run] = Handover(query)
        manager = _managers[run]
    for each in ended:  # it waits for a thread that may be here, too
        each.close()
    return manager


class Handover:
    """The handover manager of one run of a query; `handover` gives it.

    Attributes
    ----------
    query : StreamingQuery
        The query.
    steering : Steering
        How Spark is told.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self.query, self.steering = query, Steering(query)
        self._manager = replicas.manager()
        planned = queries.operators(queries.plan_of(query))
        self._place = planned[0].place if planned else None
        location = queries.execution(query).resolvedCheckpointRoot()
        self._held = self._place.held(location, str(query.id))[0] if self._place else ""
        self._transfer = Transfer(query, self.steering, self._manager, self._held)
        self._going_on = threading.Lock()
        self._records = Records()

    @property
    def recent(self) -> list[Handed]:
        """The handovers so far, oldest first, those that were given up included."""
        return list(self._records.recent)

    def placement(self) -> list[Placed]:
        """Where each state partition is, and its replicas; `HandoverError` if the query has ended."""
        self._require_going_on()
        executors = {each.id: each.host for each in self.steering.executors()}
        state = {each.number: each for each in self._partitions()}
        told = metrics.state_bytes(str(self.query.id), self.steering.partitions)
        found = []
        for partition, executor in self.steering.placement().items():
            known = state.get(partition)
            lags = {host: lag.versions if lag.complete else -1 for host, lag in known.replicas.items()} if known else {}
            host = executors.get(executor or "")
            found.append(Placed(partition, executor, host, known.bytes if known else told[partition], lags))
        return found

    def move(self, partitions: int | Iterable[int], executor: str, *, timeout: float | timedelta | None = None) -> Handed:
        """Have partitions run on another executor.

        It returns when a micro-batch has run there; at once if the query is idle. Until the executor's host has the state
        the query goes on as it is.

        Parameters
        ----------
        partitions : int or iterable of int
            The state partitions, of all operators of the query.
        executor : str
            The id of the executor, as Spark's UI and `placement` name it.
        timeout : float or timedelta, optional
            Seconds, or a time, until it is given up; unless given, when the host has got no more of the state for ten
            minutes.

        Raises
        ------
        HandoverError
            If it was given up, if another handover of the query has not ended in time, or if the query has ended.
        InvalidArgument
            If there is no such partition or executor.
        """
        return self.hand("move", dict.fromkeys(_numbers(partitions), executor), timeout=timeout)

    def rebalance(self, *, timeout: float | timedelta | None = None) -> Handed:
        """Spread the partitions over all executors, in proportion to their cores, with as few moves as possible.

        Parameters and errors are those of `move`.
        """
        return self.hand("rebalance", self.balanced(), timeout=timeout)

    def balanced(self, *, without: Collection[str] = (), weights: Mapping[int, float] | None = None) -> dict[int, str]:
        """The moves that spread the partitions over the executors, but for some that have to wait.

        ``weights`` says how much work partitions are, in any unit; those that it does not name are 1.
        """
        self._require_going_on()
        usable, placement = self.steering.usable(), self.steering.placement()
        usable = [each for each in usable if each.id not in without or each.id in placement.values()]
        cores = {each.id: each.cores for each in usable}
        return spread(placement, cores, self.near(usable), dict.fromkeys(placement, 1.0) | dict(weights or {}))

    def hosts(self) -> set[str]:
        """The addresses of the hosts that can hold replicas."""
        return set(self._manager.hosts()) if self._manager is not None else set()

    def expect_hosts(self) -> None:
        """Before the first tasks of a query that has state ask for it: hosts that hold it may have no agent yet.

        `gather_hosts` is to follow.
        """
        if self._manager is not None:
            self._manager.gather(self._held, GATHER_SECONDS)

    def gather_hosts(self) -> None:
        """Have agents on the hosts of all executors; returns when they have told what they hold, or have had time to."""
        if self._manager is None or self._place is None:
            return
        place, end = self._place, time.monotonic() + GATHER_SECONDS
        try:
            hosts = {address_of(each.host): each for each in self.steering.usable()}
            lacking = [each for host, each in hosts.items() if host not in self.hosts()]
            if lacking:  # tasks of the query start those of their hosts as well, and may have all slots there
                threading.Thread(target=start_agents, args=(lacking, place), name="forebay agents", daemon=True).start()
            while not hosts.keys() <= self.hosts() and time.monotonic() < end:
                time.sleep(_PACE)
        finally:
            self._manager.gathered(self._held)

    def ready(self, executors: Collection[str]) -> None:
        """Have executors ready for partitions, and agents on their hosts."""
        self.steering.warm(executors, self._place)

    def takers(
        self, partitions: Iterable[int], executors: list[Executor], weights: Mapping[int, float] | None = None
    ) -> dict[int, str]:
        """Who of some executors takes over partitions whose own is lost: those that have the state, and least to do.

        ``weights`` are those of `balanced`.
        """
        placement: dict[int, str | None] = {**self.steering.placement(), **dict.fromkeys(partitions)}
        cores = {each.id: each.cores for each in executors}
        weighed = dict.fromkeys(placement, 1.0) | dict(weights or {})
        return spread(placement, cores, self.near(executors), weighed, level=False)

    def near(self, executors: Iterable[Executor]) -> dict[int, list[str]]:
        """The executors whose hosts have the state of each partition."""
        hosts: dict[str, list[str]] = {}
        for each in executors:
            hosts.setdefault(address_of(each.host), []).append(each.id)
        return {
            each.number: [
                executor
                for host in (each.origin, *(host for host, lag in each.replicas.items() if lag.complete))
                for executor in hosts.get(host, ())
            ]
            for each in self._partitions()
        }

    def hand(self, reason: str, placement: Mapping[int, str], *, timeout: float | timedelta | None = None) -> Handed:
        """Hand partitions over to executors, for a reason that is logged and remembered.

        Without a timeout it goes on as long as hosts get more and more of the state.
        """
        patience = Patience(timeout)
        self._require_going_on()
        hosts = {each.id: address_of(each.host) for each in self.steering.usable()}
        moving = self._moving(placement, hosts)
        if not moving:
            return Handed(reason)
        size = sum(each.stateBytes for each in self.placement() if each.partition in moving)
        guests = [(partition, hosts[target]) for partition, target in moving.items()]
        handed = Handed(reason, self._moves(moving), size)
        try:
            with handed.step("warm"):
                self._warm(moving)
            with self._transfer.invited(guests, patience):
                with handed.step("catchUp"):
                    self._transfer.catch_up(guests, patience)
                with self._turn(patience):
                    if handed.seconds["catchUp"] > WARM_SECONDS:
                        with handed.step("warm"):
                            self._warm(moving)
                    handed = replace(handed, moved=self._moves(moving))  # others have had their turn
                    opening = self._opening(moving, after=True)
                    with handed.step("microBatch"):
                        self._transfer.switch(moving, patience)
        except Exception as error:
            why = queries.text_of(error)
            self._records.add(replace(handed, failed=why, ended=time.time()))
            raise error if isinstance(error, HandoverError) else HandoverError(why) from error
        handed = replace(handed, seconds={**handed.seconds, **opening.seconds()}, ended=time.time())
        self._records.add(handed)
        return handed

    def lost(self, executor: Executor, placement: Mapping[int, str]) -> None:
        """Remember that partitions of an executor that is lost or leaving go elsewhere."""
        size = sum(each.stateBytes for each in self.placement() if each.partition in placement)
        moved: dict[int, tuple[str | None, str]] = {each: (executor.id, target) for each, target in placement.items()}
        handed = Handed("scale in" if executor.leaving else "recovery", moved, size)
        self._records.add(handed, self._opening(placement) if placement else None)

    def opened(self) -> None:
        """See whether the partitions of lost executors have their state again."""
        progress = queries.last_micro_batch(self.query) if self._records.waiting else None
        if progress is not None:
            self._records.opened(progress["batchId"])

    def lag(self) -> dict[str, int]:
        """What `forebay.progress` says of replicas and handovers.

        Of a partition that has more replicas than it needs, as while one of them is made, those count that are least behind.
        """
        needed = self._manager.replicas if self._manager else 0
        order = [
            sorted(each.replicas.values(), key=lambda lag: (not lag.complete, lag.versions))[:needed]
            for each in self._partitions()
        ]
        lags = [lag for some in order for lag in some]
        return {
            "replicaLagVersions": max((lag.versions for lag in lags), default=0),
            "replicaLagBytes": sum(lag.bytes for lag in lags),
            "handovers": self._records.done,
        }

    def status(self) -> dict[str, Any]:
        """All of it, for `forebay.state.cluster`."""
        return {
            "written": time.time(),
            "query": str(self.query.name or self.query.id),
            "replicas": self._manager.replicas if self._manager else 0,
            "hosts": self._manager.status() if self._manager else {},
            "partitions": [asdict(placed) for placed in self.placement()],
            "handovers": [asdict(handed) for handed in self._records.recent],
        }

    def _require_going_on(self) -> None:
        if not self.steering.goes_on:
            raise HandoverError("the query has ended")

    def close(self) -> None:
        """Steer no longer."""
        self.steering.close()

    def _opening(self, moved: Collection[int], *, after: bool = False) -> Reopening:
        """What partitions move that may run elsewhere in the micro-batch that is under way, or ``after`` it."""
        batch = self.steering.batch
        first = -1 if batch is None else batch + after
        return Reopening(str(self.query.id), [*moved], self.steering.partitions, first)

    def _partitions(self) -> list[Partition]:
        return self._manager.partitions(self._held) if self._manager is not None else []

    def _moving(self, placement: Mapping[int, str], executors: Collection[str]) -> dict[int, str]:
        """Those of a placement that are elsewhere now."""
        now = self.steering.placement()
        for partition, executor in placement.items():
            if partition not in now or not isinstance(executor, str) or executor not in executors:
                raise InvalidArgument(
                    f"partition {partition} cannot go to executor {executor!r}: the query has the partitions "
                    f"{sorted(now)}, and the executors that can take some are {sorted(executors)}"
                )
        return {partition: target for partition, target in placement.items() if now[partition] != target}

    def _moves(self, moving: Mapping[int, str]) -> dict[int, tuple[str | None, str]]:
        now = self.steering.placement()
        return {partition: (now[partition], target) for partition, target in moving.items()}

    @contextlib.contextmanager
    def _turn(self, patience: Patience) -> Iterator[None]:
        """Handovers of a query take turns at this; copies are made for several at a time."""
        if not self._going_on.acquire(timeout=min(max(0.0, patience.deadline - time.monotonic()), threading.TIMEOUT_MAX)):
            raise HandoverError(
                "another handover of this query has not ended in time. fb.handover(query).recent has it when it has; ask "
                "again then, or with a longer timeout."
            )
        try:
            yield
        finally:
            self._going_on.release()

    def _warm(self, moving: Mapping[int, str]) -> None:
        """Have targets ready, but for those that run partitions, and have an agent if they need one: they are busy."""
        at_work = set(self.steering.placement().values())
        if self._manager is not None:
            hosts = self.hosts()
            at_work &= {each.id for each in self.steering.usable() if address_of(each.host) in hosts}
        self.ready(set(moving.values()) - at_work)


_managers: dict[str, Handover] = {}
_lock = threading.Lock()


def _numbers(partitions: int | Iterable[int]) -> list[int]:
    """The partitions that are to move; numbers of numpy are numbers, too."""
    try:
        return [operator.index(each) for each in (partitions if isinstance(partitions, Iterable) else [partitions])]
    except TypeError:
        raise InvalidArgument(
            f"move() got the partitions {partitions!r}; they are a whole number, or several: move([0, 1], executor)"
        ) from None
