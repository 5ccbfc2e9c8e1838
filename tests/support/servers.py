"""Real servers for the contract tests: a PostgreSQL, and an S3 server that is atomic under races."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from support.apt import installed

_S3_PROGRAM = Path(__file__).with_name("s3_server.py")


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def postgres() -> Iterator[str]:
    """A fresh PostgreSQL in a temporary folder; yields its SQLAlchemy URL and leaves nothing behind."""
    with postgres_to_restart() as (url, _restart):
        yield url


@contextmanager
def postgres_to_restart() -> Iterator[tuple[str, Callable[[], None]]]:
    """The same, with a function that restarts it."""
    programs = installed("postgresql", _postgres_programs)
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))  # short: a socket path has at most 107 characters
    data, port = folder / "data", free_port()
    settings = (
        f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        " -c synchronous_commit=off -c full_page_writes=off -c max_connections=200"
    )
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        _as_postgres(programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        _as_postgres(programs / "pg_ctl", "-D", data, "-l", folder / "log", "-o", settings, "-w", "start")

        def restart() -> None:
            _as_postgres(programs / "pg_ctl", "-D", data, "-l", folder / "log", "-o", settings, "-m", "fast", "-w",
                         "restart")  # fmt: skip

        try:
            yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres", restart
        finally:
            _as_postgres(programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _postgres_programs() -> Path | None:
    """The newest folder that has both programs we need; Debian keeps them out of PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda bin_: int(bin_.parent.name), reverse=True)
    if on_path := shutil.which("initdb"):
        folders.append(Path(on_path).parent)
    return next((f for f in folders if (f / "initdb").exists() and (f / "pg_ctl").exists()), None)


def _as_postgres(*command: str | Path) -> None:
    """PostgreSQL refuses to run as root, so root uses the account that the package created."""
    become = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    # Output goes to a file: the server inherits a pipe, and waiting for its end would be waiting for the server.
    with tempfile.TemporaryFile() as output:
        line = [*become, *map(str, command)]
        done = subprocess.run(line, stdout=output, stderr=subprocess.STDOUT, cwd="/tmp", check=False)
        if done.returncode:
            output.seek(0)
            raise RuntimeError(f"{' '.join(line)} failed:\n{output.read().decode(errors='replace')}")


@contextmanager
def s3(*program: str, host: str = "127.0.0.1") -> Iterator[str]:
    """moto's S3 server as a process of its own, or another Python program that takes a port; yields its endpoint on
    this host. It listens at `host`."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, *(program or (str(_S3_PROGRAM),)), str(port), *(() if program else (host,))]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_it_answers(endpoint, server)
        yield endpoint
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@contextmanager
def spark_connect(
    master: str = "local[2]", python: str = sys.executable, port: int | None = None, **settings: str
) -> Iterator[str]:
    """A Spark Connect server on a master as a process of its own; yields its address."""
    import pyspark

    port = port or free_port()
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = {"spark.connect.grpc.binding.port": str(port), "spark.ui.enabled": "false", **settings}
    command = [str(submit), "--master", master, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    with tempfile.TemporaryDirectory(prefix="connect") as folder, open(f"{folder}/log", "w+b") as log:
        environment = {**os.environ, "PYSPARK_PYTHON": python}
        server = subprocess.Popen([*command, "spark-internal"], cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 120
            while not _listens(port):
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"no Spark Connect server:\n{log.read().decode(errors='replace')}")
                time.sleep(0.1)
            yield f"sc://127.0.0.1:{port}"
        finally:
            server.terminate()  # spark-submit replaces itself by the JVM
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def s3_environment(endpoint: str) -> dict[str, str]:
    """The variables by which every client finds the server."""
    return {
        "AWS_ACCESS_KEY_ID": "test-key",
        "AWS_SECRET_ACCESS_KEY": "test-secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }


def _wait_until_it_answers(endpoint: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the S3 server ended with {server.returncode} before it answered")
        with suppress(URLError, OSError), urlopen(f"{endpoint}/moto-api/", timeout=5):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the S3 server did not answer at {endpoint} within a minute")
