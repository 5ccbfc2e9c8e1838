"""One workspace with its servers for all tests, and a Dagster instance for each test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
from penstock.client import Client

from penstock_dagster import PenstockResource
from servers import CUSTOMERS, api_server, create_token, last_days, process, write_workspace


@dataclass(frozen=True, slots=True)
class Site:
    """A served workspace of two queries and three days. All partitions are published but that of the second customer
    on the second day of `campaign_daily`, which was rejected."""

    folder: Path
    url: str
    token: str
    days: list[str]

    @property
    def resource(self) -> PenstockResource:
        return PenstockResource(url=self.url, token=self.token or None)

    @property
    def faulty_day(self) -> str:
        return self.days[1]

    @property
    def faulty_key(self) -> str:
        return f"demo/{CUSTOMERS[1]}/campaign_daily/{self.faulty_day}"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    days = last_days(3)
    fault = {"fault": "wrong_type", "customer": CUSTOMERS[1], "query": "campaign_daily", "date": days[1]}
    folder = write_workspace(tmp_path_factory.mktemp("site"), days, [fault])
    token = create_token(folder, "dagster", "admin")
    with api_server(folder) as url, Client(url, token) as client, process(folder, "control", "serve") as log:
        deadline = time.monotonic() + 120
        while len(list(client.events(kind="PartitionPublished"))) < 11:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield Site(folder, url, token, days)


@pytest.fixture
def client(site: Site) -> Iterator[Client]:
    with Client(site.url, site.token) as found:
        yield found


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as found:
        yield found
