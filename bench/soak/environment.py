"""The environment of a soak: a workspace on its own small file system, its database and its lake.

The context manager creates everything and removes it in any case.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import yaml

from bench.soak.faulty_s3 import CONTROL
from bench.soak.tests_path import ROOT, add_tests_to_path
from penstock.partition import new_ulid

_DISK = "512m"
_FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
CUSTOMERS, DAYS = 4, 4
TABLES = ("demo.campaign_daily", "demo.network_daily", "models.daily_spend")
_MODEL = """SELECT logical_date, count(DISTINCT customer_id) AS customers, sum(clicks) AS clicks
FROM demo.campaign_daily GROUP BY logical_date"""


@dataclass(slots=True)
class Environment:
    """The target of faults and operations."""

    folder: Path  # the workspace
    scratch: Path  # logs, progress files and backups, outside of the small file system
    state: str
    schema: str | None
    lake: str
    variables: dict[str, str]
    restart_database: Callable[[], None] | None  # none for SQLite
    small_disk: bool
    s3_endpoint: str | None = None
    fake_clock: Path | None = None
    keep: list[bool] = field(default_factory=list)

    def environ(self, **changes: str) -> dict[str, str]:
        return {**os.environ, **self.variables, **changes}

    def penstock(
        self, *arguments: str, seconds: float = 180, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "bench.soak.command", *arguments, "--workspace", str(self.folder)],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=self.environ(**(variables or {})),
            timeout=seconds,
        )

    def skewed(self, offset: str) -> dict[str, str]:
        """Environment variables that shift the clock of a process, such as +2d or -3h."""
        if self.fake_clock is None:
            return {}
        return {"LD_PRELOAD": str(self.fake_clock), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}

    def inject_storage_faults(self, share: float, delay: float) -> None:
        if self.s3_endpoint is not None:
            body = json.dumps({"share": share, "delay": delay}).encode()
            with urlopen(Request(f"{self.s3_endpoint}{CONTROL}", data=body, method="POST"), timeout=30):
                pass


@contextmanager
def environment(database: str, lake: str, seed: int) -> Iterator[Environment]:
    add_tests_to_path()
    import boto3

    from support.servers import postgres_to_restart, s3, s3_environment

    with ExitStack() as stack:
        scratch = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
        folder = scratch / "workspace"
        folder.mkdir()
        keep: list[bool] = []
        stack.callback(lambda: None if keep else shutil.rmtree(scratch, ignore_errors=True))
        small = _mounted(folder, stack)
        variables = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), str(ROOT / "tests")])}
        state, schema, restart = "sqlite:///state.db", None, None
        if database == "postgres":
            state, restart = stack.enter_context(postgres_to_restart())
            schema = f"soak_{new_ulid().lower()}"
        place, endpoint = "./lake", None
        if lake == "s3":
            endpoint = stack.enter_context(s3("-m", "bench.soak.faulty_s3", str(seed)))
            variables |= s3_environment(endpoint)
            os.environ.update(s3_environment(endpoint))  # for the checker
            place = "s3://soak/lake"
            boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="soak")
        made = Environment(
            folder, scratch, state, schema, place, variables, restart, small, endpoint, _fake_clock(), keep
        )
        _write_workspace(made)
        yield made
        if keep and small:  # the small file system is removed: copy the results first
            shutil.copytree(folder, scratch / "kept", symlinks=True)


def _mounted(folder: Path, stack: ExitStack) -> bool:
    """Put a small file system under the workspace, so that it can be filled. Needs root."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "penstock-soak", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        return False

    def unmount() -> None:
        for _ in range(20):
            if not subprocess.run(["umount", str(folder)], capture_output=True, check=False).returncode:
                return
            time.sleep(0.5)
        subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)

    stack.callback(unmount)
    return True


def _fake_clock() -> Path | None:
    """libfaketime, installed if that is possible."""
    if not _FAKETIME.exists() and os.geteuid() == 0 and shutil.which("apt-get"):
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-q", "-y", "libfaketime"]):
            subprocess.run(command, check=False, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return _FAKETIME if _FAKETIME.exists() else None


def _write_workspace(env: Environment) -> None:
    """A few customers, two queries, one model; re-fetches differ in size, so that the shrink guard rejects some."""
    start = (datetime.now(UTC).date() - timedelta(days=DAYS)).isoformat()
    customers = [str(1_000_000_001 + number) for number in range(CUSTOMERS)]
    common: dict[str, Any] = {"source": "demo", "schema_version": "v1", "start_date": start}
    whole = ("impressions", "clicks", "cost_micros")
    body: dict[str, Any] = {
        "tenant": "acme",
        "workspace": "soak",
        "state": env.state,
        "lake": env.lake,
        "spark": {"master": "local[2]"},
        "control": {"every": "2s", "round": 20},
        "customers": [{"id": customer} for customer in customers],
        "sources": {
            "demo": {"kind": "demo", "seed": 7, "rows": 20, "failure_rate": 0.05, "faults": [{"fault": "unsteady"}]}
        },
        "queries": {
            "campaign_daily": {
                **common,
                "fields": [
                    {"name": "campaign_id", "type": "long", "required": True},
                    {"name": "campaign_name", "type": "string"},
                    *({"name": name, "type": "long"} for name in whole),
                    {"name": "conversions", "type": "double"},
                ],
                "checks": [{"unique": ["campaign_id"]}, {"shrink": {"max_drop": 0.05}}],
            },
            "network_daily": {
                **common,
                "fields": [{"name": "ad_group_id", "type": "long"}, {"name": "network", "type": "string"}],
                "checks": [{"rows": {"min": 1}}],
            },
        },
        "models": {"daily_spend": {"sql": "daily_spend.sql", "depends_on": ["demo.campaign_daily"], "require": "50%"}},
    }
    # Partitions that always fail, beside those that only differ: the first matching rule applies.
    body["sources"]["demo"]["faults"].insert(0, {"fault": "wrong_type", "customer": customers[0], "date": start})
    if env.schema:
        body["schema"] = env.schema
    (env.folder / "daily_spend.sql").write_text(_MODEL)
    (env.folder / "penstock.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
