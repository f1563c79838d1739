"""What the operators of a query require of its watermarks, its output mode and its partitions, and of each other."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.errors import UnsupportedConfiguration
from forebay.spark.driver.plans import redefined
from forebay.spark.driver.query import Planned
from forebay.state.layout import JOIN, VNODES, kind_of


def require_possible(mode: str, plan: str, operators: Sequence[Planned]) -> None:
    """`UnsupportedConfiguration` if the operators of a plan cannot run, or not in an output mode."""
    column = redefined(plan)
    if column is not None:
        raise UnsupportedConfiguration(
            f"the results of an operator of forebay are given another watermark, on {column}. Leave that withWatermark out: "
            "results have the watermark of what they were made of, on their window or event_time."
        )
    if mode == "Append":
        return
    for operator in operators:
        layout = operator.layout
        if operator.chained:
            raise UnsupportedConfiguration(
                f"outputMode({mode.lower()!r}) is not possible for an operator over the results of another one, which would "
                'take every update for one more row. Use outputMode("append").'
            )
        changing = layout["pattern"] == "RMW" and kind_of(layout) == "window" and "firing" not in layout
        if mode != "Update" or not changing:
            windowed = kind_of(layout) in ("window", "session_window", "custom_window")
            joined = any(text.startswith(JOIN) for text in layout["aggregates"])
            aggregates = "" if joined else f": {', '.join(layout['aggregates'])}"
            early = (
                " Medians and percentiles can be such with counted=True; and in append mode firing(every=...) gives results "
                "before a window ends."
            )
            raise UnsupportedConfiguration(
                f"outputMode({mode.lower()!r}) is not possible for {layout['window']}{aggregates}. Use "
                'outputMode("append"). Update mode is for tumbling and sliding windows with incremental aggregates.'
                f"{early if windowed and not joined else ''}"
            )


def require_even(operators: Sequence[Planned], partitions: int) -> None:
    """`UnsupportedConfiguration` if virtual nodes do not fill the state partitions evenly."""
    for layout in (operator.layout for operator in operators):
        if VNODES in layout and layout[VNODES] % partitions:
            raise UnsupportedConfiguration(
                f"spark.forebay.virtualNodes is {layout[VNODES]} and the query has {partitions} state partitions, some of "
                "which would have more virtual nodes than others. Set spark.sql.shuffle.partitions to a power of two of at "
                f"most {layout[VNODES]}, or leave virtualNodes unset; and name a new checkpoint location, for this one will "
                f"keep {partitions} state partitions."
            )


def require_one_place(operators: Sequence[Planned]) -> None:
    """`UnsupportedConfiguration` if operators of a query would keep their state in different places."""
    places = list(dict.fromkeys(operator.place for operator in operators))
    if len(places) > 1:
        raise UnsupportedConfiguration(
            f"operators of the query keep their state in different places, {places[0]} and {places[1]}: settings of forebay "
            "have changed between them. Set stateDirectory, localDirectory, durability and replicas before the first "
            "operator is made, and leave them alone until the last one is."
        )
