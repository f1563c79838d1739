"""Rows that are given one at a time: in memory while there is room, in the store otherwise, and never in both."""

import random
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from forebay.errors import InvalidArgument
from forebay.store import extent_groups, extent_log, segments, window_extents
from forebay.store.listing import AarStore, AurStore, RmwStore
from forebay.store.options import Options
from forebay.store.predictors import session
from forebay.store.unaligned import UnalignedStore
from forebay.store.value_tables import LastValues, ValueLists

SCHEMA = pa.schema({"key": pa.string(), "value": pa.int64()})


def opened(kind, directory, write_buffer_bytes=4000):
    options = Options(1 << 20, write_buffer_bytes=write_buffer_bytes)
    store = UnalignedStore(directory / "s", None, Options(1 << 20, write_buffer_bytes=4000, read_batch_ratio=0))
    return kind(store, SCHEMA, options), store


def batches(table, model, chance, number, start):
    some = [*chance.sample(list(model), min(len(model), 5)), ("nobody", (0, 10))]
    expected = [model.get(named, []) for named in some]
    assert table.read_batch(some) == [each if isinstance(each, list) else [each] for each in expected]
    table.discard_batch(some[1:])
    for named in some[1:]:
        model.pop(named, None)
    given = {(f"user {number % 30}", (each, each + 10)): number for each in (start, start + 10)}
    table.give(given)
    for named in given:
        model[named] = number if isinstance(table, LastValues) else [*model.get(named, []), number]


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
            table.flush()
        if number % 20 == 0:
            batches(table, model, chance, number, start)
    assert len(store.index) > 0
    for named, expected in model.items():
        assert table.take(named) == expected
    table.flush()
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


@pytest.mark.parametrize("kind", [LastValues, ValueLists])
def test_a_read_is_of_one_window_and_scans_nothing(kind, tmp_path):
    table, store = opened(kind, tmp_path)
    give = table.put if kind is LastValues else (lambda named, value: table.append(named, value, 0))
    names = [(f"user {number}", (0, 10)) for number in range(2000)]
    for number, named in enumerate(names):
        give(named, number)
    table.flush()
    random.Random(1).shuffle(names)
    for named in names[:300]:
        assert table.take(named) in (int(named[0].split()[1]), [int(named[0].split()[1])])
    assert (store.metrics.reads, store.metrics.index_scans) == (300, 0)


@pytest.mark.parametrize("kind", [LastValues, ValueLists])
def test_a_batch_is_read_by_one_scan(kind, tmp_path):
    table, store = opened(kind, tmp_path)
    give = table.put if kind is LastValues else (lambda named, value: table.append(named, value, 0))
    names = [(f"user {number}", (0, 10)) for number in range(1000)]
    for number, named in enumerate(names):
        give(named, number)
    table.flush()
    store.flush()
    assert table.read_batch(names[200:500]) == [[number] for number in range(200, 500)]
    assert (store.metrics.reads, store.metrics.index_scans) == (300, 1)
    assert table.read_batch([]) == []
    table.discard_batch([*names[:400], ("nobody", (0, 10))])
    assert table.read_batch([names[399], names[400], names[400]]) == [[], [400], [400]]


@pytest.mark.parametrize("large_files", [False, True])
def test_values_that_came_at_different_times_are_read_in_their_order(large_files, tmp_path, monkeypatch):
    small = ("SEGMENT_BYTES", 1500, segments), ("LEAST_COMPACTED", 0, extent_log), ("MAX_EXTENTS", 2, extent_groups)
    for name, value, module in () if large_files else small:
        monkeypatch.setattr(module, name, value)
        monkeypatch.setattr(window_extents, name, value)
    table, store = opened(ValueLists, tmp_path)
    named, others = ("ann", (0, 10)), [(f"user {number}", (0, 10)) for number in range(300)]
    for number in range(40):
        for _ in range(3):
            table.append(named, number, 0)
        table.append(others[number], number, 0)
        table.flush()  # from memory to the store,
        if number % 7 == 0:
            store.flush()  # to disk,
        if number % 10 == 9:
            before = store._extents.numbers.copy()
            store.commit()  # and to fewer extents
            assert large_files or store._extents.numbers != before
            assert table.read(others[number - 9]) == [number - 9]
    assert table.read(named) == table.take(named) == [number for number in range(40) for _ in range(3)]
    assert [table.take(each) for each in others[:40]] == [[number] for number in range(40)]


def test_what_is_read_brings_its_own_extents_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(window_extents, "SEGMENT_BYTES", 1500)
    table, store = opened(LastValues, tmp_path)
    for number in range(2000):
        table.put((f"user {number}", (number, number + 10)), number)
    table.flush()
    store.flush()
    read, extents = [], store._extents
    monkeypatch.setattr(extents, "read", lambda number, extent=extents.read: read.append(number) or extent(number))
    assert len(extents.numbers) > 5
    for number in (3, 5, 3, 1999):
        assert table.take((f"user {number}", (number, number + 10))) in (number, None)
    assert len(read) == len(set(read)) <= 2


def test_a_window_that_opens_again_has_nothing_of_what_it_had(tmp_path):
    table, store = opened(ValueLists, tmp_path)
    named = ("ann", (0, 10))
    for number in range(5):
        table.append(named, number, 0)
        table.flush()
        if number % 2:
            store.flush()
        assert table.take(named) == [number]


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


@pytest.mark.parametrize("kind", [LastValues, ValueLists])
def test_what_cannot_be_spilled_stays(kind, tmp_path):
    table, store = opened(kind, tmp_path, 100_000)
    give = table.put if kind is LastValues else (lambda named, value: table.append(named, value, 0))
    for number in range(50):
        give((f"user {number}", (0, 10)), number)
    give(("bad", (0, 10)), "no number")
    with pytest.raises(pa.ArrowInvalid):
        table.flush()
    table.discard(("bad", (0, 10)))
    table.flush()
    assert (len(table), len(store.index)) == (0, 50)
    assert [table.take((f"user {number}", (0, 10))) for number in (0, 49)] in ([0, 49], [[0], [49]])


@pytest.mark.parametrize("kind", [LastValues, ValueLists])
def test_reading_all_that_is_stored_does_not_bring_all_into_memory(kind, tmp_path):
    table, _ = opened(kind, tmp_path, 100_000)
    give = table.put if kind is LastValues else (lambda named, value: table.append(named, value, 0))
    names = [(f"user {number}", (0, number)) for number in range(3000)]
    for number, named in enumerate(names):
        give(named, number)
    table.flush()
    for number, named in enumerate(names):
        assert (table[named] if kind is LastValues else table.read(named)) in (number, [number])
        assert table.nbytes < 2 * 2 * 100_000
    assert table.given == 3000


def test_what_is_replaced_or_discarded_is_not_read(tmp_path):
    table, store = opened(LastValues, tmp_path)
    for number in range(500):
        table.put((f"user {number}", (0, 10)), number)
    table.flush()
    table.put(("user 1", (0, 10)), -1)
    table.discard(("user 2", (0, 10)))
    assert store.metrics.reads == 0
    table.flush()
    assert [table.take((f"user {number}", (0, 10))) for number in (1, 2, 3)] == [-1, None, 3]


def test_zeros_are_one_key(tmp_path):
    store = RmwStore(tmp_path / "s", key=pa.float64(), value=pa.int64())
    store.put(0.0, (0, 5), 1)
    store.commit()
    store.put(-0.0, (0, 5), 2)
    assert (store.get(0.0, (0, 5)), store.get(0.0, (0, 5)), store.get(-0.0, (0, 5))) == (2, None, None)


def test_instants_with_a_time_zone_are_keys_of_their_own_in_the_repeated_hour(tmp_path):
    store = RmwStore(tmp_path / "s", key=pa.timestamp("us", "Europe/Berlin"), value=pa.int64())
    first, second = (datetime(2024, 10, 27, hour, 30, tzinfo=UTC).astimezone(ZoneInfo("Europe/Berlin")) for hour in (0, 1))
    store.put(first, (0, 5), 1)
    store.put(second, (0, 5), 2)
    store.commit()
    assert (store.get(second, (0, 5)), store.get(first, (0, 5))) == (2, 1)


@pytest.mark.parametrize("kind", [pa.date64(), pa.timestamp("ns"), pa.map_(pa.string(), pa.int64())])
def test_values_come_back_as_they_were_given(kind, tmp_path):
    given = {
        pa.date64(): date(2024, 5, 1),
        pa.timestamp("ns"): pa.scalar(1_700_000_000_123_456_789, pa.timestamp("ns")).as_py(),
    }.get(kind, [("a", 1)])
    store = RmwStore(tmp_path / "s", value=kind)
    store.put("ann", (0, 5), given)
    store.commit()
    assert store.get("ann", (0, 5)) == given


@pytest.mark.parametrize("window", [(0.5, 5.5), (2**63, 2**63 + 5), ("a", "b")])
@pytest.mark.parametrize("open_store", [AarStore, AurStore, RmwStore])
def test_windows_are_instants(open_store, window, tmp_path):
    store = open_store(tmp_path / "s", value=pa.int64())
    with pytest.raises(InvalidArgument, match="is not an instant"):
        if open_store is RmwStore:
            store.put("ann", window, 1)
        else:
            store.append(*(("ann", 1, window) if open_store is AarStore else ("ann", 1, window, 0)))
    store.commit()


def test_text_that_is_no_text_is_refused_at_once(tmp_path):
    store = RmwStore(tmp_path / "s", value=pa.string())
    with pytest.raises(InvalidArgument, match="values of the store are string"):
        store.put("ann", (0, 5), "\ud800")


@pytest.mark.parametrize("kind", [pa.decimal256(50, 2), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_types_that_polars_gives_back_as_others_are_refused(kind, tmp_path):
    with pytest.raises(InvalidArgument, match="cannot hold values of the type"):
        RmwStore(tmp_path / "s", value=kind)


def test_an_earlier_slice_counts_too(tmp_path):
    store = AarStore(tmp_path / "s", value=pa.int64(), options=Options(1 << 20, write_buffer_bytes=100_000))
    for number in range(64):
        store.append(f"user {number}", number, (10, 20))
    for number in range(50_000):
        store.append("ann", number, (0, 10))
        assert store.table.nbytes < 2 * 2 * 100_000
    assert len(store.get_window((0, 10))["ann"]) == 50_000


def in_memory(store):
    """Bytes of the texts that a table has."""
    held = store.table.values() if not isinstance(store, AarStore) else store.table._slices.values()
    return sum(len(text) for text in str(list(held)).split("'")[1::2])


GIVE = {
    AarStore: lambda store, key, value: store.append(key, value, (0, 10)),
    AurStore: lambda store, key, value: store.append(key, value, (0, 10), 0),
    RmwStore: lambda store, key, value: store.put(key, (0, 10), value),
}


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.string())], ids=str)
@pytest.mark.parametrize("open_store", [AarStore, AurStore, RmwStore])
def test_wide_values_after_narrow_ones_are_seen(open_store, kind, tmp_path):
    options = Options(16 << 20)
    store = open_store(tmp_path / "s", value=kind, options=options)
    for number in range(10_000):
        GIVE[open_store](store, f"user {number}", "x" if kind == pa.string() else ["x"])
    for number in range(200):
        wide = "y" * 100_000
        GIVE[open_store](store, f"other {number}", wide if kind == pa.string() else ["x", wide])
        if number % 10 == 0:
            assert in_memory(store) < options.memory_bytes // 2
    assert store.metrics.writes == 10_200


@pytest.mark.parametrize("open_store", [AarStore, AurStore, RmwStore])
def test_wide_values_that_have_gone_are_not_counted(open_store, tmp_path):
    store, wide = open_store(tmp_path / "s", value=pa.string()), "y" * 100_000
    for number in range(20):
        GIVE[open_store](store, "ann", wide)
        GIVE[open_store](store, "bob", "x")
        assert store.table.nbytes > 100_000
        if open_store is AarStore:
            store.get_window((0, 10))
        elif open_store is RmwStore and number % 3 == 0:
            store.put("ann", (0, 10), None)
        elif number % 3 == 1:
            store.table.discard(("ann", (0, 10)))
        else:
            store.get("ann", (0, 10))
        assert store.table.nbytes < 10_000
    store.commit()
    assert store.table.nbytes < 1000
    if open_store is not AarStore:
        store.table.give({("ann", (0, 10)): wide})
        assert store.table.read_batch([("ann", (0, 10))])[0][-1] == wide


@pytest.mark.parametrize("kind", [LastValues, ValueLists])
def test_wide_values_that_are_read_again_are_seen(kind, tmp_path):
    options = Options(1 << 20)
    store = UnalignedStore(tmp_path / "s", None, Options(1 << 20, read_batch_ratio=0))
    table = kind(store, pa.schema({"key": pa.string(), "value": pa.string()}), options)
    give = table.put if kind is LastValues else (lambda named, value: table.append(named, value, 0))
    names = [(f"user {number}", (0, 10)) for number in range(100)]
    for named in names:
        give(named, "y" * 20_000)
    table.flush()
    for named in names:
        assert (table[named] if kind is LastValues else table.read(named)[0]) == "y" * 20_000
        assert sum(len(text) for text in str(list(table.values())).split("'")[1::2]) < 1 << 19
