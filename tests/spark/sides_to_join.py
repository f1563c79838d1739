"""Two sides of joins: files of rows, the streams that read them, and how results are compared."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from streams import EPOCH_2024, SECOND

HOWS = ["inner", "left", "right", "full", "semi", "anti"]
FILES = 4


def files(directory, seed, *, lag=0, rows=120, whole=False):
    """Rows whose event time advances by 20 s a file, out of order by less than 10 s, and a row that ends all windows.

    With ``whole`` two of three are at whole seconds, so that there are rows at the same instant. Some have no time.
    """
    directory.mkdir()
    numbers = np.random.default_rng(seed)
    for file in range(FILES + 1):
        n = rows if file < FILES else 1
        base = file * 20 + lag if file < FILES else 3600
        times = EPOCH_2024 + base * SECOND + numbers.integers(-10 * SECOND, 20 * SECOND, n)
        if whole:
            times = np.where(np.arange(n) % 3 < 2, times // SECOND * SECOND, times)
        keys = numbers.integers(0, 12, n)
        columns = {
            "ts": pa.array(times, pa.timestamp("us", "UTC"), mask=np.arange(n) % 29 == 3),
            "key": pa.array(keys, mask=keys == 7),
            "name": pa.array([["a", "b", "ä"][k % 3] for k in numbers.integers(0, 50, n)]),
            "d": pa.array([[0.0, -0.0, np.nan, 1.5][k % 4] for k in numbers.integers(0, 50, n)]),
            "x": pa.array(numbers.integers(0, 1000, n), mask=numbers.random(n) < 0.1),
            f"only_{seed}": pa.array(numbers.normal(size=n)),
        }
        pq.write_table(pa.table(columns), directory / f"{file:03}.parquet")
        os.utime(directory / f"{file:03}.parquet", (file, file))  # the order in which a stream takes them
    return directory


def stream(spark, directory, delay="10 seconds"):
    schema = spark.read.parquet(str(directory)).schema
    df = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(directory))
    return df.withWatermark("ts", delay)


def run(df, tmp_path):
    writer = df.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "ck"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
    query.awaitTermination()
    return df.sparkSession.read.schema(df.schema).parquet(str(tmp_path / "out")), query


def same(found, expected):
    assert found.schema.simpleString() == expected.schema.simpleString()
    mine, theirs = (sorted(map(repr, df.collect())) for df in (found, expected))
    assert mine == theirs, (len(mine), len(theirs), sorted(set(mine) - set(theirs))[:3], sorted(set(theirs) - set(mine))[:3])
    return len(mine)
