"""Spark's ``transformWithStateInPandas``, a processor per key: events in a `ListState`, a timer at the end of each window.

That is two calls to Spark per key and micro-batch, and two per window that fires, as few as can be. Tumbling and session
windows; counts and medians alike are made from the list.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from common import Result, Workload, main
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from session import bids, spark_session, timed


class Windows(StatefulProcessor):
    """Windows of one key over the events in its list; times are microseconds."""

    def __init__(self, kind: str, function: str, size: int) -> None:
        self._kind, self._function, self._size = kind, function, size

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._events = handle.getListState("events", "time long, price long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        arrived = [(int(t), int(p)) for frame in rows for t, p in zip(frame["micros"], frame["price"], strict=True)]
        self._events.appendList(arrived)
        for end in {end for _, end, _ in self._windows(arrived)}:
            self._handle.registerTimer(-(-end // 1000))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        now = timerValues.getCurrentWatermarkInMs() * 1000
        windows = self._windows(self._events.get())
        kept = [event for _, end, events in windows if end > now for event in events]
        if kept:
            self._events.put(kept)
        else:
            self._events.clear()
        for start, end, events in windows:
            if end <= now:
                value = len(events) if self._function == "count" else pd.Series([price for _, price in events]).median()
                yield pd.DataFrame({"start": [start], "end": [end], "bidder": int(key[0]), "value": float(value)})

    def _windows(self, events: Any) -> list[tuple[int, int, list[tuple[int, int]]]]:
        """Start, end and events of each window."""
        found: list[tuple[int, int, list[tuple[int, int]]]] = []
        for event in sorted(events):
            time = event[0]
            start, end = (time, time + self._size) if self._kind == "session" else self._tumbling(time)
            if found and (start <= found[-1][1] if self._kind == "session" else start == found[-1][0]):
                found[-1] = (found[-1][0], end, [*found[-1][2], event])
            else:
                found.append((start, end, [event]))
        return found

    def _tumbling(self, time: int) -> tuple[int, int]:
        start = time // self._size * self._size
        return start, start + self._size

    def close(self) -> None:
        pass


def run(workload: Workload, data: Path, output: Path | None, arguments: Namespace) -> Result:
    stream = bids(spark_session(), data).select("ts", F.unix_micros("ts").alias("micros"), "bidder", "price")
    processor = Windows(workload.kind, workload.function, workload.size * 1_000_000)
    fired = stream.groupBy("bidder").transformWithStateInPandas(
        processor, "start long, end long, bidder long, value double", "append", "eventTime"
    )
    bounds = F.struct(*(F.timestamp_micros(bound).alias(bound) for bound in ("start", "end")))
    name = "session_window" if workload.kind == "session" else "window"
    return timed(fired.select(bounds.alias(name), "bidder", "value"), workload, output)


if __name__ == "__main__":
    main(run)
