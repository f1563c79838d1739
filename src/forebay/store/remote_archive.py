"""An archive on a file system that is not mounted: S3, GCS, HDFS, through `pyarrow.fs`."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from forebay.errors import StateDirectoryError, UnsupportedConfiguration
from forebay.store import filenames, paging
from forebay.store.disk import LOCAL

ATTEMPTS, PAUSE_SECONDS = 4, 0.2
"""A request that fails is made so many times in all, after pauses that double."""

_REQUESTS = 8
"""Files on their way at the same time."""

_OBJECT_STORES = {"s3", "gcs", "abfs"}
"""File systems on which a file needs no directory, and has its content when it is closed."""

_SCHEMES = {"s3a": "s3", "s3n": "s3"}
"""Schemes of Hadoop that pyarrow calls otherwise."""

Given = TypeVar("Given")


@functools.cache
def open_at(location: str) -> RemoteArchive:
    """The archive at a URL, see `forebay.store.archive.archive_at`."""
    scheme, _, rest = location.partition(":")
    shown = re.sub("//[^/@]*@", "//", location.partition("?")[0])  # without credentials
    try:
        filesystem, path = pafs.FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}:{rest}")
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).replace(rest, shown.partition(":")[2])
        raise UnsupportedConfiguration(f"state cannot be kept at {shown}: {reason}") from None
    if filesystem.type_name in _OBJECT_STORES and not path.strip("/"):
        raise UnsupportedConfiguration(f"state cannot be kept at {shown}: it names no bucket")
    return RemoteArchive(filesystem, path.rstrip("/"), scheme)


class RemoteArchive:
    """An archive on a file system that is not mounted. A file there is whole or does not exist.

    Parameters
    ----------
    filesystem : pyarrow.fs.FileSystem
        Where.
    path : str
        The directory there.
    scheme : str
        How messages name the file system.
    """

    def __init__(self, filesystem: pafs.FileSystem, path: str, scheme: str) -> None:
        self._filesystem, self._path, self._scheme = filesystem, path, scheme

    def within(self, part: str) -> RemoteArchive:
        return RemoteArchive(self._filesystem, f"{self._path}/{part}", self._scheme)

    def upload(self, directory: Path, names: Sequence[str]) -> None:
        def put(name: str) -> None:
            self._put(name, paging.whole(directory / name))

        with ThreadPoolExecutor(_REQUESTS) as requests:
            list(requests.map(put, names[:-1]))
        for name in names[-1:]:
            put(name)

    def download(self, name: str, directory: Path) -> int:
        data = self._get(name)
        LOCAL.make_directory(directory)
        LOCAL.publish(directory / name, data)
        return int(data.size)

    def write(self, name: str, data: bytes) -> None:
        self._put(name, pa.py_buffer(data))

    def read(self, name: str) -> bytes:
        return self._get(name).to_pybytes()

    def names(self) -> dict[str, float]:
        found = self._list(recursive=True)
        return {info.path.removeprefix(f"{self._path}/"): info.mtime_ns / 1e9 for info in found if info.is_file}

    def directories(self) -> list[str]:
        return [info.base_name for info in self._list(recursive=False) if info.type == pafs.FileType.Directory]

    def delete(self, names: Sequence[str]) -> None:
        def delete(name: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._request("delete", name, lambda: self._filesystem.delete_file(f"{self._path}/{name}"))

        with ThreadPoolExecutor(_REQUESTS) as requests:
            list(requests.map(delete, names))

    def __str__(self) -> str:
        return f"{self._scheme}://{self._path}"

    def _list(self, *, recursive: bool) -> list[pafs.FileInfo]:
        selector = pafs.FileSelector(self._path, allow_not_found=True, recursive=recursive)
        found: list[pafs.FileInfo] = self._request("list", "", lambda: self._filesystem.get_file_info(selector))
        return found

    def _put(self, name: str, data: pa.Buffer) -> None:
        path = f"{self._path}/{name}"
        directory, _, last = path.rpartition("/")
        temporary = f"{directory}/{filenames.temporary(last)}"

        def put() -> None:
            if self._filesystem.type_name in _OBJECT_STORES:
                self._write(path, data)
            else:
                self._filesystem.create_dir(directory, recursive=True)
                self._write(temporary, data)
                try:
                    self._rename(temporary, path, data)
                except FileNotFoundError as error:  # another writer was faster: once more
                    raise OSError(str(error)) from error

        self._request("write", name, put)

    def _write(self, path: str, data: pa.Buffer) -> None:
        with self._filesystem.open_output_stream(path) as stream:
            stream.write(data)

    def _rename(self, path: str, target: str, data: pa.Buffer) -> None:
        """Give a file its name. HDFS gives it none that another file has; whoever made that may have written the same."""
        try:
            self._filesystem.move(path, target)
        except OSError:
            if not self._filesystem.get_file_info(target).is_file:
                raise
            if self._content(target).equals(data):
                self._filesystem.delete_file(path)
            else:
                self._filesystem.delete_file(target)
                self._filesystem.move(path, target)

    def _content(self, path: str) -> pa.Buffer:
        with self._filesystem.open_input_file(path) as stream:
            return stream.read_buffer()

    def _get(self, name: str) -> pa.Buffer:
        return self._request("read", name, lambda: self._content(f"{self._path}/{name}"))

    def _request(self, action: str, name: str, request: Callable[[], Given]) -> Given:
        for pause in (*(PAUSE_SECONDS * 2**attempt for attempt in range(ATTEMPTS - 1)), None):
            try:
                return request()
            except FileNotFoundError:
                raise
            except OSError as error:
                if pause is None:
                    raise StateDirectoryError(
                        f"cannot {action} {name} of {self}, after {ATTEMPTS} attempts: {error}. "
                        "Committed state is intact; make the place reachable and writable, then start the query again."
                    ) from error
                time.sleep(pause)
        raise AssertionError
