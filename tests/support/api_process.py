"""`penstock serve` and `penstock control serve` in processes of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.made_workspaces import remember


class ServerProcess:
    """A server that a test has started. Its log is in a file."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self.url = ""

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def await_address(self) -> None:
        """Wait until the server listens. Fails if it ends before."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if found := re.search(r'serving \S+ at ([^\s"]+)', self.log):
                self.url = found[1]
                return
            assert self.process.poll() is None, self.log
            time.sleep(0.05)
        raise AssertionError(self.log)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def api_server(workspace: Path, *options: str, **environment: str) -> Iterator[ServerProcess]:
    """`penstock serve` on a free port of loopback. It ends with the block."""
    with started(workspace, "serve", "--port", "0", *options, **environment) as server:
        server.await_address()
        yield server


@contextmanager
def started(workspace: Path, *arguments: str, **environment: str) -> Iterator[ServerProcess]:
    """A command that runs until it is stopped. It ends with the block."""
    remember(workspace)
    log = workspace / f"{'-'.join(arguments[:2]).replace('/', '_')}-{os.getpid()}-{time.monotonic_ns()}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments, "--workspace", str(workspace)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
        )
    try:
        yield ServerProcess(process, log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
