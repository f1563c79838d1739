import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from installed_stores import lacks

from forebay.errors import InvalidArgument, StateDirectoryError
from forebay.harness import evaluator
from forebay.harness.access import DELETE, GET, MERGE, PUT, Operation, accesses
from forebay.harness.arrivals import Poisson
from forebay.harness.distributions import Uniform
from forebay.harness.driver import Driver
from forebay.harness.evaluator import evaluate
from forebay.harness.events import Source
from forebay.harness.histogram import Histogram
from forebay.harness.operators import WORKLOADS
from forebay.harness.stores import STORES, open_store
from forebay.harness.stores.dictionary import Dictionary

SOME = [(PUT, 0, 1, 0, 10, 8, 0), (GET, 0, 1, 0, 10, 0, 0), (MERGE, 0, 2, 0, 10, 4, 0), (DELETE, 0, 1, 0, 10, 0, 0)]
ALL_BUT_ALIGNED = [name for name in STORES if name not in ("dict", "forebay-aar") and lacks(name) is None]


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=50), st.floats(1, 100))
def test_percentiles_are_within_a_thousandth(numbers, share):
    histogram = Histogram()
    histogram.record(numbers)
    exact = sorted(numbers)[max(int(len(numbers) * share / 100 + 0.5), 1) - 1]
    assert exact <= histogram.percentile(share) <= exact * 1.001
    assert max(numbers) <= histogram.most == histogram.percentile(100) <= max(numbers) * 1.001


def test_histograms_add_up():
    one, both = Histogram(), Histogram()
    one.record(range(0, 100_000, 7))
    for part in (range(0, 50_001, 7), range(50_001, 100_000, 7)):
        both.record(part)
    assert [one.percentile(share) for share in (1, 50, 99)] == [both.percentile(share) for share in (1, 50, 99)]
    assert one.count == both.count == len(range(0, 100_000, 7))
    assert Histogram().percentile(50) == Histogram().most == Histogram().count == 0


def test_what_takes_longer_than_a_day_is_counted_as_a_day():
    histogram = Histogram()
    histogram.record([2 * 24 * 3600 * 10**9])
    assert histogram.count == 1
    assert histogram.most >= 24 * 3600 * 10**9


def test_latencies_name_the_extra_that_they_need(monkeypatch):
    monkeypatch.setitem(sys.modules, "hdrh.histogram", None)
    with pytest.raises(InvalidArgument, match=r"need hdrhistogram; pip install '\.\[harness\]'"):
        Histogram()


class Recording(Dictionary):
    def __init__(self):
        super().__init__(None, 0)
        self.calls = []

    def get(self, key):
        self.calls.append(("GET", key))
        return super().get(key)

    def put(self, key, value):
        self.calls.append(("PUT", key, len(value)))
        super().put(key, value)

    def merge(self, key, value):
        self.calls.append(("MERGE", key, len(value)))
        super().merge(key, value)

    def delete(self, key):
        self.calls.append(("DELETE", key))
        super().delete(key)


def test_accesses_reach_the_store_in_order_with_values_of_their_size():
    store = Recording()
    measured = evaluate(store, [accesses(SOME)])
    one, two = (store.keys(accesses(SOME[at : at + 1]))[0] for at in (0, 2))
    assert store.calls == [("PUT", one, 8), ("GET", one), ("MERGE", two, 4), ("DELETE", one)]
    assert (measured.accesses, measured.found, measured.interrupted) == (4, 1, False)
    assert {each: measured.latencies[each].count for each in Operation} == dict.fromkeys(Operation, 1)
    assert measured.throughput > 0


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_every_workload_finds_the_same_in_every_store(name, tmp_path):
    operator = WORKLOADS[name]()
    sources = [Source(400, Poisson(1e6), Uniform(0, 3), final=0.1, seed=seed) for seed in range(operator.inputs)]
    batches = list(Driver(operator).accesses(sources))
    found = {}
    for number, store in enumerate(["dict", *ALL_BUT_ALIGNED]):
        (tmp_path / str(number)).mkdir()
        opened = open_store(store, tmp_path / str(number))
        found[store] = evaluate(opened, batches).found
        opened.close()
        (tmp_path / f"{number}b").mkdir()
        opened = open_store(store, tmp_path / f"{number}b")
        found[f"{store} batched"] = evaluate(opened, batches, rows=100).found
        opened.close()
    assert len(set(found.values())) == 1
    assert found["dict"] > 0


def test_aligned_windows_find_the_same_in_the_aligned_store(tmp_path):
    for name in ("tumbling-holistic", "sliding-join"):
        operator = WORKLOADS[name]()
        batches = list(Driver(operator).accesses([Source(2000), Source(2000, seed=1)]))
        expected = evaluate(open_store("dict", tmp_path), batches).found
        for rows in (None, 100):
            store = open_store("forebay-aar", tmp_path / f"{name} {rows}")
            assert evaluate(store, batches, rows=rows).found == expected > 0


def test_memory_and_disk_are_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluator, "SAMPLE_SECONDS", 0)
    store = open_store("sqlite", tmp_path)
    batches = [accesses([(PUT, 0, key, 0, 10, 1000, 0) for key in range(begin, begin + 3000)]) for begin in (0, 3000, 6000)]
    samples = evaluate(store, batches, directory=tmp_path).samples
    store.close()
    assert [sample.accesses for sample in samples] == [3000, 6000, 9000, 9000]
    assert samples[0].disk < samples[-1].disk
    assert samples[-1].disk > 4_000_000


def test_an_interrupted_run_has_what_was_done_before():
    class Interrupted(Recording):
        def delete(self, key):
            raise KeyboardInterrupt

    measured = evaluate(Interrupted(), [accesses(SOME)])
    assert measured.interrupted
    assert measured.accesses == 3


def test_a_store_that_cannot_write_is_an_error():
    class Full(Recording):
        def put(self, key, value):
            raise OSError(28, "No space left on device")

    with pytest.raises(StateDirectoryError, match=r"Full failed after 0 accesses: .*No space left"):
        evaluate(Full(), [accesses(SOME)])


def test_batches_reach_the_store_as_one_read_and_one_write():
    class Batched(Recording):
        def get_batch(self, keys):
            self.calls.append(("READ", *keys))
            return super().get_batch(keys)

        def write_batch(self, changes):
            self.calls.append(("WRITE", len(changes.puts), len(changes.merges), len(changes.deletes)))

    store = Batched()
    rows = [(GET, 0, 1, 0, 10, 0, 0), (GET, 0, 1, 0, 10, 0, 0), *SOME]
    measured = evaluate(store, [accesses(rows[:2]), accesses(rows[2:])], rows=6)
    (one,) = store.keys(accesses(rows[:1]))
    assert store.calls == [("READ", one), ("GET", one), ("WRITE", 0, 1, 1)]
    assert (measured.accesses, measured.found) == (6, 1)
    assert [(row["operation"], row["count"]) for row in measured.rows()] == [("BATCH", 1)]


def test_a_rate_that_is_reached_counts_the_waits():
    measured = evaluate(Recording(), [accesses([SOME[0]] * 21)], rate=1000.0)
    assert measured.seconds < measured.elapsed
    assert measured.reached <= 21 / 0.020


def test_batches_have_rows_and_no_rate():
    with pytest.raises(InvalidArgument, match="a batch has 0 accesses"):
        evaluate(Recording(), [accesses(SOME)], rows=0)
    with pytest.raises(InvalidArgument, match="leave out the rate"):
        evaluate(Recording(), [accesses(SOME)], rate=10.0, rows=1)
