"""What the name of a master says of where tasks run."""

from __future__ import annotations

import os
import re

_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own process."""
    return _LOCAL.fullmatch(master) is not None


def tries_again(master: str) -> bool:
    """Whether tasks that fail are tried again: in local mode they are if the master has a number for that."""
    return not is_local(master) or "," in master


def cores_of(master: str) -> int | None:
    """How many tasks run at a time, if the master says it.

    Examples
    --------
    >>> cores_of("local[2]"), cores_of("local"), cores_of("local-cluster[3, 2, 1024]"), cores_of("yarn")
    (2, 1, 6, None)
    """
    local, cluster = _LOCAL.fullmatch(master), _LOCAL_CLUSTER.fullmatch(master)
    if local:
        return len(os.sched_getaffinity(0)) if local[1] == "*" else int(local[1] or 1)
    return int(cluster[1]) * int(cluster[2]) if cluster else None
