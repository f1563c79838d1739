"""Results leave the operator in columns that Spark takes as they are, whatever their types."""

import datetime
import decimal
import math

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.conversion import PandasToArrowConversion
from pyspark.sql.pandas.types import to_arrow_type

from forebay.spark.worker import blobs, emitted

INSTANT = datetime.datetime(2024, 3, 31, 1, 30, 0, 123457)
PAIR = T.StructType([T.StructField("at", T.TimestampNTZType()), T.StructField("n", T.LongType())])
VALUES = {
    T.BooleanType(): [True, None, False],
    T.ByteType(): [-128, None, 127],
    T.ShortType(): [1, None, -1],
    T.IntegerType(): [2**31 - 1, None, 0],
    T.LongType(): [2**53 + 1, None, -(2**63)],
    T.FloatType(): [0.5, None, math.inf],
    T.DoubleType(): [-0.0, None, 1e300],
    T.StringType(): ["", None, "ä"],
    T.BinaryType(): [b"", None, b"\x00"],
    T.DateType(): [datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)],
    T.TimestampType(): [INSTANT.replace(tzinfo=datetime.UTC), None, INSTANT.replace(year=1, tzinfo=datetime.UTC)],
    T.TimestampNTZType(): [INSTANT, None, INSTANT.replace(year=9000)],
    T.DecimalType(38, 10): [decimal.Decimal("-0.0000000001"), None, decimal.Decimal(10) ** 27],
    T.DayTimeIntervalType(): [datetime.timedelta(microseconds=-1), None, datetime.timedelta(days=1)],
    T.NullType(): [None, None],
    T.ArrayType(T.LongType()): [[1, None, 2**53 + 1], None, []],
    T.ArrayType(T.ArrayType(T.TimestampType())): [[[INSTANT.replace(tzinfo=datetime.UTC)], None], None, []],
    T.MapType(T.StringType(), PAIR): [[("a", {"at": INSTANT, "n": 1}), ("b", None)], None, []],
    PAIR: [{"at": None, "n": 2**53 + 1}, None],
    T.ArrayType(PAIR): [[{"at": INSTANT, "n": None}, None], None],
}


def converted(frames, schema):
    """What Spark's worker makes of results: record batches of the operator's columns."""
    of_spark = T.StructType([T.StructField("_0", schema)])
    for frame in frames:
        batch = PandasToArrowConversion.convert(
            [frame], of_spark, timezone="America/New_York", arrow_cast=True, assign_cols_by_name=True
        )
        yield pa.RecordBatch.from_struct_array(batch.column(0))


def beside(output):
    return [T.StructField(output, T.BinaryType()), T.StructField(emitted.EVENT_TIME, T.TimestampType())]


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.simpleString())
def test_values_arrive_as_they_are(kind):
    array = pa.array(VALUES[kind], to_arrow_type(kind, timezone="UTC"))
    schema = T.StructType([*beside("mark"), T.StructField("c0", kind)])
    (found,) = converted(emitted.as_columns([pa.record_batch([array], ["any name"])], "mark"), schema)
    assert found.column(2).cast(array.type).equals(array)
    assert found.column(0).null_count == found.column(1).null_count == len(array)


def test_a_nan_is_not_null():
    batch = pa.record_batch([pa.array([math.nan, None])], ["x"])
    schema = T.StructType([*beside("mark"), T.StructField("c0", T.DoubleType())])
    (found,) = converted(emitted.as_columns([batch], "mark"), schema)
    assert found.column(2).null_count == 1
    assert math.isnan(found.column(2)[0].as_py())


def test_no_value_becomes_an_object_of_python():
    times = pa.nulls(blobs.FEW_ROWS, pa.timestamp("us"))
    pairs = pa.StructArray.from_arrays([times, pa.array(range(blobs.FEW_ROWS))], ["at", "n"])
    kind = to_arrow_type(T.ArrayType(PAIR), timezone="UTC")
    listed = pa.ListArray.from_arrays(pa.array(range(blobs.FEW_ROWS + 1), pa.int32()), pairs, kind)
    schema = T.StructType([*beside("mark"), T.StructField("c0", T.ArrayType(PAIR))])
    (found,) = converted(emitted.as_columns([pa.record_batch([listed], ["rows"])], "mark"), schema)
    assert found.column(2).values.field(1).buffers()[1].address == pairs.field(1).buffers()[1].address


def test_long_batches_are_cut():
    rows = blobs.BLOB_ROWS + 1
    frames = list(emitted.as_columns([pa.record_batch([pa.array(range(rows))], ["n"])], "mark"))
    assert [list(frame.columns) for frame in frames] == [["mark", "event_time", "c0"]] * 2
    assert [len(frame) for frame in frames] == [blobs.BLOB_ROWS, 1]
    assert frames[1]["c0"].tolist() == [rows - 1]


def test_few_results_are_put_together():
    batches = [pa.record_batch([pa.array(range(rows))], ["n"]) for rows in (2, 0, 3, blobs.FEW_ROWS, 3)]
    frames = list(emitted.as_columns(batches, "mark"))
    assert [len(frame) for frame in frames] == [5, blobs.FEW_ROWS, 3]
    assert [n for frame in frames for n in frame["c0"]] == [n for batch in batches for n in batch[0].to_pylist()]


def test_large_results_are_not_put_together():
    large = pa.record_batch([pa.array([b"." * (blobs.BLOB_BYTES // 3)])], ["sketch"])
    assert [batch.num_rows for batch in blobs.gathered([large] * 5)] == [2, 2, 1]
