"""The window operator as Spark runs it: a `StatefulProcessor` over virtual nodes.

Spark's own state holds one small string per virtual node, the token of the store version that the batch produced. Spark
commits tokens exactly once, and the store's files follow them: a batch always starts from the version Spark says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from forebay.engine.plan import NEVER, WindowPlan
from forebay.spark.worker import blobs, startup, task
from forebay.spark.worker.clock import Clock, clock_of
from forebay.spark.worker.stages import PAYLOAD
from forebay.state.layout import Location, as_stored
from forebay.windows import GlobalWindow

if TYPE_CHECKING:
    import pandas as pd
    from pyspark import Accumulator
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

    from forebay.state.places import Place

STATE = "version"
"""The name under which Spark's state has the token of a virtual node."""

EVENT_TIME = "event_time"
"""A column of NULLs beside the blobs. With it, Spark hands the watermark on to operators that read this one's results."""


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
        The name of the column of blobs that it emits.
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
        self._plan: WindowPlan | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState(STATE, "token string, fired_until long, timer long")
        if self._idle:  # what the plan says, too; but to load it here is to load polars for a call that may do nothing
            self._moved = handle.getValueState("moved", "watermark long, wall long, seen long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues) -> Iterator[pd.DataFrame]:
        yield from self._run(key[0], rows, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        yield from self._run(key[0], iter(()), timerValues, expired=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        pass

    def _report(self, batch: int, operator: str, vnode: int, metrics: dict[str, float]) -> None:
        self._reporter.add({(str(startup.local_property("sql.streaming.queryId")), batch, operator, vnode): metrics})

    def _run(
        self, vnode: int, rows: Iterator[pd.DataFrame], timer_values: TimerValues, expired: int | None = None
    ) -> Iterator[pd.DataFrame]:
        """Take rows, fire, commit. ``expired`` is the timer that has run it, which Spark deletes itself."""
        import pandas as pd

        if self._plan is None:
            self._plan = startup.loads(self._pickled)
        from forebay.engine.open import open_instance
        from forebay.spark.worker.measured import measured

        root = task.state_root(self._place)
        updating = task.updating()
        layout = as_stored(self._layout, updating=updating)
        token, fired_until, timer = self._state.get() or (None, NEVER, None)
        known = task.directories(layout)
        location = Location.parse(root, token, layout, known) if token else Location.new(root, vnode, layout, known)
        home = location.home
        instance = open_instance(
            self._plan,
            home.directory,
            location.version,
            fired_until,
            archive=home.archive,
            updating=updating,
        )
        clock, batch_id = clock_of(self._plan), int(startup.local_property("streaming.sql.batchId") or 0)
        wall = now = _now(clock, timer_values)
        if self._plan.idle_timeout is not None and wall is not None:
            now = self._event_time(batch_id, wall, self._plan.idle_timeout)
        counters, metrics = instance.counters, replace(instance.metrics)
        times = [perf_counter()]
        try:
            for frame in rows:
                for blob in frame[PAYLOAD].dropna():
                    batches, partial = blobs.read(blob)
                    for batch in batches:
                        instance.ingest(batch, partial=partial)
            times.append(perf_counter())
            if now is not None:
                fired_until = max(fired_until, now * 1000)  # a wall clock may be set back
            for blob in blobs.write_all(instance.fire(fired_until)):
                yield pd.DataFrame({self._output: [blob], EVENT_TIME: pd.Series([pd.NaT], dtype="datetime64[us, UTC]")})
            times.append(perf_counter())
            version = instance.commit(batch_id)
            times.append(perf_counter())
            done = measured(instance.counters, counters, instance.metrics, metrics, times)
            self._report(batch_id, location.layout, vnode, done)
        finally:
            instance.close()
        following = _following(self._plan, clock, wall)
        if timer not in (None, expired, following):
            self._handle.deleteTimer(timer)
        if following not in (None, timer):
            self._handle.registerTimer(following)
        self._state.update((str(location.at(version)) if version else None, fired_until, following))

    def _event_time(self, batch: int, wall: int, timeout: int) -> int | None:
        """The watermark of a micro-batch; when it has not moved for ``timeout`` microseconds, plus the time since it did."""
        watermark = task.watermark(batch)
        if watermark is None:
            return None
        before, since, seen = self._moved.get() or (watermark, wall, wall)
        if watermark > before or (wall - seen) * 1000 >= timeout:  # a query that was down has not listened to silence
            since = wall
        self._moved.update((watermark, since, wall))
        silent = wall - since
        return int(watermark + (silent if silent * 1000 >= timeout else 0))


def _now(clock: Clock, timer_values: TimerValues) -> int | None:
    """Milliseconds on a clock; None before there is a watermark."""
    if clock is Clock.WALL:
        return int(timer_values.getCurrentProcessingTimeInMs())
    if clock is Clock.NONE:
        return 0
    return int(timer_values.getCurrentWatermarkInMs()) or None  # Spark's watermark is 0 until there is one


def _following(plan: WindowPlan, clock: Clock, now: int | None) -> int | None:
    """When the operator has to run even if no row comes, in milliseconds."""
    if clock is Clock.NONE:
        return None
    if isinstance(plan.windows, GlobalWindow) and plan.windows.every is not None and now is not None:
        every = -(-plan.windows.every // 1000)
        return (now // every + 1) * every
    return (now or 0) + 1
