"""A real Standalone cluster from the pip package: a master and workers on hosts of their own.

With root and `ip` each worker has a network namespace of its own, and a mount namespace in which the repository and the
driver's environment are hidden. Otherwise the workers share the host and have the addresses 127.0.0.2 and 127.0.0.3.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.servers import free_port

REPOSITORY = Path(__file__).parents[2]
_START_SECONDS = 120
# Mounts an empty folder over each path up to `--`, and then runs the rest of the arguments.
_HIDE = 'while [ "$1" != -- ]; do mount -t tmpfs none "$1" || exit 1; shift; done; shift; exec "$@"'


def can_separate_hosts() -> bool:
    """Whether this user can create network and mount namespaces."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        return False
    name = f"penstock-try-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return False
    tried = subprocess.run(
        ["ip", "netns", "exec", name, "unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        check=False,
    )
    subprocess.run(["ip", "netns", "del", name], check=False)
    return tried.returncode == 0


def executor_environment(folder: Path, *, without: Sequence[str] = ()) -> Path:
    """A virtual environment at another path with the installed packages, but without Penstock and `without`. Returns
    its interpreter. Files are hard links where possible."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    source = Path(sysconfig.get_paths()["purelib"])
    target = folder / source.relative_to(sys.prefix)
    shutil.rmtree(target)
    linked = subprocess.run(["cp", "-al", str(source), str(target)], capture_output=True, check=False)
    if linked.returncode:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, symlinks=True)
    for name in ("penstock", "_penstock", "__editable__", *without):
        for path in target.glob(f"{name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder / "bin" / "python"


@dataclass
class Host:
    """The place of one worker."""

    address: str
    enter: Sequence[str]  # the command prefix that runs a program on this host
    number: int
    worker: subprocess.Popen[bytes] | None = None

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.enter, *command], capture_output=True, text=True, check=False)


@dataclass
class Cluster:
    """A running cluster. `python` is the interpreter of the executors."""

    folder: Path
    driver: str  # the address of the driver's host that executors can reach
    python: Path
    home: Path  # Spark's home on the hosts of the workers
    separated: bool
    cores: int
    port: int
    environment: dict[str, str]
    hosts: list[Host] = field(default_factory=list)
    master: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"spark://{self.driver}:{self.port}"

    def start_master(self) -> None:
        """Start the master. It recovers from a restart, as a master in production does."""
        recovery = self.folder / "recovery"
        recovery.mkdir(exist_ok=True)
        options = (
            f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={recovery}"
            " -Dspark.worker.timeout=20"
        )
        self.master = self._launch(
            [], "master", options, "org.apache.spark.deploy.master.Master", "--host", self.driver, "--port",
            str(self.port), "--webui-port", "0",
        )  # fmt: skip
        self._wait(lambda: _listens(self.driver, self.port), "master", self.master)

    def start_worker(self, host: Host) -> None:
        host.worker = self._launch(
            host.enter, f"worker-{host.number}", "", "org.apache.spark.deploy.worker.Worker", "--host",
            host.address, "--cores", str(self.cores), "--memory", "1g", "--work-dir", str(self.work(host)),
            "--webui-port", "0", self.url, local_ip=host.address,
        )  # fmt: skip

    def work(self, host: Host) -> Path:
        """The folder with the logs of the executors of a host."""
        return self.folder / f"work-{host.number}"

    def executors(self, host: Host) -> list[int]:
        """The process ids of the executors of a host."""
        found = []
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = line.read_bytes().decode(errors="replace").split("\0")
                if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in words and host.address in words:
                    found.append(int(line.parent.name))
        return found

    def kill_executors(self, host: Host) -> int:
        """Kill the executors of a host as a lost machine would. Returns how many there were."""
        found = self.executors(host)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def kill_worker(self, host: Host) -> None:
        """Kill the worker daemon of a host; its executors end with it."""
        if host.worker is not None:
            _end(host.worker, signal.SIGKILL)
            host.worker = None

    def kill_master(self) -> None:
        if self.master is not None:
            _end(self.master, signal.SIGKILL)
            self.master = None

    def logs(self) -> str:
        """The output of the daemons and executors, for a failing test."""
        files = [*self.folder.glob("*.log"), *self.folder.glob("work-*/*/*/stderr")]
        return "\n".join(f"--- {file}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def _launch(
        self, enter: Sequence[str], name: str, options: str, *command: str, local_ip: str | None = None
    ) -> subprocess.Popen[bytes]:
        environment = {
            **self.environment,
            "SPARK_HOME": str(self.home),
            "SPARK_DAEMON_JAVA_OPTS": options,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": local_ip or self.driver,
            "SPARK_NO_DAEMONIZE": "1",
        }
        with open(self.folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                [*enter, str(self.home / "bin" / "spark-class"), *command],
                env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def _wait(self, ready: object, name: str, process: subprocess.Popen[bytes] | None) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not ready():  # type: ignore[operator]
            if time.monotonic() > deadline or (process is not None and process.poll() is not None):
                raise RuntimeError(f"the {name} did not start:\n{self.logs()}")
            time.sleep(0.1)

    def stop(self) -> None:
        for host in self.hosts:
            if host.worker is not None:
                _end(host.worker, signal.SIGTERM)
        if self.master is not None:
            _end(self.master, signal.SIGTERM)
        for host in self.hosts:
            self.kill_executors(host)


@contextmanager
def standalone(
    *, hosts: int = 2, cores: int = 1, environment: dict[str, str] | None = None, separated: bool | None = None
) -> Iterator[Cluster]:
    """A cluster with `hosts` workers. `environment` is that of the workers and of their executors; {driver} in a value
    stands for the address of the driver's host. The hosts are separated where this user can do that, unless
    `separated` decides."""
    separated = can_separate_hosts() if separated is None else separated
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        python = executor_environment(folder / "python")
        packages = folder / "python" / Path(sysconfig.get_paths()["purelib"]).relative_to(sys.prefix)
        base = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "LANG") if name in os.environ}
        driver = stack.enter_context(_bridge()) if separated else "127.0.0.1"
        given = {name: value.format(driver=driver) for name, value in (environment or {}).items()}
        cluster = Cluster(
            folder, driver, python, packages / "pyspark", separated, cores, free_port(driver),
            {**base, "HOME": str(folder), **given},
        )  # fmt: skip
        stack.callback(cluster.stop)
        cluster.start_master()
        for number in range(1, hosts + 1):
            if separated:
                host = stack.enter_context(_namespace(driver, number))
            else:
                host = Host(f"127.0.0.{number + 1}", [], number)
            cluster.hosts.append(host)
            cluster.start_worker(host)
        yield cluster


@contextmanager
def _bridge() -> Iterator[str]:
    """A network of its own for the driver, the master and the hosts; yields the driver's address in it."""
    name = f"pst{os.getpid() % 100_000}"
    address = f"10.213.{os.getpid() % 250}.1"
    _ip("link", "add", name, "type", "bridge")
    try:
        _ip("addr", "add", f"{address}/24", "dev", name)
        _ip("link", "set", name, "up")
        yield address
    finally:
        subprocess.run(["ip", "link", "del", name], check=False)


@contextmanager
def _namespace(driver: str, number: int) -> Iterator[Host]:
    space, bridge = f"pst{os.getpid()}-{number}", f"pst{os.getpid() % 100_000}"
    inside, outside = f"pi{os.getpid() % 100_000}-{number}", f"po{os.getpid() % 100_000}-{number}"
    address = driver.rpartition(".")[0] + f".{number + 1}"
    hidden = [str(REPOSITORY)] + ([] if Path(sys.prefix).is_relative_to(REPOSITORY) else [sys.prefix])
    _ip("netns", "add", space)
    try:
        _ip("link", "add", outside, "type", "veth", "peer", "name", inside)
        _ip("link", "set", inside, "netns", space)
        _ip("link", "set", outside, "master", bridge, "up")
        for command in (
            ("addr", "add", f"{address}/24", "dev", inside),
            ("link", "set", inside, "up"),
            ("link", "set", "lo", "up"),
            ("route", "add", "default", "via", driver),
        ):
            _ip("netns", "exec", space, "ip", *command)
        enter = ["ip", "netns", "exec", space, "unshare", "-m", "sh", "-c", _HIDE, "sh", *hidden, "--"]
        yield Host(address, enter, number)
    finally:
        subprocess.run(["ip", "netns", "del", space], check=False)
        subprocess.run(["ip", "link", "del", outside], capture_output=True, check=False)


def _ip(*command: str) -> None:
    done = subprocess.run(["ip", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(command)}: {done.stderr.strip()}")


def _listens(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def _end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    process.send_signal(number)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
