"""Partial aggregates merged in any grouping equal those of all rows at once; Spark is the oracle in tests/spark."""

import decimal
import math

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.aggregates import grouping
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import COUNTED, BoundAggregate
from forebay.aggregates.sorting import sort_runs
from forebay.compiling import read_only
from forebay.errors import ArithmeticOverflow

NAN = float("nan")


def one(function, values, kind, result, ansi=True, **options):
    """The aggregate of one key, from one partial per value, merged."""
    bound = BoundAggregate("r", function, ("x",), (kind,), result, {"ansi": ansi, **options})
    aggregation = Aggregation(("k",), (bound,))
    rows = pl.DataFrame(pa.table({"k": pa.array(["a"] * len(values)), "x": pa.array(values, kind)}))
    partials = pl.concat([aggregation.partial(rows[i : i + 1]) for i in range(len(rows))])
    (merged,) = aggregation.finish(aggregation.merge(partials))
    (direct,) = aggregation.finish(aggregation.partial(rows))
    assert str(merged.to_pylist()) == str(direct.to_pylist()) or merged.to_pylist() == pytest.approx(direct.to_pylist())
    assert merged.type == result
    return merged.to_pylist()[0]


def test_sum_of_integers_wider_than_64_bits_in_between():
    top = 2**63 - 1
    assert one("sum", [top, top, -top], pa.int64(), pa.int64()) == top


def test_sum_that_leaves_bigint_is_an_error_under_ansi_and_wraps_without():
    top = 2**63 - 1
    with pytest.raises(ArithmeticOverflow, match="decimal"):
        one("sum", [top, 1], pa.int64(), pa.int64())
    assert one("sum", [top, 1], pa.int64(), pa.int64(), ansi=False) == -(2**63)


WIDE = pa.decimal128(38, 0)
TOP = decimal.Decimal("9" * 38)


def test_sum_that_leaves_its_decimal_is_an_error_under_ansi_and_null_without():
    with pytest.raises(ArithmeticOverflow, match="decimal"):
        one("sum", [TOP, decimal.Decimal(1)], WIDE, WIDE)
    assert one("sum", [TOP, decimal.Decimal(1)], WIDE, WIDE, ansi=False) is None
    assert one("sum", [TOP.copy_negate(), decimal.Decimal(-1)], WIDE, WIDE, ansi=False) is None
    assert one("sum", [TOP.copy_negate()], WIDE, WIDE) == TOP.copy_negate()


def test_a_sum_of_decimals_never_wraps():
    with pytest.raises(ArithmeticOverflow):
        one("sum", [TOP] * 5, WIDE, WIDE)
    assert one("sum", [TOP] * 5, WIDE, WIDE, ansi=False) is None
    assert one("sum", [TOP] * 5 + [TOP.copy_negate()] * 4, WIDE, WIDE) == TOP


def test_a_mean_has_no_value_where_sparks_sum_has_none():
    kind = pa.decimal128(38, 38)
    tenths = [decimal.Decimal("0.6")] * 2
    assert one("avg", tenths[:1], kind, kind) == tenths[0]
    assert one("avg", tenths, kind, kind, ansi=False) is None
    with pytest.raises(ArithmeticOverflow):
        one("avg", tenths, kind, kind)


def test_a_variance_is_never_negative():
    bound = BoundAggregate("r", "var_pop", ("x",), (pa.float64(),), pa.float64(), {})
    aggregation = Aggregation(("k",), (bound,))
    rows = pl.DataFrame({"k": ["a", "a"], "x": [1e308, -1e308]})
    (found,) = aggregation.finish(aggregation.partial(rows))[0].to_pylist()
    assert not found < 0


def test_mean_of_decimals_is_rounded_half_up():
    kind, result = pa.decimal128(10, 2), pa.decimal128(14, 6)
    cents = [decimal.Decimal("0.01"), decimal.Decimal("0.01"), decimal.Decimal("0.00")]
    assert one("avg", cents, kind, result) == decimal.Decimal("0.006667")
    assert one("avg", [-c for c in cents], kind, result) == decimal.Decimal("-0.006667")


def test_mean_that_leaves_its_decimal_is_an_error_under_ansi_and_null_without():
    result, value = pa.decimal128(38, 4), decimal.Decimal(2 * 10**34)
    with pytest.raises(ArithmeticOverflow):
        one("avg", [value], WIDE, result)
    assert one("avg", [value], WIDE, result, ansi=False) is None


@pytest.mark.parametrize(
    ("function", "values", "expected"),
    [
        ("sum", [None, None], None),
        ("avg", [None], None),
        ("min", [NAN, 2.0, None], 2.0),
        ("variance", [5.0], None),
        ("stddev_pop", [5.0], 0.0),
        ("var_samp", [None, 1.0, 3.0], 2.0),
    ],
)
def test_nulls_and_nan(function, values, expected):
    assert one(function, values, pa.float64(), pa.float64()) == expected


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_of_values_that_are_compared_zeros_have_no_sign(kind, counted):
    rows = pl.DataFrame(pa.table({"x": pa.array([-0.0, 1.0, -0.0], kind)}))
    options = {COUNTED: True} if counted else {}
    mode = BoundAggregate("m", "mode", ("x",), (kind,), kind, options)
    different = BoundAggregate("s", "collect_set", ("x",), (kind,), pa.list_(kind), options)
    aggregation = Aggregation((), (mode, different))
    (most,), (values,) = (found.to_pylist() for found in aggregation.finish(aggregation.partial(rows)))
    assert str(most) == "0.0"
    assert sorted(map(str, values)) == ["0.0", "1.0"]


def test_nan_is_the_largest_number():
    assert np.isnan(one("max", [NAN, 2.0, None], pa.float64(), pa.float64()))
    assert np.isnan(one("min", [NAN, NAN], pa.float64(), pa.float64()))


@pytest.mark.parametrize("ignorenulls", [False, True])
def test_first_and_last_follow_arrival(ignorenulls):
    values = [None, "a", "b", None]
    expected = ("a", "b") if ignorenulls else (None, None)
    found = tuple(one(f, values, pa.string(), pa.string(), ignorenulls=ignorenulls) for f in ("first", "last"))
    assert found == expected


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=1, max_size=30), st.data())
def test_variance_does_not_depend_on_how_rows_are_grouped(values, data):
    bound = BoundAggregate("v", "var_pop", ("x",), (pa.float64(),), pa.float64(), {"ansi": True})
    aggregation = Aggregation((), (bound,))
    rows = pl.DataFrame({"x": pl.Series(values, dtype=pl.Float64)})
    cut = data.draw(st.integers(0, len(values)))
    parts = [aggregation.partial(part) for part in (rows[:cut], rows[cut:]) if part.height]
    (found,) = aggregation.finish(aggregation.merge(pl.concat(parts)))
    known = [value for value in values if value is not None]
    expected = np.var(known) if known else None
    assert found.to_pylist() == [pytest.approx(expected, rel=1e-6, abs=1e-6) if known else None]


@pytest.mark.parametrize("offset", [0.1, 19.99, 1e9, 1.7e15])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_a_deviation_is_right_however_large_the_values_are(offset, spread):
    bound = BoundAggregate("v", "stddev_pop", ("x",), (pa.float64(),), pa.float64(), {"ansi": True})
    aggregation = Aggregation((), (bound,))
    differences = spread * (np.arange(10_000) % 7)
    rows = pl.DataFrame({"x": offset + differences})
    parts = [aggregation.partial(rows[begin : begin + 1000]) for begin in range(0, rows.height, 1000)]
    for found in (aggregation.partial(rows), aggregation.merge(pl.concat(parts))):
        assert aggregation.finish(found)[0].to_pylist() == [pytest.approx(np.std(differences), rel=1e-3, abs=0)]


def test_a_deviation_beyond_all_doubles_is_infinite():
    aggregation = Aggregation((), (BoundAggregate("v", "stddev", ("x",), (pa.float64(),), pa.float64(), {"ansi": True}),))
    rows = pl.DataFrame({"x": [1e200, 2e200, 4e200]})
    parts = [aggregation.partial(rows[:1]), aggregation.partial(rows[1:])]
    for found in (aggregation.partial(rows), aggregation.merge(pl.concat(parts))):
        assert aggregation.finish(found)[0].to_pylist() == [np.inf]


KEYS = {pl.Int64: lambda key: key, pl.Datetime("us"): lambda key: key, pl.String: str}
COLUMNS = {
    "whole": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.int16(), st.integers(-5, 5)),
    "real": (pa.float64(), st.integers(-(10**6), 10**6).map(float) | st.just(NAN)),  # their sums are exact
    "when": (pa.timestamp("us", "UTC"), st.integers(-1000, 1000)),
    "price": (pa.decimal128(18, 2), st.decimals(1 - 10**16, 10**16 - 1, places=2)),
    "exact": (pa.decimal128(38, 2), st.decimals(-(10**30), 10**30, places=2)),
}
EXTREMES = ("min", "max", "first", "last")


def plain(function, values):
    """What Python makes of the values of a group."""
    known = [value for value in values if value is not None]
    if function == "count":
        return len(known)
    if function in ("first", "last"):
        return values[0 if function == "first" else -1]
    if not known:
        return None
    if function == "sum":
        with decimal.localcontext(prec=60):
            total = sum(known[1:], known[0])
        return (total + 2**63) % 2**64 - 2**63 if isinstance(total, int) else total
    return (min if function == "min" else max)(known, key=lambda value: (value != value, value))


def results(aggregation, frames):
    """What partial aggregates of the frames give when they are merged, with the keys as text."""
    merged = aggregation.merge(pl.concat([aggregation.partial(rows) for rows in frames]))
    keys = [merged[key].to_physical().cast(pl.String).to_list() for key in aggregation.keys]
    return keys, [str(column.to_pylist()) for column in aggregation.finish(merged)], merged["rows"].to_list()


@pytest.mark.thorough
@pytest.mark.parametrize("nulls", [False, True])
@given(data=st.data())
def test_numbers_as_keys_give_what_strings_give(nulls, data):
    rows = data.draw(st.integers(1, 40))

    def drawn(values):
        return data.draw(st.lists(st.none() | values if nulls else values, min_size=rows, max_size=rows))

    columns = {name: pa.array(drawn(values), kind) for name, (kind, values) in COLUMNS.items()}
    aggregates = [BoundAggregate("all", "count", (), (), pa.int64())]
    for name, (kind, _) in COLUMNS.items():
        aggregates.append(BoundAggregate(f"{name} count", "count", (name,), (kind,), pa.int64()))
        options = {"ansi": False, "ignorenulls": False}
        aggregates += [BoundAggregate(f"{name} {each}", each, (name,), (kind,), kind, options) for each in EXTREMES]
        if kind != COLUMNS["when"][0]:
            total = pa.int64() if pa.types.is_integer(kind) else kind
            total = pa.decimal128(38, 2) if pa.types.is_decimal(kind) else total
            aggregates.append(BoundAggregate(f"{name} sum", "sum", (name,), (kind,), total, options))
    numbers = [data.draw(st.lists(st.integers(-3, 3), min_size=rows, max_size=rows)) for _ in range(2)]
    cut = data.draw(st.integers(1, rows))
    found = []
    for dtype, of in KEYS.items():
        keys = {f"key{place}": pl.Series(list(map(of, some)), dtype=dtype) for place, some in enumerate(numbers)}
        frame = pl.DataFrame({**keys, **{name: pl.Series(values) for name, values in columns.items()}})
        found.append(results(Aggregation(tuple(keys), tuple(aggregates)), [frame[:cut], frame[cut:]]))
    assert found[0] == found[1] == found[2]
    groups = {}
    for row, key in enumerate(zip(*numbers, strict=True)):
        groups.setdefault(key, []).append(row)
    for aggregate, shown in zip(aggregates[1:], found[0][1][1:], strict=True):
        values = columns[aggregate.inputs[0]].to_pylist()
        assert shown == str([plain(aggregate.function, [values[row] for row in rows]) for rows in groups.values()])


@given(st.lists(st.sampled_from([None, NAN, math.inf, -math.inf, -0.0, 0.0, -1.5, 1e308]), min_size=1), st.data())
def test_what_is_chosen_by_a_float_comes_with_an_extreme(order, data):
    rows = pl.DataFrame({"row": range(len(order)), "x": pl.Series(order, dtype=pl.Float64)})
    cut = data.draw(st.integers(1, len(order)))
    for function, most in (("max_by", max), ("min_by", min)):
        bound = BoundAggregate("r", function, ("row", "x"), (pa.int64(), pa.float64()), pa.int64())
        aggregation = Aggregation((), (bound,))
        parts = [aggregation.partial(some) for some in (rows[:cut], rows[cut:])]
        ((chosen,),) = (column.to_pylist() for column in aggregation.finish(aggregation.merge(pl.concat(parts))))
        ranks = [(value != value, value) for value in order if value is not None]
        assert (order[chosen] != order[chosen], order[chosen]) == most(ranks) if ranks else chosen is None


@pytest.mark.parametrize("values", [[float("inf"), -1e308, -1e308], [1e16, -1e16, 1.0], [-0.0, -0.0], [1e308, 1e308]])
def test_floats_are_summed_in_order_of_arrival(values):
    total = BoundAggregate("r", "sum", ("x",), (pa.float64(),), pa.float64())
    found = [
        Aggregation(("k",), (total,)).partial(pl.DataFrame({"k": [key] * len(values), "x": values}))["x.sum"].to_list()
        for key in (1, "1")
    ]
    assert str(found[0]) == str(found[1])


def test_keys_are_spread_over_the_table():
    """Whatever they have in common: a combination that is one number for every row would take the square of the rows."""
    rows = 1 << 16
    first = np.arange(rows)
    for second in (first << 40 | 7, first << 32, -first, first, first * 0):
        table = np.full(2 * rows, -1, np.int32)
        groups, _ = grouping._refined(np.zeros(rows, np.int32), 1, read_only(first))
        found, firsts = np.empty(rows, np.int32), np.empty(rows, np.int32)
        assert grouping._refine(groups, read_only(second), grouping.SEEDS, table, found, firsts) == rows
        assert np.diff(np.flatnonzero(table < 0)).max() < rows / 64


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1))
def test_numbers_that_are_far_apart_are_grouped_as_close_ones_are(rows):
    close = pl.DataFrame(rows, schema=["a", "b"], orient="row")
    a, b = pl.col("a"), pl.col("b")
    for some in (close.select(a * 10**18, b), close.select(a, b * 10**18), close.select(a * 10**18, b * 10**18)):
        (expected, _), (found, _) = (grouping.Groups.of(frame, ["a", "b"]) for frame in (close, some))
        assert found.order.tolist() == expected.order.tolist()
        assert found.ends.tolist() == expected.ends.tolist()
    assert [tuple(close.row(int(row))) for row in expected.order[expected.begins]] == [*dict.fromkeys(rows)]


def test_lists_that_are_null_have_no_median():
    median = BoundAggregate("r", "median", ("x",), (pa.float64(),), pa.float64())
    aggregation = Aggregation(("k",), (median,))
    found = aggregation.partial(pl.DataFrame({"k": [1, 1, 2, 2, 3], "x": [1.0, 3.0, 9.0, 9.0, 5.0]}))
    without = found.with_columns(pl.when(pl.col("k") != 2).then(pl.col("x.all")).alias("x.all"))
    assert aggregation.finish(without)[0].to_pylist()[::2] == [2.0, 5.0]


@pytest.mark.parametrize("function", ["median", "collect_list"])
@given(st.lists(st.tuples(st.integers(-3, 3), st.none() | st.floats(-9, 9)), min_size=1))
def test_holistic_aggregates_of_numbers_as_keys_are_those_of_strings(function, rows):
    result = pa.float64() if function == "median" else pa.list_(pa.float64())
    aggregation = Aggregation(("k",), (BoundAggregate("r", function, ("x",), (pa.float64(),), result),))
    values = pl.Series([value for _, value in rows], dtype=pl.Float64)
    keys = [key for key, _ in rows]
    frames = [pl.DataFrame({"k": some, "x": values}) for some in (keys, list(map(str, keys)))]
    numbers, strings = (aggregation.partial(frame) for frame in frames)
    assert numbers["k"].cast(pl.String).to_list() == strings["k"].to_list()
    assert aggregation.finish(numbers)[0].to_pylist() == aggregation.finish(strings)[0].to_pylist()


@pytest.mark.parametrize(
    ("values", "order", "expected"),
    [
        (["a", "b", "c", "d"], [1.0, 3.0, 2.0, 3.0], ["b", "d"]),
        (["a", "b", "c"], [1.0, NAN, NAN], ["b", "c"]),  # NaN is larger than any number
        (["a", "b", "c"], [None, 1.0, None], ["b"]),
        (["a", None, "c"], [2.0, 2.0, 1.0], ["a"]),
        (["a", "b"], [None, None], []),
    ],
)
def test_all_max_by_keeps_what_ties(values, order, expected):
    kinds, result = (pa.string(), pa.float64()), pa.list_(pa.string())
    aggregation = Aggregation(("k",), (BoundAggregate("r", "all_max_by", ("v", "o"), kinds, result),))
    rows = pl.DataFrame(
        {"k": ["x"] * len(values), "v": values, "o": order}, schema_overrides={"v": pl.String, "o": pl.Float64}
    )
    partials = pl.concat([aggregation.partial(rows[i : i + 1]) for i in range(len(rows))])
    for grouped in (aggregation.partial(rows), aggregation.merge(partials), aggregation.merge(aggregation.merge(partials))):
        (found,) = aggregation.finish(grouped)
        assert found.to_pylist() == [expected]


@given(st.lists(st.lists(st.floats(), max_size=60), max_size=20))
def test_runs_are_sorted_apart(runs):
    values = np.array([value for run in runs for value in run], dtype=np.float64)
    ends = np.cumsum([len(run) for run in runs], dtype=np.int64)
    expected = [value for run in runs for value in np.sort(np.array(run, dtype=np.float64))]
    sort_runs(values, ends)
    np.testing.assert_array_equal(values, np.array(expected))
