"""On what machine, and with what versions, something was measured."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path

_PACKAGES = ("rocksdict", "lmdb", "redis", "berkeleydb", "pyarrow", "numpy", "numba")


def facts() -> dict[str, str]:
    """The date, forebay's version and commit, the machine, and the versions of packages that are driven.

    Examples
    --------
    >>> {"forebay", "machine", "python"} <= set(facts())
    True
    """
    known = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "forebay": _version(),
        "machine": _machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            known[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return known


def _machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        kilobytes = int(Path("/proc/meminfo").read_text().split()[1])
    except (OSError, ValueError):
        return f"{os.cpu_count()} cores, {platform.machine()}"
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} cores, {names[0] if names else platform.machine()}, {kilobytes / (1 << 20):.0f} GB of memory"


def _version() -> str:
    """The version, and the commit if it is run from a clone."""
    try:
        version = metadata.version("forebay")
    except metadata.PackageNotFoundError:
        version = "without a version"
    root = Path(__file__).parents[4]
    if not (root / ".git").exists():
        return version
    described = ["git", "-C", str(root), "describe", "--always", "--dirty=, with changes", "--exclude=*"]
    try:
        told = subprocess.run(described, capture_output=True, text=True, check=False, timeout=30)  # noqa: S603  # nothing in it comes from outside
    except (OSError, subprocess.TimeoutExpired):
        return version
    return f"{version}, commit {told.stdout.strip()}" if told.returncode == 0 else version
