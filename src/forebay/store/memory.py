"""How much memory the stores of a process may take that are kept from one micro-batch to the next."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import resource
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OF_YARN = "CONTAINER_ID"
"""What YARN sets in the environment of its containers."""


@functools.cache
def for_kept_stores() -> int:
    """A quarter of the memory that there is, shared by as many processes as there are cores.

    What there is may be bounded by a container, or for the process (``spark.executor.pyspark.memory``). It is 0 in a
    container of YARN: what that may have nobody tells the process, and YARN ends it when it has more.

    Examples
    --------
    >>> 0 <= for_kept_stores() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    True
    """
    if _OF_YARN in os.environ:
        return 0
    there_is = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    bounds = [bound for name in ("memory.max", "memory/memory.limit_in_bytes") for bound in _numbers(_GROUPS / name)]
    of_all = int(min([there_is, *bounds])) // 4 // _cores()
    of_process, _ = resource.getrlimit(resource.RLIMIT_AS)
    return of_all if of_process == resource.RLIM_INFINITY else min(of_all, of_process // 4)


def _cores() -> int:
    cores = len(os.sched_getaffinity(0))
    quota, period = (*_numbers(_GROUPS / "cpu.max"), math.inf, 1)[:2]
    return max(1, min(cores, math.ceil(quota / period)) if quota < math.inf else cores)


def _numbers(path: Path) -> list[float]:
    """The numbers in a file of a control group; none if there is no such file, or no bound, which is called "max"."""
    with contextlib.suppress(OSError, ValueError):
        return [float(word) for word in path.read_text().split()]
    return []
