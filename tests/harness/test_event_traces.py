import gzip
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.errors import InvalidArgument
from forebay.harness.events import Events, Source
from forebay.harness.formats import FORMATS, trace_of
from forebay.harness.traces import Trace, TraceArrivals


def rows(trace):
    return Events.joined(list(trace.blocks()))


def written(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_csv_and_parquet_give_the_same_events(tmp_path):
    table = pa.table(
        {"user": ["ann", "bob", "ann"], "at": [1.5, 2.5, 3.0], "bytes": [10, 20, 30], "what": ["GO", "GO", "END"]}
    )
    pq.write_table(table, tmp_path / "trace.parquet")
    path = written(tmp_path, "user,at,bytes,what\nann,1.5,10,GO\nbob,2.5,20,GO\nann,3.0,30,END\n")
    both = [
        rows(Trace(each, "user", "at", "bytes", ("what", "END"), unit="s")) for each in (path, tmp_path / "trace.parquet")
    ]
    assert both[0].batch() == both[1].batch()
    assert both[0].time.tolist() == [1_500_000, 2_500_000, 3_000_000]
    assert both[0].size.tolist() == [10, 20, 30]
    assert both[0].final.tolist() == [False, False, True]
    assert both[0].key[0] == both[0].key[2] != both[0].key[1]


def test_keys_that_are_numbers_are_kept(tmp_path):
    assert rows(Trace(written(tmp_path, "k,t\n5,1\n-7,2\n"), "k", "t")).key.tolist() == [5, -7]


def test_timestamps_are_microseconds(tmp_path):
    trace = rows(Trace(written(tmp_path, "k,t\n5,2013-01-01T00:00:01Z\n"), "k", "t"))
    assert trace.time.tolist() == [int(datetime(2013, 1, 1, 0, 0, 1, tzinfo=UTC).timestamp()) * 1_000_000]


def test_a_file_without_names_is_given_them(tmp_path):
    trace = Trace(written(tmp_path, "5,1\n6,2\n"), "k", "t", columns=("k", "t"), unit="ms")
    assert rows(trace).time.tolist() == [1000, 2000]


def test_a_file_is_read_in_blocks(tmp_path):
    pq.write_table(pa.table({"k": np.arange(200_000), "t": np.arange(200_000)}), tmp_path / "trace.parquet")
    trace = Trace(tmp_path / "trace.parquet", "k", "t")
    assert max(map(len, trace.blocks())) <= 1 << 16
    assert rows(trace).watermark[-1] == 199_999


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("k,u\n1,2\n", {}, "has no column t; it has k, u"),
        ("k,t\n1,9\n1,2\n", {}, "in row 2 the time goes back by 7 microseconds, more than the bound of 0"),
        ("k,t\n1,9\n1,2\n", {"bound": 6}, "in row 2 the time goes back by 7"),
        ("k,t\n1,1\n1,\n", {}, "row 2 has no t"),
        ("k,t\n1,x\n", {}, "times must be timestamps or numbers"),
        ("k,t\n1,14:32:00\n", {}, "t is time32.*; times must be timestamps or numbers"),
        ("k,t\n1,1\n", {"unit": "h"}, "unit is 'h'; it must be one of us, ms, s"),
        ("k,t\n1,1\n", {"size": "n"}, "has no column n"),
        ("k,t,n\n1,1,x\n", {"size": "n"}, "sizes must be whole numbers"),
        ("k,t,n\n1,1,-4\n", {"size": "n"}, "n is -4 in one of the rows"),
        ("k,t\n1,1\n", {"size": -1}, "size is -1"),
        ("", {}, "cannot be read"),
        ("k,t\n1,1\n1,9223372036854775807\n", {}, "the time in row 2 is out of range"),
        ("k,t\n1,1\n1,18446744073710\n", {"unit": "s"}, "the time in row 2 is out of range"),  # 2**64 microseconds
        ("k,t\n1,1.5\n1,1e300\n", {"unit": "s"}, "the time in row 2 is out of range"),
    ],
)
def test_a_bad_trace_is_an_error(tmp_path, text, settings, message):
    with pytest.raises(InvalidArgument, match=message):
        rows(Trace(written(tmp_path, text), "k", "t", **settings))


def test_a_trace_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(InvalidArgument, match=r"none\.parquet cannot be read"):
        rows(Trace(tmp_path / "none.parquet", "k", "t"))


def test_events_arrive_when_rows_of_a_file_did(tmp_path):
    path = written(tmp_path, "at\n1000\n1500\n1400\n2000\n")
    block = rows(Source(10, TraceArrivals(path, "at", unit="ms", bound=100_000), start=7))
    expected = [0, 500, 500, 1000, 1500, 2000, 2000, 2500, 3000, 3500]
    assert block.arrival.tolist() == [7 + each * 1000 for each in expected]
    sampler = TraceArrivals(path, "at", unit="ms", bound=100_000).sampler(np.random.default_rng(0))
    assert [*sampler(3), *sampler(0), *sampler(7)] == [each * 1000 for each in expected]


def test_a_trace_without_rows_has_no_arrivals(tmp_path):
    with pytest.raises(InvalidArgument, match="has no rows"):
        rows(Source(10, TraceArrivals(written(tmp_path, "at\n"), "at")))
    with pytest.raises(InvalidArgument, match="unit is 'h'"):
        TraceArrivals(tmp_path / "trace.csv", "at", unit="h")


SAMPLES = {
    "borg-jobs": "600000000,,63,0,u,2,n,l\n600000007,,63,4,u,2,n,l\n",
    "borg-tasks": "600000000,2,63,1,85,1,u,2,9,0.5,0.1,0.001,0\n600000007,,63,1,85,4,u,2,9,,,,\n",
    "azure-vms": "vm1,s1,d1,600,900,99.0,3.4,9.9,Delay-insensitive,2,4\nvm2,s1,d1,607,2591700,99.0,3.4,9.9,Unknown,2,4\n",
    "taxi-pickups": "medallion, hack_license, pickup_datetime\nA1,B,2013-01-01 00:00:00\nA1,B,2013-01-01 00:00:07\n",
    "taxi-dropoffs": "medallion,pickup_datetime,dropoff_datetime\nA1,2013-01-01 00:00:00,2013-01-01 00:10:00\n"
    "A1,2013-01-01 00:10:05,2013-01-01 00:10:07\n",
}


@pytest.mark.parametrize("form", list(FORMATS))
def test_public_traces_are_read(tmp_path, form):
    (tmp_path / "plain.csv").write_text(SAMPLES[form])
    with gzip.open(tmp_path / "small.csv.gz", "wt") as file:
        file.write(SAMPLES[form])
    for name in ("plain.csv", "small.csv.gz"):
        block = rows(trace_of(tmp_path / name, form))
        assert block.key[0] == block.key[1]
        assert block.time[1] - block.time[0] in (7, 7_000_000)
        assert block.final.tolist() == [False, form == "borg-jobs"]


def test_an_unknown_format_is_an_error(tmp_path):
    with pytest.raises(InvalidArgument, match="format is 'borg'; it must be one of borg-jobs"):
        trace_of(tmp_path / "trace.csv", "borg")
