"""Events from a file: any CSV or parquet that has a column of keys and a column of times. Or only when events arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from forebay.errors import InvalidArgument
from forebay.harness.events import BLOCK, END, Events, Times, Watermarks
from forebay.harness.keys import key_numbers

UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000}
"""What whole or decimal numbers in a column of times may count, in microseconds."""

_DAY = 86_400_000_000
"""Microseconds."""


@dataclass(frozen=True)
class Trace:
    r"""A stream that is read from a file, in the order of its rows.

    Attributes
    ----------
    path : Path
        A file whose name ends in ``.parquet``, or a CSV file, which may be compressed.
    key, time : str
        The columns. Keys that are whole numbers are kept; others become numbers of 64 bits, equal keys equal ones.
        Times are timestamps, or numbers that count ``unit`` since any instant.
    size : str or int
        The column with the bytes of each event's value, or one size for all.
    final : tuple of str and str, or None
        A column, and the value that it has in final events.
    unit : str
        ``"us"``, ``"ms"`` or ``"s"``.
    bound : int
        By how many microseconds a row's time may be before the latest time so far. A row that is earlier than that is late
        by accident: it is an error.
    watermarks : Watermarks
        How often a watermark follows.
    columns : sequence of str or None
        The names of the columns of a CSV file that has none.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "flights.csv"
    >>> _ = path.write_text("plane,departure\nN1,10\nN2,20\nN1,15\n")
    >>> block = next(Trace(path, key="plane", time="departure", unit="s", bound=5_000_000).blocks())
    >>> block.time.tolist(), block.arrival.tolist(), bool(block.key[0] == block.key[2])
    ([10000000, 20000000, 15000000], [10000000, 20000000, 20000000], True)
    """

    path: Path
    key: str
    time: str
    size: str | int = 8
    final: tuple[str, str] | None = None
    unit: str = "us"
    bound: int = 0
    watermarks: Watermarks = field(default_factory=lambda: Watermarks(events=100))
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise InvalidArgument(f"trace: unit is {self.unit!r}; it must be one of {', '.join(UNITS)}")
        if self.final is not None and len(self.final) != 2:
            raise InvalidArgument(f"trace: final is {list(self.final)}; it must be a column, and its value in final events")
        if isinstance(self.size, int) and self.size < 0:
            raise InvalidArgument(f"trace: size is {self.size}; it must be at least 0")
        if self.bound < 0:
            raise InvalidArgument(f"trace: bound is {self.bound}; it must be at least 0, in microseconds")

    def blocks(self) -> Iterator[Events]:
        """The events from the first row on."""
        follow, rows, latest = self.watermarks.follower(), 0, None
        for batch in self._batches():
            time = self._times(batch, rows)
            distant = np.flatnonzero((time > END // 2) | (time < -END // 2))
            if len(distant):
                row = rows + int(distant[0]) + 1
                raise InvalidArgument(
                    f"{self.path}: the time in row {row} is out of range; leave such rows out of the trace"
                )
            latest = time[0] if latest is None else latest
            arrival = np.maximum.accumulate(np.maximum(time, latest))
            behind = np.flatnonzero(arrival - time > self.bound)
            if len(behind):
                row = int(behind[0])
                back = arrival[row] - time[row]
                raise InvalidArgument(
                    f"{self.path}: in row {rows + row + 1} the time goes back by {back} microseconds, more than "
                    f"the bound of {self.bound}; sort the trace by {self.time}, or raise the bound"
                )
            side, watermark = np.zeros(len(time), np.int8), follow(time, arrival)
            yield Events(self._keys(batch), time, arrival, self._sizes(batch, rows), side, self._final(batch), watermark)
            latest, rows = arrival[-1], rows + len(time)

    @property
    def _wanted(self) -> list[str]:
        """The columns that are read."""
        sizes, finals = [self.size] if isinstance(self.size, str) else [], [self.final[0]] if self.final else []
        return list(dict.fromkeys([self.key, self.time, *sizes, *finals]))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        wanted = self._wanted
        try:
            if self.path.suffix == ".parquet":
                with pq.ParquetFile(self.path) as file:
                    self._require(wanted, file.schema_arrow.names)
                    yield from (batch for batch in file.iter_batches(BLOCK, columns=wanted) if batch.num_rows)
                return
            reading = pyarrow.csv.ReadOptions(block_size=1 << 22, column_names=self.columns)
            text = {self.final[0]: pa.string()} if self.final else {}
            with pyarrow.csv.open_csv(
                self.path, reading, convert_options=pyarrow.csv.ConvertOptions(column_types=text)
            ) as file:
                names = [name.strip() for name in file.schema.names]
                self._require(wanted, names)
                places = [names.index(name) for name in wanted]
                for batch in file:
                    if batch.num_rows:
                        yield pa.RecordBatch.from_arrays([batch.column(place) for place in places], wanted)
        except (OSError, pa.ArrowException) as error:
            raise InvalidArgument(f"the trace {self.path} cannot be read: {error}") from error

    def _require(self, wanted: list[str], available: list[str]) -> None:
        missing = [name for name in wanted if name not in available]
        if missing:
            raise InvalidArgument(f"{self.path} has no column {', '.join(missing)}; it has {', '.join(available)}")

    def _times(self, batch: pa.RecordBatch, rows: int) -> Times:
        column = self._whole(batch[self.time], self.time, rows)
        kind, unit = column.type, UNITS[self.unit]
        if pa.types.is_date32(kind):
            return _micros(np.asarray(column.cast(pa.int32())).astype(np.int64), _DAY)
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            return np.asarray(column.cast(pa.int64())) // 1000
        if pa.types.is_timestamp(kind) or pa.types.is_date64(kind):
            unit = UNITS["ms" if pa.types.is_date64(kind) else kind.unit]
        elif pa.types.is_floating(kind):
            return np.asarray(np.clip(np.rint(column.to_numpy(zero_copy_only=False) * unit), -END, END).astype(np.int64))
        elif not pa.types.is_integer(kind):
            raise InvalidArgument(f"{self.path}: {self.time} is {kind}; times must be timestamps or numbers")
        return _micros(np.asarray(column.cast(pa.int64())), unit)

    def _keys(self, batch: pa.RecordBatch) -> Times:
        return key_numbers([batch[self.key]], batch.num_rows)

    def _sizes(self, batch: pa.RecordBatch, rows: int) -> Times:
        if not isinstance(self.size, str):
            return np.full(batch.num_rows, self.size, np.int64)
        column = self._whole(batch[self.size], self.size, rows)
        if not pa.types.is_integer(column.type):
            raise InvalidArgument(f"{self.path}: {self.size} is {column.type}; sizes must be whole numbers")
        sizes = np.asarray(column.cast(pa.int64()))
        if (sizes < 0).any():
            raise InvalidArgument(f"{self.path}: {self.size} is {sizes.min()} in one of the rows; it must be at least 0")
        return sizes

    def _final(self, batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        if self.final is None:
            return np.zeros(batch.num_rows, np.bool_)
        equal = pc.equal(batch[self.final[0]].cast(pa.string()), self.final[1])
        return np.asarray(pc.fill_null(equal, False))

    def _whole(self, column: pa.Array, name: str, rows: int) -> pa.Array:
        if column.null_count:
            row = rows + int(np.argmin(np.asarray(column.is_valid()))) + 1
            raise InvalidArgument(f"{self.path}: row {row} has no {name}")
        return column


@dataclass(frozen=True)
class TraceArrivals:
    r"""Events that arrive when the rows of a file did, counted from the first row, with keys and sizes of their own.

    After the last row the file begins again, as much later as the last row was after the one before.

    Attributes
    ----------
    path : Path
        A CSV or parquet file.
    time : str
        The column of times.
    unit : str
        What numbers in it count: ``"us"``, ``"ms"`` or ``"s"``.
    bound : int
        By how many microseconds a row may be before the latest one so far; it then arrives together with that.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.csv"
    >>> _ = path.write_text("at\n100\n103\n104\n")
    >>> TraceArrivals(path, "at").sampler(np.random.default_rng(0))(7).tolist()
    [0, 3, 4, 5, 8, 9, 10]
    """

    path: Path
    time: str
    unit: str = "us"
    bound: int = 0

    def __post_init__(self) -> None:
        self._trace()

    def sampler(self, random: np.random.Generator) -> Callable[[int], Times]:
        """Gives the next so many instants at each call, counted from 0."""
        blocks, waiting = self._instants(), np.zeros(0, np.int64)

        def draw(count: int) -> Times:
            nonlocal waiting
            parts, missing = [waiting], count - len(waiting)
            while missing > 0:
                parts.append(next(blocks))
                missing -= len(parts[-1])
            instants = np.concatenate(parts)
            waiting = instants[count:]
            return instants[:count]

        return draw

    def _trace(self) -> Trace:
        return Trace(self.path, self.time, self.time, unit=self.unit, bound=self.bound)

    def _instants(self) -> Iterator[Times]:
        begin = 0
        while True:
            first, last, gap = None, 0, 0
            for block in self._trace().blocks():
                first = int(block.arrival[0]) if first is None else first
                instants = begin + block.arrival - first
                gap = int(instants[-1]) - int(instants[-2] if len(instants) > 1 else last)
                last = int(instants[-1])
                yield instants
            if first is None:
                raise InvalidArgument(f"{self.path} has no rows, so no event arrives")
            begin = last + gap


def _micros(whole: Times, unit: int) -> Times:
    """Times in a unit of so many microseconds as microseconds; those that are out of range are at its ends."""
    limit = END // unit
    return np.clip(whole, -limit, limit) * unit
