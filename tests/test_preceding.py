"""Windows that precede each row, over micro-batches with disorder, ties and late rows, against a plain model."""

import itertools
import math
import random
from collections import Counter, defaultdict
from dataclasses import replace
from decimal import Decimal, localcontext

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import BoundAggregate
from forebay.aggregates.frame_kernels import moments
from forebay.aggregates.user_defined import UserFunction
from forebay.engine.open import open_instance
from forebay.engine.plan import END_OF_TIME, NEVER, WindowPlan
from forebay.store import open_stores
from forebay.store.options import Options
from forebay.windows import HIGH, LOW, START, Preceding

INSTANT = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", INSTANT), ("end", INSTANT)])
MONEY = pa.decimal128(12, 2)
WIDE = pa.decimal128(30, 0)
ANSI = {"ansi": True}
SPILLING = Options(memory_bytes=1 << 20, write_buffer_bytes=1 << 10)

INPUTS = {"i": pa.int64(), "d": pa.float64(), "m": MONEY, "w": WIDE, "s": pa.string(), "b": pa.bool_()}


def of(function, name, result, **options):
    return BoundAggregate(f"{function}({name})", function, (name,), (INPUTS[name],), result, options)


def by(function, value, order):
    return BoundAggregate(function, function, (value, order), (INPUTS[value], INPUTS[order]), INPUTS[value], {})


def known(values):
    return [value for value in values if value is not None]


def total(values):
    with localcontext(prec=60):
        return sum(values)


def interpolated(values, percentage):
    if not values:
        return None
    values, position = sorted(values), (len(values) - 1) * percentage
    low, high = values[math.floor(position)], values[math.ceil(position)]
    return low + (high - low) * (position - math.floor(position))


def moment(values, sample):
    if len(values) - sample <= 0:
        return None
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - sample)


def some(function, values):
    return function(values) if values else None


def most_frequent(values):
    times = Counter(values)
    return some(lambda _: min(times, key=lambda value: (-times[value], value)), values)


def chosen(function, rows, value, order):
    with_order = [row for row in rows if row[order] is not None]
    return some(lambda _: function(with_order, key=lambda row: row[order])[value], with_order)


AGGREGATES = [
    (BoundAggregate("n", "count", (), (), pa.int64()), len),
    (of("count", "i", pa.int64()), lambda rows: len(known(row["i"] for row in rows))),
    (of("sum", "i", pa.int64(), **ANSI), lambda rows: some(sum, known(row["i"] for row in rows))),
    (of("sum", "d", pa.float64(), **ANSI), lambda rows: some(math.fsum, known(row["d"] for row in rows))),
    (of("sum", "m", pa.decimal128(22, 2), **ANSI), lambda rows: some(sum, known(row["m"] for row in rows))),
    (of("sum", "w", pa.decimal128(38, 0), **ANSI), lambda rows: some(total, known(row["w"] for row in rows))),
    (of("avg", "d", pa.float64(), **ANSI), lambda rows: some(np.mean, known(row["d"] for row in rows))),
    (of("min", "d", pa.float64()), lambda rows: some(min, known(row["d"] for row in rows))),
    (of("max", "i", pa.int64()), lambda rows: some(max, known(row["i"] for row in rows))),
    (of("max", "s", pa.string()), lambda rows: some(max, known(row["s"] for row in rows))),
    (of("min", "m", MONEY), lambda rows: some(min, known(row["m"] for row in rows))),
    (of("bool_and", "b", pa.bool_()), lambda rows: some(all, known(row["b"] for row in rows))),
    (of("bool_or", "b", pa.bool_()), lambda rows: some(any, known(row["b"] for row in rows))),
    (by("max_by", "s", "d"), lambda rows: chosen(max, rows, "s", "d")),
    (by("min_by", "i", "d"), lambda rows: chosen(min, rows, "i", "d")),
    (of("var_samp", "d", pa.float64()), lambda rows: moment(known(row["d"] for row in rows), 1)),
    (of("var_pop", "d", pa.float64()), lambda rows: moment(known(row["d"] for row in rows), 0)),
    (of("first", "s", pa.string(), ignorenulls=False), lambda rows: rows[0]["s"]),
    (of("last", "s", pa.string(), ignorenulls=False), lambda rows: rows[-1]["s"]),
    (of("first", "i", pa.int64(), ignorenulls=True), lambda rows: next(iter(known(row["i"] for row in rows)), None)),
    (of("last", "i", pa.int64(), ignorenulls=True), lambda rows: next(iter(known(row["i"] for row in rows[::-1])), None)),
    (of("current", "s", pa.string()), None),
    (of("mode", "s", pa.string()), lambda rows: most_frequent(known(row["s"] for row in rows))),
    (of("median", "d", pa.float64()), lambda rows: interpolated(known(row["d"] for row in rows), 0.5)),
    (
        of("percentile", "d", pa.list_(pa.float64()), percentage=[0.0, 0.25, 1.0]),
        lambda rows: some(lambda v: [interpolated(v, p) for p in (0.0, 0.25, 1.0)], known(row["d"] for row in rows)),
    ),
    (of("count_distinct", "s", pa.int64()), lambda rows: len(set(known(row["s"] for row in rows)))),
    (of("collect_list", "i", pa.list_(pa.int64())), lambda rows: known(row["i"] for row in rows)),
    (of("collect_set", "b", pa.list_(pa.bool_())), lambda rows: list(dict.fromkeys(known(row["b"] for row in rows)))),
]


def planned(windows, *aggregates, options=SPILLING):
    packed = pa.schema([("k0", pa.string()), *INPUTS.items(), ("id", pa.int64())])
    results = [(f"c{place}", each.result) for place, each in enumerate(aggregates)]
    schema = pa.schema([("event_time", INSTANT), ("window", WINDOW), ("k", pa.string()), *results])
    return WindowPlan(windows, packed, ("k0",), Aggregation(("k0",), aggregates), Pattern.AUR, schema, options)


def generated(chance, batches, rows, keys):
    """Micro-batches of rows: many at the same instants, some late, some far ahead, many columns NULL."""
    ids = itertools.count()
    return [
        [a_row(chance, number, keys, next(ids)) for _ in range(chance.choice([0, 1, rows, rows]))]
        for number in range(batches)
    ]


def a_row(chance, number, keys, id_):
    values = {
        "i": chance.randrange(-9, 9) * 10 ** chance.choice([0, 17]),
        "d": chance.uniform(-9, 9),
        "m": Decimal(chance.randrange(-999, 999)) / 100,
        "w": Decimal(chance.randrange(-(10**29), 10**29)),
        "s": chance.choice("abcd"),
        "b": chance.random() < 0.8,
    }
    values = {name: None if chance.random() < 0.2 else value for name, value in values.items()}
    ahead = 60 if chance.random() < 0.02 else 0
    return {
        "time": number * 8 + chance.randrange(-20, 9) + ahead,
        "k": f"user {chance.randrange(keys)}",
        "id": id_,
        **values,
    }


def packed(rows):
    keys = np.array([int(row["k"][5:]) for row in rows], np.int64)
    columns = {"k0": pa.array([row["k"] for row in rows])}
    columns |= {name: pa.array([row[name] for row in rows], kind) for name, kind in INPUTS.items()}
    columns |= {"id": pa.array([row["id"] for row in rows], pa.int64()), HIGH: keys, LOW: keys * 7}
    return pa.record_batch({**columns, START: np.array([row["time"] for row in rows], np.int64)})


def expected(windows, taken, until):
    """The definition: for each row that the watermark has passed, the rows of its key in its window."""
    of_key = defaultdict(list)
    for row in sorted(taken, key=lambda row: row["time"]):  # stable: those of an instant in order of arrival
        of_key[row["k"]].append(row)
    for rows in of_key.values():
        for place, row in enumerate(rows):
            if row["time"] <= until:
                last = rows if windows.rows is None else rows[max(0, place + 1 - windows.rows) : place + 1]
                since = NEVER if windows.span is None else row["time"] - windows.span
                yield row, [other for other in last if since <= other["time"] <= row["time"]]


def run(plan, directory, batches, *, reopened=True, last=None):
    """The results of micro-batches, each with a store instance of its own; and the rows that were in time."""
    version, watermark, results, taken = None, NEVER, [], []
    for number, rows in enumerate(batches):
        if reopened:
            open_stores.clear()
        instance = open_instance(plan, directory, version, watermark)
        for part in (rows[: len(rows) // 3], rows[len(rows) // 3 :]):
            if part:
                instance.ingest(packed(part))
        taken += [row for row in rows if row["time"] > watermark]
        watermark = last if last is not None and number == len(batches) - 1 else max(watermark, number * 8 - 12)
        results += [row for batch in instance.fire(watermark) for row in batch.to_pylist()]
        version = instance.commit(number)
        instance.close()
    assert instance.counters.rows_late == sum(map(len, batches)) - len(taken)
    assert instance.counters.rows_out == len(results)
    return results, taken, watermark


def micros(instant):
    return round(instant.timestamp() * 1_000_000)


def assert_equal(found, wanted):
    if isinstance(wanted, float) and found is not None:
        assert math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9)
    elif isinstance(wanted, list) and found is not None:
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_equal(one, other)
    else:
        assert found == wanted


WINDOWS = [
    Preceding(span=1),
    Preceding(span=15),
    Preceding(span=200),
    Preceding(rows=1),
    Preceding(rows=4),
    Preceding(rows=50),
    Preceding(span=15, rows=4),
    Preceding(span=200, rows=50),
]
ID = BoundAggregate("id", "current", ("id",), (pa.int64(),), pa.int64())
IDS = BoundAggregate("ids", "collect_list", ("id",), (pa.int64(),), pa.list_(pa.int64()), {})


@pytest.mark.parametrize("windows", WINDOWS, ids=lambda windows: f"{windows.span} {windows.rows}")
@pytest.mark.parametrize("reopened", [True, False], ids=["reopened", "kept open"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_equals_the_model(tmp_path, windows, reopened, seed):
    batches = generated(random.Random(seed), 25, 40, keys=5)
    aggregates = [each for each, _ in AGGREGATES]
    results, taken, until = run(planned(windows, ID, IDS, *aggregates), tmp_path / "0", batches, reopened=reopened)
    found = {row["c0"]: row for row in results}
    wanted = list(expected(windows, taken, until))
    assert len(found) == len(results) == len(wanted) > 200
    assert len(taken) < sum(map(len, batches))
    for row, rows in wanted:
        result = found[row["id"]]
        start = row["time"] - windows.span if windows.rows is None else rows[0]["time"]
        assert (result["k"], micros(result["event_time"]), micros(result["window"]["start"])) == (
            row["k"],
            row["time"],
            start,
        )
        assert result["window"]["end"] == result["event_time"]
        assert result["c1"] == [each["id"] for each in rows]
        for place, (_, model) in enumerate(AGGREGATES):
            assert_equal(result[f"c{place + 2}"], row["s"] if model is None else model(rows))


def simple(times, keys, values=None):
    """Rows with values of which only ``i`` counts."""
    values = times if values is None else values
    rows = zip(times, keys, values, strict=True)
    nothing = dict.fromkeys(INPUTS)
    return [{**nothing, "time": time, "k": f"user {key}", "id": place, "i": i} for place, (time, key, i) in enumerate(rows)]


def test_aggregates_that_cannot_move_are_computed_by_themselves(tmp_path):
    """A user's function sees the rows of each window, in order."""

    def differences(key, rows: pl.DataFrame) -> pl.DataFrame:
        return pl.DataFrame({"who": key, "since": rows["i"].last() - rows["i"].first(), "n": [rows.height]})

    own = pa.schema([("who", pa.string()), ("since", pa.int64()), ("n", pa.int64())])
    schema = pa.schema([("event_time", INSTANT), ("window", WINDOW), ("k", pa.string()), *own])
    function = UserFunction(differences, (("i", "i"),), own)
    for windows in (Preceding(span=7), Preceding(rows=3), Preceding(span=5, rows=3)):
        plan = replace(planned(windows), aggregation=function, schema=schema)
        batches = generated(random.Random(5), 12, 30, keys=4)
        for number, row in enumerate(itertools.chain(*batches)):
            row["i"] = number
        results, taken, until = run(plan, tmp_path / str(windows), batches)
        found = sorted((row["k"], row["who"], micros(row["event_time"]), row["since"], row["n"]) for row in results)
        wanted = [
            (row["k"], row["k"], row["time"], rows[-1]["i"] - rows[0]["i"], len(rows))
            for row, rows in expected(windows, taken, until)
        ]
        assert found == sorted(wanted)
        assert len(found) > 100


@pytest.mark.parametrize("windows", [Preceding(span=10**9), Preceding(rows=100_000), Preceding(10**9, 100_000)], ids=str)
def test_a_key_with_many_rows_costs_no_square(tmp_path, windows):
    """200,000 windows of up to 200,000 rows: row by row and window by window that would be 20 billion steps or 80 GB."""
    aggregates = [each for each, _ in AGGREGATES if not each.function.startswith("collect")]
    chance, rows = np.random.default_rng(1), 200_000
    plan = planned(windows, *aggregates, options=Options())
    instance = open_instance(plan, tmp_path / "0", None, NEVER)
    times = np.sort(chance.integers(0, rows // 2, rows))
    numbers = chance.integers(-1000, 1000, rows)
    columns = {"k0": pa.array(np.full(rows, "one")), "i": pa.array(numbers), "d": pa.array(numbers / 7)}
    columns |= {"m": pa.array(numbers.astype(np.int32)).cast(MONEY), "w": pa.array(numbers).cast(WIDE)}
    columns |= {"s": pa.array(numbers // 100).cast(pa.string()), "b": pa.array(numbers > 0), "id": pa.array(np.arange(rows))}
    columns |= {HIGH: np.zeros(rows, np.int64), LOW: np.zeros(rows, np.int64), START: times}
    instance.ingest(pa.record_batch(columns))
    found = pa.Table.from_batches(instance.fire(END_OF_TIME))
    instance.close()
    assert found.num_rows == rows
    some = numbers if windows.rows is None else numbers[-windows.rows :]
    final = found.slice(rows - 1).to_pylist()[0]
    places = {each.label: f"c{place}" for place, each in enumerate(aggregates)}
    assert final[places["n"]] == len(some)
    assert final[places["sum(i)"]] == some.sum()
    assert final[places["count_distinct(s)"]] == 20
    assert final[places["median(d)"]] == pytest.approx(np.median(some / 7))


@pytest.mark.parametrize("windows", [Preceding(span=40), Preceding(rows=40)], ids=["time", "rows"])
def test_a_micro_batch_costs_what_the_keys_that_fire_have(tmp_path, windows):
    """With 2,000 keys in state of which three have rows, those of the others are not read; and few are written again."""
    plan, key_count = planned(windows, AGGREGATES[0][0]), 2000
    version, watermark, written, read = None, NEVER, 0, []
    for number in range(60):
        keys = list(range(key_count)) * 5 if number == 0 else [1, 2, 3]
        rows = simple([number * 2 + 1] * len(keys), keys)
        open_stores.clear()
        instance = open_instance(plan, tmp_path / "0", version, watermark)
        instance.ingest(packed(rows))
        watermark = number * 2 + 1
        assert sum(batch.num_rows for batch in instance.fire(watermark)) == len(keys)
        version = instance.commit(number)
        written += instance.metrics.writes
        read.append(instance.metrics.reads)
        instance.close()
    assert max(read[1:]) < 3 * 3 * 40
    assert written < 2.5 * (5 * key_count + 3 * 59)


def test_what_no_window_can_have_goes(tmp_path):
    """Keys whose rows are all too old are forgotten, and windows of one row leave nothing."""
    for windows, until in ((Preceding(span=50), 70), (Preceding(rows=1), 20), (Preceding(span=50, rows=3), 70)):
        plan, directory = planned(windows, AGGREGATES[0][0]), tmp_path / str(windows)
        version = fired_until = None
        for number, watermark in enumerate((10, 20, max(20, until - 1), until)):
            instance = open_instance(plan, directory, version, NEVER if fired_until is None else fired_until)
            if number == 0:
                instance.ingest(packed(simple([5, 20], [1, 2])))
            fired = sum(batch.num_rows for batch in instance.fire(watermark))
            assert fired == (1 if number < 2 else 0)
            version, fired_until = instance.commit(number), watermark
            left, due = len(instance._store.index), instance.due
            instance.close()
            if number == 2 and windows.span:
                assert (left, due <= until) == (1, True)
        assert left == 0


def test_a_store_that_is_not_opened_misses_nothing(tmp_path):
    """`due` is never later than what there is to do."""
    plan = planned(Preceding(span=30), IDS)
    chance, version, watermark, results, taken = random.Random(3), None, NEVER, 0, []
    opened = 0
    due = NEVER
    for number in range(200):
        rows = simple([number + chance.randrange(0, 40)], [chance.randrange(3)]) if chance.random() < 0.1 else []
        now = max(watermark, number - 1)
        if rows or due <= now:
            opened += 1
            instance = open_instance(plan, tmp_path / "0", version, watermark)
            if rows:
                instance.ingest(packed(rows))
            taken += [row for row in rows if row["time"] > watermark]
            results += sum(batch.num_rows for batch in instance.fire(now))
            version = instance.commit(number)
            due = instance.due
            instance.close()
        watermark = now
    assert results == sum(row["time"] <= watermark for row in taken) > 10
    assert opened < 150


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_variances_of_frames_with_what_is_no_finite_number(odd):
    values = np.array([odd, 1.0, 2.0, 4.0])
    begins, ends = np.array([0, 0, 1, 1]), np.array([1, 2, 3, 4])
    _, squares = moments(values, np.ones(4, bool), begins, ends)
    assert np.isnan(squares[:2]).all()
    assert squares[2] == pytest.approx(0.5)
    assert squares[3] == pytest.approx(14 / 3)
