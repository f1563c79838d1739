"""A Spark standalone cluster on this machine, whose hosts are loopback addresses with a disk each.

A test's own Spark session is local, so what runs on a cluster runs in a process of its own:

    def job(spark, cluster, rows):
        cluster.kill(0)
        return spark.range(rows).count()

    with Cluster(hosts=2, directory=tmp_path) as cluster:
        assert cluster.run(job, 100) == 100

All processes of a host have a mark in their environment, by which they are found, by whichever process looks for them.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import InitVar, dataclass, field
from pathlib import Path

import pyspark
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import forebay as fb
from forebay.spark.driver import shared_classes

MARK = "FOREBAY_TEST_HOST"
PATIENCE = 600
"""Seconds until something that does not end is taken for stuck."""

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""To compile well takes longer than a test, and many collectors of garbage more processors than there are."""

SHARED = shared_classes.options() or ""
"""A host's processes have the same jars and the same Java here."""

CONF = {
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.executor.defaultJavaOptions": SHARED,
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.decommission.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
}


@dataclass
class Cluster:
    """A master, and a worker on each host. It can be pickled, and used in the driver that it runs."""

    hosts: InitVar[int] = 3
    cores: int = 1
    memory: str = "1g"
    directory: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="forebay-cluster-"))
    master: str = ""
    """The URL that a session names as its master."""

    def __post_init__(self, hosts):
        self.directory = str(self.directory)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        self.master = f"spark://127.0.0.1:{port}"
        self._start("master", "127.0.0.1", "master.Master", "--port", str(port))
        self._registered(*[self.add(wait=False) for _ in range(hosts)])

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.close()

    @property
    def numbers(self):
        """The numbers of all hosts that have ever been started."""
        return sorted(int(path.name) for path in Path(self.directory).iterdir() if path.name.isdigit())

    @property
    def alive(self):
        """The numbers of the hosts whose worker is alive."""
        return [i for i in self.numbers if self.pids(i, "deploy.worker.Worker")]

    def host(self, i):
        """The address of a host."""
        return f"127.0.0.{i + 2}"

    def disk(self, i):
        """The directory that is the disk of a host: its processes have it as ``SPARK_LOCAL_DIRS``."""
        return Path(self.directory, str(i), "disk")

    def add(self, wait=True):
        """Start one more host; its number."""
        i = len(self.numbers)
        self.disk(i).mkdir(parents=True)
        size = ("--cores", str(self.cores), "--memory", self.memory, "--work-dir", f"{self.directory}/{i}/work")
        self._start(str(i), self.host(i), "worker.Worker", *size, self.master, SPARK_LOCAL_DIRS=str(self.disk(i)))
        if wait:
            self._registered(i)
        return i

    def pids(self, i, what=""):
        """The processes of a host (a number, or "master") whose command line has a word in it."""
        mark, found = f"{MARK}={self.directory}/{i}\0".encode(), []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (path / "environ").read_bytes() + b"\0" and what in (path / "cmdline").read_text():
                    found.append(int(path.name))
        return found

    def kill(self, i, what=""):
        """SIGKILL the worker of a host, its executors and their Python processes; or those with a word in their command."""
        while found := self.pids(i, what):  # one of them may have started another
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if what:
                return

    def freeze(self, i):
        """Stop all processes of a host, agents too: it is alive and cannot be reached, as if its cable was pulled."""
        self._signal(i, signal.SIGSTOP)

    def thaw(self, i):
        """Undo `freeze`: what was going on there goes on."""
        self._signal(i, signal.SIGCONT)

    def _signal(self, i, signal_):
        for pid in self.pids(i):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal_)

    def decommission(self, i):
        """Have the worker of a host tell its executors and the driver that it is about to go."""
        (worker,) = self.pids(i, "deploy.worker.Worker")
        os.kill(worker, signal.SIGPWR)

    def close(self):
        """End all that runs on the cluster. Files stay."""
        for i in (*self.numbers, "master"):
            self.kill(i)

    def run(self, job, *arguments, conf=None, timeout=PATIENCE):
        """What ``job(spark, cluster, *arguments)`` returns in a new process, through JSON: a driver of this cluster."""
        with tempfile.TemporaryDirectory(dir=self.directory, prefix="driver-") as directory:
            at = Path(directory)
            module = sys.modules.get(job.__module__)
            if module is not None:
                cloudpickle.register_pickle_by_value(module)
            work = (self, {**CONF, "spark.executor.memory": self.memory, **(conf or {})}, job, arguments)
            (at / "work").write_bytes(cloudpickle.dumps(work))
            paths = os.pathsep.join(path for path in sys.path if path)
            env = {**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
            with (at / "log").open("wb") as log:
                driver = subprocess.Popen(
                    [sys.executable, __file__, at], env=env, stdout=log, stderr=log, start_new_session=True
                )
            try:
                code = driver.wait(timeout)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
                sys.stdout.write((at / "log").read_text()[-20_000:])  # pytest shows it if the test fails
            if code:
                raise RuntimeError(f"the driver ended with {code}: " + (at / "log").read_text()[-3000:])
            return json.loads((at / "result").read_text())

    def _start(self, i, address, what, *arguments, **env):
        """Start a daemon with a mark of its host; its log is ``directory/i.log``."""
        command = [Path(pyspark.__file__).parent / "bin" / "spark-class", f"org.apache.spark.deploy.{what}"]
        env = {
            **os.environ,
            "SPARK_LOCAL_IP": address,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{SHARED} {SHORT_LIVED} -Dspark.decommission.enabled=true",
            MARK: f"{self.directory}/{i}",
            **env,
        }
        with Path(self.directory, f"{i}.log").open("wb") as log:
            subprocess.Popen(
                [*command, "--host", address, "--webui-port", "0", *arguments],
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _registered(self, *hosts):
        deadline = time.monotonic() + PATIENCE
        for i in hosts:
            while "Successfully registered with master" not in (text := Path(self.directory, f"{i}.log").read_text()):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"worker {i} has not registered: {text[-3000:]}")
                time.sleep(0.1)


def _drive(directory):
    cluster, conf, job, arguments = cloudpickle.loads(Path(directory, "work").read_bytes())
    builder = SparkSession.builder.master(cluster.master)
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = fb.configure(builder).getOrCreate()
    deadline = time.monotonic() + PATIENCE
    alive = len(cluster.alive)
    while len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) <= alive:  # the driver is one of them
        assert time.monotonic() < deadline, "not every host has an executor"
        time.sleep(0.1)
    Path(directory, "result").write_text(json.dumps(job(spark, cluster, *arguments)))
    spark.stop()


if __name__ == "__main__":
    _drive(sys.argv[1])
