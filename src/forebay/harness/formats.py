"""The public traces of the paper (section 3.1), whose files have no names of columns or odd ones.

A format is the settings of a `Trace`. Times are those of the files: Borg's are microseconds since ten minutes before the
trace, Azure's are seconds since its beginning, and those of the taxis are local.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forebay.errors import InvalidArgument
from forebay.harness.traces import Trace

_BORG_JOB = ("time", "missing", "job", "event", "user", "class", "name", "logical_name")
_BORG_TASK = (
    "time",
    "missing",
    "job",
    "task",
    "machine",
    "event",
    "user",
    "class",
    "priority",
    "cpu",
    "memory",
    "disk",
    "other",
)
_AZURE_VM = (
    "vm",
    "subscription",
    "deployment",
    "created",
    "deleted",
    "max_cpu",
    "mean_cpu",
    "p95_cpu",
    "category",
    "cores",
    "memory",
)
_BORG_FINISH = "4"

FORMATS: dict[str, dict[str, Any]] = {
    "borg-jobs": {"columns": _BORG_JOB, "key": "job", "time": "time", "final": ("event", _BORG_FINISH)},
    "borg-tasks": {"columns": _BORG_TASK, "key": "job", "time": "time"},
    "azure-vms": {"columns": _AZURE_VM, "key": "subscription", "time": "created", "unit": "s"},
    "taxi-pickups": {"key": "medallion", "time": "pickup_datetime"},
    "taxi-dropoffs": {"key": "medallion", "time": "dropoff_datetime"},
}
"""Google's cluster trace of 2011 (``job_events``, ``task_events``), Azure's ``vmtable`` of 2017, the TLC's files of 2013.

Files of fares have the columns of pickups. A file that is not in the order of the times that are used needs a ``bound``.
"""


def trace_of(path: Path, form: str, **settings: Any) -> Trace:
    r"""A file of a known format as a stream.

    Parameters
    ----------
    path : Path
        The file, which may be compressed.
    form : str
        One of `FORMATS`.
    **settings
        Settings of `Trace`, in place of those of the format.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "part-00000-of-00001.csv"
    >>> _ = path.write_text("600000000,,3418309,0,user,3,name,logical\n")
    >>> block = next(trace_of(path, "borg-jobs").blocks())
    >>> block.key.tolist(), block.time.tolist(), block.final.tolist()
    ([3418309], [600000000], [False])
    """
    if form not in FORMATS:
        raise InvalidArgument(f"format is {form!r}; it must be one of {', '.join(FORMATS)}")
    return Trace(path, **{**FORMATS[form], **settings})
