"""What is kept of the metrics of an operator: a row for each of its newest micro-batches, and the total of older ones.

Virtual nodes that have nothing to do say nothing. Their sizes are in a running total, so what a micro-batch costs here is in
proportion to the virtual nodes that had something to do in it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from forebay.spark.worker.vnodes import HOT_KEYS, IDLE, PACKING

UNITS = {
    "packedRows": "rows that came to the tasks before the shuffle",
    "packedOut": "rows, or partial aggregates of them, that went from there to the operator",
    "combinedRows": "rows that tasks tried to combine before the shuffle; the others were sent on, since that did not pay",
    "hottestKeyRows": "about how many rows were of the most frequent key of their chunk, by a sample",
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
    "indexScans": "times that rows were looked for on disk",
    "compactions": "times that dead rows were cleared out",
    "fetchTimeMs": "milliseconds of all tasks for getting files from where they are safe, by links or copies",
    "fetchedBytes": "bytes that were copied from there",
    "loadTimeMs": "milliseconds of all tasks for opening stores and reading their key indexes, without fetching",
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
    "storedEvents": "events that are stored for several patterns together",
    "memoryBytes": "bytes of buffers and key indexes in memory",
}
"""What is as it is after a micro-batch."""

HOTTEST_KEY = "hottestKey"
"""The key that had most of the rows that were packed in a micro-batch; None if no key had a good part of a task's."""


KEPT_OPENINGS = 16
"""Times that a virtual node's store was opened, the newest ones, which are remembered."""


@dataclass(frozen=True)
class Worked:
    """When a virtual node worked in a micro-batch, in milliseconds by its host's clock, and on how many rows.

    The time for bringing files to other hosts and to the checkpoint, and from there, is left out: it is these that are slow
    then. Rows are those that came in, that stores handed out and that went out.
    """

    began: float
    ended: float
    rows: float


@dataclass(frozen=True)
class Opened:
    """That a store was opened which had to get files: in which micro-batch, when by its host's clock, and how long it took.

    All times are in milliseconds.
    """

    batch: int
    began: float
    fetching: float
    loading: float


class Tally:
    """Metrics of one operator of a query.

    Attributes
    ----------
    rows : dict of int to dict
        What all virtual nodes did in each of the newest micro-batches, and their sizes after it.
    batch : int or None
        The micro-batch that was told of last; None in a query that has ended.
    nodes : dict of int to dict
        What each virtual node has told of that one.
    opened : dict of int to deque of Opened
        The last times that each virtual node's store got files from where they are safe.
    """

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.batch: int | None = None
        self.nodes: dict[int, dict[str, Any]] = {}
        self.opened: dict[int, deque[Opened]] = {}
        self._before: tuple[int | None, dict[int, dict[str, Any]]] = None, {}
        self._earlier: dict[str, float] = dict.fromkeys(UNITS, 0)
        self._sizes: dict[int, dict[str, float]] = {}
        self._size: dict[str, float] = dict.fromkeys(SIZES, 0)

    def take(self, batch: int, told: Mapping[int, dict[str, Any]]) -> None:
        """Take what virtual nodes tell of a micro-batch; of what one of them tells more than once, the last counts.

        A micro-batch of a query that had ended runs again as a whole, so what it did before does not count.
        """
        if batch != self.batch or batch not in self.rows:
            self._before = self.batch, self.nodes
            self.batch, self.nodes = batch, {}
            self.rows[batch] = {**dict.fromkeys((*UNITS, *SIZES), 0), HOTTEST_KEY: None}
        row = self.rows[batch]
        for vnode, metrics in told.items():
            if vnode in self.nodes:
                _add(row, self.nodes[vnode], UNITS, -1)
            _add(row, metrics, UNITS)
            self.nodes[vnode] = metrics
            if metrics.get("fetchTimeMs"):
                self._open(vnode, Opened(batch, metrics["began"], metrics["fetchTimeMs"], metrics["loadTimeMs"]))
            if metrics.keys() >= SIZES.keys():
                self._resize(vnode, {name: metrics[name] for name in SIZES})
        row.update(self._size)
        if any(vnode <= PACKING for vnode in told):
            row[HOTTEST_KEY] = _hottest(self.nodes.values())

    def complete(self, sizes: Mapping[int, dict[str, float]]) -> None:
        """Take the sizes of virtual nodes that have told none themselves."""
        for vnode in sizes.keys() - self._sizes.keys():
            self._resize(vnode, sizes[vnode])
        if self.batch in self.rows:
            self.rows[self.batch].update(self._size)

    def fold(self, kept: int) -> None:
        """Add up all but some rows of the newest micro-batches."""
        while len(self.rows) > kept:
            _add(self._earlier, self.rows.pop(min(self.rows)), UNITS)

    def worked(self, batch: int) -> dict[int, Worked]:
        """When each virtual node worked in the micro-batch that was told of last, or in the one before."""
        nodes = next((nodes for told, nodes in ((self.batch, self.nodes), self._before) if told == batch), {})
        return {vnode: _worked(told) for vnode, told in nodes.items() if vnode > IDLE}

    def state_bytes(self) -> dict[int, float]:
        """The bytes of the state of each virtual node."""
        return {vnode: sizes["stateBytes"] for vnode, sizes in self._sizes.items()}

    def _open(self, vnode: int, opened: Opened) -> None:
        times = self.opened.setdefault(vnode, deque(maxlen=KEPT_OPENINGS))
        if times and times[-1].batch == opened.batch:
            times.pop()
        times.append(opened)

    def retire(self) -> None:
        """Forget virtual nodes, since the query has ended."""
        self.batch, self.nodes, self._sizes, self._before, self.opened = None, {}, {}, (None, {}), {}

    def total(self) -> dict[str, float]:
        """What was done in all micro-batches, and the sizes now."""
        found = {**self._earlier, **self._size}
        for row in self.rows.values():
            _add(found, row, UNITS)
        return found

    def _resize(self, vnode: int, sizes: dict[str, float]) -> None:
        if not self._sizes:  # the total is that of a query that had ended
            self._size = dict.fromkeys(SIZES, 0)
        if vnode in self._sizes:
            _add(self._size, self._sizes[vnode], SIZES, -1)
        _add(self._size, sizes, SIZES)
        self._sizes[vnode] = sizes


def _add(into: dict[str, float], metrics: dict[str, float], names: Iterable[str], sign: int = 1) -> None:
    for name in names:
        into[name] += sign * metrics.get(name, 0)


def _hottest(told: Iterable[Mapping[str, Any]]) -> str | None:
    """The key that tasks of a pack have told the most rows of."""
    rows = Counter[str]()
    for metrics in told:
        rows.update(metrics.get(HOT_KEYS, {}))
    return max(rows, key=rows.__getitem__, default=None)


def _worked(told: Mapping[str, float]) -> Worked:
    took = sum(told.get(name, 0.0) for name in ("openTimeMs", "ingestTimeMs", "fireTimeMs", "commitTimeMs"))
    took -= told.get("uploadTimeMs", 0.0) + told.get("fetchTimeMs", 0.0)
    began, rows = told.get("began", 0.0), sum(told.get(name, 0.0) for name in ("rowsIn", "rowsRead", "rowsOut"))
    return Worked(began, began + max(0.0, took), rows)
