"""Buffers against a plain model: rows of a key in order, bounds, nothing lost when every micro-batch opens them again."""

import random
from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.access_patterns import Pattern
from forebay.aggregates.processor import Processor
from forebay.engine.buffer import passing
from forebay.engine.open import open_instance
from forebay.engine.plan import END_OF_TIME, NEVER, WindowPlan
from forebay.errors import ProcessorFailed
from forebay.store import open_stores
from forebay.store.options import Options
from forebay.windows import HIGH, LOW, Buffered

PACKED = pa.schema([("k0", pa.int64()), ("a0", pa.int64())])
SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])
COLUMNS = (("k0", "key"), ("a0", "value"))
INTERVAL = 100


def plan(function=None, rows=1000, size=1 << 30, interval=INTERVAL, options=None):
    processor = Processor(function, ("k0",), COLUMNS, SCHEMA, rows, size)
    return WindowPlan(
        Buffered(interval, rows, size), PACKED, ("k0",), processor, Pattern.AUR, SCHEMA, options or Options()
    )  # fmt: skip


def batch_of(rows):
    keys = pa.array([key for key, _ in rows], pa.int64())
    hashes = pa.array([0 if key is None else key * 7919 for key, _ in rows], pa.int64())
    values = pa.array([value for _, value in rows], pa.int64())
    return pa.record_batch({"k0": keys, "a0": values, HIGH: hashes, LOW: hashes})


@dataclass
class Held:
    """What a buffer holds of a key, and when that may go on."""

    values: list = field(default_factory=list)
    due: int = NEVER


class Model:
    """One row at a time, in plain Python."""

    def __init__(self, rows, interval):
        self.rows, self.interval, self.held = rows, interval, {}

    def batch(self, rows, now):
        for key, value in rows:
            self.held.setdefault(key, Held()).values.append(value)
        gone = {}
        for key, held in list(self.held.items()):
            if held.values and (held.due <= now or len(held.values) >= self.rows):
                gone[key] = held.values
                self.held[key] = Held([], now + self.interval)
            elif not held.values and held.due <= now:
                del self.held[key]
        return gone


@pytest.mark.parametrize("kept_open", [True, False], ids=["kept", "reopened"])
@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_buffer_gives_what_the_model_gives(tmp_path, seed, rows, kept_open):
    chance, model, version = random.Random(seed), Model(rows, INTERVAL), None
    calls = []

    def seen(frame: pl.DataFrame) -> pl.DataFrame:
        calls.append(frame)
        return frame

    bound = plan(seen, rows, options=Options(write_buffer_bytes=4096))
    now = fired = 0
    count = 0
    for _ in range(60):
        now += chance.choice([1, 30, 250])
        quiet = chance.random() < 0.2
        arrived = [(chance.choice([1, 1, 1, 2, 3, 4, chance.randrange(50), None]), count + i) for i in range(40)]
        arrived = [] if quiet else arrived
        count += len(arrived)
        if not kept_open:
            open_stores.clear()
            failed = open_instance(bound, tmp_path, version, fired)  # an attempt that is broken off changes nothing
            failed.ingest(batch_of([(1, -1), (60, -1)]))
            next(failed.fire(now), None)
            failed.close()
        instance = open_instance(bound, tmp_path, version, fired)
        if arrived:
            instance.ingest(batch_of(arrived[:25]))
            instance.ingest(batch_of(arrived[25:]))
        found = {}
        calls.clear()
        for batch in instance.fire(now):
            for key, value in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True):
                found.setdefault(key, []).append(value)
        for call in calls:
            assert call["key"].rle_id().n_unique() == call["key"].n_unique()  # the rows of a key are together
            assert call["key"].value_counts()["count"].max() <= rows
        version = instance.commit()
        instance.close()
        fired = now
        assert found == model.batch(arrived, now)
    assert instance.counters.rows_in == count
    assert instance.counters.rows_out == count - sum(len(held.values) for held in model.held.values())
    instance = open_instance(bound, tmp_path, version, fired)
    left = [row for batch in instance.fire(END_OF_TIME - INTERVAL) for row in batch["value"].to_pylist()]
    assert sorted(left) == sorted(value for held in model.held.values() for value in held.values)
    instance.close()


def test_a_buffer_says_when_it_is_due(tmp_path):
    bound = plan()
    instance = open_instance(bound, tmp_path, None, NEVER)
    instance.ingest(batch_of([(1, 1)]))
    assert [batch.num_rows for batch in instance.fire(1000)] == [1]
    version = instance.commit()
    assert instance.due == 1000 + INTERVAL
    instance.close()
    instance = open_instance(bound, tmp_path, version, 1000)
    instance.ingest(batch_of([(1, 2)]))
    assert list(instance.fire(1050)) == []  # it waits
    version = instance.commit()
    assert instance.due == 1000 + INTERVAL
    instance.close()
    instance = open_instance(bound, tmp_path, version, 1050)
    assert [batch["value"].to_pylist() for batch in instance.fire(1100)] == [[2]]
    version = instance.commit()
    instance.close()
    instance = open_instance(bound, tmp_path, version, 1100)
    assert list(instance.fire(1200)) == []
    version = instance.commit()
    assert instance.due == END_OF_TIME  # the key has been forgotten
    instance.close()


def test_a_key_of_many_bytes_goes_on(tmp_path):
    bound = plan(size=800)
    instance = open_instance(bound, tmp_path, None, NEVER)
    instance.ingest(batch_of([(1, 0), (2, 0)]))
    assert sum(batch.num_rows for batch in instance.fire(10)) == 2
    instance.ingest(batch_of([(1, 1), (2, 1), (2, 2)]))
    assert list(instance.fire(20)) == []
    instance.ingest(batch_of([(1, value) for value in range(2, 99)]))  # 16 bytes each
    sizes = [batch.num_rows for batch in instance.fire(30)]
    assert sum(sizes) == 98
    assert max(sizes) <= 50
    instance.close()


TEXTS = pa.schema([("k0", pa.int64()), ("a0", pa.string())])


def texts(function, size, rows=100_000, options=None):
    """A plan for rows with a text."""
    schema = pa.schema([("key", pa.int64()), ("value", pa.string())])
    processor = Processor(function, ("k0",), COLUMNS, schema, rows, size)
    options = options or Options(16 << 20)
    return WindowPlan(Buffered(10**9, rows, size), TEXTS, ("k0",), processor, Pattern.AUR, schema, options)


def test_a_key_of_wide_rows_among_narrow_ones_goes_on_when_it_is_full(tmp_path):
    """Each micro-batch brings it 1 MB, of which 4 MB may go on together; the mean row is a narrow one."""
    calls = []

    def seen(rows: pl.DataFrame) -> pl.DataFrame:
        calls.append(dict(rows.group_by("key").agg(pl.col("value").str.len_bytes().sum()).iter_rows()))
        return rows

    bound, version, fired, wide, width = texts(seen, 4 << 20), None, NEVER, 7, 100_000
    narrow, went = [1, 2, 3, *range(10, 2000)], []
    for number in range(20):
        if number % 3 == 0:
            open_stores.clear()
        instance = open_instance(bound, tmp_path, version, fired)
        keys = [*narrow, *[wide] * 10]
        hashes = pa.array([key * 7919 for key in keys], pa.int64())
        values = ["x" * (width if key == wide else 20) for key in keys]
        columns = {"k0": pa.array(keys, pa.int64()), "a0": pa.array(values), HIGH: hashes, LOW: hashes}
        for part in (slice(0, 1000), slice(1000, None)):
            instance.ingest(pa.record_batch({name: column[part] for name, column in columns.items()}))
        calls.clear()
        sum(batch.num_rows for batch in instance.fire(number))
        assert number == 0 or {key for call in calls for key in call} <= {wide}
        if calls:
            went.append(number)
            assert max(call[wide] for call in calls) <= 4 << 20
        version, fired = instance.commit(number), number
        instance.close()
    assert 4 <= len(went) <= 6


@pytest.mark.parametrize("options", [Options(16 << 20), Options(1 << 20)], ids=["in memory", "written"])
def test_a_key_goes_on_for_what_a_single_micro_batch_brings(tmp_path, options):
    bound = texts(None, 2 << 20, options=options)
    instance = open_instance(bound, tmp_path, None, NEVER)
    keys = [5, *[1, 2, 1] * 20]

    def rows(width):
        hashes = pa.array([key * 7919 for key in keys])
        return pa.record_batch({"k0": keys, "a0": ["x" * width] * len(keys), HIGH: hashes, LOW: hashes})

    instance.ingest(rows(1))
    assert sum(batch.num_rows for batch in instance.fire(0)) == len(keys)
    instance.ingest(rows(60_000))
    batches = [batch for batch in instance.fire(1) if batch.num_rows]
    instance.close()
    assert [(set(batch["key"].to_pylist()), batch.num_rows) for batch in batches] == [({1}, 34), ({1}, 6)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=60),
    st.integers(1, 9),
    st.integers(1, 99),
)
def test_as_many_rows_of_a_key_go_on_together_as_fit(rows, most, size):
    frame = pl.DataFrame(
        {"k0": [key for key, _ in rows], "a0": [f"{n:02}".ljust(width, "x") for n, (_, width) in enumerate(rows)]}
    )
    batches = list(texts(None, size, most).aggregation.results(frame, ["k0"]))
    wanted = {}
    for key, value in frame.iter_rows():
        runs = wanted.setdefault(key, [[]])
        if runs[-1] and (len(runs[-1]) == most or sum(8 + len(text) for text in [*runs[-1], value]) > size):
            runs.append([])
        runs[-1].append(value)
    found = {}
    for batch in batches:
        for key, values in pl.DataFrame(batch).group_by("key", maintain_order=True).agg("value").iter_rows():
            found.setdefault(key, []).append(values)
    assert found == wanted


def test_a_processor_that_raises_is_named_with_the_key_and_loses_nothing(tmp_path):
    def picky(rows: pl.DataFrame) -> pl.DataFrame:
        if (rows["value"] == 13).any():
            raise ZeroDivisionError("thirteen")
        return rows

    bound = plan(picky)
    instance = open_instance(bound, tmp_path, None, NEVER)
    instance.ingest(batch_of([(1, 1)]))
    assert sum(batch.num_rows for batch in instance.fire(10)) == 1
    version = instance.commit()
    instance.close()
    instance = open_instance(bound, tmp_path, version, 10)
    instance.ingest(batch_of([(5, 5), (42, 13), (42, 14), (1, 2)]))
    with pytest.raises(
        ProcessorFailed, match=r"picky of fb\.buffer raised ZeroDivisionError for the 2 rows of the key \(42,\)"
    ):
        list(instance.fire(500))
    instance.close()
    instance = open_instance(plan(), tmp_path, version, 10)  # corrected
    instance.ingest(batch_of([(5, 5), (42, 13), (42, 14), (1, 2)]))
    assert sorted(value for batch in instance.fire(500) for value in batch["value"].to_pylist()) == [2, 5, 13, 14]
    instance.close()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda rows: rows.select("key"), r"its schema also names \['value'\]"),
        (lambda rows: rows.with_columns(more=1), r"its schema has only \['key', 'value'\]"),
        (lambda rows: rows.with_columns(value=pl.lit("x")), "do not fit its schema"),
        (lambda rows: None, "returned NoneType"),
    ],
)
def test_a_processor_that_returns_other_columns_is_an_error(wrong, message):
    with pytest.raises(
        ProcessorFailed,
        match=rf"of fb.buffer failed for the 1 rows of the key \(1,\): (?s:.*){message}(?s:.*)no row is lost",
    ):
        list(passing(iter([batch_of([(1, 1)])]), plan(wrong).aggregation))


def test_a_processor_that_fails_for_keys_together_alone():
    def few(rows: pl.DataFrame) -> pl.DataFrame:
        if rows["key"].n_unique() > 2:
            raise ValueError("too many keys")
        return rows

    with pytest.raises(ProcessorFailed, match="rows of 3 keys together, and for neither half of them alone: too many keys"):
        list(passing(iter([batch_of([(1, 1), (2, 2), (3, 3)])]), plan(few).aggregation))


def test_the_key_that_a_processor_fails_for_is_found_in_few_calls():
    called = []

    def picky(rows: pl.DataFrame) -> pl.DataFrame:
        called.append(rows.height)
        if (rows["key"] == 617).any():
            raise ValueError("no such key")
        return rows

    with pytest.raises(ProcessorFailed, match=r"raised ValueError for the 1 rows of the key \(617,\): no such key"):
        list(passing(iter([batch_of([(key, 1) for key in range(1000)])]), plan(picky).aggregation))
    assert len(called) <= 21


@given(st.lists(st.tuples(st.integers(0, 4) | st.none(), st.integers()), min_size=1, max_size=60), st.integers(1, 9))
def test_within_a_micro_batch_rows_of_a_key_are_together_and_in_order(rows, most):
    rows = [(key, value % 2**62) for key, value in rows]
    batches = list(passing(iter([batch_of(rows)]), plan(rows=most).aggregation))
    for key in {key for key, _ in rows}:
        found = [v for batch in batches for k, v in zip(*batch.to_pydict().values(), strict=True) if k == key]
        assert found == [value for other, value in rows if other == key]
    for batch in batches:
        keys = pl.Series(batch["key"])
        assert keys.rle_id().n_unique() == keys.n_unique()
        assert keys.value_counts()["count"].max() <= most
    assert sum(batch.num_rows for batch in batches) == len(rows)


def test_the_order_of_keys_does_not_depend_on_what_was_read_ahead(tmp_path):
    """An attempt whose worker has kept the store gives what one gives that has opened it."""
    bound, chance, version, fired = plan(options=Options(1 << 20, read_batch_ratio=0.3)), random.Random(1), None, 0

    def run(now, rows=()):
        instance = open_instance(bound, tmp_path, version, fired)
        if rows:
            instance.ingest(batch_of(rows))
        return instance, [row for batch in instance.fire(now) for row in batch.to_pylist()]

    open_stores.clear()
    for step in range(1, 13):
        rows = [(key, step) for key in range(20 * step, 20 * step + 20)]  # they go on at once, and have to wait from then on
        if step == 11:
            rows = [(key, step) for key in range(20, 220)]
            chance.shuffle(rows)
        elif step == 12:
            open_stores.clear()
            step, rows = 1 + INTERVAL, []  # some keys are read, and others ahead of time
        instance, _ = run(step, rows)
        version, fired = instance.commit(), step
        instance.close()
    instance, kept = run(2 * INTERVAL)
    assert instance.metrics.hits > 0 and instance.metrics.misses > 0
    open_stores.clear()
    instance, opened = run(2 * INTERVAL)
    assert instance.metrics.hits == 0
    assert kept == opened and len(kept) > 100
