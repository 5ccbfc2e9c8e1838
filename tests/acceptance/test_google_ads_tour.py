"""From a manager account to trusted rows, through the command line, with a Google Ads server for tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from penstock.partition import PartitionKey
from support.ads_server import MANAGER, AdsServer, Client, Fault, campaign, quota, serve
from support.cli import answer, penstock
from support.workspaces import open_at, rows_by_partition, run

TODAY = datetime.now(UTC).date()
OLDEST, OLD, RECENT, YESTERDAY = DAYS = [TODAY - timedelta(days=number) for number in (4, 3, 2, 1)]
ALICE, BOB, CAROL = CUSTOMERS = ("1111111111", "2222222222", "3333333333")
TABLE = "ads.campaigns"

WORKSPACE: dict[str, Any] = {
    "tenant": "acme",
    "workspace": "ads",
    "state": "sqlite:///state.db",
    "lake": "./lake",
    "spark": {"master": "local[2]"},
    "customers": "customers.csv",
    "queries": {
        "campaigns": {
            "source": "ads",
            "start_date": OLDEST.isoformat(),
            "fields": [
                {"name": "campaign_id", "type": "long", "required": True},
                {"name": "campaign_name", "type": "string"},
                {"name": "status", "type": "string"},
                {"name": "impressions", "type": "long"},
                {"name": "clicks", "type": "long"},
                {"name": "cost", "type": "decimal(18,6)"},
            ],
            "checks": [{"unique": ["campaign_id"]}, {"expression": "clicks <= impressions"}],
            "restate": {"days": 10, "ages": [1, 5]},
            "options": {
                "resource": "campaign",
                "select": {
                    "campaign_id": "campaign.id",
                    "campaign_name": "campaign.name",
                    "status": "campaign.status",
                    "impressions": "metrics.impressions",
                    "clicks": "metrics.clicks",
                    "cost": {"path": "metrics.cost_micros", "as": "units"},
                },
                "conditions": ["campaign.status IN ('ENABLED', 'PAUSED')"],
            },
        }
    },
}


@dataclass(frozen=True, slots=True)
class Shop:
    folder: Path
    ads: AdsServer

    def ask(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        return answer(*arguments, workspace=self.folder, code=code)

    def inspected(self, customer: str, day: date) -> dict[str, Any]:
        [item] = self.ask("state", "inspect", key(customer, day))["items"]
        found: dict[str, Any] = item
        return found

    def clicks(self) -> dict[tuple[str, str], int]:
        statement = (
            f"SELECT customer_id, CAST(logical_date AS VARCHAR) AS d, sum(clicks) AS n FROM {TABLE} GROUP BY 1, 2"
        )
        return {(row["customer_id"], row["d"]): int(row["n"]) for row in self.ask("sql", statement)["items"]}


def partition(customer: str, day: date) -> PartitionKey:
    return PartitionKey("ads", customer, "campaigns", day)


def key(customer: str, day: date) -> str:
    return str(partition(customer, day))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """An empty workspace, and a manager with three accounts and four days of rows."""
    names = (("Alice", "UTC"), ("Bob", "UTC"), ("Carol", "UTC"))
    ads = AdsServer(
        clients=[
            Client(MANAGER, "We", manager=True, level=0),
            *(Client(id_, *facts) for id_, facts in zip(CUSTOMERS, names, strict=True)),
            Client("4444444444", "Gone", status="CANCELED"),
        ],
        rows={(id_, day): [campaign(n) for n in range(3)] for id_ in CUSTOMERS for day in DAYS},
        batch=100,
    )
    server = serve(ads)
    folder = tmp_path_factory.mktemp("ads")
    source = {
        "kind": "google_ads",
        "login_customer_id": "999-999-9999",
        "endpoint": ads.address,
        "insecure": True,
        "parallelism": 2,
        "keeps": "6 days",
    }
    body = {**WORKSPACE, "sources": {"ads": source}}
    (folder / "penstock.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    (folder / "customers.csv").write_text("id,name,time_zone,active_from,active_to\n")
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    yield Shop(folder, ads)
    server.stop(None).wait()


def test_the_accounts_of_the_manager_become_customers(shop: Shop) -> None:
    before = (shop.folder / "customers.csv").read_text()
    preview = shop.ask("customers", "sync", "--dry-run")
    assert (preview["total"], preview["changed"]) == (3, 0)
    assert (shop.folder / "customers.csv").read_text() == before
    done = shop.ask("customers", "sync", "--actor", "ada")
    assert [(item["id"], item["change"]) for item in done["items"]] == [(id_, "new") for id_ in CUSTOMERS]
    assert shop.ask("customers", "sync")["changed"] == 0
    assert [item["name"] for item in shop.ask("customers", "list")["items"]] == ["Alice", "Bob", "Carol"]
    lines = [entry for entry in shop.ask("audit", "list")["items"] if entry["command"] == "customers sync"]
    assert {line["outcome"] for line in lines} == {"begun", "done"}  # known before the file changes, and when it has
    assert {(line["actor"], line["affected"], line["filters"]["source"]) for line in lines} == {("ada", 3, "ads")}


def test_what_the_workspace_asks_for_is_checked_before_anything_is_issued(shop: Shop) -> None:
    [found] = [item for item in shop.ask("doctor")["items"] if item["check"] == "sources"]
    assert (found["ok"], found["detail"]) == (True, "ads (google_ads)")
    file = shop.folder / "penstock.yaml"
    good = file.read_text()
    file.write_text(good.replace("metrics.clicks", "metrics.klicks"))
    for command in (("run",), ("doctor",)):
        done = penstock(*command, workspace=shop.folder)
        assert done.returncode == 1
        assert "queries.campaigns.options: select.clicks: this version of Google Ads has no field" in (
            done.stdout + done.stderr
        ).replace("\n", " ")
    file.write_text(good)


def test_days_are_fetched_in_one_request_for_each_account(shop: Shop) -> None:
    shop.ads.requests.clear()
    done = shop.ask("run", "--until", RECENT.isoformat())
    assert (done["planned"], done["accepted"], done["loaded"]) == (9, 9, 9)
    assert sorted(request.customer_id for request in shop.ads.requests) == [*CUSTOMERS]
    assert shop.clicks() == {(id_, day.isoformat()): 15 for id_ in CUSTOMERS for day in DAYS[:3]}
    [row, *_] = shop.ask("read", TABLE, "--date", RECENT.isoformat(), "--customer", ALICE, "--format", "json")["items"]
    assert (row["campaign_name"], row["status"], row["cost"]) == ("Campaign 0", "ENABLED", "1.550000")


def test_one_account_must_pause_and_another_is_closed_and_the_third_goes_on(shop: Shop) -> None:
    closed = ("authorization_error", "CUSTOMER_NOT_ENABLED")
    shop.ads.faults = [
        quota(900, customer=BOB),
        Fault(grpc.StatusCode.PERMISSION_DENIED, closed, "Not enabled.", customer=CAROL),
    ]
    done = shop.ask("run", code=1)
    assert (done["accepted"], done["cancelled"], done["rejected"], done["blocked"]) == (1, 1, 1, 0)
    items = [*done["failures"], *done["cancelled_items"]]
    words = {item["key"]: (item["error_class"], item["message"]) for item in items}
    assert words[key(CAROL, YESTERDAY)][0] == "config"
    assert words[key(BOB, YESTERDAY)][1].endswith("(the source asks to wait 900 s)")
    bob, carol = shop.inspected(BOB, YESTERDAY), shop.inspected(CAROL, YESTERDAY)
    assert (bob["status"], bob["attempt_count"], bob["strategy"]) == ("pending", 0, "quota")
    assert (carol["status"], carol["attempt_count"]) == ("failed", 1)
    [attempt] = shop.ask("state", "history", key(BOB, YESTERDAY))["items"]
    assert attempt["outcome"] == "CANCELLED"
    pause = datetime.fromisoformat(bob["next_run_at"]) - datetime.fromisoformat(attempt["finished_at"])
    assert abs(pause - timedelta(seconds=900)) < timedelta(seconds=60)
    shop.ads.faults = []
    assert shop.ask("state", "retry", key(CAROL, YESTERDAY))["requeued"] == 1
    assert shop.ask("run")["accepted"] == 2  # a manual run does not wait for the end of the pause


def test_a_login_that_is_refused_opens_the_breaker_and_burns_no_attempts(shop: Shop) -> None:
    shop.ads.faults = [Fault(grpc.StatusCode.UNAUTHENTICATED, ("authentication_error", "OAUTH_TOKEN_REVOKED"))]
    again = ("run", "--reprocess", "--date", RECENT.isoformat())
    refused = shop.ask(*again, code=1)
    assert (refused["planned"], refused["cancelled"], refused["rejected"]) == (3, 3, 0)
    [breaker] = shop.ask("control", "breakers")["items"]
    assert breaker["open"]
    assert "OAUTH_TOKEN_REVOKED" in breaker["error_message"]
    assert shop.clicks()[BOB, RECENT.isoformat()] == 15
    shop.ads.faults = []
    mended = shop.ask(*again)
    assert (mended["accepted"], mended["blocked"]) == (3, 0)
    assert {item["attempt_count"] for item in shop.ask("state", "inspect", "--date", RECENT.isoformat())["items"]} == {
        2
    }


def test_numbers_that_change_later_are_restated_and_frozen_ones_are_not(shop: Shop, spark: Any) -> None:
    """Three days later the oldest day is beyond the horizon of the source, which has no rows for it any more."""
    frozen = [OLDEST]
    later = open_at(shop.folder, datetime.combine(TODAY, datetime.min.time(), UTC) + timedelta(days=3, hours=1))
    for id_ in CUSTOMERS:
        for day in DAYS:
            shop.ads.rows[id_, day] = [] if day in frozen else [campaign(n, clicks=6) for n in range(3)]
    shop.ads.requests.clear()
    before = {k: rows for k, rows in rows_by_partition(later, TABLE).items() if k.logical_date in frozen}
    summary = run(later, spark)
    assert (summary.rejected, summary.cancelled) == (0, 0)
    found = rows_by_partition(later, TABLE)
    assert {k: rows for k, rows in found.items() if k.logical_date in frozen} == before
    assert {row["clicks"] for rows in before.values() for row in rows} == {5}
    clicks = {day: {row["clicks"] for id_ in CUSTOMERS for row in found[partition(id_, day)]} for day in DAYS}
    assert clicks == {OLDEST: {5}, OLD: {6}, RECENT: {5}, YESTERDAY: {6}}  # five days and one day after their end
    again = run(later, spark, reprocess=True)
    assert (again.planned, again.accepted) == (18, 18)  # six days that it keeps
    assert {k: rows for k, rows in rows_by_partition(later, TABLE).items() if k.logical_date in frozen} == before
    assert not [request for request in shop.ads.requests if f"'{OLDEST.isoformat()}'" in request.query]
    later.context.database.close()
