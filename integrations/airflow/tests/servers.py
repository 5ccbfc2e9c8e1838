"""`penstock serve` and `penstock control serve` on a small workspace, in processes of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.client import Client

PENSTOCK = Path(os.environ["PENSTOCK_BIN"]) / "penstock"
TABLE = "demo.campaign_daily"
GOOD_DAY, BAD_DAY = "2024-06-01", "2024-06-02"
FETCHED = f"demo/1000000001/campaign_daily/{GOOD_DAY}"
REJECTED = f"demo/1000000002/campaign_daily/{BAD_DAY}"
SLOW = f"demo/1000000001/slow_daily/{GOOD_DAY}"

# Two customers, two days. The second customer is rejected on the second day; one partition takes seconds to fetch.
# The loop fetches everything once at its start, and only orders afterwards.
WORKSPACE = f"""\
tenant: acme
workspace: ads
state: sqlite:///state.db
lake: ./lake
spark: {{master: "local[1]", driver_partitions: 32}}
control: {{every: 1h}}
customers:
  - {{id: "1000000001", active_from: {GOOD_DAY}, active_to: {BAD_DAY}}}
  - {{id: "1000000002", active_from: {GOOD_DAY}, active_to: {BAD_DAY}}}
sources:
  demo:
    kind: demo
    seed: 7
    rows: 5
    faults:
      - {{fault: wrong_type, query: campaign_daily, customer: "1000000002", date: {BAD_DAY}}}
      - {{fault: slow, query: slow_daily, customer: "1000000001", date: {GOOD_DAY}, seconds: 15}}
queries:
  campaign_daily: &query
    source: demo
    start_date: {GOOD_DAY}
    fields:
      - {{name: campaign_id, type: long, required: true}}
      - {{name: impressions, type: long}}
      - {{name: clicks, type: long}}
    unknown_fields: ignore
    retry: {{max_age: 3650d}}
  slow_daily: *query
"""


@dataclass(frozen=True)
class Site:
    """A workspace that is served, with a token of the role operator for Airflow, and one of an admin for tests."""

    folder: Path
    url: str
    token: str = field(repr=False)
    admin_token: str = field(repr=False)

    def client(self) -> Client:
        return Client(self.url, self.admin_token)

    def orders(self) -> list[dict[str, Any]]:
        """All orders, newest first."""
        with self.client() as client:
            return list(client.orders())

    def order_after(self, known: int, state: str, patience: float = 60) -> dict[str, Any]:
        """Wait until there is one order more than there were, in this state."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            found = self.orders()
            if len(found) > known and found[0]["state"] == state:
                return found[0]
            time.sleep(0.1)
        raise AssertionError(found[:1])

    def connection(self, **changes: Any) -> str:
        """The connection of the site, as a variable of the environment has it."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        fields = {"conn_type": "penstock", "host": host, "port": int(port), "password": self.token, **changes}
        return json.dumps({"extra": {"scheme": "http"}, **fields})


def penstock(folder: Path, *arguments: str) -> Any:
    """Run a command and return its document."""
    done = subprocess.run(
        [PENSTOCK, *arguments, "--workspace", folder, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[Path]:
    """A command that runs until the block ends. Yields its log."""
    log = folder / f"{arguments[0]}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PENSTOCK, *arguments, "--workspace", folder], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@contextmanager
def serving(folder: Path) -> Iterator[Site]:
    """A new workspace with its server, and without a control loop."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "penstock.yaml").write_text(WORKSPACE)
    penstock(folder, "db", "migrate")
    operator, admin = (
        penstock(folder, "tokens", "create", name, "--role", role)["token"]
        for name, role in (("airflow", "operator"), ("kim", "admin"))
    )
    with started(folder, "serve", "--port", "0") as log:
        yield Site(folder, _address(log), operator, admin)


def _address(log: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if found := re.search(r'serving \S+ at ([^\s"]+)', log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def wait_until_first_round_is_over(site: Site) -> None:
    """Wait until the control loop fetched everything: all partitions are published or rejected."""
    deadline = time.monotonic() + 180
    with site.client() as client:
        while time.monotonic() < deadline:
            done = client.status()["counts"] == {"materialized": 7, "never_materialized": 1}
            if done and next(client.runs())["finished_at"]:
                return
            time.sleep(0.2)
        raise AssertionError(client.status())
