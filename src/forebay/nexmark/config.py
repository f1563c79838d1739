"""What the NEXMark generator can be told, with the values that Beam has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from forebay.errors import InvalidArgument

TYPES = ("event", "person", "auction", "bid")
"""What rows can be: all events, each with its kind in structs, or those of one kind, flat."""


@dataclass(frozen=True)
class NexmarkConfig:
    """Parameters of the generator. Every event is a function of these and of its number alone.

    Attributes
    ----------
    type : str
        ``"event"``: all events, each in the struct of its kind. ``"person"``, ``"auction"``, ``"bid"``: only those.
    events : int
        How many events there are, of all kinds; 0 for no end. Of 50 events 1 is a person, 3 are auctions, 46 are bids.
    rate : int
        Events per second of event time.
    start : int
        Event time of the first event, in microseconds since 1970.
    avg_person_byte_size, avg_auction_byte_size, avg_bid_byte_size : int
        Mean size of an event; ``extra`` pads it, by up to 20% more or less. FlowKV's runs have 16, 16 and 84.
    hot_auction_ratio, hot_bidders_ratio, hot_sellers_ratio : int
        A bid is for the hot auction with probability 1 - 1/ratio, and so on. There is a new hot one for every 100 ids.
    num_in_flight_auctions, num_active_people : int
        How many of the newest auctions and people the other bids and auctions choose from.
    out_of_order_group_size : int
        Events are shuffled within groups of so many.
    prob_delayed_event : float
        The share of events whose event time is up to ``occasional_delay_sec`` before that of their neighbours.
    occasional_delay_sec : float
        Seconds.
    seed : int
        Another seed gives other events.
    """

    type: str = "event"
    events: int = 0
    rate: int = 10_000
    start: int = 1_704_067_200_000_000
    avg_person_byte_size: int = 200
    avg_auction_byte_size: int = 500
    avg_bid_byte_size: int = 100
    hot_auction_ratio: int = 2
    hot_bidders_ratio: int = 4
    hot_sellers_ratio: int = 4
    num_in_flight_auctions: int = 100
    num_active_people: int = 1000
    out_of_order_group_size: int = 1
    prob_delayed_event: float = 0.0
    occasional_delay_sec: float = 3.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.type not in TYPES:
            raise InvalidArgument(f"nexmark: type is {self.type!r}; it must be one of {', '.join(TYPES)}")
        if not 0 <= self.prob_delayed_event <= 1:
            raise InvalidArgument(f"nexmark: probDelayedEvent is {self.prob_delayed_event}; it must be between 0 and 1")
        if self.out_of_order_group_size % 953 == 0:  # by which events are shuffled
            raise InvalidArgument("nexmark: outOfOrderGroupSize must not be a multiple of 953")
        least_one = ("rate", "hot_auction_ratio", "hot_bidders_ratio", "hot_sellers_ratio", "out_of_order_group_size")
        for field in fields(self):
            value, least = getattr(self, field.name), int(field.name in (*least_one, "num_active_people"))
            if field.name not in ("type", "seed") and value < least:
                raise InvalidArgument(f"nexmark: {camel(field.name)} is {value}; it must be at least {least}")

    @classmethod
    def of(cls, options: Mapping[str, str]) -> NexmarkConfig:
        """The configuration that a data source's options, named as the attributes in camelCase, give.

        Examples
        --------
        >>> NexmarkConfig.of({"avgBidByteSize": "84", "rate": "1000"}).avg_bid_byte_size
        84
        """
        given = {name.lower(): text for name, text in options.items()}
        values: dict[str, int | float | str] = {}
        for field in fields(cls):
            text = given.get(camel(field.name).lower())
            if text is None:
                continue
            try:
                values[field.name] = {"int": int, "float": float}.get(str(field.type), str)(text)
            except ValueError:
                kind = "whole number" if field.type == "int" else "number"
                raise InvalidArgument(f"nexmark: {camel(field.name)} is {text!r}; it must be a {kind}") from None
        return cls(**values)  # type: ignore[arg-type]  # each was made by its field's type


def camel(name: str) -> str:
    """The name of an option for the name of an attribute.

    Examples
    --------
    >>> camel("avg_bid_byte_size")
    'avgBidByteSize'
    """
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)
