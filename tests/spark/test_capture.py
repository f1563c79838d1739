"""What a live query asks of its state, recorded, is what the harness makes of the same operator and input (Gadget, 6.1)."""

import functools
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from streams import watermarks

import forebay as fb
from forebay.errors import StateDirectoryError, UnsupportedConfiguration
from forebay.harness.access import SCHEMA
from forebay.harness.arrivals import ConstantRate
from forebay.harness.capture import read_captured
from forebay.harness.distributions import Zipfian
from forebay.harness.driver import Driver
from forebay.harness.events import BEGINNING, Source
from forebay.harness.likeness import likeness
from forebay.harness.operators import WORKLOADS

SECOND = 1_000_000
FILES, ROWS = 4, 500
CONF = "spark.forebay.captureTrace"
INSTANCES = "spark.forebay.instancesPerPartition"

SUM, LIST = fb.sum("value"), fb.collect_list("value")
TUMBLING, SLIDING = fb.window("ts", "5 seconds"), fb.window("ts", "4 seconds", "2 seconds")
SESSION = fb.session_window("ts", "2 seconds")
FIVE, FOUR, GAP = {"size": 5 * SECOND}, {"size": 4 * SECOND, "slide": 2 * SECOND}, {"gap": 2 * SECOND}
CASES = {  # the workload, its settings, the streams that it reads, and the query
    "tumbling-incremental": (FIVE, [1], lambda late: fb.groupBy(late, TUMBLING, "key").agg(SUM)),
    "tumbling-holistic": (FIVE, [0], lambda rows: fb.groupBy(rows, TUMBLING, "key").agg(LIST)),
    "sliding-incremental": (FOUR, [0], lambda rows: fb.groupBy(rows, SLIDING, "key").agg(SUM)),
    "sliding-holistic": (FOUR, [1], lambda late: fb.groupBy(late, SLIDING, "key").agg(LIST)),
    "session-incremental": (GAP, [0], lambda rows: fb.groupBy(rows, SESSION, "key").agg(SUM)),
    "session-holistic": (GAP, [0], lambda rows: fb.groupBy(rows, SESSION, "key").agg(LIST)),
    "tumbling-join": (FIVE, [0, 1], lambda left, right: fb.join(left, right, "key", TUMBLING)),
    "sliding-join": (FOUR, [0, 1], lambda left, right: fb.join(left, right, "key", SLIDING)),
    "aggregation": ({}, [0], lambda rows: fb.rolling(rows, "key").agg(SUM)),
}


class AsItRan:
    """Events with the watermarks that a query has had: that of a micro-batch holds after its last event."""

    def __init__(self, events, watermarks):
        self.events = events
        self.events.watermark[:] = BEGINNING
        for batch, watermark in enumerate(watermarks):
            if watermark:
                self.events.watermark[min(batch + 1, FILES) * ROWS - 1 :] = watermark * 1000

    def blocks(self):
        yield self.events


@pytest.fixture(scope="module")
def events():
    """Those of two streams, some too late in the second. Times are whole milliseconds, as Spark's watermarks are."""
    sources = [
        Source(FILES * ROWS, ConstantRate(100), Zipfian(60), late=0.3, bound=bound, start=1000 * SECOND, seed=bound)
        for bound in (2 * SECOND, 18 * SECOND)
    ]
    blocks = [block for source in sources for block in source.blocks()]
    for block in blocks:
        block.time[:] = block.time // 1000 * 1000
    return blocks


def streaming(spark, events, path):
    path.mkdir()
    for file in range(FILES):
        part = events.part(slice(file * ROWS, (file + 1) * ROWS))
        table = pa.table({"ts": pa.array(part.time, pa.timestamp("us", "UTC")), "key": part.key, "value": part.size})
        pq.write_table(table, path / f"{file}.parquet")
        os.utime(path / f"{file}.parquet", (file, file))
    source = spark.readStream.schema("ts timestamp, key long, value long").option("maxFilesPerTrigger", 1)
    return source.parquet(str(path)).withWatermark("ts", "1 second")


@pytest.fixture(scope="module")
def one_partition(spark):
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # of two virtual nodes
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.fixture(scope="module")
def captured(spark, events, one_partition, tmp_path_factory):
    """Where the cases were captured, all of them in one query; and the watermarks that its micro-batches have had."""
    place = tmp_path_factory.mktemp("captured")
    streams = [streaming(spark, each, place / str(number)) for number, each in enumerate(events)]
    results = []
    spark.conf.set(INSTANCES, "2")
    for name, (_, read, plan) in CASES.items():
        spark.conf.set(CONF, str(place / name))
        results.append(plan(*(streams[number] for number in read)).select(F.lit(name).alias("case")))
    spark.conf.unset(CONF)
    spark.conf.unset(INSTANCES)
    every = functools.reduce(DataFrame.union, results)

    def run():
        writer = every.writeStream.format("noop").option("checkpointLocation", str(place / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return watermarks(query)

    before, last = run()
    commits = place / "checkpoint" / "commits"
    for name in (f"{len(before) - 1}", f".{len(before) - 1}.crc"):
        (commits / name).unlink()
    assert run()[1] == last  # the last micro-batch has run twice
    return place, [*before[1:], last]


def accesses_of(place):
    return pa.Table.from_batches(read_captured(place), SCHEMA)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_captured_and_generated_accesses_are_alike(name, captured, events):
    place, used = captured
    settings, read, _ = CASES[name]
    driver = Driver(WORKLOADS[name](**settings))
    batches = driver.accesses([AsItRan(events[number], used) for number in read], drain=False)
    generated, live = pa.Table.from_batches(batches, SCHEMA), accesses_of(place / name)
    assert (driver.late > 20) == (1 in read)
    assert len(live) == len(generated)
    alike = likeness(live.to_batches(), generated.to_batches())
    assert alike.composition == 0
    assert alike.keys.p_value > 0.05
    assert alike.stacks.p_value > 0.05
    assert alike.sequences <= 0.02
    if not name.startswith("session"):  # where sessions become one, another of them goes on than in the harness
        names = ("operation", "family", "key", "start", "end")
        assert live.select(names).equals(generated.select(names))


@pytest.mark.slow
def test_what_was_captured_is_read_by_virtual_node(captured):
    place, _ = captured
    name = place / "tumbling-incremental"
    vnodes = {int(path.stem.partition("-")[2]) for path in name.glob("*/*.arrow")}
    assert len(vnodes) == 2
    parts = [pa.Table.from_batches(read_captured(name, vnode), SCHEMA) for vnode in vnodes]
    assert sum(map(len, parts)) == len(accesses_of(name))
    assert not set(parts[0]["key"].to_pylist()) & set(parts[1]["key"].to_pylist())


@pytest.fixture
def capturing(spark):
    yield lambda value: spark.conf.set(CONF, value)
    spark.conf.unset(CONF)


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        ("{}/file/trace", StateDirectoryError, "captureTrace is .*, which cannot be written: Not a directory"),
        ("trace", UnsupportedConfiguration, "must be the absolute path of a directory"),
        ("s3://bucket/trace", UnsupportedConfiguration, "must be the absolute path of a directory"),
    ],
)
def test_a_directory_that_cannot_be_written_is_an_error_before_the_query(spark, capturing, tmp_path, where, error, message):
    (tmp_path / "file").touch()
    capturing(where.format(tmp_path))
    ticks = spark.readStream.format("rate").load()
    with pytest.raises(error, match=message):
        fb.rolling(ticks, "value").agg(fb.count("*"))
    assert fb.rolling(spark.range(3), "id").agg(fb.count("*")).count() == 3  # nothing is captured of a batch DataFrame


def test_operators_that_cannot_be_captured_are_refused(spark, capturing, tmp_path):
    capturing(str(tmp_path))
    ticks = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    minutes = fb.window("timestamp", "1 minute")
    count = fb.count("*")
    refused = {
        "of windows that fire more than once": lambda: fb.groupBy(ticks, minutes).firing("5 seconds").agg(count),
        "of count windows": lambda: fb.groupBy(ticks, fb.count_window(10), "value").agg(count),
        "of holistic .* with emit='every'": lambda: fb.rolling(ticks, "value", emit="every").agg(fb.median("value")),
        "of fb.dedupe": lambda: fb.dedupe(ticks, "value", within="1 minute"),
        "of fb.continuousJoin": lambda: fb.continuousJoin(ticks, ticks, on="value", until=F.col("value") > 1),
    }
    for what, plan in refused.items():
        with pytest.raises(UnsupportedConfiguration, match=f"captureTrace is set, but the state accesses {what}"):
            plan()
