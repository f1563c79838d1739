"""What a query's driver tells its tasks, by properties of the query's own session, which Spark hands to every task."""

PREFIX = "spark.forebay."
INTERNAL = PREFIX + "internal."

CHECKPOINT = INTERNAL + "checkpointLocation"
REFUSED = INTERNAL + "refused"
DIRECTORIES = INTERNAL + "directories"
OUTPUT_MODE = INTERNAL + "outputMode"
QUERY = INTERNAL + "query"
RUN = INTERNAL + "run"

RECORDS, BYTES = (f"spark.sql.execution.arrow.max{unit}PerBatch" for unit in ("Records", "Bytes"))
"""After how many rows, and how many bytes, Spark ends an Arrow batch for Python."""

NO_BOUND = str((1 << 31) - 1)
"""The value of ``spark.sql.execution.arrow.maxBytesPerBatch`` with which Spark does not add up the bytes of rows."""

MOST_ROWS = 100_000
"""Where batches may have more rows than that, they are not ended by rows in place of bytes."""
