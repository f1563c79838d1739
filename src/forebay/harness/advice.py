"""Which store and which memory suit a workload: what was measured, what the accesses are like, and what follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.errors import InvalidArgument
from forebay.harness import analysis
from forebay.harness.access import DELETE, GET, KEY_BYTES, MERGE, PUT, SCHEMA
from forebay.harness.analysis import AccessTrace, Numbers
from forebay.harness.comparison import VOLATILE, Row

LAZY = ("dict", "rocksdb", "rocksdb-delete-aware", "forebay-aur", "forebay-aar")
"""Stores that append to a value without reading it."""

UNBOUNDED = ("lmdb",)
"""Stores whose memory no setting bounds."""

PATTERNS = {
    "AAR": ("forebay-aar", "appends to windows that all keys share, which are read as a whole"),
    "AUR": ("forebay-aur", "appends to windows that each key has of its own"),
    "RMW": ("forebay-rmw", "values that are read and written again"),
}
"""forebay's patterns, with their stores and what they are for."""

_CACHED = 99


@dataclass(frozen=True)
class Sample:
    """What the accesses that were measured are like.

    Attributes
    ----------
    accesses, keys : int
        How many there are.
    composition : dict
        The share of each operation.
    merges_per_key : float
        How often a key that is merged is merged on average.
    distance, shuffled : float
        The mean stack distance, and that of the same accesses in a random order.
    cached : int
        Of how many keys a cache would serve 99% of the accesses that are not the first of their key.
    working : int
        The largest working set, in keys.
    key_bytes : float
        What a key takes with its value when the value is largest, on average.
    patterns : dict
        forebay's patterns, with the share of the accesses that are of each.
    growing : bool
        The working set was larger at the end than ever in the first half.
    """

    accesses: int
    keys: int
    composition: dict[str, float]
    merges_per_key: float
    distance: float
    shuffled: float
    cached: int
    working: int
    key_bytes: float
    patterns: dict[str, float]
    growing: bool

    @property
    def state_bytes(self) -> float:
        """What the largest working set takes."""
        return self.working * self.key_bytes

    @classmethod
    def of(cls, batches: Sequence[pa.RecordBatch], *, merging: bool = False) -> Sample:
        """The description of some accesses; ``merging`` says that they are of windows that merge, as sessions do.

        Examples
        --------
        >>> from forebay.harness.driver import Driver
        >>> from forebay.harness.events import Source
        >>> from forebay.harness.operators import TumblingHolistic
        >>> Sample.of(list(Driver(TumblingHolistic()).accesses([Source(events=2000)]))).patterns
        {'AAR': 1.0}
        """
        trace = AccessTrace.of(batches)
        table = pa.Table.from_batches(batches, SCHEMA)
        merged = trace.operation == MERGE
        distances, working = analysis.stack_distances(trace), analysis.working_set(trace, 1)
        return cls(
            accesses=len(trace),
            keys=trace.count,
            composition=analysis.composition(trace),
            merges_per_key=float(merged.sum() / max(len(np.unique(trace.keys[merged])), 1)),
            distance=float(distances.mean()) if len(distances) else 0.0,
            shuffled=float(analysis.stack_distances(trace.shuffled()).mean()) if len(distances) else 0.0,
            cached=int(np.percentile(distances, _CACHED)) + 1 if len(distances) else 0,
            working=int(working.max()),
            key_bytes=KEY_BYTES + float(_most_bytes(trace, table["size"].to_numpy()).mean()),
            patterns=_patterns(table, merging=merging),
            growing=bool(working[-len(working) // 8 :].max() > 1.1 * working[: len(working) // 2 + 1].max()),
        )


class Ranked(NamedTuple):
    """A store, or a memory of the best one, with the median of its runs, their least and their most."""

    name: str
    throughput: float
    least: float
    most: float
    p999: float

    def apart(self, other: Ranked) -> bool:
        """Whether the two differ by more than their own runs do."""
        return self.least > other.most or other.least > self.most


def ranked(rows: Sequence[Row]) -> list[Ranked]:
    """The stores that serve the workload, fastest first.

    Examples
    --------
    >>> ranked([Row("a", "w", "generated", "lmdb", number, throughput=5.0 + number, p999=9.0) for number in (0, 2)])
    [Ranked(name='lmdb', throughput=6.0, least=5.0, most=7.0, p999=9.0)]
    """
    runs: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.throughput is not None and row.p999 is not None:
            runs.setdefault(row.store, []).append((row.throughput, row.p999))
    found = []
    for name, each in runs.items():
        rates = [rate for rate, _ in each]
        found.append(Ranked(name, median(rates), min(rates), max(rates), median(late for _, late in each)))
    return sorted(found, key=lambda one: -one.throughput)


def advised(ranking: Sequence[Ranked]) -> Ranked:
    """The fastest store of those that keep state on disk.

    Raises
    ------
    InvalidArgument
        There is none.
    """
    for each in ranking:
        if each.name not in VOLATILE:
            return each
    raise InvalidArgument("no store that keeps state on disk serves this workload; give others by --stores")


def verdict(ranking: Sequence[Ranked]) -> Iterator[str]:
    """What the ranking says, in sentences.

    Examples
    --------
    >>> lmdb, sqlite = Ranked("lmdb", 6.0, 5.0, 7.0, 9.0), Ranked("sqlite", 5.5, 5.1, 6.1, 9.0)
    >>> rocksdb = Ranked("rocksdb", 2.0, 2.0, 2.0, 9.0)
    >>> for sentence in verdict([lmdb, sqlite, rocksdb]):
    ...     print(sentence)
    lmdb is the fastest. sqlite is within the noise: its runs and those of lmdb overlap.
    rocksdb is next, at 0.33 of lmdb.
    """
    best = advised(ranking)
    others = [each for each in ranking if each is not best and each.name not in VOLATILE]
    alike = [each for each in others if not each.apart(best)]
    apart = [each for each in others if each.apart(best)]
    if alike:
        names, which = " and ".join(each.name for each in alike), "its" if len(alike) == 1 else "their"
        verb = "is" if len(alike) == 1 else "are"
        yield f"{best.name} is the fastest. {names} {verb} within the noise: {which} runs and those of {best.name} overlap."
        if apart:
            yield f"{apart[0].name} is next, at {apart[0].throughput / best.throughput:.2f} of {best.name}."
    elif apart:
        times = best.throughput / apart[0].throughput
        yield f"{best.name} is the fastest, {times:.1f} times as fast as {apart[0].name}, which is next."
    else:
        yield f"{best.name} is the only store that was measured and keeps state on disk."
    if others and (steady := min([best, *others], key=lambda each: each.p999)).name != best.name:
        yield f"{steady.name} has the lowest p99.9: {steady.p999:,.1f} us, where {best.name} has {best.p999:,.1f}."


def reasons(sample: Sample, memory: int, ranking: Sequence[Ranked]) -> Iterator[str]:
    """What the accesses are like, and what that asks of a store, in sentences."""
    shares = sample.composition
    if shares[MERGE.name]:
        places = [str(place) for place, each in enumerate(ranking, 1) if each.name in LAZY]
        where = f"place {places[0]}" if len(places) == 1 else f"places {', '.join(places)}"
        yield (
            f"{shares[MERGE.name]:.0%} of accesses append, {sample.merges_per_key:,.1f} times to a key. Stores that append "
            f"without reading save a read and a copy each time{f'; they are at {where}' if places else ''}."
        )
    if shares[PUT.name]:
        written = f"{shares[GET.name]:.0%} of accesses read and {shares[PUT.name]:.0%} write anew"
        yield f"{written}: updates in place are worth more than appends."
    if shares[DELETE.name]:
        deleted = f"{shares[DELETE.name]:.0%} of accesses delete"
        yield f"{deleted}. An LSM tree writes each of them, and carries it until it compacts."
    else:
        yield "Nothing is deleted, so state grows with the keys."
    if sample.distance:
        yield (
            f"Between two accesses to a key there are {sample.distance:,.0f} other keys on average, in a random order "
            f"{sample.shuffled:,.0f}. A cache of {sample.cached:,} keys, {_size(sample.cached * sample.key_bytes)}, would "
            f"serve {_CACHED}% of all but first accesses."
        )
    part = sample.state_bytes / memory
    fits = "fits into" if part <= 1 else "is more than"
    yield (
        f"The largest working set has {sample.working:,} keys, about {_size(sample.state_bytes)}: it {fits} the "
        f"{_size(memory)} that a store may take."
    )
    if sample.growing:
        yield "It was still growing when the sample ended, so the whole workload has more state: --sample takes more of it."


def pattern_of(sample: Sample, ranking: Sequence[Ranked]) -> Iterator[str]:
    """Which of forebay's patterns the accesses are, and how its store did, in sentences."""
    best = advised(ranking)
    for pattern, share in sample.patterns.items():
        store, what = PATTERNS[pattern]
        yield f"{share:.0%} of accesses are forebay's pattern {pattern}: {what}."
        found = next((each for each in ranking if each.name == store), None)
        if found is not None and found.name != best.name:
            how = (
                f"at {found.throughput / best.throughput:.2g} of {best.name}"
                if found.apart(best)
                else "within the noise of the fastest"
            )
            yield f"Its store, {store}, is {how} here, where accesses come one at a time; in Spark it gets batches."
        elif found is not None:
            yield f"Its store, {store}, is the fastest."


def enough(by_memory: Sequence[tuple[int, Ranked]]) -> tuple[int, str]:
    """The least memory that is as good as the most, and why, of measurements from the most memory down.

    Examples
    --------
    >>> full, less = Ranked("sqlite", 9.0, 8.0, 10.0, 1.0), Ranked("sqlite", 8.5, 8.1, 9.0, 1.0)
    >>> enough([(256, full), (64, less), (16, Ranked("sqlite", 2.0, 2.0, 2.0, 1.0))])
    (64, 'memory_mb = 64 is within the noise of 256; with 16 it is at 0.22.')
    """
    most, full = by_memory[0]
    if full.name in UNBOUNDED:
        return most, f"{full.name} takes the page cache, which memory_mb does not bound."
    least, worse = most, ""
    for memory, found in by_memory[1:]:
        if found.apart(full) and found.throughput < full.throughput:
            worse = f"with {memory} it is at {found.throughput / full.throughput:.2f}"
            break
        least = memory
    if least == most:
        return most, f"memory_mb = {most}{f'; {worse}' if worse else ''}."
    return least, f"memory_mb = {least} is within the noise of {most}{f'; {worse}' if worse else ''}."


def _most_bytes(trace: AccessTrace, size: Numbers) -> npt.NDArray[np.floating[Any]]:
    """How large the value of each key is at most: what is merged from one time that it is put or deleted to the next."""
    order = np.argsort(trace.keys, kind="stable")
    keys, operation, sizes = trace.keys[order], trace.operation[order], size[order].astype(np.float64)
    sizes[~np.isin(operation, (MERGE, PUT))] = 0
    begins = np.isin(operation, (PUT, DELETE)) | np.diff(keys, prepend=-1).astype(bool)
    first = np.flatnonzero(begins)
    most = np.zeros(trace.count)
    if len(first):
        np.maximum.at(most, keys[first], np.add.reduceat(sizes, first))
    return most


def _patterns(table: pa.Table, *, merging: bool) -> dict[str, float]:
    operation, family = table["operation"].to_numpy(), table["family"].to_numpy()
    start, length = table["start"].to_numpy(), table["end"].to_numpy() - table["start"].to_numpy()
    shares: dict[str, float] = {}
    for each in np.unique(family):
        own = family == each
        if not (operation[own] == MERGE).any():
            pattern = "RMW"
        else:
            aligned = not merging and _aligned(start[own], length[own]) and not (operation[own] == PUT).any()
            pattern = "AAR" if aligned else "AUR"
        shares[pattern] = shares.get(pattern, 0.0) + float(own.mean())
    return dict(sorted(shares.items(), key=lambda one: -one[1]))


def _aligned(start: Numbers, length: Numbers) -> bool:
    """Whether windows have one length, and begin at multiples of one slide."""
    apart = np.diff(np.unique(start))
    return bool(length[0] > 0 and (length == length[0]).all() and (not len(apart) or not (apart % apart.min()).any()))


def _size(count: float) -> str:
    for size, unit in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
        if count >= size:
            return f"{count / size:,.3g} {unit}"
    return f"{count:,.0f} bytes"
