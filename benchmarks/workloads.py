"""Queries whose state is made large by linking prepared files again and again, for `handover`.

A unit is a file, or a pair of files, of 10 MB of rows with bytes that cannot be compressed. The number of the link is part
of the keys and of the time of its rows.

nbq8         persons (206 bytes) with the auctions that they open (269 bytes), three for each person, within 12 hours of
             event time: query 8 of NEXMark as in Rhino (section 5.1.4). All rows stay in state until the window ends, and
             none is read before (AAR)
latest       for each key how many rows it had, and the whole last one, of 1,000 bytes: in the beginning each row is of a
             new key; then rows are of keys from all over the state, which is read and written again with each (RMW)
nbq5         how many bids (32 bytes) each of 100,000 auctions got in the last minute, every 10 seconds: query 5 as in Rhino.
             The state is small, however much was read, and sizes are those of what was read (RMW)
nbqx         auctions with their bids, two for each auction, in five joins at once: in sessions with gaps of 30, 60, 90 and
             120 minutes, and in windows of four hours, Rhino's own query. Sessions end while it runs, and leave (AUR, AAR).
             Spark's streams have no join in sessions
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
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
    """In a unit; a row that several operators read counts for each."""
    unit_bytes: int
    """Of these rows."""
    state_bytes: int
    """What a unit leaves in state, on average, when all are there that make the state: by it sizes become units."""
    kinds: tuple[str, ...]
    in_spark = True
    """Whether Spark has such operators."""

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

    beyond: int | None = None
    """The number of a unit after all others, with which windows end; none if there are no windows."""

    def last(self) -> list[int]:
        """Numbers of units that let all results come out, one micro-batch each."""
        return [] if self.beyond is None else [self.beyond, self.beyond + 1]

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
    unit_bytes = state_bytes = 206 * persons + 269 * auctions
    kinds = ("auctions", "persons")
    window, step = 12 * 3600, 10
    """Seconds of event time of a window, and between the first rows of two units."""
    begin = 39_352 * window
    beyond = 2 * window // step

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

    def _side(self, spark: SparkSession, kind: str, *, batch: bool) -> DataFrame:
        schema = "ts long, person long, payload binary" + (", auction long" if kind == "auctions" else "")
        rows = self.read(spark, kind, schema, batch=batch)
        moment = F.timestamp_micros(F.col("ts") + (F.col("number") * self.step + self.begin) * 1_000_000)
        rows = rows.withColumns({"ts": moment, "person": F.col("person") + F.col("number") * self.persons}).drop("number")
        return rows if batch else rows.withWatermark("ts", "1 second")


class Latest(Workload):
    """The last row of each key."""

    rows = 10_000
    unit_bytes = state_bytes = 1_000 * rows
    kinds = ("offers",)

    def made(self, random: np.random.Generator) -> dict[str, dict[str, object]]:
        return {"offers": {"row": np.arange(self.rows), "payload": noise(random, self.rows, 1_000 - 24)}}

    def results(self, spark: SparkSession, how: str) -> DataFrame:
        offers = self.read(spark, "offers", "row long, payload binary", batch=how == "batch")
        others = F.pmod(F.xxhash64("row", "number"), F.lit(self.units))
        group = F.when(F.col("number") < self.units, F.col("number")).otherwise(others)
        offers = offers.withColumn("key", F.col("row") * self.units + group)
        if how in ("spark", "batch"):
            latest = F.max_by("payload", "number").alias("payload")
            return offers.groupBy("key").agg(F.count("*").alias("rows"), F.max("number").alias("number"), latest)
        last = fb.max_by("payload", "number").alias("payload")
        return fb.rolling(offers, "key").agg(fb.count("*").alias("rows"), fb.max("number").alias("number"), last)

    def answer(self, results: DataFrame) -> list[int]:
        latest = results.groupBy("key").agg(F.max_by(F.struct("rows", "number", "payload"), "rows").alias("last"))
        return list(latest.agg(F.count("*"), F.sum(F.pmod(F.xxhash64("key", "last"), F.lit(1_000_003)))).first() or ())


class Nbq5(Workload):
    """Bids of the last minute."""

    rows = 312_500
    unit_bytes = state_bytes = 32 * rows
    kinds = ("bids",)
    auctions = 100_000
    step = 10
    begin = 1_700_000_000
    beyond = 1_000_000

    def made(self, random: np.random.Generator) -> dict[str, dict[str, object]]:
        return {
            "bids": {
                "ts": np.arange(self.rows) * (self.step * 1_000_000 // self.rows),
                "auction": random.integers(0, self.auctions, self.rows),
                "bidder": random.integers(0, self.auctions, self.rows),
                "price": random.integers(0, 10_000, self.rows),
            }
        }

    def results(self, spark: SparkSession, how: str) -> DataFrame:
        bids = self.read(spark, "bids", "ts long, auction long, bidder long, price long", batch=how == "batch")
        bids = bids.withColumn(
            "ts", F.timestamp_micros(F.col("ts") + (F.col("number") * self.step + self.begin) * 1_000_000)
        )
        bids = bids if how == "batch" else bids.withWatermark("ts", "1 second")
        if how in ("spark", "batch"):
            return bids.groupBy(F.window("ts", "60 seconds", "10 seconds"), "auction").agg(F.count("*").alias("bids"))
        return fb.groupBy(bids, fb.window("ts", "60 seconds", "10 seconds"), "auction").agg(fb.count("*").alias("bids"))

    def answer(self, results: DataFrame) -> list[int]:
        own = results.where(F.unix_seconds("window.end") <= self.begin + self.beyond * self.step)
        mark = F.sum(F.pmod(F.xxhash64("window.start", "auction", "bids"), F.lit(1_000_003)))
        return list(own.agg(F.count("*"), mark).first() or ())


class Nbqx(Workload):
    """Auctions with their bids, five times."""

    gaps = (30, 60, 90, 120)
    """Minutes."""
    hours = 4
    auctions, bids = 30_000, 60_000
    joins = len(gaps) + 1
    rows = joins * (auctions + bids)
    unit_bytes = joins * (269 * auctions + 32 * bids)
    in_spark = False
    span = 120
    """Minutes of event time of the units that make the state: of each gap's rows it holds as many as that gap is long."""
    state_bytes = unit_bytes * (sum(gaps) + span) // (span * joins)
    kinds = ("bids", "auctions")
    late = 3
    """Bids are for auctions that came in as many units before, at most."""
    begin = 1_699_200_000
    beyond = 1_000_000

    def __init__(self, directory: Path, units: int) -> None:
        super().__init__(directory, units)
        self.step = self.span * 60 // units

    def made(self, random: np.random.Generator) -> dict[str, dict[str, object]]:
        auctions = {
            "place": np.arange(self.auctions) / self.auctions,
            "auction": random.permutation(self.auctions),
            "payload": noise(random, self.auctions, 269 - 16),
        }
        bids = {
            "place": np.arange(self.bids) / self.bids,
            "auction": random.integers(0, self.auctions, self.bids),
            "back": random.integers(0, self.late + 1, self.bids),
            "price": np.arange(self.bids),
        }
        return {"auctions": auctions, "bids": bids}

    def results(self, spark: SparkSession, how: str) -> DataFrame:
        windows: list[tuple[str, Any, Any]] = [(f"{gap} minutes", F.session_window, fb.session_window) for gap in self.gaps]
        parts = []
        for number, (length, theirs, ours) in enumerate([*windows, (f"{self.hours} hours", F.window, fb.window)]):
            auctions, bids = (self._side(spark, kind, batch=how == "batch") for kind in ("auctions", "bids"))
            if how == "batch":
                joined = self._in_windows(auctions, bids, theirs("ts", length))
            else:
                joined = fb.join(auctions, bids, on="auction", window=ours("ts", length))
            window = F.col(joined.columns[0]).alias("window")
            parts.append(joined.select(F.lit(number).alias("join"), window, "auction", "payload", "price"))
        return reduce(DataFrame.union, parts)

    def answer(self, results: DataFrame) -> list[int]:
        own = results.where(F.col("auction") < (self.beyond - self.late) * self.auctions)
        mark = F.pmod(F.xxhash64("join", "window.start", "window.end", "auction", "payload", "price"), F.lit(1_000_003))
        return list(own.agg(F.count("*"), F.sum(mark)).first() or ())

    def _side(self, spark: SparkSession, kind: str, *, batch: bool) -> DataFrame:
        schema = "place double, auction long, " + ("payload binary" if kind == "auctions" else "back long, price long")
        rows = self.read(spark, kind, schema, batch=batch)
        moment = F.timestamp_micros(((F.col("number") + F.col("place")) * self.step + self.begin).cast("long") * 1_000_000)
        unit = F.col("number") if kind == "auctions" else F.greatest(F.col("number") - F.col("back"), F.lit(0))
        rows = rows.withColumns({"ts": moment, "auction": F.col("auction") + unit * self.auctions}).drop(
            "number", "place", "back"
        )
        return rows if batch else rows.withWatermark("ts", "1 second")

    def _in_windows(self, auctions: DataFrame, bids: DataFrame, window: Column) -> DataFrame:
        """The join in windows of both sides' rows, by what Spark has for batches."""
        both = auctions.select("ts", "auction").union(bids.select("ts", "auction"))
        windows = both.groupBy(window.alias("window"), "auction").count().drop("count")
        within = (F.col("ts") >= F.col("window.start")) & (F.col("ts") < F.col("window.end"))
        placed = [side.join(windows, "auction").where(within).drop("ts") for side in (auctions, bids)]
        return placed[0].join(placed[1], ["window", "auction"])


WORKLOADS: dict[str, type[Workload]] = {"nbq8": Nbq8, "latest": Latest, "nbq5": Nbq5, "nbqx": Nbqx}


def noise(random: np.random.Generator, rows: int, width: int) -> pa.Array:
    """Bytes that cannot be compressed."""
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * width)
    return pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(random.bytes(rows * width))])
