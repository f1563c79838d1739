"""What a further virtual node costs: small micro-batches over more and more of them, in one session.

    python benchmarks/virtual_nodes.py [micro-batches] [rounds]

A micro-batch has 1,000 rows on two state partitions, and ten seconds of event time, so that windows fire in each. In *busy*
the rows are of many keys and reach every virtual node; in *idle* they are of one key, and all virtual nodes but one get
nothing. Milliseconds of ``addBatch``, the median of a query's micro-batches after the first two and the best of the rounds;
then the cost of each further virtual node for its partition, from the fewest to the most.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from pyspark.sql import DataFrame, SparkSession
from session import spark_session

import forebay as fb

ROWS, SECONDS, START = 1000, 10, 1_704_067_200_000_000
INSTANCES = (1, 8, 32)
KEYS = {"busy": 1000, "idle": 1}
QUERIES = {
    "tumbling count": lambda df: fb.groupBy(df, fb.window("ts", "10 seconds"), "key").agg(fb.count("*").alias("n")),
    "session median": lambda df: fb.groupBy(df, fb.session_window("ts", "5 seconds"), "key").agg(fb.median("x")),
}


def write(directory: Path, keys: int, files: int) -> None:
    numbers = np.random.default_rng(1)
    for file in range(files):
        times = START + (file * SECONDS * 1_000_000) + np.sort(numbers.integers(0, SECONDS * 1_000_000, ROWS))
        columns = {"key": numbers.integers(0, keys, ROWS), "x": numbers.integers(0, 100, ROWS)}
        path = directory / f"{file:04}.parquet"
        pq.write_table(pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC")), **columns}), path)
        os.utime(path, (file + 1, file + 1))


def stream(spark: SparkSession, directory: Path) -> DataFrame:
    source = spark.readStream.schema("ts timestamp, key long, x long").option("maxFilesPerTrigger", 1)
    return source.parquet(str(directory)).withWatermark("ts", "1 second")


def milliseconds(df: DataFrame) -> float:
    """The median of ``addBatch``."""
    with tempfile.TemporaryDirectory() as checkpoint:
        query = df.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return statistics.median(batch.durationMs["addBatch"] for batch in query.recentProgress[2:])


def main() -> None:
    files, rounds = (int(text) for text in [*sys.argv[1:], *("20", "2")[len(sys.argv) - 1 :]])
    spark = spark_session()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    with tempfile.TemporaryDirectory() as directory:
        for kind, keys in KEYS.items():
            (Path(directory) / kind).mkdir()
            write(Path(directory) / kind, keys, files)
        best: dict[tuple[str, str, int], float] = {}
        for _ in range(rounds):
            for name, query in QUERIES.items():
                for kind in KEYS:
                    for instances in INSTANCES:
                        spark.conf.set("spark.forebay.instancesPerPartition", str(instances))
                        took = milliseconds(query(stream(spark, Path(directory) / kind)))
                        best[name, kind, instances] = min(best.get((name, kind, instances), np.inf), took)
    for name in QUERIES:
        for kind in KEYS:
            times = [best[name, kind, instances] for instances in INSTANCES]
            each = (times[-1] - times[0]) / (INSTANCES[-1] - INSTANCES[0])
            shown = ", ".join(f"{instances}: {took:.0f} ms" for instances, took in zip(INSTANCES, times, strict=True))
            print(f"{name}, {kind}: {shown}; each further one {each:.2f} ms", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
