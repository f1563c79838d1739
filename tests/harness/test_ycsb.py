from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from forebay.errors import InvalidArgument
from forebay.harness.access import GET, PUT
from forebay.harness.analysis import AccessTrace, composition, unique_sequences
from forebay.harness.evaluator import evaluate
from forebay.harness.stores import open_store
from forebay.harness.ycsb import CORE, REQUESTS, Ycsb

WRITES = {"a": 0.5, "b": 0.05, "c": 0.0, "d": 0.05, "f": 1 / 3}


def table(workload):
    return pa.Table.from_batches(list(workload.run()))


@pytest.mark.parametrize("name", list(WRITES))
def test_core_workloads_have_their_shares(name):
    shares = composition(AccessTrace.of(replace(CORE[name], operations=40_000).run()))
    assert abs(shares["PUT"] - WRITES[name]) < 0.01
    assert shares["GET"] + shares["PUT"] == 1


def test_a_scan_is_a_get_of_each_key():
    found = table(replace(CORE["e"], operations=20_000))
    lengths = np.bincount(found["time"].to_numpy())
    assert abs(lengths.mean() - (0.95 * 50.5 + 0.05)) < 1
    first = found.filter(pc.equal(found["time"], int(np.argmax(lengths))))["key"].to_numpy()
    assert set(np.diff(first) % 1000) == {1}


def test_a_modification_is_a_get_and_a_put_of_one_key():
    found = table(Ycsb(modify=1.0, operations=1000))
    assert found["operation"].to_pylist() == [GET, PUT] * 1000
    assert found["key"].to_numpy()[::2].tolist() == found["key"].to_numpy()[1::2].tolist()


@pytest.mark.parametrize("requests", REQUESTS)
def test_all_gets_find_what_was_loaded_or_inserted(requests, tmp_path):
    workload = Ycsb(read=0.8, update=0.1, insert=0.1, requests=requests, records=500, operations=100_000, size=4)
    store = open_store("dict", tmp_path)
    assert evaluate(store, workload.load()).accesses == 500
    measured = evaluate(store, workload.run())
    assert measured.found == measured.latencies[GET].count
    assert abs(len(store._values) - 10_500) < 400


def test_zipfian_keys_are_scattered_and_sequential_ones_are_in_order():
    popular = np.bincount(table(Ycsb(read=1.0, operations=50_000))["key"].to_numpy(), minlength=1000)
    assert popular.max() > 20 * np.median(popular)
    assert popular.argmax() != 0
    in_order = AccessTrace.of(Ycsb(read=1.0, requests="sequential", operations=50_000).run())
    assert unique_sequences(in_order) == [1000] * 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"read": 0.5}, "together they must be 1"),
        ({"read": 1.5, "update": -0.5}, "together they must be 1"),
        ({"read": 1.0, "requests": "zipf"}, "requests is 'zipf'; it must be one of uniform"),
        ({"read": 1.0, "records": 0}, "records is 0; it must be at least 1"),
    ],
)
def test_bad_settings_are_errors(settings, message):
    with pytest.raises(InvalidArgument, match=message):
        Ycsb(**settings)
