"""The events of NEXMark as Arrow batches: what Beam's generator draws, on whole columns.

A random number is a hash of an event's number and of what it is drawn for. So any range of events can be made anywhere, and
again, and is the same. Strings are drawn from pools that depend on the configuration alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.nexmark.config import NexmarkConfig

PERSONS, AUCTIONS, CYCLE = 1, 3, 50
"""Of each cycle of events, how many are persons and auctions, in this order; bids follow."""

FIRST_ID, FIRST_CATEGORY, CATEGORIES, ID_LEAD, HOT_BLOCK = 1000, 10, 5, 10, 100
POOL = 1 << 12

_TIME = pa.timestamp("us", "UTC")
_PERSON = [("id", pa.int64()), ("name", pa.string()), ("emailAddress", pa.string()), ("creditCard", pa.string())]
_PERSON += [("city", pa.string()), ("state", pa.string()), ("dateTime", _TIME), ("extra", pa.string())]
_AUCTION = [("id", pa.int64()), ("itemName", pa.string()), ("description", pa.string()), ("initialBid", pa.int64())]
_AUCTION += [("reserve", pa.int64()), ("dateTime", _TIME), ("expires", _TIME), ("seller", pa.int64())]
_AUCTION += [("category", pa.int64()), ("extra", pa.string())]
_BID = [("auction", pa.int64()), ("bidder", pa.int64()), ("price", pa.int64()), ("dateTime", _TIME), ("extra", pa.string())]
SCHEMAS = {"person": pa.schema(_PERSON), "auction": pa.schema(_AUCTION), "bid": pa.schema(_BID)}
SCHEMAS["event"] = pa.schema([("dateTime", _TIME), *((kind, pa.struct(list(SCHEMAS[kind]))) for kind in SCHEMAS)])

Numbers = npt.NDArray[np.int64]


def generate(config: NexmarkConfig, begin: int, end: int) -> pa.RecordBatch:
    """The events with numbers from ``begin`` to before ``end``, in the order in which they arrive.

    Parameters
    ----------
    config : NexmarkConfig
        The configuration; ``config.type`` says which events become rows.
    begin, end : int
        Numbers of events, all kinds counted.

    Returns
    -------
    pyarrow.RecordBatch
        Rows of ``SCHEMAS[config.type]``.

    Examples
    --------
    >>> generate(NexmarkConfig(type="bid"), 0, 50).num_rows
    46
    >>> generate(NexmarkConfig(), 0, 2)["auction"].to_pylist()[1]["seller"]
    1000
    """
    number = _shuffled(np.arange(begin, end, dtype=np.int64), config)
    place = number % CYCLE
    if config.type != "event":
        return _MAKERS[config.type](_Draws(config, number[_IS[config.type](place)]))
    columns: list[pa.Array] = [_Draws(config, number).time]
    for kind, make in _MAKERS.items():
        rows = _IS[kind](place)
        made = make(_Draws(config, number[rows]))
        where = pa.array(np.cumsum(rows) - 1, mask=~rows)
        fields = [column.take(where) for column in made.columns]
        columns.append(pa.StructArray.from_arrays(fields, fields=list(made.schema), mask=pa.array(~rows)))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS["event"])


class _Draws:
    """Random numbers of some events, each drawn for a purpose that has a number of its own within an event."""

    def __init__(self, config: NexmarkConfig, number: Numbers) -> None:
        self.config, self.number = config, number
        self._state = number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
            config.seed * 0xD1B54A32D192ED03 % 2**64
        )
        self._purpose = 0

    def bits(self) -> npt.NDArray[np.uint64]:
        """64 random bits per event, others at each call (SplitMix64)."""
        self._purpose += 1
        mixed = self._state + np.uint64(self._purpose * 0xBF58476D1CE4E5B9 % 2**64)
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(27)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        return mixed

    def below(self, limit: int | Numbers) -> Numbers:
        """Whole numbers from 0 to before ``limit``."""
        below: Numbers
        if isinstance(limit, int) and limit >= 1 << 32:
            below = (self.share() * limit).astype(np.int64)
            return below
        scaled: npt.NDArray[np.uint64] = (self.bits() >> np.uint64(32)) * np.asarray(limit).astype(np.uint64)
        below = (scaled >> np.uint64(32)).astype(np.int64)
        return below

    def share(self) -> npt.NDArray[np.float64]:
        """Numbers in [0, 1)."""
        return (self.bits() >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def price(self) -> Numbers:
        price: Numbers = np.round(np.exp(self.share() * (6 * np.log(10.0))) * 100).astype(np.int64)
        return price

    def one_of(self, pool: pa.Array) -> pa.Array:
        return pool.take(pa.array(self.below(len(pool))))

    @property
    def last_person(self) -> Numbers:
        """Counted from 0; that of the event itself if it is a person."""
        epoch, place = np.divmod(self.number, CYCLE)
        return epoch * PERSONS + np.minimum(place, PERSONS - 1)

    @property
    def last_auction(self) -> Numbers:
        """Counted from 0; -1 before the first."""
        epoch, place = np.divmod(self.number, CYCLE)
        last: Numbers = epoch * AUCTIONS + np.clip(place - PERSONS, -1, AUCTIONS - 1)
        return last

    def some_person(self, hot_ratio: int, hot: int) -> Numbers:
        """Ids: the ``hot`` one of the last block of people, or any of the active and of those who come next."""
        last = self.last_person
        active = np.minimum(last + 1, self.config.num_active_people)
        is_hot = self.below(hot_ratio) > 0
        other = last + 1 - active + self.below(active + ID_LEAD)
        return FIRST_ID + np.where(is_hot, last // HOT_BLOCK * HOT_BLOCK + hot, other)

    def some_auction(self) -> Numbers:
        last = self.last_auction
        least = np.maximum(last - self.config.num_in_flight_auctions, 0)
        is_hot = self.below(self.config.hot_auction_ratio) > 0
        other = least + self.below(last - least + 1 + ID_LEAD)
        return FIRST_ID + np.where(is_hot, last // HOT_BLOCK * HOT_BLOCK, other)

    @property
    def time(self) -> pa.Array:
        """Event times. Delays are drawn for purposes of their own, so that asking again gives the same."""
        config = self.config
        micros = config.start + self.number * 1_000_000 // config.rate
        if config.prob_delayed_event:
            draws = _Draws(config, self.number)
            draws._purpose = 100
            delayed = draws.share() < config.prob_delayed_event
            micros = micros - np.where(delayed, draws.below(int(config.occasional_delay_sec * 1_000_000)), 0)
        return pa.array(micros, _TIME)

    def padding(self, size: int, average: int) -> pa.Array:
        """Padding for events that have ``size`` bytes without it."""
        return self.one_of(_padding(max(average - size, 0)))


def _person(draws: _Draws) -> pa.RecordBatch:
    columns = [pa.array(draws.last_person + FIRST_ID)]
    columns += [draws.one_of(pool()) for pool in (_names, _emails, _credit_cards, _cities, _states)]
    extra = draws.padding(8 + 12 + 17 + 19 + 8 + 2, draws.config.avg_person_byte_size)
    return pa.RecordBatch.from_arrays([*columns, draws.time, extra], schema=SCHEMAS["person"])


def _auction(draws: _Draws) -> pa.RecordBatch:
    config = draws.config
    seller = draws.some_person(config.hot_sellers_ratio, 0)
    category, initial = FIRST_CATEGORY + draws.below(CATEGORIES), draws.price()
    ahead = config.num_in_flight_auctions * CYCLE // AUCTIONS * 1_000_000 // config.rate
    expires = draws.time.cast(pa.int64()).to_numpy() + 1000 + draws.below(max(2 * ahead, 1))
    columns = [
        pa.array(draws.last_auction + FIRST_ID),
        draws.one_of(_strings(20)),
        draws.one_of(_strings(100)),
        pa.array(initial),
        pa.array(initial + draws.price()),
        draws.time,
        pa.array(expires, _TIME),
        pa.array(seller),
        pa.array(category),
    ]
    extra = draws.padding(8 * 6 + 12 + 52, config.avg_auction_byte_size)
    return pa.RecordBatch.from_arrays([*columns, extra], schema=SCHEMAS["auction"])


def _bid(draws: _Draws) -> pa.RecordBatch:
    config = draws.config
    numbers = [draws.some_auction(), draws.some_person(config.hot_bidders_ratio, 1), draws.price()]
    columns = [*map(pa.array, numbers), draws.time, draws.padding(8 * 4, config.avg_bid_byte_size)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS["bid"])


_MAKERS: dict[str, Callable[[_Draws], pa.RecordBatch]] = {"person": _person, "auction": _auction, "bid": _bid}
_IS: dict[str, Callable[[Numbers], npt.NDArray[np.bool_]]] = {
    "person": lambda place: place < PERSONS,
    "auction": lambda place: (place >= PERSONS) & (place < PERSONS + AUCTIONS),
    "bid": lambda place: place >= PERSONS + AUCTIONS,
}


def _shuffled(number: Numbers, config: NexmarkConfig) -> Numbers:
    """The number of the event that arrives at each position."""
    group = config.out_of_order_group_size
    return number // group * group + number * 953 % group


@functools.cache
def _padding(size: int) -> pa.Array:
    """Strings of ``size`` letters, up to 20% more or less."""
    spread = round(size * 0.2)
    return _pool(size - spread, size + spread)


@functools.cache
def _strings(most: int) -> pa.Array:
    """Strings of 3 to ``most`` letters."""
    return _pool(3, most)


def _pool(least: int, most: int) -> pa.Array:
    random = np.random.default_rng([least, most])
    lengths = random.integers(least, most + 1, POOL)
    letters = random.integers(97, 123, (POOL, most), dtype=np.uint8)
    return pa.array([row[:length].tobytes().decode() for row, length in zip(letters, lengths, strict=True)], pa.string())


@functools.cache
def _names() -> pa.Array:
    firsts = "Ada", "Alan", "Barbara", "Dennis", "Donald", "Edgar", "Frances", "Grace", "Ken", "Leslie", "Tony"
    lasts = "Allen", "Codd", "Hoare", "Hopper", "Knuth", "Lamport"
    return pa.array([f"{first} {last}" for first in firsts for last in lasts])


@functools.cache
def _emails() -> pa.Array:
    users, hosts = _pool(7, 7).to_pylist(), _pool(5, 5).to_pylist()
    return pa.array([f"{user}@{host}.com" for user, host in zip(users, hosts, strict=True)])


@functools.cache
def _credit_cards() -> pa.Array:
    digits = np.random.default_rng(16).integers(0, 10_000, (POOL, 4))
    return pa.array([" ".join(f"{group:04}" for group in card) for card in digits])


@functools.cache
def _cities() -> pa.Array:
    return pa.array(
        ["Bend", "Boise", "Cheyenne", "Kent", "Los Angeles", "Phoenix", "Portland", "Redmond", "San Francisco", "Seattle"]
    )


@functools.cache
def _states() -> pa.Array:
    return pa.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
