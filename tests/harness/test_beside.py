from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import InvalidArgument
from forebay.harness import access, beside
from forebay.harness.access import DELETE, GET, MERGE, PUT, accesses
from forebay.harness.arrivals import Poisson
from forebay.harness.beside import FAMILIES, alternate, evaluate_beside
from forebay.harness.distributions import Uniform
from forebay.harness.driver import Driver
from forebay.harness.evaluator import evaluate
from forebay.harness.events import Source
from forebay.harness.operators import WORKLOADS
from forebay.harness.stores import open_store


def batches(lengths, first=0):
    for length in lengths:
        yield accesses([(GET, 0, key, 0, 0, 0, 0) for key in range(first, first + length)])
        first += length


def made(name):
    source = Source(2000, Poisson(1e6), Uniform(0, 3))
    return list(Driver(WORKLOADS[name]()).accesses([source]))


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=3))
def test_operators_take_turns_until_the_first_has_no_more(lengths):
    together = pa.Table.from_batches(alternate([batches(each) for each in lengths]), accesses([]).schema)
    shortest = min(map(sum, lengths))
    assert together["key"].to_pylist() == [key for key in range(shortest) for _ in lengths]
    assert together["family"].to_pylist() == [number * FAMILIES for _ in range(shortest) for number in range(len(lengths))]


def test_the_state_of_operators_is_kept_apart():
    one = accesses([(PUT, 0, 1, 0, 10, 8, 0), (GET, 0, 1, 0, 10, 0, 0)])
    other = accesses([(DELETE, 0, 1, 0, 10, 0, 0), (GET, 0, 1, 0, 10, 0, 0)])
    measured = evaluate_beside(open_store("dict", None), [[one], [other]])
    assert [each.found for each in measured] == [1, 0]
    assert [[row["operation"] for row in each.rows()] for each in measured] == [["GET", "PUT"], ["GET", "DELETE"]]


@pytest.mark.parametrize("store", ["sqlite", "rocksdb", "forebay-rmw", "forebay-aur"])
def test_each_operator_finds_what_it_finds_alone(store, tmp_path):
    kinds = ["sliding-incremental", "sliding-holistic"]
    (tmp_path / "shared").mkdir()
    opened = open_store(store, tmp_path / "shared")
    measured = evaluate_beside(opened, [made(name) for name in kinds], directory=tmp_path)
    opened.close()
    shortest = min(sum(batch.num_rows for batch in made(name)) for name in kinds)
    for name, each in zip(kinds, measured, strict=True):
        alone = evaluate(open_store("dict", tmp_path), [pa.concat_batches(made(name)).slice(0, shortest)])
        assert (each.accesses, each.found) == (alone.accesses, alone.found)
        assert each.latency().count == alone.accesses
        assert each.samples[-1].accesses == alone.accesses


def test_a_rate_is_that_of_each_operator(monkeypatch):
    waits = []
    monkeypatch.setattr(beside, "replay", partial(access.replay, clock=lambda: 0.0, sleep=waits.append))
    one = accesses([(MERGE, 0, key, 0, 0, 1, 0) for key in range(4)])
    evaluate_beside(open_store("dict", None), [[one], [one]], rate=1000)
    assert waits == [0.001, 0.002, 0.003]


def test_too_many_operators_or_states_are_an_error():
    one = accesses([(GET, FAMILIES, 1, 0, 0, 0, 0)])
    with pytest.raises(InvalidArgument, match="may have 16 states; one has 17"):
        evaluate_beside(open_store("dict", None), [[one]])
    with pytest.raises(InvalidArgument, match="17 operators share a store; there may be 1 to 16"):
        evaluate_beside(open_store("dict", None), [[]] * 17)
