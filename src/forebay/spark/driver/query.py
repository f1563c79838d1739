"""Queries as the driver knows them: which operators of forebay a plan has, and where their state is."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

from forebay.access_patterns import Choice
from forebay.errors import ForebayError, InvalidArgument
from forebay.spark.worker.clock import Clock
from forebay.state import layout as layouts
from forebay.state.layout import Layout
from forebay.state.places import Place, Root
from forebay.store import filenames

MARK = re.compile(f"forebay_({filenames.LAYOUT_ID})")
"""An operator's output column is named so; thereby a query's plan tells which operators it has."""
_ANY_MARK = re.compile(f"forebay_(?:batch_)?({filenames.LAYOUT_ID})")


@dataclass(frozen=True)
class Planned:
    """An operator as `agg` planned it: its layout, how its store was chosen, and where its state lives.

    ``chained`` says whether it reads the results of another one, ``clock`` what tells it that time has passed, and
    ``conditions`` what results must be like to be emitted. ``row_bytes`` is the most that a row of its input takes
    in Arrow, None if that may be any number, or if the rows come from other functions in Python.
    """

    layout: Layout
    choice: Choice
    place: Place
    chained: bool = False
    clock: Clock = Clock.WATERMARK
    conditions: tuple[str, ...] = ()
    row_bytes: int | None = None


_planned: dict[str, Planned] = {}
"""Operators over streams, by the names that marks have."""

_batches: OrderedDict[str, Planned] = OrderedDict()
"""Operators over batch DataFrames, the newest ones: ``foreachBatch`` may make another one in each micro-batch."""

_REMEMBERED = 1000
"""So many of those."""


def note(planned: Planned) -> str:
    """The name of the output column of an operator over a stream."""
    name = _name(planned)
    _planned[name] = planned
    return f"forebay_{name}"


def note_batch(planned: Planned) -> str:
    """The name of the output column of an operator over a batch DataFrame, which has no state that lasts."""
    name = _name(planned)
    _batches.pop(name, None)  # it is the newest one again
    _batches[name] = planned
    if len(_batches) > _REMEMBERED:
        _batches.popitem(last=False)
    return f"forebay_batch_{name}"


def _name(planned: Planned) -> str:
    return layouts.layout_id(
        {
            **planned.layout,
            "place": repr(planned.place),
            "chained": planned.chained,
            "clock": planned.clock.value,
            "conditions": planned.conditions,
            "rowBytes": planned.row_bytes,
        }
    )


def operators(plan: str, *, batch: bool = False) -> list[Planned]:
    """The forebay operators over streams in a plan's text; with ``batch`` those over batch DataFrames too."""
    names = dict.fromkeys((_ANY_MARK if batch else MARK).findall(plan))
    found = (_planned.get(name) or (_batches.get(name) if batch else None) for name in names)
    return [each for each in found if each is not None]


def require_query(caller: str, query: object) -> None:
    """`InvalidArgument` unless a call got a query that was started."""
    if not isinstance(query, StreamingQuery):
        raise InvalidArgument(
            f"{caller} got {query!r}; it takes a query that was started, as writeStream...start() gives it"
        )


def plan_of(query: StreamingQuery) -> str:
    """On the driver: the text of a query's plan."""
    return str(execution(query).analyzedPlan().toString())


def root_of(query: StreamingQuery) -> Root:
    """On the driver: where the state of a query is."""
    known = operators(plan_of(query))
    place = known[0].place if known else Place()
    return place.root(execution(query).resolvedCheckpointRoot(), str(query.id))


def goes_on(query: StreamingQuery, context: Any) -> bool:
    """Whether a query is active, and its context in the JVM, too: when that is stopped, Spark does not end an idle query."""
    try:
        return bool(query.isActive and not context.isStopped())
    except (Py4JError, OSError):  # the JVM may have gone
        return SparkContext._active_spark_context is not None


def last_micro_batch(query: StreamingQuery) -> StreamingQueryProgress | None:
    """What Spark says of a query's last micro-batch.

    None if it says something else: when there were no rows for 10 seconds it tells of the micro-batch that is to come.
    """
    progress = query.lastProgress
    return progress if progress is not None and "addBatch" in progress["durationMs"] else None


def text_of(error: Exception) -> str:
    """What an error says, with its type if it is none of ours, without the stack trace that one of the JVM has.

    Examples
    --------
    >>> text_of(InvalidArgument("there is no such partition")), text_of(KeyError(3))
    ('there is no such partition', 'KeyError: 3')
    """
    if isinstance(error, ForebayError):
        return str(error)
    said, *trace = str(error).split("\n\tat ", 1)
    return f"{type(error).__name__}: {' '.join(said.split()) if trace else said}"


def context_of(query: StreamingQuery) -> Any:
    """On the driver: the `SparkContext` of a query, an object of the JVM."""
    return execution(query).sparkSessionForStream().sparkContext()


def execution(query: StreamingQuery) -> Any:
    """On the driver: what runs a query, an object of the JVM."""
    return query._jsq.streamingQuery()
