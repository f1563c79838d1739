"""``fb.progress``: what the forebay operators of a query have done, read from the state itself."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pyspark.sql.streaming import StreamingQuery

from forebay.errors import InvalidArgument, StateDirectoryError
from forebay.spark.driver import replicas
from forebay.spark.driver.handover import handover
from forebay.spark.driver.query import MARK, execution, plan_of, require_query, root_of
from forebay.state.places import local_path
from forebay.store.manifest import Counters


@dataclass(frozen=True)
class Progress:
    """Totals over all operators and store instances of a query, since it first ran.

    They are written with the state, so restarts and retries neither lose nor double a row. While a batch is being retried
    they may show what its failed attempt wrote.

    Attributes
    ----------
    rowsIn : int
        Rows that reached an operator.
    rowsLate : int
        Rows dropped because every window they belong to had fired.
    rowsPartlyLate : int
        Rows that missed some of their sliding windows and are in the others.
    windowsFired : int
        Windows that fired, counted in each store instance that had rows of them.
    rowsOut : int
        Result rows emitted.
    stateRows, stateBytes : int
        Rows, or partial aggregates, in the parts of files that have some which are needed, and the bytes of these parts,
        which `recentMetrics` calls ``stateLiveBytes``. Rows of windows that have ended are among them until compaction.
        Files take more, up to ``spark.forebay.maxSpaceAmplification`` times as much.
    replicaLagVersions, replicaLagBytes : int
        By how many versions the replica that is furthest behind is behind, and bytes that hosts still have to get; with
        ``spark.forebay.durability=replicas``.
    handovers : int
        Handovers of state partitions between executors in this run of the query.
    """

    rowsIn: int = 0
    rowsLate: int = 0
    rowsPartlyLate: int = 0
    windowsFired: int = 0
    rowsOut: int = 0
    stateRows: int = 0
    stateBytes: int = 0
    replicaLagVersions: int = 0
    replicaLagBytes: int = 0
    handovers: int = 0

    def __add__(self, other: Progress) -> Progress:
        return Progress(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


def progress(query: StreamingQuery) -> Progress:
    """What the forebay operators of ``query`` have done so far.

    Parameters
    ----------
    query : StreamingQuery
        A query started in this session, running or not.

    Returns
    -------
    Progress
        Totals up to the newest version of each store instance; zeros before the first micro-batch has written state.

    Raises
    ------
    InvalidArgument
        If it is no query, or none with an operator of forebay that has state.
    StateDirectoryError
        If the query's checkpoint is gone, and the state with it.
    CorruptState
        If the manifest of a version that counts is damaged.
    """
    from forebay.state import inspection  # imports polars

    _require_operators(query)
    operators = inspection.operators(root_of(query))
    if not operators:
        _require_checkpoint(query)
    found = [instance.at() for operator in operators for instance in operator.instances]
    current = [manifest for manifest in found if manifest is not None]
    totals = sum((manifest.counters for manifest in current), Counters())
    return Progress(
        rowsIn=totals.rows_in,
        rowsLate=totals.rows_late,
        rowsPartlyLate=totals.rows_partly_late,
        windowsFired=totals.windows_fired,
        rowsOut=totals.rows_out,
        stateRows=sum(manifest.rows for manifest in current),
        stateBytes=sum(manifest.size for manifest in current),
        **(handover(query).lag() if query.isActive and replicas.manager() is not None else {}),
    )


def _require_operators(query: StreamingQuery) -> None:
    """`InvalidArgument` unless a query has an operator of which there is something to say."""
    require_query("progress()", query)
    if not MARK.search(plan_of(query)):
        raise InvalidArgument(
            f"the query {query.name or query.id} has no operator of forebay that keeps state, so nothing is known of its "
            "progress here. Spark's query.lastProgress has its rows."
        )


def _require_checkpoint(query: StreamingQuery) -> None:
    """`StateDirectoryError` if the checkpoint of a query is not there any more."""
    location = str(execution(query).resolvedCheckpointRoot())
    path = local_path(location)
    if path is not None and not path.exists():
        raise StateDirectoryError(
            f"the checkpoint {location} of the query {query.name or query.id} does not exist any more, and its state was "
            "there: Spark removes the checkpoint of a query without checkpointLocation when the query ends. Ask for the "
            "progress while it runs, or give it a checkpointLocation."
        )
