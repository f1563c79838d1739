"""Spark's own state store holds what other stores hold after the same accesses."""

import pytest
from typer.testing import CliRunner

from forebay.cli import app
from forebay.errors import InvalidArgument
from forebay.harness.access import GET, limited, write
from forebay.harness.driver import Driver
from forebay.harness.evaluator import evaluate
from forebay.harness.events import Source
from forebay.harness.operators import WORKLOADS
from forebay.harness.stores import temporary_store
from forebay.spark.driver.replay import replay

PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@pytest.mark.parametrize("name", ["aggregation", "session-holistic"])
def test_spark_finds_what_a_dict_finds(spark, name):
    before = spark.conf.get(PROVIDER)
    batches = list(limited(Driver(WORKLOADS[name]()).accesses([Source(events=1500)]), 3000))
    with temporary_store("dict") as (store, _):
        expected = evaluate(store, batches)
    measured = replay(spark, batches)
    assert (measured.accesses, measured.found) == (expected.accesses, expected.found)
    assert expected.found > 200
    counts = {operation: latency.count for operation, latency in expected.latencies.items()}
    assert {operation: latency.count for operation, latency in measured.latencies.items()} == counts
    assert measured.latencies[GET].percentile(50) > 1000  # nanoseconds
    assert spark.conf.get(PROVIDER) == before


def test_the_command_shows_what_was_measured(spark, tmp_path):
    write(tmp_path / "trace.arrow", Driver(WORKLOADS["aggregation"]()).accesses([Source(events=500)]))
    output = CliRunner().invoke(app.app, ["harness", "spark", str(tmp_path / "trace.arrow"), "--limit", "300"]).output
    assert "spark-ro" in output
    assert "300" in output


def test_no_accesses_are_nothing(spark):
    with pytest.raises(InvalidArgument, match="there are no accesses"):
        replay(spark, [])
