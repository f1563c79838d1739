"""One driver at a time for a checkpoint on a local disk: forebay removes there what others seem to have left half done."""

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


def take(query: str, location: str) -> None:
    """Have no other process start a query until `release`, where its checkpoint is a local directory that can be locked.

    What is locked is the file of the checkpoint that has the query's id. A lock ends with the process.

    Parameters
    ----------
    query : str
        The query's id.
    location : str
        Its checkpoint location.

    Raises
    ------
    UnsupportedConfiguration
        If the query runs in another process.
    """
    if query not in _locks:
        descriptor = _taken(location)
        if descriptor is not None:
            _locks[query] = descriptor


def release(query: str) -> None:
    """Let other processes start a query, if this one has kept them from it."""
    _let_go(_locks.pop(query, None))


@contextlib.contextmanager
def rescaling(query: str, location: str) -> Iterator[None]:
    """Keep everybody from starting a query for a block, this process too. Nobody runs the query in this process.

    Raises
    ------
    UnsupportedConfiguration
        If the query runs in another process.
    """
    end = time.monotonic() + WAITED_SECONDS
    while query in _locks and time.monotonic() < end:  # a listener is told of a query's end after those who have stopped it
        time.sleep(0.05)
    release(query)  # of a session that was stopped before its query was
    descriptor = _taken(location)
    try:
        yield
    finally:
        _let_go(descriptor)


def _taken(location: str) -> int | None:
    """A descriptor that has the lock; None where there is nothing to lock."""
    path = local_path(location)
    if path is None:
        return None
    try:
        descriptor = os.open(path / "metadata", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # Spark says what is wrong with its checkpoint
        return None
    end = time.monotonic() + WAITED_SECONDS
    while not _locked(descriptor):
        if time.monotonic() > end:
            os.close(descriptor)
            raise UnsupportedConfiguration(
                f"the query with the checkpoint at {location} runs in another process, or is rescaled now, and its state "
                "would be damaged. Stop it there, or end that process. A query that is to run beside it needs a checkpoint "
                "location of its own."
            )
        time.sleep(0.1)
    return descriptor


def _let_go(descriptor: int | None) -> None:
    if descriptor is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # to close it is not enough where a child has it, too
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Lock a file, if no other process has; on a file system that has no locks nobody has."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
