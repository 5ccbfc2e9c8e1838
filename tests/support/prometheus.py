"""A real Prometheus on loopback, and its tool for rules and expositions."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from support.apt import installed
from support.servers import free_port

_SECONDS = 60.0  # for a condition; no test is about time


def promtool(*arguments: str | Path, content: bytes = b"") -> subprocess.CompletedProcess[str]:
    """The result of promtool; it reads `content`."""
    line = [_program("promtool"), *map(str, arguments)]
    done = subprocess.run(line, input=content, capture_output=True, check=False)
    return subprocess.CompletedProcess(line, done.returncode, done.stdout.decode(), done.stderr.decode())


def _program(name: str) -> str:
    return installed("prometheus", lambda: shutil.which(name), "--no-install-recommends")


@dataclass(frozen=True, slots=True)
class Prometheus:
    """The HTTP API of a server."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        query = f"?{urlencode(parameters)}" if parameters else ""
        with urlopen(f"{self.url}/api/v1/{path}{query}", timeout=10) as response:
            return json.load(response)["data"]

    def values(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The present values of an expression by their labels."""
        found = self.get("query", query=expression)["result"]
        return {tuple(sorted(one["metric"].items())): float(one["value"][1]) for one in found}

    def target(self) -> Mapping[str, Any]:
        """The only target, after it was scraped."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            found = self.get("targets")["activeTargets"]
            if found and found[0]["health"] != "unknown":
                target: Mapping[str, Any] = found[0]
                return target
            time.sleep(0.05)
        raise AssertionError("the target was not scraped")


@contextmanager
def prometheus(target: str, token: str, rules: Sequence[Path] = ()) -> Iterator[Prometheus]:
    """A Prometheus that scrapes `host:port` every second with a bearer token. It leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="prometheus-") as name:
        folder, port = Path(name), free_port()
        (folder / "token").write_text(token)
        job = {
            "job_name": "penstock",
            "authorization": {"credentials_file": str(folder / "token")},
            "static_configs": [{"targets": [target]}],
        }
        every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config = {"global": every, "rule_files": [str(rule) for rule in rules], "scrape_configs": [job]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        line = [
            _program("prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(line, stdout=log, stderr=log, cwd=folder)
        try:
            server = Prometheus(f"http://127.0.0.1:{port}")
            _await_ready(server, process, folder / "log")
            yield server
        finally:
            process.terminate()
            process.wait(30)


def _await_ready(server: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(URLError, OSError), urlopen(f"{server.url}/-/ready", timeout=5):
            return
        time.sleep(0.05)
    raise AssertionError(log.read_text(errors="replace"))
