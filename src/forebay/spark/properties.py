"""What a query's driver tells its tasks, by properties of the query's own session, which Spark hands to every task."""

PREFIX = "spark.forebay."

CHECKPOINT = PREFIX + "internal.checkpointLocation"
REFUSED = PREFIX + "internal.refused"
DIRECTORIES = PREFIX + "internal.directories"
BEGUN_WITHOUT = PREFIX + "internal.begunWithout"
OUTPUT_MODE = PREFIX + "internal.outputMode"
