"""Queries whose state is made large by linking prepared files again and again, for `handover`.

A unit is a file, or a pair of files, of 10 MB of rows with bytes that cannot be compressed. The number of the link is part
of the keys and of the time of its rows.

nbq8         persons (206 bytes) with the auctions that they open (269 bytes), three for each person, within 12 hours of
             event time: query 8 of NEXMark as in Rhino (section 5.1.4). All rows stay in state until the window ends, and
             none is read before (AAR)
latest       for each key how many rows it had, and the whole last one, of 1,000 bytes: in the beginning each row is of a
             new key; then rows are of keys from all over the state, which is read and written again with each (RMW)
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import forebay as fb


class Workload(ABC):
    """A query, and the files that it reads, which arrive by being linked.

    Parameters
    ----------
    directory : Path
        Where the files are.
    units : int
        How many of them make the state.
    """

    rows: int
    """In a unit."""
    unit_bytes: int
    kinds: tuple[str, ...]

    def __init__(self, directory: Path, units: int) -> None:
        self.directory, self.units, self.count = directory, units, 0
        self.arrived: list[float] = []
        for kind, columns in self.made(np.random.default_rng(1)).items():
            (directory / kind).mkdir(parents=True)
            pq.write_table(pa.table(columns), directory / f"{kind}.parquet", compression="none", use_dictionary=False)

    @abstractmethod
    def made(self, random: np.random.Generator) -> dict[str, dict[str, object]]:
        """The columns of each kind of file."""

    @abstractmethod
    def results(self, spark: SparkSession, how: str) -> DataFrame:
        """What the query gives: by forebay, by Spark (``spark``), or by Spark as a ``batch``."""

    @abstractmethod
    def answer(self, results: DataFrame) -> list[int]:
        """How many results there are, and what they are."""

    def last(self) -> list[int]:
        """Numbers of units that let all results come out, one micro-batch each."""
        return []

    def link(self, units: int = 1, first: int | None = None) -> None:
        """Have so many units arrive. Spark looks for the last kind first, so it seldom finds one without the others."""
        begin = self.count if first is None else first
        for kind in self.kinds:
            for number in range(begin, begin + units):
                os.link(self.directory / f"{kind}.parquet", self.directory / kind / f"{number}.parquet")
        self.count += units
        self.arrived += [time.time()] * units

    def read(self, spark: SparkSession, kind: str, schema: str, *, batch: bool) -> DataFrame:
        """Rows of a kind with the `number` of their unit."""
        reader = spark.read.schema(schema) if batch else spark.readStream.schema(schema)
        number = F.regexp_extract(F.col("_metadata.file_name"), r"\d+", 0).cast("long")
        return reader.parquet(str(self.directory / kind)).withColumn("number", number)


class Nbq8(Workload):
    """Persons with their auctions."""

    persons, auctions = 10_000, 30_000
    rows = persons + auctions
    unit_bytes = 206 * persons + 269 * auctions
    kinds = ("auctions", "persons")
    window, step = 12 * 3600, 10
    """Seconds of event time of a window, and between the first rows of two units."""
    begin = 39_352 * window

    def made(self, random: np.random.Generator) -> dict[str, dict[str, object]]:
        times = np.arange(self.auctions) * (self.step * 1_000_000 // self.auctions)
        persons = {
            "ts": times[: self.persons] * 3,
            "person": random.permutation(self.persons),
            "payload": noise(random, self.persons, 206 - 16),
        }
        auctions = {
            "ts": times,
            "person": random.integers(0, self.persons, self.auctions),
            "payload": noise(random, self.auctions, 269 - 24),
            "auction": np.arange(self.auctions),
        }
        return {"persons": persons, "auctions": auctions}

    def results(self, spark: SparkSession, how: str) -> DataFrame:
        persons, auctions = (self._side(spark, kind, batch=how == "batch") for kind in ("persons", "auctions"))
        if how not in ("spark", "batch"):
            return fb.join(persons, auctions, on="person", window=fb.window("ts", f"{self.window} seconds"))
        window = F.window("ts", f"{self.window} seconds")
        sides = [
            side.withColumn("window", window).drop("ts") for side in (persons, auctions)
        ]  # one watermark, of the window
        return sides[0].join(sides[1].withColumnRenamed("payload", "payload_right"), ["window", "person"])

    def answer(self, results: DataFrame) -> list[int]:
        own = results.where(F.unix_seconds("window.start") == self.begin)
        mark = F.sum(F.pmod(F.xxhash64("person", "auction", "payload", "payload_right"), F.lit(1_000_003)))
        return list(own.agg(F.count("*"), mark).first() or ())

    def last(self) -> list[int]:
        beyond = 2 * self.window // self.step
        return [beyond, beyond + 1]

    def _side(self, spark: SparkSession, kind: str, *, batch: bool) -> DataFrame:
        schema = "ts long, person long, payload binary" + (", auction long" if kind == "auctions" else "")
        rows = self.read(spark, kind, schema, batch=batch)
        moment = F.timestamp_micros(F.col("ts") + (F.col("number") * self.step + self.begin) * 1_000_000)
        rows = rows.withColumns({"ts": moment, "person": F.col("person") + F.col("number") * self.persons}).drop("number")
        return rows if batch else rows.withWatermark("ts", "1 second")


class Latest(Workload):
    """The last row of each key."""

    rows = 10_000
    unit_bytes = 1_000 * rows
    kinds = ("offers",)

    def made(self, random: np.random.Generator) -> dict[str, dict[str, object]]:
        return {"offers": {"row": np.arange(self.rows), "payload": noise(random, self.rows, 1_000 - 24)}}

    def results(self, spark: SparkSession, how: str) -> DataFrame:
        offers = self.read(spark, "offers", "row long, payload binary", batch=how == "batch")
        others = F.pmod(F.xxhash64("row", "number"), F.lit(self.units))
        group = F.when(F.col("number") < self.units, F.col("number")).otherwise(others)
        offers = offers.withColumn("key", F.col("row") * self.units + group)
        if how in ("spark", "batch"):
            last = F.max_by("payload", "number").alias("payload")
            return offers.groupBy("key").agg(F.count("*").alias("rows"), F.max("number").alias("number"), last)
        last = fb.max_by("payload", "number").alias("payload")
        return fb.rolling(offers, "key").agg(fb.count("*").alias("rows"), fb.max("number").alias("number"), last)

    def answer(self, results: DataFrame) -> list[int]:
        latest = results.groupBy("key").agg(F.max_by(F.struct("rows", "number", "payload"), "rows").alias("last"))
        return list(latest.agg(F.count("*"), F.sum(F.pmod(F.xxhash64("key", "last"), F.lit(1_000_003)))).first() or ())


WORKLOADS: dict[str, Callable[[Path, int], Workload]] = {"nbq8": Nbq8, "latest": Latest}


def noise(random: np.random.Generator, rows: int, width: int) -> pa.Array:
    """Bytes that cannot be compressed."""
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * width)
    return pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(random.bytes(rows * width))])
