import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from forebay.errors import InvalidArgument
from forebay.nexmark import NexmarkConfig, generate

BIDS = NexmarkConfig(type="bid")


@pytest.mark.parametrize("kind", ["event", "person", "auction", "bid"])
@pytest.mark.parametrize("delays", [{}, {"out_of_order_group_size": 100, "prob_delayed_event": 0.1}])
def test_an_event_does_not_depend_on_the_range_it_is_made_in(kind, delays):
    config = NexmarkConfig(type=kind, **delays)
    whole = generate(config, 1_000, 3_000)
    parts = pa.Table.from_batches([generate(config, begin, begin + 100) for begin in range(1_000, 3_000, 100)])
    assert parts.combine_chunks().to_batches()[0].equals(whole)


def test_proportions_of_kinds():
    events = generate(NexmarkConfig(), 0, 5_000)
    kinds = [events[kind].is_valid() for kind in ("person", "auction", "bid")]
    assert [pc.sum(valid).as_py() for valid in kinds] == [100, 300, 4_600]


def test_kinds_alone_are_the_same_events():
    events = generate(NexmarkConfig(), 0, 5_000)
    for kind in ("person", "auction", "bid"):
        alone = generate(NexmarkConfig(type=kind), 0, 5_000)
        assert events[kind].drop_null().to_pylist() == alone.to_pylist()


def test_ids_are_consecutive():
    for kind in ("person", "auction"):
        ids = generate(NexmarkConfig(type=kind), 0, 5_000)["id"].to_pylist()
        assert ids == list(range(1_000, 1_000 + len(ids)))


def test_event_times_follow_the_rate():
    times = generate(BIDS, 0, 50)["dateTime"].cast(pa.int64()).to_numpy()
    assert (times == BIDS.start + np.arange(4, 50) * 100).all()


def test_hot_bidders_and_auctions():
    bids = generate(BIDS, 500_000, 505_000)  # within 100 persons: 10,000 have come before
    share = pc.mean(pc.equal(bids["bidder"], 1_000 + 10_000 + 1).cast(pa.int64())).as_py()
    assert share == pytest.approx(3 / 4, abs=0.02)
    ids = bids["auction"].to_numpy() - 1_000
    assert np.mean(ids % 100 == 0) == pytest.approx(1 / 2 + 1 / 2 / 100, abs=0.02)


def test_other_bidders_are_active_ones_and_a_few_to_come():
    bids = generate(NexmarkConfig(type="bid", hot_bidders_ratio=1), 500_000, 500_050)
    ids = bids["bidder"].to_numpy() - 1_000
    assert ids.min() > 10_000 - 1_000 and ids.max() <= 10_000 + 10
    assert len(np.unique(ids)) > 40


@pytest.mark.parametrize(
    ("kind", "average", "fixed"), [("person", 200, 0), ("auction", 500, 0), ("bid", 100, 32), ("bid", 84, 32)]
)
def test_sizes_are_within_a_fifth_of_what_is_padded(kind, average, fixed):
    batch = generate(NexmarkConfig(type=kind, **{f"avg_{kind}_byte_size": average}), 0, 50_000)
    text = sum(pc.binary_length(c).to_numpy() for c in batch.columns if pa.types.is_string(c.type))
    numbers = 8 * sum(not pa.types.is_string(column.type) for column in batch.columns)
    assert np.mean(text) + numbers == pytest.approx(average, rel=0.05)
    if fixed:
        assert np.abs(text - (average - fixed)).max() <= round((average - fixed) * 0.2)


def test_prices_are_between_1_and_a_million_dollars_on_a_logarithmic_scale():
    prices = generate(BIDS, 0, 50_000)["price"].to_numpy()
    assert prices.min() >= 100 and prices.max() <= 100_000_000
    assert np.median(np.log10(prices)) == pytest.approx(5, abs=0.05)


def test_shuffled_groups_have_the_same_events():
    shuffled = generate(NexmarkConfig(type="bid", out_of_order_group_size=50), 0, 5_000)
    assert shuffled.to_pylist() != generate(BIDS, 0, 5_000).to_pylist()
    assert sorted(map(str, shuffled.to_pylist())) == sorted(map(str, generate(BIDS, 0, 5_000).to_pylist()))


def test_delays_of_hours():
    """More than 32 bits of microseconds."""
    late = generate(NexmarkConfig(type="bid", prob_delayed_event=1.0, occasional_delay_sec=10_000), 0, 10_000)
    plain = generate(NexmarkConfig(type="bid"), 0, 10_000)
    by = [(at - then).total_seconds() for at, then in zip(*(b["dateTime"].to_pylist() for b in (plain, late)), strict=True)]
    assert min(by) >= 0
    assert 4900 < sum(by) / len(by) < 5100
    assert 9900 < max(by) < 10_000


def test_delays_change_times_alone():
    delayed = generate(NexmarkConfig(type="bid", prob_delayed_event=0.1, occasional_delay_sec=3), 0, 50_000)
    plain = generate(BIDS, 0, 50_000)
    assert delayed.drop_columns(["dateTime"]).equals(plain.drop_columns(["dateTime"]))
    late = plain["dateTime"].cast(pa.int64()).to_numpy() - delayed["dateTime"].cast(pa.int64()).to_numpy()
    assert np.mean(late > 0) == pytest.approx(0.1, abs=0.01)
    assert late.min() == 0 and 2_900_000 < late.max() < 3_000_000


def test_another_seed_gives_other_events():
    assert not generate(NexmarkConfig(type="bid", seed=1), 0, 100).equals(generate(BIDS, 0, 100))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "bids"}, "type is 'bids'; it must be one of event, person, auction, bid"),
        ({"rate": "0"}, "rate is 0; it must be at least 1"),
        ({"rate": "many"}, "rate is 'many'; it must be a whole number"),
        ({"probDelayedEvent": "2"}, "probDelayedEvent is 2.0; it must be between 0 and 1"),
        ({"outOfOrderGroupSize": "953"}, "outOfOrderGroupSize must not be a multiple of 953"),
        ({"numActivePeople": "0"}, "numActivePeople is 0; it must be at least 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InvalidArgument, match=message):
        NexmarkConfig.of(options)
