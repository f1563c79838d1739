"""Files of captured accesses: written whole, replaced by a micro-batch that runs again, and read as one stream."""

import shutil

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from forebay.cli import app
from forebay.errors import CorruptState, InvalidArgument, StateDirectoryError
from forebay.harness.access import DELETE, GET, MERGE, PUT
from forebay.harness.capture import SCHEMA, About, captured, read_captured, write_captured

NONE = 0


def write(directory, batch, vnode, *rows, time=0):
    """Accesses ``(operation, key, start, end, window, fired, order, line)``."""
    names = ("operation", "key", "start", "end", "window", "fired", "order", "line")
    columns = dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True))
    accesses = captured(**columns, family=[0] * len(rows), size=[8] * len(rows))
    return write_captured(directory, About(f"op of {directory.name}", batch, vnode, time), accesses)


def read(directory, vnode=None, names=("operation", "key", "start", "end")):
    table = pa.Table.from_batches(list(read_captured(directory, vnode)))
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def row(operation, key, order, start=0, end=10, window=NONE):
    return operation, key, start, end, window, False, order, 0


def ended(operation, key, line, start=0, end=10, window=NONE):
    return operation, key, start, end, window, True, end, line


def test_rows_come_as_they_arrived_then_windows_as_they_opened(tmp_path):
    write(tmp_path, 1, 0, row(MERGE, 5, 8), ended(GET, 5, 0), ended(DELETE, 5, 0), ended(GET, 3, 1), ended(DELETE, 3, 1))
    write(tmp_path, 1, 2, row(MERGE, 4, 7), ended(GET, 4, 0), ended(DELETE, 4, 0))
    write(tmp_path, 0, 0, row(MERGE, 3, 9))
    rows = [(MERGE, 3), (MERGE, 4), (MERGE, 5)]
    assert read(tmp_path, names=("operation", "key")) == [
        *rows,
        *((operation, key) for key in (3, 4, 5) for operation in (GET, DELETE)),
    ]
    assert [key for _, key in read(tmp_path, 2, ("operation", "key"))] == [4, 4, 4]


def test_time_goes_on_from_when_a_micro_batch_began(tmp_path):
    write(tmp_path, 0, 0, row(GET, 1, 5), row(PUT, 1, 5), row(GET, 2, 7), time=1000)
    write(tmp_path, 0, 2, row(GET, 3, 6), time=1003)
    write(tmp_path, 1, 0, row(GET, 1, 5), time=900)  # a clock that was set back
    assert [time for (time,) in read(tmp_path, names=("time",))] == [1000, 1000, 1001, 1002, 1002]


def test_windows_that_grow_keep_the_bounds_that_they_had_first(tmp_path):
    write(tmp_path, 0, 0, row(MERGE, 7, 1, 0, 10, window=33))
    write(tmp_path, 1, 0, row(MERGE, 7, 1, 5, 15, window=33), row(MERGE, 8, 2, 5, 15, window=34))
    write(tmp_path, 2, 0, ended(GET, 7, 0, 0, 15, window=33), ended(DELETE, 7, 0, 0, 15, window=33))
    write(tmp_path, 3, 0, row(MERGE, 7, 1, 40, 50, window=33))  # the number is used again
    bounds = [(7, 0, 10), (7, 0, 10), (8, 5, 15), (7, 0, 10), (7, 0, 10), (7, 40, 50)]
    assert read(tmp_path, names=("key", "start", "end")) == bounds


def test_a_micro_batch_that_runs_again_is_there_once(tmp_path):
    write(tmp_path, 4, 0, row(GET, 1, 0))
    write(tmp_path, 4, 0, row(GET, 1, 0), row(PUT, 1, 0))
    assert read(tmp_path, names=("operation",)) == [(GET,), (PUT,)]
    assert [path.name for path in tmp_path.iterdir()] == ["000000000004-0.arrow"]


def test_the_only_operator_is_found_and_one_of_several_must_be_named(tmp_path):
    write(tmp_path / "one", 0, 0, row(GET, 1, 0))
    assert read(tmp_path) == read(tmp_path / "one") == [(GET, 1, 0, 10)]
    write(tmp_path / "two", 0, 0, row(GET, 2, 0))
    with pytest.raises(
        InvalidArgument, match=r"(?s)2 operators; name the directory of one:.*/one: op of one.*two: op of two"
    ):
        read(tmp_path)


def test_nothing_to_read(tmp_path):
    with pytest.raises(InvalidArgument, match="no directory"):
        read(tmp_path / "none")
    with pytest.raises(InvalidArgument, match="no captured accesses"):
        read(tmp_path)
    write(tmp_path, 0, 3)
    with pytest.raises(InvalidArgument, match="nothing of the virtual node 1; it has 3"):
        read(tmp_path, 1)
    assert list(read_captured(tmp_path)) == []


@pytest.mark.parametrize("content", ["cut", "other"])
def test_a_damaged_file_is_named(tmp_path, content):
    path = write(tmp_path, 0, 0, row(GET, 1, 0))
    if content == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        other = pa.table({"a": np.arange(3)})
        with pa.ipc.new_file(path, other.schema) as writer:
            writer.write_table(other)
    with pytest.raises(CorruptState, match=r"000000000000-0\.arrow"):
        read(tmp_path)


def test_a_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StateDirectoryError, match=r"cannot be captured in .*unset spark\.forebay\.captureTrace"):
        write(tmp_path / "file" / "operator", 0, 0, row(GET, 1, 0))


def test_the_command_line_takes_a_directory(tmp_path):
    trace, other, experiment = tmp_path / "trace", tmp_path / "other", tmp_path / "experiment.toml"
    for vnode, count in ((0, 30), (2, 10)):
        rows = [access for key in range(count) for access in (row(GET, key, key), row(PUT, key, key))]
        write(trace / "operator", 0, vnode, *rows)
        write(other / "operator", 0, vnode, *rows[:20])
    experiment.write_text('workload = "aggregation"\nstores = ["dict"]\n[[source]]\nevents = 1\n')

    def invoke(*arguments):
        return CliRunner().invoke(app.app, ["harness", *map(str, arguments)], catch_exceptions=False).output

    assert "80" in invoke("analyse", trace)
    assert "20" in invoke("analyse", trace, "--vnode", 2)
    shutil.copytree(trace, tmp_path / "same")
    assert "0.00%" in invoke("analyse", trace, tmp_path / "same")
    apart = invoke("analyse", trace, other)  # half of its state keys are missing
    assert "unique sequences" in apart
    assert "0.00%" not in apart
    ran = invoke("run", experiment, "--trace", trace / "operator", "--store", "dict", "--vnode", 0)
    assert "60" in ran
    with pytest.raises(InvalidArgument, match="no virtual nodes"):
        invoke("analyse", experiment, "--vnode", 2)


def test_columns_are_those_of_the_schema():
    assert captured(**dict.fromkeys(SCHEMA.names, ())).schema.equals(SCHEMA)
