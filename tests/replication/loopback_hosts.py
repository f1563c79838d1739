"""Several hosts on one machine, without Spark: agents that are real processes, with an address and a disk each."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa

from forebay.replication import local
from forebay.replication.agent import Agent
from forebay.replication.application import Application
from forebay.replication.archive import ReplicatedArchive
from forebay.replication.manager import Manager
from forebay.store.aligned import AlignedStore
from forebay.store.filenames import Version
from forebay.store.manifest import Counters
from forebay.store.options import Options

QUERY = f"{uuid.UUID(int=1)}-{0:08x}"
LAYOUT = "0123456789ab"


class Listening(Agent):
    """An agent that keeps what it is offered."""

    def __init__(self, *args: Any) -> None:
        self.offers: list[bytes] = []
        super().__init__(*args)

    def do_exchange(self, context, descriptor, reader, writer) -> None:
        self.offers.append(descriptor.command)
        super().do_exchange(context, descriptor, reader, writer)


class Hosts:
    """A manager, and hosts 127.0.0.2, 127.0.0.3, ... that are there once they are asked for an archive."""

    def __init__(self, directory: Path, *, replicas: int = 1, uploading: bool = True, port: int = 0, partitions: int = 2):
        self.directory = directory
        self.safe = directory / "checkpoint"
        self.threads: list[Thread] = []
        self.killed: list[str] = []
        self.manager = Manager("127.0.0.1", "a secret", replicas)
        self.manager.register(QUERY, lambda vnode: vnode % partitions, self.place if uploading else None)
        self.application = Application(
            f"app-{uuid.uuid4()}", self.manager.address, "a secret", replicas, uploading=uploading, port=port
        )

    @property
    def place(self) -> tuple[str, str]:
        return str(self.safe), "forebay"

    def name(self, host: int) -> str:
        return f"127.0.0.{2 + host}"

    def disk(self, host: int) -> Path:
        disk = self.directory / f"disk-{host}"
        disk.mkdir(exist_ok=True)
        return disk

    def start(self, host: int) -> None:
        """Have the agent of a host running, as its first task would."""
        os.environ["SPARK_LOCAL_IP"] = self.name(host)
        try:
            local.agent_of.cache_clear()
            local.agent_of(self.disk(host), self.application)
        finally:
            del os.environ["SPARK_LOCAL_IP"]
        wait_for(lambda: self.name(host) in self.manager.hosts())

    def listen(self, host: int) -> Listening:
        """Run the agent of a host in this process."""
        agent = Listening(self.name(host), self.disk(host), self.application)
        self.threads.append(Thread(target=agent.run, daemon=True))
        self.threads[-1].start()
        wait_for(lambda: self.name(host) in self.manager.hosts())
        return agent

    def archive(self, host: int, instance: str = "0-00000000") -> ReplicatedArchive:
        archive = ReplicatedArchive(self.disk(host), self.application, self.place, QUERY)
        return archive.within(f"{LAYOUT}/{instance}")

    def open(self, host: int, version: Version | None, instance: str = "0-00000000") -> AlignedStore:
        """A store that works on a host."""
        directory = self.disk(host) / "work" / instance
        return AlignedStore(directory, version, ["k"], Options(), archive=self.archive(host, instance))

    def held(self, host: int, instance: str = "0-00000000") -> set[str]:
        directory = self.disk(host) / QUERY / LAYOUT / instance
        return {path.name for path in directory.iterdir()} if directory.is_dir() else set()

    def found(self, host: int) -> dict[str, Any]:
        return dict(json.loads((self.disk(host) / "agents" / f"{self.application.name}.json").read_text()))

    def pid(self, host: int) -> int:
        return int(self.found(host)["pid"])

    def address(self, host: int) -> str:
        return str(self.found(host)["address"])

    def kill(self, host: int) -> None:
        pid = self.pid(host)
        self.killed.append(self.address(host))
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not _runs(pid))

    def close(self) -> None:
        with self.manager._lock:
            for address in self.killed:  # else the manager waits until their silence has been long enough
                self.manager._forget(address)
        self.manager.end(10)
        for thread in self.threads:
            thread.join(120)
            assert not thread.is_alive(), "an agent does not end"
        for found in self.directory.glob("disk-*/agents/*.json"):
            with suppress(ProcessLookupError, KeyError, FileNotFoundError):  # an agent removes it when it ends
                os.kill(int(json.loads(found.read_text())["pid"]), signal.SIGKILL)


@contextmanager
def hosts(directory: Path, **settings: Any) -> Iterator[Hosts]:
    made = Hosts(directory, **settings)
    try:
        yield made
    finally:
        made.close()


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def append(store: AlignedStore, *numbers: int, slice_: int = 0) -> Version:
    """Commit some more rows."""
    batch = pa.record_batch({"k": [f"k{number % 7}" for number in numbers], "v": pa.array(numbers, pa.int64())})
    store.append(slice_, batch)
    before = store.base.version.number if store.base.version else 0
    return store.commit(None, Counters(), before)


def values(store: AlignedStore) -> list[int]:
    """What is in the store."""
    return sorted(value for frame in store.get_window([0]) for value in frame["v"])


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
