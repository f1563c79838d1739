"""Internal: where a machine keeps what was made once and is run again, such as compiled functions and Spark's classes."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def private_directory() -> Path:
    """A directory that no other user can have put anything into: what is kept there is run."""
    path = Path(tempfile.gettempdir()) / f"forebay-compiled-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} is not a directory of this user alone")
    return path
