"""The driver: it assigns events to state machines, runs these, and ends them when a watermark says so (Gadget, section 5.2).

An operator is a small class with three methods, in plain Python. `Operator.assign_state_machines` says which state keys the
events of a block belong to, on whole columns. `Operator.run` and `Operator.terminate` are the finite state machine of every
state key. The driver asks them once for each state and kind of event; from then on the machines are tables, and the loop
over events is compiled.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.errors import InvalidArgument
from forebay.harness import driver_kernels as kernels
from forebay.harness.access import SCHEMA, Operation, limited
from forebay.harness.events import BEGINNING, END, Events, Stream, Times, merged

NEVER = kernels.NEVER
"""The expiry of a state machine that stays."""

MOST_STATES = 1 << 12

_BATCH = 1 << 17
_ROWS, _FEW_EVENTS = 1 << 18, 1 << 4
"""So many rows of `Assigned` are made at once, about, and of so many events the first ones."""


class Request(NamedTuple):
    """An operation on the machine's own state key.

    Attributes
    ----------
    operation : Operation
        What is done.
    family : int
        In which of the operator's states.
    whole : bool
        A put writes all that the machine has been given so far, instead of as much as the event has brought.
    """

    operation: Operation
    family: int = 0
    whole: bool = False


Step = Sequence[Request | Operation]


class Assigned(NamedTuple):
    """Which state keys events belong to: a row for each event and state key.

    Attributes
    ----------
    event : array of int64
        The numbers of events within their block, which never fall.
    start, end : array of int64
        The bounds of the windows; both 0 where there is none.
    expiry : array of int64
        The watermark at which the state machine ends, or `NEVER`. An event is late where that has passed.
    part : array of int32
        Tells state machines apart that are equal in all else.
    """

    event: npt.NDArray[np.int64]
    start: Times
    end: Times
    expiry: Times
    part: npt.NDArray[np.int32]


@dataclass(frozen=True)
class Operator(ABC):
    """What an operator does to its state.

    Examples
    --------
    A count of events per key that is cleared by a final event:

    >>> from forebay.harness.access import DELETE, GET, PUT
    >>> from forebay.harness.operators import each_key
    >>> from forebay.harness.events import Source
    >>> class CountUntilFinal(Operator):
    ...     def assign_state_machines(self, events):
    ...         return each_key(events)
    ...     def run(self, state, side, final):
    ...         return ([DELETE] if final else [GET, PUT]), state
    >>> batches = Driver(CountUntilFinal()).accesses([Source(events=1000, final=0.25)])
    >>> 1000 < sum(batch.num_rows for batch in batches) < 2000
    True
    """

    inputs: ClassVar[int] = 1
    """How many streams the operator has."""
    merging: ClassVar[bool] = False
    """Windows of a key that touch become one. The one that begins first stays; the others terminate, and it runs again."""

    @abstractmethod
    def assign_state_machines(self, events: Events) -> Assigned:
        """The state keys of a block of events."""

    @abstractmethod
    def run(self, state: Any, side: int, final: bool) -> tuple[Step, Hashable]:
        """What a machine requests when an event of an input comes, and its next state; the first state is None."""

    def terminate(self, state: Any) -> Step:
        """What a machine requests when it ends."""
        return ()


class Driver:
    """Turns events into the state accesses of an operator, once.

    Parameters
    ----------
    operator : Operator
        The operator.

    Attributes
    ----------
    events : int
        How many events have come.
    late : int
        How often an event was too late for a window.
    watermark : int
        The latest one.

    Examples
    --------
    >>> from forebay.harness.events import Source
    >>> from forebay.harness.operators import Aggregation
    >>> driver = Driver(Aggregation())
    >>> sum(batch.num_rows for batch in driver.accesses([Source(events=1000)])), driver.events
    (2000, 1000)
    """

    def __init__(self, operator: Operator) -> None:
        self.operator, self.events = operator, 0
        self._runs, self._ends, self._requests = _tables(operator)
        counts = (*self._runs[:, :, 1].ravel(), *self._ends[:, 1])
        self._most = int(max(counts))
        self._scalars = np.zeros(8, np.int64)
        self._scalars[kernels.WATERMARK] = BEGINNING
        self._machines = np.recarray(0, kernels.MACHINE)
        self._directory = self._free = np.empty(0, np.int32)
        self._heap: tuple[npt.NDArray[Any], ...] = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))
        self._grow(1 << 10)
        self._at_once = _FEW_EVENTS
        self._batch = self._left = _BATCH
        self._room(_BATCH)

    @property
    def late(self) -> int:
        """How often an event was too late for a window."""
        return int(self._scalars[kernels.LATE])

    @property
    def watermark(self) -> int:
        """The latest watermark."""
        return int(self._scalars[kernels.WATERMARK])

    @property
    def machines(self) -> int:
        """How many state machines there are now, those among them that a merge has ended."""
        return int(self._scalars[kernels.USED] - self._scalars[kernels.FREE])

    def accesses(self, streams: Sequence[Stream], drain: bool = True, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """The accesses that the events of some streams cause, as record batches of `forebay.harness.access.SCHEMA`.

        Parameters
        ----------
        streams : sequence of Stream
            As many as the operator has inputs, or more: those beyond count as the last one.
        drain : bool
            At the end all windows expire, as at the end of a stream in Flink.
        limit : int, optional
            So many accesses are made at most; `events` counts those that caused them.
        """
        if self.events:
            raise InvalidArgument("this driver has run already, and its watermark is at the end; make another one")
        if len(streams) < self.operator.inputs:
            name, inputs = type(self.operator).__name__, self.operator.inputs
            raise InvalidArgument(f"{name} has {inputs} inputs; give it as many sources, not {len(streams)}")
        self._left = sys.maxsize if limit is None else limit
        self._room(min(self._batch, max(self._left, 1)))
        yield from limited(self._accesses(streams, drain), limit)

    def _accesses(self, streams: Sequence[Stream], drain: bool) -> Iterator[pa.RecordBatch]:
        for block in self._pieces(merged(streams)):
            side = np.minimum(block.side, self.operator.inputs - 1)
            symbols = (2 * side + block.final).astype(np.int32)
            rows = self.operator.assign_state_machines(block)
            self._at_once = max(1, _ROWS * len(block) // max(len(rows.event), 1))
            columns = (block.key, block.size, block.arrival, symbols, block.watermark)
            yield from self._drive(rows, columns, len(block))
            last = block.arrival[-1:]
        if drain and self.events:
            nothing = np.zeros(0, np.int64)
            rows = Assigned(nothing, nothing, nothing, nothing, np.zeros(0, np.int32))
            zero = np.zeros(1, np.int64)
            yield from self._drive(rows, (zero, zero, last, np.zeros(1, np.int32), np.array([END])), 0)
        yield from self._flush()

    def _pieces(self, blocks: Iterator[Events]) -> Iterator[Events]:
        """The events, as many at a time as belong to a bounded number of state keys."""
        for block in blocks:
            begin = 0
            while begin < len(block):
                piece = block.part(slice(begin, begin + self._at_once))
                begin += len(piece)
                yield piece

    def _drive(self, rows: Assigned, columns: tuple[npt.NDArray[Any], ...], events: int) -> Iterator[pa.RecordBatch]:
        given = tuple(np.ascontiguousarray(each, np.int64) for each in rows)
        block = tuple(np.ascontiguousarray(each) for each in columns)
        row, before, number = 0, self.events, given[0]
        while True:
            row = kernels.drive(
                *(self._machines, self._directory, self._heap, self._free, self._scalars, self.operator.merging),
                *(self._runs, self._ends, self._requests, self._most, given, block, row, self._out),
            )
            why = self._scalars[kernels.WHY]
            self.events = before + (int(number[row]) if row < len(number) else events)
            if why == kernels.DONE:
                return
            if why == kernels.SLOTS_FULL:
                self._grow(2 * len(self._machines))
            elif self._scalars[kernels.AT]:
                yield from self._flush()
            else:
                self._batch = max(self._batch, 2 * len(self._out[0]))
                self._room(2 * len(self._out[0]))

    def _flush(self) -> Iterator[pa.RecordBatch]:
        count = int(self._scalars[kernels.AT])
        if count:
            yield pa.RecordBatch.from_arrays([pa.array(column[:count]) for column in self._out], schema=SCHEMA)
            self._left -= count
            self._room(min(self._batch, max(self._left, 1)))

    def _room(self, accesses: int) -> None:
        """New arrays for accesses; those before belong to the batch that was made of them."""
        self._out = tuple(np.empty(accesses, kind.to_pandas_dtype()) for kind in SCHEMA.types)
        self._scalars[kernels.AT] = 0

    def _grow(self, machines: int) -> None:
        before, used = self._machines, len(self._machines)
        self._machines = np.recarray(machines, kernels.MACHINE)
        self._machines[:used] = before
        self._heap = tuple(np.resize(column, machines) for column in self._heap)
        self._free = np.resize(self._free, machines)
        directory = np.full(2 * machines, kernels.EMPTY, np.int32)
        kernels.refill(self._machines, directory, self.operator.merging, self._directory)
        self._directory = directory


def _tables(operator: Operator) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The state machine as tables: steps by state and kind of event, ends by state, and the requests of both."""
    states: dict[Hashable, int] = {None: 0}
    requests: list[Request] = []
    runs, ends = [], []

    def put(step: Step) -> tuple[int, int]:
        first = len(requests)
        requests.extend(each if isinstance(each, Request) else Request(each) for each in step)
        return first, len(step)

    waiting: list[Hashable] = [None]
    while waiting:
        state = waiting.pop(0)
        row = []
        for symbol in range(4):
            step, following = operator.run(state, symbol // 2, bool(symbol % 2))
            if following not in states:
                states[following] = len(states)
                waiting.append(following)
            row.append((*put(step), states[following]))
        runs.append(row)
        ends.append(put(operator.terminate(state)))
        if len(states) > MOST_STATES:
            name = type(operator).__name__
            raise InvalidArgument(
                f"{name}.run leads to more than {MOST_STATES} states; a state machine has a few, which return"
            )
    table = np.array([tuple(each) for each in requests], np.int32).reshape(-1, 3)
    return np.array(runs, np.int32), np.array(ends, np.int32).reshape(-1, 2), table
