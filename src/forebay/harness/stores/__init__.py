"""Stores that the harness can drive, each in a short module. A store of one's own is a `Connector`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from forebay.errors import ForebayError, InvalidArgument, StateDirectoryError
from forebay.harness.stores.connector import MEMORY, Changes, Connector

__all__ = ["MEMORY", "STORES", "Changes", "Connector", "find_store", "open_store", "temporary_store", "working_directory"]

STORES = {
    "dict": ("dictionary", "Dictionary"),
    "sqlite": ("sqlite", "Sqlite"),
    "lmdb": ("lmdb_store", "Lmdb"),
    "berkeleydb": ("berkeleydb_store", "BerkeleyDB"),
    "rocksdb": ("rocksdb", "RocksDB"),
    "rocksdb-delete-aware": ("rocksdb", "DeleteAwareRocksDB"),
    "redis": ("redis_server", "Redis"),
    "forebay-rmw": ("flowkv", "ForebayRmw"),
    "forebay-aur": ("flowkv", "ForebayAur"),
    "forebay-aar": ("flowkv", "ForebayAar"),
}
"""The names of stores, with the modules and classes that connect them."""

_INSTALL = "pip install '.[harness]' in a clone of forebay"
_INSTALLS = {"berkeleydb": "apt-get install libdb-dev, then pip install '.[berkeleydb]' in a clone of forebay"}
"""What brings stores that the extra ``harness`` does not bring."""


def open_store(name: str, directory: Path, memory: int = MEMORY) -> Connector:
    """An empty store in a directory that is its own.

    Parameters
    ----------
    name : str
        One of `STORES`, or ``module:Class`` for a `Connector` of one's own.
    directory : Path
        A directory that exists and is empty.
    memory : int
        How many bytes it may take for its buffers and caches.

    Raises
    ------
    InvalidArgument
        There is no such store, or what it needs is not installed; the message names the extra that brings it.
    StateDirectoryError
        The store cannot write to the directory.

    Examples
    --------
    >>> store = open_store("dict", Path("unused"))
    >>> store.merge(b"k", b"one"); store.merge(b"k", b"two"); store.get(b"k")
    b'onetwo'
    """
    try:
        kind = find_store(name)
        return kind(directory, memory)
    except ImportError as error:
        how = _INSTALLS.get(name, _INSTALL) if name in STORES else "install it"
        lacks = error.name if isinstance(error, ModuleNotFoundError) else error
        raise InvalidArgument(f"the store {name} needs {lacks}; {how}") from error
    except ForebayError:
        raise
    except Exception as error:
        if name not in STORES and not isinstance(error, OSError):
            raise  # it is not ours to explain
        raise StateDirectoryError(f"the store {name} cannot be opened in {directory}: {error}") from error


@contextmanager
def temporary_store(name: str, memory: int = MEMORY, parent: Path | None = None) -> Iterator[tuple[Connector, Path]]:
    """An empty store, with its directory; in the end it is closed, and the directory is gone with all that it holds.

    Parameters
    ----------
    name, memory
        As in `open_store`.
    parent : Path or None
        Where the directory is made; by default where temporary files go.

    Raises
    ------
    InvalidArgument, StateDirectoryError
        As in `open_store`, or the directory cannot be made.

    Examples
    --------
    >>> with temporary_store("sqlite") as (store, directory):
    ...     store.put(b"k", b"one")
    ...     sorted(path.name for path in directory.iterdir())
    ['state.sqlite']
    >>> directory.exists()
    False
    """
    with working_directory(parent) as place:
        store = open_store(name, place, memory)
        try:
            yield store, place
        finally:
            with suppress(ForebayError, *store.errors):  # what it still has to write is not wanted
                store.close()


@contextmanager
def working_directory(parent: Path | None = None) -> Iterator[Path]:
    """An empty directory for stores, which is gone in the end; `StateDirectoryError` if it cannot be made.

    Examples
    --------
    >>> with working_directory() as place:
    ...     list(place.iterdir())
    []
    """
    try:
        made = tempfile.TemporaryDirectory(prefix="forebay-harness-", dir=parent)
    except OSError as error:
        raise StateDirectoryError(f"stores cannot work in {parent or tempfile.gettempdir()}: {error.strerror}") from error
    with made as place:
        yield Path(place)


def find_store(name: str) -> type[Connector]:
    """The class of a store, which `open_store` makes one of.

    Examples
    --------
    >>> find_store("dict").__name__
    'Dictionary'
    """
    module, _, cls = name.partition(":")
    if name in STORES:
        module, cls = f"{__name__}.{STORES[name][0]}", STORES[name][1]
    why = ""
    try:
        found: type[Connector] = getattr(import_module(module), cls)
    except ModuleNotFoundError as error:
        if error.name and not f"{module}.".startswith(f"{error.name}."):
            raise  # it is there, and needs what is not
        if cls:
            why = f": neither this directory nor Python has a module {module!r}"
    except AttributeError:
        why = f": the module has no {cls!r}"
    except ValueError:
        pass
    else:
        return found
    raise InvalidArgument(f"there is no store {name!r}{why}; use one of {', '.join(STORES)}, or module:Class")
