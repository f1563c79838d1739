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
from forebay.state.layout import EVENT_TIME, INSTANCES, SPREAD, VNODES, Layout
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


def planned(
    df: DataFrame,
    conf: Conf,
    windowing: Windowing,
    keys: Sequence[Key],
    times: Mapping[str, Column],
    packed: Sequence[Column],
    aggregation: Aggregation | UserFunction | WindowJoin | Processor,
    reads: Mapping[str, Mapping[str, str]],
    schema: T.StructType,
    choice: Choice,
    *,
    stored_keys: bool = True,
    rows: Sequence[Column] = (),
) -> BoundOperator:
    """Plan an operator over a DataFrame.

    Parameters
    ----------
    df : DataFrame
        The input.
    conf : Conf
        The settings.
    windowing : Windowing
        Its windows.
    keys : sequence of Key
        Its keys. They are packed as ``k0, k1, ...``.
    times : mapping
        Columns for pack alone, by name: the event time, and the end of a row's window where the row brings that.
    packed : sequence of Column
        What is packed and stored beside the keys: the inputs of the aggregates.
    aggregation : Aggregation, UserFunction, WindowJoin or Processor
        What is computed.
    reads : mapping
        The columns that each aggregate reads, and their types, as the layout has them.
    schema : StructType
        The result.
    choice : Choice
        The store.
    stored_keys : bool
        Whether keys are columns of the result, and so stored with the rows.
    rows : sequence of Column
        The columns that the input has for the user, if they are not all that there are.
    """
    capture = None
    if conf.capture_trace and df.isStreaming:
        require_capturable(windowing.windows, windowing.firing, choice.pattern, windowing.text)
        by = ", ".join(key.text for key in keys)
        capture = Capture(conf.capture_trace, f"{windowing.text} by {by}: {', '.join(reads)}")
    names = tuple(f"k{place}" for place in range(len(keys)))
    key_columns = [key.column.alias(name) for name, key in zip(names, keys, strict=True)]
    high, low = identity([key.column for key in keys], [key.kind for key in keys])
    kept = [*(key_columns if stored_keys else []), *packed]
    hashes = {HIGH: high} if choice.pattern in (Pattern.AAR, Pattern.SHARED) else {HIGH: high, LOW: low}
    beside = [column.alias(name) for name, column in {TIME: times[TIME], **hashes, **times}.items()]
    firing, idle_timeout = windowing.firing, windowing.idle_timeout
    with analysis():
        stored = df.select(*kept).schema
    plan = WindowPlan(
        windowing.windows,
        pa.schema([(field.name, field.type) for field in arrow_schema(stored)]),  # whatever Spark knows of them otherwise
        names if stored_keys else (),
        aggregation,
        choice.pattern,
        arrow_schema(schema),
        conf.options,
        firing,
        idle_timeout,
        identified_by=None if stored_keys else names,
        capture=capture,
    )
    layout: Layout = {
        "kind": windowing.kind,
        "window": windowing.text,
        **({} if firing is None else {"firing": _told(firing)}),
        **({} if idle_timeout is None else {"time": "the wall clock's when idle"}),
        **({} if windowing.event_time is None else {EVENT_TIME: windowing.event_time}),
        "keys": [f"{key.text} {key.kind.simpleString()}" for key in keys],
        "aggregates": {text: dict(columns) for text, columns in reads.items()},
        "pattern": choice.pattern.name,
        **({SPREAD: _order(conf)} if not keys and _apart(windowing.windows) else {}),
        **({VNODES: conf.virtual_nodes} if conf.virtual_nodes else {INSTANCES: conf.instances_per_partition}),
    }
    return BoundOperator([*beside, *([] if stored_keys else key_columns), *kept], plan, schema, layout, choice, rows)


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
