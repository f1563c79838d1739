"""What a query's driver tells its tasks, by properties of the query's own session, which Spark hands to every task."""

PREFIX = "spark.forebay."
INTERNAL = PREFIX + "internal."

CHECKPOINT = INTERNAL + "checkpointLocation"
REFUSED = INTERNAL + "refused"
DIRECTORIES = INTERNAL + "directories"
OUTPUT_MODE = INTERNAL + "outputMode"
QUERY = INTERNAL + "query"
RUN = INTERNAL + "run"
