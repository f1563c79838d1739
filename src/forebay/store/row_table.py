"""Rows that are given and asked for one at a time, by key and window: a table before an `UnalignedStore` of batches.

A step of the store costs the same for one row as for thousands. So rows stay in a dict, a `RowTable`, until they fill its
memory; then the half whose windows have the farthest estimated trigger times (ETT) goes to the store as one batch. When a
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
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.store.key_index import KeyIndex, Slots, identity
from forebay.store.options import Options
from forebay.store.predictors import Predictor, at_end
from forebay.store.room import Room, mean_bytes
from forebay.store.unaligned import SLOT, UnalignedStore

Window = tuple[int, int]
StateKey = tuple[Any, Window]
Held = TypeVar("Held")

_OVERHEAD = 350
"""About how many bytes Python takes for an entry of the table: the tuples, the numbers in them, and their places."""

_SAMPLED = 64
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
        self._room = Room(2 * options.write_buffer_bytes)
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
        return int(len(self) * self._entry_bytes())

    @abstractmethod
    def take(self, named: StateKey) -> Any:
        """Read and remove what a state key has."""

    def discard(self, named: StateKey) -> None:
        """Remove what a state key has, if it has anything."""
        self.pop(named, None)
        if self._stored:
            self._fetch(named)

    def settle(self) -> None:
        """Hand all rows to the store."""
        self._spill(list(self))

    def write(self, batch: pa.RecordBatch, bounds: npt.NDArray[np.int64], etts: npt.NDArray[np.int64] | None = None) -> None:
        """Give rows with windows ``start, end`` to the store at once, after those that the table has."""
        self.settle()
        self._ahead.clear()
        slots = _placed(self._store.index, batch["key"], bounds, etts)
        self._replace(slots)
        self._store.append(batch, slots)
        self._stored = len(self._store.index)

    # private ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _rows(self, held: Held) -> Sequence[Any]:
        """The values of an entry."""

    def _replace(self, slots: Slots) -> None:
        """Have the store forget what other rows will replace."""

    def _etts(self, names: Sequence[StateKey]) -> Any:
        """The ETT of each state key."""
        bounds = np.array([window for _, window in names], np.int64).reshape(-1, 2)
        return self._predictor(bounds[:, 0], bounds[:, 1], bounds[:, 0])

    def _entry_bytes(self) -> float:
        """About how many bytes an entry takes, from some of them."""
        held = itertools.islice(self.values(), 0, None, -(-len(self) // _SAMPLED) or 1)
        some = [self._rows(each) for each in held]
        values = sum(map(len, some)) / max(1, len(some))
        return _OVERHEAD + values * mean_bytes(row[-1] for row in some)

    def _look(self) -> None:
        """Make room if there is none."""
        while self._room.full(len(self), self._entry_bytes()):
            names = list(self)
            farthest = np.argsort(-self._etts(names), kind="stable")[: (len(names) + 1) // 2]
            self._spill([names[number] for number in farthest.tolist()])

    def _spill(self, names: Sequence[StateKey]) -> None:
        self._remove_gone()
        if not names:
            return
        etts = self._etts(names)
        held = [self._rows(self.pop(named)) for named in names]
        for named in self._ahead.keys() & names:
            del self._ahead[named]
        lengths = [len(row) for row in held]
        values = pa.array(itertools.chain.from_iterable(held), self._schema.types[1])
        keys = pa.array([key for key, _ in names], self._schema.types[0])
        bounds = np.array([window for _, window in names], np.int64).reshape(-1, 2)
        owners = np.repeat(np.arange(len(names)), lengths)
        slots = _placed(self._store.index, keys, bounds, np.ascontiguousarray(etts))
        batch = pa.RecordBatch.from_arrays([keys.take(pa.array(owners)), values], schema=self._schema)
        self._store.append(batch, slots[owners])
        self._stored = len(self._store.index)

    def _fetch(self, named: StateKey) -> list[Any]:
        """What the store has of a state key, which it loses."""
        found = self._ahead.pop(named, None)
        if found is None:
            if named in self._gone:
                return []
            slot = self._slot(named)
            if slot is None:
                return []
            self._read(slot)
            found = self._ahead.pop(named)
        else:
            self._used += 1
        slot, values = found
        self._gone[named] = slot
        if len(self._gone) >= _MOST_GONE:
            self._remove_gone()
        return values

    def _slot(self, named: StateKey) -> int | None:
        key, (start, end) = named
        index = self._store.index
        slot = index.find_exact(*identity(repr(key).encode()), start, end)
        return None if slot < 0 else slot

    def _read(self, requested: int) -> None:
        """Copy a window, and those that are probably asked for next, from the store."""
        self._remove_gone()
        index = self._store.index
        slots = np.append(self._nearest(requested), requested).astype(np.int32)
        windows = dict(zip(slots.tolist(), map(tuple, index.windows(slots).tolist()), strict=True))
        frame = self._store.get(slots)
        keys = frame["key"].to_list()
        if pa.types.is_floating(self._schema.types[0]):
            keys = list(map(plain, keys))
        for key, value, slot in zip(keys, frame["value"].to_list(), frame[SLOT].to_list(), strict=True):
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
        if self._span < len(others):
            others = others[np.argpartition(index.estimates(others), self._span)[: self._span]]
        others = others[np.argsort(index.estimates(others))]
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
        values = self._fetch(named)
        if not values:
            return None
        self[named] = values[-1]
        return values[-1]

    def put(self, named: StateKey, value: Any) -> None:
        """Give a state key a value, in place of one that it may have."""
        if self._stored and named not in self:
            self._fetch(named)
        self[named] = value
        room = self._room
        room.left -= 1
        if room.left < 0:
            self._look()

    def take(self, named: StateKey) -> Any:
        """Read and remove a value; None if there is none."""
        if named in self:
            return self.pop(named)
        values = self._fetch(named) if self._stored else None
        return values[-1] if values else None

    def _rows(self, held: Any) -> Sequence[Any]:
        return (held,)

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
        self._newest: dict[StateKey, int] | None = None if self._predictor is at_end else {}

    def append(self, named: StateKey, value: Any, timestamp: int) -> None:
        """Add a value to the list of a state key."""
        values = self.get(named)
        if values is None:
            self[named] = [value]
        else:
            values.append(value)
        if self._newest is not None:
            self._newest[named] = max(timestamp, self._newest.get(named, timestamp))
        room = self._room
        room.left -= 1
        if room.left < 0:
            self._look()

    def read(self, named: StateKey) -> list[Any]:
        """The values of a state key, which stay."""
        if self._stored:
            older = self._fetch(named)
            if older:
                self[named] = older + self.get(named, [])
        return self.get(named) or []

    def take(self, named: StateKey) -> list[Any]:
        """Read and remove the values of a state key, in the order in which they were added."""
        values = self.pop(named, None) or []
        if self._newest is not None:
            self._newest.pop(named, None)
        return self._fetch(named) + values if self._stored else values

    def discard(self, named: StateKey) -> None:
        """Remove what a state key has, if it has anything."""
        self.take(named)

    def _rows(self, held: list[Any]) -> Sequence[Any]:
        return held

    def _etts(self, names: Sequence[StateKey]) -> Any:
        if self._newest is None:
            return super()._etts(names)
        bounds = np.array([window for _, window in names], np.int64).reshape(-1, 2)
        newest = np.array([self._newest.get(named, named[1][0]) for named in names], np.int64)
        return self._predictor(bounds[:, 0], bounds[:, 1], newest)


def _placed(index: KeyIndex, keys: pa.Array, bounds: npt.NDArray[np.int64], etts: npt.NDArray[np.int64] | None) -> Slots:
    """The windows of rows in the index, by their keys and by bounds ``start, end``; new ones are opened."""
    distinct = keys.dictionary_encode(null_encoding="encode")
    hashes = [identity(repr(key).encode()) for key in distinct.dictionary.to_pylist()]
    named = np.array(hashes, np.int64).reshape(-1, 2)[distinct.indices.to_numpy()]
    high, low, start, end = (np.ascontiguousarray(column) for column in (*named.T, *bounds.T))
    return index.place_exact(high, low, start, end, etts)


def plain(key: Any) -> Any:
    """A key that a dict finds again: there is one NaN."""
    return math.nan if isinstance(key, float) and math.isnan(key) else key
