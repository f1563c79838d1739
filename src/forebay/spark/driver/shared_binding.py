"""Binding of patterns that share events: each as `forebay.spark.driver.binding` binds it alone, and one operator of all."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.access_patterns import Choice, Pattern
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.functions import Aggregate, Apply, Condition
from forebay.engine.plan import Member, WindowPlan, before_keys
from forebay.errors import InvalidArgument
from forebay.spark.driver.analysis import analysis, arrow_schema, require_alike, require_one_value
from forebay.spark.driver.assignments import SessionWindow, Window
from forebay.spark.driver.binding import NOTHING, bind_call
from forebay.spark.driver.columns import column_of, folding, text_of
from forebay.spark.driver.conf import Conf
from forebay.spark.driver.durations import as_text, fixed_microseconds
from forebay.spark.driver.inputs import Inputs
from forebay.spark.driver.planner import BoundOperator, Call, Windowing, planned
from forebay.spark.driver.shared_results import SharedResults, shared_results
from forebay.state.layout import FURTHER_KEY, key_names
from forebay.windows import END, TIME, SharedWindows, bound_of


@dataclass(frozen=True)
class Asked:
    """A pattern as a user has asked for it.

    ``conditions`` are those of its results, ``keys`` those that it has beside the common ones.
    """

    name: str
    window: Window
    aggregates: tuple[Aggregate | Apply, ...]
    conditions: tuple[Condition, ...] = ()
    keys: tuple[Column | str, ...] = ()


def bind_patterns(
    df: DataFrame, keys: Sequence[Column | str], asked: Sequence[Asked], conf: Conf
) -> tuple[BoundOperator, SharedResults]:
    """One operator of several patterns, and its results; an error of ours for what could not run."""
    inputs = Inputs(df)
    names = key_names(len(keys))
    columns, more = _further_keys(df, asked)
    with analysis():
        require_one_value(df, [*map(column_of, keys), *columns.values()])
    calls = []
    for each, own in zip(asked, more, strict=True):
        calls.append(bind_call(df, each.window, (*keys, *each.keys), (*names, *own), each.aggregates, inputs))
    time, text = _time_of(df, asked, calls)
    packed = [*(column.alias(name) for name, column in columns.items()), *inputs.columns]
    if not keys and not packed:
        packed = [F.lit(True).alias(NOTHING)]
    results = shared_results(
        calls[0].schema.fields[_first(calls[0]) :][: len(keys)],
        {each.name: _own(call, len(keys)) for each, call in zip(asked, calls, strict=True)},
        folding(df.sparkSession),
    )
    told = [_told(each.name, call) for each, call in zip(asked, calls, strict=True)]
    call = Call(
        windowing=Windowing(SharedWindows(), "patterns", f"patterns({text})"),
        keys=calls[0].keys[: len(keys)],
        times={TIME: time, **_ends_of_sessions(asked, time)},
        packed=packed,
        aggregation=Aggregation((), ()),
        reads={
            f"{line}: {aggregate}": {**read, **kinds}
            for line, call, kinds in zip(told, calls, _kinds_of(calls, more), strict=True)
            for aggregate, read in call.reads.items()
        },
        schema=results.given,
        choice=_choice(told, calls),
    )
    bound = planned(df, conf, call)
    members = tuple(
        _member(df.sparkSession, each, call, bound.plan, (*names, *own), len(keys), places)
        for each, call, own, places in zip(asked, calls, more, results.places, strict=True)
    )
    return replace(bound, plan=replace(bound.plan, keys=(*names, *columns), members=members)), results


def _further_keys(df: DataFrame, asked: Sequence[Asked]) -> tuple[dict[str, Column], list[list[str]]]:
    """The keys that patterns have beside the common ones, each expression once, by their names; and the names by pattern.

    Names follow from the text alone: stored events keep their columns when patterns come and go.
    """
    keys = [key for each in asked for key in each.keys]
    columns, texts = list(map(column_of, keys)), list(map(text_of, keys))
    require_alike(df, "keys of patterns", texts, columns)
    names = [f"{FURTHER_KEY}{hashlib.sha256(text.encode()).hexdigest()[:10]}" for text in texts]
    of_each = iter(names)
    return dict(zip(names, columns, strict=True)), [[next(of_each) for _ in each.keys] for each in asked]


def _kinds_of(calls: Sequence[Call], more: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """The types of the keys that each pattern has beside the common ones."""
    kinds = [[key.kind.simpleString() for key in call.keys] for call in calls]
    return [dict(zip(own, each[len(each) - len(own) :], strict=True)) for own, each in zip(more, kinds, strict=True)]


def _first(call: Call) -> int:
    """The place of the first key in a pattern's results."""
    return before_keys(call.windowing.windows)


def _own(call: Call, shared_keys: int) -> list[T.StructField]:
    """The columns that only a pattern's results have: those before its keys, its other keys, its aggregates."""
    fields, first = call.schema.fields, _first(call)
    return [*fields[:first], *fields[first + shared_keys :]]


def _time_of(df: DataFrame, asked: Sequence[Asked], calls: Sequence[Call]) -> tuple[Column, str]:
    """The time of events, and what it is called: that of the windows over event time, which must be one."""
    timed = [call.times[TIME] for each, call in zip(asked, calls, strict=True) if each.window.in_event_time]
    texts = [text_of(time) for time in timed]
    require_alike(df, "times of patterns", texts, timed)
    times = dict(zip(texts, timed, strict=True))
    if len(times) > 1:
        raise InvalidArgument(
            f"the patterns are over the time columns {' and '.join(sorted(times))}; patterns that share events need one. "
            "Make a second fb.patterns for the others."
        )
    if times:
        return next((column, text) for text, column in times.items())
    return calls[0].times[TIME], "arrival"


def _ends_of_sessions(asked: Sequence[Asked], time: Column) -> dict[str, Column]:
    """When the session that an event begins ends, for each pattern of sessions, as a column that pack reads.

    Spark adds the gap, as it does for `fb.groupBy`: a day has 23 hours where the clocks of the session's time zone change.
    """
    ends = {}
    for position, each in enumerate(asked):
        if isinstance(each.window, SessionWindow):
            assert not isinstance(each.window.gap_duration, Column)
            ends[bound_of(END, position)] = time + F.lit(as_text(each.window.gap_duration)).cast("interval")
    return ends


def _member(
    session: SparkSession,
    asked: Asked,
    call: Call,
    whole: WindowPlan,
    keys: tuple[str, ...],
    shared_keys: int,
    places: tuple[int, ...],
) -> Member:
    """A pattern as a part of the plan of all."""
    read = dict.fromkeys((*keys, *(name for names in call.reads.values() for name in names)))
    columns = list(read) or whole.packed.names[:1]  # rows without columns would be none
    plan = WindowPlan(
        call.windowing.windows,
        pa.schema([whole.packed.field(name) for name in columns]),
        keys,
        call.aggregation,
        call.choice.pattern,
        arrow_schema(call.schema),
        whole.options,
    )
    alike = [call.windowing.text, *(f"{key.text} {key.kind.simpleString()}" for key in call.keys), call.choice.pattern.name]
    if call.choice.pattern is Pattern.RMW:
        alike += sorted(call.reads)
    digest = hashlib.sha256("\n".join(alike).encode()).hexdigest()[:12]
    gap = None
    if isinstance(asked.window, SessionWindow):
        assert not isinstance(asked.window.gap_duration, Column)
        gap = fixed_microseconds(session, "gapDuration", asked.window.gap_duration)
    return Member(asked.name, f"{asked.name}-{digest}", plan, shared_keys, places, gap)


def _told(name: str, call: Call) -> str:
    by = ", ".join(key.text for key in call.keys)
    return f"{name}, {call.windowing.text}{f' by {by}' if by else ''}"


def _choice(told: Sequence[str], calls: Sequence[Call]) -> Choice:
    needing = sum(call.choice.pattern is not Pattern.RMW for call in calls)
    reason = (
        f"{needing} of {len(calls)} patterns need all rows of a window at once, which are stored once for all of them"
        if needing
        else "no pattern needs all rows of a window at once, so each has partial aggregates of its own"
    )
    return Choice(
        Pattern.SHARED,
        reason,
        tuple(
            f"{line}: {', '.join(call.reads)}; {call.choice.pattern.name}" for line, call in zip(told, calls, strict=True)
        ),
    )
