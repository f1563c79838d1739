"""A long value that is in many results does not make any of the batches that are handed on large."""

import contextlib
from types import SimpleNamespace

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import BoundAggregate
from forebay.aggregates.moving import Frames
from forebay.engine import framed as framed_results
from forebay.engine.by_key import ByKeyInstance
from forebay.engine.framed import framed
from forebay.engine.open import open_instance
from forebay.engine.plan import NEVER, WindowPlan
from forebay.engine.portions import PORTION_BYTES, widths
from forebay.engine.results import conforming, results
from forebay.engine.window_join import WindowJoin
from forebay.store.options import Options
from forebay.store.partitions import SLICE
from forebay.windows import END, HIGH, LOW, START, AlignedWindows, CountWindows, Intervals, Lives, Preceding

RESULTS, LENGTH = 3_000, 1 << 15
INSTANT = pa.timestamp("us")
WINDOW = pa.struct([("start", INSTANT), ("end", INSTANT)])
NUMBERS = pa.struct([("start", pa.int64()), ("end", pa.int64())])
FIRST = BoundAggregate("text", "first", ("text",), (pa.string(),), pa.string(), {"ignorenulls": False})
PERCENTAGES = [place / LENGTH for place in range(LENGTH // 8)]
SKETCHES = [
    BoundAggregate("text", "hll_sketch_agg", ("text",), (pa.string(),), pa.binary(), {"lgConfigK": 15}),
    BoundAggregate(
        "text", "count_min_sketch", ("text",), (pa.string(),), pa.binary(), {"eps": 0.001, "confidence": 0.8, "seed": 1}
    ),
    BoundAggregate("text", "percentile", ("n",), (pa.float64(),), pa.list_(pa.float64()), {"percentage": PERCENTAGES}),
]
LIST = BoundAggregate("text", "collect_list", ("text",), (pa.string(),), pa.list_(pa.string()))
SECOND = 1_000_000


def joined(windows, nested=False):
    """One row on the left, and as many on the right as there are to be results; the long text may be in a list."""
    text = pa.list_(pa.string()) if nested else pa.string()
    aligned = isinstance(windows, AlignedWindows)
    packed = pa.schema([("k0", pa.int64()), ("side", pa.bool_()), ("text", text), ("id", pa.int64()), ("over", pa.bool_())])
    window = ("window", WINDOW) if aligned else ("event_time", INSTANT)
    schema = pa.schema([window, ("k", pa.int64()), ("text", text), ("id", pa.int64())])
    join = WindowJoin("inner", "side", ("text",), ("id",))
    pattern = Pattern.AAR if aligned else Pattern.AUR
    count = RESULTS + 1
    rows = {
        "k0": np.zeros(count, np.int64),
        "side": pa.array([False] + [True] * RESULTS),
        "text": pa.array([["x" * LENGTH] if nested else "x" * LENGTH] + [["y"] if nested else None] * RESULTS, text),
        "id": np.arange(count),
        "over": pa.array([False] * count),
    }
    return WindowPlan(windows, packed, ("k0",), join, pattern, schema, Options()), rows


def aggregated(windows, pattern, aggregate):
    """A long text, which is the first one of its key in all windows."""
    window = [("event_time", INSTANT), ("window", WINDOW)] if isinstance(windows, Preceding) else [("window", NUMBERS)]
    schema = pa.schema([*window, ("k", pa.int64()), ("text", aggregate.result)])
    packed = pa.schema([("k0", pa.int64()), ("text", pa.string())])
    texts = pa.array(["x" * LENGTH] + ["y"] * (RESULTS - 1))
    rows = {"k0": np.zeros(RESULTS, np.int64), "text": texts}
    return WindowPlan(windows, packed, ("k0",), Aggregation(("k0",), (aggregate,)), pattern, schema, Options()), rows


@pytest.mark.parametrize(
    ("plan", "rows"),
    [
        pytest.param(*joined(Intervals(-SECOND, SECOND, SECOND)), id="interval join"),
        pytest.param(*joined(Lives("over", SECOND)), id="continuous join"),
        pytest.param(*joined(AlignedWindows(SECOND, SECOND)), id="join in windows"),
        pytest.param(*joined(Intervals(-SECOND, SECOND, SECOND), nested=True), id="interval join of lists"),
        pytest.param(*joined(Lives("over", SECOND), nested=True), id="continuous join of lists"),
        pytest.param(*joined(AlignedWindows(SECOND, SECOND), nested=True), id="join of lists in windows"),
        pytest.param(*aggregated(Preceding(span=SECOND), Pattern.AUR, FIRST), id="rows before each row"),
        pytest.param(*aggregated(CountWindows(1, 1, True), Pattern.AUR, FIRST), id="count windows"),
        pytest.param(*aggregated(CountWindows(1, 1, True), Pattern.RMW, FIRST), id="count windows, incremental"),
        pytest.param(*aggregated(CountWindows(1, 1, True), Pattern.AUR, LIST), id="lists of count windows"),
    ],
)
def test_results_go_on_in_portions(tmp_path, plan, rows):
    count = len(rows["k0"])
    zeros, times = np.zeros(count, np.int64), np.arange(count)
    if isinstance(plan.windows, AlignedWindows):
        rows = {**rows, SLICE: zeros}
    else:
        rows = {**rows, HIGH: zeros, LOW: zeros, START: times, END: times + SECOND}
    if isinstance(plan.windows, CountWindows):
        del rows[START], rows[END]
    with contextlib.closing(open_instance(plan, tmp_path / "0", None, NEVER)) as instance:
        instance.ingest(pa.record_batch(rows))
        sizes, found = [], 0
        for batch in instance.fire(2 * SECOND):
            sizes.append(batch.nbytes)
            found += batch.num_rows
            texts = batch["text"].to_pylist()
            assert {len(text) if isinstance(text, str) else len(text[0]) for text in texts} == {LENGTH}
    assert found == RESULTS
    assert sum(sizes) > 2 * PORTION_BYTES
    assert max(sizes) < 2 * PORTION_BYTES


def test_each_list_is_as_wide_as_it_is():
    """And not as wide as the mean of all."""
    found = widths(pl.DataFrame({"texts": [["x" * LENGTH], *[["y", "y"]] * RESULTS, None]}))
    assert found.tolist() == [LENGTH + 8, *[10] * RESULTS, 8]


@pytest.mark.parametrize("width", [8, 20_000])
def test_rows_that_are_in_many_windows_are_placed_a_few_at_a_time(width):
    rows = pa.record_batch({"text": ["x" * width] * 2000})
    some = SimpleNamespace(_plan=SimpleNamespace(options=Options(64 << 20)))
    parts = list(ByKeyInstance._parts(some, rows, 60))
    assert pa.Table.from_batches(parts).combine_chunks().to_batches() == [rows]
    most = max(part.num_rows for part in parts)
    assert (most - 1) * 60 * width <= some._plan.options.write_buffer_bytes // 4
    assert most == (1092 if width == 8 else 4)


def test_what_moves_is_computed_for_some_frames_at_a_time(monkeypatch):
    """Lists of percentiles of rows that precede others, of all frames at once, might take more than the memory."""
    asked = {"percentage": [0.0, 0.5, 1.0]}
    lists = BoundAggregate("n", "percentile", ("n",), (pa.float64(),), pa.list_(pa.float64()), asked)
    count = BoundAggregate("c", "count", ("n",), (pa.float64(),), pa.int64())
    rows = pl.DataFrame({"k0": np.arange(100) // 50, "n": np.random.default_rng(1).random(100)})
    ends = np.arange(1, 101)
    frames = Frames(ends - 1, np.maximum(ends - 7, (ends - 1) // 50 * 50), ends)
    schema = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("n", lists.result), ("c", pa.int64())])
    aggregation = Aggregation(("k0",), (lists, count))
    plan = WindowPlan(CountWindows(1, 1, True), pa.schema([]), ("k0",), aggregation, Pattern.AUR, schema, Options())

    def found():
        batches = list(framed(plan, rows, frames, lambda ids, columns: conforming([pa.array(ids), *columns], schema)))
        return pa.Table.from_batches(batches).combine_chunks(), len(batches)

    whole, few = found()
    monkeypatch.setattr(framed_results, "_AT_ONCE", 24 * 9)
    parts, many = found()
    assert (few, many) == (1, 12)
    assert parts == whole
    assert whole["id"].to_pylist() == list(range(100))


@pytest.mark.parametrize("aggregate", SKETCHES, ids=lambda aggregate: aggregate.function)
@pytest.mark.parametrize("ranges", [False, True], ids=["grouped", "ranges"])
def test_results_that_are_larger_than_their_state_go_on_in_portions(aggregate, ranges):
    keys = np.arange(RESULTS)
    rows = pl.DataFrame({"k0": keys, "text": ["x"] * RESULTS, "n": np.ones(RESULTS)})
    schema = pa.schema([("k", pa.int64()), ("text", aggregate.result)])
    aggregation = Aggregation(("k0",), (aggregate,))
    windows = CountWindows(1, 1, True)
    plan = WindowPlan(windows, pa.schema([]), ("k0",), aggregation, Pattern.AUR, schema, Options())
    if ranges:
        found = framed(plan, rows, Frames(keys, keys, keys + 1), lambda ids, columns: conforming(columns, schema))
    else:
        found = results(plan, rows, lambda windows: np.zeros((len(windows), 2), np.int64), partial=False, only=0)
    sizes = [(batch.num_rows, batch.nbytes) for batch in found]
    assert sum(count for count, _ in sizes) == RESULTS
    assert sum(size for _, size in sizes) > 2 * PORTION_BYTES
    assert max(size for _, size in sizes) < 2 * PORTION_BYTES
