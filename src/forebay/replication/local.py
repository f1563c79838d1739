"""The agent of this host, as a task finds it, or starts it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from forebay.errors import ReplicationError
from forebay.replication.application import Application
from forebay.replication.holdings import KEPT_SECONDS
from forebay.replication.hostnames import own_address
from forebay.replication.protocol import Peer
from forebay.store.disk import LOCAL

START_SECONDS = 60.0
"""An agent that has not said where it listens by then has not started."""

ENDING_SECONDS = 2.0
"""An agent that was killed has its lock until the last of its threads has gone."""


@functools.lru_cache(maxsize=4)
def agent_of(disk: Path, application: Application) -> Peer:
    """The agent that works for an application on this host; it is started if there is none.

    Parameters
    ----------
    disk : Path
        The directory of this host that has what agents hold.
    application : Application
        Whom it works for.

    Raises
    ------
    ReplicationError
        If it does not start.
    """
    directory = disk / "agents"
    found = directory / f"{application.name}.json"
    try:
        LOCAL.make_directory(directory)
        agent = _running(found, application)
        if agent is None:
            with _alone(found.with_suffix(".lock")):
                agent = _running(found, application) or _started(found, disk, application)
    except OSError as error:  # there may be no room for a process, or no name server
        raise ReplicationError(f"the agent of this host cannot be started: {error}") from error
    return agent


def sweep(disk: Path) -> None:
    """Remove what agents have left that ended `KEPT_SECONDS` ago or earlier: their logs, and what told where they are."""
    for alive in (disk / "agents").glob("*.alive"):
        socket = socket_of(disk, alive.stem)
        left = [each for each in alive.parent.iterdir() if each.name.startswith(f"{alive.stem}.") or each == socket]
        with contextlib.suppress(OSError):  # another agent sweeps, too
            last = max((each.stat().st_mtime for each in left), default=time.time())
            if time.time() - last > KEPT_SECONDS and not _is_locked(alive):
                for each in left:
                    each.unlink(missing_ok=True)


def socket_of(disk: Path, application: str) -> Path:
    """Where the agent of an application listens for tasks of its host; the name is short, as that of a socket must be."""
    return disk / "agents" / f"{hashlib.sha256(application.encode()).hexdigest()[:16]}.socket"


def _running(found: Path, application: Application) -> Peer | None:
    said = _said(found)
    if said is None or "address" not in said:
        return None
    agent = Peer(said["address"], application.secret)
    try:
        agent.call("ping", seconds=5.0)
    except ReplicationError:
        return None
    return agent


def _started(found: Path, disk: Path, application: Application) -> Peer:
    alive = found.with_suffix(".alive")
    end = time.monotonic() + ENDING_SECONDS
    while _is_locked(alive) and time.monotonic() < end:
        time.sleep(0.02)
    if _is_locked(alive):
        raise ReplicationError(
            f"the agent of this host is alive and does not answer; {found.with_suffix('.log')} may say why"
        )
    found.unlink(missing_ok=True)
    log = found.with_suffix(".log")
    description = {
        "host": own_address(application.manager),
        "root": str(disk),
        "found": str(found),
        "alive": str(alive),
        "log": str(log),
        "application": asdict(application),
    }
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(  # it outlives the task, the worker and the executor
        [sys.executable, "-P", "-m", "forebay.replication.agent"],  # -P: it imports nothing from the directory it is in
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=disk,
        start_new_session=True,
    )
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(json.dumps(description).encode())
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        said = _said(found)
        if said is not None and "error" in said:
            raise ReplicationError(said["error"])
        if said is not None:
            return Peer(said["address"], application.secret)
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise ReplicationError(f"the agent of this host did not start; {log} says why. State is only safe in the checkpoint.")


def _said(found: Path) -> dict[str, Any] | None:
    try:
        said: dict[str, Any] = json.loads(found.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return said


def _is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process of this host at a time."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
