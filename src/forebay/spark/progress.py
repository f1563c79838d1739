"""``fb.progress``: what the forebay operators of a query have done, read from the state itself."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pyspark.sql.streaming import StreamingQuery

from forebay.spark import checkpoint
from forebay.store.manifest import Counters


@dataclass(frozen=True)
class Progress(Counters):
    """Totals over all operators and store instances of a query, since it first ran.

    They are written with the state, so restarts and retries neither lose nor double a row. While a batch is being retried
    they may show what its failed attempt wrote.

    Attributes
    ----------
    rows_in : int
        Rows that reached an operator.
    rows_late : int
        Rows dropped because every window they belong to had fired.
    rows_partly_late : int
        Rows that missed some of their sliding windows and are in the others.
    windows_fired : int
        Windows that fired, counted in each store instance that had rows of them.
    rows_out : int
        Result rows emitted.
    state_rows, state_bytes : int
        Rows, or partial aggregates, in state now, and their size on disk in bytes.
    """

    state_rows: int = 0
    state_bytes: int = 0


def progress(query: StreamingQuery) -> Progress:
    """What the forebay operators of ``query`` have done so far.

    Parameters
    ----------
    query : StreamingQuery
        A query started in this session, running or not.

    Returns
    -------
    Progress
        Totals up to the newest version of each store instance.
    """
    from forebay import inspection  # imports polars

    operators = inspection.operators(checkpoint.root_of(query))
    found = [instance.at() for operator in operators for instance in operator.instances]
    current = [manifest for manifest in found if manifest is not None]
    totals = sum((manifest.counters for manifest in current), Counters())
    return Progress(
        **{field.name: getattr(totals, field.name) for field in fields(Counters)},
        state_rows=sum(manifest.rows for manifest in current),
        state_bytes=sum(manifest.size for manifest in current),
    )
