"""YCSB made as like a trace as it can be: as many keys, and the same shares of reads and writes (Gadget, section 4)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from forebay.errors import InvalidArgument
from forebay.harness.access import GET, MERGE, PUT
from forebay.harness.analysis import AccessTrace
from forebay.harness.ycsb import Ycsb


def tuned(batches: Iterable[pa.RecordBatch], requests: str, seed: int = 0) -> Ycsb:
    """The workload of YCSB that is nearest to a trace.

    Merges count as updates, and deletes are left out, since YCSB has neither. A trace most of whose writes follow a read of
    the same key becomes read-modify-writes.

    Parameters
    ----------
    batches : iterable of pyarrow.RecordBatch
        The accesses of the trace.
    requests : str
        What the keys are drawn from, one of `forebay.harness.ycsb.REQUESTS`.
    seed : int
        Another seed gives other operations.

    Examples
    --------
    >>> from forebay.harness.driver import Driver
    >>> from forebay.harness.events import Source
    >>> from forebay.harness.operators import Aggregation
    >>> like = tuned(Driver(Aggregation()).accesses([Source(events=2000)]), "latest")
    >>> like.modify, like.operations, like.size
    (1.0, 2000, 8)
    """
    known = list(batches)
    trace = AccessTrace.of(known)
    sizes = np.concatenate([batch["size"].to_numpy() for batch in known])
    reads, writes = trace.operation == GET, (trace.operation == PUT) | (trace.operation == MERGE)
    after = writes[1:] & reads[:-1] & (trace.keys[1:] == trace.keys[:-1])
    gets, puts = int(reads.sum()), int(writes.sum())
    modified = min(gets, puts) if after.sum() * 2 > puts else 0
    operations = gets + puts - modified
    if not operations:
        raise InvalidArgument("the trace has deletes only, and YCSB has none; there is nothing to be like")
    return Ycsb(
        read=(gets - modified) / operations,
        update=(puts - modified) / operations,
        modify=modified / operations,
        requests=requests,
        records=trace.count,
        operations=operations,
        size=int(sizes[writes].mean()) if puts else 0,
        seed=seed,
    )
