"""Rows that are given and asked for one at a time, by key and window: a table before an `UnalignedStore` of batches.

A step of the store costs the same for one row as for thousands. So rows stay in a dict, a `RowTable`, until they fill its
memory; then the half whose windows have the farthest estimated trigger times (ETT) goes to the store in batches. When a
window is asked for that the store has, the windows with the nearest ETT are read along with it, and wait `ahead` (predictive
batch read, FlowKV, section 4.2).

How many are read ahead follows how many of the last ones were asked for: keys that are read in no order are read alone.

A row of the store that waits ahead is still the store's, and costs nothing if it is not needed. One that is taken from there
is `gone`: the store removes it with others, before it is asked for anything else.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay.store.key_index import KeyIndex, Slots, identity
from forebay.store.options import Options
from forebay.store.predictors import Predictor, at_end
from forebay.store.room import LAST, PART_BYTES, Room, mean_bytes, sample
from forebay.store.unaligned import SLOT, UnalignedStore

Window = tuple[int, int]
StateKey = tuple[Any, Window]
Held = TypeVar("Held")

_OVERHEAD = 350
"""About how many bytes Python takes for an entry of the table: the tuples, the numbers in them, and their places."""

_UNKNOWN = -(2**63)
_MOST_GONE = 1 << 12

_LEAST_AHEAD, _TRIED_AGAIN = 16, 64
"""Windows that are read ahead at first, and after how many reads from the store again if they were of no use."""


class RowTable(dict[StateKey, Held], ABC, Generic[Held]):
    """The rows in memory, by key and window; reading a state key that is not there asks the store.

    Parameters
    ----------
    store : UnalignedStore
        Where rows go that have no room. It must not read ahead itself.
    schema : pyarrow.Schema
        Its columns, ``key`` and ``value``.
    options : Options
        A half of the memory is the table's, and the `read_batch_ratio` is the share of windows that is read ahead.
    predictor : callable
        The ETT of windows.
    """

    def __init__(
        self,
        store: UnalignedStore,
        schema: pa.Schema,
        options: Options,
        predictor: Predictor = at_end,
    ) -> None:
        super().__init__()
        self._store, self._schema, self._predictor = store, schema, predictor
        self._room = Room(options)
        self._most_ahead = options.write_buffer_bytes // 2
        self._ratio = options.read_batch_ratio
        self._ahead: dict[StateKey, tuple[int, list[Any]]] = {}
        self._span, self._used, self._misses = _LEAST_AHEAD, 0, 0
        self._gone: dict[StateKey, int] = {}
        self._stored = 1 if store.base.version is not None else 0

    @property
    def given(self) -> int:
        """How many rows were given one at a time."""
        return self._room.given

    @property
    def nbytes(self) -> int:
        """About how much memory the rows take."""
        some = sample(self)  # to step over names makes no tuples, as to step over items would
        keys = mean_bytes(key for key, _ in some)
        values = mean_bytes(value for named in some for value in self._rows(self[named])[-LAST:])
        return int(len(self) * (_OVERHEAD + keys) + self._count() * values)

    @abstractmethod
    def take(self, named: StateKey) -> Any:
        """Read and remove what a state key has."""

    def discard(self, named: StateKey) -> None:
        """Remove what a state key has, if it has anything."""
        self.pop(named, None)
        if self._stored:
            self._forget(named)

    def settle(self) -> None:
        """Hand all rows to the store."""
        self._spill(list(self))

    def write(self, batch: pa.RecordBatch, bounds: npt.NDArray[np.int64], etts: npt.NDArray[np.int64] | None = None) -> None:
        """Give rows with windows ``start, end`` to the store at once, after those that the table has."""
        self.settle()
        self._ahead.clear()
        slots = _placed(self._store.index, batch["key"], bounds, etts)
        self._stored = len(self._store.index)
        self._replace(slots)
        self._store.append(batch, slots)

    # private ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _rows(self, held: Held) -> Sequence[Any]:
        """The values of an entry."""

    @abstractmethod
    def _count(self) -> int:
        """How many values there are."""

    def _drop(self, named: StateKey) -> Held | None:
        """Take an entry out of memory; None if there is none."""
        return self.pop(named, None)

    def _replace(self, slots: Slots) -> None:
        """Have the store forget what other rows will replace."""

    def _etts(self, names: Sequence[StateKey]) -> Any:
        """The ETT of each state key."""
        bounds = np.array([window for _, window in names], np.int64).reshape(-1, 2)
        return self._predictor(bounds[:, 0], bounds[:, 1], bounds[:, 0])

    def _look(self) -> None:
        """Make room if there is none."""
        while self._room.full(self.nbytes, self._count()):
            names = list(self)
            farthest = np.argsort(-self._etts(names), kind="stable")[: (len(names) + 1) // 2]
            self._spill([names[number] for number in farthest.tolist()])

    def _spill(self, names: Sequence[StateKey]) -> None:
        """Hand rows to the store. Nothing has changed if a row cannot be brought into a batch."""
        self._remove_gone()
        if not names:
            return
        etts = np.ascontiguousarray(self._etts(names))
        parts = [self._part(names, etts, places, values) for places, values in self._cut(names)]
        for part, keys, bounds, ett, owners, values in parts:
            slots = _placed(self._store.index, keys, bounds, ett)
            self._stored = len(self._store.index)
            for named in part:
                self._drop(named)
                self._ahead.pop(named, None)
            rows = pa.RecordBatch.from_arrays([keys.take(owners), values], schema=self._schema)
            self._store.append(rows, slots[owners.to_numpy()])

    def _cut(self, names: Sequence[StateKey]) -> Iterator[tuple[list[int], list[Sequence[Any]]]]:
        """Entries by their places, and their values, as many at a time as surely fit into a batch."""
        places: list[int] = []
        values: list[Sequence[Any]] = []
        size = 0.0
        for place, named in enumerate(names):
            held = self._rows(self[named])
            each = mean_bytes([named[0]]) + mean_bytes(held[:: -(-len(held) // LAST) or 1])
            rows = max(1, int(PART_BYTES / each))
            for begin in range(0, len(held), rows):
                some = held[begin : begin + rows]
                if places and size + each * len(some) > PART_BYTES:
                    yield places, values
                    places, values, size = [], [], 0.0
                places.append(place)
                values.append(some)
                size += each * len(some)
        if places:
            yield places, values

    def _part(
        self, names: Sequence[StateKey], etts: npt.NDArray[np.int64], places: list[int], values: list[Sequence[Any]]
    ) -> tuple[Any, ...]:
        """What `_spill` needs of entries."""
        part = [names[place] for place in places]
        keys = pa.array([key for key, _ in part], self._schema.types[0])
        column = pa.array(itertools.chain.from_iterable(values), self._schema.types[1])
        bounds = np.array([window for _, window in part], np.int64).reshape(-1, 2)
        owners = pa.array(np.repeat(np.arange(len(part)), [len(some) for some in values]))
        return part, keys, bounds, etts[places], owners, column

    def _fetch(self, named: StateKey) -> tuple[list[Any], int]:
        """What the store has of a state key, which it loses; and its ETT."""
        found = self._ahead.pop(named, None)
        if found is None:
            slot = self._slot(named)
            if slot < 0:
                return [], 0
            self._read(slot)
            found = self._ahead.pop(named)
        else:
            self._used += 1
        slot, values = found
        ett = int(self._store.index.columns.ett[slot])
        self._forget(named, slot)
        return values, ett

    def _forget(self, named: StateKey, slot: int | None = None) -> None:
        """Have the store lose what it has of a state key, unread."""
        if slot is None:
            found = self._ahead.pop(named, None)
            slot = self._slot(named) if found is None else found[0]
        if slot >= 0:
            self._gone[named] = slot
            if len(self._gone) >= _MOST_GONE:
                self._remove_gone()

    def _slot(self, named: StateKey) -> int:
        """The window of a state key in the store; -1 if there is none."""
        if named in self._gone:
            return -1
        key, (start, end) = named
        return self._store.index.find_exact(*_identity(key), start, end)

    def _read(self, requested: int) -> None:
        """Copy a window, and those that are probably asked for next, from the store."""
        self._remove_gone()
        index = self._store.index
        slots = np.append(self._nearest(requested), requested).astype(np.int32)
        windows = dict(zip(slots.tolist(), map(tuple, index.windows(slots).tolist()), strict=True))
        frame = self._store.get(slots)
        keys, values = as_python(frame, self._schema)
        for key, value, slot in zip(map(plain, keys), values, frame[SLOT].to_list(), strict=True):
            self._ahead.setdefault((key, windows[slot]), (slot, []))[1].append(value)

    def _nearest(self, requested: int) -> Slots:
        """Other windows to read: those with the nearest ETT, twice as many as were of use when the last ones were read."""
        index = self._store.index
        self._span = 2 * self._span if 2 * self._used >= self._span else self._span // 2
        self._misses += 1
        if not self._span and self._misses % _TRIED_AGAIN == 0:
            self._span = _LEAST_AHEAD
        self._span, self._used = min(self._span, int(self._ratio * len(index))), 0
        if not self._span:
            self._ahead.clear()
            return np.empty(0, np.int32)
        if len(self._ahead) > 2 * self._span:
            self._ahead.clear()  # they were not asked for
        waiting = np.fromiter((slot for slot, _ in self._ahead.values()), np.int32, len(self._ahead))
        others = np.setdiff1d(index.live(), np.append(waiting, requested), assume_unique=True)
        others = _first(others, index.estimates(others), np.abs(others - requested), self._span)
        sizes = self._store.bytes_of(others) + _OVERHEAD
        return others[: np.searchsorted(np.cumsum(sizes), self._most_ahead, side="right")]

    def _remove_gone(self) -> None:
        if self._gone:
            self._store.remove(np.fromiter(self._gone.values(), np.int32, len(self._gone)))
            self._gone.clear()
            self._stored = len(self._store.index)


class LastValues(RowTable[Any]):
    """One value for each state key, the last one that was put: what an RMW store holds.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> options = Options(read_batch_ratio=0)
    >>> store = UnalignedStore(Path(tempfile.mkdtemp()) / "0", None, options)
    >>> table = LastValues(store, pa.schema({"key": pa.string(), "value": pa.int64()}), options)
    >>> table.put(("ann", (0, 5)), 3)
    >>> table.settle()
    >>> len(table), table["ann", (0, 5)], len(table)
    (0, 3, 1)
    """

    def __missing__(self, named: StateKey) -> Any:
        """What the store has, which the table holds from now on; None if it has nothing."""
        if not self._stored:
            return None
        values, _ = self._fetch(named)
        if not values:
            return None
        self[named] = value = values[-1]
        if self._room.read(1):
            self._look()
        return value

    def put(self, named: StateKey, value: Any) -> None:
        """Give a state key a value, in place of one that it may have."""
        if self._stored and named not in self:
            self._forget(named)
        self[named] = value
        room = self._room
        room.left -= 1
        if room.left < 0:
            self._look()

    def take(self, named: StateKey) -> Any:
        """Read and remove a value; None if there is none."""
        if named in self:
            return self.pop(named)
        values = self._fetch(named)[0] if self._stored else None
        return values[-1] if values else None

    def _rows(self, held: Any) -> Sequence[Any]:
        return (held,)

    def _count(self) -> int:
        return len(self)

    def _replace(self, slots: Slots) -> None:
        self._store.renew(np.unique(slots))


class ValueLists(RowTable[list[Any]]):
    """A list of values for each state key, of which the store may have the older ones: what an AUR store holds.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> options = Options(read_batch_ratio=0)
    >>> store = UnalignedStore(Path(tempfile.mkdtemp()) / "0", None, options)
    >>> table = ValueLists(store, pa.schema({"key": pa.string(), "value": pa.int64()}), options)
    >>> table.append(("ann", (0, 5)), 3, 0)
    >>> table.settle()
    >>> table.append(("ann", (0, 5)), 4, 1)
    >>> table.read(("ann", (0, 5))), table.take(("ann", (0, 5))), table.take(("ann", (0, 5)))
    ([3, 4], [3, 4], [])
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._values = 0
        self._newest: dict[StateKey, int] = {}  # timestamps, if the predictor wants them
        self._known: dict[StateKey, int] = {}  # the ETT of what the store has had
        self._timed = self._predictor is not at_end

    def append(self, named: StateKey, value: Any, timestamp: int) -> None:
        """Add a value to the list of a state key."""
        values = self.get(named)
        if values is None:
            self[named] = [value]
        else:
            values.append(value)
        self._values += 1
        if self._timed:
            self._newest[named] = max(timestamp, self._newest.get(named, timestamp))
        room = self._room
        room.left -= 1
        if room.left < 0:
            self._look()

    def read(self, named: StateKey) -> list[Any]:
        """The values of a state key, which stay."""
        if self._stored:
            older, ett = self._fetch(named)
            if older:
                self[named] = older + self.get(named, [])
                self._values += len(older)
                if self._timed:
                    self._known[named] = ett
                found = list(self[named])
                if self._room.read(len(older)):
                    self._look()
                return found
        return list(self.get(named, ()))

    def discard(self, named: StateKey) -> None:
        """Remove what a state key has, if it has anything."""
        self._drop(named)
        super().discard(named)

    def take(self, named: StateKey) -> list[Any]:
        """Read and remove the values of a state key, in the order in which they were added."""
        values = self._drop(named) or []
        return self._fetch(named)[0] + values if self._stored else values

    def _rows(self, held: list[Any]) -> Sequence[Any]:
        return held

    def _count(self) -> int:
        return self._values

    def _drop(self, named: StateKey) -> list[Any] | None:
        values = self.pop(named, None)
        self._values -= len(values or ())
        if self._timed:
            self._newest.pop(named, None)
            self._known.pop(named, None)
        return values

    def _etts(self, names: Sequence[StateKey]) -> Any:
        if not self._timed:
            return super()._etts(names)
        bounds = np.array([window for _, window in names], np.int64).reshape(-1, 2)
        newest = np.array([self._newest.get(named, named[1][0]) for named in names], np.int64)
        known = np.array([self._known.get(named, _UNKNOWN) for named in names], np.int64)
        return np.maximum(self._predictor(bounds[:, 0], bounds[:, 1], newest), known)


def _first(slots: Slots, etts: npt.NDArray[np.int64], distances: Slots, count: int) -> Slots:
    """So many slots, by ETT. Of those with one ETT the nearest slots come first: they were filled at about the same time."""
    if count < len(slots):
        last = np.partition(etts, count - 1)[count - 1]
        sooner, tied = np.flatnonzero(etts < last), np.flatnonzero(etts == last)
        missing = count - len(sooner)
        if missing < len(tied):
            tied = tied[np.argpartition(distances[tied], missing)[:missing]]
        chosen = np.concatenate([sooner, tied])
        slots, etts, distances = slots[chosen], etts[chosen], distances[chosen]
    return slots[np.lexsort((distances, etts))]


def _placed(index: KeyIndex, keys: pa.Array, bounds: npt.NDArray[np.int64], etts: npt.NDArray[np.int64] | None) -> Slots:
    """The windows of rows in the index, by their keys and by bounds ``start, end``; new ones are opened."""
    distinct = keys.dictionary_encode(null_encoding="encode")
    hashes = [_identity(plain(key)) for key in distinct.dictionary.to_pylist()]
    named = np.array(hashes, np.int64).reshape(-1, 2)[distinct.indices.to_numpy()]
    high, low, start, end = (np.ascontiguousarray(column) for column in (*named.T, *bounds.T))
    return index.place_exact(high, low, start, end, etts)


def _identity(key: Any) -> tuple[int, int]:
    return identity(repr(key).encode())


def plain(key: Any) -> Any:
    """A key such that keys are equal in Python if they are equal in Arrow: there is one NaN, one zero, and one time zone."""
    if isinstance(key, float):
        return math.nan if math.isnan(key) else key + 0.0
    if isinstance(key, datetime) and key.tzinfo is not None:
        return key.astimezone(UTC)
    return key


def as_python(frame: pl.DataFrame, schema: pa.Schema) -> list[list[Any]]:
    """Columns of a frame as Arrow gives their values, in the types of a schema."""
    columns = (frame[name].to_arrow(compat_level=pl.CompatLevel.oldest()) for name in schema.names)
    return [column.cast(kind).to_pylist() for column, kind in zip(columns, schema.types, strict=True)]
