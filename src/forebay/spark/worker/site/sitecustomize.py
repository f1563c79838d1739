"""What Python runs before all else in a process that Spark starts, if the directory of this file is on its path.

Spark has such a process import pyspark from ``pyspark.zip``, where there is no bytecode. So modules are compiled each time,
which takes about a second: in the daemon that Spark forks workers from, and, when a query starts, in the process that tells
the driver which state an operator has. A pyspark that pip has installed has the same modules beside the zip, and bytecode of
them. Where those are what Python finds next, the zip leaves the path.

Python runs one ``sitecustomize``. If there is another one, it runs as if this one were not there.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def without_copy(path: list[str]) -> list[str]:
    """A path without the zip of the pyspark that is found there if no zip is.

    Examples
    --------
    >>> without_copy(["/opt/spark/python/lib/pyspark.zip", "/opt/modules"])  # where no pyspark is
    ['/opt/spark/python/lib/pyspark.zip', '/opt/modules']
    """
    found = PathFinder.find_spec("pyspark", [entry for entry in path if Path(entry).name != "pyspark.zip"])
    if found is None or found.origin is None:
        return path
    copy = Path(found.origin).parent.resolve() / "python" / "lib" / "pyspark.zip"
    return [entry for entry in path if Path(entry).resolve() != copy]


def customize(own: str) -> None:
    """Change the path, which has the directory of this file, and run the ``sitecustomize`` that Python would have found."""
    sys.path[:] = without_copy([entry for entry in sys.path if entry != own])
    this = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = this


if str(Path(__file__).parent) in sys.path:
    customize(str(Path(__file__).parent))
