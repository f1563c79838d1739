"""One driver at a time for a checkpoint on a local disk: forebay removes there what others seem to have left half done.

Drivers that remove nothing may be several, of which Spark lets one go on; none of them may be there in a rescale.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from forebay.errors import UnsupportedConfiguration
from forebay.state.places import local_path

WAITED_SECONDS = 5.0
"""A driver that has been told to end is given so long."""

_locks: dict[str, int] = {}


def take(query: str, location: str, *, alone: bool = True) -> None:
    """Have no other process take a query alone until `release`, where its checkpoint is a local directory with locks.

    What is locked is the file of the checkpoint that has the query's id. A lock ends with the process.

    Parameters
    ----------
    query : str
        The query's id.
    location : str
        Its checkpoint location.
    alone : bool
        Whether no other process may take it at all.

    Raises
    ------
    UnsupportedConfiguration
        If another process has taken the query, by running it or rescaling it.
    """
    path = local_path(location)
    if path is None or query in _locks:
        return
    try:
        descriptor = os.open(path / "metadata", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # Spark says what is wrong with its checkpoint
        return
    end = time.monotonic() + WAITED_SECONDS
    while not _locked(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
        if time.monotonic() > end:
            os.close(descriptor)
            raise UnsupportedConfiguration(
                f"the query with the checkpoint at {location} runs in another process, whose state would be damaged. Stop "
                "it there, or end that process. A query that is to run beside it needs a checkpoint location of its own."
            )
        time.sleep(0.1)
    _locks[query] = descriptor


def release(query: str) -> None:
    """Let other processes start a query, if this one has kept them from it."""
    descriptor = _locks.pop(query, None)
    if descriptor is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # to close it is not enough where a child has it, too
        os.close(descriptor)


@contextlib.contextmanager
def taken(query: str, location: str) -> Iterator[None]:
    """`take` a query alone for a block."""
    had = query in _locks
    take(query, location)
    try:
        yield
    finally:
        if not had:
            release(query)


def _locked(descriptor: int, lock: int) -> bool:
    """Lock a file, if no other process has; on a file system that has no locks nobody has."""
    try:
        fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
