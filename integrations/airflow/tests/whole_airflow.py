"""A whole Airflow: API server, scheduler, DAG processor and triggerer, in processes of their own."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

_PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")
_AIRFLOW = (sys.executable, "-m", "airflow")


class Airflow:
    """The REST API of a running Airflow, whose users on loopback are all admins."""

    def __init__(self, url: str, home: Path) -> None:
        self.home = home
        token = httpx.get(f"{url}/auth/token").raise_for_status().json()["access_token"]
        self._http = httpx.Client(base_url=f"{url}/api/v2", headers={"Authorization": f"Bearer {token}"}, timeout=60)

    def close(self) -> None:
        self._http.close()

    def get(self, path: str) -> Any:
        return self._http.get(path).raise_for_status().json()

    def trigger(self, dag_id: str) -> str:
        """Start a DAG run, and return the path of the run."""
        started = self._http.post(f"/dags/{dag_id}/dagRuns", json={"logical_date": None}).raise_for_status()
        return f"/dags/{dag_id}/dagRuns/{started.json()['dag_run_id']}"

    def states(self, run: str) -> dict[str, str]:
        """The state of each task of a run."""
        return {task["task_id"]: task["state"] for task in self.get(f"{run}/taskInstances")["task_instances"]}

    def mark_failed(self, run: str, task_id: str) -> None:
        """End a task, as the button of the page does."""
        self._http.patch(f"{run}/taskInstances/{task_id}", json={"new_state": "failed"}).raise_for_status()

    def wait(self, reached: Callable[[], Any], patience: float = 120) -> Any:
        """Wait until a condition holds, and return its value. Fails with the last lines of each log."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if found := reached():
                return found
            time.sleep(0.3)
        raise AssertionError("\n".join((self.home / f"{part}.log").read_text()[-3000:] for part in _PARTS))


@contextmanager
def whole_airflow(home: Path, connection: str, dag_file: str) -> Iterator[Airflow]:
    """Airflow with one file of DAGs. Its processes end with the block."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_CONN_PENSTOCK_DEFAULT": connection,
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(64),
    }
    (home / "dags").mkdir(parents=True)
    (home / "dags" / "whole.py").write_text(dag_file)
    subprocess.run([*_AIRFLOW, "db", "migrate"], check=True, capture_output=True, env=environment)
    with ExitStack() as stack:
        for part in _PARTS:
            stack.enter_context(_running(part, home, environment))
        airflow = _reached(url, home)
        stack.callback(airflow.close)
        yield airflow


@contextmanager
def _running(part: str, home: Path, environment: dict[str, str]) -> Iterator[None]:
    with (home / f"{part}.log").open("wb") as output:
        process = subprocess.Popen(
            [*_AIRFLOW, part], stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            pass  # its group is killed next
        try:
            os.killpg(process.pid, signal.SIGKILL)  # workers that its end left
        except ProcessLookupError:
            pass
        process.wait(10)


def _reached(url: str, home: Path) -> Airflow:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            return Airflow(url, home)
        except httpx.HTTPError:
            time.sleep(0.3)
    raise AssertionError((home / "api-server.log").read_text()[-3000:])


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
