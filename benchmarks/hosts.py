"""Several hosts on one machine, for benchmarks: network namespaces on a bridge, with a Spark standalone worker in each.

    with Hosts(count=3, cores=2, memory="2g") as hosts:
        ...                     # a driver of hosts.master, on the machine itself
        hosts.kill(1)

A host has an address, 10.77.0.I, a network card that takes and gives no more than it is allowed, a share of the machine's
CPU time, so that what one host does takes nothing from the others, and a disk of its own, which all hosts see under one
path. One more host, the store, has the checkpoint, and the others mount it at one path with sshfs: so what is read from a
checkpoint, and what is written to it, goes through the cards of both. The driver is on the machine itself and has the
store's directory without a network. Source files are read from the machine's own file system by all.

It needs root, `ip` and `tc` (iproute2), `sshfs` and the SFTP server of OpenSSH. sshfs talks to that server without SSH in
between: encryption would take a share of the machine's few cores that hosts of their own would not miss.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import pyspark

NET, STORE, DRIVER = "10.77.0", 253, 254
PREFIX, BRIDGE = "fbhost", "fbhosts"
SFTP_PORT = 7022
SFTP_SERVERS = [Path(path) for path in ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server")]
BASE = Path(tempfile.gettempdir(), "forebay-hosts")
CGROUPS = {"cpu.max": Path("/sys/fs/cgroup"), "cpu.cfs_quota_us": Path("/sys/fs/cgroup/cpu")}
"""The file that bounds the CPU time of a group of processes, and where such groups are: version 2 and version 1."""
PERIOD = 100_000
"""Microseconds; of each such period a slow host may run for a part."""
PATIENCE = 120
"""Seconds until a host that has not started is taken for broken."""

SERVE = """
import socket, subprocess, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    subprocess.Popen([sys.argv[3]], stdin=connection, stdout=connection)
    connection.close()
"""
"""What the store runs: an SFTP server for each connection."""


def require() -> None:
    """End with what to do, if the machine cannot have hosts."""
    missing = [f"{program} ({package})" for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if not any(path.exists() for path in SFTP_SERVERS):
        missing.append("sftp-server (openssh-sftp-server)")
    wrong = [f"programs that are missing: {', '.join(missing)}; install the packages in brackets"] if missing else []
    if os.geteuid() != 0:
        wrong.append("network namespaces need root; run it as root")
    if not Path("/dev/fuse").exists():
        wrong.append("/dev/fuse is missing, which sshfs needs; load the kernel module fuse, or give it to the container")
    if wrong:
        raise SystemExit("hosts cannot be made here: " + "; ".join(wrong))


PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "sshfs": "sshfs",
    "nsenter": "util-linux",
    "java": "a Java runtime of version 17",
}


class Hosts:
    """A master, a store, and workers on hosts that are numbered from 1 on.

    Parameters
    ----------
    count : int
        How many hosts there are in the beginning.
    cores, memory :
        What a worker offers.
    rate : str
        What a host's network card takes, and gives, as `tc` writes it.
    share : float, optional
        How much CPU time a host has, in cores; as much as there is, unless given.
    """

    def __init__(self, count: int, cores: int, memory: str, rate: str = "1gbit", share: float | None = None) -> None:
        require()
        clean()
        self.share = share
        self.cores, self.memory, self.rate, self.count = cores, memory, rate, 0
        self.disk, self.checkpoint = BASE / "disk", BASE / "checkpoint"
        self.master, self.address = f"spark://{NET}.{DRIVER}:7077", f"{NET}.{DRIVER}"
        for directory in (self.disk, self.checkpoint):
            directory.mkdir(parents=True)
        try:
            self._begin(count)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def add(self, *, wait: bool = True) -> int:
        """Start one more host; its number."""
        self.count += 1
        i = self.count
        self._plug(i)
        (BASE / str(i) / "disk").mkdir(parents=True)
        mounts = [
            f"mount --bind {BASE / str(i) / 'disk'} {self.disk}",
            f"sshfs -o directport={SFTP_PORT},dir_cache=no,attr_timeout=0,entry_timeout=0,negative_timeout=0 "
            f"{NET}.{STORE}:{self.checkpoint} {self.checkpoint}",
        ]
        size = ["--cores", str(self.cores), "--memory", self.memory, "--work-dir", str(BASE / str(i) / "work")]
        worker = shlex.join(_spark("worker.Worker", f"{NET}.{i}", *size, self.master))
        command = ["ip", "netns", "exec", f"{PREFIX}{i}", "sh", "-ec", "\n".join([*mounts, f"exec {worker}"])]
        group = _group(i)
        if group is not None:  # it is joined outside, because a namespace has no control groups in its /sys
            group.mkdir(exist_ok=True)
            _bound(group, self.share)
            command = ["sh", "-ec", f"echo $$ > {group / 'cgroup.procs'}; exec {shlex.join(command)}"]
        self._start(str(i), command, SPARK_LOCAL_IP=f"{NET}.{i}", SPARK_LOCAL_DIRS=str(self.disk))
        if wait:
            self._registered(i)
        return i

    def kill(self, i: int) -> None:
        """SIGKILL all that runs on a host, the worker, executors, Python processes and agents."""
        while found := _pids(f"{PREFIX}{i}"):  # one of them may have started another
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def discard(self, i: int) -> None:
        """Remove the state on the disk of a host that is gone: all hosts have one disk in truth, which may become full."""
        for path in (BASE / str(i) / "disk").rglob("*.arrow"):
            path.unlink(missing_ok=True)

    def cut(self, i: int) -> None:
        """Pull the cable of a host."""
        _ip("link", "set", f"{PREFIX}{i}", "down")

    def mend(self, i: int) -> None:
        """Undo `cut`."""
        _ip("link", "set", f"{PREFIX}{i}", "up")

    def decommission(self, i: int) -> None:
        """Have the worker of a host tell its executors and the driver that it is about to go."""
        for pid in _pids(f"{PREFIX}{i}"):
            if b"deploy.worker.Worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGPWR)

    def slow(self, i: int, cores: float | None) -> None:
        """Let a host have so many cores of CPU time; without a number, its share again."""
        group = _group(i)
        if group is None:
            raise SystemExit("no control group for CPU time can be written here, so no host can be slowed down")
        _bound(group, self.share if cores is None else cores)

    def copy(self, i: int, directories: list[Path]) -> None:
        """Copy directories of the store to the disk of a host, over the network; the copies do not stay."""
        worker = next(
            pid for pid in _pids(f"{PREFIX}{i}") if b"deploy.worker.Worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        target = self.disk / "copy"
        inside = ["nsenter", "--target", str(worker), "--mount", "--net"]
        _run(*inside, "mkdir", str(target))
        _run(*inside, "cp", "-r", *map(str, directories), str(target))
        _run(*inside, "rm", "-r", str(target))

    def received(self) -> dict[int, int]:
        """Bytes that have come in at each host since it was made; the store is number `STORE`."""
        return {i: _counter(i, "tx") for i in (*range(1, self.count + 1), STORE)}

    def sent(self) -> dict[int, int]:
        """Bytes that have gone out."""
        return {i: _counter(i, "rx") for i in (*range(1, self.count + 1), STORE)}

    def log(self, i: int | str) -> str:
        """What the worker of a host, the master or the store has written."""
        return (BASE / f"{i}.log").read_text()

    def close(self) -> None:
        """End all of it, files included."""
        clean()

    def _begin(self, count: int) -> None:
        # a bridge without an address of its own takes the least one of its hosts, and they lose it when a lesser one joins
        _ip("link", "add", BRIDGE, "address", "02:00:0a:4d:00:fe", "type", "bridge")
        _ip("addr", "add", f"{self.address}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        self._plug(STORE)
        server = next(path for path in SFTP_SERVERS if path.exists())
        serve = [sys.executable, "-c", SERVE, f"{NET}.{STORE}", str(SFTP_PORT), str(server)]
        self._start("store", ["ip", "netns", "exec", f"{PREFIX}{STORE}", *serve])
        self._start("master", _spark("master.Master", self.address, "--port", "7077"), SPARK_LOCAL_IP=self.address)
        time.sleep(2)
        for i in [self.add(wait=False) for _ in range(count)]:
            self._registered(i)

    def _plug(self, i: int) -> None:
        """A namespace with a network card, shaped in both directions: what goes out is shaped inside."""
        name = f"{PREFIX}{i}"
        _ip("netns", "add", name)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", name, "master", BRIDGE, "up")
        _ip("-n", name, "addr", "add", f"{NET}.{i}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", name, "link", "set", device, "up")
        shape = ["root", "tbf", "rate", self.rate, "burst", "128kb", "latency", "50ms"]  # whole segments: they cost less CPU
        _run("tc", "qdisc", "add", "dev", name, *shape)
        _run("tc", "-n", name, "qdisc", "add", "dev", "eth0", *shape)

    def _start(self, name: str, command: list[str], **env: str) -> None:
        options = "-XX:TieredStopAtLevel=1 -Dspark.decommission.enabled=true"
        env = {**os.environ, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": options, **env}
        with (BASE / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        if name == "master":
            (BASE / "master.pid").write_text(str(process.pid))

    def _registered(self, i: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while "Successfully registered with master" not in self.log(i):
            ended = time.monotonic() > deadline - PATIENCE + 10 and not _pids(f"{PREFIX}{i}")
            if ended or time.monotonic() > deadline:
                raise SystemExit(f"the worker of host {i} has not registered: {self.log(i)[-3000:]}")
            time.sleep(0.1)


def can_bound() -> bool:
    """Whether the CPU time of hosts can be bounded on this machine."""
    return _group(0) is not None


def clean() -> None:
    """End hosts that an earlier run has left, too."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    names = [line.split()[0] for line in listed.splitlines() if line.startswith(PREFIX)]
    for name in names:
        group = _group(int(name.removeprefix(PREFIX)))
        if group is not None:
            _bound(group, None)  # what is slow takes long to end, too
    for name in sorted(names, key=lambda name: name == f"{PREFIX}{STORE}"):  # the store last: the others have it mounted
        while found := _pids(name):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        _ip("netns", "del", name, check=False)
        _ip("link", "del", name, check=False)
        group = _group(int(name.removeprefix(PREFIX)))
        if group is not None and group.exists():
            with contextlib.suppress(OSError):
                group.rmdir()
    with contextlib.suppress(OSError, ValueError):
        pid = int((BASE / "master.pid").read_text())
        if b"deploy.master.Master" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.killpg(pid, signal.SIGKILL)
    _ip("link", "del", BRIDGE, check=False)
    shutil.rmtree(BASE, ignore_errors=True)


def _spark(what: str, address: str, *arguments: str) -> list[str]:
    command = Path(pyspark.__file__).parent / "bin" / "spark-class"
    return [str(command), f"org.apache.spark.deploy.{what}", "--host", address, "--webui-port", "0", *arguments]


def _pids(namespace: str) -> list[int]:
    found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split() if not _dead(int(pid))]


def _dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _group(i: int) -> Path | None:
    """The control group of a host's processes, where CPU time can be bounded."""
    for parent in CGROUPS.values():
        version_2 = parent / "cgroup.subtree_control"
        bounds = "cpu" in version_2.read_text().split() if version_2.exists() else (parent / "cpu.cfs_quota_us").exists()
        if bounds and os.access(parent, os.W_OK):
            return parent / f"{PREFIX}{i}"
    return None


def _bound(group: Path, cores: float | None) -> None:
    microseconds = None if cores is None else int(cores * PERIOD)
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{microseconds or 'max'} {PERIOD}")
    elif group.exists():
        (group / "cpu.cfs_quota_us").write_text(str(microseconds or -1))


def _counter(i: int, direction: str) -> int:
    """The bridge's end of the cable counts: what it transmits is what the host receives."""
    try:
        return int(Path(f"/sys/class/net/{PREFIX}{i}/statistics/{direction}_bytes").read_text())
    except FileNotFoundError:
        return 0


def _ip(*arguments: str, check: bool = True) -> None:
    _run("ip", *arguments, check=check)


def _run(*command: str, check: bool = True) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr.strip()}")
