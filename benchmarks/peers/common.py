"""What every peer of the race is given, and what it reports.

The input is a directory of parquet files ``00000-0.parquet``, ``00000-1.parquet``, ``00001-0.parquet``, ... (or of the first
of each pair alone) of bids in the order of event time, with the columns ``ts`` (timestamp[us, UTC]), ``auction``,
``bidder``, ``price`` (int64); and the same rows as ``00000-00.bin``, ...: little-endian int64 records of ``ts``
(microseconds since 1970), ``auction``, ``bidder``, ``price``. The watermark is the newest event time minus `DELAY_SECONDS`.
What has not fired at the end of the input may fire then or not: only windows that end before the last watermark are
compared.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

DELAY_SECONDS = 1


@dataclass(frozen=True)
class Workload:
    """A windowed aggregate of ``price`` by a key.

    Attributes
    ----------
    kind : str
        ``tumbling``, ``sliding`` or ``session``.
    function : str
        ``median`` (exact; the mean of the two middle values of an even number) or ``count``.
    key : str
        ``bidder`` or ``auction``.
    size : int
        Seconds of a window, or the gap of a session. A session of events e1..en is [e1, en + gap).
    slide : int
        Seconds from the start of a window to that of the next; equal to ``size`` but for sliding windows.
    """

    kind: str
    function: str
    key: str
    size: int
    slide: int


WORKLOADS = {
    "tumbling-median": Workload("tumbling", "median", "bidder", 10, 10),
    "sliding-median": Workload("sliding", "median", "bidder", 10, 5),
    "session-median": Workload("session", "median", "bidder", 10, 10),
    "tumbling-count": Workload("tumbling", "count", "bidder", 10, 10),
    "sliding-count": Workload("sliding", "count", "auction", 10, 5),
    "session-count": Workload("session", "count", "bidder", 10, 10),
}


@dataclass(frozen=True)
class Result:
    """What one run gave.

    Attributes
    ----------
    events : int
        Events that were timed, the warm-up left out.
    seconds : float
        How long they took.
    rows : int
        Rows of results in the whole run.
    """

    events: int
    seconds: float
    rows: int


def main(run: Callable[[Workload, Path, Path | None, argparse.Namespace], Result], *options: tuple[str, dict]) -> None:
    """The command line of a peer: ``--workload NAME... --data DIR [--output DIR]``; prints a line of JSON per workload.

    With ``--output`` the results are also written, to a parquet file per workload and with its name, with the columns
    ``start``, ``end`` (int64, microseconds), ``key`` (int64), ``value`` (double); the time is not to be believed then.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=WORKLOADS, nargs="+", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    for name, settings in options:
        parser.add_argument(name, **settings)
    arguments = parser.parse_args()
    for name in arguments.workload:
        output = arguments.output and arguments.output / f"{name}.parquet"
        print(json.dumps(asdict(run(WORKLOADS[name], arguments.data, output, arguments))), flush=True)
