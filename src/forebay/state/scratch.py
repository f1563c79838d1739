"""A directory for what ends with a task, and the end of those whose task was killed before it could remove its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from forebay.store.disk import reported


@contextlib.contextmanager
def scratch_in(directory: Path) -> Iterator[Path]:
    """A new directory in another one, which is removed in the end.

    Its process holds a lock on it, which ends with the process. Directories that nobody holds are removed first.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as above, scratch_in(Path(above)) as one, scratch_in(Path(above)) as other:
    ...     one.exists(), other.exists()
    (True, True)
    """
    with contextlib.ExitStack() as held:
        with reported("make a directory in", directory), _locked(directory):  # what is made is held before others look
            for left in directory.iterdir():
                with contextlib.suppress(OSError), _locked(left, fcntl.LOCK_NB):
                    shutil.rmtree(left)
            made = Path(held.enter_context(tempfile.TemporaryDirectory(dir=directory)))
            held.enter_context(_locked(made))
        yield made


@contextlib.contextmanager
def _locked(directory: Path, how: int = 0) -> Iterator[None]:
    """Hold a directory, for which other holders are waited for unless ``how`` is `fcntl.LOCK_NB`."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(descriptor)
