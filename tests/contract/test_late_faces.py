"""The API, the client and the page of late tables show what the service reports."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.client import Client
from penstock.errors import ErrorClass
from support import builders
from support.api import ADDRESS, check_response, problem, route_named, served
from support.cli import in_process
from support.late_harness import BY_NINE, DAY, NOW, TABLE, LateHarness, later
from support.page_text import links_of, shown, text_of
from support.workspaces import customer_id, key, open_at, write_workspace

HOSTILE = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def house() -> Iterator[LateHarness]:
    """One of three partitions is there, one waits for its retry, one was rejected; a model waits for them."""
    with builders.quick_folder() as folder:
        models = {"spend": {"code": "SELECT 1", "depends_on": [TABLE], "freshness": BY_NINE}}
        made = LateHarness(Path(folder), customers=3, models=models)
        made.deliver_day([1])
        made.reject(key(2, DAY), error=ErrorClass.TRANSIENT)
        made.reject(key(3, DAY), message=HOSTILE)
        yield made
        made.workspace.close()


@pytest.fixture(scope="module")
def api(house: LateHarness) -> Iterator[TestClient]:
    with served(house.workspace) as client:
        yield client


def test_the_api_and_the_client_list_late_tables_with_their_causes(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = api.get("/api/v1/late")
    check_response(route_named("GET /api/v1/late"), response)
    document = response.json()
    assert document["counts"] == {"ready": 0, "on_track": 0, "at_risk": 2, "late": 0}
    [fetched] = api.get("/api/v1/late", params={"table": TABLE, "date": DAY}).json()["items"]
    assert fetched in document["items"]
    assert (fetched["punctuality"], fetched["available"], fetched["required"]) == ("at_risk", 1, 3)
    assert fetched["deadline"] == "2024-06-11T07:00:00.000000Z"
    assert {one["cause"]: (one["count"], one["example"]) for one in fetched["missing"]} == {
        "failed_check": (1, str(key(3, DAY))),
        "waiting_for_retry": (1, str(key(2, DAY))),
    }
    [model] = api.get("/api/v1/late", params={"table": "models.spend"}).json()["items"]
    assert [one["table"] for one in model["inputs"]] == [TABLE]
    with Client(ADDRESS) as client, monkeypatch.context() as patch:
        patch.setattr(client._transport, "_http", api)
        assert client.late(TABLE, date=DAY) == [fetched]
    assert "demo.nothing" in problem(api.get("/api/v1/late", params={"table": "demo.nothing"}), 400)


def test_the_api_and_the_client_decide_readiness_as_the_command_does(
    api: TestClient, house: LateHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = house.workspace.settings.root
    cases: list[tuple[list[str], dict[str, Any]]] = [
        (["--require", "any"], {"require": "any"}),
        ([], {}),
        (["--customer", customer_id(2)], {"customer": customer_id(2)}),
    ]
    for options, asked in cases:
        printed = in_process("ready", TABLE, "--date", DAY, *options, "--json", workspace=folder)
        with Client(ADDRESS) as client, monkeypatch.context() as patch:
            patch.setattr(client._transport, "_http", api)
            found = client.ready(TABLE, date=DAY, **asked)
            explained = client.ready(TABLE, date=DAY, explain=True, **asked)["explained"]
            assert [day["table"] for day in explained] == ([] if found["ready"] else [TABLE])
        assert found["ready"] is (printed.code == 0)
        assert found == printed.document
    for wrong, message in (
        ({}, "table is missing"),
        ({"table": "demo.nothing"}, "unknown table demo.nothing"),
        ({"table": TABLE, "require": "most"}, "--require 'most' is unknown"),
    ):
        assert message in problem(api.get("/api/v1/ready", params=wrong), 400)


def test_a_poll_without_a_change_costs_nothing_until_the_deadline(api: TestClient, house: LateHarness) -> None:
    first = api.get("/api/v1/late")
    again = {"If-None-Match": first.headers["ETag"]}
    assert api.get("/api/v1/late", headers=again).status_code == 304
    house.clock.now = later(1)
    try:
        assert api.get("/api/v1/late", headers=again).json()["counts"]["late"] == 2
    finally:
        house.clock.now = NOW


def test_the_page_shows_states_causes_and_the_chain_as_text(api: TestClient) -> None:
    page = shown(api, "/late")
    text = text_of(page)
    for words in (
        "at risk",
        "failed check",
        "waiting for retry",
        "waiting for inputs",
        f"models.spend waits for {TABLE}",
    ):
        assert words in text
    assert HOSTILE in text
    assert HOSTILE not in page
    assert f"/partitions/{key(3, DAY)}" in links_of(page)
    assert "penstock late" in page
    assert f"penstock late {TABLE} --date {DAY}" in shown(api, f"/late?table={TABLE}&date={DAY}")


def test_the_page_of_a_workspace_without_deadlines_says_how_to_add_one(tmp_path: Path) -> None:
    workspace = open_at(write_workspace(tmp_path), NOW + timedelta(days=1))
    with served(workspace) as client:
        assert "freshness.complete_by" in text_of(shown(client, "/late"))
        assert client.get("/api/v1/late").json()["items"] == []
    workspace.close()
