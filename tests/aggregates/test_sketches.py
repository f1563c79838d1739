"""Sketches merged in any grouping keep their bounds; that Spark reads them is shown in tests/spark."""

from collections import Counter
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import forebay as fb
from forebay.aggregates import frequent, hll_sketch, kll
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import COUNTED, BoundAggregate
from forebay.aggregates.count_min import Table
from forebay.aggregates.grouping import Groups
from forebay.aggregates.hyperloglog import Tables
from forebay.engine.stored_form import StoredForm
from forebay.errors import InvalidArgument

CELLS = {"eps": 0.1, "confidence": 0.9, "seed": 3}


def merged_in_parts(bound, rows, parts):
    """The merged partial aggregates of rows that were cut into parts, and merged a few at a time."""
    aggregation = Aggregation(("k",), (bound,))
    size = -(-len(rows) // parts)
    partials = [aggregation.partial(rows[begin : begin + size]) for begin in range(0, len(rows), size)]
    while len(partials) > 1:
        partials = [aggregation.merge(pl.concat(partials[place : place + 3])) for place in range(0, len(partials), 3)]
    return aggregation, partials[0]


def bound(function, kind, result, **options):
    return BoundAggregate("r", function, ("x",), (kind,), result, options)


def rank_errors(values, found, ranks):
    """By how much the ranks of quantiles are wrong; of equal values the nearest rank counts."""
    ordered = np.sort(values)
    low, high = (np.searchsorted(ordered, found, side) / len(ordered) for side in ("left", "right"))
    return np.maximum(0, np.maximum(low - ranks, ranks - high))


@pytest.mark.parametrize("parts", [1, 4, 60])
@pytest.mark.parametrize("k", [32, 200])
@pytest.mark.parametrize("shape", ["normal", "sorted", "few values"])
def test_quantiles_are_within_the_bound_of_the_sketch(parts, k, shape):
    rng = np.random.default_rng(5)
    values = {
        "normal": rng.normal(size=60_000),
        "sorted": np.arange(60_000.0),
        "few values": rng.integers(0, 5, 60_000) * 1.0,
    }
    keys = np.arange(60_000) % 3
    frame = pl.DataFrame({"k": keys, "x": values[shape]})
    ranks = [0.01, 0.25, 0.5, 0.75, 0.99]
    percentile = bound("approx_percentile", pa.float64(), pa.list_(pa.float64()), k=k, percentage=ranks)
    aggregation, partials = merged_in_parts(percentile, frame, parts)
    assert partials.filter(pl.col(f"x.kll{k}").list.len() > 4 * k).is_empty()  # a sketch is small
    found = np.array(aggregation.finish(partials)[0].to_pylist())
    for key, quantiles in zip(partials["k"].to_list(), found, strict=True):
        assert rank_errors(values[shape][keys == key], quantiles, np.array(ranks)).max() <= 2 * 2.296 / k**0.9723


def test_extremes_of_integers_are_exact_beside_a_group_without_values():
    sketch = bound("kll_sketch_agg_bigint", pa.int64(), pa.binary(), k=200)
    values = [2**53 + 1, 2**53 + 3, 2**63 - 1]
    frame = pl.DataFrame({"k": [0, 0, 0, 1], "x": [*values, None]}, schema_overrides={"x": pl.Int64})
    aggregation, partials = merged_in_parts(sketch, frame, 1)
    made = dict(zip(partials["k"].to_list(), aggregation.finish(partials)[0].to_pylist(), strict=True))
    least, most = np.frombuffer(made[0], np.int64, 2, offset=len(made[0]) - 8 * (2 + len(values)))
    assert (least, most) == (values[0], values[-1])


@given(st.lists(st.floats(allow_nan=True, allow_infinity=False, width=32) | st.none(), min_size=1, max_size=80))
def test_quantiles_of_few_values_are_exact_and_nan_is_no_value(values):
    frame = pl.DataFrame({"k": [1] * len(values), "x": values}, schema={"k": pl.Int64, "x": pl.Float64})
    ranks = [0.0, 0.3, 0.5, 1.0]
    percentile = bound("approx_percentile", pa.float64(), pa.list_(pa.float64()), k=200, percentage=ranks)
    aggregation, partials = merged_in_parts(percentile, frame, 7)
    ordered = sorted(value for value in values if value is not None and value == value)
    expected = [ordered[max(1, int(np.ceil(rank * len(ordered)))) - 1] for rank in ranks] if ordered else None
    assert aggregation.finish(partials)[0].to_pylist() == [expected]


def test_a_sketch_stands_for_as_many_values_as_there_were():
    rng = np.random.default_rng(1)
    frame = pl.DataFrame({"k": rng.integers(0, 4, 20_000), "x": rng.integers(-(2**62), 2**62, 20_000)})
    _, partials = merged_in_parts(bound("kll_sketch_agg_bigint", pa.int64(), pa.binary(), k=64), frame, 9)
    weights = partials["x.kll64"].explode().struct.field(kll.LEVEL).cast(pl.Int64)
    total = partials.select(pl.col("x.kll64").list.eval(2 ** pl.element().struct.field("level").cast(pl.Int64)).list.sum())
    assert weights.max() > 3
    assert dict(zip(partials["k"], total["x.kll64"], strict=True)) == Counter(frame["k"])


@pytest.mark.parametrize(
    "of_longs",
    [
        bound("kll_sketch_agg_bigint", pa.int64(), pa.binary(), k=16),
        bound(
            "approx_top_k", pa.int64(), pa.list_(pa.struct([("i", pa.int64()), ("n", pa.int64())])), k=3, maxItemsTracked=8
        ),
        bound("hll_sketch_agg", pa.int64(), pa.binary(), lgConfigK=8),
        bound("count_min_sketch", pa.int64(), pa.binary(), eps=0.1, confidence=0.9, seed=1),
    ],
    ids=lambda aggregate: aggregate.function,
)
def test_a_task_that_runs_again_makes_the_same_bytes(of_longs):
    frame = pl.DataFrame({"k": np.arange(5000) % 7, "x": np.random.default_rng(2).integers(0, 300, 5000)})
    found = [merged_in_parts(of_longs, frame, 6) for _ in range(3)]
    states = [partials.to_dicts() for _, partials in found]
    assert states[0] == states[1] == states[2]
    assert len({tuple(map(str, aggregation.finish(partials)[0].to_pylist())) for aggregation, partials in found}) == 1


@given(st.lists(st.integers(0, 30), min_size=1, max_size=300), st.integers(1, 10), st.integers(1, 9))
def test_counts_of_frequent_values_are_never_too_large_and_too_small_by_the_bound(values, most, parts):
    counted = pa.list_(pa.struct([("item", pa.int64()), ("count", pa.int64())]))
    top = bound("approx_top_k", pa.int64(), counted, k=most, maxItemsTracked=most)
    aggregation, partials = merged_in_parts(top, pl.DataFrame({"k": [0] * len(values), "x": values}), parts)
    found = {entry["item"]: entry["count"] for entry in aggregation.finish(partials)[0].to_pylist()[0]}
    assert len(found) <= most
    assert list(found.values()) == sorted(found.values(), reverse=True)
    for value, count in Counter(values).items():
        assert count - len(values) / (most + 1) <= found.get(value, 0) <= count


def test_zeros_are_one_frequent_value():
    counted = pa.list_(pa.struct([("item", pa.float64()), ("count", pa.int64())]))
    top = bound("approx_top_k", pa.float64(), counted, k=3, maxItemsTracked=9)
    aggregation, partials = merged_in_parts(top, pl.DataFrame({"k": [0] * 5, "x": [-0.0, 0.0, -0.0, 1.5, None]}), 2)
    (found,) = aggregation.finish(partials)[0].to_pylist()
    assert [(str(entry["item"]), entry["count"]) for entry in found[:1]] == [("0.0", 3)]
    assert {entry["item"] for entry in found[1:]} == {1.5, None}


def test_values_of_any_kind_are_counted_with_null_and_nan():
    values = pl.Series([None, float("nan"), 1.5, None, float("nan"), None])
    groups, _ = Groups.of(values.to_frame(), ())
    (counts,) = frequent.states(groups, values, 3).to_list()
    assert [(str(entry["item"]), entry["count"]) for entry in counts] == [("None", 3), ("nan", 2), ("1.5", 1)]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: fb.kll_sketch_agg_double("x", k=7), "k=7"),
        (lambda: fb.kll_sketch_agg_bigint("x", k=70_000), "k=70000"),
        (lambda: fb.hll_sketch_agg("x", 22), "lgConfigK=22"),
        (lambda: fb.approx_percentile("x", 1.5), "1.5"),
        (lambda: fb.approx_percentile("x", []), r"\[\]"),
        (lambda: fb.approx_percentile("x", 0.5, accuracy=0), "accuracy=0"),
        (lambda: fb.approx_top_k("x", 0), "k=0"),
        (lambda: fb.approx_top_k("x", 5, maxItemsTracked=4), "maxItemsTracked=4"),
        (lambda: fb.count_min_sketch("x", 0.0, 0.9), "eps=0.0"),
        (lambda: fb.count_min_sketch("x", 0.1, 1.0), "confidence=1.0"),
        (lambda: fb.hll_sketch_agg("x", lgConfigK="12"), "lgConfigK='12'; it must be a number of Python"),
        (lambda: fb.approx_percentile("x", "0.5"), "percentage='0.5'; it must be a number of Python"),
        (lambda: fb.percentile("x", [0.5, None]), "percentage=None; it must be a number of Python"),
        (lambda: fb.count_min_sketch("x", 0.1, 0.9, None), "seed=None; it must be a number of Python"),
        (lambda: fb.count_min_sketch("x", 0.1, 0.9, 1.5), "seed=1.5; it is a whole number"),
        (lambda: fb.hll_sketch_agg("x", 12.5), "lgConfigK=12.5; it is a whole number"),
        (lambda: fb.kll_sketch_agg_double("x", k=200.0), "k=200.0; it is a whole number"),
        (lambda: fb.approx_top_k("x", 1.5), "k=1.5; it is a whole number"),
        (lambda: fb.approx_count_distinct("x", 0), "rsd=0; it is above 0"),
        (lambda: fb.approx_count_distinct("x", "0.05"), "rsd='0.05'; it must be a number of Python"),
        (lambda: fb.first("x", ignorenulls=1), "ignorenulls=1; it is True or False"),
        (lambda: fb.mode("x", deterministic="yes"), "deterministic='yes'; it is True or False"),
        (lambda: fb.median("x", counted="no"), "counted='no'; it is True or False"),
        (lambda: fb.global_window(accumulate="no"), "accumulate='no'; it is True or False"),
        (lambda: fb.custom_window(len, incremental="no"), "incremental='no'; it is True or False"),
        (lambda: fb.count_min_sketch("x", float("inf"), 0.9), "eps=inf and .*; eps is positive"),
        (
            lambda: fb.count_min_sketch("x", 1e-12, 0.9),
            "with which a sketch has 64,000,000,000,000 bytes",
        ),
        (lambda: fb.count_min_sketch("x", 0.1, 0.9, 2**63), f"seed={2**63}; it must be a number of 64 bits at most"),
        (lambda: fb.approx_percentile("x", 0.5, 2**63), f"accuracy={2**63}; it must be a number of 64 bits at most"),
    ],
)
def test_sizes_that_cannot_be_are_refused(make, named):
    with pytest.raises(InvalidArgument, match=named):
        make()


def test_numbers_may_be_those_of_numpy():
    made = fb.approx_percentile("x", np.linspace(0, 1, 3), accuracy=np.int64(100)).options
    assert made == {"percentage": [0.0, 0.5, 1.0], "accuracy": 100}
    assert {type(each) for each in (*made["percentage"], made["accuracy"])} == {float, int}
    assert fb.percentile("x", range(2)).options["percentage"] == [0, 1]


@pytest.mark.parametrize(
    ("kind", "largest"),
    [
        (pa.int64(), 2**63 - 1),
        (pa.int8(), 127),
        (pa.decimal128(38, 0), None),
    ],
    ids=str,
)
def test_the_largest_and_the_smallest_value_are_percentiles(kind, largest):
    values = [-(10**38) + 1, 10**38 - 1] if largest is None else [-largest - 1, largest]
    rows = pl.DataFrame({"k": [0, 0], "x": list(map(float, values))})
    found = []
    for percentage in (0.1, 0.9):
        one = bound("approx_percentile", pa.float64(), kind, k=200, percentage=percentage)
        aggregation, partials = merged_in_parts(one, rows, 1)
        found += aggregation.finish(partials)[0].to_pylist()
    assert found == values
    several = bound("approx_percentile", pa.float64(), pa.list_(kind), k=200, percentage=[0.1, 0.9])
    aggregation, partials = merged_in_parts(several, rows, 1)
    assert aggregation.finish(partials)[0].to_pylist() == [found]


LISTS = pa.list_(pa.int64())
BESIDE = {
    "count": bound("count", pa.int64(), pa.int64()),
    "sum": bound("sum", pa.int64(), pa.int64(), ansi=True),
    "max": bound("max", pa.int64(), pa.int64()),
    "stddev": bound("stddev", pa.int64(), pa.float64(), ansi=True),
    "distinct": bound("approx_count_distinct", pa.int64(), pa.int64(), precision=9, tables=Tables(400.0, (), (), 6)),
    "counted median": bound("median", pa.int64(), pa.float64(), percentage=0.5, **{COUNTED: True}),
    "percentiles": bound("approx_percentile", pa.int64(), LISTS, k=200, percentage=[0, 0.5, 1]),
    "fine percentiles": bound("approx_percentile", pa.int64(), LISTS, k=800, percentage=[0, 0.5, 1]),
    "kll": bound("kll_sketch_agg_bigint", pa.int64(), pa.binary(), k=100),
    "hll": bound("hll_sketch_agg", pa.int64(), pa.binary(), lgConfigK=12),
    "small hll": bound("hll_sketch_agg", pa.int64(), pa.binary(), lgConfigK=8),
    "count-min": bound("count_min_sketch", pa.int64(), pa.binary(), eps=0.1, confidence=0.9, seed=7),
    "another count-min": bound("count_min_sketch", pa.int64(), pa.binary(), eps=0.1, confidence=0.9, seed=8),
}


@pytest.mark.parametrize("added", BESIDE)
def test_an_aggregate_that_is_added_has_seen_all_rows_or_those_that_came_since(added):
    before, since = ({"k": [1] * len(values), "x": values} for values in ([-1000, 1000, 3, 3], [7, 8, 9]))
    packed = pa.schema([("k", pa.int64()), ("x", pa.int64())])
    alone = Aggregation(("k",), (BESIDE[added],))
    allowed = [alone.finish(alone.partial(pl.DataFrame(rows)))[0].to_pylist() for rows in (since, _both(before, since))]
    for name, other in BESIDE.items():
        stored = Aggregation(("k",), (other,)).partial(pl.DataFrame(before)).to_arrow().to_batches()[0]
        beside = Aggregation(("k",), (other, BESIDE[added]))
        kept = pl.DataFrame(StoredForm(packed, beside).of(stored))
        new = beside.partial(pl.DataFrame(since))
        merged = beside.merge(pl.concat([kept.select(new.columns), new]))
        assert beside.finish(merged)[1].to_pylist() in allowed, name


def _both(before, since):
    return {name: before[name] + since[name] for name in before}


def test_extremes_of_a_sketch_that_an_earlier_release_has_stored_are_found():
    percentiles = Aggregation(("k",), (BESIDE["percentiles"],))
    stored = percentiles.partial(pl.DataFrame({"k": [1, 1], "x": [-5, 5]}))
    stored = stored.rename({"x.kll200_least": "x.kll_least", "x.kll200_most": "x.kll_most"}).to_arrow().to_batches()[0]
    packed = pa.schema([("k", pa.int64()), ("x", pa.int64())])
    found = pl.DataFrame(StoredForm(packed, percentiles).of(stored))
    assert percentiles.finish(found)[0].to_pylist() == [[-5, -5, 5]]


@pytest.mark.parametrize(("function", "options"), [("hll_sketch_agg", {"lgConfigK": 8}), ("count_min_sketch", CELLS)])
@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
def test_values_of_many_groups_are_looked_at_together(function, options, nulls, monkeypatch):
    """What one group has is what it has alone, NULLs left out; Python is not called for each."""
    chance = np.random.default_rng(7)
    values = pl.Series("x", chance.integers(0, 50, 3000)).set(pl.Series(chance.random(3000) < nulls), None)
    rows = pl.DataFrame({"k": chance.integers(0, 300, 3000), "x": values})
    calls, codes, cells = [], hll_sketch.codes, Table.cells
    monkeypatch.setattr(hll_sketch, "codes", lambda *some, **more: calls.append(1) or codes(*some, **more))
    monkeypatch.setattr(Table, "cells", lambda *some: calls.append(1) or cells(*some))
    aggregation = Aggregation(("k",), (bound(function, pa.int64(), pa.binary(), **options),))
    together = aggregation.partial(rows)
    assert 0 < len(calls) < 10
    alone = pl.concat(aggregation.partial(group) for _, group in rows.group_by("k", maintain_order=True))
    assert together.sort("k").equals(alone.sort("k"))


@pytest.mark.parametrize("values", [["0.1", "0.25", "0.3"], ["99999999999999.25", "-0.0001"]], ids=["fractions", "large"])
def test_percentiles_of_decimals_are_values_of_the_column(values):
    """A double has more digits than the decimal that it was made of."""
    kind, ranks = pa.decimal128(38, 20), [0, 0.5, 1]
    percentile = bound("approx_percentile", pa.float64(), pa.list_(kind), k=200, percentage=ranks)
    rows = pl.DataFrame({"k": [0] * len(values), "x": list(map(float, values))})
    aggregation, partials = merged_in_parts(percentile, rows, 1)
    (found,) = aggregation.finish(partials)[0].to_pylist()
    assert {*found} == {*map(Decimal, values)}


@pytest.mark.parametrize("nulls", [[], [None, None]], ids=["no nulls", "nulls"])
@pytest.mark.parametrize("kind", [pl.String, pl.Binary])
def test_an_empty_text_is_no_value_of_a_hyperloglog_and_leaves_others_where_they_are(kind, nulls):
    texts = pl.Series("x", ["", "a", *nulls, "b", "", "a", "", "c"]).cast(kind)
    rows = pl.DataFrame({"k": [0, 0, *(1 for _ in nulls), 0, 1, 1, 2, 3], "x": texts})
    hll = bound("hll_sketch_agg", pa.string() if kind == pl.String else pa.binary(), pa.binary(), lgConfigK=12)
    column = Aggregation(("k",), (hll,)).partial(rows).sort("k")["x.coupons12"].to_list()
    code = {text: hll_sketch.codes(pl.Series([text]).cast(kind), 12)[0] for text in "abc"}
    assert [{*each} for each in column] == [{code["a"], code["b"]}, {code["a"]}, set(), {code["c"]}]


@pytest.mark.parametrize("values", [["a", None, "b"], ["a", "b"], [None]])
def test_sketches_without_values_are_short_and_in_place(values):
    hll = Aggregation(("k",), (bound("hll_sketch_agg", pa.string(), pa.binary(), lgConfigK=4),))
    rows = pl.DataFrame({"k": range(len(values)), "x": pl.Series(values, dtype=pl.String)})
    (found,) = hll.finish(hll.partial(rows))
    assert [len(sketch) for sketch in found.to_pylist()] == [8 if value is None else 40 + 16 for value in values]
