"""What a state access stream is like: the measures of Gadget's sections 3 and 4.

All of it works on a whole trace in memory, and takes about a hundred bytes per access.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.errors import InvalidArgument
from forebay.harness import analysis_kernels as kernels
from forebay.harness.access import DELETE, SCHEMA, Operation

Numbers = npt.NDArray[np.int64]

LONGEST = 10
"""Up to how many keys long the sequences are that are counted."""

STEP = 100
"""After how many accesses the size of the working set is taken again."""

PERCENTILES = (50.0, 90.0, 99.9, 100.0)


@dataclass(frozen=True, eq=False)
class AccessTrace:
    """The accesses of a stream, with their state keys as numbers.

    Attributes
    ----------
    operation : array of uint8
        The operation of each access.
    keys : array of int64
        The state key of each access, numbered from 0 on in the order in which state keys come.
    event_keys : array of int64
        The event key of each access, numbered likewise.
    count : int
        How many state keys there are.

    Examples
    --------
    >>> from forebay.harness.access import GET, PUT, accesses
    >>> trace = AccessTrace.of([accesses([(GET, 0, 7, 0, 10, 0, 0), (PUT, 0, 7, 0, 10, 8, 0), (GET, 0, 7, 10, 20, 0, 0)])])
    >>> trace.keys.tolist(), trace.event_keys.tolist()
    ([0, 0, 1], [0, 0, 0])
    """

    operation: npt.NDArray[np.uint8]
    keys: Numbers
    event_keys: Numbers
    count: int

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch]) -> AccessTrace:
        """The trace that some batches make."""
        table = pa.Table.from_batches(list(batches), SCHEMA)
        if not table.num_rows:
            raise InvalidArgument("the trace has no accesses, so there is nothing to analyse")
        columns = {name: table[name].to_numpy() for name in ("operation", "family", "key", "start", "end")}
        events, _ = kernels.numbered(columns["key"], np.zeros(table.num_rows, np.int64))
        windows, _ = kernels.numbered(columns["start"], columns["end"])
        states, _ = kernels.numbered(events, columns["family"].astype(np.int64))
        keys, count = kernels.numbered(states, windows)
        return cls(columns["operation"], keys, events, int(count))

    def __len__(self) -> int:
        return len(self.keys)

    def shuffled(self, seed: int = 0) -> AccessTrace:
        """The same accesses in a random order: popularity stays, locality goes."""
        order = np.random.default_rng(seed).permutation(len(self))
        return AccessTrace(self.operation[order], self.keys[order], self.event_keys[order], self.count)


def composition(trace: AccessTrace) -> dict[str, float]:
    """The share of each operation (Table 1).

    Examples
    --------
    >>> from forebay.harness.access import GET, PUT, accesses
    >>> composition(AccessTrace.of([accesses([(GET, 0, 7, 0, 0, 0, 0), (PUT, 0, 7, 0, 0, 8, 0)])]))
    {'GET': 0.5, 'PUT': 0.5, 'MERGE': 0.0, 'DELETE': 0.0}
    """
    counts = np.bincount(trace.operation, minlength=len(Operation)) / len(trace)
    return {operation.name: float(counts[operation]) for operation in Operation}


class Amplification(NamedTuple):
    """Accesses per event, and state keys per event key (section 3.2.2)."""

    events: float
    keys: float


def amplification(trace: AccessTrace, events: int) -> Amplification:
    """How much more a store has to do and to hold than the stream has.

    Parameters
    ----------
    trace : AccessTrace
        The accesses.
    events : int
        How many events have caused them.
    """
    if events < 1:
        raise InvalidArgument(f"the amplification over {events} events is not defined; say how many events the trace is of")
    return Amplification(len(trace) / events, trace.count / (int(trace.event_keys.max()) + 1))


def stack_distances(trace: AccessTrace) -> Numbers:
    """How many different keys were accessed between an access and the one before of the same key; first ones are left out.

    This is temporal locality (section 3.2.3). It takes O(n log n).

    Examples
    --------
    >>> from forebay.harness.access import GET, accesses
    >>> trace = AccessTrace.of([accesses([(GET, 0, key, 0, 0, 0, 0) for key in (1, 2, 3, 2, 1, 1)])])
    >>> stack_distances(trace).tolist()
    [1, 2, 0]
    """
    distances: Numbers = kernels.stack_distances(trace.keys, trace.count)
    return distances[distances >= 0]


def unique_sequences(trace: AccessTrace, longest: int = LONGEST) -> list[int]:
    """How many different sequences of keys there are of each length from 1 on: spatial locality (section 3.2.3).

    Compare them with those of `AccessTrace.shuffled`: the fewer, the more locality.

    Examples
    --------
    >>> from forebay.harness.access import GET, accesses
    >>> trace = AccessTrace.of([accesses([(GET, 0, key, 0, 0, 0, 0) for key in (1, 2, 1, 2, 1)])])
    >>> unique_sequences(trace, 3)
    [2, 2, 2]
    """
    numbers, counts = trace.keys, [trace.count]
    for length in range(2, longest + 1):
        if len(trace) < length:
            counts.append(0)
            continue
        # a sequence is the one that is shorter by one key, and that key
        numbers, count = kernels.numbered(numbers[:-1], trace.keys[length - 1 :])
        counts.append(int(count))
    return counts


def working_set(trace: AccessTrace, step: int = STEP) -> Numbers:
    """How many keys are active after each ``step`` accesses: those that have been accessed, and will be again.

    Keys that are not deleted at last stay, since they may be accessed after the end of the trace.

    Examples
    --------
    >>> from forebay.harness.access import DELETE, GET, accesses
    >>> some = [(GET, 0, 1, 0, 0, 0, 0), (GET, 0, 2, 0, 0, 0, 0), (DELETE, 0, 1, 0, 0, 0, 0)]
    >>> working_set(AccessTrace.of([accesses(some)]), step=1).tolist()
    [1, 2, 1]
    """
    first, last, deleted = kernels.lives(trace.keys, trace.count, trace.operation == DELETE)
    changes = np.bincount(first, minlength=len(trace)) - np.bincount(last[deleted], minlength=len(trace))
    sizes: Numbers = np.cumsum(changes)[step - 1 :: step]
    return sizes


def times_to_live(trace: AccessTrace, sample: int | None = None, seed: int = 0) -> Numbers:
    """How many accesses there are from the first to the last access of each key (section 3.2.3).

    Parameters
    ----------
    trace : AccessTrace
        The accesses.
    sample : int or None
        Only so many keys, chosen at random, as in Table 3, which has 1,000.
    seed : int
        Another seed chooses others.
    """
    first, last, _ = kernels.lives(trace.keys, trace.count, trace.operation == DELETE)
    lives: Numbers = last - first
    if sample is not None and sample < len(lives):
        lives = np.random.default_rng(seed).choice(lives, sample, replace=False)
    return lives


def percentiles(values: npt.ArrayLike, at: Sequence[float] = PERCENTILES) -> dict[float, float]:
    """Percentiles that are values which occur.

    Examples
    --------
    >>> percentiles([1, 2, 3, 4], (50, 100))
    {50: 2.0, 100: 4.0}
    """
    found = np.percentile(np.asarray(values), list(at), method="inverted_cdf")
    return {each: float(value) for each, value in zip(at, found, strict=True)}


class Distance(NamedTuple):
    """How far two distributions of keys are apart.

    ``ks`` is the statistic of Kolmogorov and Smirnov, with its p-value, and ``wasserstein`` the distance of that name.
    """

    ks: float
    p_value: float
    wasserstein: float


def distance(one: npt.ArrayLike, other: npt.ArrayLike) -> Distance:
    """How far the keys of two streams are apart (section 4).

    Keys must be numbers of one domain. Where they are not, `ranks` gives the ranks of both, most frequent key first.

    Raises
    ------
    InvalidArgument
        scipy is not installed; the extra ``harness`` brings it.
    """
    try:
        from scipy import stats
    except ImportError:
        raise InvalidArgument(
            "distances between distributions need scipy; pip install '.[harness]' in a clone of forebay"
        ) from None
    few = min(np.size(one), np.size(other)) < 2
    test = stats.ks_2samp(one, other, method="exact" if few else "asymp")
    return Distance(float(test.statistic), float(test.pvalue), float(stats.wasserstein_distance(one, other)))


def distortion(trace: AccessTrace) -> Distance:
    """How far the distribution of state keys is from that of their event keys (Table 2).

    Both are numbered in the order in which they come. An operator whose state keys are its event keys has a distance of 0.

    Examples
    --------
    >>> from forebay.harness.driver import Driver
    >>> from forebay.harness.events import Source
    >>> from forebay.harness.operators import Aggregation, TumblingHolistic
    >>> operators = Aggregation(), TumblingHolistic(100_000)
    >>> traces = [AccessTrace.of(Driver(operator).accesses([Source(events=2000)])) for operator in operators]
    >>> [distortion(trace).ks > 0.1 for trace in traces]
    [False, True]
    """
    return distance(trace.event_keys, trace.keys)


def ranks(keys: npt.ArrayLike) -> Numbers:
    """Of each key how many others are more frequent: streams whose keys have other names can be compared so.

    Examples
    --------
    >>> ranks([70, 80, 80, 90, 80, 90]).tolist()
    [2, 0, 0, 1, 0, 1]
    """
    _, inverse, counts = np.unique(np.asarray(keys), return_inverse=True, return_counts=True)
    rank = np.empty(len(counts), np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return rank[inverse]
