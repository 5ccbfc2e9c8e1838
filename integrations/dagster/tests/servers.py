"""`penstock serve` and `penstock control serve` in processes of their own, on a small workspace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

PROGRAM = Path(os.environ["PENSTOCK_BIN"]) / "penstock"
CUSTOMERS = ("1000000001", "1000000002")
FIELDS = [
    {"name": "campaign_id", "type": "long", "required": True},
    {"name": "clicks", "type": "long"},
    {"name": "impressions", "type": "long"},
]
ROWS = 5  # of a partition


def last_days(number: int) -> list[str]:
    """The last days that are over, in order."""
    today = datetime.now(UTC).date()
    return [(today - timedelta(days=number - at)).isoformat() for at in range(number)]


def write_workspace(
    folder: Path,
    days: list[str],
    faults: list[dict[str, Any]],
    *,
    models: dict[str, Any] | None = None,
    unique: bool = False,
) -> Path:
    """Two queries of two customers. Small runs need no Spark, and rounds of the loop are an hour apart."""
    query = {"source": "demo", "start_date": days[0], "fields": FIELDS, "unknown_fields": "ignore"}
    checks = {"checks": [{"unique": ["campaign_id"]}]} if unique else {}
    body = {
        "tenant": "acme",
        "workspace": "ads",
        "state": "sqlite:///state.db",
        "lake": "./lake",
        "spark": {"driver_partitions": 32},
        "control": {"every": "1h"},
        "customers": [{"id": number, "time_zone": "UTC"} for number in CUSTOMERS],
        "sources": {"demo": {"kind": "demo", "seed": 7, "rows": ROWS, "faults": faults}},
        "queries": {"campaign_daily": query | checks, "keyword_daily": query},
        **({"models": models} if models else {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "penstock.yaml").write_text(json.dumps(body, indent=2))  # JSON is YAML
    command(folder, "db", "migrate")
    return folder


def command(workspace: Path, *arguments: str, code: int = 0) -> str:
    """The output of a command that must end with this exit code."""
    done = subprocess.run(
        [PROGRAM, *arguments, "--workspace", workspace], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def create_token(workspace: Path, name: str, role: str) -> str:
    text: str = json.loads(command(workspace, "tokens", "create", name, "--role", role, "--json"))["token"]
    return text


@contextmanager
def process(workspace: Path, *arguments: str) -> Iterator[Path]:
    """A command that runs for the block. Yields its log."""
    log = workspace / f"{arguments[0]}-{time.monotonic_ns()}.log"
    with log.open("wb") as output:
        started = subprocess.Popen(
            [PROGRAM, *arguments, "--workspace", workspace], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        yield log
    finally:
        started.terminate()
        try:
            started.wait(60)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait(10)


@contextmanager
def api_server(workspace: Path) -> Iterator[str]:
    """`penstock serve` on a free port. Yields its address."""
    with process(workspace, "serve", "--port", "0") as log:
        deadline = time.monotonic() + 60
        while not (found := re.search(r'serving \S+ at ([^\s"]+)', log.read_text())):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield found[1]
