"""A small run of every kind of operator, after which all that is compiled has been compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import COUNTED, BoundAggregate
from forebay.aggregates.overlaps import Sessions
from forebay.engine.open import open_instance
from forebay.engine.plan import END_OF_TIME, NEVER, WindowPlan
from forebay.engine.window_join import WindowJoin
from forebay.store import open_stores
from forebay.store.disk import LOCAL
from forebay.store.extent_log import LEAST_COMPACTED
from forebay.store.options import Options
from forebay.store.partitions import SLICE
from forebay.store.unaligned import UnalignedStore
from forebay.windows import (
    END,
    HIGH,
    LOW,
    START,
    AlignedWindows,
    CountWindows,
    Firing,
    FirstRows,
    GlobalWindow,
    Intervals,
    Lives,
    Preceding,
    SessionWindows,
    Windows,
)

BATCHES = 6
_ROWS, _KEYS, _SPAN, _GAP = 60, 9, 20, 7
"""Of a micro-batch: rows, keys among which they are, microseconds of event time; and the gap of a session."""

_OPTIONS = Options(memory_bytes=1 << 20, write_buffer_bytes=1 << 10, read_batch_ratio=0.5)
"""So little memory that rows are written, read ahead of time and compacted."""

_INSTANT = pa.timestamp("us")
_COUNT = BoundAggregate("n", "count", ("a0",), (pa.int64(),), pa.int64())
_MEDIAN = BoundAggregate("median", "median", ("a0",), (pa.int64(),), pa.float64())
_TOTALS = tuple(
    BoundAggregate(f"total of {name}", "sum", (name,), (kind,), kind, {"ansi": True})
    for name, kind in (("a0", pa.int64()), ("x0", pa.float64()))
)
_STDDEV = BoundAggregate("stddev", "stddev", ("x0",), (pa.float64(),), pa.float64(), {"ansi": True})
_MOVING = (
    _COUNT,
    BoundAggregate("sum", "sum", ("x0",), (pa.float64(),), pa.float64(), {"ansi": True}),
    _STDDEV,
    BoundAggregate("least", "min", ("a0",), (pa.int64(),), pa.int64()),
    BoundAggregate("mode", "mode", ("a0",), (pa.int64(),), pa.int64()),
    BoundAggregate("different", "count_distinct", ("a0",), (pa.int64(),), pa.int64()),
    _MEDIAN,
)
_SKETCHES = (
    replace(_MEDIAN, label="counted", options={COUNTED: True}),
    BoundAggregate("of words", "approx_percentile", ("a0",), (pa.int64(),), pa.int64(), {"percentage": 0.5, "k": 8}),
    BoundAggregate("of floats", "approx_percentile", ("x0",), (pa.float64(),), pa.float64(), {"percentage": 0.5, "k": 8}),
    BoundAggregate("coupons", "hll_sketch_agg", ("a0",), (pa.int64(),), pa.binary(), {"lgConfigK": 8}),
    BoundAggregate(
        "cells", "count_min_sketch", ("k1",), (pa.string(),), pa.binary(), {"eps": 0.5, "confidence": 0.5, "seed": 1}
    ),
)


def rehearse(directory: Path) -> Iterator[str]:
    """Run each kind of operator over a few rows in an empty directory; yields their names, each when it has ended.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     next(rehearse(Path(directory)))
    'tumbling windows, holistic'
    """
    for name, plan, updating in _plans():
        _run(plan, directory / name, updating=updating)
        yield name
    _read_and_clear(directory / "many")
    yield "many windows"
    _find_sessions()
    yield "sessions before the shuffle"


def rehearse_some(directory: Path) -> None:
    """Run a few kinds of operators, whose compiled loops most others need, too: a process that has done so has loaded them.

    It takes a tenth of the time that all kinds take.
    """
    for name, plan, updating in _plans():
        if name in _SOME:
            _run(plan, directory / name, updating=updating)
    _read_and_clear(directory / "many")
    _find_sessions()


_SOME = ("tumbling windows, holistic", "sessions, holistic", "sessions, incremental", "a global window")


def _plans() -> Iterator[tuple[str, WindowPlan, bool]]:
    """Names, plans, and whether they are for update mode."""
    both, count = (_COUNT, _MEDIAN), (_COUNT, *_TOTALS, _STDDEV)
    yield "tumbling windows, holistic", _aggregating(AlignedWindows(20, 20), Pattern.AAR, both), False
    yield "sliding windows, incremental", _aggregating(AlignedWindows(20, 10), Pattern.RMW, count), False
    yield "sessions, holistic", _aggregating(SessionWindows(), Pattern.AUR, both), False
    yield "sessions, incremental", _aggregating(SessionWindows(), Pattern.RMW, count), False
    yield "count windows", _aggregating(CountWindows(5, 3), Pattern.AUR, both, bound=pa.int64()), False
    yield "a global window", _aggregating(GlobalWindow(10), Pattern.RMW, count, bound=None), False
    firing = Firing(every=10, allowed_lateness=5, accumulating=True)
    yield "rows before each row", _aggregating(Preceding(rows=4), Pattern.AUR, _MOVING, timed=True), False
    yield "a time before each row", _aggregating(Preceding(span=12), Pattern.AUR, _MOVING, timed=True), False
    yield "sketches", _aggregating(AlignedWindows(20, 20), Pattern.RMW, _SKETCHES), False
    yield "early and late firings", _aggregating(AlignedWindows(20, 10), Pattern.AUR, both, firing=firing), False
    yield "early and late firings of sessions", _aggregating(SessionWindows(), Pattern.RMW, count, firing=firing), False
    yield "update mode", _aggregating(AlignedWindows(20, 10), Pattern.RMW, count), True
    yield "deduplication", _remembering(), False
    yield "an interval join", _joining(Intervals(-5, 5, 4), "full"), False
    yield "a continuous join", _joining(Lives("over", 4), "inner"), False


def _aggregating(
    windows: Windows,
    pattern: Pattern,
    aggregates: Sequence[BoundAggregate],
    *,
    bound: pa.DataType | None = _INSTANT,
    firing: Firing | None = None,
    timed: bool = False,
) -> WindowPlan:
    window = [("event_time", _INSTANT)] if timed else []
    window += [] if bound is None else [("window", pa.struct([("start", bound), ("end", bound)]))]
    schema = pa.schema([*window, ("k", pa.string()), *((each.label, each.result) for each in aggregates)])
    inputs = {name: kind for each in aggregates for name, kind in zip(each.inputs, each.input_types, strict=True)}
    packed = pa.schema([("k0", pa.string()), *inputs.items()])
    return WindowPlan(windows, packed, ("k0",), Aggregation(("k0",), tuple(aggregates)), pattern, schema, _OPTIONS, firing)


def _remembering() -> WindowPlan:
    """Keys of all that hashes differ in: bytes, words, lists."""
    packed = pa.schema([("k0", pa.string()), ("a0", pa.int64()), ("l0", pa.list_(pa.int64()))])
    aggregation = Aggregation((), ())
    return WindowPlan(FirstRows(), packed, (), aggregation, Pattern.RMW, packed, _OPTIONS, identified_by=("k0", "a0", "l0"))


def _joining(windows: Windows, how: Literal["full", "inner"]) -> WindowPlan:
    packed = pa.schema([("k0", pa.string()), ("side", pa.bool_()), ("a0", pa.int64()), ("over", pa.bool_())])
    schema = pa.schema([("event_time", _INSTANT), ("k", pa.string()), ("left", pa.int64()), ("right", pa.int64())])
    return WindowPlan(windows, packed, ("k0",), WindowJoin(how, "side", ("a0",), ("a0",)), Pattern.AUR, schema, _OPTIONS)


def _run(plan: WindowPlan, directory: Path, *, updating: bool) -> None:
    version, watermark = None, NEVER
    for number in range(BATCHES):
        if number % 2:  # so that the state is also read from disk
            open_stores.forget(directory)
        instance = open_instance(plan, directory, version, watermark, updating=updating)
        with contextlib.closing(instance):
            for _ in range(2):
                instance.ingest(_rows(plan, number))
            watermark = END_OF_TIME if number == BATCHES - 1 else number * _SPAN + 15
            for _ in instance.fire(watermark):
                pass
            version, _ = instance.commit(number), instance.due
    open_stores.forget(directory)


def _read_and_clear(directory: Path) -> None:
    """Weigh many windows, read few of them, let go of most, so that what is left is written again; another store follows."""
    store = UnalignedStore(directory, None, Options())
    times = np.arange(4 * LEAST_COMPACTED // 1000)
    rows = pa.record_batch({"words": ["word" * 250] * len(times), "numbers": times})
    slots = store.index.place_merging(times, times, times, times + 1)
    store.append(rows, slots)
    other = UnalignedStore(directory, store.commit(), Options())
    store.remove(slots[:1])
    other.prepare()
    other.catch_up(store.commit(), None, LOCAL)
    other.close()
    store.bytes_of(slots)
    store.get(slots[::1000])
    store.remove(slots[1 : len(slots) * 9 // 10])
    store.commit()
    store.close()


def _find_sessions() -> None:
    times = np.arange(_ROWS)
    Sessions.found(times % _KEYS, times, times + _GAP, times < _GAP)


def _rows(plan: WindowPlan, number: int) -> pa.RecordBatch:
    """Rows of a micro-batch, as pack hands them over."""
    chance = np.random.default_rng(number)
    times = np.sort(chance.integers(number * _SPAN, (number + 1) * _SPAN, _ROWS))
    keys = chance.integers(0, _KEYS, _ROWS)
    columns = {
        "k0": pa.array([f"user {key}" if key else None for key in keys]),
        "k1": pa.array([f"word {key}" for key in keys]),
        "a0": pa.array(keys * 10),
        "x0": pa.array(keys / 10),
        "l0": pa.array([[int(key)] for key in keys]),
        "side": pa.array(chance.random(_ROWS) < 0.5),
        "over": pa.array(chance.random(_ROWS) < 0.1),
    }
    found = {name: columns[name] for name in plan.packed.names}
    if isinstance(plan.windows, AlignedWindows):
        found[SLICE] = pa.array(plan.windows.slice_starts(times))
    elif not isinstance(plan.windows, CountWindows):
        found |= {START: pa.array(times), END: pa.array(times + _GAP)}
    return pa.record_batch({**found, HIGH: pa.array(keys + 7), LOW: pa.array(keys * keys)})
