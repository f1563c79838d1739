"""Stores that the harness can drive, each in a short module. A store of one's own is a `Connector`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from forebay.errors import InvalidArgument
from forebay.harness.stores.connector import MEMORY, Connector

__all__ = ["MEMORY", "STORES", "Connector", "open_store", "store_class"]

STORES = {
    "dict": ("dictionary", "Dictionary"),
    "sqlite": ("sqlite", "Sqlite"),
    "lmdb": ("lmdb_store", "Lmdb"),
    "rocksdb": ("rocksdb", "RocksDB"),
    "forebay-rmw": ("flowkv", "ForebayRmw"),
    "forebay-aur": ("flowkv", "ForebayAur"),
    "forebay-aar": ("flowkv", "ForebayAar"),
}
"""The names of stores, with the modules and classes that connect them."""


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
        There is no such store, or the package that it needs is not installed; the message names the extra that brings it.

    Examples
    --------
    >>> store = open_store("dict", Path("unused"))
    >>> store.merge(b"k", b"one"); store.merge(b"k", b"two"); store.get(b"k")
    b'onetwo'
    """
    try:
        kind = store_class(name)
        return kind(directory, memory)
    except ModuleNotFoundError as error:
        how = "pip install 'forebay[harness]'" if name in STORES else "install it"
        raise InvalidArgument(f"the store {name} needs {error.name}; {how}") from error


def store_class(name: str) -> type[Connector]:
    """The class of a store, which `open_store` makes one of.

    Examples
    --------
    >>> store_class("dict").__name__
    'Dictionary'
    """
    module, _, cls = name.partition(":")
    if name in STORES:
        module, cls = f"{__name__}.{STORES[name][0]}", STORES[name][1]
    try:
        found: type[Connector] = getattr(import_module(module), cls)
    except ModuleNotFoundError as error:
        if error.name and not f"{module}.".startswith(f"{error.name}."):
            raise  # it is there, and needs what is not
    except (AttributeError, ValueError):
        pass
    else:
        return found
    raise InvalidArgument(f"there is no store {name!r}; use one of {', '.join(STORES)}, or module:Class")
