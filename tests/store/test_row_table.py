"""Rows that are given one at a time: in memory while there is room, in the store otherwise, and never in both."""

import random

import pyarrow as pa
import pytest

from forebay.errors import InvalidArgument
from forebay.store.listing import AarStore, AurStore, RmwStore
from forebay.store.options import Options
from forebay.store.predictors import session
from forebay.store.row_table import LastValues, ValueLists
from forebay.store.unaligned import UnalignedStore

SCHEMA = pa.schema({"key": pa.string(), "value": pa.int64()})


def opened(kind, directory, write_buffer_bytes=4000, read_batch_ratio=0.1):
    options = Options(1 << 20, write_buffer_bytes=write_buffer_bytes, read_batch_ratio=read_batch_ratio)
    store = UnalignedStore(directory / "s", None, Options(1 << 20, write_buffer_bytes=4000, read_batch_ratio=0))
    return kind(store, SCHEMA, options), store


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [LastValues, ValueLists])
def test_random_accesses_are_those_of_a_dict(kind, seed, tmp_path):
    table, store = opened(kind, tmp_path)
    model, chance = {}, random.Random(seed)
    for number in range(1, 4001):
        start = number // 100 * 10 - 10 * chance.randrange(10)
        named = (f"user {chance.randrange(30)}", (start, start + 10))
        which = chance.random()
        if kind is LastValues and which < 0.4:
            table.put(named, number)
            model[named] = number
        elif which < 0.4:
            table.append(named, number, start)
            model.setdefault(named, []).append(number)
        elif which < 0.6:
            assert (table[named] if kind is LastValues else table.read(named) or None) == model.get(named)
        elif which < 0.7:
            table.discard(named)
            model.pop(named, None)
        else:
            named = next(iter(model), named)
            assert (table.take(named) or None) == model.pop(named, None)
        if number % 500 == 0:
            table.settle()
    assert len(store.index) > 0
    for named, expected in model.items():
        assert table.take(named) == expected
    table.settle()
    assert (len(table), len(store.index)) == (0, 0)


def test_windows_with_the_farthest_ett_leave_memory(tmp_path):
    table, store = opened(LastValues, tmp_path, 40_000)
    ends = [(number * 7919) % 1000 for number in range(1000)]
    for number, end in enumerate(ends):
        table.put((f"user {number}", (0, end)), number)
    assert len(table) + len(store.index) == 1000
    assert 20 < len(table) < 500
    assert set(range(20)) <= {window[1] for _, window in table}


def test_memory_is_bounded(tmp_path):
    table, _ = opened(ValueLists, tmp_path, 100_000)
    for number in range(20_000):
        table.append((f"user {number % 10}", (0, 10)), number, 0)
        assert table.nbytes < 2 * 2 * 100_000
    assert table.given == 20_000


def test_reads_in_order_of_ett_are_read_ahead(tmp_path):
    table, store = opened(ValueLists, tmp_path, 200_000)
    for number in range(2000):
        table.append((f"user {number}", (number, number + 10)), number, number)
    table.settle()
    for number in range(2000):
        assert table.take((f"user {number}", (number, number + 10))) == [number]
    assert store.metrics.index_scans < 100
    assert store.metrics.reads == 2000


def test_reads_in_no_order_are_read_alone(tmp_path):
    table, store = opened(LastValues, tmp_path)
    names = [(f"user {number}", (0, 10)) for number in range(2000)]
    for number, named in enumerate(names):
        table.put(named, number)
    table.settle()
    random.Random(1).shuffle(names)
    for named in names[:300]:
        assert table.take(named) == int(named[0].split()[1])
    assert store.metrics.reads < 600


def test_a_session_is_read_a_gap_after_its_newest_row(tmp_path):
    options = Options(1 << 20, write_buffer_bytes=4000)
    store = AurStore(tmp_path / "s", value=pa.int64(), options=options, predictor=session(5))
    for number in range(200):
        store.append(f"user {number}", number, (0, 5), number)
    assert len(store.table) < 100
    assert {f"user {number}" for number in range(5)} <= {name for name, _ in store.table}


@pytest.mark.parametrize("key", ["text", None, 2**40])
def test_a_key_of_another_type_is_refused_at_once(key, tmp_path):
    store = RmwStore(tmp_path / "s", key=pa.int32(), value=pa.int64())
    store.put(1, (0, 10), 5)
    if key is None:
        store.put(key, (0, 10), 6)
        assert store.get(key, (0, 10)) == 6
    else:
        with pytest.raises(InvalidArgument, match="keys of the store are int32"):
            store.put(key, (0, 10), 6)
    assert store.get(1, (0, 10)) == 5


@pytest.mark.parametrize("open_store", [AarStore, AurStore, RmwStore])
def test_a_value_of_another_type_is_refused_at_once(open_store, tmp_path):
    store = open_store(tmp_path / "s", value=pa.int32())
    give = {AarStore: lambda v: store.append("ann", v, (0, 10)), AurStore: lambda v: store.append("ann", v, (0, 10), 0)}.get(
        open_store, lambda v: store.put("ann", (0, 10), v)
    )
    give(1)
    with pytest.raises(InvalidArgument, match="values of the store are int32"):
        give(2**40)
    found = store.get_window((0, 10)) if open_store is AarStore else store.get("ann", (0, 10))
    assert found == {AarStore: {"ann": [1]}, AurStore: [1], RmwStore: 1}[open_store]


def test_nan_is_a_key(tmp_path):
    store = RmwStore(tmp_path / "s", key=pa.float64(), value=pa.int64())
    store.put(float("nan"), (0, 10), 1)
    assert store.get(float("nan"), (0, 10)) == 1
    store.put(float("nan"), (0, 10), 2)
    store.commit()
    assert (store.get(float("nan"), (0, 10)), store.get(float("nan"), (0, 10))) == (2, None)


def test_keys_are_single_values(tmp_path):
    with pytest.raises(InvalidArgument, match="keys of a store are single values"):
        RmwStore(tmp_path / "s", key=pa.list_(pa.int64()))
