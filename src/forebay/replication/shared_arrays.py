"""Arrays in memory that one process can give to another one of its host, which then has them without copying them."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forebay.store.prepared import Array

_HEADER_BYTES = 1 << 16
_MOST_ARRAYS = 64


class SharedArrays:
    """Arrays by name, each in a file that is only in memory.

    Examples
    --------
    >>> giver, taker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    >>> shared = SharedArrays()
    >>> ours = shared.hold({"ones": np.ones((2, 3)), "none": np.zeros(0)})
    >>> shared.hold(ours)["ones"] is ours["ones"]  # it is there already
    True
    >>> shared.send(giver)
    >>> theirs = receive(taker)
    >>> theirs["ones"][1, 2] = 7
    >>> ours["ones"].tolist(), len(theirs["none"])
    ([[1.0, 1.0, 1.0], [1.0, 1.0, 7.0]], 0)
    """

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}
        self._descriptors: dict[str, int] = {}

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())

    def hold(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Hold copies of these arrays and no others; those that are held already are not copied again."""
        for name in self._arrays.keys() - arrays.keys():
            self._release(name)
        for name, array in arrays.items():
            if self._arrays.get(name) is not array:
                self._release(name)
                self._descriptors[name] = descriptor = os.memfd_create(f"forebay {name}")
                os.truncate(descriptor, max(1, array.nbytes))
                self._arrays[name] = _mapped(descriptor, array.dtype.str, array.shape, array.dtype)
                _bytes_of(self._arrays[name])[:] = _bytes_of(np.ascontiguousarray(array))
        return {name: self._arrays[name] for name in arrays}

    def send(self, connection: socket.socket) -> None:
        """Give all of them to the process at the other end, and hold none any more."""
        header = json.dumps([[name, array.dtype.str, array.shape] for name, array in self._arrays.items()])
        try:
            socket.send_fds(connection, [header.encode()], [self._descriptors[name] for name in self._arrays])
        finally:
            self.close()

    def close(self) -> None:
        """Hold none any more."""
        for name in list(self._arrays):
            self._release(name)

    def _release(self, name: str) -> None:
        if name in self._descriptors:
            os.close(self._descriptors.pop(name))
            del self._arrays[name]


def receive(connection: socket.socket) -> dict[str, Array]:
    """The arrays that the process at the other end gives, if it gives any; `OSError` if it does not answer as it should."""
    message, descriptors, _, _ = socket.recv_fds(connection, _HEADER_BYTES, _MOST_ARRAYS)
    try:
        described = json.loads(message) if message else []
        if len(described) != len(descriptors):
            raise OSError(f"{len(described)} arrays were described, and {len(descriptors)} given")
        return {name: _mapped(file, kind, shape) for (name, kind, shape), file in zip(described, descriptors, strict=True)}
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


def _mapped(descriptor: int, kind: str, shape: Sequence[int], dtype: Any = None) -> Array:
    count = int(np.prod(shape))
    size = count * np.dtype(kind).itemsize
    memory = mmap.mmap(descriptor, max(1, size))
    return np.frombuffer(memory, dtype or kind, count).reshape(shape)


def _bytes_of(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
