"""The three stores by key and window, one row at a time or on Arrow batches: FlowKV's Listing 1 (section 3.2).

Keys and values are Python values, or Arrow columns ``key`` and ``value``, of the types that a store is opened with. A window
is a pair of instants ``(start, end)`` in microseconds. Rows that are given one at a time wait until there are enough of them
for a batch; every read sees them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from forebay.errors import InvalidArgument
from forebay.store.aligned import AlignedStore
from forebay.store.filenames import Version
from forebay.store.key_index import Slots, identity
from forebay.store.metrics import Metrics
from forebay.store.options import Options
from forebay.store.predictors import Predictor, at_end
from forebay.store.unaligned import SLOT, UnalignedStore

Window = tuple[int, int]
Engine = TypeVar("Engine", AlignedStore, UnalignedStore)

_BATCH_ROWS = 4096


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
    """

    _engine: Engine

    def __init__(
        self,
        directory: Path,
        version: Version | None = None,
        *,
        key: pa.DataType | None = None,
        value: pa.DataType | None = None,
        options: Options | None = None,
    ) -> None:
        self.schema = pa.schema([("key", key or pa.string()), ("value", value or pa.float64())])
        self._waiting: list[tuple[Any, Any, Window, int]] = []
        self._engine = self._open(Path(directory), version, options or Options())

    def _open(self, directory: Path, version: Version | None, options: Options) -> Engine:
        raise NotImplementedError

    def _write(self, batch: pa.RecordBatch, windows: Sequence[Window], timestamps: Sequence[int]) -> None:
        raise NotImplementedError

    @property
    def version(self) -> Version | None:
        """The version that was opened or committed last."""
        return self._engine.base.version

    @property
    def metrics(self) -> Metrics:
        """What the store has done since it was opened."""
        return self._engine.metrics

    def commit(self) -> Version:
        """Make what the store holds the next version, durable when this returns; the store goes on from there."""
        self._settle()
        self._require_whole()
        return self._engine.commit(None, self._engine.base.counters)

    def compact(self) -> None:
        """Clear out dead rows now, if there are too many of them."""
        self._settle()
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

    def _add(self, key: Any, value: Any, window: Window, timestamp: int = 0) -> None:
        if window[1] < window[0]:
            raise InvalidArgument(f"the window {window} ends before it starts")
        self._waiting.append((key, value, window, timestamp))
        if len(self._waiting) >= _BATCH_ROWS:
            self._settle()

    def _settle(self) -> None:
        """Hand the rows that wait to the engine."""
        if self._waiting:
            keys, values, windows, timestamps = zip(*self._waiting, strict=True)
            try:
                columns = [pa.array(each, kind) for each, kind in zip((keys, values), self.schema.types, strict=True)]
            except (pa.ArrowException, OverflowError) as error:
                self._waiting = [row for row in self._waiting if self._fits(*row[:2])]
                raise InvalidArgument(f"the store holds {self.schema.to_string()}; a row does not fit: {error}") from error
            self._waiting.clear()
            batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
            self._write(batch, windows, timestamps)

    def _fits(self, *row: Any) -> bool:
        try:
            for value, kind in zip(row, self.schema.types, strict=True):
                pa.scalar(value, kind)
        except (pa.ArrowException, OverflowError):
            return False
        return True

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

    def _open(self, directory: Path, version: Version | None, options: Options) -> AlignedStore:
        self._reading: dict[Window, Iterator[pl.DataFrame]] = {}
        self._length: int | None = None
        return AlignedStore(directory, version, ["key"], options)

    def append(self, key: Any, value: Any, window: Window) -> None:
        """Add a value to a key's list in a window. Windows of one store all have the same length."""
        self._require_length(window)
        self._add(key, value, window)

    def append_batch(self, batch: pa.RecordBatch, window: Window) -> None:
        """Add rows with the columns ``key`` and ``value``."""
        self._require_length(window)
        self._settle()
        self._engine.append(window[0], self._checked(batch))

    def get_window(self, window: Window) -> dict[Any, list[Any]] | None:
        """Fetch and remove some keys of a window with all their values; None when there is none left."""
        batch = self.get_window_batch(window)
        if batch is None:
            return None
        lists = batch.group_by("key", maintain_order=True).agg(pl.col("value"))
        return dict(zip(lists["key"].to_list(), lists["value"].to_list(), strict=True))

    def get_window_batch(self, window: Window) -> pl.DataFrame | None:
        """The rows of some keys of a window, and of these keys all; None when there is none left."""
        self._require_length(window)
        self._settle()
        parts = self._reading.pop(window, None)
        if parts is not None:
            part = next(parts, None)
        else:
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
            raise InvalidArgument(f"the window {window} ends before it starts")
        if self._length is None:
            self._length = length
        if length != self._length:
            raise InvalidArgument(f"the window {window} is {length} long; the windows of this store are {self._length} long")

    def _write(self, batch: pa.RecordBatch, windows: Sequence[Window], timestamps: Sequence[int]) -> None:
        starts = np.array([window[0] for window in windows])
        for start in np.unique(starts).tolist():
            self._engine.append(start, batch.filter(pa.array(starts == start)))


class _ByKey(_Store[UnalignedStore]):
    def _find(self, key: Any, window: Window) -> Slots:
        """The slot of a key's window, or none."""
        try:
            found = self._engine.index.find(*_identity(pa.scalar(key, self.schema.types[0]).as_py()))
        except (pa.ArrowException, OverflowError) as error:
            raise InvalidArgument(f"keys of the store are {self.schema.types[0]}; {key!r} is not one: {error}") from error
        bounds = self._engine.index.windows(found)
        return found[(bounds[:, 0] == window[0]) & (bounds[:, 1] == window[1])]

    def _place(self, batch: pa.RecordBatch, windows: Sequence[Window], ett: Any = None) -> Slots:
        if len(windows) != batch.num_rows or (ett is not None and len(ett) != batch.num_rows):
            raise InvalidArgument(f"{batch.num_rows} rows need as many windows and times; there are {len(windows)} windows")
        distinct = batch["key"].dictionary_encode(null_encoding="encode")
        hashes = np.array([_identity(key) for key in distinct.dictionary.to_pylist()], dtype=np.int64).reshape(-1, 2)
        keys = hashes[distinct.indices.to_numpy()]
        bounds = np.array(windows, dtype=np.int64).reshape(-1, 2)
        high, low, start, end = (np.ascontiguousarray(column) for column in (*keys.T, *bounds.T))
        if (end < start).any():
            raise InvalidArgument(f"the window {windows[int(np.argmax(end < start))]} ends before it starts")
        return self._engine.index.place_exact(high, low, start, end, ett)


class AurStore(_ByKey):
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
        predictor: Predictor = at_end,
    ) -> None:
        self._predictor = predictor
        super().__init__(directory, version, key=key, value=value, options=options)

    def _open(self, directory: Path, version: Version | None, options: Options) -> UnalignedStore:
        return UnalignedStore(directory, version, options)

    def append(self, key: Any, value: Any, window: Window, timestamp: int) -> None:
        """Add a value to a key's list in a window, which is named by the bounds that it had first."""
        self._add(key, value, window, timestamp)

    def append_batch(self, batch: pa.RecordBatch, windows: Sequence[Window], timestamps: Sequence[int]) -> None:
        """Add rows with the columns ``key`` and ``value``."""
        self._settle()
        self._write(self._checked(batch), windows, timestamps)

    def get(self, key: Any, window: Window) -> list[Any]:
        """Fetch and remove the values of a key in a window, in the order in which they were added."""
        self._settle()
        slots = self._find(key, window)
        rows = self._engine.get(slots)
        self._engine.remove(slots)
        return rows["value"].to_list() if rows.height else []

    def _write(self, batch: pa.RecordBatch, windows: Sequence[Window], timestamps: Sequence[int]) -> None:
        bounds = np.array(windows, dtype=np.int64).reshape(-1, 2)
        ett = self._predictor(bounds[:, 0], bounds[:, 1], np.array(timestamps, dtype=np.int64))
        self._engine.append(batch, self._place(batch, windows, np.ascontiguousarray(ett)))


class RmwStore(_ByKey):
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

    def _open(self, directory: Path, version: Version | None, options: Options) -> UnalignedStore:
        return UnalignedStore(directory, version, options, merge=_newest)

    def put(self, key: Any, window: Window, aggregate: Any) -> None:
        """Set the aggregate of a key in a window."""
        self._add(key, aggregate, window)

    def put_batch(self, batch: pa.RecordBatch, windows: Sequence[Window]) -> None:
        """Set the aggregates of rows with the columns ``key`` and ``value``; the last one of a key and window counts."""
        self._settle()
        self._write(self._checked(batch), windows, ())

    def get(self, key: Any, window: Window) -> Any:
        """Fetch and remove the aggregate of a key in a window; None when there is none."""
        self._settle()
        slots = self._find(key, window)
        rows = self._engine.get(slots)
        self._engine.remove(slots)
        return rows["value"][-1] if rows.height else None

    def _write(self, batch: pa.RecordBatch, windows: Sequence[Window], timestamps: Sequence[int]) -> None:
        slots = self._place(batch, windows)
        self._engine.renew(np.unique(slots))
        self._engine.append(batch, slots)


def _identity(key: Any) -> tuple[int, int]:
    return identity(repr(key).encode())


def _newest(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.group_by(SLOT, maintain_order=True).agg(pl.all().last())
