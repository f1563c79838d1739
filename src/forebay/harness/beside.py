"""Operators that share a store: their accesses in turn, with state keys kept apart (Gadget, section 6.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from forebay.errors import InvalidArgument
from forebay.harness.access import SCHEMA, replay
from forebay.harness.evaluator import Measured, drive
from forebay.harness.stores import Connector

FAMILIES = 16
"""How many states each operator may have: those of the second have families from here on, and so on."""
_MOST = 256 // FAMILIES


def evaluate_beside(
    store: Connector, streams: Sequence[Iterable[pa.RecordBatch]], rate: float | None = None, directory: Path | None = None
) -> list[Measured]:
    """Drive a store with the accesses of several operators in turn, and measure each operator.

    The operators take turns access by access, and the first that has no more ends the run for all. The seconds of an
    operator are those that the store took for its own accesses, so that its throughput can be compared with what it is
    alone.

    Parameters
    ----------
    store : Connector
        The store.
    streams : sequence of iterables of pyarrow.RecordBatch
        The accesses of each operator.
    rate : float or None
        Accesses per second of each operator, or as fast as the store takes them.
    directory : Path or None
        The store's directory, whose files are counted.

    Raises
    ------
    InvalidArgument
        There are too many operators, or one has too many states.
    StateDirectoryError
        The store could not write.

    Examples
    --------
    >>> from forebay.harness.access import GET, PUT, accesses
    >>> from forebay.harness.stores import open_store
    >>> batch = accesses([(PUT, 0, 1, 0, 0, 8, 0), (GET, 0, 1, 0, 0, 0, 0)])
    >>> one, other = evaluate_beside(open_store("dict", Path("unused")), [[batch], [batch.slice(0, 1)]])
    >>> one.accesses, other.accesses
    (1, 1)
    """
    if not 1 <= len(streams) <= _MOST:
        raise InvalidArgument(f"{len(streams)} operators share a store; there may be 1 to {_MOST}")
    measured = [Measured() for _ in streams]
    together = None if rate is None else rate * len(streams)
    drive(
        store,
        replay(alternate(streams), together),
        measured,
        directory,
        lambda batch: batch["family"].to_numpy() // FAMILIES,
    )
    return measured


def alternate(streams: Sequence[Iterable[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """The accesses of several operators in turn, until the first has no more.

    Examples
    --------
    >>> from forebay.harness.access import GET, accesses
    >>> batch = accesses([(GET, 0, key, 0, 0, 0, 0) for key in (1, 2)])
    >>> together = pa.Table.from_batches(alternate([[batch], [batch]]))
    >>> together["key"].to_pylist(), together["family"].to_pylist()
    ([1, 1, 2, 2], [0, 16, 0, 16])
    """
    sources = [iter(stream) for stream in streams]
    waiting = [pa.RecordBatch.from_pylist([], SCHEMA) for _ in sources]
    while True:
        for number, source in enumerate(sources):
            while not waiting[number].num_rows:
                batch = next(source, None)
                if batch is None:
                    return
                waiting[number] = _apart(batch, number)
        rows = min(batch.num_rows for batch in waiting)
        parts = pa.concat_batches([batch.slice(0, rows) for batch in waiting])
        yield parts.take(pa.array(np.arange(len(sources) * rows).reshape(len(sources), rows).T.ravel()))
        waiting = [batch.slice(rows) for batch in waiting]


def _apart(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """The accesses of one operator among others, with families of its own."""
    families = batch["family"].to_numpy()
    if len(families) and families.max() >= FAMILIES:
        raise InvalidArgument(f"an operator that shares a store may have {FAMILIES} states; one has {families.max() + 1}")
    place = batch.schema.get_field_index("family")
    return batch.set_column(place, batch.schema.field(place), pa.array(families + np.uint8(number * FAMILIES)))
