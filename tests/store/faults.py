"""A disk that a machine's crash can be tried on: every change of a file counts, and at a given one the machine is gone.

The file system itself is the live image. What a crash leaves is put together with the durable image, which has of a file
what it had when it was last made durable, and of a directory the names that it had then.
"""

import itertools
import os
import shutil

from forebay.store import disk

NOTHING, EVERYTHING, ANYTHING = "nothing", "everything", "anything"
"""How much of what was not made durable a crash leaves."""


class Crash(BaseException):
    """The machine is gone."""


class Disk(disk.Disk):
    """Files below a directory, with a crash at the change of that number.

    Parameters
    ----------
    root : Path
        Everything that happens below it is kept account of.
    """

    def __init__(self, root):
        self.root = root
        self.crash_at = None
        self.changes = 0
        self._numbers = itertools.count()
        self._live = {}  # path -> number of the file
        self._contents = {}  # number of a file -> bytes made durable
        self._names = {root: {}}  # directory -> {name: number of the file, None for a directory}

    def _change(self):
        """One more change, which does not happen when the machine is gone."""
        self.changes += 1
        if self.crash_at is not None and self.changes > self.crash_at:
            raise Crash

    # the changes -----------------------------------------------------------------------------------------------------

    def make_directory(self, path):
        if path.is_dir():
            return
        self.make_directory(path.parent)
        self._change()
        path.mkdir(mode=disk.PRIVATE_DIRECTORY, exist_ok=True)
        self._names.setdefault(path, {})
        self.sync_directory(path.parent)

    def create(self, path):
        self._change()
        self._live[path] = next(self._numbers)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, disk.PRIVATE_FILE)

    def write(self, descriptor, data, path):
        try:
            self._change()
        except Crash:
            if self.changes == self.crash_at + 1:
                os.write(descriptor, memoryview(data)[: len(memoryview(data)) // 2])
            raise
        assert os.write(descriptor, data) == len(memoryview(data))

    def copy(self, source, offset, length, descriptor, path):
        self._change()
        return os.copy_file_range(source, descriptor, length, offset_src=offset)

    def rename(self, path, target):
        self._change()
        path.replace(target)
        self._live[target] = self._live.pop(path)

    def unlink(self, path):
        self._change()
        path.unlink(missing_ok=True)
        self._live.pop(path, None)

    def link(self, source, target):
        self._change()
        if not target.exists():
            os.link(source, target)
            self._live[target] = self._live[source]

    def sync(self, descriptor, path):
        self._change()
        os.fsync(descriptor)
        self._contents[self._live[path]] = path.read_bytes()

    def sync_directory(self, path):
        self._change()
        self._names[path] = {entry.name: self._live.get(entry) for entry in path.iterdir()}

    # what a crash leaves ---------------------------------------------------------------------------------------------

    def image(self, target, left, pick):
        """Write what a crash now would leave of the files to another directory."""
        shutil.rmtree(target, ignore_errors=True)
        self._image(self.root, target, left, pick)

    def _image(self, directory, target, left, pick):
        target.mkdir()
        durable = self._names.get(directory, {})
        live = {entry.name: self._live.get(entry) for entry in directory.iterdir()} if directory.is_dir() else {}
        for name in sorted({*durable, *live}):
            names = {NOTHING: durable, EVERYTHING: live, ANYTHING: pick.choice([durable, live])}[left]
            if name not in names:
                continue
            number, path = names[name], directory / name
            if number is None:
                self._image(path, target / name, left, pick)
                continue
            safe = self._contents.get(number, b"")
            now = path.read_bytes() if self._live.get(path) == number else safe
            (target / name).write_bytes({NOTHING: safe, EVERYTHING: now, ANYTHING: pick.choice([safe, now])}[left])
