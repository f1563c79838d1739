"""When Spark need not add up the bytes of rows, and what bounds the batches that go to the operator then."""

import contextlib

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

import forebay as fb
from forebay.spark.driver.narrow import width
from forebay.spark.properties import BYTES, NO_BOUND, RECORDS
from forebay.spark.worker.blobs import BATCH_BYTES, BLOB_BYTES, ballast, column

ROWS, KEYS = 300_000, 1000


@pytest.fixture(scope="module")
def bids(spark, tmp_path_factory):
    path = tmp_path_factory.mktemp("bids")
    random = np.random.default_rng(7)
    times = pa.array(1_700_000_000_000_000 + np.arange(ROWS) * 100, pa.timestamp("us", "UTC"))
    bidders = random.integers(0, KEYS, ROWS)
    columns = {"ts": times, "bidder": bidders, "price": random.random(ROWS), "name": bidders.astype(str)}
    pq.write_table(pa.table(columns), path / "bids.parquet")
    last = pa.table({**{name: values[-1:] for name, values in columns.items()}, "ts": pa.array([2 * 10**15], times.type)})
    pq.write_table(last, path / "last.parquet")  # after it the watermark has passed all windows
    return path


def read(spark, path):
    schema = "ts timestamp, bidder long, price double, name string"
    return spark.readStream.schema(schema).parquet(str(path)).withWatermark("ts", "0 seconds")


@contextlib.contextmanager
def batches_of(spark, rows):
    before = spark.conf.get(RECORDS)
    spark.conf.set(RECORDS, str(rows))
    try:
        yield
    finally:
        spark.conf.set(RECORDS, before)


def medians(df, *keys):
    return fb.groupBy(df, fb.window("ts", "10 seconds"), *keys).agg(fb.median("price").alias("price"))


def bound(results, sink="noop", use=None):
    """The bound of bytes that a query has, which is run to the end of its input."""
    writer = results.writeStream.trigger(availableNow=True)
    query = (writer.format(sink) if use is None else writer.foreachBatch(use)).start()
    try:
        query.awaitTermination()
        return query._jsq.streamingQuery().sparkSessionForStream().conf().get(BYTES)
    finally:
        query.stop()


def test_a_query_of_narrow_rows_has_no_bound_and_its_session_keeps_it(spark, bids):
    before = spark.conf.get(BYTES)
    assert before != NO_BOUND
    assert bound(medians(read(spark, bids), "bidder")) == NO_BOUND
    lists = fb.groupBy(read(spark, bids), fb.window("ts", "10 seconds")).agg(fb.collect_list("price"))
    assert bound(lists.select("window.start")) == NO_BOUND  # wide results go to Java alone
    assert spark.conf.get(BYTES) == before


@pytest.mark.parametrize("why", ["text", "Python before", "Python after", "foreachBatch", "many rows"])
def test_the_bound_stays_where_it_may_decide_something(spark, bids, why):
    before, df = spark.conf.get(BYTES), read(spark, bids)
    if why == "text":
        assert bound(medians(df, "name")) == before
    elif why == "Python after":
        assert bound(medians(df, "bidder").select(F.udf(float, "double")("price") + 1)) == before
        prices = medians(df, "bidder").select("price")
        assert bound(prices.mapInArrow(lambda batches: batches, prices.schema)) == before
    elif why == "Python before":
        assert bound(medians(df.withColumn("bidder", F.udf(len, "long")("name")), "bidder")) == before
    elif why == "foreachBatch":
        assert bound(medians(df, "bidder"), use=lambda frame, number: frame.count()) == before
    else:
        with batches_of(spark, 10_000_000):
            assert bound(medians(df, "bidder")) == before


def test_batches_of_blobs_that_are_ended_by_rows_are_no_larger_than_by_bytes():
    for records in (1, 1000, 64_000):
        for size in (1, 1000, 100_000, BLOB_BYTES):
            assert records * size <= BATCH_BYTES * (1 + ballast(size, records))
    assert column(pa.py_buffer(b""), nulls=9).null_count == 9


def test_results_are_right_with_blobs_that_have_ballast(spark, bids, tmp_path):
    results = medians(read(spark, bids), "bidder")
    with batches_of(spark, 64_000):
        query = results.writeStream.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "ck"))
        query.format("parquet").start(str(tmp_path / "out")).awaitTermination()
    found = spark.read.schema(results.schema).parquet(str(tmp_path / "out")).select("window.start", "bidder", "price")
    rows = (
        spark.read.parquet(str(bids)).groupBy(F.window("ts", "10 seconds"), "bidder").agg(F.median("price").alias("price"))
    )
    wanted = rows.where("window.start < '2030-01-01'").select("window.start", "bidder", "price")
    order = ["start", "bidder"]
    pd.testing.assert_frame_equal(
        found.toPandas().sort_values(order, ignore_index=True), wanted.toPandas().sort_values(order, ignore_index=True)
    )
    assert found.count() == 3 * KEYS


def test_a_row_is_as_wide_as_its_columns():
    assert width(T._parse_datatype_string("a boolean, b decimal(38, 2), w struct<start: timestamp, end: timestamp>")) == 38
    assert width(T._parse_datatype_string("a long, b array<long>")) is None
