import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import InvalidArgument
from forebay.harness import analysis
from forebay.harness.access import DELETE, GET, PUT, accesses
from forebay.harness.analysis import AccessTrace
from forebay.harness.arrivals import Poisson
from forebay.harness.distributions import Uniform, Zipfian
from forebay.harness.driver import Driver
from forebay.harness.events import Source
from forebay.harness.operators import WORKLOADS

keys = st.lists(st.integers(0, 12), min_size=1, max_size=80)


def trace(*given):
    """A trace of (operation, key) or of keys."""
    each = [(GET, one) if isinstance(one, int) else one for one in given]
    return AccessTrace.of([accesses([(operation, 0, key, 0, 0, 0, 0) for operation, key in each])])


def generated(name, source):
    return AccessTrace.of(Driver(WORKLOADS[name]()).accesses([source]))


@given(keys)
def test_stack_distances_are_positions_in_a_stack(given):
    stack, expected = [], []
    for key in given:
        if key in stack:
            expected.append(stack.index(key))
            stack.remove(key)
        stack.insert(0, key)
    assert analysis.stack_distances(trace(*given)).tolist() == expected


@given(keys)
def test_unique_sequences_are_those_of_a_set(given):
    expected = [len({tuple(given[at : at + n]) for at in range(len(given) - n + 1)}) for n in range(1, 11)]
    assert analysis.unique_sequences(trace(*given)) == expected


@given(
    st.lists(st.tuples(st.sampled_from([GET, PUT, DELETE]), st.integers(0, 6)), min_size=1, max_size=60), st.integers(1, 7)
)
def test_the_working_set_has_the_keys_between_their_first_and_last_access(given, step):
    def active(key, at):
        places = [place for place, (_, other) in enumerate(given) if other == key]
        ended = given[places[-1]][0] == DELETE and places[-1] <= at
        return places[0] <= at and not ended

    expected = [sum(active(key, at) for key in {key for _, key in given}) for at in range(step - 1, len(given), step)]
    assert analysis.working_set(trace(*given), step).tolist() == expected


def test_times_to_live_count_accesses():
    lives = trace(1, 2, 1, 3, 1)
    assert sorted(analysis.times_to_live(lives).tolist()) == [0, 0, 4]
    assert len(analysis.times_to_live(lives, sample=2)) == 2


def test_amplification_is_that_of_figure_3():
    source = Source(50_000, Poisson(1000), keys=Uniform(0, 99))
    aggregated = analysis.amplification(generated("aggregation", source), 50_000)
    assert aggregated == (2, 1)
    sliding = analysis.amplification(generated("sliding-incremental", source), 50_000)
    assert sliding.events >= 10  # five windows, two accesses each
    assert sliding.keys > 50


def test_state_keys_of_different_families_and_windows_are_different():
    rows = [(GET, 0, 1, 0, 0, 0, 0), (GET, 1, 1, 0, 0, 0, 0), (GET, 0, 1, 0, 5, 0, 0), (GET, 0, 2, 0, 0, 0, 0)]
    found = AccessTrace.of([accesses(rows)])
    assert found.count == 4
    assert found.event_keys.tolist() == [0, 0, 0, 1]


def test_generated_traces_have_locality_that_shuffling_destroys():
    found = generated("tumbling-incremental", Source(20_000, Poisson(1000), keys=Zipfian(1000)))
    shuffled = found.shuffled()
    assert analysis.composition(found) == analysis.composition(shuffled)
    assert analysis.stack_distances(found).mean() < analysis.stack_distances(shuffled).mean() / 2
    for own, other in zip(analysis.unique_sequences(found)[1:], analysis.unique_sequences(shuffled)[1:], strict=True):
        assert own < other


def test_a_trace_without_accesses_is_an_error():
    with pytest.raises(InvalidArgument, match="has no accesses"):
        AccessTrace.of([])
    with pytest.raises(InvalidArgument, match="over 0 events"):
        analysis.amplification(trace(1), 0)


def test_distances_need_scipy(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "scipy", None)
    with pytest.raises(InvalidArgument, match=r"pip install '\.\[harness\]'"):
        analysis.distance([1], [2])


def test_distances_tell_equal_streams_from_others():
    pytest.importorskip("scipy")
    one, same, other = (np.random.default_rng(seed).integers(0, high, 2000) for seed, high in ((1, 100), (2, 100), (3, 50)))
    assert analysis.distance(one, same).p_value > 0.05
    assert analysis.distance(one, other).p_value < 1e-6
    assert analysis.distance([0, 0], [3, 3]).wasserstein == 3
