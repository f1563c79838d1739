"""State at rest is read as it is: all of it when it is verified, and what Spark has committed when it is shown."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from forebay.cli.app import app
from forebay.engine.row_join import ROW
from forebay.errors import CorruptState, InvalidArgument, StateDirectoryError
from forebay.state import inspection, stored_rows, verifying
from forebay.state import layout as layouts
from forebay.state.location import Location
from forebay.state.places import Root
from forebay.store import extent_log, window_extents
from forebay.store.archive import MountedArchive
from forebay.store.disk import Together
from forebay.store.manifest import Counters
from forebay.store.options import Options
from forebay.store.unaligned import UnalignedStore
from forebay.windows import INSTANT, Lives

LAYOUT = {
    "kind": "session_window",
    "window": "session_window(ts, 1 minute)",
    "keys": ["user bigint"],
    "aggregates": {"m": {}},
    "pattern": "AUR",
    "instancesPerPartition": 1,
}


def store_at(root, retained=2):
    options = Options(retain_versions=retained)
    return UnalignedStore(Location.new(root, 0, LAYOUT).home.directory, None, options)


def put(store, keys):
    batch = pa.record_batch({"user": pa.array(keys, pa.int64()), "text": [os.urandom(500).hex() for _ in keys]})
    store.append(batch, store.index.place_merging(keys, keys, keys, keys))


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_rows_that_are_not_needed_any_more_are_verified_too(tmp_path):
    """A compaction compares the checksum of what it reads, so damage among them would stop the query later."""
    store = store_at(Root(tmp_path))
    put(store, np.arange(1000))
    store.commit()
    store.remove(store.index.live()[10:])
    store.commit()
    (operator,) = inspection.operators(Root(tmp_path))
    assert not list(verifying.verify(operator))
    largest = max(tmp_path.rglob("*.arrow"), key=lambda path: path.stat().st_size)
    assert largest.stat().st_size > 1_000_000
    flip(largest, 900_000)
    assert any(largest.name in message for _, message in verifying.verify(operator))


def test_all_instances_of_a_virtual_node_are_verified(tmp_path):
    """Two operators with the same windows, keys and aggregates share a directory."""
    for _ in range(2):
        store = store_at(Root(tmp_path))
        put(store, np.arange(10))
        store.commit()
    (operator,) = inspection.operators(Root(tmp_path))
    manifests = list(tmp_path.rglob("*.manifest"))
    assert len(manifests) == 2
    for manifest in manifests:
        flip(manifest, 40)
        assert [name for name, _ in verifying.verify(operator)] == [manifest.parent.name]
        flip(manifest, 40)


def test_what_cannot_be_read_for_want_of_room_is_no_damage_and_copies_do_not_add_up(tmp_path, monkeypatch):
    root = Root(tmp_path / "here", MountedArchive(tmp_path / "safe"))
    location = Location.new(root, 0, LAYOUT)
    store = UnalignedStore(location.home.directory, None, archive=location.home.archive)
    put(store, np.arange(100))
    store.commit()
    (operator,) = inspection.operators(Root(tmp_path / "scratch", root.archive))
    assert not list(verifying.verify(operator))
    assert not list((tmp_path / "scratch").rglob("*.arrow"))
    monkeypatch.setattr(MountedArchive, "download", lambda *_: (_ for _ in ()).throw(StateDirectoryError("no room")))
    with pytest.raises(StateDirectoryError, match="no room"):
        list(verifying.verify(operator))


def test_what_spark_has_not_committed_is_not_shown(tmp_path):
    store = store_at(Root(tmp_path))
    for batch in range(3):
        put(store, np.arange(10) + 10 * batch)
        store.commit(batch=batch)
    for committed, rows in ((None, 30), (-1, 0), (1, 20), (2, 30)):
        (operator,) = inspection.operators(Root(tmp_path), committed)
        assert sum(batch.num_rows for batch in operator.read()) == rows
    (operator,) = inspection.operators(Root(tmp_path), 1)
    (instance,) = operator.instances
    assert instance.at(2).batch == 2
    assert operator.instance(instance.name).versions == instance.versions


def test_of_valid_rows_of_a_continuous_join_no_bounds_are_shown(tmp_path):
    store, keys = store_at(Root(tmp_path)), np.arange(4)
    batch = pa.record_batch({"user": keys, INSTANT: keys, ROW: keys})
    windows = Lives("over", 10)
    store.append(batch, store.index.place_exact(keys, keys, *windows.valid(keys % 2)))
    store.append(batch, store.index.place_exact(keys, keys, *windows.waiting(keys + 15)))
    store.commit()
    (operator,) = inspection.operators(Root(tmp_path))
    bounds = [(row["start"], row["end"]) for batch in operator.read() for row in batch.to_pylist()]
    assert sum(start is not None and end is not None for start, end in bounds) == 4
    assert bounds.count((None, None)) == 4


def test_of_a_version_whose_micro_batch_is_not_known_it_is_not_said_which_left_it(tmp_path):
    store = store_at(Root(tmp_path))
    put(store, np.arange(10))
    store.commit()
    (operator,) = inspection.operators(Root(tmp_path), 7)
    (instance,) = operator.instances
    assert instance.at() is not None
    assert instance.at(5) is None


def export(location, out):
    return CliRunner().invoke(app, ["state", "export", str(location), str(out)], catch_exceptions=False)


def test_an_export_takes_the_place_of_an_earlier_one_when_it_is_whole(tmp_path, monkeypatch):
    store = store_at(Root(tmp_path / "state"))
    put(store, np.arange(10))
    store.commit()
    out = tmp_path / "out" / "rows.csv"
    out.parent.mkdir()
    out.write_text("from before")
    with monkeypatch.context() as failing:
        failing.setattr(extent_log.ExtentLog, "read", lambda *_: (_ for _ in ()).throw(StateDirectoryError("unreadable")))
        failing.setattr(UnalignedStore, "get", lambda *_: (_ for _ in ()).throw(StateDirectoryError("unreadable")))
        with pytest.raises(StateDirectoryError, match="unreadable"):
            export(tmp_path / "state", out)
    assert [(path, path.read_text()) for path in out.parent.iterdir()] == [(out, "from before")]
    export(tmp_path / "state", out)
    assert len(out.read_text().splitlines()) == 11
    directory = Path(out.parent, "it.csv")
    directory.mkdir()
    with pytest.raises(InvalidArgument, match="cannot be written"):
        export(tmp_path / "state", directory)
    assert {path.name for path in out.parent.iterdir()} == {"rows.csv", "it.csv"}


def test_what_a_stalled_attempt_has_left_is_no_damage(tmp_path, monkeypatch):
    """It publishes its version when what that needs is long gone."""
    monkeypatch.setattr(extent_log, "LEAST_COMPACTED", 0)
    monkeypatch.setattr(window_extents, "LEAST_COMPACTED", 0)
    first, disk = store_at(Root(tmp_path)), Together()
    put(first, np.arange(100))
    base = first.commit(None, None, 0)
    stalled = UnalignedStore(first.directory, base, disk=disk)
    put(stalled, np.arange(200, 210))
    stalled.commit(None, None, 1)
    other = UnalignedStore(first.directory, base)
    for number in range(1, 5):
        other.remove(other.index.live())
        put(other, np.arange(100 * number, 100 * number + 50))
        other.commit(None, None, number)
    with pytest.raises(StateDirectoryError, match="overtaken"):
        disk.settle()
    (operator,) = inspection.operators(Root(tmp_path))
    assert not list(verifying.verify(operator))


def test_an_attempt_that_has_stalled_at_the_first_micro_batch_is_not_shown(tmp_path):
    disk = Together()
    stalled = UnalignedStore(store_at(Root(tmp_path)).directory, None, disk=disk)
    put(stalled, np.arange(10))
    stalled.commit(None, None, 0)
    other = store_at(Root(tmp_path))
    for number in range(3):
        put(other, np.arange(10) + 10 * number)
        other.commit(None, None, number)
    disk.settle()
    (late,) = stalled.directory.glob("*.manifest")
    os.utime(late, (late.stat().st_mtime + 60,) * 2)
    (operator,) = inspection.operators(Root(tmp_path))
    assert sum(batch.num_rows for batch in operator.read()) == 30


def test_the_state_of_operators_that_share_a_layout_is_not_mixed(tmp_path):
    stores = [store_at(Root(tmp_path)) for _ in range(2)]
    for number in range(2):
        for place, store in enumerate(stores):
            put(store, np.arange(10) + 100 * place + 10 * number)
            store.commit(None, Counters(rows_in=17), number)
    (operator,) = inspection.operators(Root(tmp_path))
    for action in (operator.read, operator.manifests):
        with pytest.raises(InvalidArgument, match="several operators share") as raised:
            list(action())
        assert all(store.directory.name in str(raised.value) for store in stores)
    done = CliRunner().invoke(app, ["state", "list", str(tmp_path)])
    assert (done.exit_code, "cannot be told whose rows are whose" in " ".join(done.output.split())) == (0, True)
    done = CliRunner().invoke(app, ["state", "verify", str(tmp_path)])
    assert (done.exit_code, "4 versions of 1 virtual nodes" in done.output) == (0, True)
    assert sum(instance.at().counters.rows_in for instance in operator.instances) == 2 * 17


def test_a_later_layout_that_is_not_as_it_was_written_is_found(tmp_path):
    root, name = Root(tmp_path), Location.new(Root(tmp_path), 0, LAYOUT).layout
    layouts.record(root, name, layouts.history(root, name), {**LAYOUT, "aggregates": {"m": {}, "n": {}}}, since=3)
    assert [sorted(each["aggregates"]) for each in layouts.history(root, name)] == [["m"], ["m", "n"]]
    (path,) = tmp_path.rglob("layout-0001.json")
    whole = path.read_text()
    for before, after in (('"n"', '"o"'), ('"since": 3', '"since": 4'), ('"aggregates"', '"aggregatds"'), ("{", "[")):
        path.write_text(whole.replace(before, after))
        with pytest.raises(CorruptState, match=r"layout-0001\.json in .* cannot be read"):
            layouts.history(root, name)


def test_a_layout_of_an_earlier_release_has_nothing_to_compare_with(tmp_path):
    root, name = Root(tmp_path), Location.new(Root(tmp_path), 0, LAYOUT).layout
    root.safe.write(f"{name}/layout-0001.json", json.dumps({**LAYOUT, "since": 3}).encode())
    assert layouts.settled_history(root, name, 3) == [LAYOUT, LAYOUT]


def test_what_is_before_a_damaged_version_can_be_looked_at(tmp_path):
    store = store_at(Root(tmp_path), retained=5)
    for batch in range(3):
        put(store, np.arange(10) + 10 * batch)
        store.commit(batch=batch)
    damaged = max(store.directory.glob("*.manifest"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    (operator,) = inspection.operators(Root(tmp_path), 2)
    (instance,) = operator.instances
    assert instance.at(0).batch == 0
    for batch in (1, 2, None):  # it may be of one of these
        with pytest.raises(CorruptState, match=damaged.name):
            instance.at(batch)


def test_a_version_that_is_listed_and_not_there_is_not_passed_over(tmp_path):
    store = store_at(Root(tmp_path))
    for batch in range(3):
        put(store, np.arange(10) + 10 * batch)
        store.commit(batch=batch)
    newest = max(store.directory.glob("*.manifest"))
    newest.unlink()
    newest.symlink_to("nowhere")
    (operator,) = inspection.operators(Root(tmp_path))
    with pytest.raises(CorruptState, match="is listed, and is not there"):
        operator.chosen()


def test_a_version_that_was_collected_is_not_taken_for_state_that_is_not_there_yet(tmp_path):
    store = store_at(Root(tmp_path))
    for batch in range(9):
        put(store, np.arange(10) + 10 * batch)
        store.commit(batch=batch)
    (operator,) = inspection.operators(Root(tmp_path), 0)
    with pytest.raises(InvalidArgument, match="no version of micro-batch 0 any more"):
        operator.chosen()


def test_which_operators_there_are_is_told(tmp_path):
    for layout in (LAYOUT, LAYOUT | {"window": "session_window(ts, 2 minutes)"}):
        UnalignedStore(Location.new(Root(tmp_path), 0, layout).home.directory, None).commit()
    operators = inspection.operators(Root(tmp_path))
    ids = ", ".join(operator.id for operator in operators)
    with pytest.raises(InvalidArgument, match=f"several operators; give one of these as --operator, .*: {ids}"):
        inspection.one(operators, None)
    with pytest.raises(InvalidArgument, match="no operator 'x'; give"):
        inspection.one(operators, "x")
    assert inspection.one(operators, operators[1].id) is operators[1]


def test_a_large_window_is_read_in_parts_and_written_in_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_rows, "_READ_BYTES", 10_000)
    store, one = store_at(Root(tmp_path / "state")), np.zeros(1, np.int64)
    for _ in range(5):
        for _ in range(20):
            put(store, one)
        store.commit()
    put(store, np.array([7, 8]))
    store.commit()
    with inspection.opened(str(tmp_path / "state")) as (operator,):
        sizes = [batch.num_rows for batch in operator.read()]
    assert sum(sizes) == 102
    assert max(sizes) < 100
    export(tmp_path / "state", tmp_path / "rows.parquet")
    assert parquet.read_metadata(tmp_path / "rows.parquet").num_row_groups == 1
    assert sorted(parquet.read_table(tmp_path / "rows.parquet")["user"].to_pylist()) == [0] * 100 + [7, 8]
    shown = CliRunner().invoke(app, ["state", "read", str(tmp_path / "state"), "--rows", "3"])
    assert shown.output.count("1970-01-01") == 6
