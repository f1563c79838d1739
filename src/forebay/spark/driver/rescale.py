"""``fb.rescale``: a stopped query gets another number of state partitions.

Spark rewrites its own state, which has a token for each virtual node, as a micro-batch that reads no rows. The files that
the tokens name stay where they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from forebay.errors import CorruptState, InvalidArgument, UnsupportedConfiguration, VersionNotFound
from forebay.spark.driver import checkpoint_lock
from forebay.spark.driver.checkpoint import Logs, require_at_home
from forebay.spark.driver.conf import Conf
from forebay.spark.worker.stateful_processor import STATE
from forebay.state import layout as layouts
from forebay.state.layout import VNODES

if TYPE_CHECKING:
    from forebay.state.inspection import OperatorState


_MOVABLE = {
    "applyInPandasWithState",
    "dedupe",
    "dedupeWithinWatermark",
    "flatMapGroupsWithState",
    "sessionWindowStateStoreSaveExec",
    "stateStoreSave",
    "symmetricHashJoin",
    "transformWithStateExec",
    "transformWithStateInPandasExec",
    "transformWithStateInPySparkExec",
}
"""The stateful operators of Spark whose state Spark can rewrite, as the checkpoint names them."""


def rescale(checkpointLocation: str | os.PathLike[str], partitions: int) -> None:
    """Give a stopped query another number of state partitions. When it is started again, it goes on with its state.

    Tokens move, a line for each virtual node; the files of forebay's state do not. If the call is interrupted, the query
    does not start until the same call has been made again. If the query has that number already, nothing happens.

    Parameters
    ----------
    checkpointLocation : str or os.PathLike
        The checkpoint location of the query; Spark cannot rescale one whose path has blanks, or other characters that URLs
        escape. The query must be stopped, and its last micro-batch must have ended.
    partitions : int
        How many state partitions the query gets. It must divide the number of virtual nodes of every operator, which
        ``spark.forebay.virtualNodes`` has fixed when the query was started for the first time.

    Raises
    ------
    InvalidArgument
        If there is no query of forebay at the location, or if it cannot have so many state partitions.
    UnsupportedConfiguration
        If the query is running, or has not ended its last micro-batch, or was begun without ``spark.forebay.virtualNodes``.
    CorruptState, VersionNotFound
        If the checkpoint is damaged, or without the state that belongs to it. It is left as it is.

    Examples
    --------
    >>> import tempfile
    >>> import forebay as fb
    >>> checkpoint = tempfile.mkdtemp()
    >>> spark.conf.set("spark.forebay.virtualNodes", 4)
    >>> rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 1)
    >>> ticks = rates.option("advanceMillisPerBatch", 1000).load().withWatermark("timestamp", "1 minute")
    >>> counts = fb.groupBy(ticks, fb.window("timestamp", "1 hour"), (ticks.value % 2).alias("odd")).agg(fb.count("*"))
    >>> writer = counts.writeStream.format("noop").option("checkpointLocation", checkpoint)
    >>> query = writer.trigger(availableNow=True).start()
    >>> query.awaitTermination()
    >>> fb.rescale(checkpoint, 4)
    >>> query = writer.trigger(availableNow=True).start()  # with 4 state partitions
    >>> query.awaitTermination()
    >>> spark.conf.unset("spark.forebay.virtualNodes")
    """
    session = SparkSession.getActiveSession()
    if session is None or not hasattr(session, "_jsparkSession"):
        raise UnsupportedConfiguration("fb.rescale needs a classic Spark session, and there is none. Make one first.")
    if isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1:
        raise InvalidArgument(f"partitions is {partitions!r}; it must be a whole number of at least 1")
    if not isinstance(checkpointLocation, str | os.PathLike) or not os.fspath(checkpointLocation):
        raise InvalidArgument(f"checkpointLocation is {checkpointLocation!r}; it must be a path or a URL")
    location, logs, query = _opened(session, os.fspath(checkpointLocation))
    _require_stopped(session, location, logs, query, partitions)
    with checkpoint_lock.rescaling(query, location):
        _rescale(session, location, query, partitions)


def _rescale(session: SparkSession, location: str, query: str, partitions: int) -> None:
    """Have Spark rewrite the tokens of a query that nobody runs."""
    from forebay.state import inspection, verifying  # import polars

    _, logs, _ = _opened(session, location)
    _require_stopped(session, location, logs, query, partitions)
    require_at_home(location)
    root = Conf.of(session).place.root(location, query)
    operators = inspection.operators(root)
    try:
        _require_movable(session, location)
        tokens = _tokens(session, location)
        used = {token.partition("/")[0] for token in tokens}
        _require_even(location, [each for each in operators if not used or each.id in used], partitions)
        if logs.partitions(logs.begun) == partitions and logs.begun == logs.committed:
            return
        for token in tokens:
            verifying.require_there(root, token, operators)
        for operator in operators:  # the micro-batch that Spark makes is none of a changed query that has had no rows yet
            layouts.settled_history(root, operator.id, logs.committed)
        session._streamingCheckpointManager.repartition(location, partitions)
    except (Py4JJavaError, PySparkException) as error:
        cause = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error
        if _opened(session, location)[1].rescaling == partitions:
            raise UnsupportedConfiguration(
                f"the rescale of {location} to {partitions} state partitions has begun and was not ended: {cause}\n"
                "Remove the cause and make the same call again, in a session with the settings of the query."
            ) from error
        raise CorruptState(
            f"Spark cannot rescale the checkpoint at {location}: {cause}\n"
            "If it is damaged, restore it from a copy, together with its state directory."
        ) from error


def start_session(settings: Mapping[str, str]) -> SparkSession:
    """A session for `rescale` or `missing` alone, with settings of the query; local unless Spark says otherwise."""
    builder = SparkSession.builder.appName("forebay state")
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF"}
    for name, value in {**quiet, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _opened(session: SparkSession, location: str) -> tuple[str, Logs, str]:
    """A checkpoint: its location as Spark writes it, its logs, and the id of its query."""
    assert session._jvm is not None
    spark: Any = session._jvm.org.apache.spark.sql.execution.streaming
    try:
        found = spark.utils.StreamingUtils.resolvedCheckpointLocation(session._jsc.hadoopConfiguration(), location)
    except (Py4JJavaError, PySparkException) as error:
        cause = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error
        raise InvalidArgument(
            f"Spark finds no way to {location}: {cause}. Name the checkpoint location as the query does, in a session that "
            "has the libraries and the settings of its file system."
        ) from error
    if "%" in found:
        raise UnsupportedConfiguration(
            f"Spark cannot rescale the checkpoint at {location}, though it can run a query there: its rescale takes for a "
            f"path what is a URL, {found}. Move it to a path that needs no escapes, as blanks do (docs/operations.md)."
        )
    try:
        metadata = spark.runtime.StreamingQueryCheckpointMetadata(session._jsparkSession, found, True)
        logs = Logs(metadata.offsetLog(), metadata.commitLog())
        if logs.begun < 0:
            raise InvalidArgument(
                f"{location} is not the checkpoint location of a query that has ever run. Name the directory that the query "
                "has as its checkpointLocation."
            )
        return str(found), logs, str(metadata.streamMetadata().id())
    except Py4JJavaError as error:
        raise CorruptState(
            f"the checkpoint at {location} cannot be read: {error.java_exception.getMessage()}. Restore it from a copy, "
            "together with its state directory."
        ) from error


def _require_stopped(session: SparkSession, location: str, logs: Logs, query: str, partitions: int) -> None:
    """`UnsupportedConfiguration` if the query runs, or if its last micro-batch or another rescale has not ended."""
    assert session._jvm is not None
    uuid = session._jvm.java.util.UUID.fromString(query)
    if session._jsparkSession.sharedState().activeStreamingQueries().containsKey(uuid):
        raise UnsupportedConfiguration(f"the query with the checkpoint at {location} is running. Stop it, then rescale it.")
    if logs.rescaling not in (None, partitions):
        logs.require_no_rescale(location)
    if logs.begun > logs.committed and logs.rescaling is None:
        raise UnsupportedConfiguration(
            f"the query with the checkpoint at {location} has begun micro-batch {logs.begun} and not ended it: it runs "
            "somewhere, or it was stopped or has failed in that micro-batch. Stop it if it runs. Otherwise start it with "
            "trigger(availableNow=True) and wait until it ends; one that goes by the wall clock does not end, so start it "
            "with trigger(processingTime='1 hour') and stop it after its first micro-batch. Then rescale it."
        )


def _require_movable(session: SparkSession, location: str) -> None:
    """`UnsupportedConfiguration` for operators that Spark cannot rescale, which it finds out only after it has begun."""
    names = {row["operatorName"] for row in session.read.format("state-metadata").load(location).collect()}
    if names - _MOVABLE:
        raise UnsupportedConfiguration(
            f"Spark cannot rescale the state of {', '.join(sorted(names - _MOVABLE))} in the query with the checkpoint at "
            f"{location}. Start that query with a new checkpoint location, or leave the operator out."
        )


def _require_even(location: str, operators: Sequence[OperatorState], partitions: int) -> None:
    """An error unless so many state partitions divide the virtual nodes of every operator."""
    if not operators:
        raise _stateless(location)
    for layout in (operator.layout for operator in operators):
        if VNODES not in layout:
            raise UnsupportedConfiguration(
                f"the operator {layout['window']} of the query with the checkpoint at {location} was begun without "
                "spark.forebay.virtualNodes, so its virtual nodes belong to the state partitions that it has. Set it and "
                "start the query with a new checkpoint location."
            )
        if layout[VNODES] % partitions:
            divisors = ", ".join(str(1 << power) for power in range(layout[VNODES].bit_length()))
            raise InvalidArgument(
                f"partitions is {partitions}, which does not divide the {layout[VNODES]} virtual nodes of the operator "
                f"{layout['window']}. Possible are {divisors}."
            )


def missing(location: str) -> Iterator[str]:
    """What is wrong with the versions that the state of Spark names: those that are not there, or whose manifest is damaged.

    It takes a session, as `rescale` does, and the same settings.
    """
    from forebay.state import inspection, verifying  # import polars

    active = SparkSession.active()
    location, _, query = _opened(active, location)
    root = Conf.of(active).place.root(location, query)
    operators, tokens = inspection.operators(root), _tokens(active, location)
    if not operators and not tokens:
        raise _stateless(location)
    for token in tokens:
        try:
            verifying.require_there(root, token, operators)
        except (VersionNotFound, CorruptState) as error:
            yield str(error)


def _stateless(location: str) -> InvalidArgument:
    return InvalidArgument(
        f"the query with the checkpoint at {location} has no state of forebay: it has had no rows yet, or its state is "
        "elsewhere. If so, set spark.forebay.stateDirectory, or spark.forebay.durability and spark.forebay.localDirectory, "
        "as the query does."
    )


def _tokens(session: SparkSession, location: str) -> list[str]:
    """What Spark's state has for the virtual nodes of all operators of forebay."""
    tokens: list[str] = []
    for operator in session.read.format("state-metadata").load(location).collect():
        variables = json.loads(operator["operatorProperties"] or "{}").get("stateVariables", ())
        if any(variable["stateName"] == STATE for variable in variables):
            states = session.read.format("statestore").option("operatorId", operator["operatorId"])
            rows = states.option("stateVarName", STATE).load(location).select("value.token").dropna().collect()
            tokens += [row["token"] for row in rows]
    return tokens
