"""``foreachBatch`` may evaluate a micro-batch in threads of its own, to which Spark does not hand what tasks are told."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import functions as F
from streams import confs, generate

import forebay as fb


@pytest.fixture(scope="module")
def source(spark, tmp_path_factory):
    return generate(spark, tmp_path_factory.mktemp("threads"), keys=8, rows=300)


def run(results, tmp_path):
    """Results and late rows, of micro-batches that are evaluated in a thread, every other one in the query's thread, too."""
    both = results.select(F.struct("*").alias("result")).unionByName(
        fb.late(results).select(F.struct("*").alias("late")), allowMissingColumns=True
    )
    found = {}

    def write(batch, number):
        if number % 2:
            batch.isEmpty()
        with ThreadPoolExecutor(1) as pool:
            found[number] = pool.submit(batch.collect).result()

    writer = both.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "ck"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [row for number in sorted(found) for row in found[number]], query


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"stateDirectory": "{}/state"}, marks=pytest.mark.thorough),
        pytest.param({"localDirectory": "{}/node"}, marks=pytest.mark.thorough),
        pytest.param({"durability": "local", "localDirectory": "{}/node"}, marks=pytest.mark.thorough),
    ],
    ids=lambda settings: "-".join(settings) or "default",
)
def test_a_micro_batch_may_be_evaluated_in_a_thread(spark, source, tmp_path, settings):
    with confs(spark, **{name: value.format(tmp_path) for name, value in settings.items()}):
        stream = source.streaming("1 second")
        results = fb.groupBy(stream, fb.session_window("ts", "3 seconds"), "key").agg(fb.count("*").alias("n"))
        rows, query = run(results, tmp_path)
    progress = fb.progress(query)
    late = sum(row["late"] is not None for row in rows)
    assert late == progress.rowsLate > 50
    timed = source.static.where("ts is not null").count()
    assert progress.rowsIn == timed
    assert 0 < sum(row["result"]["n"] for row in rows if row["result"] is not None) <= timed - late
    batches = [each["batchId"] for each in fb.recentMetrics(query)]
    assert batches == [each["batchId"] for each in query.recentProgress]
    assert not [*tmp_path.rglob("None*")]


def test_event_time_passes_with_the_wall_clock_in_a_thread_too(spark, source, tmp_path):
    stream = source.streaming("1 second")
    windows = fb.groupBy(stream, fb.window("ts", "10 seconds"), "key").firing(idleTimeout="1 second")
    found = []

    def write(batch, number):
        with ThreadPoolExecutor(1) as pool:
            found.extend(pool.submit(batch.collect).result())

    counts = windows.agg(fb.count("*").alias("n"))
    writer = counts.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(processingTime="200 milliseconds").start()
    try:
        timed = source.static.where("ts is not null").count()
        for _ in range(600):
            if sum(row["n"] for row in found) + fb.progress(query).rowsLate == timed:
                break
            assert not query.awaitTermination(0.1)
        assert sum(row["n"] for row in found) + fb.progress(query).rowsLate == timed
    finally:
        query.stop()
