"""Quotas in runs and rounds on Spark: pages, the reserve for fresh data, and shares of a rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.flow.heartbeat import Heartbeat
from penstock.lifecycle import AttemptReason, Outcome
from support.web import Asked, Said, Service, service
from support.workspaces import open_at

NOW = datetime(2024, 7, 1, 12, tzinfo=UTC)
LAST = date(2024, 6, 30)


def page(asked: Asked) -> Said:
    """One row on each of `pages` pages."""
    number, pages = int(asked.params.get("page", 1)), int(asked.params["pages"])
    row = f'[{{"clicks": {number}}}]'
    return Said(f'{{"rows": {row if number <= pages else "[]"}}}'.encode())


@pytest.fixture
def web() -> Iterator[Service]:
    with service(page) as here:
        yield here


def make(
    folder: Path,
    web: Service,
    rate: Any,
    *,
    customers: int = 4,
    days: int = 1,
    pages: int = 1,
    last: date = LAST,
    control: dict[str, Any] | None = None,
) -> Workspace:
    first = last - timedelta(days=days - 1)
    body = {
        "tenant": "acme",
        "workspace": "web",
        "state": "sqlite:///state.db",
        "lake": "./lake",
        "spark": {"master": "local[2]"},
        "control": control or {},
        "customers": [{"id": f"c{number:02}", "active_to": last} for number in range(customers)],
        "sources": {"web": {"kind": "http", "url": f"{web.url}/", "rate": rate}},
        "queries": {
            "sales": {
                "source": "web",
                "start_date": first,
                "fields": [{"name": "clicks", "type": "long"}],
                "options": {
                    "url": "sales/{customer_id}",
                    "params": {"day": "{date}", "pages": str(pages)},
                    "records": "rows",
                    **({"paging": {"kind": "page", "param": "page"}} if pages > 1 else {}),
                },
            }
        },
    }
    (folder / "penstock.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    return open_at(folder, NOW)


def used(ws: Workspace) -> tuple[int, int, int]:
    [quota] = ws.quotas.sources()
    [window] = quota.windows
    return window.claimed, window.used, window.left()


def test_pages_are_counted_and_unused_requests_are_returned(tmp_path: Path, web: Service, spark: Any) -> None:
    ws = make(tmp_path, web, "1000/d", pages=6)
    assert ws.runs.start(spark=spark).accepted == 4
    asked = len(web.asked)
    assert asked >= 4 * 7  # the last page is empty
    assert used(ws) == (asked, asked, 1000 - asked)


def test_a_partition_with_more_pages_than_the_quota_stops_at_the_budget(
    tmp_path: Path, web: Service, spark: Any
) -> None:
    ws = make(tmp_path, web, "10/d", customers=1, pages=30)
    done = ws.runs.start(spark=spark)
    assert (done.accepted, done.rejected, done.cancelled) == (0, 0, 1)
    assert len(web.asked) == 10
    [failure] = done.cancelled_items
    assert failure.message.startswith("quota of web is used up until ")
    [view] = ws.partitions.find()
    assert (view.last_attempt_outcome, view.state.attempt_count) == (Outcome.CANCELLED, 0)
    assert view.control.strategy == "quota"
    assert view.control.next_run_at is not None
    assert ws.context.breakers.all() == []  # the source asked for no pause


def test_a_round_leaves_the_reserve_to_fresh_data(tmp_path: Path, web: Service, spark: Any) -> None:
    ws = make(tmp_path, web, "20/d", customers=1, days=40, control={"quota_reserve": 0.5, "fresh_days": 3})
    with Heartbeat(ws.context.workers) as heart:
        ws.rounds.tick(lambda: spark, heart.token)
        asked = Counter(item.params["day"] for item in web.asked)
        assert sum(asked.values()) <= 13
        assert {str(LAST - timedelta(days=age)) for age in range(3)} <= set(asked)
        before = len(web.asked)
        facts = ws.rounds.tick(lambda: spark, heart.token)
    assert facts["planned"] == 0  # history waits, and nothing fresh is due
    assert len(web.asked) == before
    assert len(web.asked) <= 10 + 3
    assert used(ws)[2] >= 7


def test_a_backfill_never_takes_the_reserve_and_a_person_may(tmp_path: Path, web: Service, spark: Any) -> None:
    ws = make(tmp_path, web, "10/d", customers=20, last=LAST - timedelta(days=60), control={"quota_reserve": 0.3})
    ws.backfills.create(ws.backfills.plan(Selection(), actor="kim"), Selection())
    with Heartbeat(ws.context.workers) as heart:
        for _ in range(3):
            ws.rounds.tick(lambda: spark, heart.token)
    assert len(web.asked) == 7
    attempts = [one for view in ws.partitions.find() for one in ws.context.state.attempts(view.key)]
    assert {one.reason for one in attempts} == {AttemptReason.BACKFILL}
    assert len(attempts) == 7  # nothing was issued in vain
    assert ws.runs.start(spark=spark).accepted == 3
    assert len(web.asked) == 10


def test_a_rate_is_released_after_the_job(tmp_path: Path, web: Service, spark: Any) -> None:
    ws = make(tmp_path, web, "1000/s")
    assert ws.runs.start(spark=spark).accepted == 4
    assert ws.quotas.sources() == []
    assert ws.quotas.shares("web") == []  # its worker is gone


def test_tickets_are_deleted_after_their_window(tmp_path: Path, web: Service, spark: Any) -> None:
    ws = make(tmp_path, web, "1000/d")
    ws.context.lake.create("quota/1000-01OLD/0", b"")
    ws.runs.start(spark=spark)
    names = [entry.path for entry in ws.context.lake.list("quota")]
    assert names
    assert "quota/1000-01OLD/0" not in names


def test_a_job_that_breaks_does_not_repeat_the_requests_of_earlier_jobs(
    tmp_path: Path, web: Service, spark: Any
) -> None:
    make(tmp_path, web, "1000/d")
    body = yaml.safe_load((tmp_path / "penstock.yaml").read_text())
    fault = {"fault": "crash", "customer": "c02", "date": str(LAST)}
    body["sources"]["zeta"] = {"kind": "demo", "seed": 7, "rows": 5, "faults": [fault]}  # fetched after `web`
    body["queries"]["zeta_daily"] = {
        "source": "zeta",
        "start_date": LAST,
        "fields": [{"name": "clicks", "type": "long"}],
        "unknown_fields": "ignore",
    }
    body["spark"]["driver_partitions"] = 0
    (tmp_path / "penstock.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    ws = open_at(tmp_path, NOW)
    done = ws.runs.start(spark=spark)
    assert (done.accepted, done.rejected, done.cancelled) == (7, 0, 1)
    assert Counter(asked.path for asked in web.asked) == {f"/sales/c{number:02}": 1 for number in range(4)}
    assert used(ws) == (4, 4, 996)
