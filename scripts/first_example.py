"""Run the first example of a README as it stands there, on two days of made-up flights, and look at what comes out.

It is run where only the wheel is installed: ``python scripts/first_example.py README.md``.
"""

import re
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import forebay

example = re.search(r"```python\n(.*?)```", Path(sys.argv[1]).read_text(), re.S)[1]
settings = re.search(r"## In your project.*?```python\n(.*?)```", Path(sys.argv[1]).read_text(), re.S)[1]
assert ".venv" not in forebay.__file__ and "src" not in Path(forebay.__file__).parts, forebay.__file__

with tempfile.TemporaryDirectory() as directory:
    names = {"SparkSession": SparkSession, "fb": forebay}
    exec(settings, names)  # noqa: S102 - our own README
    spark = names["spark"]
    path, out, checkpoint = (f"{directory}/{name}" for name in ("in", "out", "checkpoint"))
    flights = spark.range(2 * 24 * 60).selectExpr(
        "timestamp_seconds(id * 60) departed", "concat('carrier ', id % 3) carrier", "double(id % 100) dep_delay"
    )
    flights.repartitionByRange(3, "departed").write.parquet(path)
    names |= {"path": path, "out": out, "checkpoint": checkpoint, "schema": flights.schema}
    exec(example.replace(".start(out)", ".trigger(availableNow=True).start(out).awaitTermination()"), names)  # noqa: S102 - as above
    rows = spark.read.parquet(out).orderBy("carrier").collect()
    assert [(row.carrier, row.n) for row in rows] == [(f"carrier {number}", 480) for number in range(3)], rows
    print(f"forebay {forebay.__version__}: the README's first example gives {len(rows)} rows")  # noqa: T201
    spark.stop()
