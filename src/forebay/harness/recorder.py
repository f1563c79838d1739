"""The recorder: an observer of a store instance that writes down what an operator that works event by event asks of a store.

Which windows rows enter, which windows merge, which fire and which are gone is what the instance says. Here is only what
that is in terms of get, put, merge and delete, for each kind of operator, as in `forebay.harness.operators`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import Aggregation
from forebay.engine.observer import ARRIVAL, Places, window_ids
from forebay.engine.plan import WindowPlan
from forebay.harness.access import DELETE, GET, MERGE, PUT, Operation
from forebay.harness.capture import SCHEMA, captured
from forebay.harness.driver_kernels import MAPPING, MAPPING_ENTRY
from forebay.harness.keys import key_numbers
from forebay.store.key_index import KeyIndex, Steps
from forebay.windows import Intervals, Times

_SAMPLE = 1 << 12
"""Of so many rows partial aggregates are made, to see how large these are."""

_OWN, _AFTER = 1 << 40, 1 << 50
"""Where the accesses of a row's own window stand among those that it causes, and then those of the mapping."""


class Recorder:
    """What one instance does in one micro-batch, as accesses. It is an `Observer`.

    Parameters
    ----------
    plan : WindowPlan
        The operator.

    Examples
    --------
    >>> from forebay.windows import AlignedWindows
    >>> schema = pa.schema([("k0", pa.int64()), ("a0", pa.string())])
    >>> aggregation = Aggregation(("k0",), ())
    >>> recorder = Recorder(WindowPlan(AlignedWindows(10, 10), schema, ("k0",), aggregation, Pattern.AAR, schema))
    >>> rows = pa.record_batch({"k0": [7, 8], "a0": ["one", "three"], ARRIVAL: [2, 1]})
    >>> zero = np.zeros(2, np.int64)
    >>> recorder.enters(rows, np.arange(2), zero, zero + 10)
    >>> recorder.leaves(pl.DataFrame({"k0": [7]}), zero[:1], zero[:1] + 10)
    >>> found = recorder.accesses()
    >>> [[*map(Operation, found["operation"].to_pylist())], found["key"].to_pylist(), found["size"].to_pylist()]
    [[<Operation.MERGE: 2>, <Operation.MERGE: 2>, <Operation.GET: 0>, <Operation.DELETE: 3>], [8, 7, 7, 7], [5, 3, 0, 0]]
    """

    def __init__(self, plan: WindowPlan) -> None:
        self._plan = plan
        self._incremental = plan.pattern is Pattern.RMW
        reads_and_writes = self._incremental or isinstance(plan.windows, Intervals)
        self._entering = (GET, PUT) if reads_and_writes else (MERGE,)
        self._parts: list[dict[str, Any]] = []
        self._ended = 0

    def enters(self, rows: pa.RecordBatch, places: Places, start: Times, end: Times, side: int = 0) -> None:
        """Rows enter windows: each reads and writes them, or appends to them."""
        key, size = self._keys(rows)[places], self._sizes(rows)[places]
        at = rows[ARRIVAL].to_numpy()[places], np.arange(len(places))
        for number, operation in enumerate(self._entering):
            self._add(operation, key, (start, end), size, at, number, family=side)

    def merges(self, rows: pa.RecordBatch, start: Times, end: Times, steps: Steps, index: KeyIndex) -> None:
        """Rows enter sessions. A mapping says which windows of a key are one, as in Flink; it is written when it changes."""
        key, size, order = self._keys(rows), self._sizes(rows), rows[ARRIVAL].to_numpy()
        line, into = np.arange(rows.num_rows), window_ids(index, steps.slots)
        self._add(GET, key, None, size, (order, line), 0, family=MAPPING)
        by = np.repeat(line, steps.absorbed)  # the row that has had a window absorbed
        number = 1 + 4 * np.arange(len(by))
        gone, bounds = window_ids(index, steps.others), index.bounds(steps.others)
        for more, operation in enumerate((GET, DELETE)):
            self._add(operation, key[by], bounds, size[by], (order[by], by), number + more, window=gone)
        for more, operation in enumerate(self._entering, 2):
            own = start[by], end[by]
            self._add(operation, key[by], own, size[by], (order[by], by), number + more, window=into[by])
        for more, operation in enumerate(self._entering):
            self._add(operation, key, (start, end), size, (order, line), _OWN + more, window=into)
        changed = np.flatnonzero(steps.changed)
        self._remap(key[changed], steps.windows[changed], (order[changed], changed), _AFTER, fired=False)

    def leaves(
        self,
        keys: pl.DataFrame,
        start: Times,
        end: Times,
        *,
        side: int = 0,
        ids: Times | None = None,
        left: Times | None = None,
        when: Times | None = None,
        read: bool = True,
        removed: bool = True,
    ) -> None:
        """Windows fire or end: they are read and deleted, and the mapping of sessions is written twice without them."""
        columns = arrow.of(keys.select(self._plan.keys)).combine_chunks()
        key = key_numbers([column.chunk(0) for column in columns.columns] if keys.height else [], keys.height)
        at = end if when is None else when, self._ended + np.arange(keys.height)
        self._ended += keys.height
        if left is not None:
            self._add(GET, key, None, 0, at, 0, family=MAPPING, fired=True)
        for number, operation in enumerate([GET] * read + [DELETE] * removed, 1):
            self._add(operation, key, (start, end), 0, at, number, family=side, window=ids, fired=True)
        if left is not None:
            self._remap(key, left, at, _OWN, fired=True)
            self._remap(key, left, at, _AFTER, fired=True)

    def accesses(self) -> pa.RecordBatch:
        """All of it in order, as `forebay.harness.capture.SCHEMA` has it."""
        if not self._parts:
            return captured(**dict.fromkeys(SCHEMA.names, ()))
        columns = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        order = np.lexsort([columns[name] for name in ("within", "line", "order", "fired")])
        return captured(**{name: columns[name][order] for name in SCHEMA.names})

    def _remap(self, key: Times, windows: Times, at: tuple[Times, Times], within: int, *, fired: bool) -> None:
        """The mapping of keys is cleared, and written with so many windows."""
        self._add(DELETE, key, None, 0, at, within, family=MAPPING, fired=fired)
        entry = np.repeat(np.arange(len(key)), windows)
        number = within + 1 + np.arange(len(entry))
        there = at[0][entry], at[1][entry]
        self._add(MERGE, key[entry], None, MAPPING_ENTRY, there, number, family=MAPPING, fired=fired)

    def _add(
        self,
        operation: Operation,
        key: Times,
        bounds: tuple[Times, Times] | None,
        size: Times | int,
        at: tuple[Times, Times],
        within: Times | int,
        *,
        family: int = 0,
        window: Times | None = None,
        fired: bool = False,
    ) -> None:
        """Accesses of one kind to the windows of keys, or to what there is once for each key.

        ``at`` is their order, and the line among those of equal order; ``within`` is their position in the line.
        """
        start, end = bounds or (0, 0)
        line = {"order": at[0], "line": at[1], "within": within, "key": key, "start": start, "end": end, "family": family}
        whole = {**line, "size": size if operation in (PUT, MERGE) else 0, "window": 0 if window is None else window}
        part: dict[str, Any] = {
            name: np.broadcast_to(np.asarray(value, np.int64), len(key)) for name, value in whole.items()
        }
        part["operation"], part["fired"] = np.full(len(key), operation, np.uint8), np.full(len(key), fired)
        self._parts.append(part)

    def _keys(self, rows: pa.RecordBatch) -> Times:
        return key_numbers([rows[name] for name in self._plan.keys], rows.num_rows)

    def _sizes(self, rows: pa.RecordBatch) -> Times:
        """Bytes that an access writes for each row: those of the row without its key, or of an average partial aggregate."""
        names = [name for name in self._plan.packed.names if name not in self._plan.keys]
        aggregation = self._plan.aggregation
        if self._incremental and isinstance(aggregation, Aggregation):
            some = rows.slice(0, _SAMPLE).select(self._plan.packed.names)
            partials = aggregation.partial(pl.DataFrame(some)).drop(self._plan.keys)
            return np.full(rows.num_rows, round(partials.estimated_size() / max(partials.height, 1)), np.int64)
        return arrow.row_bytes([rows[name] for name in names], rows.num_rows)
