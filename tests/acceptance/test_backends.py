"""The same run on the production backends: PostgreSQL for state, a Standalone cluster for Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from penstock.lifecycle import PartitionStatus
from penstock.partition import new_ulid
from support.workspaces import customer_id, key, open_at, rows_by_partition, run, write_workspace


def test_a_workspace_on_postgresql_behaves_like_one_on_sqlite(tmp_path: Path, spark: Any, postgres_url: str) -> None:
    schema = f"w_{new_ulid().lower()}"
    faults = [{"fault": "duplicate_key", "customer": customer_id(2)}]
    ws = open_at(write_workspace(tmp_path, customers=3, faults=faults, state=postgres_url, schema=schema))
    first = run(ws, spark)
    assert (first.accepted, first.rejected, first.loaded) == (4, 2, 4)
    ws.context.database.close()
    ws = open_at(
        write_workspace(tmp_path, customers=3, faults=[{"fault": "zero_rows"}], state=postgres_url, schema=schema)
    )
    assert run(ws, spark, reprocess=True).rejected == 4
    rows = rows_by_partition(ws)
    assert {k.customer_id for k in rows} == {customer_id(1), customer_id(3)}
    assert {row["_run_id"] for found in rows.values() for row in found} == {first.run_id}
    state = ws.context.state.state(key(1))
    assert state is not None
    assert (state.status, state.attempt_count) == (PartitionStatus.SUCCESS, 2)
    ws.context.database.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A real Standalone cluster on loopback: a master and a worker with two cores."""
    home = Path(pyspark.__file__).parent
    launcher = home / "bin" / "spark-class"
    log = tmp_path / "master.log"
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, target: Path, *arguments: str) -> None:
        command = [
            str(launcher),
            f"org.apache.spark.deploy.{name}",
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            *arguments,
        ]
        with target.open("wb") as out:
            environment = {
                "SPARK_HOME": str(home),
                "PATH": os.environ["PATH"],
                "SPARK_LOCAL_IP": "127.0.0.1",
            }
            started.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment))

    try:
        start("master.Master", log, "--port", "0")
        master = _wait_for(r"Starting Spark master at (spark://\S+)", log)
        worker_log = tmp_path / "worker.log"
        start(
            "worker.Worker", worker_log, "--cores", "2", "--memory", "2g", "--work-dir", str(tmp_path / "work"), master
        )
        _wait_for(r"(Successfully registered with master)", worker_log)
        yield master
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(30)


def test_a_run_on_a_standalone_cluster_brings_its_own_package(tmp_path: Path, cluster: str) -> None:
    """In a process of its own: a Spark session belongs to one master for life."""
    folder = write_workspace(tmp_path / "workspace", customers=2, master=cluster, python=Path(sys.executable))
    script = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "from penstock.pipeline import load\n"
        "from support.workspaces import open_at, rows_by_partition, run\n"
        "load._LOCAL_BYTES = -1  # however little there is to load: by the cluster's workers\n"
        "ws = open_at(Path(sys.argv[1]))\n"
        "summary = run(ws, None)\n"
        "rows = rows_by_partition(ws)\n"
        "print(summary.accepted, summary.loaded, sum(len(found) for found in rows.values()))\n"
    )
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder), tests], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.stdout.split() == ["4", "4", "20"], done.stderr


def _wait_for(pattern: str, log: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if log.exists() and (found := re.search(pattern, log.read_text(errors="replace"))):
            return found[1]
        time.sleep(0.2)
    raise AssertionError(f"{pattern!r} did not appear:\n{log.read_text(errors='replace')}")
