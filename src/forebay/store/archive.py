"""Archives: where the versions of stores are safe when stores work in another directory, one that may be lost.

After a commit an archive has the version's files, the manifest last. A store that is opened where its files are missing or
damaged gets them from there: the manifest at once, segments when rows in them are read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from forebay.store.disk import LOCAL, Disk, unreadable


class Archive(Protocol):
    """Files by name; the names of those further down have slashes. No file ever changes."""

    def within(self, part: str) -> Archive:
        """The archive of what lies in a directory of this one."""

    def upload(self, directory: Path, names: Sequence[str]) -> None:
        """Take files of a directory, the last one after all others; they are safe when this returns."""

    def download(self, name: str, directory: Path) -> int:
        """Put a file into a directory, whole or not at all; how many bytes came over, none if it was linked.

        `FileNotFoundError` if there is none of that name, or `VersionNotFound` where it can be said why a version is gone.
        """

    def write(self, name: str, data: bytes) -> None:
        """Make a small file; it is safe when this returns."""

    def read(self, name: str) -> bytes:
        """A small file; `FileNotFoundError` if there is none of that name."""

    def names(self) -> dict[str, float]:
        """All files, with the time at which each was written, in seconds."""

    def directories(self) -> list[str]:
        """The directories that files lie in, not those further down."""

    def delete(self, names: Sequence[str]) -> None:
        """Forget files, whether they exist or not."""


def archive_at(location: str) -> Archive:
    """The archive at a path, or at a URL that `pyarrow.fs` knows: ``s3:``, ``gs:``, ``hdfs:``.

    Parameters
    ----------
    location : str
        Parameters of the connection are in the URL's query: ``s3://bucket/state?region=eu-west-1&endpoint_override=...``.
        Credentials are those that the machine has (environment variables, profiles, roles).

    Raises
    ------
    UnsupportedConfiguration
        If nothing can be kept there.

    Examples
    --------
    >>> import tempfile
    >>> archive = archive_at(tempfile.mkdtemp()).within("0")
    >>> archive.write("note", b"safe")
    >>> list(archive.names()), archive.read("note")
    (['note'], b'safe')
    """
    if location.startswith(("/", "file:")):
        return MountedArchive(Path("/" + location.removeprefix("file:").lstrip("/")))
    from forebay.store import remote_archive  # what it imports takes as long to load as many a micro-batch

    return remote_archive.open_at(location)


class MountedArchive:
    """An archive in a directory: hard links where it is on the same file system as the store, copies where it is not."""

    def __init__(self, path: Path, disk: Disk = LOCAL) -> None:
        self._path, self._disk = path, disk

    def within(self, part: str) -> MountedArchive:
        return MountedArchive(self._path / part, self._disk)

    def upload(self, directory: Path, names: Sequence[str]) -> None:
        self._disk.make_directory(self._path)
        for name in names:
            self._disk.link(directory / name, self._path / name)
        self._disk.sync_directory(self._path)

    def download(self, name: str, directory: Path) -> int:
        data = self.read(name)
        self._disk.make_directory(directory)
        self._disk.publish(directory / name, data)
        return len(data)

    def write(self, name: str, data: bytes) -> None:
        self._disk.make_directory((self._path / name).parent)
        self._disk.publish(self._path / name, data)

    def read(self, name: str) -> bytes:
        path = self._path / name
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unreadable(path, error) from error

    def names(self) -> dict[str, float]:
        found = {}
        for directory, _, names in os.walk(self._path, onerror=self._unlisted):
            for path in (Path(directory, name) for name in names):
                with contextlib.suppress(FileNotFoundError):  # collected since it was listed
                    found[str(path.relative_to(self._path))] = path.lstat().st_mtime
        return found

    def _unlisted(self, error: OSError) -> None:
        """Pass over a directory that is not there, and over no other one that cannot be listed."""
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise unreadable(Path(error.filename), error) from error

    def directories(self) -> list[str]:
        return [path.name for path in self._path.iterdir() if path.is_dir()] if self._path.is_dir() else []

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._disk.unlink(self._path / name)

    def __str__(self) -> str:
        return str(self._path)
