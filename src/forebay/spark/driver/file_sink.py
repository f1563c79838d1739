"""What Spark's file sink needs after a rescale.

The sink keeps a log of its own beside the files that it writes, with an entry for each micro-batch, and cannot be read if an
entry is missing. A rescale is a micro-batch that never reaches the sink.
"""

from __future__ import annotations

import re
from typing import Any

from forebay.spark.driver.checkpoint import Logs


def skip_rescales(execution: Any, gateway: Any, logs: Logs) -> None:
    """Before a query goes on: have the log of its file sink, if it has one, say that the last rescales wrote nothing."""
    sink = re.fullmatch(r"FileSink\[(.*)\]", str(execution.sink().toString()))
    batch = logs.committed
    rescales = []
    while sink and logs.was_rescale(batch):
        rescales.append(batch)
        batch -= 1
    if sink and rescales:
        jvm = gateway.jvm
        sinks = jvm.org.apache.spark.sql.execution.streaming.sinks
        log = sinks.FileStreamSinkLog(1, execution.sparkSession(), f"{sink[1]}/_spark_metadata", jvm.scala.Option.empty())
        for batch in reversed(rescales):
            log.add(batch, gateway.new_array(sinks.SinkFileStatus, 0))
