"""Rows that are given and asked for one at a time, by key and window: a table before an `UnalignedStore` of batches.

A step of the store costs the same for one row as for thousands. So rows stay in a dict, a `RowTable`, until they fill its
memory; then the half whose windows have the farthest estimated trigger times (ETT) goes to the store in batches. What fires
soon stays, so a window is mostly read from memory; one that the store has is read alone, by its address.

A row that was read from the store is `gone`: the store removes it with others, before it is given anything else.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from forebay import arrow
from forebay.cutting import together
from forebay.store.key_index import Slots
from forebay.store.options import Options
from forebay.store.predictors import Predictor, at_end
from forebay.store.room import LAST, PART_BYTES, WIDE, Room, each_bytes, longest, mean_bytes, sample
from forebay.store.state_keys import StateKey, bounds_of, identity_of, placed
from forebay.store.unaligned import SLOT, UnalignedStore

Held = TypeVar("Held")

_OVERHEAD = 350
"""About how many bytes Python takes for an entry of the table: the tuples, the numbers in them, and their places."""

_MOST_GONE = 1 << 12
"""So many rows that were read are removed from the store together."""


@dataclass(frozen=True)
class _Part:
    """Entries of a table in columns: keys, bounds and ETTs of entries; and of each row its entry, and its value."""

    names: Sequence[StateKey]
    keys: pa.Array
    bounds: npt.NDArray[np.int64]
    etts: npt.NDArray[np.int64]
    owners: npt.NDArray[np.int64]
    values: pa.Array


class RowTable(dict[StateKey, Held], ABC, Generic[Held]):
    """The rows in memory, by key and window; reading a state key that is not there asks the store.

    Parameters
    ----------
    store : UnalignedStore
        Where rows go that have no room. It must not read ahead itself.
    schema : pyarrow.Schema
        Its columns, ``key`` and ``value``.
    options : Options
        A half of the memory is the table's.
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
        self._room, self._longest = Room(options), longest(schema.types[1])
        self._wide = self._room.wide
        self._gone: dict[StateKey, int] = {}
        self._absent: StateKey | None = None  # the store was asked for it last, and has nothing
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
        narrow = mean_bytes((value for named in some for value in self._rows(self[named])[-LAST:]), WIDE)
        return int(len(self) * (_OVERHEAD + keys) + self._count() * narrow) + sum(self._wide.values())

    @abstractmethod
    def take(self, named: StateKey) -> Any:
        """Read and remove what a state key has."""

    def discard(self, named: StateKey) -> None:
        """Remove what a state key has, if it has anything."""
        self._drop(named)
        if self._stored:
            self._forget(named)

    def flush(self) -> None:
        """Hand all rows to the store."""
        self._spill(list(self))

    def write(self, batch: pa.RecordBatch, bounds: npt.NDArray[np.int64], etts: npt.NDArray[np.int64] | None = None) -> None:
        """Give rows with windows ``start, end`` to the store at once, after those that the table has."""
        self.flush()
        slots = placed(self._store.index, batch["key"], bounds, etts)
        self._absent, self._stored = None, len(self._store.index)
        self._replace(slots)
        self._store.append(batch, slots)
        self._store.compact()

    def give(self, values: Mapping[StateKey, Any]) -> None:
        """Give each of some state keys a value. As soon as the store has any, values go there at once."""
        if not values:
            return
        if self._stored:
            names = list(values)
            keys = pa.array([key for key, _ in names], self._schema.types[0])
            columns = [keys, pa.array(values.values(), self._schema.types[1])]
            etts = None if self._predictor is at_end else np.ascontiguousarray(self._etts(names))
            self.write(pa.RecordBatch.from_arrays(columns, schema=self._schema), bounds_of(names), etts)
        else:
            self._hold(values)

    def read_batch(self, names: Sequence[StateKey]) -> list[Sequence[Any]]:
        """The values of state keys, which stay, in the order in which they were added; the store is read once for all."""
        asked = [named for named in names if self._asks(named)] if self._stored else []
        older = self._older(asked) if asked else {}
        nothing: Sequence[Any] = ()
        return [[*older.get(named, nothing), *(self._rows(self[named]) if named in self else nothing)] for named in names]

    def discard_batch(self, names: Sequence[StateKey]) -> None:
        """Remove what some state keys have."""
        for named in names:
            self._drop(named)
        if self._stored and names:
            self._forget_all(names)

    # private ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _rows(self, held: Held) -> Sequence[Any]:
        """The values of an entry."""

    @abstractmethod
    def _hold(self, values: Mapping[StateKey, Any]) -> None:
        """Keep a value of each of some state keys in memory, where there is no other."""

    @abstractmethod
    def _asks(self, named: StateKey) -> bool:
        """Whether the store may have something of a state key that belongs to its values."""

    @abstractmethod
    def _count(self) -> int:
        """How many values there are."""

    def _drop(self, named: StateKey) -> Held | None:
        """Take an entry out of memory; None if there is none."""
        if self._wide:
            self._wide.pop(named, None)
        return self.pop(named, None)

    def _widened(self, values: Iterable[tuple[StateKey, Any]]) -> None:
        """Count the wide ones of values that entries have got."""
        if self._longest is not None:
            for named, value in values:
                self._room.widened(named, value)

    def _replace(self, slots: Slots) -> None:
        """Have the store forget what other rows will replace."""

    def _etts(self, names: Sequence[StateKey]) -> Any:
        """The ETT of each state key."""
        bounds = bounds_of(names)
        return self._predictor(bounds[:, 0], bounds[:, 1], bounds[:, 0])

    def _look(self) -> None:
        """Make room if there is none."""
        while self._room.full(self.nbytes, self._count()):
            names = list(self)
            farthest = np.argsort(-self._etts(names), kind="stable")[: (len(names) + 1) // 2]
            self._spill([names[number] for number in farthest.tolist()])
            self._store.compact()

    def _spill(self, names: Sequence[StateKey]) -> None:
        """Hand rows to the store. Nothing has changed if a row cannot be brought into a batch."""
        self._remove_gone()
        self._absent = None
        if not names:
            return
        etts = np.ascontiguousarray(self._etts(names))
        for part in list(self._parts(names, etts)):
            slots = placed(self._store.index, part.keys, part.bounds, part.etts)
            self._stored = len(self._store.index)
            for named in part.names:
                self._drop(named)
            rows = pa.RecordBatch.from_arrays([part.keys.take(pa.array(part.owners)), part.values], schema=self._schema)
            self._store.append(rows, slots[part.owners])

    def _parts(self, names: Sequence[StateKey], etts: npt.NDArray[np.int64]) -> Iterator[_Part]:
        """Entries in columns, of as many rows at a time as surely fit into a batch."""
        held = [self._rows(self[named]) for named in names]
        values = list(itertools.chain.from_iterable(held))
        owners = np.repeat(np.arange(len(names)), np.fromiter(map(len, held), np.int64, len(held)))
        sizes = each_bytes(values) + each_bytes([key for key, _ in names])[owners]
        for part in together(sizes, PART_BYTES):
            first, last = int(owners[part][0]), int(owners[part][-1]) + 1
            some = names[first:last]
            yield _Part(
                some,
                keys=pa.array([key for key, _ in some], self._schema.types[0]),
                bounds=bounds_of(some),
                etts=etts[first:last],
                owners=owners[part] - first,
                values=pa.array(values[part], self._schema.types[1]),
            )

    def _fetch(self, named: StateKey) -> tuple[list[Any], int]:
        """What the store has of a state key, which it loses; and its ETT."""
        slot = self._slot(named)
        if slot < 0:
            self._absent = named
            return [], 0
        values = [value for part in self._store.get_one(slot) for value in part.column(1).to_pylist()]
        ett = int(self._store.index.records["ett"][slot])
        self._lose(named, slot)
        return values, ett

    def _forget(self, named: StateKey) -> None:
        """Have the store lose what it has of a state key, unread."""
        slot = self._slot(named)
        if slot >= 0:
            self._lose(named, slot)

    def _forget_all(self, names: Sequence[StateKey]) -> None:
        """Have the store lose what it has of state keys, unread."""
        self._remove_gone()
        slots = self._slots(names)
        self._store.remove(np.unique(slots[slots >= 0]))
        self._stored = len(self._store.index)

    def _older(self, names: Sequence[StateKey]) -> dict[StateKey, list[Any]]:
        """What the store has of some state keys, which stays there."""
        self._remove_gone()
        slots = self._slots(names)
        frame = self._store.get(np.unique(slots[slots >= 0]))
        if not frame.height:
            return {}
        found: dict[int, list[Any]] = {}
        (values,) = as_python(frame, pa.schema([self._schema.field(1)]))
        for slot, value in zip(frame[SLOT].to_list(), values, strict=True):
            found.setdefault(slot, []).append(value)
        return {named: found[slot] for named, slot in zip(names, slots.tolist(), strict=True) if slot in found}

    def _lose(self, named: StateKey, slot: int) -> None:
        self._gone[named] = slot
        if len(self._gone) >= _MOST_GONE:
            self._remove_gone()

    def _slot(self, named: StateKey) -> int:
        """The window of a state key in the store; -1 if there is none."""
        if named in self._gone:
            return -1
        key, (start, end) = named
        return self._store.index.find_exact(*identity_of(key), start, end)

    def _slots(self, names: Sequence[StateKey]) -> Slots:
        """The windows of state keys in the store; -1 for each that it does not have."""
        identities = np.array([identity_of(key) for key, _ in names], np.int64).reshape(-1, 2)
        high, low, start, end = (np.ascontiguousarray(column) for column in (*identities.T, *bounds_of(names).T))
        return self._store.index.find_each(high, low, start, end)

    def _remove_gone(self) -> None:
        if self._gone:
            self._store.remove(np.fromiter(self._gone.values(), np.int32, len(self._gone)))
            self._gone.clear()
            self._stored = len(self._store.index)


def as_python(frame: pl.DataFrame, schema: pa.Schema) -> list[list[Any]]:
    """Columns of a frame as Arrow gives their values, in the types of a schema."""
    columns = (arrow.of(frame[name]) for name in schema.names)
    return [column.cast(kind).to_pylist() for column, kind in zip(columns, schema.types, strict=True)]
