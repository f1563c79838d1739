"""What the operating system is told of how files that are mapped into memory will be read.

By itself it reads what lies around each page that is missing. That suits whole extents. Where a few rows of each extent are
read, it is many times what is wanted.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.store.disk import unreadable

Parts = npt.NDArray[np.int64]


def mapped(path: Path) -> pa.Buffer:
    """A file that is mapped into memory, of which nothing is read but what is touched, and what `read_ahead` asks for."""
    with pa.memory_map(str(path)) as file:
        begin = file.read_buffer(1)  # Arrow has all that it is asked for read at once; this one holds the whole map
        whole = pa.foreign_buffer(begin.address, file.size(), begin)
    _libc().madvise(whole.address, whole.size, mmap.MADV_RANDOM)
    return whole


def whole(path: Path) -> pa.Buffer:
    """A file that is mapped into memory, and is there as a whole.

    `FileNotFoundError` if there is no such file, `StateDirectoryError` if it cannot be read.
    """
    try:
        with pa.memory_map(str(path)) as file:
            found = file.read_buffer()
        require_readable(np.array([[found.address, found.size]]))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(path, error) from error
    return found


def read_ahead(parts: Parts) -> None:
    """Have parts of mapped files (rows of address and size) read from disk, side by side, before they are touched."""
    parts = _pieces(parts)
    for first in range(0, len(parts), _AT_ONCE):
        some = parts[first : first + _AT_ONCE]
        if _advise(some, mmap.MADV_WILLNEED) < 0:
            for address, size in some.tolist():
                _libc().madvise(address, size, mmap.MADV_WILLNEED)


def _advise(pages: Parts, advice: int) -> int:
    """Give advice about many parts at once; of how many bytes it was taken, -1 if this system does not know such a thing."""
    process = _itself(os.getpid())
    if process is None:
        return -1
    return int(_libc().syscall(_PROCESS_MADVISE, process, pages.ctypes.data, len(pages), advice, 0))


def require_readable(parts: Parts) -> None:
    """Have parts of mapped files (rows of address and size) be in memory; `OSError` if one of them cannot be read.

    To touch a page that the disk does not give, or that the file has no more, ends the process.
    """
    within = parts[:, 0] % mmap.PAGESIZE
    pages = np.stack([parts[:, 0] - within, parts[:, 1] + within], axis=1)
    for first in range(0, len(pages), _AT_ONCE):
        some = pages[first : first + _AT_ONCE]
        if len(some) > 1 and _advise(some, _POPULATE_READ) == some[:, 1].sum():
            continue
        for address, size in some.tolist():
            if _libc().madvise(address, size, _POPULATE_READ) and ctypes.get_errno() in _UNREADABLE:  # else Linux is too old
                raise OSError(errno.EIO, os.strerror(errno.EIO))


def _pieces(parts: Parts) -> Parts:
    """The same, as advice is taken: it is refused unless it begins with a page, and cut off where it is of too much."""
    within = parts[:, 0] % mmap.PAGESIZE
    begins, sizes = parts[:, 0] - within, parts[:, 1] + within
    if (sizes <= _MOST).all():
        return np.stack([begins, sizes], axis=1)
    counts = -(-sizes // _MOST)
    whole = np.repeat(np.arange(len(parts)), counts)
    steps = _MOST * (np.arange(len(whole)) - np.repeat(np.cumsum(counts) - counts, counts))
    return np.stack([begins[whole] + steps, np.minimum(sizes[whole] - steps, _MOST)], axis=1)


_MOST = 1 << 17
"""Bytes that every disk of Linux is asked for at once, unless that was changed."""

_POPULATE_READ = 22
"""What Linux has read at once, from 5.14 on."""
_UNREADABLE = {errno.EFAULT, errno.EIO, 133}
"""The last one is EHWPOISON: memory that is broken."""

_AT_ONCE = 1024
_PROCESS_MADVISE = 440
"""The number of a system call of Linux, the same for all processors, that takes advice about many parts at once."""


@functools.lru_cache(maxsize=1)
def _itself(process: int) -> int | None:
    """A descriptor of this process, where there is such a thing; one that was forked has another number."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):  # an old kernel, a container that does not let it, or no descriptor left
        return None


@functools.cache
def _libc() -> ctypes.CDLL:
    found = ctypes.CDLL(None, use_errno=True)
    found.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    found.syscall.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint]
    return found
