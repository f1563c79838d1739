"""Arrays in memory that one process can give to another one of its host, which then has them without copying them."""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from forebay.store.pictures import Array

_HEADER_BYTES = 1 << 16
_MOST_FILES = 64


class _File(NamedTuple):
    """A file that is only in memory, with some arrays one after the other."""

    descriptor: int
    arrays: dict[str, Array]


class SharedArrays:
    """Arrays by name. Those whose names begin alike, up to a dot, are in one file, and are copied together.

    Examples
    --------
    >>> giver, taker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    >>> shared = SharedArrays()
    >>> ours = shared.hold({"a.ones": np.ones((2, 3)), "a.none": np.zeros(0), "b": np.arange(4)})
    >>> again = shared.hold({**ours, "b": np.arange(5)})
    >>> again["a.ones"] is ours["a.ones"], again["b"].tolist()  # the first one was there already
    (True, [0, 1, 2, 3, 4])
    >>> shared.send(giver)
    >>> theirs = receive(taker)
    >>> theirs["a.ones"][1, 2] = 7
    >>> ours["a.ones"].tolist(), len(theirs["a.none"])
    ([[1.0, 1.0, 1.0], [1.0, 1.0, 7.0]], 0)
    """

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for file in self._files.values() for array in file.arrays.values())

    def hold(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Hold copies of these arrays and no others; those that are held already are not copied again.

        `OSError` if there can be no such files.
        """
        groups = {begin: dict(some) for begin, some in itertools.groupby(arrays.items(), lambda each: _begin(each[0]))}
        for begin in self._files.keys() - groups.keys():
            os.close(self._files.pop(begin).descriptor)
        for begin, some in groups.items():
            held = self._files.get(begin)
            if held is None or any(held.arrays.get(name) is not array for name, array in some.items()):
                self._files[begin] = _file_with(some)
                if held is not None:
                    os.close(held.descriptor)
        return {name: self._files[_begin(name)].arrays[name] for name in arrays}

    def send(self, connection: socket.socket) -> None:
        """Give all of them to the process at the other end, and hold none any more."""
        files = list(self._files.values())
        described = [[[name, array.dtype.str, array.shape] for name, array in file.arrays.items()] for file in files]
        try:
            socket.send_fds(connection, [json.dumps(described).encode()], [file.descriptor for file in files])
        finally:
            self.close()

    def close(self) -> None:
        """Hold none any more."""
        while self._files:
            os.close(self._files.popitem()[1].descriptor)


def receive(connection: socket.socket) -> dict[str, Array]:
    """The arrays that the process at the other end gives, if it gives any; `OSError` if it does not answer as it should."""
    message, descriptors, _, _ = socket.recv_fds(connection, _HEADER_BYTES, _MOST_FILES)
    try:
        described = json.loads(message) if message else []
        if len(described) != len(descriptors):
            raise OSError(f"{len(described)} files were described, and {len(descriptors)} given")
        mapped = (_mapped(file, arrays) for file, arrays in zip(descriptors, described, strict=True))
        return {name: array for arrays in mapped for name, array in arrays.items()}
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@contextlib.contextmanager
def socket_at(path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A socket, and an address for a path; that of the path itself could be longer than addresses may be."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
            yield made, f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _begin(name: str) -> str:
    return name.partition(".")[0]


def _file_with(arrays: Mapping[str, Array]) -> _File:
    """A new file with copies of arrays."""
    described = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    descriptor = os.memfd_create("forebay")
    try:
        os.truncate(descriptor, max(1, sum(_room(array.nbytes) for array in arrays.values())))
        copies = _mapped(descriptor, described)
    except BaseException:
        os.close(descriptor)
        raise
    for name, array in arrays.items():
        _bytes_of(copies[name])[:] = _bytes_of(np.ascontiguousarray(array))
        copies[name] = copies[name].view(array.dtype)
    return _File(descriptor, copies)


def _mapped(descriptor: int, described: Sequence[Sequence[Any]]) -> dict[str, Array]:
    """The arrays in a file, which are described by their names, types and shapes."""
    memory = mmap.mmap(descriptor, 0)
    arrays, offset = {}, 0
    for name, kind, shape in described:
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(memory, kind, count, offset).reshape(shape) if count else np.empty(shape, kind)
        offset += _room(arrays[name].nbytes)
    return arrays


def _room(size: int) -> int:
    """Bytes for an array of so many: each one begins at a page."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _bytes_of(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
