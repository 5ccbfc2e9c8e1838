"""Workspaces and runs on a cluster with PostgreSQL and S3, observed through the ledger."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
import yaml

from penstock.app import load_workspace
from support import servers
from support.cli import answer
from support.cluster import Cluster
from support.workspaces import key, write_workspace

BUCKET = "penstock-cluster"
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # options of JVMs that live for seconds
QUICK = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": _SHORT_LIVED,
    "spark.driver.extraJavaOptions": _SHORT_LIVED,
    "spark.ui.enabled": "false",
}
_SECONDS = 240
_MODEL = "SELECT logical_date, count(*) AS rows_, sum(clicks) AS clicks FROM demo.campaign_daily GROUP BY logical_date"
# The stages of a run, with the event by which each ends.
ENDS = {"extract": "SlicesExtracted", "validate": "TaskFinished", "load": "PartitionPublished"}


@dataclass(frozen=True)
class Site:
    """A cluster with the stores that its driver and its executors use."""

    cluster: Cluster
    postgres: str
    endpoint: str

    def environment(self) -> dict[str, str]:
        """The variables of the driver."""
        return servers.s3_environment(self.endpoint)

    def workspace(
        self, folder: Path, spark: dict[str, Any] | None = None, config: dict[str, str] | None = None
    ) -> Path:
        """A workspace of 300 partitions and a model on this site, with a schema and a prefix of its own. One partition
        is bad."""
        name = f"w{uuid4().hex[:12]}"
        faults = [{"customer": key(2).customer_id, "date": "2024-06-03", "fault": "duplicate_key"}]
        models = {"total": {"code": _MODEL, "depends_on": ["demo.campaign_daily"], "require": "any"}}
        write_workspace(
            folder, customers=30, faults=faults, models=models, query={"start_date": "2024-06-01"},
            state=self.postgres, schema=name, lake=f"s3://{BUCKET}/{name}",
        )  # fmt: skip
        file = folder / "penstock.yaml"
        document = yaml.safe_load(file.read_text())
        chosen = {"master": self.cluster.url, "python": str(self.cluster.python)} if spark is None else spark
        usual = QUICK if chosen.get("master") == self.cluster.url else {}
        document["spark"] = {**chosen, "config": {**usual, **(config or {})}}
        file.write_text(yaml.safe_dump(document, sort_keys=False))
        answer("db", "migrate", workspace=folder)
        return folder


DAYS = ("--since", "2024-06-01", "--until", "2024-06-10")


class Run:
    """`penstock run` in a process of its own, observed through the ledger."""

    def __init__(self, folder: Path, *command: str, **environment: str) -> None:
        self.folder = folder
        self._database = load_workspace(folder).context.database
        arguments = [*(command or ("run", *DAYS)), "--json", "--workspace", str(folder)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL, text=True, env={**os.environ, **environment},
        )  # fmt: skip

    def wait_for(self, stage: str, *, derived: bool = False) -> int:
        """Wait until tasks of a stage were started, of the query or of the model, and the stage has not ended. Returns
        the last position of the ledger."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self._output()
            events = self._events()
            started = [e.position for e in events if e.type == "TaskStarted" and e.payload["stage"] == stage]
            if len(started) > int(derived):
                ended = [e for e in events if e.type == ENDS[stage] and e.position > started[int(derived)]]
                assert not ended, f"{stage} was over before the test could disturb it"
                return int(events[-1].position)
            time.sleep(0.03)
        self.process.kill()
        raise AssertionError(f"{stage} did not start: {self._output()}")

    def _events(self) -> Sequence[Any]:
        query = sa.text("SELECT position, type, payload FROM event WHERE type <> 'AuthorityChanged' ORDER BY position")
        with self._database.snapshot() as connection:
            return connection.execute(query).all()

    def finished(self, code: int) -> dict[str, Any]:
        """Wait for the end, and return the document that the command printed."""
        output, errors = self.process.communicate(timeout=_SECONDS)
        self._database.close()
        assert self.process.returncode == code, errors + output
        document: dict[str, Any] = json.loads(output) if output else {}
        return document

    def kill(self) -> None:
        """Kill the driver as a lost machine would: the command and its JVM."""
        jvm = [int(child) for child in _children(self.process.pid)]
        for pid in (self.process.pid, *jvm):
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()
        self._database.close()

    def _output(self) -> str:
        self._database.close()
        output, errors = self.process.communicate(timeout=30)
        return errors + output


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def tables(folder: Path) -> dict[str, Any]:
    """What a run left behind, without values that differ from run to run."""
    rows = {
        table: answer("sql", f"SELECT * EXCLUDE (_run_id) FROM {table} ORDER BY ALL", workspace=folder)["items"]
        for table in ("demo.campaign_daily", "models.total")
    }
    state = answer("state", "inspect", "--limit", "1000", workspace=folder)["items"]
    counts = {one["key"]: (one["status"], one["attempt_count"], one["record_count"]) for one in state}
    return {"rows": rows, "counts": counts}
