"""How alike two streams of accesses are, as section 6.1 of Gadget compares generated traces with real ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from forebay.harness import access, analysis
from forebay.harness.analysis import Distance


class Likeness(NamedTuple):
    """How far two streams of accesses are apart.

    Attributes
    ----------
    composition : float
        The largest difference between shares of an operation.
    keys : Distance
        How far the distributions of event keys are apart.
    stacks : Distance or None
        How far those of stack distances are; None where a stream has none, since it has each key once.
    sequences : float
        The largest difference between numbers of unique sequences of a length, relative to those of the other stream.
    """

    composition: float
    keys: Distance
    stacks: Distance | None
    sequences: float


def likeness(one: Iterable[pa.RecordBatch], other: Iterable[pa.RecordBatch]) -> Likeness:
    """How alike two streams of accesses are whose event keys have the same numbers.

    Examples
    --------
    >>> from forebay.harness.driver import Driver
    >>> from forebay.harness.events import Source
    >>> from forebay.harness.operators import TumblingHolistic
    >>> first, again, longer = (
    ...     Driver(TumblingHolistic(size)).accesses([Source(events=5000)]) for size in (100_000, 100_000, 300_000))
    >>> same = likeness(first, again)
    >>> same.composition, same.stacks.p_value, same.sequences
    (0.0, 1.0, 0.0)
    """
    tables = [pa.Table.from_batches(list(batches), access.SCHEMA) for batches in (one, other)]
    mine, theirs = (analysis.AccessTrace.of(table.to_batches()) for table in tables)
    shares, others = analysis.composition(mine), analysis.composition(theirs)
    stacks = [analysis.stack_distances(trace) for trace in (mine, theirs)]
    counts = zip(analysis.unique_sequences(mine), analysis.unique_sequences(theirs), strict=True)
    return Likeness(
        max(abs(shares[name] - others[name]) for name in shares),
        analysis.distance(*(table["key"].to_numpy() for table in tables)),
        analysis.distance(*stacks) if all(map(len, stacks)) else None,
        max(abs(count - reference) / max(reference, 1) for count, reference in counts),
    )
