import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import InvalidArgument
from forebay.harness import distributions, events
from forebay.harness.arrivals import Bursty, ConstantRate, Poisson
from forebay.harness.distributions import (
    Constant,
    Ecdf,
    Exponential,
    Hotspot,
    Latest,
    Normal,
    Sequential,
    Uniform,
    Zipfian,
    draw,
)
from forebay.harness.durations import SECOND, microseconds
from forebay.harness.events import END, Source, Watermarks, merged

ALL = [
    Constant(7),
    Uniform(3, 12),
    Normal(20, 6),
    Ecdf((1, 4, 9), (0.2, 0.3, 1)),
    Zipfian(50, 1.3),
    Hotspot(50),
    Sequential(50),
    Exponential(50),
    Latest(50),
]


def all_of(source):
    return events.Events.joined(list(source.blocks()))


@pytest.mark.parametrize("distribution", ALL, ids=lambda each: type(each).__name__)
def test_a_seed_gives_the_same_numbers_again(distribution):
    assert draw(distribution, 1000, seed=3).tolist() == draw(distribution, 1000, seed=3).tolist()
    assert draw(distribution, 1000).min() >= 0
    assert len(draw(distribution, 0)) == 0


@pytest.mark.parametrize("exponent", [0.5, 0.99, 1.0, 1.5, 3.0])
def test_zipfian_keys_have_the_shares_that_the_formula_gives(exponent):
    weights = np.arange(1, 21) ** -exponent
    counts = np.bincount(draw(Zipfian(20, exponent), 200_000), minlength=20) / 200_000
    assert np.abs(counts - weights / weights.sum()).max() < 0.005


def test_an_ecdf_has_the_shares_of_its_sample():
    sample = [3] * 50 + [8] * 30 + [100] * 20
    drawn = draw(Ecdf.of(sample), 100_000)
    assert [round((drawn == value).mean(), 2) for value in (3, 8, 100)] == [0.5, 0.3, 0.2]


def test_the_latest_keys_are_the_most_frequent():
    drawn = draw(Latest(1000, fresh=0.1), 50_000)
    assert abs(drawn.max() - 6000) < 400
    assert np.median(drawn[-1000:]) > drawn.max() - 300


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(5, 3), "low is 5 and high is 3"),
        (lambda: Normal(-1, 2), "mean is -1"),
        (lambda: Normal(1, float("inf")), "deviation is inf"),
        (lambda: Zipfian(0), "zipfian: keys is 0"),
        (lambda: Zipfian(10, 0), "exponent is 0"),
        (lambda: Hotspot(10, hot_share=2), "hot_share is 2"),
        (lambda: Ecdf((1, 2), (0.5, 0.7)), "last share is 0.7"),
        (lambda: Ecdf((2, 1), (0.5, 1)), "must rise"),
        (lambda: Poisson(-1), "rate is -1"),
        (lambda: Bursty(10, 0, 1), "burst is 0"),
        (lambda: Watermarks(), "either after how many events"),
        (lambda: Source(1, late=0.1), "late events need one above 0"),
        (lambda: Source(1, final=1.5), "final is 1.5"),
        (lambda: microseconds("5 parsecs"), "'5 parsecs' is not a duration"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()


@pytest.mark.parametrize("arrivals", [ConstantRate(500), Poisson(500), Bursty(500, SECOND, 2 * SECOND)])
def test_arrivals_rise_and_keep_their_rate(arrivals):
    sampler = arrivals.sampler(np.random.default_rng(1))
    instants = np.concatenate([sampler(5000) for _ in range(80)])
    assert (np.diff(instants) >= 0).all()
    assert 400 < len(instants) / (instants[-1] / SECOND) < 600


@pytest.mark.parametrize("arrivals", [ConstantRate(500), Poisson(500), Bursty(500, SECOND, 2 * SECOND)])
def test_arrivals_are_the_same_in_blocks_of_any_length(arrivals):
    one, other = (arrivals.sampler(np.random.default_rng(1)) for _ in range(2))
    assert one(3000).tolist() == [*other(1), *other(999), *other(0), *other(2000)]


def test_bursts_have_pauses_between_them():
    gaps = np.diff(Bursty(1000, SECOND, 9 * SECOND).sampler(np.random.default_rng(2))(50_000))
    assert np.median(gaps) < 200
    assert gaps.max() > 5 * SECOND


def test_late_events_have_their_share_and_bound():
    block = all_of(Source(100_000, late=0.02, bound=3 * SECOND, start=SECOND))
    late = block.arrival - block.time
    assert 0.018 < (late > 0).mean() < 0.022
    assert late.min() == 0
    assert 2.9 * SECOND < late.max() <= 3 * SECOND


@given(every=st.integers(1, 50), delay=st.integers(0, 100), cut=st.integers(0, 200), late=st.booleans())
def test_a_watermark_is_the_latest_time_less_the_delay(every, delay, cut, late):
    block = all_of(Source(200, late=0.3 if late else 0, bound=5000))
    follow = Watermarks(events=every, delay=delay).follower()
    parts = [slice(0, cut), slice(cut, None)]
    watermarks = np.concatenate([follow(block.time[part], block.arrival[part]) for part in parts])
    for number, watermark in enumerate(watermarks):
        sent = (number + 1) // every * every
        assert watermark == (block.time[:sent].max() - delay if sent else events.BEGINNING)


@given(every=st.integers(1, 50), cut=st.integers(0, 200), late=st.booleans())
def test_a_watermark_that_is_behind_is_the_one_before(every, cut, late):
    block = all_of(Source(200, late=0.3 if late else 0, bound=5000))
    at_once, behind = (Watermarks(events=every, delay=7, behind=each).follower() for each in (False, True))
    now = at_once(block.time, block.arrival)
    parts = [slice(0, cut), slice(cut, None)]
    found = np.concatenate([behind(block.time[part], block.arrival[part]) for part in parts])
    assert found[every:].tolist() == now[:-every].tolist()
    assert (found[:every] == events.BEGINNING).all()


@given(interval=st.integers(1, 5000), cut=st.integers(0, 200))
def test_a_watermark_comes_once_in_an_interval(interval, cut):
    block = all_of(Source(200))
    follow = Watermarks(interval=interval).follower()
    parts = [slice(0, cut), slice(cut, None)]
    watermarks = np.concatenate([follow(block.time[part], block.arrival[part]) for part in parts])
    period = (block.arrival - block.arrival[0]) // interval
    for number in range(1, 200):
        moved = period[number] > period[number - 1]
        assert watermarks[number] == (block.time[: number + 1].max() if moved else watermarks[number - 1])


def test_blocks_are_bounded_and_equal_for_equal_seeds():
    source = Source(200_000, keys=Zipfian(1000), seed=9)
    blocks = list(source.blocks())
    assert max(map(len, blocks)) <= events.BLOCK
    again = all_of(source)
    assert again.batch() == events.Events.joined(blocks).batch()
    assert again.batch() != all_of(Source(200_000, keys=Zipfian(1000), seed=10)).batch()
    assert (np.diff(again.arrival) >= 0).all()


def test_sources_are_merged_by_arrival():
    sources = [Source(150_000, Poisson(100), seed=1), Source(3000, Poisson(20), sizes=Constant(99), seed=2)]
    whole = events.Events.joined(list(merged(sources)))
    assert (np.diff(whole.arrival) >= 0).all()
    for number, source in enumerate(sources):
        own, mine = all_of(source), whole.part(whole.side == number)
        assert own.time.tolist() == mine.time.tolist()
        assert own.size.tolist() == mine.size.tolist()


def test_the_lowest_watermark_counts_until_its_source_ends():
    fast, slow = Source(1000, ConstantRate(100), watermarks=Watermarks(events=1)), Source(2, ConstantRate(1), seed=2)
    whole = events.Events.joined(list(merged([fast, slow])))
    slow_ended = np.flatnonzero(whole.side == 1)[-1]
    assert (whole.watermark[:slow_ended] == events.BEGINNING).all()  # slow has sent none
    assert whole.watermark[-1] == whole.time[-1] < END


def test_distributions_are_all_tried():
    public = {name for name, each in vars(distributions).items() if isinstance(each, type) and hasattr(each, "sampler")}
    assert {type(each).__name__ for each in ALL} == public - {"Distribution"}
