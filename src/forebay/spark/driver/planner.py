"""The planner: what an operator reads, does and gives, and what its state looks like, for all kinds of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T

from forebay.access_patterns import Choice, Pattern
from forebay.engine.plan import Capture, WindowPlan
from forebay.spark.driver.analysis import analysis, arrow_schema
from forebay.spark.driver.capture import require_capturable
from forebay.spark.driver.conf import Conf
from forebay.spark.driver.durations import seconds
from forebay.spark.driver.inputs import identity
from forebay.state.layout import EVENT_TIME, INSTANCES, SPREAD, VNODES, Layout, key_names
from forebay.windows import HIGH, LOW, TIME, AlignedWindows, Firing, Windows

if TYPE_CHECKING:
    from forebay.aggregates.aggregation import Aggregation
    from forebay.aggregates.processor import Processor
    from forebay.aggregates.user_defined import UserFunction
    from forebay.engine.window_join import WindowJoin


@dataclass(frozen=True)
class BoundOperator:
    """A planned operator: the columns that pack reads, what the operator does, what comes out, and why it is so.

    ``rows`` are the columns that its input has for the user, if they are not all that there are.
    """

    projection: list[Column]
    plan: WindowPlan
    schema: T.StructType
    layout: Layout
    choice: Choice
    rows: Sequence[Column] = ()


@dataclass(frozen=True)
class Windowing:
    """The windows of an operator: what the engine knows of them, their kind, and how they are shown and compared.

    ``event_time`` is how the event time is shown where ``text`` does not say it.
    """

    windows: Windows
    kind: str
    text: str
    firing: Firing | None = None
    idle_timeout: int | None = None
    event_time: str | None = None


@dataclass(frozen=True)
class Key:
    """A key column: how it is shown and compared, what it is, and its type."""

    text: str
    column: Column
    kind: T.DataType


@dataclass(frozen=True)
class Call:
    """A call bound to the columns and types of its DataFrame: what an operator of it would be.

    Attributes
    ----------
    windowing : Windowing
        Its windows.
    keys : sequence of Key
        Its keys.
    times : mapping
        Columns for pack alone, by name: the event time, and the end of a row's window where the row brings that.
    aggregation : Aggregation, UserFunction, WindowJoin or Processor
        What is computed.
    reads : mapping
        The columns that each aggregate reads, and their types, as the layout has them.
    schema : StructType
        The result.
    choice : Choice
        The store.
    packed : sequence of Column
        What is packed and stored beside the keys: the inputs of the aggregates.
    stored_keys : bool
        Whether keys are columns of the result, and so stored with the rows.
    rows : sequence of Column
        The columns that the input has for the user, if they are not all that there are.
    """

    windowing: Windowing
    keys: Sequence[Key]
    times: Mapping[str, Column]
    aggregation: Aggregation | UserFunction | WindowJoin | Processor
    reads: Mapping[str, Mapping[str, str]]
    schema: T.StructType
    choice: Choice
    packed: Sequence[Column] = ()
    stored_keys: bool = True
    rows: Sequence[Column] = ()


def planned(df: DataFrame, conf: Conf, call: Call) -> BoundOperator:
    """Plan an operator over a DataFrame."""
    capture = _capture(conf.capture_trace, call) if conf.capture_trace and df.isStreaming else None
    names = key_names(len(call.keys))
    key_columns = [key.column.alias(name) for name, key in zip(names, call.keys, strict=True)]
    high, low = identity([key.column for key in call.keys], [key.kind for key in call.keys])
    kept = [*(key_columns if call.stored_keys else []), *call.packed]
    hashes = {HIGH: high} if call.choice.pattern in (Pattern.AAR, Pattern.SHARED) else {HIGH: high, LOW: low}
    beside = [column.alias(name) for name, column in {TIME: call.times[TIME], **hashes, **call.times}.items()]
    with analysis():
        stored = T.StructType(df.select(*kept, *hashes.values()).schema.fields[: len(kept)])
    plan = WindowPlan(
        call.windowing.windows,
        pa.schema([(field.name, field.type) for field in arrow_schema(stored)]),  # whatever Spark knows of them otherwise
        names if call.stored_keys else (),
        call.aggregation,
        call.choice.pattern,
        arrow_schema(call.schema),
        conf.options,
        call.windowing.firing,
        call.windowing.idle_timeout,
        identified_by=None if call.stored_keys else names,
        capture=capture,
    )
    projection = [*beside, *([] if call.stored_keys else key_columns), *kept]
    return BoundOperator(projection, plan, call.schema, _layout(conf, call), call.choice, call.rows)


def _capture(path: str, call: Call) -> Capture:
    """Where the accesses to the operator's state are written, and what they are called there."""
    windowing = call.windowing
    require_capturable(windowing.windows, windowing.firing, call.choice.pattern, windowing.text)
    by = ", ".join(key.text for key in call.keys)
    return Capture(path, f"{windowing.text} by {by}: {', '.join(call.reads)}")


def _layout(conf: Conf, call: Call) -> Layout:
    """What the operator's state looks like."""
    windowing = call.windowing
    return {
        "kind": windowing.kind,
        "window": windowing.text,
        **({} if windowing.firing is None else {"firing": _told(windowing.firing)}),
        **({} if windowing.idle_timeout is None else {"time": "the wall clock's when idle"}),
        **({} if windowing.event_time is None else {EVENT_TIME: windowing.event_time}),
        "keys": [f"{key.text} {key.kind.simpleString()}" for key in call.keys],
        "aggregates": {text: dict(columns) for text, columns in call.reads.items()},
        "pattern": call.choice.pattern.name,
        **({SPREAD: _order(conf)} if not call.keys and _apart(windowing.windows) else {}),
        **({VNODES: conf.virtual_nodes} if conf.virtual_nodes else {INSTANCES: conf.instances_per_partition}),
    }


def _apart(windows: Windows) -> bool:
    """Whether windows have no row in common."""
    return isinstance(windows, AlignedWindows) and windows.slide == windows.size


def _order(conf: Conf) -> str:
    """In which order virtual nodes take windows."""
    return "by window, partitions in turn" if conf.virtual_nodes else "by window"


def _told(firing: Firing) -> str:
    """When windows fire, in words."""
    every = [] if firing.every is None else [f"every {seconds(firing.every)}"]
    late = [f"late for {seconds(firing.allowed_lateness)}"] if firing.allowed_lateness else []
    return ", ".join([*every, *late, "accumulating" if firing.accumulating else "discarding"])
