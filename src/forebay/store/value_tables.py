"""Tables of rows that are given one at a time: of each state key its last value, or all its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forebay.store.key_index import Slots
from forebay.store.predictors import at_end
from forebay.store.row_table import RowTable
from forebay.store.state_keys import StateKey, bounds_of

_NEVER_STORED = -(2**63)
"""Before the ETT of any window."""


class LastValues(RowTable[Any]):
    """One value for each state key, the last one that was put: what an RMW store holds.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa
    >>> from pathlib import Path
    >>> from forebay.store.options import Options
    >>> from forebay.store.unaligned import UnalignedStore
    >>> options = Options(read_batch_ratio=0)
    >>> store = UnalignedStore(Path(tempfile.mkdtemp()) / "0", None, options)
    >>> table = LastValues(store, pa.schema({"key": pa.string(), "value": pa.int64()}), options)
    >>> table.put(("ann", (0, 5)), 3)
    >>> table.flush()
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
        self._widened([(named, value)])
        if self._room.read(1):
            self._look()
        return value

    def put(self, named: StateKey, value: Any) -> None:
        """Give a state key a value, in place of one that it may have."""
        if self._stored and named != self._absent and named not in self:
            self._forget(named)
        self[named] = value
        room, most = self._room, self._longest
        room.left -= 1
        if most is not None:
            if self._wide:
                self._wide.pop(named, None)
            if value is not None and len(value) > most:
                room.widened(named, value)
        if room.left < 0:
            self._look()

    def take(self, named: StateKey) -> Any:
        """Read and remove a value; None if there is none."""
        if named in self:
            if self._wide:
                self._wide.pop(named, None)
            return self.pop(named)
        values = self._fetch(named)[0] if self._stored else None
        return values[-1] if values else None

    def _rows(self, held: Any) -> Sequence[Any]:
        return (held,)

    def _asks(self, named: StateKey) -> bool:
        return named not in self

    def _hold(self, values: Mapping[StateKey, Any]) -> None:
        self.update(values)
        if self._wide:
            for named in values:
                self._wide.pop(named, None)
        self._room.left -= len(values)
        self._widened(values.items())
        if self._room.left < 0:
            self._look()

    def _count(self) -> int:
        return len(self)

    def _replace(self, slots: Slots) -> None:
        self._store.renew(np.unique(slots))


class ValueLists(RowTable[list[Any]]):
    """A list of values for each state key, of which the store may have the older ones: what an AUR store holds.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa
    >>> from pathlib import Path
    >>> from forebay.store.options import Options
    >>> from forebay.store.unaligned import UnalignedStore
    >>> options = Options(read_batch_ratio=0)
    >>> store = UnalignedStore(Path(tempfile.mkdtemp()) / "0", None, options)
    >>> table = ValueLists(store, pa.schema({"key": pa.string(), "value": pa.int64()}), options)
    >>> table.append(("ann", (0, 5)), 3, 0)
    >>> table.flush()
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
        room, most = self._room, self._longest
        room.left -= 1
        if most is not None and value is not None and len(value) > most:
            room.widened(named, value)
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
                self._widened((named, value) for value in older)
                if self._room.read(len(older)):
                    self._look()
                return found
        return list(self.get(named, ()))

    def take(self, named: StateKey) -> list[Any]:
        """Read and remove the values of a state key, in the order in which they were added."""
        values = self._drop(named) or []
        return self._fetch(named)[0] + values if self._stored else values

    def _rows(self, held: list[Any]) -> Sequence[Any]:
        return held

    def _asks(self, named: StateKey) -> bool:
        return True

    def _hold(self, values: Mapping[StateKey, Any]) -> None:
        for named, value in values.items():
            self.append(named, value, named[1][0])

    def _count(self) -> int:
        return self._values

    def _drop(self, named: StateKey) -> list[Any] | None:
        values = super()._drop(named)
        self._values -= len(values or ())
        if self._timed:
            self._newest.pop(named, None)
            self._known.pop(named, None)
        return values

    def _etts(self, names: Sequence[StateKey]) -> Any:
        if not self._timed:
            return super()._etts(names)
        bounds = bounds_of(names)
        newest = np.array([self._newest.get(named, named[1][0]) for named in names], np.int64)
        known = np.array([self._known.get(named, _NEVER_STORED) for named in names], np.int64)
        return np.maximum(self._predictor(bounds[:, 0], bounds[:, 1], newest), known)
