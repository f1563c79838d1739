"""Metrics by micro-batch and operator: for Python, for a listener, for Prometheus."""

import socket
import time
import urllib.error
import urllib.request

import pytest
from streams import generate
from test_recovery import WINDOW, counts, run

import forebay as fb
from forebay.errors import UnsupportedConfiguration
from forebay.spark.driver import metrics, prometheus
from forebay.spark.driver.tally import HOTTEST_KEY, SIZES, UNITS


@pytest.fixture(scope="module")
def stream(spark, tmp_path_factory):
    return generate(spark, tmp_path_factory.mktemp("stream"), keys=8, rows=150)


@pytest.fixture(scope="module")
def query(spark, stream, tmp_path_factory):
    """A query that has ended, with what a listener was told of it."""
    told = []
    listener = fb.MetricsListener(lambda query, batch: told.append((query, batch)))
    spark.streams.addListener(listener)
    sessions = fb.groupBy(stream.streaming("1 second"), fb.session_window("ts", "5 seconds"), "key").agg(fb.median("x"))
    ended = run(sessions, tmp_path_factory.mktemp("metrics") / "ck")
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(10_000)
    spark.streams.removeListener(listener)
    return ended, told


def test_they_add_up_to_the_totals_in_the_state(query):
    ended, _ = query
    batches = fb.recentMetrics(ended)
    assert [batch["batchId"] for batch in batches] == sorted({report["batchId"] for report in ended.recentProgress})
    operators = [operator for batch in batches for operator in batch["operators"]]
    assert len(operators) == len(batches)
    totals = fb.progress(ended)
    assert sum(operator["rowsIn"] for operator in operators) == totals.rowsIn > 0
    assert sum(operator["windowsFired"] for operator in operators) == totals.windowsFired > 0
    assert sum(operator["rowsOut"] for operator in operators) == totals.rowsOut > 0
    assert sum(operator["rowsLate"] for operator in operators) == totals.rowsLate
    packed = {name: sum(operator[name] for operator in operators) for name in ("packedRows", "packedOut", "combinedRows")}
    assert packed == {"packedRows": totals.rowsIn, "packedOut": totals.rowsIn, "combinedRows": 0}  # of medians
    assert all((operator["commitTimeMs"] > 0) >= (operator["rowsIn"] > 0) for operator in operators)
    assert all(operator["stateBytes"] >= operator["stateLiveBytes"] for operator in operators)
    assert max(operator["memoryBytes"] for operator in operators) > 0
    assert set(operators[0]) == {"operator", HOTTEST_KEY, *UNITS, *SIZES}


def test_a_listener_is_told_after_each_micro_batch(query):
    ended, told = query
    mine = [batch for query_id, batch in told if query_id == str(ended.id)]
    assert mine == fb.recentMetrics(ended)


def test_old_micro_batches_are_added_up(query, monkeypatch):
    ended, _ = query
    before = metrics.totals()
    count = len(fb.recentMetrics(ended))
    monkeypatch.setattr(metrics, "KEPT_BATCHES", 2)
    assert count > 2
    assert len(fb.recentMetrics(ended)) == 2
    assert {key: values["rowsIn"] for key, values in metrics.totals().items()} == {
        key: values["rowsIn"] for key, values in before.items()
    }


def test_of_a_query_that_has_ended_little_is_kept(query):
    ended, _ = query
    ((_, tally),) = metrics._of(str(ended.id))
    assert tally.nodes == tally._sizes == {}
    assert len(tally.rows) == len(fb.recentMetrics(ended)) > 0
    for number in range(metrics.ENDED_QUERIES):
        metrics.retire(f"query {number}")
    assert fb.recentMetrics(ended) == []


def test_a_micro_batch_that_runs_again_after_its_query_has_failed_counts_once(spark):
    reporter = metrics.reporter(spark)
    for rows in ({0: 7}, {0: 7, 2: 7}):
        reporter.add({("again", 5, "operator", vnode): {"rowsIn": count} for vnode, count in rows.items()})
        metrics.retire("again")
        metrics.revive("again")
    assert metrics.totals()["again", "operator"]["rowsIn"] == 14


@pytest.mark.thorough
def test_prometheus_is_shown_them(spark, stream, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spark.conf.set("spark.forebay.prometheusPort", str(port))
    try:
        planned = counts(stream.streaming("1 second"), WINDOW, ["key"], fb.sum("x"))
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)
        ended = run(planned, tmp_path / "ck")
    finally:
        spark.conf.unset("spark.forebay.prometheusPort")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    (rows,) = [line for line in lines if line.startswith("forebay_rows_in_total{") and str(ended.id) in line]
    assert float(rows.rpartition(" ")[2]) == fb.progress(ended).rowsIn
    assert any(line.startswith("forebay_state_bytes{") for line in lines)
    prometheus._served.discard(port)
    with pytest.raises(UnsupportedConfiguration, match=f"prometheusPort is {port}"):
        prometheus.serve(port)


@pytest.mark.thorough
def test_virtual_nodes_that_have_nothing_to_do_count_after_a_restart(spark, tmp_path):
    (tmp_path / "in").mkdir()
    rows = spark.range(64).selectExpr("timestamp_seconds(id) ts", "id key")
    stream = spark.readStream.schema("ts timestamp, key long").parquet(str(tmp_path / "in")).withWatermark("ts", "1 second")
    summed = fb.groupBy(stream, fb.window("ts", "1 day"), "key").agg(fb.count("*"))

    def add(part):
        part.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))

    add(rows)
    run(summed, tmp_path / "ck")
    metrics._tallies.clear()  # as in another driver
    writer = summed.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "ck"))
    query = writer.start()
    try:
        add(rows.limit(1))  # which is one virtual node's
        query.processAllAvailable()
        deadline = time.monotonic() + 30
        while fb.recentMetrics(query)[-1]["operators"][0]["stateLiveBytes"] < fb.progress(query).stateBytes:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        query.stop()
    (total,) = [total for (of, _), total in metrics.totals().items() if of == str(query.id)]
    assert total["rowsIn"] == 1
    assert total["stateLiveBytes"] == fb.progress(query).stateBytes
    assert total["stateBytes"] >= total["stateLiveBytes"]
