"""The window operator as Spark runs it: a `StatefulProcessor` over virtual nodes.

Spark's own state holds one small string per virtual node, the token of the store version that the batch produced. Spark
commits tokens exactly once, and the store's files follow them: a batch always starts from the version Spark says.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from forebay.engine.plan import END_OF_TIME, NEVER, WindowPlan
from forebay.spark.worker import blobs, startup, task
from forebay.spark.worker.clock import Clock, clock_of
from forebay.spark.worker.emitted import as_columns
from forebay.spark.worker.stages import PAYLOAD
from forebay.spark.worker.vnodes import IDLE
from forebay.state.layout import Layout, Location
from forebay.store.disk import LOCAL, Disk, Together
from forebay.windows import Buffered, GlobalWindow

if TYPE_CHECKING:
    import pandas as pd
    from pyspark import Accumulator
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

    from forebay.state.places import Place, Root

STATE = "version"
"""The name under which Spark's state has the token of a virtual node."""


class WindowOperator(StatefulProcessor):
    """Runs the store instance of each virtual node once per micro-batch, whether rows came for it or not.

    Pack sends something to every virtual node, and a timer runs it when only the watermark moves. So all of them have fired
    up to the watermark of the batch before, and a row is late by the rule that Spark's own operators have.

    Parameters
    ----------
    plan : bytes
        The `WindowPlan`, pickled.
    layout : dict
        What the operator's state looks like, see `forebay.state.layout`.
    place : Place
        Where state lives.
    output : str
        The name of a column without values beside the results, by which a plan tells that there is an operator.
    reporter : pyspark.Accumulator
        Gets the metrics of every task.
    idle : bool
        Whether the plan has a timeout for streams that fall silent.
    """

    def __init__(
        self,
        plan: bytes,
        layout: dict[str, Any],
        place: Place,
        output: str,
        reporter: Accumulator[Any],
        *,
        idle: bool = False,
    ) -> None:
        self._reporter = reporter
        self._idle = idle
        self._pickled = plan
        self._output = output
        self._layout = layout
        self._place = place
        self._running: _Task | None = None
        self._last: tuple[tuple[int, str, int], dict[str, float]] | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState(STATE, _schema(token=StringType(), fired_until=LongType(), timer=LongType()))
        if self._idle:  # what the plan says, too; but to load it here is to load polars for a call that may do nothing
            self._moved = handle.getValueState("moved", _schema(watermark=LongType(), wall=LongType(), seen=LongType()))

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues) -> Iterator[pd.DataFrame]:
        yield from self._run(key[0], rows, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        yield from self._run(key[0], iter(()), timerValues, expired=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        """Make durable what the task has committed, before Spark commits the tokens of it."""
        if self._running is None or self._last is None:
            return
        begun = perf_counter()
        self._running.settle()
        where, done = self._last
        self._report(*where, {**done, "commitTimeMs": done["commitTimeMs"] + 1000 * (perf_counter() - begun)})

    def _report(self, batch: int, operator: str, vnode: int, metrics: dict[str, float]) -> None:
        self._reporter.add({(str(startup.local_property("sql.streaming.queryId")), batch, operator, vnode): metrics})

    def _run(
        self, vnode: int, rows: Iterator[pd.DataFrame], timer_values: TimerValues, expired: int | None = None
    ) -> Iterator[pd.DataFrame]:
        """Take rows, fire, commit. ``expired`` is the timer that has run it, which Spark deletes itself.

        A store instance is opened only if rows have come for it or something is due in it.
        """
        running = self._running = self._running or _Task.begin(self._pickled, self._layout, self._place)
        try:
            yield from self._run_in(running, vnode, rows, timer_values, expired)
        except Exception:
            running.abandon()
            raise

    def _run_in(
        self, running: _Task, vnode: int, rows: Iterator[pd.DataFrame], timer_values: TimerValues, expired: int | None
    ) -> Iterator[pd.DataFrame]:
        """What `_run` does, in a task that has begun."""
        plan, clock = running.plan, running.clock
        known = self._state.get() or (None, NEVER, None)
        token, fired_until, timer = known
        wall = now = _now(clock, timer_values)
        if plan.idle_timeout is not None and wall is not None:
            now = self._event_time(running.batch, wall, plan.idle_timeout)
        until = fired_until if now is None else max(fired_until, now * 1000)  # a wall clock may be set back
        location = running.location(token) if token else None
        waiting = _blobs(rows)
        first = next(waiting, None)
        if first is not None or (location is not None and location.is_due(until, plan.patterns)):
            some = waiting if first is None else itertools.chain([first], waiting)
            token = yield from self._work(running, vnode, location or running.new(vnode), some, fired_until, until)
        elif location is not None:
            self._report(running.batch, location.layout, IDLE, {})
        due = running.location(token).due if token and isinstance(plan.windows, Buffered) else None
        following = _following(plan, clock, wall, due)
        if timer not in (None, expired, following):
            self._handle.deleteTimer(timer)
        if following not in (None, timer):
            self._handle.registerTimer(following)
        if (token, until, following) != known:
            self._state.update((token, until, following))

    def _work(
        self, running: _Task, vnode: int, location: Location, waiting: Iterator[bytes], fired_until: int, until: int
    ) -> Generator[pd.DataFrame, None, str | None]:
        """Have a store instance take blobs, fire and commit; gives its new token."""
        from forebay.engine.open import open_instance
        from forebay.spark.worker.capture import Recording
        from forebay.spark.worker.measured import measured

        recording = Recording.begin(running.plan, location.layout, vnode, running.batch)
        home = location.home
        home.use()
        times = [perf_counter()]
        instance = open_instance(
            running.plan,
            home.directory,
            location.version,
            fired_until,
            archive=home.archive,
            updating=running.updating,
            disk=running.disk,
            observer=None if recording is None else recording.observer,
        )
        counters, metrics = instance.counters, replace(instance.metrics)
        times.append(perf_counter())
        try:
            for batch, partial in blobs.read_all(waiting) if recording is None else recording.in_order(waiting):
                instance.ingest(batch, partial=partial)
            times.append(perf_counter())
            yield from as_columns(instance.fire(until), self._output)
            times.append(perf_counter())
            version = instance.commit(running.batch)
            if recording is not None:
                recording.write()
            times.append(perf_counter())
            done = measured(instance.counters, counters, instance.metrics, metrics, times)
            where = running.batch, location.layout, vnode
            self._report(*where, done)
            self._last = where, done
            return str(location.at(version, instance.due, running.plan.patterns)) if version else None
        finally:
            instance.close()

    def _event_time(self, batch: int, wall: int, timeout: int) -> int | None:
        """The watermark of a micro-batch; when it has not moved for ``timeout`` microseconds, plus the time since it did."""
        watermark = task.watermark(batch)
        if watermark is None:
            return None
        before, since, seen = self._moved.get() or (watermark, wall, wall)
        if watermark > before or (wall - seen) * 1000 >= timeout:  # a query that was down has not listened to silence
            since = wall
        since = min(since, wall)  # a clock may be set back
        self._moved.update((watermark, since, wall))
        silent = wall - since
        return int(watermark + (silent if silent * 1000 >= timeout else 0))


@dataclass(frozen=True)
class _Task:
    """What is the same for all virtual nodes that a task runs."""

    plan: WindowPlan
    clock: Clock
    batch: int
    updating: bool
    layout: Layout
    directories: list[str]
    root: Root
    disk: Disk

    @classmethod
    def begin(cls, pickled: bytes, layout: Layout, place: Place) -> _Task:
        plan = startup.loads(pickled)
        root, updating = task.state_root(place), task.updating()
        stored = task.stored(layout, root)
        batch = int(startup.local_property("streaming.sql.batchId") or 0)
        disk = Together() if root.archive is None else LOCAL  # what an archive has is durable there
        return cls(plan, clock_of(plan), batch, updating, stored, task.directories(stored), root, disk)

    def location(self, token: str) -> Location:
        return Location.parse(self.root, token, self.layout, self.directories)

    def new(self, vnode: int) -> Location:
        return Location.new(self.root, vnode, self.layout, self.directories)

    def settle(self) -> None:
        if isinstance(self.disk, Together):
            self.disk.settle()

    def abandon(self) -> None:
        """The task fails: what its other virtual nodes have committed counts for nothing."""
        if isinstance(self.disk, Together):
            self.disk.abandon()


def _schema(**fields: DataType) -> StructType:
    """A type of state. Given as text it would be parsed by the JVM, twice in each task."""
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def _blobs(rows: Iterator[pd.DataFrame]) -> Iterator[bytes]:
    """What pack has sent, but for what only says that a micro-batch runs."""
    return (blob for frame in rows for blob in frame[PAYLOAD] if blob is not None)


def _now(clock: Clock, timer_values: TimerValues) -> int | None:
    """Milliseconds on a clock; None before there is a watermark."""
    if clock is Clock.WALL:
        return int(timer_values.getCurrentProcessingTimeInMs())
    if clock is Clock.NONE:
        return 0
    return int(timer_values.getCurrentWatermarkInMs()) or None  # Spark's watermark is 0 until there is one


def _following(plan: WindowPlan, clock: Clock, now: int | None, due: int | None) -> int | None:
    """When the operator has to run even if no row comes, in milliseconds; ``due`` as the instance says, if it knows."""
    if clock is Clock.NONE or due == END_OF_TIME:
        return None
    if due not in (None, NEVER):
        return max((now or 0) + 1, -(-due // 1000))
    if isinstance(plan.windows, GlobalWindow) and plan.windows.every is not None and now is not None:
        every = -(-plan.windows.every // 1000)
        return (now // every + 1) * every
    return (now or 0) + 1
