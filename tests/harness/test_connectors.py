import sys

import pytest
from installed_stores import require

from forebay.errors import InvalidArgument, StateDirectoryError
from forebay.harness.access import MERGE, PUT, accesses
from forebay.harness.stores import STORES, Changes, find_store, open_store
from forebay.testing import ConnectorTests


class Named(ConnectorTests):
    @pytest.fixture(autouse=True)
    def _installed(self):
        require(self.name)

    def open(self, directory, memory):
        return open_store(self.name, directory, memory)


class TestDict(Named):
    name = "dict"


class TestSqlite(Named):
    name = "sqlite"


class TestLmdb(Named):
    name = "lmdb"


class TestBerkeleyDB(Named):
    name = "berkeleydb"


class TestRocksDB(Named):
    name = "rocksdb"


class TestDeleteAwareRocksDB(Named):
    name = "rocksdb-delete-aware"


class TestRedis(Named):
    name = "redis"

    def test_more_than_fits_into_memory(self, tmp_path):
        store = self.open(tmp_path, 4 << 20)
        keys = self.keys(store, *range(10_000))
        with pytest.raises(store.errors, match="used memory > 'maxmemory'"):
            for key in keys:
                store.merge(key, b"x" * 1000)
        store.close()


class TestForebayRmw(Named):
    name = "forebay-rmw"


class TestForebayAur(Named):
    name = "forebay-aur"


class TestForebayAar(Named):
    name = "forebay-aar"


def test_all_stores_are_tested():
    assert {each.name for each in Named.__subclasses__()} == set(STORES)


@pytest.mark.parametrize("name", ["berkeley", "json:Nothing", "no.such:Store", ":", ""])
def test_an_unknown_store_is_an_error(name, tmp_path):
    with pytest.raises(InvalidArgument, match=r"there is no store .*use one of dict, sqlite"):
        open_store(name, tmp_path)


def test_a_module_and_a_class_that_are_not_there_are_told_apart():
    with pytest.raises(InvalidArgument, match=r"neither this directory nor Python has a module 'no\.such'"):
        find_store("no.such:Store")
    with pytest.raises(InvalidArgument, match="the module has no 'Nothing'"):
        find_store("json:Nothing")


def test_a_store_of_ones_own_is_named_by_its_class(tmp_path):
    store = open_store("forebay.harness.stores.dictionary:Dictionary", tmp_path)
    assert store.get(b"k") is None


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("lmdb", "lmdb", "harness"),
        ("rocksdb", "rocksdict", "harness"),
        ("rocksdb-delete-aware", "rocksdict", "harness"),
        ("redis", "redis", "harness"),
        ("berkeleydb", "berkeleydb", "berkeleydb"),
    ],
)
def test_a_store_that_is_not_installed_names_the_extra(name, package, extra, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidArgument, match=rf"{name} needs {package}; .*pip install '\.\[{extra}\]'"):
        open_store(name, tmp_path)


@pytest.mark.parametrize("name", ["sqlite", "lmdb", "berkeleydb", "rocksdb", "redis"])
def test_a_store_that_cannot_use_its_directory_is_an_error(name, tmp_path):
    require(name)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StateDirectoryError, match=r"file"):
        open_store(name, tmp_path / "file")


def test_an_error_in_a_store_of_ones_own_is_left_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "wrong_store.py").write_text("class Store:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TypeError):
        open_store("wrong_store:Store", tmp_path)


def test_what_a_store_of_ones_own_lacks_is_named(tmp_path, monkeypatch):
    (tmp_path / "lacking_store.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidArgument, match="lacking_store:Store needs no_such_package; install it"):
        open_store("lacking_store:Store", tmp_path)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("put", [False, True])
def test_rocksdb_keeps_nothing_of_what_was_appended(put, batched, tmp_path):
    store, key, other = open_store("rocksdb", tmp_path), bytes(25), b"1" * 25
    for _ in range(5):
        store.merge(key, b"value")
        store.merge(other, b"value")
    if batched:
        store.write_batch(Changes({key: b"new"}, {}, []) if put else Changes({}, {}, [key]))
    elif put:
        store.put(key, b"new")
    else:
        store.delete(key)
    entries = list(store._database.keys())
    assert [each for each in entries if each.startswith(key)] == ([key] if put else [])
    assert store.get(other) == b"value" * 5
    store.close()


@pytest.mark.parametrize("name", ["rocksdb", "rocksdb-delete-aware"])
def test_rocksdb_ends_before_the_disk_is_full(name, tmp_path):
    store = open_store(name, tmp_path)
    with pytest.raises(OSError, match="MB may be needed for the next accesses, of which"):
        store.keys(accesses([(PUT, 0, 1, 0, 10, 1 << 60, 0)]))
    assert store.keys(accesses([])) == []
    store.close()


def test_aligned_windows_have_one_length(tmp_path):
    store = open_store("forebay-aar", tmp_path)
    with pytest.raises(InvalidArgument, match="all of one length"):
        store.keys(accesses([(MERGE, 0, 1, 0, 10, 1, 0), (MERGE, 0, 1, 0, 20, 1, 0)]))
    store.close()
