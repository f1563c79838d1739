"""What operators did in each micro-batch, told to the driver by a Spark accumulator.

Of several attempts at a task the last one that ended well counts. Totals since the query first ran are in the state:
`forebay.progress`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pyspark import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener

if TYPE_CHECKING:
    from pyspark import SparkContext

Key = tuple[str, int, str, int]
"""Query, micro-batch, operator (its layout) and virtual node."""

KEPT_BATCHES = 100
"""Micro-batches whose metrics are kept, of each operator; older ones are added up."""

ENDED_QUERIES = 16
"""Queries that have ended whose metrics are kept, of all of an operator's virtual nodes together; the newest ones."""

ALL_NODES = -1
"""The number of the virtual node that stands for all of an operator."""

EARLIER = -1
"""The number of the micro-batch that stands for all older ones."""

UNITS = {
    "rowsIn": "rows that reached the operator",
    "rowsLate": "rows dropped because all their windows had fired",
    "rowsPartlyLate": "rows that missed some of their sliding windows",
    "windowsFired": "windows that fired, in each store instance",
    "rowsOut": "result rows",
    "rowsRead": "rows that the stores handed out",
    "prefetchHits": "windows on disk that were in memory when they were read",
    "prefetchMisses": "windows on disk that were not",
    "prefetchedRows": "rows read ahead of time",
    "prefetchedRowsUnused": "rows read ahead of time and evicted without being read",
    "evictedWindows": "windows that were evicted from the prefetch buffer",
    "indexScans": "scans of the index on disk",
    "compactions": "times that dead rows were cleared out",
    "ingestTimeMs": "milliseconds of all tasks for decoding and placing rows",
    "fireTimeMs": "milliseconds of all tasks for windows that fired, sending results included",
    "commitTimeMs": "milliseconds of all tasks for commits, uploads included",
    "uploadTimeMs": "milliseconds of all tasks for bringing files to where they are safe",
    "uploadedBytes": "bytes that were brought there",
}
"""What is added up over micro-batches."""

SIZES = {
    "stateBytes": "bytes of the stores' files",
    "stateLiveBytes": "bytes of these that are still needed",
    "memoryBytes": "bytes of buffers and key indexes in memory",
}
"""What is as it is after a micro-batch."""


_TIMES = ("ingestTimeMs", "fireTimeMs", "commitTimeMs")

_lock = threading.RLock()
_ended: dict[str, None] = {}
"""Queries that have ended, in that order."""


class _Latest(AccumulatorParam[dict[Key, dict[str, float]]]):
    def zero(self, value: dict[Key, dict[str, float]]) -> dict[Key, dict[str, float]]:
        return {}

    def addInPlace(
        self, value1: dict[Key, dict[str, float]], value2: dict[Key, dict[str, float]]
    ) -> dict[Key, dict[str, float]]:
        with _lock:
            for query, batch, operator, _ in value2:
                value1.pop((query, batch, operator, ALL_NODES), None)  # it ran before, and runs again
            value1.update(value2)
            return value1


_accumulators: dict[SparkContext, Accumulator[dict[Key, dict[str, float]]]] = {}


def reporter(session: SparkSession) -> Accumulator[dict[Key, dict[str, float]]]:
    """What operators of a session's context report to."""
    context = session.sparkContext
    with _lock:
        if context not in _accumulators:
            _accumulators.clear()  # there is one context at a time
            _accumulators[context] = context.accumulator({}, _Latest())
        return _accumulators[context]


def recentMetrics(query: StreamingQuery) -> list[dict[str, Any]]:
    """What the forebay operators of a query did in its newest micro-batches, oldest first, beside its ``recentProgress``.

    Parameters
    ----------
    query : StreamingQuery
        A query started in this session.

    Returns
    -------
    list of dict
        ``batchId`` and ``operators``: a dict for each operator with its ``operator`` (as ``forebay state list`` names it),
        ``rowsIn``, ``rowsLate``, ``windowsFired``, ``prefetchHits``, ``commitTimeMs``, ``stateBytes`` and more: see
        docs/operations.md. Up to 100 micro-batches of this run; `progress` has totals since the query first ran.

    Examples
    --------
    >>> import tempfile
    >>> import forebay as fb
    >>> rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 1)
    >>> ticks = rates.option("advanceMillisPerBatch", 1000).load().withWatermark("timestamp", "1 minute")
    >>> counts = fb.groupBy(ticks, fb.window("timestamp", "1 hour"), "value").agg(fb.count("*"))
    >>> query = counts.writeStream.format("noop").option("checkpointLocation", tempfile.mkdtemp()).start()
    >>> while not query.lastProgress:
    ...     _ = query.awaitTermination(0.1)
    >>> query.stop()
    >>> first = fb.recentMetrics(query)[0]
    >>> first["batchId"], first["operators"][0]["rowsIn"]
    (0, 10)
    """
    return _batches(str(query.id))


class MetricsListener(StreamingQueryListener):
    """Calls a function with what the forebay operators of a query did, after each of its micro-batches.

    Parameters
    ----------
    receive : callable
        It gets the query's id and a dict as `recentMetrics` has them.

    Examples
    --------
    >>> listener = MetricsListener(lambda query, metrics: print(query, metrics["operators"]))
    >>> spark.streams.addListener(listener)
    >>> spark.streams.removeListener(listener)
    """

    def __init__(self, receive: Callable[[str, dict[str, Any]], None]) -> None:
        self._receive = receive

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        for metrics in _batches(str(event.progress.id)):
            if metrics["batchId"] == event.progress.batchId:
                self._receive(str(event.progress.id), metrics)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def busy(query: str) -> dict[int, dict[int, float]]:
    """Milliseconds that tasks spent on each virtual node, of all operators of a query, by micro-batch."""
    found: dict[int, dict[int, float]] = {}
    for (of, batch, _, vnode), metrics in _kept().items():
        if of == query and batch != EARLIER and vnode != ALL_NODES:
            nodes = found.setdefault(batch, {})
            nodes[vnode] = nodes.get(vnode, 0.0) + sum(metrics.get(name, 0.0) for name in _TIMES)
    return found


def totals() -> dict[tuple[str, str], dict[str, float]]:
    """Metrics of all micro-batches added up, and the sizes after the newest, by query and operator."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    newest: dict[tuple[str, str], int] = {}
    for (query, batch, operator, _), metrics in _kept().items():
        total = found.setdefault((query, operator), dict.fromkeys(SIZES, 0))
        _add(total, metrics, UNITS)
        newest[query, operator] = max(batch, newest.get((query, operator), EARLIER))
    for (query, batch, operator, _), metrics in _carried(_kept()).items():
        if batch == newest[query, operator]:
            _add(found[query, operator], metrics, SIZES)
    return found


def fold() -> None:
    """Add up the metrics of old micro-batches, so that no more than those of `KEPT_BATCHES` are kept."""
    with _lock:
        for accumulator in _accumulators.values():
            value = accumulator.value
            batches: dict[tuple[str, str], set[int]] = {}
            for query, batch, operator, _ in value:
                batches.setdefault((query, operator), set()).add(batch)
            old = {key: set(sorted(numbers - {EARLIER})[:-KEPT_BATCHES]) for key, numbers in batches.items()}
            for key in sorted(value):
                query, batch, operator, vnode = key
                if batch in old[query, operator]:
                    earlier, metrics = value.setdefault((query, EARLIER, operator, vnode), {}), value.pop(key)
                    _add(earlier, metrics, UNITS)
                    earlier.update({name: metrics[name] for name in SIZES if name in metrics})


def retire(query: str) -> None:
    """Keep less of a query that has ended: no virtual nodes, and nothing of queries that ended long before."""
    with _lock:
        _ended.pop(query, None)
        _ended[query] = None
        gone = {*list(_ended)[:-ENDED_QUERIES]}
        for accumulator in _accumulators.values():
            value = accumulator.value
            value.update(_carried({key: metrics for key, metrics in value.items() if key[0] == query}))
            for key in list(value):
                of, batch, operator, vnode = key
                if of in gone:
                    del value[key]
                elif of == query and vnode != ALL_NODES:
                    metrics = value.pop(key)
                    _add(value.setdefault((query, batch, operator, ALL_NODES), {}), metrics, metrics)
        for each in gone:
            del _ended[each]


def revive(query: str) -> None:
    """A query that had ended goes on."""
    with _lock:
        _ended.pop(query, None)


def _batches(query: str) -> list[dict[str, Any]]:
    found: dict[int, dict[str, dict[str, float]]] = {}
    for (of, batch, operator, _), metrics in _carried(_kept()).items():
        if of == query and batch != EARLIER:
            _add(found.setdefault(batch, {}).setdefault(operator, dict.fromkeys((*UNITS, *SIZES), 0)), metrics, metrics)
    return [
        {"batchId": batch, "operators": [{"operator": operator, **metrics} for operator, metrics in operators.items()]}
        for batch, operators in found.items()
    ]


def _kept() -> dict[Key, dict[str, float]]:
    """All metrics there are."""
    fold()
    with _lock:
        return {key: metrics for accumulator in _accumulators.values() for key, metrics in accumulator.value.items()}


def _carried(kept: dict[Key, dict[str, float]]) -> dict[Key, dict[str, float]]:
    """Metrics in the order of micro-batches, with the sizes of virtual nodes that had nothing to do: those from before."""
    batches: dict[tuple[str, int, str], dict[int, dict[str, float]]] = {}
    for (query, batch, operator, vnode), metrics in sorted(kept.items(), key=lambda item: item[0]):
        batches.setdefault((query, batch, operator), {})[vnode] = metrics
    sizes: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    found: dict[Key, dict[str, float]] = {}
    for (query, batch, operator), nodes in batches.items():
        before = sizes.setdefault((query, operator), {})
        for vnode, metrics in nodes.items():
            has = {name: metrics[name] for name in SIZES if name in metrics}
            if vnode != ALL_NODES and has:
                before[vnode] = has
        for vnode in {*nodes, *(before if batch != EARLIER and ALL_NODES not in nodes else ())}:
            found[query, batch, operator, vnode] = {**before.get(vnode, {}), **nodes.get(vnode, {})}
    return found


def _add(into: dict[str, float], metrics: dict[str, float], names: Iterable[str]) -> None:
    for name in names:
        into[name] = into.get(name, 0) + metrics.get(name, 0)
