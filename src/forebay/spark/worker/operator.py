"""The operator of a stream in a task: the store instances of its virtual nodes, one after the other.

Spark's own state holds one small string per virtual node, the token of the store version that the batch produced. Spark
commits tokens exactly once, and the store's files follow them: a batch always starts from the version Spark says.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from forebay.engine.plan import END_OF_TIME, NEVER, WindowPlan
from forebay.spark.worker import blobs, task
from forebay.spark.worker.clock import Clock, Silence, clock_of
from forebay.spark.worker.emitted import as_columns
from forebay.spark.worker.stages import PAYLOAD
from forebay.spark.worker.vnodes import IDLE
from forebay.state.layout import Layout
from forebay.state.location import Location
from forebay.store.disk import LOCAL, Disk, Together
from forebay.windows import Buffered, GlobalWindow

if TYPE_CHECKING:
    import pandas as pd
    from pyspark import Accumulator
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues, ValueState

    from forebay.state.places import Place


@dataclass(frozen=True)
class Work:
    """What the driver tells the tasks of an operator.

    Attributes
    ----------
    plan : WindowPlan
        What it computes.
    layout : dict
        What its state looks like, see `forebay.state.layout`.
    place : Place
        Where state lives.
    output : str
        The name of a column without values beside the results, by which a plan tells that there is an operator.
    reporter : pyspark.Accumulator
        Gets the metrics of every task.
    timers : bool
        Whether timers of Spark run it when nothing comes from pack.
    """

    plan: WindowPlan
    layout: Layout
    place: Place
    output: str
    reporter: Accumulator[Any]
    timers: bool


class WindowOperator:
    """Runs the store instance of each virtual node once per micro-batch, whether rows came for it or not.

    Pack sends something to every virtual node, and a timer runs it when only the watermark moves and pack may have no task.
    So all of them have fired up to the watermark of the batch before, and a row is late by the same rule as for Spark's own
    operators.

    Parameters
    ----------
    work : Work
        What the driver tells.
    handle : StatefulProcessorHandle
        Spark's timers, and its watermark.
    state : ValueState
        Spark's state: token, watermark up to which windows have fired, and timer of the virtual node that Spark runs.
    moved : ValueState or None
        When the watermark has moved last, where the plan has a timeout for streams that fall silent.
    """

    def __init__(self, work: Work, handle: StatefulProcessorHandle, state: ValueState, moved: ValueState | None) -> None:
        self._plan, self._clock, self._timers = work.plan, clock_of(work.plan), work.timers
        self._handle, self._state, self._moved = handle, state, moved
        self._output, self._reporter = work.output, work.reporter
        self._root, self._updating = task.state_root(work.place), task.updating()
        self._layout = task.stored(work.layout, self._root)
        self._directories = list(task.directories(self._layout))
        self._batch = task.batch() or 0  # while an executor is warmed there is none
        self._disk: Disk = Together() if self._root.archive is None else LOCAL  # what an archive has is durable there
        self._last: tuple[tuple[int, str, int], dict[str, float]] | None = None

    def run(
        self, vnode: int, rows: Iterator[pd.DataFrame], timer_values: TimerValues, expired: int | None = None
    ) -> Iterator[pd.DataFrame]:
        """Take rows, fire, commit. ``expired`` is the timer that has run it, which Spark deletes itself.

        A store instance is opened only if rows have come for it or something is due in it.
        """
        try:
            yield from self._run(vnode, rows, timer_values, expired)
        except BaseException:  # the task fails: what its other virtual nodes have committed counts for nothing
            if isinstance(self._disk, Together):
                self._disk.abandon()
            raise

    def settle(self) -> None:
        """Make durable what the task has committed, before Spark commits the tokens of it."""
        if self._last is None:
            return
        begun = perf_counter()
        if isinstance(self._disk, Together):
            self._disk.settle()
        where, done = self._last
        self._report(*where, {**done, "commitTimeMs": done["commitTimeMs"] + 1000 * (perf_counter() - begun)})

    def _report(self, batch: int, operator: str, vnode: int, metrics: dict[str, float]) -> None:
        self._reporter.add({(task.query(), batch, operator, vnode): metrics})

    def _run(
        self, vnode: int, rows: Iterator[pd.DataFrame], timer_values: TimerValues, expired: int | None
    ) -> Iterator[pd.DataFrame]:
        known = self._state.get() or (None, NEVER, None)
        token, fired_until, timer = known
        wall = now = self._now(timer_values)
        if self._moved is not None and wall is not None:
            now = self._event_time(self._moved, wall)
        until = fired_until if now is None else max(fired_until, now * 1000)  # a wall clock may be set back
        location = self._location(token) if token else None
        waiting = _blobs(rows)
        first = next(waiting, None)
        if first is not None or (location is not None and location.is_due(until, self._plan.patterns)):
            some = waiting if first is None else itertools.chain([first], waiting)
            location = location or Location.new(self._root, vnode, self._layout, self._directories)
            token = yield from self._run_instance(vnode, location, some, fired_until, until)
        elif location is not None:
            self._report(self._batch, location.layout, IDLE, {})
        due = self._location(token).due if token and isinstance(self._plan.windows, Buffered) else None
        following = _following(self._plan, self._clock, wall, due) if self._timers else None
        if timer not in (None, expired, following):
            self._handle.deleteTimer(timer)
        if following not in (None, timer):
            self._handle.registerTimer(following)
        if (token, until, following) != known:
            self._state.update((token, until, following))

    def _location(self, token: str) -> Location:
        return Location.parse(self._root, token, self._layout, self._directories)

    def _run_instance(
        self, vnode: int, location: Location, waiting: Iterator[bytes], fired_until: int, until: int
    ) -> Generator[pd.DataFrame, None, str | None]:
        """Have a store instance take blobs, fire and commit; gives its new token."""
        from forebay.engine.open import open_instance
        from forebay.spark.worker.capture import Recording
        from forebay.spark.worker.measured import measured

        recording = Recording.begin(self._plan, location.layout, vnode, self._batch)
        home = location.home
        home.use()
        times = [perf_counter()]
        instance = open_instance(
            self._plan,
            home.directory,
            location.version,
            fired_until,
            archive=home.archive,
            updating=self._updating,
            disk=self._disk,
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
            version = instance.commit(self._batch)
            if recording is not None:
                recording.write()
            times.append(perf_counter())
            done = measured(instance.counters, counters, instance.metrics, metrics, times)
            where = self._batch, location.layout, vnode
            self._report(*where, done)
            self._last = where, done
            return str(location.at(version, instance.due, self._plan.patterns)) if version else None
        finally:
            instance.close()

    def _now(self, timer_values: TimerValues) -> int | None:
        """Milliseconds on the clock of the operator; None before there is a watermark."""
        if self._clock is Clock.WALL:
            return int(timer_values.getCurrentProcessingTimeInMs())
        if self._clock is Clock.NONE:
            return 0
        # Spark's timer values have the watermark only where the operator has timers.
        _, watermark = self._handle._statefulProcessorApiClient.get_timestamps(Clock.WATERMARK.value)
        return int(watermark) or None  # it is 0 until there is one

    def _event_time(self, moved: ValueState, wall: int) -> int | None:
        """The watermark of the micro-batch, which goes on with the wall clock where it has not moved for the timeout."""
        watermark = task.watermark(self._batch)
        if watermark is None:
            return None
        assert self._plan.idle_timeout is not None
        timeout = -(-self._plan.idle_timeout // 1000)
        silence = Silence(*(moved.get() or (watermark, wall, wall))).until(watermark, wall, timeout)
        moved.update(tuple(silence))
        return silence.event_time(timeout)


def _blobs(rows: Iterator[pd.DataFrame]) -> Iterator[bytes]:
    """What pack has sent, but for what only says that a micro-batch runs."""
    return (blob for frame in rows for blob in frame[PAYLOAD] if blob is not None)


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
