import pyarrow as pa
import pytest

from forebay.errors import CorruptState, InvalidArgument, StateDirectoryError
from forebay.harness.access import DELETE, GET, MERGE, PUT, SCHEMA, accesses, read, replay, state_keys, write
from forebay.harness.gadget_log import read_gadget_log

SOME = accesses([(GET, 0, 7, 0, 10, 0, 5), (PUT, 0, 7, 0, 10, 8, 5), (DELETE, 1, -3, 0, 0, 0, 6)])


def test_a_file_has_what_was_written(tmp_path):
    assert write(tmp_path / "trace.arrow", [SOME, SOME]) == 6
    assert list(read(tmp_path / "trace.arrow")) == [SOME, SOME]


def test_what_was_written_before_an_interruption_can_be_read(tmp_path):
    def batches():
        yield SOME
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "trace.arrow", batches())
    assert list(read(tmp_path / "trace.arrow")) == [SOME]


def test_files_that_are_something_else_are_errors(tmp_path):
    with pytest.raises(InvalidArgument, match="there is no trace"):
        list(read(tmp_path / "none"))
    (tmp_path / "text").write_text("hello")
    with pytest.raises(CorruptState, match="not an Arrow file"):
        list(read(tmp_path / "text"))
    with pa.OSFile(str(tmp_path / "other"), "wb") as file, pa.ipc.new_file(file, pa.schema([("n", pa.int8())])):
        pass
    with pytest.raises(InvalidArgument, match="no state accesses; it has the columns n"):
        list(read(tmp_path / "other"))
    with pytest.raises(StateDirectoryError, match="cannot be written"):
        write(tmp_path / "no" / "trace.arrow", [SOME])


def test_state_keys_are_equal_where_all_parts_are():
    rows = [(GET, 0, 7, 0, 10, 0, 5), (PUT, 0, 7, 0, 10, 8, 9), (GET, 1, 7, 0, 10, 0, 5), (GET, 0, 7, 1, 10, 0, 5)]
    first, same, *others = state_keys(accesses(rows)).to_pylist()
    assert first == same
    assert len({first, *others}) == 3


def test_a_service_rate_holds_accesses_back():
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    parts = list(replay([SOME] * 100, rate=10, clock=lambda: now[0], sleep=sleep))
    assert sum(part.num_rows for part in parts) == 300
    assert 29.8 < now[0] <= 29.9 + 1e-6
    with pytest.raises(InvalidArgument, match="service rate is -1"):
        list(replay([SOME], rate=-1))


def test_a_log_of_gadget_is_read(tmp_path):
    path = tmp_path / "gadget.log"
    lines = [
        "1 get 12 0000 g f",
        "2 merge 12 0000 g f",
        "3 seek 12 0000 g f",
        "4 delete metadata_12  g f",
        "5 put 12 00 g f",
    ]
    path.write_text("\n".join(lines) + "\n")
    (batch,) = read_gadget_log(path)
    assert batch.schema == SCHEMA
    assert batch["operation"].to_pylist() == [GET, MERGE, DELETE, PUT]
    assert batch["size"].to_pylist() == [0, 4, 0, 2]
    assert batch["time"].to_pylist() == [1, 2, 4, 5]
    key = batch["key"].to_pylist()
    assert key[0] == key[1] == key[3] != key[2]


@pytest.mark.parametrize(
    ("text", "message"), [("1 grab 1 0 g f\n", "access 1 is 'grab'; it must be one of get"), ("1 get\n", "cannot be read")]
)
def test_a_bad_log_is_an_error(tmp_path, text, message):
    (tmp_path / "gadget.log").write_text(text)
    with pytest.raises(InvalidArgument, match=message):
        list(read_gadget_log(tmp_path / "gadget.log"))
