"""What Python runs before all else in a process that Spark starts, if the directory of this file is on its path.

Spark has such a process import pyspark from ``pyspark.zip``, where there is no bytecode. So modules are compiled each time,
which takes more than a second: in the daemon that Spark forks workers from, and, when a query starts, in the process that
tells the driver which state an operator has. A pyspark that pip has installed has the same modules beside the zip, and
bytecode of them. There the zip leaves the path.

Python runs one ``sitecustomize``. If there is another one, it runs as if this one were not there.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def is_copy(entry: str, path: list[str]) -> bool:
    """Whether an entry of a path is a zip of what pip has installed where the path leads, too: of pyspark, or of its py4j.

    Examples
    --------
    >>> is_copy("/opt/spark/python/lib/pyspark.zip", ["/opt/spark/python/lib/pyspark.zip", "/usr/lib/python3.11"])
    False
    """
    lib, name = Path(entry).parent, Path(entry).name
    package = lib.parent.parent  # pip's pyspark has python/lib/pyspark.zip
    if Path(package, "python", "lib") != lib or package.name != "pyspark":
        return False
    if package.parent.resolve() not in (Path(other).resolve() for other in path):  # Spark knows where links lead
        return False
    if name == "pyspark.zip":
        return Path(package, "__init__.py").is_file()
    return name.endswith("-src.zip") and Path(package.parent, name.replace("-src.zip", ".dist-info")).is_dir()


def customize(own: str) -> None:
    """Change the path, which has the directory of this file, and run the ``sitecustomize`` that Python would have found."""
    sys.path[:] = [entry for entry in sys.path if entry != own and not is_copy(entry, sys.path)]
    this = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = this


if str(Path(__file__).parent) in sys.path:
    customize(str(Path(__file__).parent))
