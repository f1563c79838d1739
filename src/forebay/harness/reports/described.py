"""A trace, and what the measures of `forebay.harness.analysis` say of it, as reports show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pyarrow as pa

from forebay.harness import analysis
from forebay.harness.analysis import AccessTrace, Distance, Numbers
from forebay.harness.comparison import CONTRASTS
from forebay.harness.tuned import tuned

SHUFFLED = "shuffled"
_POINTS = 600
SAMPLE = 1000
_AGAINST = ("sequential", "latest")
"""The distributions of requests of YCSB that come nearest, in spatial and in temporal locality (section 4)."""


@dataclass
class Described:
    """A trace and what the measures say of it.

    Attributes
    ----------
    name : str
        What it is called in figures.
    accesses, keys : int
        How many there are.
    composition : dict
        The share of each operation.
    amplified_events : float or None
        Accesses per event, if the number of events is known.
    amplified_keys : float
        State keys per event key.
    working : polars.DataFrame
        The size of the working set after so many accesses; the largest of each stretch.
    ranks : array of int64
        The rank of each access's key, most frequent key first.
    distortion : Distance
        How far the state keys are from the event keys.
    distances, sequences, lives : dict
        Stack distances, unique sequences and times to live, of the trace, the shuffled trace and of YCSB.
    beside : dict
        How far the keys of YCSB are from the trace's, by rank.
    """

    name: str
    accesses: int
    keys: int
    composition: dict[str, float]
    amplified_events: float | None
    amplified_keys: float
    working: pl.DataFrame
    ranks: Numbers
    distortion: Distance
    distances: dict[str, Numbers] = field(default_factory=dict)
    sequences: dict[str, list[int]] = field(default_factory=dict)
    lives: dict[str, Numbers] = field(default_factory=dict)
    beside: dict[str, Distance] = field(default_factory=dict)

    @property
    def largest(self) -> int:
        """The most keys that the working set had."""
        return max(self.working["keys"].to_list(), default=0)


def describe(
    name: str,
    batches: Iterable[pa.RecordBatch],
    events: int | None = None,
    seed: int = 0,
    contrast: bool = False,
    locality: bool = True,
    watch: Callable[[str], None] = lambda what: None,
) -> Described:
    """What a trace is like.

    Parameters
    ----------
    name : str
        What it is called.
    batches : iterable of pyarrow.RecordBatch
        Its accesses.
    events : int or None
        How many events have caused them.
    seed : int
        For the shuffled trace and for the choice of keys.
    contrast : bool
        YCSB tuned to the trace is described too.
    locality : bool
        Stack distances and sequences are measured, which takes longer than all else.
    watch : callable
        Is told what is measured next.

    Examples
    --------
    >>> from forebay.harness.driver import Driver
    >>> from forebay.harness.events import Source
    >>> from forebay.harness.operators import Aggregation
    >>> found = describe("example", Driver(Aggregation()).accesses([Source(events=500)]), events=500)
    >>> found.accesses, found.composition["GET"], found.amplified_events, sorted(found.distances)
    (1000, 0.5, 2.0, ['example', 'shuffled'])
    """
    if name in (SHUFFLED, *CONTRASTS.values()):  # what it is compared with has that name
        name = f"the trace {name}"
    known = list(batches)
    watch("composition")
    trace = AccessTrace.of(known)
    found = Described(
        name,
        len(trace),
        trace.count,
        analysis.composition(trace),
        analysis.amplification(trace, events).events if events is not None else None,
        analysis.amplification(trace, 1).keys,
        _thinned(analysis.working_set(trace)),
        analysis.ranks(trace.keys),
        analysis.distortion(trace),
    )
    kinds = {name: trace}
    if contrast:
        for requests in _AGAINST:
            kinds[CONTRASTS[requests]] = AccessTrace.of(tuned(known, requests, seed).run())
    for kind, each in kinds.items():
        if each is not trace:
            found.beside[kind] = analysis.distance(found.ranks, analysis.ranks(each.keys))
        watch(f"times to live, {kind}")
        found.lives[kind] = analysis.times_to_live(each, SAMPLE, seed)
    if locality:
        kinds[SHUFFLED] = trace.shuffled(seed)
        for kind, each in kinds.items():
            watch(f"stack distances, {kind}")
            found.distances[kind] = analysis.stack_distances(each)
            watch(f"sequences, {kind}")
            found.sequences[kind] = analysis.unique_sequences(each)
    return found


def histogram(distances: Numbers) -> list[tuple[int, str, float]]:
    """The share of stack distances in bins that double: their least, what they span, and the share.

    Examples
    --------
    >>> histogram(np.array([0, 1, 2, 3, 3]))
    [(0, '0', 0.2), (1, '1', 0.2), (2, '2-3', 0.6)]
    """
    if not len(distances):
        return []
    places = np.where(distances > 0, np.frexp(np.maximum(distances, 1).astype(np.float64))[1], 0)
    shares = np.bincount(places) / len(distances)
    bins = [(0, 0), *((1 << (place - 1), (1 << place) - 1) for place in range(1, len(shares)))]
    return [
        (low, _brief(low) if low == high else f"{_brief(low)}-{_brief(high)}", float(share))
        for (low, high), share in zip(bins, shares, strict=True)
    ]


def _brief(number: int) -> str:
    """A bound of a bin; large ones in binary thousands."""
    for size, sign in ((1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")):
        if number > size - 2:
            return f"{round(number / size)}{sign}"
    return str(number)


def _thinned(sizes: Numbers) -> pl.DataFrame:
    """The largest size in each of at most 600 stretches."""
    frame = pl.DataFrame({"accesses": (np.arange(len(sizes)) + 1) * analysis.STEP, "keys": sizes})
    stretch = -(-max(len(sizes), 1) // _POINTS)
    return (
        frame.group_by(pl.int_range(pl.len()) // stretch, maintain_order=True)
        .agg(pl.col("accesses").last(), pl.col("keys").max())
        .select("accesses", "keys")
    )
