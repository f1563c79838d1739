"""Every window kind, aggregate and key type equals Spark batch over the same rows, minus exactly the rows counted late."""

import pytest
from pyspark.sql import functions as F
from streams import (
    COUNTED,
    EPOCH_2024,
    HOLISTIC,
    INCREMENTAL,
    KEYS,
    assert_same,
    generate,
    oracle,
    oracle_of_stream,
    run,
    watermarks,
)

import forebay as fb
from forebay.errors import InvalidArgument, UnsupportedType

WINDOWS = {
    "tumbling": ("10 seconds",),
    "sliding": ("30 seconds", "10 seconds"),
    "sliding with a remainder and an offset": ("25 seconds", "10 seconds", "3 seconds"),
}
AGGREGATES = {"incremental": INCREMENTAL, "mixed": INCREMENTAL + HOLISTIC, "counted": COUNTED}


@pytest.fixture(scope="module")
def stream(spark, tmp_path_factory):
    return generate(spark, tmp_path_factory.mktemp("data"), keys=40, rows=800)


SOME = [
    pytest.param(aggregates, id=name, marks=[] if name == "mixed" else [pytest.mark.slow])
    for name, aggregates in AGGREGATES.items()
]
"""In make test the mixed ones alone, which are computed as the holistic ones are."""


def check(stream, tmp_path, window, keys, aggregates, delay="5 seconds"):
    """Run a query over the stream to its end and compare; the number of result rows."""
    name = f"t_{tmp_path.name}".replace("-", "_").replace("[", "_").replace("]", "_").replace(" ", "_")
    result = fb.groupBy(stream.streaming(delay), fb.window("ts", *window), *keys).agg(*aggregates)
    query = run(result, tmp_path / "checkpoint", name)
    before, until = watermarks(query)
    expected, late, partly = oracle_of_stream(stream, F.window("ts", *window), keys, aggregates, before, until)
    rows = assert_same(stream.spark.table(name), expected, len(keys))
    progress = fb.progress(query)
    assert (progress.rowsLate, progress.rowsPartlyLate) == (late, partly)
    assert progress.rowsOut == rows
    assert late > 0 or delay != "5 seconds"
    return rows


ONE_OF_EACH = [
    ("tumbling", "incremental"),
    ("sliding with a remainder and an offset", "mixed"),
]


@pytest.mark.parametrize(
    ("window", "aggregates"),
    [
        pytest.param(
            WINDOWS[window],
            AGGREGATES[aggregates],
            id=f"{window}-{aggregates}",
            marks=[] if (window, aggregates) in ONE_OF_EACH else [pytest.mark.slow],
        )
        for window in WINDOWS
        for aggregates in AGGREGATES
    ],
)
def test_windows_and_aggregates(stream, tmp_path, window, aggregates):
    assert check(stream, tmp_path, window, ["key"], aggregates) > 100


@pytest.mark.slow
@pytest.mark.parametrize("aggregates", SOME)
@pytest.mark.parametrize("partitions", [1, 4])
def test_partitions(stream, tmp_path, spark, partitions, aggregates):
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    try:
        assert check(stream, tmp_path, ("10 seconds",), ["key", "k_string"], aggregates) > 100
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")


@pytest.mark.thorough
@pytest.mark.parametrize("aggregates", [*SOME, pytest.param([fb.count("*")], id="rows only")])
def test_without_keys(stream, tmp_path, aggregates):
    assert check(stream, tmp_path, ("10 seconds",), [], aggregates) > 5


@pytest.mark.thorough
@pytest.mark.parametrize("aggregates", SOME)
def test_one_key(spark, tmp_path, aggregates):
    one = generate(spark, tmp_path, keys=1, rows=300)
    assert check(one, tmp_path, ("30 seconds", "10 seconds"), ["key"], aggregates) > 5


@pytest.mark.slow
@pytest.mark.parametrize("aggregates", [[fb.count("*"), fb.sum("i"), fb.max("s")], [fb.median("x"), fb.count("*")]])
def test_100_000_keys(spark, tmp_path, aggregates):
    many = generate(spark, tmp_path, keys=100_000, rows=60_000)
    assert check(many, tmp_path, ("30 seconds",), ["key"], aggregates) > 100_000


@pytest.mark.thorough
@pytest.mark.parametrize("aggregates", SOME)
def test_instants_before_1970(spark, tmp_path, aggregates):
    """The stream crosses 1970, because Spark's watermark does not exist before."""
    old = generate(spark, tmp_path, keys=5, rows=200, start=-50_000_000, seed=3)
    assert check(old, tmp_path, ("7 seconds", "3 seconds", "1 second"), ["key"], aggregates, "10 seconds") > 5


@pytest.mark.slow
@pytest.mark.parametrize("key", [f"k_{name}" for name in KEYS])
@pytest.mark.parametrize("aggregates", AGGREGATES.values(), ids=AGGREGATES)
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_every_window_aggregate_and_key_type(stream, tmp_path, window, aggregates, key):
    assert check(stream, tmp_path, window, [key], aggregates) > 5


FEW = ("string", "double")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "key", [pytest.param(f"k_{name}", marks=[] if name in FEW else [pytest.mark.slow]) for name in KEYS]
)
def test_key_types_in_a_stream(stream, tmp_path, key):
    """Read-modify-write: keys are grouped in pack, in the write buffer and when the window fires."""
    assert check(stream, tmp_path, ("30 seconds",), [key], [fb.count("*"), fb.sum("l"), fb.max("s"), fb.var_pop("x")]) > 2


@pytest.mark.parametrize("key", [f"k_{name}" for name in KEYS])
def test_key_types_in_a_batch(stream, key):
    """Append and aligned read. With every aggregate it is among the slow tests, in streams."""
    df = stream.static.where("ts is not null")
    aggregates = [fb.count("*"), fb.sum("i"), fb.max_by("s", "u"), fb.median("d"), fb.collect_set("i")]
    found = fb.groupBy(df, fb.window("ts", "40 seconds"), key).agg(*aggregates)
    assert assert_same(found, oracle(df, F.window("ts", "40 seconds"), [key], aggregates), 1) > 2


@pytest.mark.thorough
def test_expressions_as_keys_arguments_and_time(stream, tmp_path):
    aggregates = [fb.sum(F.col("i") * 2 + 1).alias("sum"), fb.median(F.abs("x")), fb.count(F.when(F.col("b"), 1))]
    third = F.col("`a key.with dots`") % 3
    df = stream.streaming("5 seconds").withColumnRenamed("key", "a key.with dots")
    result = fb.groupBy(df, fb.window(F.col("ts"), "10 seconds"), third.alias("third")).agg(*aggregates)
    query = run(result, tmp_path / "checkpoint", "expressions")
    before, until = watermarks(query)
    key = (F.col("key") % 3).alias("third")
    expected, _, _ = oracle_of_stream(stream, F.window("ts", "10 seconds"), [key], aggregates, before, until)
    names = ["window", "third", "sum", "median", "count"]
    assert assert_same(stream.spark.table("expressions").toDF(*names), expected.toDF(*names), 1) > 5


@pytest.mark.thorough
def test_means_of_decimals(spark):
    """Spark computes those of few digits in doubles, which shows where a mean lies in the middle between two results."""
    means = {}
    for precision, scale in ((5, 2), (10, 2), (11, 0), (11, 4), (12, 0), (12, 2)):
        name, large, least = f"d{precision}_{scale}", 9 * 10 ** (precision - scale - 1), f"{10**-scale:f}"
        means[name] = (
            f"cast(({large} + if(id % 4000 = 0, 1, id div 4000) * {least}) as decimal({precision}, {scale})) {name}"
        )
    numbers = spark.range(12000).selectExpr("timestamp_seconds(id % 10) ts", "id div 4000 key", *means.values())
    for keys, groups in (([], 1), (["key"], 3), (["key", F.col("ts").alias("at")], 30)):
        found = fb.groupBy(numbers, fb.window("ts", "10 seconds"), *keys).agg(*(fb.avg(name) for name in means))
        expected = numbers.groupBy(F.window("ts", "10 seconds"), *keys).agg(*(F.avg(name) for name in means))
        assert assert_same(found, expected, len(keys)) == groups


def test_structs_that_are_null_as_a_whole(spark):
    """Their fields never are, by their type."""
    df = spark.range(8).selectExpr("timestamp_seconds(id) ts", "id", "if(id % 3 = 0, struct('a' c, array(1) d), null) s")
    window = "8 seconds"
    found = fb.groupBy(df, fb.window("ts", window), "s").agg(fb.first("s").alias("f"), fb.count("*").alias("n"))
    expected = df.groupBy(F.window("ts", window), "s").agg(F.first("s").alias("f"), F.count("*").alias("n"))
    assert sorted(map(str, found.collect())) == sorted(map(str, expected.collect()))
    right = df.where("id > 3").select("ts", "id", F.struct(F.lit("web").alias("c")).alias("via"))
    for joined in (
        fb.join(df, right, "id", fb.window("ts", window), "left"),
        fb.intervalJoin(df, right, "id", "0 seconds", "1 second", "left", timeColumn="ts"),
    ):
        assert sorted((row.id, row.s is None, row.via is None) for row in joined.collect()) == [
            (number, number % 3 > 0, number <= 3) for number in range(8)
        ]


def test_what_cannot_be_counted(stream):
    df = stream.static
    for column in ("st", "k_array"):
        with pytest.raises(UnsupportedType, match=r"would have to count .* values; leave counted out"):
            fb.groupBy(df, fb.window("ts", "10 seconds"), "key").agg(fb.collect_set(column, counted=True))
    with pytest.raises(InvalidArgument, match="takes one column"):
        fb.count_distinct("i", "b", counted=True)
    with pytest.raises(InvalidArgument, match="takes one column"):
        fb.groupBy(df, fb.window("ts", "10 seconds"), "key").agg(fb.count_distinct("*", counted=True))


@pytest.mark.parametrize("percentage", [float("nan"), [0.5, float("nan")]])
def test_a_percentage_that_is_no_number(percentage):
    with pytest.raises(InvalidArgument, match="percentages are between 0 and 1"):
        fb.percentile("i", percentage)


def test_distinct_rows(stream):
    df = stream.static.where("ts is not null").select("ts", "key", "i")
    arguments = (["*"], ["i", "i"], ["key", "i"])
    found = fb.groupBy(df, fb.window("ts", "1 minute")).agg(*(fb.count_distinct(*names) for names in arguments))
    expected = df.groupBy(F.window("ts", "1 minute")).agg(*(F.count_distinct(*names) for names in arguments))
    assert sorted(map(tuple, found.collect())) == sorted(map(tuple, expected.collect()))
    with pytest.raises(InvalidArgument, match="no percentages"):
        fb.percentile("i", [])


def test_timestamps_without_a_time_zone(spark, stream, tmp_path):
    """The wall clock of timestamp_ntz is never shifted, not even where the session's time zone has a gap."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        elapsed = F.col("ts") - F.timestamp_micros(F.lit(EPOCH_2024))
        local = stream.static.withColumn("local", F.to_timestamp_ntz(F.lit("2024-03-10 02:00:00")) + elapsed)
        found = fb.groupBy(local, fb.window("local", "10 seconds"), "key").agg(fb.count("*"), fb.max("local"))
        expected = local.groupBy(F.window("local", "10 seconds"), "key").agg(F.count("*"), F.max("local"))
        assert assert_same(found, expected, 1) > 100
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "aggregate",
    [pytest.param(fb.sum("l"), marks=pytest.mark.slow, id="columns"), pytest.param(fb.collect_set("l"), id="blobs")],
)
def test_columns_of_one_name(stream, tmp_path, aggregate):
    results = []
    for df in (stream.static, stream.streaming("1 second")):
        named = fb.groupBy(df, fb.window("ts", "10 seconds"), "key").agg(fb.max("l").alias("key"), aggregate.alias("key"))
        assert named.columns == ["window", "key", "key", "key"]
        if df.isStreaming:
            query = named.writeStream.foreachBatch(
                lambda batch, _: results.append({str(tuple(row)) for row in batch.collect()})
            )
            query.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start().awaitTermination()
        else:
            whole = fb.groupBy(df, fb.window("ts", "10 seconds"), "key").agg(fb.max("l").alias("a"), aggregate.alias("b"))
            assert list(map(str, named.collect())) and named.count() == whole.count()
    assert sum(map(len, results)) > 10


@pytest.mark.thorough
def test_backticks_in_names(stream):
    odd = stream.static.withColumnRenamed("key", "k`q.x")
    found = fb.groupBy(odd, fb.window("ts", "10 seconds"), "`k``q.x`").agg(fb.count("*").alias("n"))
    assert assert_same(found, odd.groupBy(F.window("ts", "10 seconds"), "`k``q.x`").agg(F.count("*").alias("n")), 1) > 100
    joined = fb.join(odd, odd.select("ts", "`k``q.x`"), on=["k`q.x"], window=fb.window("ts", "10 seconds"), how="semi")
    assert "k`q.x" in joined.columns and joined.count() == odd.where("ts is not null and `k``q.x` is not null").count()


def test_expressions_that_print_alike_are_kept_apart(stream):
    more, less = F.udf(lambda x: x + 1, "long"), F.udf(lambda x: x - 1, "long")
    df = stream.static.where("ts is not null and l is not null")
    aggregates = [fb.max(more("l")).alias("more"), fb.max(less("l")).alias("less"), fb.max(more("l")).alias("again")]
    (row,) = fb.groupBy(df, fb.window("ts", "10000 days")).agg(*aggregates).collect()
    assert row.more == row.less + 2 == row.again
