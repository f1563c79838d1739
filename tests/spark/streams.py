"""Generated streams, and Spark batch over the same rows as the oracle."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import math
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import forebay as fb
from forebay.aggregates.functions import Aggregate

SECOND = 1_000_000
EPOCH_2024 = 1_704_067_200 * SECOND

KEYS = {
    "boolean": lambda k: bool(k % 2),
    "byte": lambda k: k % 5 - 2,
    "short": lambda k: k * 1000 - 9000,
    "int": lambda k: k * 10**8 - 2 * 10**9,
    "long": lambda k: k * 10**17 - 2 * 10**18,
    "float": lambda k: [0.0, -0.0, math.nan, 1.5, -1.5][k % 5],
    "double": lambda k: [0.0, -0.0, math.nan, 1e300, -1e-300][k % 5],
    "decimal": lambda k: decimal.Decimal(k * 12345) / 100,
    "string": lambda k: ["", "a", "ä", "a" * 1000, f"user {k}"][k % 5],
    "binary": lambda k: [b"", b"\x00", b"\x00\x00", bytes(range(k))][k % 4],
    "date": lambda k: datetime.date(1969, 12, 25) + datetime.timedelta(days=k),
    "timestamp": lambda k: datetime.datetime(1969, 12, 31, 23, tzinfo=datetime.UTC) + datetime.timedelta(minutes=k * 7),
    "timestamp_ntz": lambda k: datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=k),
    "interval": lambda k: datetime.timedelta(hours=k - 3),
    "array": lambda k: [[], [0.0, None], [-0.0, None], [math.nan], None][k % 5],
    "struct": lambda k: {"a": k % 2, "b": [0.0, -0.0, math.nan, None][k // 2 % 4]},
}
TYPES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(20, 2),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "interval": pa.int64(),
    "array": pa.list_(pa.float64()),
    "struct": pa.struct([("a", pa.int32()), ("b", pa.float64())]),
}

ITEM = pa.struct([("a", pa.int64()), ("b", pa.string())])

INCREMENTAL = [
    fb.count("*").alias("n"),
    fb.count("d"),
    fb.sum("i"),
    fb.sum("l"),
    fb.sum("d"),
    fb.sum("dec"),
    fb.avg("i"),
    fb.mean("d"),
    fb.avg("dec"),
    fb.min("d"),
    fb.max("d"),
    fb.min("s"),
    fb.max("s"),
    fb.min("ts"),
    fb.max("dec"),
    fb.stddev("x"),
    fb.stddev_samp("x"),
    fb.stddev_pop("x"),
    fb.variance("x"),
    fb.var_samp("i"),
    fb.var_pop("x"),
    fb.first("same"),
    fb.last("some", ignorenulls=True),
    fb.max_by("s", "u"),
    fb.min_by("d", "u"),
    fb.max_by("u", "ux"),
    fb.bool_and("b"),
    fb.bool_or("b"),
    fb.approx_count_distinct("u"),
    fb.approx_count_distinct("s", 0.2).alias("distinct"),
]
HOLISTIC = [
    fb.median("d"),
    fb.median("i"),
    fb.percentile("x", 0.9),
    fb.percentile("dec", [0.0, 0.25, 0.99, 1.0]).alias("quartiles"),
    fb.mode("i", deterministic=True),
    fb.mode("s", deterministic=True),
    fb.collect_list("s"),
    fb.collect_list("st"),
    fb.collect_set("i"),
    fb.count_distinct("s"),
    fb.count_distinct("i", "b"),
]
COUNTED = [
    fb.median("d", counted=True),
    fb.percentile("x", 0.9, counted=True),
    fb.percentile("dec", [0.0, 0.25, 0.99, 1.0], counted=True).alias("quartiles"),
    fb.mode("i", deterministic=True, counted=True),
    fb.mode("s", deterministic=True, counted=True),
    fb.collect_set("i", counted=True),
    fb.count_distinct("s", counted=True),
    fb.sum("l"),
]
"""Those of `HOLISTIC` that are incremental where values are counted, and another one."""


@dataclass
class Stream:
    """A directory of parquet files that a stream reads one per micro-batch, in order."""

    spark: SparkSession
    path: str
    files: int

    @property
    def static(self) -> DataFrame:
        return _typed(self.spark.read.parquet(self.path))

    def streaming(self, delay: str) -> DataFrame:
        schema = self.spark.read.parquet(self.path).schema
        source = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(self.path)
        return _typed(source).withWatermark("ts", delay)


def generate(
    spark: SparkSession, directory: Path, *, keys: int, rows: int, files: int = 5, start: int = EPOCH_2024, seed: int = 1
) -> Stream:
    """Files of rows whose event time advances by 20 s a file, with disorder, equal times, NULLs and an empty file."""
    chance, numbers = random.Random(seed), np.random.default_rng(seed)
    path = directory / f"stream-{seed}-{keys}"
    path.mkdir(parents=True)
    unique = 0
    for file in range(files):
        n = 0 if file == 2 else rows
        base = start + file * 20 * SECOND
        early = numbers.integers(-60 * SECOND, 20 * SECOND, n)  # some rows are late, some only out of order
        times = base + np.where(numbers.random(n) < 0.5, early // SECOND * SECOND, early)
        key = numbers.integers(0, keys, n)
        none = numbers.random((8, n)) < 0.1
        value = numbers.normal(50, 20, n)
        columns: dict[str, Any] = {
            "ts": pa.array(times, pa.timestamp("us", "UTC"), mask=none[7] & (numbers.random(n) < 0.1)),
            "key": pa.array(key),
            "i": pa.array(numbers.integers(-100, 100, n).astype(np.int32), mask=none[0]),
            "l": pa.array(numbers.integers(-(2**50), 2**50, n), mask=none[1]),
            "d": pa.array(np.where(numbers.random(n) < 0.05, np.nan, value), mask=none[2]),
            "x": pa.array(value, mask=none[3]),
            "dec": pa.array([decimal.Decimal(int(v * 100)) / 100 for v in value], pa.decimal128(12, 2), mask=none[4]),
            "s": pa.array([f"item {chance.randrange(12)}" for _ in range(n)], mask=none[5]),
            "b": pa.array(numbers.random(n) < 0.7, mask=none[6]),
            "u": pa.array(np.arange(unique, unique + n)),
            "ux": pa.array(np.arange(unique, unique + n) * 0.5),
            "same": pa.array(np.full(n, 7)),
            "some": pa.array(np.full(n, 7), mask=none[0]),
            "st": pa.array([{"a": int(v), "b": "x" * (int(v) % 3)} for v in value], ITEM),
        }
        for name, make in KEYS.items():
            values = [None if k % 7 == 6 else make(int(k)) for k in key % 40]
            if name == "interval":
                values = [None if v is None else int(v.total_seconds()) for v in values]
            columns[f"k_{name}"] = pa.array(values, TYPES[name])
        unique += n
        target = path / f"{file:03d}.parquet"
        pq.write_table(pa.table(columns), target)
        os.utime(target, (1_600_000_000 + file, 1_600_000_000 + file))  # the order in which the stream takes them
    return Stream(spark, str(path), files)


def _typed(df: DataFrame) -> DataFrame:
    return df.withColumn("k_interval", F.expr("make_dt_interval(0, 0, 0, k_interval)"))


def spark_columns(aggregates: list[Aggregate]) -> list[Column]:
    columns = []
    for aggregate in aggregates:
        options = {name: value for name, value in aggregate.options.items() if name != "counted"}
        column = getattr(F, aggregate.function)(*aggregate.arguments, **options)
        columns.append(column.alias(aggregate.name) if aggregate.name else column)
    return columns


def oracle(df: DataFrame, window: Column, keys: list[str], aggregates: list[Aggregate]) -> DataFrame:
    return df.groupBy(window, *keys).agg(*spark_columns(aggregates))


def oracle_of_stream(
    stream: Stream, window: Column, keys: list[str], aggregates: list[Aggregate], watermarks: list[int], until: int
) -> tuple[DataFrame, int, int]:
    """What must come out, and how many rows are late and partly late.

    ``watermarks[b]`` is the watermark (ms) that had fired windows before file ``b`` was read; ``until`` the last one.
    """
    before = F.element_at(
        F.array(*map(F.lit, watermarks)), F.regexp_extract(F.col("_file"), r"(\d+)\.parquet", 1).cast("int") + 1
    )
    rows = stream.static.withColumn("_file", F.col("_metadata.file_name")).withColumn("_before", before)
    placed = rows.withColumn("_row", F.struct("_file", "u")).withColumn("window", window)
    end = F.unix_millis("window.end")
    kept = placed.where((F.col("_before") == 0) | (end > F.col("_before")))
    lost = (
        placed.groupBy("_row")
        .agg(F.count("*").alias("all"))
        .join(kept.groupBy("_row").agg(F.count("*").alias("kept")), "_row", "left")
    )
    late = lost.where("kept is null").count()
    partly = lost.where("kept < all").count()
    fired = kept.where(end <= until)
    return fired.groupBy("window", *keys).agg(*spark_columns(aggregates)), late, partly


def run(df: DataFrame, checkpoint: Path, name: str, mode: str = "append") -> Any:
    """Run a stream over all its files into a memory table."""
    query = (
        df.writeStream.format("memory")
        .queryName(name)
        .outputMode(mode)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def watermarks(query: Any) -> tuple[list[int], int]:
    """For each batch with data, the watermark (ms) of the batch before it; and the last watermark."""
    used = [_millis(p["eventTime"].get("watermark")) for p in sorted(query.recentProgress, key=lambda p: p["batchId"])]
    return [0, *used[:-1]], used[-1]


def _millis(text: str | None) -> int:
    if text is None:
        return 0
    return round(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


EXACT = ("median", "percentile", "quartiles", "min", "max", "mode")


@contextlib.contextmanager
def confs(spark: SparkSession, **settings: object) -> Iterator[None]:
    """Settings of forebay that a session has for a while."""
    for name, value in settings.items():
        spark.conf.set(f"spark.forebay.{name}", str(value))
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(f"spark.forebay.{name}")


def assert_same(found: DataFrame, expected: DataFrame, keys: int) -> int:
    """Both have the same rows; the number of them. Floats may differ in the last digits, as sums do with their order."""
    assert found.schema.simpleString() == expected.schema.simpleString()
    left, right = _rows(found, keys), _rows(expected, keys)
    assert left.keys() == right.keys()
    for at, row in left.items():
        for name, mine, theirs in zip(found.columns, row, right[at], strict=True):
            assert _equal(mine, theirs, name), (at, name, mine, theirs)
    return len(left)


def _rows(df: DataFrame, keys: int) -> dict[Any, Any]:
    rows = df.collect()
    keyed = {_hashable(tuple(row[: 1 + keys])): row for row in rows}
    assert len(keyed) == len(rows), Counter(_hashable(tuple(row[: 1 + keys])) for row in rows).most_common(3)
    return keyed


def _hashable(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return bytes(value) if isinstance(value, bytearray) else value


def _equal(mine: Any, theirs: Any, name: str) -> bool:
    if name.startswith("collect"):
        return Counter(map(_hashable, mine)) == Counter(map(_hashable, theirs))
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(_equal(a, b, name) for a, b in zip(mine, theirs, strict=True))
    if isinstance(mine, float) and isinstance(theirs, float) and not name.startswith(EXACT):
        return math.isclose(mine, theirs, rel_tol=1e-9, abs_tol=1e-9) or (math.isnan(mine) and math.isnan(theirs))
    return bool(_hashable(mine) == _hashable(theirs))
