"""Spark's classes, kept in a file as a Java virtual machine has them in memory, for those that start later.

To read classes from jars, to check them and to lay them out takes a third of the time until a new process has its first
results. Java calls it class data sharing to keep the outcome, and looks itself whether a file is of the same Java and the
same jars: where it is not, the virtual machine starts without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.find_spark_home import _find_spark_home

from forebay.caches import private_directory
from forebay.errors import ForebayError

OPTIONS = "spark.driver.defaultJavaOptions"
"""The setting by which `configure` has a driver use the file. What users set of Java is in another one, and counts more."""

QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""A file that does not fit is no news for anybody: the classes are read as usual."""


class NoSharedClasses(ForebayError):
    """Java has not written the file."""


def options() -> str | None:
    """The options by which a virtual machine uses the file; None if there is none."""
    path = kept()
    return None if path is None else f'"-XX:SharedArchiveFile={path}" {QUIET}'


def kept() -> Path | None:
    """The file of this Java and this Spark."""
    places, times = _names()
    for directory in _directories():
        for path in directory.glob(f"{places}-{times}-*.jsa"):
            with contextlib.suppress(OSError):  # another process may just make a new one
                if path.stem == f"{places}-{times}-{path.stat().st_size}":  # of a part of it a virtual machine would die
                    return path
    return None


def make() -> Path:
    """Run queries in a process of its own, and have its Java write the file when it ends.

    Raises
    ------
    NoSharedClasses
        If Java is too old for it or cannot write the file.
    """
    settings = Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf"))
    if settings.is_dir() and any(settings.iterdir()):
        raise NoSharedClasses(
            f"Java cannot keep Spark's classes where {settings} has files, since it is on the path of classes; so each "
            "session reads them anew. Put Spark's settings on the builder or into PYSPARK_SUBMIT_ARGS instead."
        )
    for directory in _directories():
        with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=_made(directory), prefix="classes-") as place:
            new, (places, times) = _written(Path(place, "new.jsa")), _names()
            for old in directory.glob(f"{places}-*.jsa"):
                old.unlink(missing_ok=True)
            return new.rename(directory / f"{places}-{times}-{new.stat().st_size}.jsa")
    raise NoSharedClasses(
        "nowhere can Spark's classes be kept, so each session reads them anew. Let this user write to the package, to its "
        "home or to TMPDIR."
    )


def _written(path: Path) -> Path:
    program = [sys.executable, "-m", "forebay.spark.driver.loaded_classes", str(path)]
    env = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    ended = subprocess.run(  # noqa: S603  # nothing in it comes from outside
        program, cwd=path.parent, env=env, capture_output=True, text=True, check=False
    )
    if ended.returncode or not path.is_file():
        said = f"{ended.stdout[-500:]}{ended.stderr[-1500:]}".strip()
        raise NoSharedClasses(f"Java has not kept Spark's classes, so each session reads them anew: {said}")
    return path


_ELSEWHERE = {
    *("HADOOP_CONF_DIR", "YARN_CONF_DIR", "MASTER", "SPARK_REMOTE"),
    *("PYSPARK_SUBMIT_ARGS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"),
}
"""Variables by which queries would run, or have their files, somewhere else, or Java would have other options."""


def _directories() -> Iterator[Path]:
    """Where the file may be, as for compiled code: with the package, with the user, and for this user alone."""
    yield Path(__file__).parent / "__pycache__"
    with contextlib.suppress(RuntimeError):  # there is no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "forebay")
    with contextlib.suppress(OSError):
        yield private_directory()


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _names() -> tuple[str, str]:
    """Names that another Java or another Spark does not have: by their places, and by the times at which they came there."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(Path(home, "bin", "java") if home else "java")
    of = [path.resolve() for path in (Path(java or "java"), Path(_find_spark_home(), "jars"))]
    seconds = [int(path.stat().st_mtime) if path.exists() else 0 for path in of]  # some images keep no more of a time
    return f"spark-{_digest(of)}", _digest(seconds)


def _digest(values: list[Any]) -> str:
    return hashlib.sha256(repr(list(map(str, values))).encode()).hexdigest()[:12]
