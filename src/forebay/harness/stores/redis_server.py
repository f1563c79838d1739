"""Redis: a server of its own, which is started with the store and ends with it.

The server listens on a socket in the store's directory, writes nothing to disk, and refuses what would not fit into its
memory.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forebay.errors import InvalidArgument
from forebay.harness.stores.connector import Changes, Connector

_SERVER = "redis-server"
_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_SOCKET_PATH = 103
"""How long the path of a socket may be, in bytes: macOS ends there, Linux at 107."""


class Redis(Connector):
    """One server, asked once for each access. A merge is Redis's own append."""

    def __init__(self, directory: Path, memory: int) -> None:
        import redis

        self.errors = (OSError, redis.RedisError)
        socket = directory.absolute() / "redis.sock"
        if len(bytes(socket)) > _SOCKET_PATH:
            raise InvalidArgument(
                f"the path {socket} is too long for a socket; let stores work in a directory nearer the root"
            )
        self._server = _start(directory.absolute(), memory)
        self.processes = (self._server.pid,)
        self._client = redis.Redis(unix_socket_path=str(socket))
        try:
            self._wait(directory / "redis.log")
        except BaseException:
            self.close()
            raise

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        value: bytes | None = self._client.get(key)  # type: ignore[assignment]  # the client may also be asynchronous
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Give a key a value."""
        self._client.set(key, value)

    def merge(self, key: bytes, value: bytes) -> None:
        """Append to the value of a key."""
        self._client.append(key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key."""
        self._client.delete(key)

    def get_batch(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """The values of keys, in one request."""
        values: Any = self._client.mget(keys) if keys else []
        return list(values)

    def write_batch(self, changes: Changes) -> None:
        """Send all changes before the first answer is read."""
        pipeline = self._client.pipeline(transaction=False)
        if changes.puts:
            pipeline.mset(changes.puts)
        for key, value in changes.merges.items():
            pipeline.append(key, value)
        if changes.deletes:
            pipeline.delete(*changes.deletes)
        for answer in pipeline.execute(raise_on_error=False):
            if isinstance(answer, Exception):
                raise answer

    def close(self) -> None:
        """End the server."""
        self._client.close()
        self._server.terminate()
        try:
            self._server.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def _wait(self, log: Path) -> None:
        import redis

        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                self._client.ping()
                return
            except redis.ConnectionError as error:
                failure: object = error
            if self._server.poll() is not None:
                failure = f"it ended with code {self._server.returncode}"
            elif time.monotonic() < until:
                time.sleep(0.01)
                continue
            said = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
            raise InvalidArgument(
                f"{_SERVER} did not start: {failure}{f'; it said {said[-1]!r}' if said else ''}; "
                f"check that '{shutil.which(_SERVER)}' runs, or install it anew (apt-get install redis-server)"
            )


def _start(directory: Path, memory: int) -> subprocess.Popen[bytes]:
    program = shutil.which(_SERVER)
    if program is None:
        raise InvalidArgument(
            f"the store redis needs the program {_SERVER}; install it, for example with 'apt-get install {_SERVER}'"
        )
    settings = {
        "port": 0,
        "unixsocket": "redis.sock",
        "dir": directory,
        "logfile": "redis.log",
        "save": "",
        "appendonly": "no",
        "maxmemory": memory,
        "maxmemory-policy": "noeviction",
    }
    command = [program, *(str(part) for name, value in settings.items() for part in (f"--{name}", value))]
    try:
        return subprocess.Popen(  # noqa: S603  # a session of its own, so that Ctrl-C reaches us alone
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        if error.filename != program:
            raise  # it is the directory
        raise InvalidArgument(
            f"{program} cannot be started: {error.strerror}; install it anew (apt-get install {_SERVER})"
        ) from error
