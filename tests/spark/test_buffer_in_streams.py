"""Buffers in streams: before other operators, over restarts, with another number of state partitions, and when they fail."""

import time
from collections import defaultdict

import pandas as pd
import polars as pl
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from streams import assert_same, generate, run

import forebay as fb
from forebay.errors import InvalidArgument, UnknownColumn, UnsupportedType


@pytest.fixture
def stream(spark, tmp_path):
    return generate(spark, tmp_path, keys=8, rows=200)


@pytest.mark.thorough
def test_a_buffer_within_micro_batches_before_windows(stream, tmp_path):
    """It keeps the watermark, and what it reduces is what the windows would have added up."""

    def totals(rows: pl.DataFrame) -> pl.DataFrame:
        second = pl.col("ts").dt.truncate("10s")
        grouped = rows.with_columns(second).group_by("ts", "key", maintain_order=True)
        return grouped.agg(pl.len().cast(pl.Int64).alias("n"), pl.col("u").sum().alias("u"))

    rows = stream.streaming("100 seconds").select("ts", "key", "u")
    buffered = fb.buffer(rows, "key", processor=totals, schema="ts timestamp, key long, n long, u long")
    df = fb.groupBy(buffered, fb.window("ts", "10 seconds"), "key").agg(fb.sum("n").alias("n"), fb.sum("u").alias("u"))
    query = run(df, tmp_path / "ck", "reduced")
    found = stream.spark.table("reduced")
    expected = stream.static.where("ts is not null").groupBy(F.window("ts", "10 seconds"), "key")
    expected = expected.agg(F.count("*").alias("n"), F.sum("u").alias("u"))
    until = found.agg(F.max("window.end")).first()[0]
    assert assert_same(found, expected.where(F.col("window.end") <= until), 1) > 10
    assert fb.progress(query).rowsIn < stream.static.count() / 2  # fewer rows have reached the operator
    assert len(query.lastProgress["stateOperators"]) == 1  # that of the windows: the buffer has none


class Sink:
    """The rows of each micro-batch in order; a micro-batch that runs again replaces what it gave before."""

    def __init__(self):
        self.batches = {}

    def write(self, rows, batch):
        self.batches[batch] = rows.collect()

    @property
    def rows(self):
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]


def start(df, sink, checkpoint):
    writer = df.writeStream.foreachBatch(sink.write).option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="100 milliseconds").start()


def wait(query, done):
    for _ in range(600):
        if query.exception() is not None:
            raise query.exception()
        if done():
            return
        time.sleep(0.1)
    raise AssertionError("the query did not get there")


def between_micro_batches(df, sink, checkpoint):
    """The query, which has ended a micro-batch that was begun, and was stopped before the next one."""
    writer = df.writeStream.foreachBatch(sink.write).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="1 hour").start()
    wait(query, lambda: query.lastProgress is not None and not query.status["isTriggerActive"])
    query.stop()
    return query


@pytest.mark.thorough
def test_a_buffer_waits_on_after_a_restart_with_more_state_partitions(spark, stream, tmp_path):
    static = stream.static
    count = static.count()
    sink = Sink()

    def buffered(interval):
        rows = stream.streaming("1 second").select("key", "u")
        return fb.buffer(rows, "key", interval=interval, maxRows=10_000)

    spark.conf.set("spark.forebay.virtualNodes", "4")
    try:
        query = start(buffered("1 hour"), sink, tmp_path / "ck")
        wait(query, lambda: fb.progress(query).rowsIn == count)
        query.stop()
        query = between_micro_batches(buffered("1 hour"), sink, tmp_path / "ck")
        first = len(sink.rows)
        assert 0 < first < count / 2  # those of the first file have gone on at once, and the others wait for an hour
        assert fb.progress(query).stateRows == count - first
        fb.rescale(str(tmp_path / "ck"), 4)
        query = start(buffered("1 second"), sink, tmp_path / "ck")
        wait(query, lambda: query.lastProgress is not None)
        query.stop()
        assert len(sink.rows) == first  # they wait for as long as they were to, in other state partitions
        assert fb.progress(query).stateRows == count - first
    finally:
        spark.conf.unset("spark.forebay.virtualNodes")


def test_a_buffer_gives_every_row_once_and_those_of_a_key_in_order(spark, stream, tmp_path):
    static = stream.static
    sink = Sink()
    rows = stream.streaming("1 second").select("key", "u").coalesce(1)
    df = fb.buffer(rows, "key", interval="2 seconds")
    for stop_at in (50, static.count()):
        query = start(df, sink, tmp_path / "ck")
        wait(query, lambda least=stop_at: len(sink.rows) >= least)
        query.stop()
    by_key = defaultdict(list)
    for row in sink.rows:
        by_key[row.key].append(row.u)
    expected = defaultdict(list)
    for row in static.select("key", "u").orderBy("u").collect():
        expected[row.key].append(row.u)
    assert by_key == expected


@pytest.mark.slow
def test_every_micro_batch_fails_once_after_its_rows_have_gone_on(stream, tmp_path):
    """The second attempt gives what the first gave, whatever the clock says meanwhile."""

    def listed(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.group_by("key", maintain_order=True).agg(pl.col("u"))

    given, kept, failures = {}, {}, 0

    def write(rows, batch):
        nonlocal failures
        found = rows.collect()
        if batch not in given:
            given[batch] = found
            failures += 1
            raise RuntimeError("on purpose")
        assert found == given[batch]
        kept[batch] = found

    def rows_of(batches):
        return sum(len(row.u) for batch in batches.values() for row in batch)

    rows = stream.streaming("1 second").select("key", "u").coalesce(1)
    buffered = fb.buffer(rows, "key", interval="1 second", maxRows=20, processor=listed, schema="key long, u array<long>")
    count = stream.static.count()
    while rows_of(kept) < count:
        writer = buffered.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "ck"))
        query = writer.trigger(processingTime="100 milliseconds").start()
        try:
            wait(query, lambda: rows_of(kept) == count)
        except StreamingQueryException as error:
            assert "on purpose" in str(error)
        query.stop()
    found, expected = defaultdict(list), defaultdict(list)
    for batch in sorted(kept):
        for row in kept[batch]:
            assert len(row.u) <= 20
            found[row.key] += row.u
    for row in stream.static.select("key", "u").orderBy("u").collect():
        expected[row.key].append(row.u)
    assert found == expected
    assert failures >= stream.files


@pytest.mark.thorough
def test_a_processor_that_raises_stops_the_query_and_loses_nothing(stream, tmp_path):
    def picky(rows: pl.DataFrame) -> pl.DataFrame:
        if (rows["key"] == 3).any():
            raise ZeroDivisionError("three")
        return rows

    sink = Sink()
    rows = stream.streaming("1 second").select("key", "u")
    query = start(fb.buffer(rows, "key", interval="1 second", processor=picky), sink, tmp_path / "ck")
    with pytest.raises(
        StreamingQueryException, match=r"picky of fb.buffer raised ZeroDivisionError .* of the key \(3,\): three"
    ):
        query.awaitTermination(60)
    assert not sink.rows
    query = start(fb.buffer(rows, "key", interval="1 second"), sink, tmp_path / "ck")
    wait(query, lambda: len(sink.rows) == stream.static.count())
    query.stop()


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"keys": ()}, InvalidArgument, "at least one key"),
        ({"keys": ("nobody",)}, UnknownColumn, "nobody"),
        ({"keys": ("m",)}, UnsupportedType, "m"),
        ({"maxRows": 0}, InvalidArgument, "maxRows=0"),
        ({"maxRows": 2**63}, InvalidArgument, f"maxRows={2**63}"),
        ({"maxBytes": -1}, InvalidArgument, "maxBytes=-1"),
        ({"maxRows": 1.5}, InvalidArgument, "maxRows=1.5"),
        ({"interval": "0 seconds"}, InvalidArgument, "not positive"),
        ({"interval": "soon"}, InvalidArgument, "soon"),
        ({"processor": lambda key, rows: rows}, InvalidArgument, r"func\(rows\)"),
        ({"processor": lambda rows: rows, "schema": "n"}, InvalidArgument, "Spark cannot parse"),
        ({"processor": lambda rows: rows, "schema": 3}, InvalidArgument, "got the schema 3"),
        ({"processor": lambda rows: rows, "schema": "int"}, InvalidArgument, "name its columns"),
        ({"schema": "n int"}, InvalidArgument, "without a processor"),
    ],
)
def test_bad_arguments(spark, arguments, error, named):
    df = spark.range(3).selectExpr("id", "map(id, id) m")
    arguments = {"keys": ("id",), **arguments}
    df = df if "m" in arguments["keys"] else df.select("id")
    with pytest.raises(error, match=named):
        fb.buffer(df, *arguments.pop("keys"), **arguments)


def test_structs_that_are_null_as_a_whole(spark):
    """Their fields are never NULL by their type."""
    rows = spark.range(8).selectExpr("id", "if(id % 3 = 0, struct('a' AS c, 1 AS d), NULL) AS s").coalesce(1)
    expected = sorted(map(str, rows.collect()))
    for found in (fb.buffer(rows, "id"), fb.buffer(rows, "id", interval="1 second"), fb.dedupe(rows, "id", "1 hour")):
        assert sorted(map(str, found.collect())) == expected


def test_a_batch_dataframe_goes_on_at_its_end(spark):
    df = spark.createDataFrame([(f"k{n % 3}", n) for n in range(30)], "key string, n int").repartition(4)

    def most(rows: pd.DataFrame) -> pd.DataFrame:
        return rows.groupby("key", as_index=False)["n"].max()

    found = fb.buffer(df, "key", interval="1 hour", processor=most)
    assert sorted(map(tuple, found.collect())) == [("k0", 27), ("k1", 28), ("k2", 29)]
