"""Captured accesses: what live operators of forebay have asked of their state, in a directory of files.

Each file has what one virtual node did in one micro-batch, as `SCHEMA` has it, and each of an operator's files lies in the
operator's own directory. `read_captured` makes one stream of accesses of them. A file of a micro-batch that runs again takes
the place of the one before, so nothing is there twice.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.errors import CorruptState, InvalidArgument, StateDirectoryError
from forebay.harness import access
from forebay.harness import analysis_kernels as kernels
from forebay.harness.access import DELETE

Numbers = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[Any]]

SCHEMA = pa.schema(
    [
        *(access.SCHEMA.field(name) for name in ("operation", "family", "key", "start", "end", "size")),
        ("window", pa.int64()),  # tells windows apart whose bounds change, 0 where the bounds do
        ("fired", pa.bool_()),  # whether a window has ended, or a row has come
        ("order", pa.int64()),  # of rows: in which order they came, over all virtual nodes; of windows: when they end
        ("line", pa.int64()),  # what one window causes as it ends has a number in common
    ]
)

ABOUT = b"forebay captured"
"""The entry of a file's metadata that has an `About`."""

_NAME = re.compile(r"(?P<batch>\d{12})-(?P<vnode>\d+)\.arrow")


class About(NamedTuple):
    """What a file is of.

    Attributes
    ----------
    operator : str
        What the operator does, in words.
    batch, vnode : int
        The micro-batch and the virtual node.
    time : int
        When the virtual node began with it, in microseconds.
    partition : int
        The state partition.
    """

    operator: str
    batch: int
    vnode: int
    time: int
    partition: int = 0

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{self.batch:012d}-{self.vnode}.arrow"


def write_captured(directory: Path, about: About, accesses: pa.RecordBatch) -> Path:
    """Write what a virtual node did in a micro-batch, whole or not at all; what was written of that before is replaced.

    Raises
    ------
    StateDirectoryError
        The directory cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> directory = Path(tempfile.mkdtemp()) / "operator"
    >>> merge = {"operation": [2], "family": [0], "key": [7], "start": [0], "end": [10], "size": [8]}
    >>> some = captured(**merge, window=[0], fired=[False], order=[5], line=[0])
    >>> write_captured(directory, About("window(ts, 10 s)", 0, 3, time=100), some).name
    '000000000000-3.arrow'
    >>> [batch.to_pylist() for batch in read_captured(directory)]
    [[{'operation': 2, 'family': 0, 'key': 7, 'start': 0, 'end': 10, 'size': 8, 'time': 100}]]
    """
    path = directory / about.name
    temporary = directory / f".{about.name}.{secrets.token_hex(4)}.tmp"
    schema = SCHEMA.with_metadata({ABOUT: json.dumps(about._asdict()).encode()})
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            small = pa.ipc.IpcWriteOptions(compression="lz4")
            with pa.OSFile(str(temporary), "wb") as file, pa.ipc.new_file(file, schema, options=small) as writer:
                writer.write_batch(accesses)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StateDirectoryError(
            f"state accesses cannot be captured in {directory}: {error}. Free the disk or give this host write access, or "
            "unset spark.forebay.captureTrace; then start the query again."
        ) from error
    return path


def captured(**columns: Any) -> pa.RecordBatch:
    """A batch of `SCHEMA` from a column for each of its names."""
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


def read_captured(directory: Path, vnode: int | None = None) -> Iterator[pa.RecordBatch]:
    """The accesses of an operator, as record batches of `forebay.harness.access.SCHEMA`, one for each micro-batch.

    In a micro-batch those that rows have caused come first, in the order in which the rows came, then those of the windows
    that have ended, earliest first, and of those that end together the one that opened first. Windows whose bounds change
    are named by the bounds that they had first.

    Parameters
    ----------
    directory : Path
        What `spark.forebay.captureTrace` has named, if one operator was captured there; or the directory of an operator
        within it.
    vnode : int or None
        Only the accesses of this virtual node.

    Raises
    ------
    InvalidArgument
        There are no captured accesses, or those of several operators.
    """
    files: dict[int, list[Path]] = {}
    found = _files(_operator(directory))
    for path, match in found:
        if vnode is None or int(match["vnode"]) == vnode:
            files.setdefault(int(match["batch"]), []).append(path)
    if not files:
        there = ", ".join(map(str, sorted({int(match["vnode"]) for _, match in found})))
        raise InvalidArgument(f"{directory} has nothing of the virtual node {vnode}; it has {there}")
    windows, latest = _Windows(), 0
    for batch in sorted(files):
        read = [_read(path) for path in sorted(files[batch], key=lambda path: int(path.stem.partition("-")[2]))]
        columns = {name: np.concatenate([rows[name].to_numpy(False) for _, rows in read]) for name in SCHEMA.names}
        columns["vnode"] = np.repeat([about.vnode for about, _ in read], [rows.num_rows for _, rows in read])
        columns = _taken(columns, np.lexsort((columns["order"], columns["fired"])))
        if not len(columns["key"]):
            continue
        columns = _taken(columns, windows.ordered(columns))
        came = np.where(columns["fired"], -1, columns["order"])
        time = np.maximum(min(about.time for about, _ in read) + np.cumsum(np.diff(came, prepend=came[:1]) != 0), latest)
        latest = int(time[-1])
        yield pa.RecordBatch.from_arrays(
            [pa.array(time if name == "time" else columns[name]) for name in access.SCHEMA.names], schema=access.SCHEMA
        )


_STATE = ("window", "family", "key", "vnode")
"""What names a window, together with its bounds where these do not change."""


class _Windows:
    """The windows that are open: the bounds that each had first, and how many had opened before it."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, ...], tuple[int, int, int]] = {}
        self._opened = 0

    def ordered(self, columns: Columns) -> Numbers:
        """The order of a micro-batch's accesses, in which windows that end together do so in the order in which they opened.

        Windows get the bounds that they had first.
        """
        named = columns["window"] == 0
        within = np.flatnonzero(~named | (columns["start"] != 0) | (columns["end"] != 0))
        bounds = [np.where(named, columns[name], 0)[within] for name in ("start", "end")]
        which, count = kernels.numbered(*bounds)
        for name in _STATE:
            which, count = kernels.numbered(which, columns[name][within])
        first = within[np.flatnonzero(np.diff(np.maximum.accumulate(which), prepend=-1))]
        had = np.empty((count, 3), np.int64)
        states = zip(*(columns[name][first].tolist() for name in _STATE), strict=True)
        ends = np.stack([columns["start"], columns["end"]], axis=1)[first].tolist()
        gone = np.zeros(count, np.bool_)
        gone[which[columns["operation"][within] == DELETE]] = True
        for number, (state, (start, end)) in enumerate(zip(states, ends, strict=True)):
            window = state if state[0] else (*state, start, end)
            self._opened += window not in self._open
            had[number] = self._open.setdefault(window, (start, end, self._opened))
            if gone[number]:
                del self._open[window]
        columns["start"][within], columns["end"][within] = had[which, 0], had[which, 1]
        fired = np.flatnonzero(columns["fired"])
        line, lines = kernels.numbered(columns["vnode"][fired], columns["line"][fired])
        age = np.zeros(len(columns["fired"]), np.int64)
        age[within] = had[which, 2]
        oldest = np.zeros(lines, np.int64)
        np.maximum.at(oldest, line, age[fired])
        age[:] = 0
        age[fired] = oldest[line]
        return np.lexsort((age, np.where(columns["fired"], columns["order"], 0), columns["fired"]))


def _taken(columns: Columns, order: Numbers) -> Columns:
    return {name: values[order] for name, values in columns.items()}


def _files(directory: Path) -> list[tuple[Path, re.Match[str]]]:
    found = ((path, _NAME.fullmatch(path.name)) for path in directory.iterdir()) if directory.is_dir() else ()
    return [(path, match) for path, match in found if match is not None]


def _operator(directory: Path) -> Path:
    """The directory of the only operator there."""
    if not directory.is_dir():
        raise InvalidArgument(f"there is no directory {directory} of captured accesses")
    if _files(directory):
        return directory
    found = {path: files[0][0] for path in sorted(directory.iterdir()) if (files := _files(path))}
    if not found:
        raise InvalidArgument(
            f"{directory} has no captured accesses. spark.forebay.captureTrace writes them while a query runs; they are "
            "there once a micro-batch has ended."
        )
    if len(found) > 1:
        shown = "".join(f"\n  {path}: {_read(file)[0].operator}" for path, file in found.items())
        raise InvalidArgument(f"{directory} has the accesses of {len(found)} operators; name the directory of one:{shown}")
    return next(iter(found))


def _read(path: Path) -> tuple[About, pa.RecordBatch]:
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
            if not reader.schema.equals(SCHEMA):
                raise CorruptState(f"{path} has other columns than captured accesses: {', '.join(reader.schema.names)}")
            return About(**json.loads(reader.schema.metadata[ABOUT])), reader.get_batch(0)
    except (pa.ArrowInvalid, OSError, LookupError, ValueError, TypeError) as error:
        raise CorruptState(f"{path} is not a file of captured accesses, or is cut off: {error}") from error
