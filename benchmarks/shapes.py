"""Queries of other shapes than the race's: forebay against Spark's own operators on RocksDB.

    python benchmarks/shapes.py [--quick] [--only uuid country ...]

The race has two columns of numbers. Here keys are texts, or few, or there are none; there are many aggregates, or other
types; rows are wide. 20,000 rows per second of event time, 50,000 keys drawn evenly, micro-batches of 200,000 rows, which
are 10 s of it; windows of 10 s. `SHAPES` has the queries.

Before anything is timed, both engines answer a small input, and their answers must be equal. Then each query runs twice in
a session, and the last run counts, without the first quarter of its 8 micro-batches.

The table goes to ``bench/shapes`` and, when nothing was left out, into ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from common import Result
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from session import measured, spark_session

import forebay as fb
import report

SECONDS = 10
"""Event time of a micro-batch and of a window."""
BEGIN = 1_700_000_000_000_000
TEXTS, COUNTRIES, NUMBERS = 2000, 7, 10
RUNS = 2
ENGINES = ("forebay", "spark")
WHOLE, REAL = ([f"{kind}{number}" for number in range(NUMBERS)] for kind in ("whole", "real"))


@dataclass(frozen=True)
class Size:
    """Rows in a micro-batch, keys, and micro-batches."""

    rows: int
    keys: int
    batches: int


CHECK, QUICK, TIMED = Size(2_000, 1_000, 4), Size(50_000, 12_500, 4), Size(200_000, 50_000, 8)


@dataclass(frozen=True)
class Shape:
    """A query: its keys, and aggregates of columns; without aggregates the first row of each key, with these columns."""

    about: str
    keys: tuple[str, ...]
    aggregates: tuple[tuple[str, ...], ...] = ()
    columns: tuple[str, ...] = ()
    session: bool = False

    def over(self, rows: DataFrame, engine: str) -> DataFrame:
        module: Any = fb if engine == "forebay" else F
        if not self.aggregates:
            rows = rows.select("time", *self.keys, *self.columns).withWatermark("time", f"{SECONDS} seconds")
            if engine == "forebay":
                return fb.dedupe(rows, list(self.keys), f"{SECONDS} seconds")
            return rows.dropDuplicatesWithinWatermark(list(self.keys))
        rows = rows.withWatermark("time", "1 second")
        window = module.session_window("time", "2 seconds") if self.session else module.window("time", f"{SECONDS} seconds")
        found = [
            getattr(module, function)(*columns).alias(f"{function}_{number}")
            for number, (function, *columns) in enumerate(self.aggregates)
        ]
        grouped = fb.groupBy(rows, window, *self.keys) if engine == "forebay" else rows.groupBy(window, *self.keys)
        return grouped.agg(*found)


def of_each(functions: str, columns: list[str]) -> tuple[tuple[str, ...], ...]:
    return tuple((function, column) for column in columns for function in functions.split())


COUNTED = (("count", "*"), ("sum", "whole0"))
SHAPES = {
    "text": Shape("count and sum by a text of 37 characters", ("user",), COUNTED),
    "three": Shape("the same by a text, a country and a number", ("user", "country", "whole1"), COUNTED),
    "country": Shape("the same by country, of which there are 7", ("country",), COUNTED),
    "nothing": Shape("the same without keys", (), COUNTED),
    "session": Shape("the same of sessions, by a text", ("user",), COUNTED, session=True),
    "whole": Shape("sum, min, max, avg of ten bigint", ("key",), of_each("sum min max avg", WHOLE)),
    "real": Shape("sum, min, max, stddev of ten double", ("key",), of_each("sum min max stddev", REAL)),
    "decimal": Shape("sum, avg, max of a decimal(18, 2)", ("key",), of_each("sum avg max", ["price"])),
    "chosen": Shape(
        "first, last, max_by of a text of 100", ("key",), (*of_each("first last", ["note"]), ("max_by", "note", "whole0"))
    ),
    "list": Shape("collect_list of a text of 100", ("key",), (("collect_list", "note"),)),
    "distinct": Shape("approx_count_distinct of a text by country", ("country",), (("approx_count_distinct", "user"),)),
    "each distinct": Shape("the same of a text of 100 by a number", ("key",), (("approx_count_distinct", "note"),)),
    "numbers once": Shape("first rows of keys, with 20 numbers", ("key",), columns=(*WHOLE, *REAL)),
    "page once": Shape("first rows of keys, with a text of 1000", ("key",), columns=("page",)),
}


def generate(directory: Path, size: Size) -> None:
    """Write a file for each micro-batch."""
    drawn = np.random.default_rng(1)

    def texts(length: int) -> pa.Array:
        return pa.array(map(bytes.decode, map(bytes, drawn.integers(97, 123, (TEXTS, length), np.uint8))))

    users = pa.array([f"{number:032x}-user" for number in drawn.integers(0, 1 << 62, size.keys)])
    countries, notes, pages = pa.array([f"c{number}" for number in range(COUNTRIES)]), texts(100), texts(1000)

    def some(values: pa.Array) -> pa.Array:
        return values.take(pa.array(drawn.integers(0, len(values), size.rows)))

    for batch in range(size.batches):
        times = BEGIN + np.arange(size.rows) * SECONDS * 1_000_000 // size.rows + batch * SECONDS * 1_000_000
        keys = drawn.integers(0, size.keys, size.rows)
        cents = pa.array(drawn.integers(0, 10**8, size.rows)).cast(pa.decimal128(19, 0))
        columns = {
            "time": pa.array(times, pa.timestamp("us", "UTC")),
            "key": keys,
            "user": users.take(pa.array(keys)),
            "country": some(countries),
            **{name: drawn.integers(0, 1_000_000, size.rows) for name in WHOLE},
            **{name: drawn.random(size.rows) for name in REAL},
            "price": cents.cast(pa.decimal128(21, 2)).cast(pa.decimal128(18, 2)),
            "note": some(notes),
            "page": some(pages),
        }
        pq.write_table(pa.table(columns), directory / f"{batch:03}.parquet")


def run(name: str, engine: str, spark: SparkSession, directory: Path, answer: str | None = None) -> Result:
    """Run a query to the end of its input: into a table of that name, or into Spark's noop sink."""
    schema = spark.read.parquet(str(directory)).schema
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(directory))
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = SHAPES[name].over(rows, engine).writeStream.option("checkpointLocation", checkpoint)
        writer = writer.format("memory").queryName(answer) if answer else writer.format("noop")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return measured(query)


def check(name: str, spark: SparkSession, directory: Path) -> int:
    """Both engines' answers must be equal, sums and deviations to nine digits; how many rows they have."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return f"{value:.9g}"
        return sorted(value) if isinstance(value, list) else value

    answers = []
    for engine in ENGINES:
        run(name, engine, spark, directory, "answer")
        answers.append(sorted(repr([plain(value) for value in row]) for row in spark.table("answer").collect()))
    if answers[0] != answers[1] or not answers[0]:
        raise SystemExit(f"{name}: {len(answers[0])} rows of forebay, {len(answers[1])} of Spark, which are not the same")
    return len(answers[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows, and fewer micro-batches")
    arguments = parser.parse_args()
    spark = spark_session()
    rows = []
    with tempfile.TemporaryDirectory() as small, tempfile.TemporaryDirectory() as large:
        generate(Path(small), CHECK)
        generate(Path(large), QUICK if arguments.quick else TIMED)
        for name in arguments.only:
            print(f"check {name:12} {check(name, spark, Path(small)):>10,} rows equal", flush=True)
            rates = {}
            for engine in ENGINES:
                for _ in range(RUNS):
                    result = run(name, engine, spark, Path(large))
                rates[engine] = round(result.events / result.seconds)
                print(f"      {name:12} {engine:8} {rates[engine]:>10,} rows/s", flush=True)
            rows.append({"shape": name, "query": SHAPES[name].about, **report.compared(rates, 2)})
    spark.stop()
    report.keep(rows, "shapes", told=not arguments.quick and arguments.only == list(SHAPES))


if __name__ == "__main__":
    main()
