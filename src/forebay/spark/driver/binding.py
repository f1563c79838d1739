"""Binding: window, keys and aggregates of a call to the columns and types of a DataFrame.

Spark itself analyses the equivalent batch query. So names, types and NULL rules of the result are Spark's, and what Spark
refuses is refused here with Spark's reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.access_patterns import Choice, choose
from forebay.aggregates import functions
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import COUNTED, HOLISTIC
from forebay.aggregates.functions import Aggregate, Apply
from forebay.aggregates.user_defined import UserFunction, name_of
from forebay.engine.window_join import WindowJoin
from forebay.errors import InvalidArgument
from forebay.spark.driver.analysis import (
    analysis,
    arrow_schema,
    require_alike,
    require_columns,
    require_deterministic,
    require_told_apart,
    time_of,
)
from forebay.spark.driver.assignments import CustomWindow, SessionWindow, Window
from forebay.spark.driver.columns import column_of, fields_of, got, quoted, require_column, shown, text_of
from forebay.spark.driver.conf import Conf
from forebay.spark.driver.inputs import Inputs, nullable_within, require_supported
from forebay.spark.driver.planner import BoundOperator, Call, Key, Windowing, planned
from forebay.spark.driver.sides import SIDE, Sides
from forebay.state.layout import APPLY, DISTINCT, key_names
from forebay.windows import TIME, AlignedWindows, Firing, GlobalWindow, Preceding, Windows

NOTHING = "a_"
"""The input column of an operator without keys and inputs."""


def bind(
    df: DataFrame,
    window: Window,
    keys: Sequence[Column | str],
    aggregates: Sequence[Aggregate | Apply] | Sides,
    conf: Conf,
    firing: Firing | None = None,
    idle_timeout: int | None = None,
) -> BoundOperator:
    """Bind a call to its DataFrame; an error of ours for everything that could not run."""
    inputs = Inputs(df)
    call = bind_call(df, window, keys, key_names(len(keys)), aggregates, inputs, firing, idle_timeout)
    packed = inputs.columns if keys or inputs.columns else [F.lit(True).alias(NOTHING)]  # rows without columns would be none
    return planned(df, conf, replace(call, packed=packed))


def bind_call(
    df: DataFrame,
    window: Window,
    keys: Sequence[Column | str],
    names: tuple[str, ...],
    aggregates: Sequence[Aggregate | Apply] | Sides,
    inputs: Inputs,
    firing: Firing | None = None,
    idle_timeout: int | None = None,
) -> Call:
    """Bind a call whose keys are packed under these ``names``, and whose inputs are collected with those of others.

    What is packed is left open: `Call.packed` has nothing.
    """
    sides, aggregates = (aggregates, ()) if isinstance(aggregates, Sides) else (None, aggregates)
    apply = None if sides else _only_apply(aggregates)
    named = [aggregate for aggregate in aggregates if isinstance(aggregate, Aggregate)]
    for each in named:
        for argument in each.arguments:
            require_column(f"{each.function}()", argument)
    times = [] if window.time_column is None else [window.time_column]
    require_columns(df, [*times, *keys, *(argument for each in named for argument in each.arguments)])
    time = time_of(df, window.time_column) if window.in_event_time else F.timestamp_micros(F.lit(0))
    assignment = window.bind(df.sparkSession, time)
    windows = assignment.windows
    if df.isStreaming and windows == GlobalWindow():
        raise InvalidArgument(
            "the global window of a stream never ends. Say when it fires: fb.global_window(every='10 seconds') or "
            "fb.global_window(everyRows=100)"
        )
    key_columns = list(map(column_of, keys))
    shown = [column for column in (assignment.event_time, assignment.result) if column is not None]
    with analysis():
        if isinstance(window, SessionWindow) and isinstance(window.gap_duration, Column):
            require_deterministic(df, [window.gap_duration], "gap")
        spark_columns = [_unnamed(each) for each in named]
        fields = _analysed(df, [*shown, *key_columns], named, spark_columns)
        require_deterministic(df, key_columns)
    window_fields, others = fields[: len(shown)], list(map(nullable_within, fields[len(shown) :]))
    key_fields, results = others[: len(keys)], others[len(keys) :]
    for field in key_fields:
        require_supported(field.dataType, f"the key {field.name}")

    if apply:
        computed = _applied(df, apply, inputs)
    elif sides:
        computed = _joined(sides, inputs)
    else:
        moving = isinstance(windows, Preceding)
        computed = _aggregated(df, named, spark_columns, results, names, inputs, moving=moving)
    if not isinstance(windows, Preceding) and any(aggregate.function == "current" for aggregate in named):
        raise InvalidArgument(
            f"current() is for the windows of fb.preceding; {assignment.text} is of no row more than another"
        )
    told = tuple(
        Key(text_of(key), column, field.dataType) for key, column, field in zip(keys, key_columns, key_fields, strict=True)
    )
    choice = _chosen(window, windows, firing, computed.holistic)
    if df.isStreaming:
        require_alike(df, "keys", [key.text for key in told], key_columns)
    unsaid = text_of(time) if isinstance(window, CustomWindow) else None
    return Call(
        windowing=Windowing(windows, assignment.kind, assignment.text, firing, idle_timeout, unsaid),
        keys=told,
        times={TIME: time, **assignment.columns},
        aggregation=computed.aggregation,
        reads=computed.reads,
        schema=T.StructType([*window_fields, *key_fields, *computed.fields]),
        choice=choice,
    )


def _analysed(df: DataFrame, grouped: list[Column], named: list[Aggregate], columns: list[Column]) -> list[T.StructField]:
    """The result as Spark has it: what is grouped by, and then the aggregates, or some other column if there are none."""
    aliased = [column if each.name is None else column.alias(each.name) for each, column in zip(named, columns, strict=True)]
    found = df.groupBy(*grouped).agg(*(aliased or [F.count("*")])).schema.fields
    return found if _retains_keys(df) else [*df.select(*grouped).schema.fields, *found]


@dataclass(frozen=True)
class _Computed:
    """What a call computes of the rows of a window.

    Attributes
    ----------
    aggregation : Aggregation, UserFunction or WindowJoin
        Computes it.
    fields : list of StructField
        The columns of the result, but for window and keys.
    holistic : list of str
        What needs all rows of the window.
    reads : dict
        The columns that each aggregate reads, and their types.
    """

    aggregation: Aggregation | UserFunction | WindowJoin
    fields: list[T.StructField]
    holistic: list[str]
    reads: dict[str, dict[str, str]]


def _applied(df: DataFrame, apply: Apply, inputs: Inputs) -> _Computed:
    fields = list(map(nullable_within, fields_of("fb.apply", apply.schema)))
    for field in fields:
        require_supported(field.dataType, f"the column {field.name} of fb.apply's schema")
    with analysis():
        shown = tuple(zip(inputs.add([F.col(quoted(name)) for name in df.columns]), df.columns, strict=True))
    function = UserFunction(apply.function, shown, arrow_schema(T.StructType(fields)))
    return _Computed(
        function, fields, [f"apply({name_of(apply.function)})"], {APPLY: inputs.typed(column for column, _ in shown)}
    )


def _joined(sides: Sides, inputs: Inputs) -> _Computed:
    side, *names = inputs.add([F.col(SIDE), *map(F.col, sides.columns)])
    columns = dict(zip(sides.columns, names, strict=True))
    left, right = (tuple(columns[name] for name, _ in each) for each in (sides.left, sides.right))
    reads = {text: inputs.typed([side, *(columns[name] for name in names)]) for text, names in sides.reads.items()}
    return _Computed(WindowJoin(sides.how, side, left, right), sides.fields, [f"join({sides.how})"], reads)


def _aggregated(
    df: DataFrame,
    named: list[Aggregate],
    columns: list[Column],
    fields: list[T.StructField],
    names: tuple[str, ...],
    inputs: Inputs,
    *,
    moving: bool,
) -> _Computed:
    """Aggregates: Spark's own ``columns`` of them, and the ``fields`` of these. ``moving`` windows precede each row."""
    with analysis():
        bound = inputs.bind(named, fields)
    needs_rows = [each.function in HOLISTIC and not each.counted for each in bound]
    rows = moving or any(needs_rows)
    texts = [_text(each, column, rows=rows) for each, column in zip(named, columns, strict=True)]
    if df.isStreaming:
        require_told_apart("aggregates", texts, lambda one, other: bound[one].inputs == bound[other].inputs)
    reads = {text: inputs.typed(each.inputs) for text, each in zip(texts, bound, strict=True)}
    return _Computed(Aggregation(names, bound), fields, list(itertools.compress(texts, needs_rows)), reads)


def _chosen(window: Window, windows: Windows, firing: Firing | None, holistic: list[str]) -> Choice:
    """The store of such windows and aggregates."""
    aligned = isinstance(windows, AlignedWindows) or (isinstance(window, CustomWindow) and window.hint == "aligned")
    aligned = aligned and firing is None  # each key's windows fire for themselves when rows come
    choice = choose(holistic, aligned=aligned, moving=isinstance(windows, Preceding))
    if isinstance(window, CustomWindow) and window.incremental and holistic:
        raise InvalidArgument(f"the window is to be incremental, but {choice.reason}; leave incremental out")
    return choice


def _retains_keys(df: DataFrame) -> bool:
    """Whether Spark gives what is grouped by beside the aggregates; forebay does."""
    return str(df.sparkSession.conf.get("spark.sql.retainGroupColumns")).lower() == "true"


def _example_for(given: Any) -> str:
    """An aggregate of forebay as an example: the one with the name of Spark's, where that was given."""
    name = shown(given).partition("(")[0] if isinstance(given, Column) else ""
    found = getattr(functions, name, None)
    return f"here fb.{name}" if getattr(found, "__module__", "") == functions.__name__ else "for example fb.sum('price')"


def _only_apply(aggregates: Sequence[Aggregate | Apply]) -> Apply | None:
    for aggregate in aggregates:
        if not isinstance(aggregate, Aggregate | Apply):
            raise InvalidArgument(
                f"agg() got {got(aggregate)}; it takes forebay's aggregates one by one, {_example_for(aggregate)}"
            )
    if not aggregates:
        raise InvalidArgument("agg() needs at least one aggregate, for example fb.count('*')")
    applied = [aggregate for aggregate in aggregates if isinstance(aggregate, Apply)]
    if applied and len(aggregates) > 1:
        raise InvalidArgument("fb.apply returns whole rows, so it must be the only aggregate of its operator")
    return applied[0] if applied else None


def _text(aggregate: Aggregate, column: Column, *, rows: bool) -> str:
    """How an aggregate is shown and compared: as Spark shows it, but for what Spark does not have or does not tell.

    Spark shows the number of different values as that of all. Where not rows are stored, but partial aggregates of them,
    these are not the same.
    """
    if not rows and aggregate.function == "count_distinct":
        return f"count({DISTINCT}{text_of(aggregate.arguments[0])})"
    return _current(aggregate) if aggregate.function == "current" else text_of(column)


def _current(aggregate: Aggregate) -> str:
    return f"current({text_of(aggregate.arguments[0])})"


def _unnamed(aggregate: Aggregate) -> Column:
    """An aggregate as Spark's own function of that name, whose result has its type."""
    if aggregate.function == "all_max_by":  # Spark lacks it; a list of the same values has its type
        value, order = aggregate.arguments
        return F.collect_list(value).alias(f"all_max_by({text_of(value)}, {text_of(order)})")
    if aggregate.function == "current":  # in Spark it needs no function
        return F.first(aggregate.arguments[0]).alias(_current(aggregate))
    if aggregate.function == "approx_top_k":  # Spark has it in SQL alone
        return F.call_function("approx_top_k", *map(column_of, aggregate.arguments), *map(F.lit, aggregate.options.values()))
    function = getattr(F, aggregate.function)
    column: Column = function(*aggregate.arguments, **{k: v for k, v in aggregate.options.items() if k != COUNTED})
    return column
