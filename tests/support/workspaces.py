"""Workspaces for tests: a folder with a penstock.yaml that contains only the settings that the test is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from penstock.app import Workspace, load_workspace
from penstock.clock import Clock
from penstock.control.select import Selection
from penstock.flow.summary import RunSummary
from penstock.partition import PartitionKey
from support.made_workspaces import remember

NOW = datetime(2024, 6, 11, 12, tzinfo=UTC)

CAMPAIGNS: dict[str, Any] = {
    "source": "demo",
    "schema_version": "v1",
    "start_date": "2024-06-09",
    "fields": [
        {"name": "campaign_id", "type": "long", "required": True},
        {"name": "campaign_name", "type": "string"},
        {"name": "impressions", "type": "long"},
        {"name": "clicks", "type": "long"},
        {"name": "cost_micros", "type": "long"},
        {"name": "conversions", "type": "double"},
    ],
    "checks": [
        {"unique": ["campaign_id"]},
        {"expression": "clicks <= impressions"},
        {"rows": {"min": 1}},
        {"shrink": {"max_drop": 0.5}},
    ],
}


def customer_id(number: int) -> str:
    return str(1_000_000_000 + number)


def key(number: int = 1, day: str = "2024-06-09", query: str = "campaign_daily") -> PartitionKey:
    return PartitionKey.parse(f"demo/{customer_id(number)}/{query}/{day}")


def write_workspace(
    folder: Path,
    *,
    customers: int = 1,
    rows: int = 5,
    faults: Sequence[dict[str, Any]] = (),
    query: dict[str, Any] | None = None,
    queries: dict[str, Any] | None = None,
    models: dict[str, Any] | None = None,
    state: str = "sqlite:///state.db",
    schema: str | None = None,
    lake: str = "./lake",
    master: str = "local[2]",
    python: Path | None = None,
    driver_partitions: int = 0,
    control: dict[str, Any] | None = None,
    alerts: dict[str, Any] | None = None,
) -> Path:
    """Write (or rewrite) penstock.yaml: by default one customer, two days, five rows each, nothing broken."""
    body: dict[str, Any] = {
        "tenant": "acme",
        "workspace": "ads",
        "state": state,
        "lake": lake,
        "spark": {"master": master, "driver_partitions": driver_partitions}
        | ({"python": str(python)} if python else {}),
        "customers": [{"id": customer_id(n + 1)} for n in range(customers)],
        "sources": {"demo": {"kind": "demo", "seed": 7, "rows": rows, "faults": list(faults)}},
        "queries": queries or {"campaign_daily": {**CAMPAIGNS, **(query or {})}},
    }
    if schema:
        body["schema"] = schema
    if control:
        body["control"] = control
    if alerts:
        body["alerts"] = alerts
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in (models or {}).items():
        code = model.pop("code")
        kind = "python" if "def model(" in code else "sql"
        file = f"{name}.{'py' if kind == 'python' else 'sql'}"
        (folder / file).write_text(code)
        body.setdefault("models", {})[name] = {kind: file, **model}
    (folder / "penstock.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    remember(folder)
    return folder


def open_at(folder: Path, now: datetime = NOW) -> Workspace:
    """The workspace as it is at the moment `now`; its database is created when it is not there."""
    clock: Clock = lambda: now  # noqa: E731 - a clock that stands still
    workspace = load_workspace(folder, clock)
    workspace.maintenance.migrate()
    return workspace


class Silent:
    """A watcher that ignores all progress."""

    def stage(self, name: str, partitions: int) -> Callable[[float], None]:
        return lambda share: None

    def say(self, message: str) -> None:
        pass


def run(workspace: Workspace, spark: Any, *keys: PartitionKey, reprocess: bool = False) -> RunSummary:
    return workspace.runs.start(Selection(keys=keys), reprocess=reprocess, actor="test", spark=spark)


def rows_by_partition(
    workspace: Workspace, table: str = "demo.campaign_daily"
) -> dict[PartitionKey, list[dict[str, Any]]]:
    """The visible rows, by partition."""
    source, _, query = table.partition(".")
    found: dict[PartitionKey, list[dict[str, Any]]] = {}
    for row in workspace.data.vouched(table).arrow().to_pylist():
        partition = PartitionKey(source, row.pop("customer_id"), query, row.pop("logical_date"))
        found.setdefault(partition, []).append(row)
    return found
