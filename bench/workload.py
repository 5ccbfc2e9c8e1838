"""The workload of both sides: customers x days of demo rows under one contract, the same bytes on both."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import yaml

from bench.clock import StandingClock
from penstock.app import Workspace
from penstock.config.loading import load_settings
from penstock.config.settings import Settings
from penstock.partition import RunId
from penstock.source.demo import DemoSource
from penstock.source.protocol import RunContext
from penstock.source.registry import hooks_of

SOURCE, QUERY = "demo", "campaign_daily"
ASSET = f"{SOURCE}.{QUERY}"
FIRST_DAY = date(2024, 6, 1)
MOST_DAYS = 100

Rows = Callable[[str, date], list[dict[str, Any]]]  # the rows of one customer and day

CONTRACT: Mapping[str, Any] = {
    "source": SOURCE,
    "schema_version": "v1",
    "start_date": FIRST_DAY,
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


@dataclass(frozen=True, slots=True)
class Workload:
    """N partitions of R rows each."""

    partitions: int
    rows: int
    first_day: date = FIRST_DAY

    @property
    def days(self) -> int:
        """The most days that divide the partitions evenly, with at least as many customers."""
        return days_of(self.partitions)

    @property
    def customers(self) -> list[str]:
        return [str(1_000_000_001 + index) for index in range(self.partitions // self.days)]

    @property
    def dates(self) -> list[date]:
        return [self.first_day + timedelta(days=index) for index in range(self.days)]

    @property
    def clock(self) -> StandingClock:
        """Noon of the day after the last one, so that exactly these days are due."""
        return StandingClock(datetime.combine(self.first_day + timedelta(days=self.days), time(12), UTC))

    def settings(self, folder: Path, **changes: Any) -> Settings:
        """The settings of a workspace that is written to `folder`; `changes` override its file."""
        folder.mkdir(parents=True)
        document = {
            "tenant": "bench",
            "workspace": "bench",
            "state": "sqlite:///state.db",
            "lake": "./lake",
            "spark": {"master": "local[*]"},
            "customers": [{"id": customer, "time_zone": "UTC"} for customer in self.customers],
            "sources": {SOURCE: {"kind": "demo", "seed": 7, "rows": self.rows}},
            "queries": {QUERY: CONTRACT},
            **changes,
        }
        (folder / "penstock.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        return load_settings(folder, os.environ, hooks_of)

    def workspace(self, folder: Path, **changes: Any) -> Workspace:
        """A new workspace with a fixed clock."""
        workspace = Workspace(self.settings(folder, **changes), self.clock)
        workspace.maintenance.migrate()
        return workspace


def days_of(partitions: int) -> int:
    return max(n for n in range(1, MOST_DAYS + 1) if partitions % n == 0 and n * n <= partitions)


def demo_rows(settings: Settings, run_id: str) -> Rows:
    """The demo source's own row generator: both sides pay for the same rows."""
    source = DemoSource(settings.sources[SOURCE].options, RunContext(RunId(run_id)))
    query = settings.queries[QUERY]
    customers = {customer.id: customer for customer in settings.customers}

    def rows(customer_id: str, day: date) -> list[dict[str, Any]]:
        return [row for _, row in source.extract(query, customers[customer_id], [day]) if isinstance(row, dict)]

    return rows
