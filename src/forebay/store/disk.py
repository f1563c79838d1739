"""The disk that stores work on: every change of a file goes through a `Disk`, so that tests can hand in one that crashes."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from forebay.errors import StateDirectoryError
from forebay.store import filenames

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700

_NO_COPY = {errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.EPERM, errno.EBADF}
"""What ``copy_file_range`` fails with where a file system, or a container's filter of system calls, does not have it."""

_COPIED_AT_ONCE = 1 << 20


@contextlib.contextmanager
def reported(action: str, path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a `StateDirectoryError` that says what could not be done, where and why."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StateDirectoryError):
            raise
        cause = os.strerror(error.errno) if error.errno else str(error)
        raise StateDirectoryError(
            f"cannot {action} {path}: {cause}. Committed state is intact; "
            "make the directory exist, be writable and have free space, then start the query again."
        ) from error


def is_there(path: Path) -> bool:
    """Whether there is such a file; `StateDirectoryError` if that cannot be told."""
    with reported("look for", path):
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def unreadable(path: Path, error: OSError) -> StateDirectoryError:
    """The error for a file that is there, and cannot be read."""
    return StateDirectoryError(
        f"cannot read {path}: {error.strerror or error}. Have its disk mounted and the file readable for Spark's workers, "
        "then start the query again. If it is lost, restore the checkpoint together with its state directory from a copy."
    )


def is_passing(error: StateDirectoryError) -> bool:
    """Whether a file could not be read for want of memory or descriptors, which says nothing about the file."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class Disk:
    """Whole state files, durable when a call says so, with errors that name the path and the cause."""

    def make_directory(self, path: Path) -> None:
        """Make a private, durable directory, and those above it that are missing."""
        with reported("create the state directory", path):
            if path.is_dir():
                return
        self.make_directory(path.parent)
        with reported("create the state directory", path):
            path.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
        self.sync_directory(path.parent)

    def create(self, path: Path) -> int:
        """A descriptor of a new private file; one that exists already is an error, never overwritten."""
        with reported("create", path):
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)

    def write(self, descriptor: int, data: bytes | memoryview, path: Path) -> None:
        view = memoryview(data)
        with reported("write to", path):
            while len(view):
                view = view[os.write(descriptor, view) :]

    def copy(self, source: int, offset: int, length: int, descriptor: int, path: Path) -> int:
        """Append bytes of an open file, inside the kernel where the file system can do that; how many there were."""
        with reported("copy into", path):
            try:
                copied = os.copy_file_range(source, descriptor, length, offset_src=offset)
                if copied:
                    return copied
            except OSError as error:
                if error.errno not in _NO_COPY:
                    raise
            data = os.pread(source, min(length, _COPIED_AT_ONCE), offset)
        self.write(descriptor, data, path)
        return len(data)

    def put(self, path: Path, data: bytes) -> None:
        """Write a new private file and make it durable; its name is when the directory is."""
        descriptor = self.create(path)
        try:
            self.write(descriptor, data, path)
            self.sync(descriptor, path)
        finally:
            os.close(descriptor)

    def flush(self, path: Path) -> None:
        """Have a file that was put be there, to be read."""

    def publish(self, path: Path, data: bytes) -> None:
        """Write a file under a temporary name, make it durable and give it its name: it exists whole or not at all."""
        temporary = path.with_name(filenames.temporary(path.name))
        try:
            self.put(temporary, data)
            self.rename(temporary, path)
            self.sync_directory(path.parent)
        finally:
            self.unlink(temporary)

    def require(self, path: Path) -> None:
        """Publish what comes next only if this file is still there then."""

    def rename(self, path: Path, target: Path) -> None:
        with reported("rename", path):
            path.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file, whether it exists or not."""
        with reported("remove", path):
            path.unlink(missing_ok=True)

    def link(self, source: Path, target: Path) -> None:
        """Give a file that never changes a second name, durable once the directory is; a copy on another file system."""
        with reported("link", target):
            try:
                os.link(source, target)
            except FileExistsError:
                return
            except OSError:
                with source.open("rb") as original:
                    self.publish(target, original.read())

    def sync(self, descriptor: int, path: Path) -> None:
        with reported("make durable", path):
            os.fsync(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Make the names of new files in a directory durable."""
        with reported("make durable", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


LOCAL = Disk()
"""The file systems of this machine."""


class _Unsynced(Disk):
    def sync(self, descriptor: int, path: Path) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


UNSYNCED = _Unsynced()
"""The same, where nothing is made durable: for what no process after this one needs."""

_HELD_BYTES = 16 << 20
"""So much of files that were put is held in memory."""

_AT_ONCE = 16
"""File systems make many files durable together in little more time than one of them."""


class Together(Disk):
    """Makes what many stores write durable at once, in `settle`, and removes what they have removed.

    A file that is put whole is made only then, too, and what is published has its name only then: to make a name, or to
    remove one, may take a disk as long as to make what is written durable.

    Parameters
    ----------
    disk : Disk
        The disk that it is on.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note"
    >>> disk = Together()
    >>> disk.publish(path, b"safe")
    >>> path.exists(), disk.settle(), path.read_bytes()
    (False, None, b'safe')
    """

    def __init__(self, disk: Disk = LOCAL) -> None:
        self._disk = disk
        self._begin()

    def _begin(self) -> None:
        self._whole: dict[Path, bytes] = {}
        self._held = 0
        self._files: dict[Path, None] = {}
        self._names: dict[Path, Path] = {}
        self._directories: dict[Path, None] = {}
        self._removed: dict[Path, None] = {}
        self._required: dict[Path, None] = {}

    def settle(self) -> None:
        """Files first, then the names of those that were published, then directories.

        Nothing is published if a file is missing that what is published needs: what waits here may have waited for long.
        """
        whole = [functools.partial(self._disk.put, path, data) for path, data in self._whole.items()]
        files = [functools.partial(self._sync_file, path) for path in self._files]
        removed = [functools.partial(self._disk.unlink, path) for path in self._removed]
        try:
            _side_by_side([*whole, *files, *removed])
            for path in self._required:
                if not is_there(path):
                    raise StateDirectoryError(
                        f"{path} was collected before what follows from it was durable, so a newer run of the query has "
                        "overtaken this attempt, which ends; the newer run goes on."
                    )
            _side_by_side([functools.partial(self._disk.rename, temporary, path) for temporary, path in self._names.items()])
            _side_by_side([functools.partial(self._disk.sync_directory, path) for path in self._directories])
        except StateDirectoryError:
            self.abandon()
            raise
        self._begin()

    def abandon(self) -> None:
        """Remove what was written since the last `settle`: versions that were made are not made durable."""
        published = dict.fromkeys(self._names.values())  # before what they name
        with contextlib.suppress(StateDirectoryError):  # what is left over a later commit collects
            for path in {**published, **self._whole, **self._files, **self._removed}:
                self._disk.unlink(path)
        self._begin()

    def put(self, path: Path, data: bytes) -> None:
        self._whole[path] = data
        self._held += len(data)
        if self._held > _HELD_BYTES:
            for each in list(self._whole):
                self.flush(each)

    def flush(self, path: Path) -> None:
        data = self._taken(path)
        if data is not None:
            self._files[path] = None  # first: what is left of one that cannot be written goes, too
            super().put(path, data)

    def publish(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(filenames.temporary(path.name))
        self._names[temporary] = path
        self.put(temporary, data)
        self.sync_directory(path.parent)

    def require(self, path: Path) -> None:
        self._required[path] = None

    def sync(self, descriptor: int, path: Path) -> None:
        self._files[path] = None

    def sync_directory(self, path: Path) -> None:
        self._directories[path] = None

    def make_directory(self, path: Path) -> None:
        self._disk.make_directory(path)

    def create(self, path: Path) -> int:
        return self._disk.create(path)

    def write(self, descriptor: int, data: bytes | memoryview, path: Path) -> None:
        self._disk.write(descriptor, data, path)

    def copy(self, source: int, offset: int, length: int, descriptor: int, path: Path) -> int:
        return self._disk.copy(source, offset, length, descriptor, path)

    def rename(self, path: Path, target: Path) -> None:
        self._disk.rename(path, target)

    def unlink(self, path: Path) -> None:
        if self._taken(path) is None:
            self._files.pop(path, None)
            self._removed[path] = None

    def _taken(self, path: Path) -> bytes | None:
        """What is held of a file, and no longer."""
        data = self._whole.pop(path, None)
        self._held -= len(data or b"")
        return data

    def _sync_file(self, path: Path) -> None:
        with reported("make durable", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._disk.sync(descriptor, path)
            finally:
                os.close(descriptor)


def _side_by_side(actions: Sequence[Callable[[], None]]) -> None:
    """Wait for the disk in several threads."""
    if len(actions) < 2:
        for action in actions:
            action()
        return
    done = [_threads().submit(action) for action in actions]
    wait(done)
    for each in done:
        each.result()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Threads that wait for the disk; to start them costs as much as what they wait for, so a process keeps them."""
    return ThreadPoolExecutor(_AT_ONCE, "settle")


os.register_at_fork(after_in_child=_threads.cache_clear)  # threads are not forked
