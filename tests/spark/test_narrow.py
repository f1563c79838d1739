"""When Spark need not add up the bytes of rows, and what bounds the batches that go to the operator then."""

import contextlib
import tempfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.streaming import StatefulProcessor

import forebay as fb
from forebay.spark.driver.narrow import leave_sums_out, width
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
def setting(spark, name, value):
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def medians(df, *keys):
    return fb.groupBy(df, fb.window("ts", "10 seconds"), *keys).agg(fb.median("price").alias("price"))


def bound(results, sink="noop", use=None):
    """The bound of bytes that a query has, which is run to the end of its input."""
    directory = tempfile.TemporaryDirectory()
    writer = results.writeStream.trigger(availableNow=True).option("checkpointLocation", directory.name)
    query = (writer.format(sink) if use is None else writer.foreachBatch(use)).start()
    try:
        query.awaitTermination()
        return query._jsq.streamingQuery().sparkSessionForStream().conf().get(BYTES)
    finally:
        query.stop()
        directory.cleanup()


def test_a_query_of_narrow_rows_has_no_bound_and_its_session_keeps_it(spark, bids):
    before = spark.conf.get(BYTES)
    assert before != NO_BOUND
    assert bound(medians(read(spark, bids), "bidder")) == NO_BOUND
    lists = fb.groupBy(read(spark, bids), fb.window("ts", "10 seconds")).agg(fb.collect_list("price"))
    assert bound(lists.select("window.start")) == NO_BOUND  # wide results go to Java alone
    assert spark.conf.get(BYTES) == before


def counting():
    """A stateful function of a user's; workers do not find classes of this module by name."""

    class Counting(StatefulProcessor):
        def init(self, handle):
            pass

        def handleInputRows(self, key, rows, timers):
            yield pd.DataFrame({"n": [sum(map(len, rows))]})

        def close(self):
            pass

    return Counting()


def nowhere():
    """A sink in Python."""

    class Nowhere(DataSource, DataSourceStreamWriter):
        @classmethod
        def name(cls):
            return "nowhere"

        def streamWriter(self, schema, overwrite):
            return self

        def write(self, iterator):
            for _ in iterator:
                pass
            return WriterCommitMessage()

    return Nowhere


WHY = ["text", "Python before", "Python after", "table", "stateful", "sink", "foreachBatch", "many rows", "low bound"]


@pytest.mark.parametrize("why", WHY)
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
    elif why == "table":
        assert bound(medians(df.withColumn("n", F.explode(F.array("bidder"))), "n")) == before
    elif why == "stateful":
        over = medians(df, "bidder").groupBy("bidder")
        assert bound(over.transformWithStateInPandas(counting(), "n long", "append", "none")) == before
    elif why == "sink":
        spark.dataSource.register(nowhere())
        assert bound(medians(df, "bidder"), "nowhere") == before
    elif why == "foreachBatch":
        assert bound(medians(df, "bidder"), use=lambda frame, number: frame.count()) == before
    else:
        name, value = (RECORDS, "200000") if why == "many rows" else (BYTES, "15m")
        with setting(spark, name, value):
            assert bound(medians(df, "bidder")) == spark.conf.get(BYTES)


def test_a_plan_that_cannot_be_read_leaves_the_bound():
    leave_sums_out(None, [])  # has none of the methods that it is asked for


def test_batches_of_blobs_that_are_ended_by_rows_are_no_larger_than_by_bytes():
    for records in (1, 1000, 64_000):
        for size in (1, 1000, 100_000, BLOB_BYTES):
            assert records * size <= BATCH_BYTES * (1 + ballast(size, records))
    assert column(pa.py_buffer(b""), nulls=9).null_count == 9


def test_results_are_right_with_blobs_that_have_ballast(spark, bids, tmp_path):
    results = medians(read(spark, bids), "bidder")
    with setting(spark, RECORDS, "64000"):
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
