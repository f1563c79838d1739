"""Internal: how loops are compiled, by numba, once for each machine where that is possible."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy.typing as npt

from forebay.caches import private_directory


def compiled(function: Callable[..., Any]) -> Any:
    """A function that is compiled when it is first called, and kept on disk for the processes that come after.

    What is compiled is kept beside the module or in the user's cache directory, as numba does. Where neither can be
    written, as in many images of containers, it is kept in a directory under ``TMPDIR`` that belongs to the user alone.
    Where there is no such directory either, every process compiles for itself.

    Examples
    --------
    >>> @compiled
    ... def twice(number):
    ...     return 2 * number
    >>> twice(4)
    8
    """
    return _kept_in_mind(function, counting=True)


def in_place(function: Callable[..., Any]) -> Any:
    """As `compiled`, for a function that works on the arrays that it is given: it makes none and gives none.

    So numba need not count references to its arrays. Where one such function calls another for every row, counting takes
    several times as long as the work. numba refuses to compile a function that makes arrays after all. It does not notice if
    one returns an array that it was given: that must not be.

    Examples
    --------
    >>> import numpy as np
    >>> @in_place
    ... def double(numbers):
    ...     for place in range(len(numbers)):
    ...         numbers[place] *= 2
    >>> numbers = np.arange(3)
    >>> double(numbers)
    >>> numbers.tolist()
    [0, 2, 4]
    """
    return _kept_in_mind(function, counting=False)


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array as one that is not written to: arrays that are, and that are not, are of two types to the compiler.

    Examples
    --------
    >>> import numpy as np
    >>> read_only(np.zeros(2)).flags.writeable
    False
    """
    view = array[:]
    view.flags.writeable = False
    return view


kernels: dict[str, Any] = {}
"""What `compiled` and `in_place` have given to the modules that are loaded, by name."""


def prepare() -> None:
    """Have numba load what it needs to run any compiled function, which takes longer than most functions do.

    Examples
    --------
    >>> prepare()
    """
    _nothing()


def kept() -> set[Path | None]:
    """The directories in which what is compiled is kept; None is among them if something cannot be kept.

    Examples
    --------
    >>> import forebay.aggregates.sorting
    >>> {type(directory).__name__ for directory in kept()} <= {"PosixPath", "NoneType"}
    True
    """
    return {path and Path(path) for path in (kernel.stats.cache_path for kernel in kernels.values())}


@contextlib.contextmanager
def in_turn() -> Iterator[None]:
    """Compile alone, of this user's processes on this machine: those that wait find what the first one has kept.

    When one has done so, those that come later compile, or load what is kept, side by side.

    Examples
    --------
    >>> with in_turn():
    ...     import forebay.aggregates.sorting
    """
    try:
        lock = os.open(f"{private_directory()}/turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # each compiles for itself
        yield
        return
    try:
        with contextlib.suppress(OSError):  # some file systems know no locks
            if not os.fstat(lock).st_size:
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        with contextlib.suppress(OSError):
            os.pwrite(lock, b"done", 0)
    finally:
        os.close(lock)


def _kept_in_mind(function: Callable[..., Any], *, counting: bool) -> Any:
    kernels[f"{function.__module__}.{function.__qualname__}"] = kernel = _compiled(function, counting=counting)
    return kernel


def _compiled(function: Callable[..., Any], *, counting: bool) -> Any:
    options = {"nogil": True, "_nrt": counting}  # a function that is called takes over what is not said
    for directory in (None, private_directory):
        before = numba.config.CACHE_DIR
        try:
            if directory is not None:
                numba.config.CACHE_DIR = str(directory())
            return numba.njit(cache=True, **options)(function)
        except (RuntimeError, OSError):  # numba has found no place to keep it; or there is no private directory
            continue
        finally:
            numba.config.CACHE_DIR = before
    return numba.njit(**options)(function)


@compiled
def _nothing() -> None:
    """What `prepare` runs."""
