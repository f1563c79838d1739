import sys

import pytest

from forebay.errors import InvalidArgument
from forebay.harness.access import MERGE, accesses
from forebay.harness.stores import STORES, open_store
from forebay.testing import ConnectorTests


class Named(ConnectorTests):
    def open(self, directory, memory):
        return open_store(self.name, directory, memory)


class TestDict(Named):
    name = "dict"


class TestSqlite(Named):
    name = "sqlite"


class TestLmdb(Named):
    name = "lmdb"

    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("lmdb")


class TestRocksDB(Named):
    name = "rocksdb"


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


def test_a_store_of_ones_own_is_named_by_its_class(tmp_path):
    store = open_store("forebay.harness.stores.dictionary:Dictionary", tmp_path)
    assert store.get(b"k") is None


@pytest.mark.parametrize(("name", "package"), [("lmdb", "lmdb"), ("rocksdb", "rocksdict")])
def test_a_store_that_is_not_installed_names_the_extra(name, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidArgument, match=rf"needs {package}; pip install 'forebay\[harness\]'"):
        open_store(name, tmp_path)


def test_what_a_store_of_ones_own_lacks_is_named(tmp_path, monkeypatch):
    (tmp_path / "lacking_store.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidArgument, match="lacking_store:Store needs no_such_package; install it"):
        open_store("lacking_store:Store", tmp_path)


def test_aligned_windows_have_one_length(tmp_path):
    store = open_store("forebay-aar", tmp_path)
    with pytest.raises(InvalidArgument, match="all of one length"):
        store.keys(accesses([(MERGE, 0, 1, 0, 10, 1, 0), (MERGE, 0, 1, 0, 20, 1, 0)]))
    store.close()
