import errno
import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from forebay.cli import app
from forebay.cli.state import _written
from forebay.errors import CorruptState, InvalidArgument


def invoke(*arguments):
    return CliRunner().invoke(app.app, ["nexmark", *arguments], catch_exceptions=False)


def test_generate_writes_files_in_order(tmp_path):
    out = tmp_path / "bids"
    result = invoke("generate", str(out), "--events", "1k", "--per-file", "400", "-o", "avgBidByteSize=84")
    assert "920 rows of 1,000 events" in result.output
    tables = [pq.read_table(path) for path in sorted(out.iterdir())]
    assert [table.num_rows for table in tables] == [368, 368, 184]
    times = [time for table in tables for time in table["dateTime"].to_pylist()]
    assert times == sorted(times)


def test_an_export_that_fails_leaves_nothing(tmp_path):
    def batches():
        yield pa.record_batch({"n": np.arange(1 << 17)})  # fewer rows wait for others
        assert any(tmp_path.iterdir())
        raise CorruptState("damaged")

    for out in (tmp_path / "rows.parquet", tmp_path / "rows.csv"):
        with pytest.raises(CorruptState):
            _written(batches(), out)
        assert not list(tmp_path.iterdir())
        assert not [link for link in Path("/proc/self/fd").iterdir() if str(tmp_path) in os.path.realpath(link)]


def test_an_export_for_which_there_is_no_room_leaves_nothing(tmp_path, monkeypatch):
    def full(out, schema):
        Path(out).touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq, "ParquetWriter", full)
    with pytest.raises(InvalidArgument, match=r"cannot be written: .* No space left"):
        _written(iter([pa.record_batch({"n": [1]})]), tmp_path / "rows.parquet")
    assert not list(tmp_path.iterdir())


def test_queries_are_listed():
    assert "q11-median" in invoke("queries").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "out", "--events", "many"), "'many' is not a number of events"),
        (("generate", "out", "-o", "rate"), "--option 'rate' is not of the form name=value"),
        (("run", "q12"), "q12 goes by the wall clock"),
        (("run", "q7", "--real-time"), "q7 goes by the wall clock"),
        (("run", "q7", "-o", "hotBidderRatio=1"), "hotBidderRatio is not an option"),
        (("run", "q99"), "there is no query 'q99'"),
        (("run", "q7", "--rate", "0"), "rate is 0; it must be at least 1"),
        (("generate", ".", "--events", "inf"), "'inf' is not a number of events"),
        (("generate", "."), "exists already"),
        (("generate", "out", "--rate", "0"), "rate is 0; it must be at least 1"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(InvalidArgument, match=message):
        invoke(*arguments)


@pytest.mark.slow
def test_run_reports_throughput_latency_state_and_results():
    program = [sys.executable, "-c", "from forebay.cli.app import main; main()"]
    query = ["nexmark", "run", "q11", "--events", "60k", "--batch", "20k", "--rate", "1000"]
    output = subprocess.run([*program, *query], capture_output=True, text=True, check=True).stdout
    for shown in ("events/s", "latency p50, p95, p99", "state at the end", "session_window"):
        assert shown in output


def test_an_error_is_one_line():
    program = [sys.executable, "-c", "from forebay.cli.app import main; main()"]
    done = subprocess.run([*program, "nexmark", "run", "q12"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: q12 goes by the wall clock")
    assert not done.stdout


@pytest.mark.parametrize(
    ("location", "message"),
    [
        (f"/{'long' * 80}", "File name too long"),  # which no error of forebay tells
        ("s3://?region=eu-west-1", "state cannot be kept at s3://: it names no bucket"),
    ],
)
def test_a_place_without_state_is_one_line(location, message):
    program = [sys.executable, "-c", "from forebay.cli.app import main; main()"]
    done = subprocess.run([*program, "state", "list", location], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_lines_are_cut_for_a_terminal_and_not_for_another_program():
    program = [sys.executable, "-c", "from forebay.cli.app import main; main()", "nexmark", "queries"]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    for columns, cut in (({}, False), ({"COLUMNS": "40"}, True)):
        done = subprocess.run(program, env=environment | columns, capture_output=True, text=True, check=True)
        assert all(len(line) <= 40 for line in done.stdout.splitlines()) == cut


def test_a_program_that_nobody_listens_to_ends_as_others_do():
    program = f"{sys.executable} -c 'from forebay.cli.app import main; main()' nexmark queries"
    done = subprocess.run(["bash", "-c", f"{program} | true; exit ${{PIPESTATUS[0]}}"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_the_version():
    result = CliRunner().invoke(app.app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"forebay {metadata.version('forebay')}\n"


def test_a_number_of_rows_is_not_negative(tmp_path):
    for option in ("--rows", "--batch"):
        result = CliRunner().invoke(app.app, ["state", "read", str(tmp_path), option, "-1"], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert f"Invalid value for '{option}'" in result.output


@pytest.mark.parametrize("command", [("tokens", "checkpoint"), ("rescale", "checkpoint", "4")])
def test_settings_of_a_query_are_names_and_values(command):
    with pytest.raises(InvalidArgument, match="--conf 'local' is not of the form NAME=VALUE"):
        CliRunner().invoke(app.app, ["state", *command, "--conf", "local"], catch_exceptions=False)
