"""The vehicle of forebay with an empty operator: what Spark, packing and the shuffle of blobs take at the least."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from common import Result, Workload, main
from forebay_peer import aggregate_of, window_of
from pyspark.sql.streaming import StatefulProcessor
from session import bids, spark_session, timed

from forebay.spark.driver.binding import bind
from forebay.spark.driver.conf import Conf
from forebay.spark.properties import NO_BOUND
from forebay.spark.worker import startup, task


class Empty(StatefulProcessor):
    """Decodes the blobs of a virtual node and forgets them."""

    def init(self, handle: Any) -> None:
        self._seen = handle.getValueState("batches", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        from forebay.spark.worker import blobs

        count = sum(batch.num_rows for frame in rows for blob in frame["payload"].dropna() for batch in blobs.read(blob)[0])
        self._seen.update(((self._seen.get() or (0,))[0] + 1,))
        yield pd.DataFrame({"rows": [count]})

    def close(self) -> None:
        pass


def run(workload: Workload, data: Path, output: Path | None, arguments: Namespace) -> Result:
    # forebay leaves the bound out for rows of these columns; micro-batches are too small for blobs to need ballast
    spark = spark_session(spark__sql__execution__arrow__maxBytesPerBatch=NO_BOUND)
    stream = bids(spark, data)
    bound = bind(stream, window_of(workload), (workload.key,), (aggregate_of(workload),), Conf())
    plan, layout = startup.dumps(bound.plan), bound.layout

    def pack(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        loaded = startup.loads(plan)
        from forebay.spark.worker import blobs
        from forebay.spark.worker.pack import pack
        from forebay.spark.worker.vnodes import vnodes_of

        for vnode, blob in pack(batches, loaded, vnodes_of(layout, task.state_partitions())):
            yield pa.record_batch([pa.array([vnode], pa.int32()), blobs.column(blob)], ["vnode", "payload"])

    packed = stream.select(*bound.projection).mapInArrow(pack, "vnode int, payload binary").groupBy("vnode")
    return timed(packed.transformWithStateInPandas(Empty(), "rows long", "append", "none"), workload, None)


if __name__ == "__main__":
    main(run)
