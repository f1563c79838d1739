"""Public: the three stores by key and window, one row at a time or on Arrow batches: FlowKV's Listing 1 (section 3.2).

Keys and values are Python values, or Arrow columns ``key`` and ``value``, of the types that a store is opened with. A window
is a pair of instants ``(start, end)`` in microseconds. Rows that are given one at a time are kept as they are until they
fill a half of the memory, or the store is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from forebay.errors import InvalidArgument
from forebay.store.aligned import AlignedStore
from forebay.store.disk import LOCAL, Disk
from forebay.store.filenames import Version
from forebay.store.metrics import Metrics
from forebay.store.options import Options
from forebay.store.predictors import Predictor, at_end
from forebay.store.row_table import RowTable, as_python
from forebay.store.slice_table import SliceTable
from forebay.store.state_keys import Window, plain
from forebay.store.unaligned import SLOT, UnalignedStore
from forebay.store.value_tables import LastValues, ValueLists

Engine = TypeVar("Engine", AlignedStore, UnalignedStore)

_KEPT = {pa.binary(): bytes, pa.large_binary(): bytes, pa.float64(): float}
"""Types of which every Python value is kept exactly; others are brought into the form in which the store gives them back."""

_REFUSED = (
    pa.types.is_decimal256,
    pa.types.is_dictionary,
    pa.types.is_string_view,
    pa.types.is_binary_view,
    lambda kind: kind == pa.month_day_nano_interval(),
)
"""Types that polars gives back as others, or not at all."""

_LEAST, _MOST = -(2**63), 2**63 - 1


class _Store(Generic[Engine]):
    """What the three have in common.

    Parameters
    ----------
    directory : Path
        The store's own directory.
    version : Version or None
        The version to open, None for an empty store.
    key, value : pyarrow.DataType
        Their types.
    options : Options
        Limits.
    disk : Disk
        What the directory is on.

    Attributes
    ----------
    table : SliceTable or RowTable
        The rows that were given one at a time and are in memory. Its reads can leave what they give.
    """

    _engine: Engine
    table: SliceTable | RowTable[Any]

    def __init__(
        self,
        directory: Path,
        version: Version | None = None,
        *,
        key: pa.DataType | None = None,
        value: pa.DataType | None = None,
        options: Options | None = None,
        disk: Disk = LOCAL,
    ) -> None:
        self._disk = disk
        self.schema = pa.schema([("key", key or pa.string()), ("value", value or pa.float64())])
        for kind in self.schema.types:
            if any(refused(kind) for refused in _REFUSED):
                raise InvalidArgument(f"a store cannot hold values of the type {kind}")
        if pa.types.is_nested(self.schema.types[0]):
            raise InvalidArgument(f"keys of a store are single values; {self.schema.types[0]} is not such a type")
        self._key_type, self._value_type = map(_KEPT.get, self.schema.types)
        if self._key_type is float:
            self._key_type = None  # NaN is not equal to itself
        self._written = 0
        self._open(Path(directory), version, options or Options())

    def _open(self, directory: Path, version: Version | None, options: Options) -> None:
        raise NotImplementedError

    @property
    def version(self) -> Version | None:
        """The version that was opened or committed last."""
        return self._engine.base.version

    @property
    def metrics(self) -> Metrics:
        """What the store has done since it was opened; what was read or removed before it was written is not in it."""
        found = self._engine.metrics
        return replace(found, writes=self._written + self.table.given, memory_bytes=found.memory_bytes + self.table.nbytes)

    def commit(self) -> Version:
        """Make what the store holds the next version, durable when this returns; the store goes on from there."""
        self.table.flush()
        self._require_whole()
        return self._engine.commit(None, self._engine.base.counters)

    def compact(self) -> None:
        """Clear out dead rows, if there are too many of them: a part at a time, the emptiest first."""
        self.table.flush()
        self._engine.compact()

    def snapshot(self, directory: Path) -> Version:
        """Commit, and copy that version to another directory, by hard links where both are on one file system."""
        version = self.commit()
        self._engine.snapshot(Path(directory))
        return version

    def close(self) -> None:
        """Let go of files; what was not committed is lost."""
        self._engine.close()

    def _require_whole(self) -> None:
        """`InvalidArgument` while a part of what was removed has not been handed out."""

    def _key(self, key: Any) -> Any:
        """A key as the table has it."""
        return plain(self._as(key, 0, "keys"))

    def _value(self, value: Any) -> Any:
        """A value as the store would give it back."""
        return self._as(value, 1, "values")

    def _as(self, given: Any, column: int, what: str) -> Any:
        kind = self.schema.types[column]
        if type(given) is str and given.isascii() and pa.types.is_string(kind):
            return given
        try:
            return pa.scalar(given, kind).as_py()
        except (pa.ArrowException, OverflowError, UnicodeError) as error:
            raise InvalidArgument(f"{what} of the store are {kind}; {given!r} is not one: {error}") from error

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not batch.schema.equals(self.schema):
            raise InvalidArgument(f"the store holds {self.schema.to_string()}; it was given {batch.schema.to_string()}")
        return batch


class AarStore(_Store[AlignedStore]):
    """Append and aligned read: all keys of a window are read together.

    Examples
    --------
    >>> import tempfile
    >>> store = AarStore(Path(tempfile.mkdtemp()) / "0")
    >>> store.append("ann", 3.0, (0, 10))
    >>> store.append("bob", 1.0, (0, 10))
    >>> store.append("ann", 4.0, (0, 10))
    >>> store.get_window((0, 10))
    {'ann': [3.0, 4.0], 'bob': [1.0]}
    >>> store.get_window((0, 10)) is None
    True
    """

    def _open(self, directory: Path, version: Version | None, options: Options) -> None:
        self._reading: dict[Window, Iterator[pl.DataFrame]] = {}
        self._length: int | None = None
        self._engine = AlignedStore(directory, version, ["key"], options, disk=self._disk)
        self.table: SliceTable = SliceTable(self._engine, self.schema, options)

    def append(self, key: Any, value: Any, window: Window) -> None:
        """Add a value to a key's list in a window. Windows of one store all have the same length."""
        if type(key) is not self._key_type:
            key = self._key(key)
        if type(value) is not self._value_type:
            value = self._value(value)
        window = _window(window)
        if window[1] - window[0] != self._length:
            self._require_length(window)
        self.table.append(window[0], key, value)

    def append_batch(self, batch: pa.RecordBatch, window: Window) -> None:
        """Add rows with the columns ``key`` and ``value``."""
        window = _window(window)
        self._require_length(window)
        self._written += self._checked(batch).num_rows
        self.table.write(window[0], batch)

    def get_window(self, window: Window) -> dict[Any, list[Any]] | None:
        """Fetch and remove some keys of a window with all their values; None when there is none left."""
        self._require_length(window)
        if window not in self._reading and (held := self.table.take(window[0])) is not None:
            return held
        batch = self.get_window_batch(window)
        if batch is None:
            return None
        keys, values = as_python(batch, self.schema)
        lists: dict[Any, list[Any]] = {}
        for key, value in zip(map(plain, keys), values, strict=True):
            lists.setdefault(key, []).append(value)
        return lists

    def get_window_batch(self, window: Window) -> pl.DataFrame | None:
        """The rows of some keys of a window, and of these keys all; None when there is none left."""
        self._require_length(window)
        parts = self._reading.pop(window, None)
        if parts is not None:
            part = next(parts, None)
        else:
            self.table.flush(window[0])
            parts = self._engine.get_window([window[0]])
            part = next(parts, None)  # from here on the iterator holds all of the window's rows
            self._engine.drop([window[0]])
        if part is None:
            return None
        self._reading[window] = parts
        return part.select("key", "value")

    def _require_whole(self) -> None:
        if self._reading:
            raise InvalidArgument(f"the windows {list(self._reading)} are being read; call get_window until it gives None")

    def _require_length(self, window: Window) -> None:
        length = window[1] - window[0]
        if length < 0:
            raise _backwards(window)
        if self._length is None:
            self._length = length
        if length != self._length:
            raise InvalidArgument(f"the window {window} is {length} long; the windows of this store are {self._length} long")


class AurStore(_Store[UnalignedStore]):
    """Append and unaligned read: each key's windows are read at times of their own.

    Parameters
    ----------
    predictor : callable
        Estimates when windows will be read, see `forebay.store.predictors`; by default when they end.

    Examples
    --------
    >>> import tempfile
    >>> store = AurStore(Path(tempfile.mkdtemp()) / "0")
    >>> store.append("ann", 3.0, (0, 5), timestamp=0)
    >>> store.append("ann", 4.0, (0, 5), timestamp=2)
    >>> store.get("ann", (0, 5)), store.get("ann", (0, 5))
    ([3.0, 4.0], [])
    """

    def __init__(
        self,
        directory: Path,
        version: Version | None = None,
        *,
        key: pa.DataType | None = None,
        value: pa.DataType | None = None,
        options: Options | None = None,
        disk: Disk = LOCAL,
        predictor: Predictor = at_end,
    ) -> None:
        self._predictor = predictor
        super().__init__(directory, version, key=key, value=value, options=options, disk=disk)

    def _open(self, directory: Path, version: Version | None, options: Options) -> None:
        self._engine = UnalignedStore(directory, version, replace(options, read_batch_ratio=0), disk=self._disk)
        self.table: ValueLists = ValueLists(self._engine, self.schema, options, self._predictor)

    def append(self, key: Any, value: Any, window: Window, timestamp: int) -> None:
        """Add a value to a key's list in a window, which is named by the bounds that it had first."""
        if type(key) is not self._key_type:
            key = self._key(key)
        if type(value) is not self._value_type:
            value = self._value(value)
        if type(timestamp) is not int or not _LEAST <= timestamp <= _MOST:
            timestamp = _instant(timestamp)
        self.table.append((key, _window(window)), value, timestamp)

    def append_batch(self, batch: pa.RecordBatch, windows: Sequence[Window], timestamps: Sequence[int]) -> None:
        """Add rows with the columns ``key`` and ``value``."""
        bounds = _bounds(self._checked(batch), windows, timestamps)
        etts = self._predictor(bounds[:, 0], bounds[:, 1], np.array(timestamps, dtype=np.int64))
        self.table.write(batch, bounds, np.ascontiguousarray(etts))
        self._written += batch.num_rows

    def get(self, key: Any, window: Window) -> list[Any]:
        """Fetch and remove the values of a key in a window, in the order in which they were added."""
        if type(key) is not self._key_type:
            key = self._key(key)
        return self.table.take((key, window))


class RmwStore(_Store[UnalignedStore]):
    """Read-modify-write: one aggregate per key and window.

    Examples
    --------
    >>> import tempfile
    >>> store = RmwStore(Path(tempfile.mkdtemp()) / "0", value=pa.int64())
    >>> store.put("ann", (0, 5), 3)
    >>> store.put("ann", (0, 5), store.get("ann", (0, 5)) + 1)
    >>> store.get("ann", (0, 5)), store.get("ann", (0, 5))
    (4, None)
    """

    def _open(self, directory: Path, version: Version | None, options: Options) -> None:
        options = replace(options, read_batch_ratio=0)
        self._engine = UnalignedStore(directory, version, options, merge=_newest, disk=self._disk)
        self.table: LastValues = LastValues(self._engine, self.schema, options)

    def put(self, key: Any, window: Window, aggregate: Any) -> None:
        """Set the aggregate of a key in a window."""
        if type(key) is not self._key_type:
            key = self._key(key)
        if type(aggregate) is not self._value_type:
            aggregate = self._value(aggregate)
        self.table.put((key, _window(window)), aggregate)

    def put_batch(self, batch: pa.RecordBatch, windows: Sequence[Window]) -> None:
        """Set the aggregates of rows with the columns ``key`` and ``value``; the last one of a key and window counts."""
        self.table.write(self._checked(batch), _bounds(batch, windows))
        self._written += batch.num_rows

    def get(self, key: Any, window: Window) -> Any:
        """Fetch and remove the aggregate of a key in a window; None when there is none."""
        if type(key) is not self._key_type:
            key = self._key(key)
        return self.table.take((key, window))


def _bounds(batch: pa.RecordBatch, windows: Sequence[Window], timestamps: Sequence[int] | None = None) -> Any:
    """Windows as rows of an array, one for each row of a batch."""
    if not len(windows) == batch.num_rows == len(windows if timestamps is None else timestamps):
        raise InvalidArgument(f"{batch.num_rows} rows need as many windows and times; there are {len(windows)} windows")
    given = np.array(windows)
    if len(windows) and given.dtype != np.int64:
        raise InvalidArgument("windows are pairs of instants: these are whole microseconds, in 64 bits")
    bounds = given.astype(np.int64).reshape(-1, 2)
    backwards = bounds[:, 1] < bounds[:, 0]
    if backwards.any():
        raise _backwards(windows[int(np.argmax(backwards))])
    return bounds


def _window(window: Window) -> Window:
    """A window whose bounds are instants."""
    start, end = window
    if type(start) is not int or type(end) is not int:
        window = start, end = _instant(start), _instant(end)
    if end < start:
        raise _backwards(window)
    if start < _LEAST or end > _MOST:
        _instant(start), _instant(end)
    return window


def _instant(given: Any) -> int:
    try:
        instant = index(given)
    except TypeError:
        instant = _MOST + 1
    if not _LEAST <= instant <= _MOST:
        raise InvalidArgument(f"{given!r} is not an instant: these are whole microseconds, in 64 bits")
    return instant


def _backwards(window: Window) -> InvalidArgument:
    return InvalidArgument(f"the window {window} ends before it starts")


def _newest(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.group_by(SLOT, maintain_order=True).agg(pl.all().last())
