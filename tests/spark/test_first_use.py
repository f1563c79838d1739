"""What somebody sees who tries the library for the first time: a program in a virtual environment, run as it is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import forebay as fb

spark = fb.configure(SparkSession.builder.master("local[2]")).config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(4000).selectExpr("timestamp_millis(id * 100) t", "id % 5 k", "id n").repartitionByRange(8, "t")
rows = rows.mapInArrow(lambda batches: batches, rows.schema)  # by a Python worker, before forebay was asked for anything
rows.write.parquet(f"{sys.argv[1]}/in")
df = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1).parquet(f"{sys.argv[1]}/in")
sessions = fb.groupBy(df.withWatermark("t", "1 second"), fb.session_window("t", "150 milliseconds"), "k").agg(fb.median("n"))
writer = sessions.writeStream.format("parquet").option("checkpointLocation", f"{sys.argv[1]}/checkpoint")
query = writer.trigger(availableNow=True).start(f"{sys.argv[1]}/out")
query.awaitTermination()
print("batches", len(query.recentProgress), "results", fb.progress(query).rowsOut)
spark.stop()
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    elsewhere = [each for each in environment["PATH"].split(os.pathsep) if Path(each) != Path(sys.executable).parent]
    environment["PATH"] = os.pathsep.join(elsewhere)  # the virtual environment has not been activated
    directory = str(tmp_path_factory.mktemp("first"))
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, directory], env=environment, capture_output=True, text=True, check=True
    )


@pytest.mark.slow
def test_no_environment_variable_is_needed(printed):
    batches, results = map(int, re.findall(r"batches (\d+) results (\d+)", printed.stdout)[0])
    assert batches >= 8
    assert results > 3900


@pytest.mark.slow
def test_spark_has_nothing_to_say_of_timers(printed):
    assert "TimerStateImpl" not in printed.stderr
