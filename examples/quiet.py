"""A session for the examples: two cores, and Spark's log in a file, so that the terminal shows what the example prints."""

import os
from pathlib import Path

from pyspark.sql import SparkSession

import forebay as fb


def start_spark(name: str, log: Path) -> SparkSession:
    """A local session whose log goes to a file."""
    builder = (
        fb.configure(SparkSession.builder.master("local[2]"))
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
    )
    stderr = os.dup(2)
    with log.open("w") as written:  # the JVM logs to the stderr that it inherits
        os.dup2(written.fileno(), 2)
        try:
            spark = builder.getOrCreate()
        finally:
            os.dup2(stderr, 2)
    spark.sparkContext.setLogLevel("ERROR")
    return spark
