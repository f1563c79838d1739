"""A program that runs small queries, so that its Java has loaded what sessions load: see `shared_classes`.

python -m forebay.spark.driver.loaded_classes FILE
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from forebay.aggregates.functions import median
from forebay.spark.driver.configure import configure
from forebay.spark.driver.groupby import groupBy
from forebay.spark.driver.shared_classes import OPTIONS
from forebay.spark.driver.windows import window


def main() -> None:
    """Run the queries; Java writes the file when the session has ended."""
    builder = configure(SparkSession.builder.master("local[2]"))
    written = f"-XX:ArchiveClassesAtExit={sys.argv[1]}"
    spark = builder.config(OPTIONS, written).config("spark.ui.showConsoleProgress", "false").getOrCreate()
    gateway = SparkContext._gateway
    assert gateway is not None
    with tempfile.TemporaryDirectory() as directory:
        run(spark, Path(directory))
    spark.stop()
    gateway.shutdown()
    java = gateway.proc
    java.stdin.close()
    sys.exit(java.wait())


def run(spark: SparkSession, directory: Path) -> None:
    """Read and write, with Spark's own operators and with forebay's."""
    rows = spark.range(40).select(F.timestamp_seconds("id").alias("ts"), (F.col("id") % 3).alias("k"), F.rand(1).alias("x"))
    for name in ("parquet", "json"):
        rows.repartition(2).write.format(name).save(f"{directory.as_uri()}/{name}")
    rows.join(rows.groupBy("k").agg(F.sum("x").alias("all")), "k").orderBy("ts").toPandas()
    source = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1)
    stream = source.parquet(f"{directory.as_uri()}/parquet").withWatermark("ts", "1 second")
    _stream(stream.groupBy(F.window("ts", "5 seconds"), "k").count(), f"{directory.as_uri()}/counts", "noop")
    medians = groupBy(stream, window("ts", "5 seconds"), "k").agg(median("x").alias("x"))
    _stream(medians, f"{directory.as_uri()}/medians", "parquet")
    spark.read.parquet(f"{directory.as_uri()}/medians/out").show()


def _stream(results: DataFrame, directory: str, sink: str) -> None:
    writer = results.writeStream.format(sink).option("checkpointLocation", f"{directory}/checkpoint")
    writer.trigger(availableNow=True).start(f"{directory}/out").awaitTermination()


if __name__ == "__main__":
    main()
