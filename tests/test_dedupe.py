"""Deduplication: rows that tasks leave out before the shuffle are those that the operator would drop."""

import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import Aggregation
from forebay.engine.open import open_instance
from forebay.engine.plan import NEVER, NO_TIME, WindowPlan
from forebay.errors import UnsupportedConfiguration
from forebay.spark.worker import blobs, combining
from forebay.spark.worker import pack as packing
from forebay.spark.worker.pack import CHUNK_ROWS, Packed, pack
from forebay.spark.worker.vnodes import vnode_ids
from forebay.store import open_stores
from forebay.windows import END, HIGH, LOW, TIME, FirstRows

WITHIN = 10
KEYS = [0.0, -0.0, float("nan"), 2.5, None]
PACKED = pa.schema([("a0", pa.int64())])
PLAN = WindowPlan(FirstRows(), PACKED, (), Aggregation((), ()), Pattern.RMW, PACKED, identified_by=("k0",))

rows = st.tuples(st.integers(0, len(KEYS) - 1), st.none() | st.integers(0, 40))
tasks = st.lists(rows, max_size=12)
micro_batches = st.lists(st.tuples(st.tuples(tasks, tasks), st.integers(0, 20)), min_size=1, max_size=4)


def same(key):
    """What Spark takes for one key."""
    return "NaN" if key != key else key if key is None else key + 0.0


def chunk_of(task, number):
    """Rows as the projection gives them, numbered from ``number`` on."""
    times = [time for _, time in task]
    ends = [None if time is None else time + WITHIN for time in times]
    hashed = np.array([hash(str(same(KEYS[key]))) for key, _ in task], np.int64)
    columns = {
        TIME: pa.array(times, pa.timestamp("us")),
        END: pa.array(ends, pa.timestamp("us")),
        HIGH: hashed,
        LOW: hashed,
        "k0": pa.array([KEYS[key] for key, _ in task], pa.float64()),
        "a0": np.arange(number, number + len(task)),
    }
    return pa.record_batch(columns)


def deduplicated(given, directory, *, combining):
    """The numbers of the rows kept of each micro-batch, what is counted, what by virtual node, and how many are shuffled."""
    instances = {vnode: open_instance(PLAN, directory / str(vnode), None, NEVER) for vnode in vnode_ids(2, 1)}
    kept, number, fired, shuffled = [], 0, NEVER, 0
    for both, step in given:
        for task in both:
            chunk = chunk_of(task, number)
            number += len(task)
            until = fired if combining else None
            batches = [chunk.slice(row, 1) for row in range(chunk.num_rows)]
            for vnode, blob in pack(iter(batches), PLAN, vnode_ids(2, 1), fired_until=until):
                for batch, partial in blobs.read_all([blob]):
                    shuffled += batch.num_rows
                    instances[vnode].ingest(batch, partial=partial)
        fired = max(fired, 0) + step
        results = [batch for instance in instances.values() for batch in instance.fire(fired)]
        kept.append(sorted(number for batch in results for number in batch["a0"].to_pylist()))
    counted, by_node = Counter(), [instance.counters.rows_in for instance in instances.values()]
    for instance in instances.values():
        counted.update({name: getattr(instance.counters, name) for name in ("rows_in", "rows_late", "rows_out")})
        instance.close()
    open_stores.forget(directory)
    return kept, counted, by_node, shuffled


def expected(given):
    kept, known, number, fired, late = [], {}, 0, NEVER, 0
    for both, step in given:
        found = []
        for key, time in [row for task in both for row in task]:
            if time is not None and time <= fired:
                late += 1
            elif same(KEYS[key]) not in known:
                known[same(KEYS[key])] = NO_TIME if time is None else time + WITHIN
                found.append(number)
            number += 1
        fired = max(fired, 0) + step
        known = {key: end for key, end in known.items() if end > fired}
        kept.append(found)
    return kept, {"rows_in": number, "rows_late": late, "rows_out": sum(map(len, kept))}


@given(micro_batches, st.sampled_from([(1, 0), (3, 1), (3, 100), (100, 100)]))
def test_what_is_kept_and_counted(given, limits):
    kept, counted = expected(given)
    rows, known = limits
    with mock.patch.multiple(packing, CHUNK_ROWS=rows), mock.patch.multiple(combining, _MOST_KNOWN=known):
        of_all, of_some = (deduplicated_in_a_directory(given, combining=combining) for combining in (False, True))
    assert of_all[:3] == of_some[:3] == (kept, counted, of_all[2])
    assert of_some[3] <= of_all[3] == counted["rows_in"]


def deduplicated_in_a_directory(given, *, combining):
    with tempfile.TemporaryDirectory() as directory:
        return deduplicated(given, Path(directory), combining=combining)


@pytest.mark.parametrize(("keys", "goes_on"), [(10, True), (2 * CHUNK_ROWS, False)])
def test_rows_are_left_out_where_that_pays(keys, goes_on):
    count = 2 * CHUNK_ROWS
    numbers, done = np.arange(count) % keys, Packed()
    times = pa.array(np.zeros(count, np.int64), pa.timestamp("us"))
    table = pa.table({TIME: times, END: times, HIGH: numbers, LOW: numbers, "k0": numbers, "a0": np.arange(count)})
    packs = pack(iter(table.to_batches(CHUNK_ROWS)), PLAN, vnode_ids(1, 1), fired_until=NEVER, packed=done)
    found = [batch for batch, _ in blobs.read_all(blob for _, blob in packs)]
    stands_for_the_second_chunk = 1
    assert sum(batch.num_rows for batch in found) == done.out == (keys + stands_for_the_second_chunk if goes_on else count)
    assert done.combined == (count if goes_on else CHUNK_ROWS)


def test_keys_that_are_forgotten_do_not_end_it(monkeypatch):
    """The chunk after that is of new keys, as the first one was."""
    monkeypatch.setattr(packing, "CHUNK_ROWS", 1000)
    monkeypatch.setattr(combining, "_MOST_KNOWN", 2000)
    monkeypatch.setattr(combining, "_LEAST_JUDGED", 4000)
    keys, done = np.arange(20_000) % 2500, Packed()
    table = pa.table(chunk_of([(0, 30)] * len(keys), 0)).set_column(4, "k0", pa.array(keys.astype(float)))
    list(pack(iter(table.to_batches(500)), PLAN, vnode_ids(1, 1), fired_until=NEVER, packed=done))
    assert done.combined == len(keys)


def test_a_task_knows_keys_of_its_earlier_chunks(monkeypatch):
    """Of wide rows a chunk has few, which may all have keys of their own."""
    monkeypatch.setattr(packing, "CHUNK_ROWS", 1000)
    keys, done = np.arange(8000) % 2000, Packed()
    table = pa.table(chunk_of([(0, 30)] * len(keys), 0)).set_column(4, "k0", pa.array(keys.astype(float)))
    packs = pack(iter(table.to_batches(500)), PLAN, vnode_ids(1, 1), fired_until=NEVER, packed=done)
    numbers = [number for batch, _ in blobs.read_all(blob for _, blob in packs) for number in batch["a0"].to_pylist()]
    assert numbers[:2000] == list(range(2000))
    assert len(numbers) == done.out == 2006  # each of the six chunks after those has one that stands for its rows


def test_nothing_is_left_out_while_it_is_not_known_what_is_late():
    chunk = chunk_of([(0, 5)] * 20, 0)
    for settings in ({"fired_until": None}, {"fired_until": NEVER, "hashed": True}):
        found = [*blobs.read_all(blob for _, blob in pack(iter([chunk]), PLAN, vnode_ids(1, 1), **settings))]
        assert [(batch.num_rows, partial) for batch, partial in found] == [(20, False)]


def test_rows_that_were_left_out_by_another_watermark_are_not_lost_in_silence(tmp_path, monkeypatch):
    """Pack knew none, so it took the first row, which is late, for one that is not."""
    instance = open_instance(PLAN, tmp_path / "0", None, 20)
    monkeypatch.setattr(packing, "CHUNK_ROWS", 1)
    batches = [chunk_of([(0, time)], 0) for time in (10, 30)]
    (_, blob), *_ = pack(iter(batches), PLAN, vnode_ids(1, 1), fired_until=NEVER)
    batch, partial = next(blobs.read_all([blob]))
    with pytest.raises(UnsupportedConfiguration, match="by the watermark of an earlier micro-batch"):
        instance.ingest(batch, partial=partial)
    instance.close()
