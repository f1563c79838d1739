"""The operator of a batch DataFrame, whose state is needed by nobody after it."""

import os
import pickle

import numpy as np
import pyarrow as pa

from forebay.access_patterns import Pattern
from forebay.aggregates.aggregation import Aggregation
from forebay.aggregates.bound import BoundAggregate
from forebay.engine.plan import WindowPlan
from forebay.spark.worker import blobs, stages
from forebay.spark.worker.startup import Shipped
from forebay.state.places import Place
from forebay.store.options import Options
from forebay.windows import END, HIGH, LOW, START, SessionWindows

ROWS = 200_000
MEDIAN = BoundAggregate("median", "median", ("a0",), (pa.int64(),), pa.float64())


def test_state_is_written_and_not_made_durable(tmp_path, monkeypatch):
    bounds = pa.struct([("start", pa.timestamp("us")), ("end", pa.timestamp("us"))])
    schema = pa.schema([("window", bounds), ("k", pa.int64()), ("median", pa.float64())])
    packed = pa.schema([("k0", pa.int64()), ("a0", pa.int64())])
    plan = WindowPlan(
        SessionWindows(), packed, ("k0",), Aggregation(("k0",), (MEDIAN,)), Pattern.AUR, schema, Options(1 << 20)
    )
    keys, times = np.arange(ROWS) % 1000, np.arange(ROWS)
    names = ["k0", "a0", START, END, HIGH, LOW]
    rows = pa.record_batch([keys, times, times, times + 2000, keys, keys], names)
    synced, written = [], []
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(os, "write", lambda file, data, write=os.write: written.append(len(data)) or write(file, data))
    operator = stages.batch_operator(pickle.loads(pickle.dumps(Shipped(plan))), Place(local_directory=str(tmp_path)), "out")
    groups = (pa.record_batch([blobs.column(blob)], [stages.PAYLOAD]) for blob in blobs.write_all([rows]))
    results = [batch for part in operator(groups) for blob in part["out"] for batch in blobs.read(blob.as_buffer())[0]]
    assert sum(batch.num_rows for batch in results) == 1000
    assert sum(written) > 1 << 20
    assert not synced
