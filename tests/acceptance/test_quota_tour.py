"""A daily quota from the command line: five requests are sent, the others wait, and every command says why."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cli import answer, in_process, penstock
from support.web import Asked, Said, Service, service

DAY = date.today() - timedelta(days=2)  # noqa: DTZ011 - over in every time zone
CUSTOMERS = 12


def page(asked: Asked) -> Said:
    return Said(b'[{"clicks": 7}]')


@pytest.fixture
def web() -> Iterator[Service]:
    with service(page) as here:
        yield here


def write(folder: Path, web: Service, rate: Any) -> Path:
    body = {
        "tenant": "acme",
        "workspace": "web",
        "state": "sqlite:///state.db",
        "lake": "./lake",
        "spark": {"master": "local[2]"},
        "customers": [{"id": f"c{number:02}", "active_from": DAY, "active_to": DAY} for number in range(CUSTOMERS)],
        "sources": {"web": {"kind": "http", "url": f"{web.url}/", "rate": rate}},
        "queries": {
            "sales": {
                "source": "web",
                "start_date": DAY,
                "fields": [{"name": "clicks", "type": "long"}],
                "options": {"url": "sales/{customer_id}", "params": {"day": "{date}"}},
            }
        },
    }
    (folder / "penstock.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    return folder


def renewal() -> str:
    return f"{datetime.now(UTC).date() + timedelta(days=1)} 00:00 UTC"


def test_a_run_sends_what_the_quota_allows_and_the_next_says_when_it_renews(tmp_path: Path, web: Service) -> None:
    folder = write(tmp_path, web, ["100/s", "5/d"])
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    until = renewal()

    first = answer("run", workspace=folder, code=1)
    assert (first["planned"], first["accepted"], first["skipped"]) == (12, 5, 7)
    assert len(web.asked) == 5
    assert first["troubles"] == [
        f"quota of web: 5 of 5 requests left, renews {until}; 7 partitions wait for it",
    ]

    again = penstock("run", workspace=folder)
    assert again.returncode == 1
    assert len(web.asked) == 5
    assert f"quota of web is used up until {until}" in again.stdout
    assert "7 partitions were not issued" in again.stdout

    status = in_process("status", workspace=folder)
    assert f"quota of web: 0 of 5 requests left, renews {until}" in status.stdout
    [low] = in_process("status", "--json", workspace=folder).document["quota"]
    assert (low["source"], low["window"], low["budget"], low["used"], low["left"]) == ("web", "day", 5, 5, 0)

    waiting = next(item for item in answer("missing", workspace=folder)["items"])["key"]
    why = in_process("why", waiting, workspace=folder).stdout
    assert f"blocked by: quota of web is used up until {until}" in why
    assert f"next: attempted by the first run after the quota renews at {until}" in why

    [pace, day] = in_process("control", "quota", "--json", workspace=folder).document["items"]
    assert (pace["window"], pace["budget"], pace["left"], pace["shares"]) == ("second", 100, None, [])
    assert {**day, "renews_at": None} == {
        "source": "web", "window": "day", "budget": 5, "claimed": 5, "used": 5, "left": 0, "reserve": 1,
        "renews_at": None, "shares": [],
    }  # fmt: skip
    assert "renews (UTC)" in in_process("control", "quota", workspace=folder).stdout

    write(tmp_path, web, "8/d")  # a larger budget applies at the next claim
    assert answer("run", workspace=folder, code=1)["accepted"] == 3
    assert len(web.asked) == 8


def test_a_source_without_a_rate_has_no_quota(tmp_path: Path, web: Service) -> None:
    folder = write(tmp_path, web, None)
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    assert in_process("control", "quota", workspace=folder).stdout == "no source has a rate\n"
    assert in_process("status", "--json", workspace=folder).document["quota"] == []
