import os

import pytest
from installed_stores import require

from forebay.errors import InvalidArgument
from forebay.harness.access import PUT, accesses
from forebay.harness.evaluator import evaluate
from forebay.harness.stores import open_store


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a program in the place of the server."""

    def put(text):
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "redis-server").write_text(text)
        (tmp_path / "bin" / "redis-server").chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    return put


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_server_ends_with_the_store(tmp_path):
    require("redis")
    store = open_store("redis", tmp_path)
    (process,) = store.processes
    assert is_running(process)
    store.close()
    assert not is_running(process)


def test_the_memory_of_the_server_counts_and_its_disk_stays_empty(tmp_path):
    require("redis")
    store = open_store("redis", tmp_path)
    batch = accesses([(PUT, 0, key, 0, 10, 20_000, 0) for key in range(2000)])
    sample = evaluate(store, [batch], directory=tmp_path).samples[-1]
    store.close()
    assert sample.memory > 35_000_000
    assert sample.disk < 100_000


def test_two_servers_do_not_meet(tmp_path):
    require("redis")
    stores = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        stores.append(open_store("redis", tmp_path / name))
    stores[0].put(b"key", b"value")
    assert stores[1].get(b"key") is None
    for store in stores:
        store.close()


def test_a_server_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidArgument, match=r"needs the program redis-server; .*apt-get install redis-server"):
        open_store("redis", tmp_path)


def test_a_server_that_ends_at_once_is_an_error_with_what_it_said(tmp_path, program):
    program("#!/bin/sh\necho 'cannot allocate' > redis.log\nexit 3\n")
    said = r"did not start: it ended with code 3; it said 'cannot allocate'; .*apt-get install"
    with pytest.raises(InvalidArgument, match=said):
        open_store("redis", tmp_path)


def test_a_server_that_cannot_be_run_is_an_error(tmp_path, program):
    program("not a program")
    with pytest.raises(InvalidArgument, match=r"redis-server cannot be started: .*apt-get install redis-server"):
        open_store("redis", tmp_path)


def test_a_server_that_does_not_listen_is_an_error_and_is_ended(tmp_path, program, monkeypatch):
    monkeypatch.setattr("forebay.harness.stores.redis_server._START_SECONDS", 0.5)
    program("#!/bin/sh\necho $$ > pid\nexec sleep 600\n")
    with pytest.raises(InvalidArgument, match=r"did not start: Error 2 connecting"):
        open_store("redis", tmp_path)
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_path_too_long_for_a_socket_is_an_error(tmp_path):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with pytest.raises(InvalidArgument, match=r"too long for a socket"):
        open_store("redis", deep)
