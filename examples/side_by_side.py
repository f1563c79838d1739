"""Two streams at the same time in one session: same windows, keys and aggregates, and state that never meets.

Each query keeps its state under its own checkpoint, in ``forebay/``. Both must give what Spark computes in batch. Run it
where ``python3`` is the one that has forebay, for example in its activated virtual environment.
"""

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import forebay as fb

SCHEMA = "time timestamp, country string, amount long"


def main() -> None:
    spark = (
        fb.configure(SparkSession.builder.master("local[2]"))
        .appName("side by side")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as directory:
        orders, views = Path(directory, "orders"), Path(directory, "views")
        write_source(spark, orders, rows=20_000, seconds_between=2)
        write_source(spark, views, rows=80_000, seconds_between=1)
        queries = {path: start(spark, path) for path in (orders, views)}  # both run now
        for path, query in queries.items():
            query.awaitTermination()
            show(spark, path, query)
    spark.stop()


def write_source(spark: SparkSession, path: Path, rows: int, seconds_between: int) -> None:
    """Write a stream as four files: a row every so many seconds, from one of three countries."""
    source = spark.range(rows, numPartitions=1).select(
        F.timestamp_seconds(F.lit(1714521600) + F.col("id") * seconds_between).alias("time"),
        F.element_at(F.array(F.lit("DE"), F.lit("FR"), F.lit("IT")), (F.col("id") % 3 + 1).cast("int")).alias("country"),
        F.pmod(F.xxhash64("id"), F.lit(1000)).alias("amount"),
    )
    source.write.option("maxRecordsPerFile", rows // 4).parquet(str(path / "source"))


def start(spark: SparkSession, path: Path) -> StreamingQuery:
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(path / "source"))
    result = fb.groupBy(stream.withWatermark("time", "10 minutes"), fb.window("time", "1 hour"), "country").agg(
        fb.median("amount").alias("median"), fb.count("*").alias("n")
    )
    return (
        result.writeStream.outputMode("append")
        .format("parquet")
        .option("path", str(path / "result"))
        .option("checkpointLocation", str(path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def show(spark: SparkSession, path: Path, query: StreamingQuery) -> None:
    """Print a query's result and where its state is, and compare it with Spark's batch result of the windows that fired."""
    result = spark.read.parquet(str(path / "result"))
    watermark = F.lit(query.lastProgress.eventTime["watermark"]).cast("timestamp")
    source = spark.read.parquet(str(path / "source"))
    expected = source.groupBy(F.window("time", "1 hour"), "country").agg(F.median("amount"), F.count("*"))
    assert sorted(result.collect()) == sorted(expected.where(F.col("window.end") <= watermark).collect())

    progress = fb.progress(query)
    print(f"\n{path.name}: {progress.rowsIn:,} rows in, {progress.rowsLate} late, {progress.rowsOut} results, as in batch")
    result.orderBy("window", "country").select("window.*", "country", "median", "n").show(6)
    for state in sorted((path / "checkpoint" / "forebay").glob("*/*/")):
        print(f"state in {state.relative_to(path.parent)}")


if __name__ == "__main__":
    main()
