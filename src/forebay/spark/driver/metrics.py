"""What operators did in each micro-batch, told to the driver by a Spark accumulator.

Of several attempts at a task the last one that ended well counts. Totals since the query first ran are in the state:
`forebay.progress`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener

from forebay.spark.driver.query import require_query
from forebay.spark.driver.tally import Opened, Tally, Worked
from forebay.spark.worker.vnodes import partition_of

if TYPE_CHECKING:
    from pyspark import SparkContext

Key = tuple[str, int, str, int]
"""Query, micro-batch, operator (its layout) and virtual node, or `IDLE`."""

KEPT_BATCHES = 100
"""Micro-batches whose metrics are kept, of each operator; older ones are added up."""

ENDED_QUERIES = 16
"""Queries that have ended whose metrics are kept; the newest ones."""

_lock = threading.RLock()
_tallies: dict[tuple[str, str], Tally] = {}
"""By query and operator."""
_ended: dict[str, None] = {}
"""Queries that have ended, in that order."""


class _Latest(AccumulatorParam[dict[Key, dict[str, float]]]):
    def zero(self, value: dict[Key, dict[str, float]]) -> dict[Key, dict[str, float]]:
        return {}

    def addInPlace(
        self, value1: dict[Key, dict[str, float]], value2: dict[Key, dict[str, float]]
    ) -> dict[Key, dict[str, float]]:
        with _lock:
            value1.update(value2)
            return value1


_accumulators: dict[SparkContext, Accumulator[dict[Key, dict[str, float]]]] = {}
"""What tasks have told since it was taken last."""


def reporter(session: SparkSession) -> Accumulator[dict[Key, dict[str, float]]]:
    """What operators of a session's context report to."""
    context = session.sparkContext
    with _lock:
        if context not in _accumulators:
            _accumulators.clear()  # there is one context at a time
            _tallies.clear()
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
    require_query("recentMetrics()", query)
    return _recent(str(query.id))


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
        for metrics in _recent(str(event.progress.id), only=event.progress.batchId):
            self._receive(str(event.progress.id), metrics)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def worked(query: str, batch: int) -> dict[int, list[Worked]]:
    """When each virtual node worked in a micro-batch that has ended, for each operator that it worked for.

    It is known of the newest micro-batch, and of the one before.
    """
    found: dict[int, list[Worked]] = {}
    with _lock:
        for _, tally in _of(query):
            for vnode, each in tally.worked(batch).items():
                found.setdefault(vnode, []).append(each)
    return found


def state_bytes(query: str, partitions: int) -> Counter[int]:
    """The bytes of the state of each state partition, of all operators."""
    found = Counter[int]()
    with _lock:
        for _, tally in _of(query):
            for vnode, size in tally.state_bytes().items():
                found[partition_of(vnode, partitions)] += int(size)
    return found


def opened(query: str) -> dict[tuple[str, int], list[Opened]]:
    """The last times that stores got files from where they are safe, by operator and virtual node, oldest first."""
    with _lock:
        return {(operator, vnode): [*times] for operator, tally in _of(query) for vnode, times in tally.opened.items()}


def totals() -> dict[tuple[str, str], dict[str, float]]:
    """Metrics of all micro-batches added up, and the sizes after the newest, by query and operator."""
    with _lock:
        take()
        return {key: tally.total() for key, tally in _tallies.items()}


def take() -> None:
    """Take what tasks have told since the last time. It takes time in proportion to that, whatever there was before."""
    with _lock:
        told: dict[tuple[str, int, str], dict[int, dict[str, float]]] = {}
        for accumulator in _accumulators.values():
            for (query, batch, operator, vnode), metrics in accumulator.value.items():
                told.setdefault((query, batch, operator), {})[vnode] = metrics
            accumulator.value.clear()
        for query, batch, operator in sorted(told):
            _tallies.setdefault((query, operator), Tally()).take(batch, told[query, batch, operator])
        for tally in _tallies.values():
            tally.fold(KEPT_BATCHES)


def complete(query: str, operator: str, sizes: Mapping[int, dict[str, float]]) -> None:
    """Take the sizes of virtual nodes of which no task has told since the query goes on."""
    with _lock:
        take()
        if query not in _ended:
            _tallies.setdefault((query, operator), Tally()).complete(sizes)


def retire(query: str) -> None:
    """Keep less of a query that has ended: no virtual nodes, and nothing of queries that ended long before."""
    with _lock:
        for _, tally in _of(query):
            tally.retire()
        _ended.pop(query, None)
        _ended[query] = None
        for gone in [*_ended][:-ENDED_QUERIES]:
            for operator, _ in _of(gone):
                del _tallies[gone, operator]
            del _ended[gone]


def revive(query: str) -> None:
    """A query that had ended goes on."""
    with _lock:
        _ended.pop(query, None)


def _recent(query: str, *, only: int | None = None) -> list[dict[str, Any]]:
    found: dict[int, list[dict[str, Any]]] = {}
    with _lock:
        for operator, tally in _of(query):
            for batch in tally.rows if only is None else tally.rows.keys() & {only}:
                found.setdefault(batch, []).append({"operator": operator, **tally.rows[batch]})
    return [{"batchId": batch, "operators": found[batch]} for batch in sorted(found)]


def _of(query: str) -> list[tuple[str, Tally]]:
    """The operators of a query."""
    take()
    return [(operator, _tallies[of, operator]) for of, operator in sorted(_tallies) if of == query]
