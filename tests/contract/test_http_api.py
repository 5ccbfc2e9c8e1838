"""The HTTP API: its documents are those of the commands; ETags, cursors, compression, repeated requests, problems."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from penstock.app import Workspace, load_workspace
from penstock.app.status import StatusService
from penstock.client import Client
from penstock.control.select import Selection
from penstock.db import schema
from penstock.errors import ConfigError, DatabaseUnavailable, PenstockError, StateConflict
from penstock.http.application import Limits
from penstock.http.cursors import read_cursor, write_cursor
from penstock.http.etags import matches
from penstock.http.routes import api_routes
from penstock.http.server import prepare
from penstock.lifecycle import AttemptReason
from penstock.partition import RunId, new_run_id, new_ulid
from penstock.state.idempotency import KEPT, IdempotencyStore
from penstock.state.records import Planned
from support import builders
from support.api import ADDRESS, bearer, check_response, problem, route_named, served
from support.builders import Actors, SetClock, everything, rejected
from support.cli import in_process
from support.harness import Harness
from support.workspaces import key, open_at, write_workspace

DAY = "2024-06-09"
API = "/api/v1"


@pytest.fixture(scope="module")
def house() -> Iterator[Harness]:
    """One partition is published, one was rejected, and nothing is known of the others."""
    with builders.quick_folder() as folder:
        made = Harness(Path(folder), query={"retry": {"max_age": "20000d"}})
        made.deliver({key(1): 1})
        made.publish()
        contract = made.workspace.context.contracts["campaign_daily"]
        planned = Planned(key(2), 0, AttemptReason.MISSING, contract.fingerprint, contract.schema_version)
        token = made.workers.register()
        issued, _ = made.control.issue(new_run_id(), token, 0, [planned])
        complaint = {"check": "range", "message": "clicks is negative", "count": 1, "line": 1, "example": "{}"}
        verdict = rejected(issued[0].attempt, token, complaints=[complaint], record_count=3, payload_digest="d")
        assert made.validator.judge([verdict]).applied
        made.workers.stop(token)
        made.workspace.backfills.create(
            made.workspace.backfills.plan(Selection(customers=key(3).customer_id), actor="ada"), Selection()
        )
        yield made
        made.workspace.close()


@pytest.fixture(scope="module")
def workspace(house: Harness) -> Iterator[Workspace]:
    opened = load_workspace(house.folder)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def api(workspace: Workspace) -> Iterator[TestClient]:
    with served(workspace) as client:
        yield client


RUN = "{run}"
SAME: dict[str, str] = {
    f"/partitions?since={DAY}&until={DAY}": f"state inspect --since {DAY} --until {DAY}",
    f"/partitions?date={DAY}&status=pending&limit=3": f"state inspect --date {DAY} --status pending --limit 3",
    f"/partitions?key={quote(str(key(1)), safe='')}&key={key(9)}": f"state inspect {key(1)} {key(9)}",
    f"/partitions?customer={key(1).customer_id}&customer={key(2).customer_id}&query=campaign_daily&source=demo": (
        f"state inspect --customer {key(1).customer_id} --customer {key(2).customer_id} --query campaign_daily"
        " --source demo"
    ),
    f"/partitions/{key(1)}": f"why {key(1)}",
    f"/partitions/{key(2)}": f"why {key(2)}",
    f"/partitions/{key(2)}/attempts": f"state history {key(2)}",
    f"/status?date={DAY}": f"status --date {DAY}",
    f"/status?date={DAY}&by=customer,month": f"status --date {DAY} --by customer,month",
    f"/status?date={DAY}&status=failed": f"status --date {DAY} --status failed",
    "/runs": "runs list",
    "/runs/{run}": "runs show {run}",
    "/backfills": "backfill list",
    "/backfills/{backfill}": "backfill show {backfill}",
    "/audit": "audit list",
    "/events": "ledger tail",
    "/events?after=1&limit=2": "ledger tail --after 1 --limit 2",
    "/tables/demo.campaign_daily/rows?limit=2": "read demo.campaign_daily --limit 2",
    f"/tables/demo.campaign_daily/rows?date={DAY}&column=clicks": (
        f"read demo.campaign_daily --date {DAY} --columns clicks"
    ),
    "/tokens": "tokens list",
    "/alerts": "alerts list",
}


@pytest.mark.parametrize("path", SAME)
def test_documents_are_those_of_the_command_line(
    api: TestClient, house: Harness, workspace: Workspace, path: str
) -> None:
    [backfill] = workspace.backfills.all()
    names = {"run": workspace.context.state.attempts(key(1))[0].run_id, "backfill": backfill.backfill_id}
    if "{run}" in path:
        workspace.context.control.start_run(RunId(names["run"]), house.workers.register(), "ada", {}, 1)
    response = api.get(API + path.format(**names))
    assert response.status_code == 200, response.text
    command = in_process(*SAME[path].format(**names).split(), "--json", workspace=house.folder)
    assert command.code == 0, command.stderr
    found, expected = response.json(), command.document
    if found.get("next"):
        following = found.pop("next")
        if expected["next"] is not None and not path.startswith("/partitions/"):
            assert following != expected["next"]  # opaque
            del expected["next"]
        else:
            found["next"] = following
    assert found == expected


def test_tables_have_their_first_day_and_models_their_inputs(tmp_path: Path) -> None:
    model = {"code": "SELECT logical_date, sum(clicks) AS clicks FROM demo.campaign_daily GROUP BY logical_date"}
    week = {**model, "depends_on": ["demo.campaign_daily"], "needs": "7 days"}
    opened = open_at(write_workspace(tmp_path, query={"start_date": "2024-06-03"}, models={"week": week}))
    with served(opened) as client:
        found = {item["table"]: item for item in client.get(f"{API}/tables").json()["items"]}
    opened.close()
    facts = {table: (item["first_expected"], item["inputs"]) for table, item in found.items()}
    assert facts == {
        "demo.campaign_daily": ("2024-06-03", []),
        "models.week": ("2024-06-03", [{"table": "demo.campaign_daily", "days": 7}]),
    }


def paths(workspace: Workspace) -> dict[str, str]:
    """A request for each GET route."""
    [backfill] = workspace.backfills.all()
    order = workspace.orders.create("reconcile", actor="ada")
    plan, _ = workspace.actions.preview("retry", actor="ada")
    run = workspace.context.state.attempts(key(1))[0].run_id
    if workspace.context.state.run(run) is None:
        workspace.context.control.start_run(run, workspace.context.workers.register(), "ada", {}, 1)
    one, of_key = f"{API}/partitions/{key(1)}", f"GET {API}/partitions/{{source}}/{{customer_id}}/{{query_name}}"
    return {
        f"GET {API}/partitions": f"{API}/partitions",
        f"{of_key}/{{logical_date}}": one,
        f"{of_key}/{{logical_date}}/attempts": f"{one}/attempts",
        f"GET {API}/status": f"{API}/status?by=source,query,customer,date,month",
        f"GET {API}/grid": f"{API}/grid?query=campaign_daily",
        f"GET {API}/grid/labels": f"{API}/grid/labels?query=campaign_daily",
        f"GET {API}/runs": f"{API}/runs",
        f"GET {API}/runs/{{run_id}}": f"{API}/runs/{run}",
        f"GET {API}/orders": f"{API}/orders",
        f"GET {API}/orders/{{order_id}}": f"{API}/orders/{order.order_id}",
        f"GET {API}/backfills": f"{API}/backfills",
        f"GET {API}/backfills/{{backfill_id}}": f"{API}/backfills/{backfill.backfill_id}",
        f"GET {API}/tables": f"{API}/tables",
        f"GET {API}/tables/{{name}}/rows": f"{API}/tables/demo.campaign_daily/rows",
        f"GET {API}/sources": f"{API}/sources",
        f"GET {API}/plans/{{token}}": f"{API}/plans/{plan.token}",
        f"GET {API}/ready": f"{API}/ready?table=demo.campaign_daily&date={DAY}&explain=true",
        f"GET {API}/late": f"{API}/late",
        f"GET {API}/alerts": f"{API}/alerts",
        f"GET {API}/audit": f"{API}/audit",
        f"GET {API}/events": f"{API}/events",
        f"GET {API}/tokens": f"{API}/tokens",
        f"GET {API}/session": f"{API}/session",
        f"GET {API}/openapi.json": f"{API}/openapi.json",
        "GET /health/live": "/health/live",
        "GET /health/ready": "/health/ready",
        "GET /metrics": "/metrics",
    }


def test_every_document_has_the_fields_of_its_model(api: TestClient, workspace: Workspace) -> None:
    asked = paths(workspace)
    assert set(asked) == {route.name for route in api_routes() if route.method == "GET"}
    for name, path in asked.items():
        response = api.get(path)
        assert response.status_code == 200, (path, response.text)
        check_response(route_named(name), response)


def test_a_mistake_has_no_etag_and_is_never_a_304(api: TestClient) -> None:
    for path in ("/partitions?status=bad", "/runs/orders?state=bad", f"{API}/partitions?status=bad"):
        refused = api.get(path)
        assert (refused.status_code, refused.headers["cache-control"]) == (400, "no-store"), path
        assert "etag" not in refused.headers
        assert api.get(path, headers={"If-None-Match": "*"}).status_code == 400
    assert api.get("/partitions", headers={"If-None-Match": "*"}).status_code == 304


def test_a_poll_without_changes_costs_a_304(api: TestClient, workspace: Workspace) -> None:
    for name, path in paths(workspace).items():
        if name in (f"GET {API}/session", "GET /metrics"):  # its own time; samples of the process
            continue
        first = api.get(path)
        again = api.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b""), path
        assert again.headers["etag"] == first.headers["etag"]
        other = api.get(path, headers={"If-None-Match": '"something else"'})
        assert (other.status_code, other.content) == (200, first.content)


def test_an_etag_changes_with_the_ledger_and_with_control_metadata(tmp_path: Path) -> None:
    made = Harness(tmp_path)
    asked = (f"{API}/grid?query=campaign_daily", f"{API}/status", f"{API}/partitions?status=success", f"{API}/events")
    with served(made.workspace) as api:
        before = {path: api.get(path).headers["etag"] for path in asked}
        made.deliver({key(1): 1})
        after = {path: api.get(path).headers["etag"] for path in asked}
        assert {path for path in asked if before[path] == after[path]} == set()
        listed = f"{API}/partitions?key={key(1)}"
        tag = api.get(listed).headers["etag"]
        made.workspace.operations.pause(Selection(keys=(key(1),)), actor="ada")  # no event of the ledger
        assert api.get(listed, headers={"If-None-Match": tag}).status_code == 200
    made.workspace.close()


def test_the_grid_is_recomputed_when_a_day_begins_and_when_a_partition_becomes_late(tmp_path: Path) -> None:
    made = Harness(tmp_path, query={"freshness": {"max_lag": "36h"}})
    workspace = made.workspace
    made.deliver({key(1): 1})
    finished = workspace.context.state.attempts(key(1))[0].finished_at
    assert finished is not None
    limit = finished + timedelta(hours=36)
    query = f"{API}/grid?query=campaign_daily&since={DAY}&until={DAY}"
    with served(workspace) as api:
        codes = []
        for moment in (finished, limit, limit + timedelta(seconds=1)):
            workspace.context.clock = SetClock(moment)
            codes.append(api.get(query).content[0])
        assert codes == [2, 2, 4]  # materialized, materialized, stale
        workspace.context.clock = SetClock(finished)
        columns = api.get(f"{API}/grid?query=campaign_daily").headers["grid-columns"]
        workspace.context.clock = SetClock(finished + timedelta(days=1))
        assert int(api.get(f"{API}/grid?query=campaign_daily").headers["grid-columns"]) == int(columns) + 1
    workspace.close()


WINDOWS = [("2024-06-01", "2024-06-09"), (DAY, "2024-06-10"), ("2024-06-10", "2024-06-12"), (DAY, DAY)]


@pytest.mark.parametrize(("since", "until"), WINDOWS)
def test_the_grid_has_a_byte_for_each_partition(api: TestClient, house: Harness, since: str, until: str) -> None:
    asked = f"query=campaign_daily&since={since}&until={until}"
    grid = api.get(f"{API}/grid?{asked}")
    labels = api.get(f"{API}/grid/labels?{asked}").json()
    assert grid.headers["grid-layout"] == labels["layout"]
    assert int(grid.headers["grid-rows"]) * int(grid.headers["grid-columns"]) == len(grid.content)
    meanings = {code["code"]: (code["display_status"], code["last_attempt_failed"]) for code in labels["codes"]}
    command = in_process("status", "--grid", "--since", since, "--until", until, "--json", workspace=house.folder)
    expected = {
        (item["customer_id"], item["logical_date"]): (item["display_status"], "last_attempt_failed" in item["flags"])
        for item in command.document["items"]
    }
    first = date.fromisoformat(labels["first"])
    days = [(first + timedelta(days=number)).isoformat() for number in range(labels["days"])]
    assert days[-1] == labels["last"]
    found = {
        (row["customer_id"], day): meanings[grid.content[number * len(days) + column]]
        for number, row in enumerate(labels["rows"])
        for column, day in enumerate(days)
    }
    assert found == expected
    if DAY in days:
        assert {display for display, _ in found.values()} == {"materialized", "never_materialized"}
        assert found[key(2).customer_id, DAY] == ("never_materialized", True)


@pytest.mark.parametrize(
    ("asked", "groups"),
    [("by=customer,date", 18), ("by=customer,month", 9), ("by=customer,date&status=pending", 16), ("by=date", 2)],
)
def test_counts_of_too_many_groups_are_refused_before_they_are_loaded(
    house: Harness, monkeypatch: pytest.MonkeyPatch, asked: str, groups: int
) -> None:
    with served(house.workspace) as api:
        monkeypatch.setattr("penstock.app.grids.MOST_GROUPS", groups)
        assert api.get(f"{API}/status?{asked}").status_code == 200
    workspace = Workspace(house.workspace.settings, house.workspace.context.clock)  # with an empty cache
    with served(workspace) as api:
        monkeypatch.setattr("penstock.app.grids.MOST_GROUPS", groups - 1)
        monkeypatch.setattr("penstock.projections.status_board.Board.counts", _unavailable)
        detail = problem(api.get(f"{API}/status?{asked}"), 400)
    workspace.close()
    assert f"there are {groups} groups, more than {groups - 1}: narrow the filters" in detail


def test_customers_with_other_days_have_empty_cells(tmp_path: Path) -> None:
    made = Harness(tmp_path)
    settings = made.workspace.settings
    first, *rest = settings.customers
    later = first.model_copy(update={"active_from": key(1, day="2024-06-10").logical_date})
    workspace = Workspace(settings.model_copy(update={"customers": (later, *rest)}), made.workspace.context.clock)
    with served(workspace) as api:
        grid = api.get(f"{API}/grid?query=campaign_daily")
        assert grid.content == bytes([0, 1] + [1, 1] * 8)
        part = api.get(f"{API}/grid?query=campaign_daily&until={DAY}")
        assert part.content == bytes([0] + [1] * 8)
        assert "no partition" in problem(api.get(f"{API}/grid?query=campaign_daily&since=2030-01-01"), 400)
        assert "unknown query nothing" in problem(api.get(f"{API}/grid?query=nothing"), 400)
    workspace.close()
    made.workspace.close()


def test_large_responses_are_compressed_for_clients_that_accept_it(api: TestClient) -> None:
    path = f"{API}/partitions?date={DAY}&status=pending"
    plain = api.get(path, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    with api.stream("GET", path, headers={"Accept-Encoding": "br, gzip;q=0.5"}) as response:
        raw = b"".join(response.iter_raw())
        assert response.headers["content-encoding"] == "gzip"
        assert response.headers["etag"] == plain.headers["etag"]
        assert "Accept-Encoding" in response.headers["vary"]
    assert gzip.decompress(raw) == plain.content
    refused = api.get(path, headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in refused.headers
    small = api.get("/health/live", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in small.headers


LISTS = {
    f"/partitions?date={DAY}&status=pending": 7,
    "/runs": 1,
    "/orders": 3,
    "/backfills": 1,
    "/audit": 3,
    "/events?after=0": 4,
}


@pytest.mark.parametrize("path", LISTS)
def test_pages_of_one_item_together_are_the_whole_list(api: TestClient, workspace: Workspace, path: str) -> None:
    while workspace.orders.page(1)[1] < 3:
        workspace.orders.create("reconcile", actor="ada")
    joiner = "&" if "?" in path else "?"
    whole = api.get(f"{API}{path}{joiner}limit=1000").json()
    assert whole["next"] is None
    found: list[Any] = []
    cursor = ""
    while True:
        page = api.get(f"{API}{path}{joiner}limit=1{cursor}").json()
        assert len(page["items"]) == 1
        found += page["items"]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert found == whole["items"]
    assert len(found) >= LISTS[path]


def test_a_cursor_of_another_list_or_a_changed_one_is_refused(api: TestClient) -> None:
    path = f"{API}/partitions?date={DAY}&status=pending&limit=1"
    cursor = api.get(path).json()["next"]
    assert api.get(f"{path}&cursor={cursor}").status_code == 200
    for wrong in (
        f"{API}/partitions?date=2024-06-10&status=pending&limit=1&cursor={cursor}",
        f"{API}/runs?cursor={cursor}",
        f"{path}&cursor={cursor[:-2]}",
        f"{path}&cursor=x",
        f"{path}&cursor=%00",
        f"{path}&cursor={'A' * 400}",
    ):
        assert problem(api.get(wrong), 400)


PLACES = ("abc", "", "-1", "1.5", "٣", str(2**63), "9" * 5000, "1\x00", "\x00")


def with_cursor(path: str, place: str) -> str:
    """A request with a cursor that no page has returned."""
    return f"{API}{path}?cursor={write_cursor(place, f'GET {API}{path} []')}"


def test_a_cursor_that_a_caller_made_is_refused_or_harmless(fresh: Workspace) -> None:
    with served(fresh) as api:
        for path in ("/audit", "/events"):  # ordered by numbers
            for place in PLACES:
                assert "the cursor is not valid" in problem(api.get(with_cursor(path, place)), 400)
            assert api.get(with_cursor(path, str(2**63 - 1))).status_code == 200
        for path in ("/runs", "/orders", "/backfills", "/partitions"):
            assert "the cursor is not valid" in problem(api.get(with_cursor(path, "1\x00")), 400)
            assert {api.get(with_cursor(path, place)).status_code for place in PLACES} <= {200, 400}


def test_cursors_are_read_as_they_were_written() -> None:
    for place in ("", "demo/1/q/2024-06-01", "ü\n", "x" * 500):
        assert read_cursor(write_cursor(place, "list"), "list") == place


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, False), ("*", True), ('"a"', True), ('W/"a"', True), ('"b", W/"a"', True), ('"b"', False), ("a", False),
        ('"aa"', False),
    ],
)  # fmt: skip
def test_if_none_match_is_compared_by_tags(header: str | None, expected: bool) -> None:
    assert matches(header, "a") is expected


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/partitions?customer=9", 400, "unknown customer 9"),
        ("/partitions?since=yesterday", 400, "since 'yesterday' is not a date"),
        ("/partitions?since=2024-06-10&until=2024-06-09", 400, "is after"),
        ("/partitions?date=2024-06-10&since=2024-06-09", 400, "is one day"),
        ("/partitions?limit=0", 400, "limit '0' is not a number from 1 to 1000"),
        ("/partitions?limit=1001", 400, "not a number from 1 to 1000"),
        ("/partitions?limit=1&limit=2", 400, "limit is given 2 times"),
        ("/partitions?colour=red", 400, "unknown parameter 'colour'"),
        ("/partitions?status=good", 400, "status 'good' is unknown"),
        ("/partitions?source=", 400, "source is empty"),
        (f"/partitions?key={key(1)}&source=demo", 400, "either by key or by filters"),
        ("/partitions/demo/9/campaign_daily/2024-06-09", 404, "unknown customer 9"),
        ("/partitions/demo/1000000001/campaign_daily/june", 404, "logical_date 'june' is not valid"),
        ("/partitions/demo/1000000001", 404, "there is nothing at"),
        ("/runs/01J0000000000000000000000A", 404, "there is no run"),
        ("/runs/x", 404, "run_id 'x' is not valid: A run: a ULID"),
        ("/orders/01J0000000000000000000000A", 404, "there is no order"),
        ("/backfills/01J0000000000000000000000A", 404, "there is no backfill"),
        ("/plans/01J0000000000000000000000A", 404, "there is no plan"),
        ("/tables/demo.nothing/rows", 404, "unknown table demo.nothing"),
        ("/tables/demo.campaign_daily/rows?customer=9", 400, "unknown customer 9"),
        ("/tables/demo.campaign_daily/rows?column=nothing", 400, "nothing"),
        ("/status?by=colour", 400, "cannot group by colour"),
        ("/status?by=query,query", 400, "name each group once"),
        ("/grid", 400, "query is missing"),
        ("/nothing", 404, "there is nothing at /api/v1/nothing"),
        ("/events?run=x", 400, "is not a run id"),
    ],
)
def test_errors_are_problems_with_the_text_of_the_command_line(
    api: TestClient, path: str, status: int, text: str
) -> None:
    assert text in problem(api.get(API + path), status)


def test_the_text_of_an_error_is_the_same_as_on_the_command_line(api: TestClient, house: Harness) -> None:
    command = in_process("state", "inspect", "--customer", "9", workspace=house.folder)
    assert command.stderr.strip() == "penstock: " + problem(api.get(f"{API}/partitions?customer=9"), 400)


def test_a_method_that_a_path_does_not_have_is_refused(api: TestClient) -> None:
    assert "PUT is not allowed" in problem(api.put(f"{API}/runs"), 405)
    assert problem(api.delete(f"{API}/partitions"), 405)
    assert api.head(f"{API}/status").status_code == 200


def test_bodies_that_are_no_json_of_the_model_are_refused(api: TestClient) -> None:
    path = f"{API}/runs"
    assert "application/json" in problem(api.post(path, content="{}", headers={"Content-Type": "text/plain"}), 415)
    as_json = {"Content-Type": "application/json"}
    assert "the body is not valid" in problem(api.post(path, content="{", headers=as_json), 400)
    assert "colour: Extra inputs" in problem(api.post(path, json={"colour": "red"}), 400)
    assert "reason" in problem(api.post(path, json={"reason": ""}), 400)
    assert "selection.since" in problem(api.post(path, json={"selection": {"since": "june"}}), 400)
    assert "takes no body" in problem(api.post(f"{API}/runs/{new_run_id()}/cancel", json={}), 400)
    assert "there is no run" in problem(api.post(f"{API}/runs/{new_run_id()}/cancel"), 404)


def test_a_body_that_is_too_large_is_refused_before_it_is_read(workspace: Workspace) -> None:
    with served(workspace, limits=Limits(body_bytes=1000)) as api:
        assert "larger than 1,000 bytes" in problem(api.post(f"{API}/runs", content=b" " * 1001), 413)

        def stream() -> Iterator[bytes]:  # without a declared length
            for _ in range(100):
                yield b" " * 100

        assert problem(api.post(f"{API}/runs", content=stream()), 413)
        assert api.post(f"{API}/orders", json={"kind": "reconcile"}).status_code == 202


# --- repeated requests ----------------------------------------------------------------------------------------------


@pytest.fixture(params=builders.BACKENDS)
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    state, name = None, None
    if request.param == "postgresql":
        state, name = request.getfixturevalue("postgres_url"), f"t_{new_ulid().lower()}"
    made = Harness(tmp_path, state=state, schema=name)
    yield made.workspace
    made.workspace.close()


def orders(workspace: Workspace) -> list[dict[str, Any]]:
    return everything(workspace.context.database, [schema.run_order])["run_order"]


def test_a_repeated_request_is_executed_once_and_gets_the_first_response(fresh: Workspace) -> None:
    with served(fresh) as api:
        first, again = (
            api.post(f"{API}/runs", json={"reason": "go"}, headers={"Idempotency-Key": "one"}) for _ in range(2)
        )
        assert (first.status_code, again.status_code) == (202, 202)
        assert again.content == first.content
        assert ("idempotent-replay" in first.headers, again.headers["idempotent-replay"]) == (False, "true")
        assert len(orders(fresh)) == 1
        other = api.post(f"{API}/runs", json={"reason": "again"}, headers={"Idempotency-Key": "one"})
        assert "belongs to another request" in problem(other, 422)
        elsewhere = api.post(f"{API}/orders", json={"reason": "go"}, headers={"Idempotency-Key": "one"})
        assert "belongs to another request" in problem(elsewhere, 422)
        assert api.post(f"{API}/runs", json={"reason": "go"}).status_code == 202
        assert len(orders(fresh)) == 2
        for wrong in ("", "ä", "x" * 201):
            headers = {"Idempotency-Key": wrong.encode()}
            assert problem(api.post(f"{API}/runs", json={}, headers=headers), 400)  # type: ignore[arg-type]


def test_a_refusal_is_repeated_too(fresh: Workspace) -> None:
    with served(fresh) as api:
        body = {"selection": {"customers": ["9"]}}
        answers = [api.post(f"{API}/runs", json=body, headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [400, 400]
        assert answers[0].content == answers[1].content
        assert answers[1].headers["content-type"] == "application/problem+json"


def test_requests_with_one_key_at_the_same_time_are_executed_once(fresh: Workspace) -> None:
    with served(fresh) as api, ThreadPoolExecutor(6) as pool:

        def send(_: int) -> Any:
            return api.post(f"{API}/runs", json={}, headers={"Idempotency-Key": "same"})

        answers = [*pool.map(send, range(6)), send(6)]
    assert {answer.status_code for answer in answers} - {409} == {202}
    assert answers[-1].status_code == 202
    assert len({answer.json()["order_id"] for answer in answers if answer.status_code == 202}) == 1
    assert len(orders(fresh)) == 1


def test_a_duplicate_is_refused_at_once_and_the_process_stays_live_and_ready(
    fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every thread of the server executes a request that takes long."""
    began, may_end = threading.Semaphore(0), threading.Event()
    create = type(fresh.orders).create

    def slow(*given: Any, **options: Any) -> Any:
        began.release()
        assert may_end.wait(30)
        return create(*given, **options)

    with served(fresh, limits=Limits(threads=2)) as api, ThreadPoolExecutor(3) as pool:

        def send(name: str) -> Any:
            return api.post(f"{API}/runs", json={}, headers={"Idempotency-Key": name})

        try:
            monkeypatch.setattr(type(fresh.orders), "create", slow)
            first = pool.submit(send, "one")
            assert began.acquire(timeout=30)
            duplicate = send("one")
            assert "is in progress" in problem(duplicate, 409)
            assert duplicate.headers["retry-after"] == "1"
            second = pool.submit(send, "two")
            assert began.acquire(timeout=30)
            for path in ("/health/live", "/health/ready"):
                assert pool.submit(api.get, path).result(10).status_code == 200
            assert not first.done()
        finally:
            may_end.set()
        assert [answer.result().status_code for answer in (first, second)] == [202, 202]


@pytest.mark.parametrize("failing", ["finish", "give_up"])
def test_a_key_is_free_again_after_the_database_was_gone(
    fresh: Workspace, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    headers = {"Idempotency-Key": "k"}
    with served(fresh) as one, served(fresh) as another:
        with monkeypatch.context() as patch:
            patch.setattr(IdempotencyStore, "finish", _unavailable)
            if failing == "give_up":
                patch.setattr(IdempotencyStore, "give_up", _unavailable)
            assert problem(one.post(f"{API}/runs", json={}, headers=headers), 503)
        [stored] = orders(fresh)
        if failing == "give_up":
            assert "is in progress" in problem(another.post(f"{API}/runs", json={}, headers=headers), 409)
            assert one.get(f"{API}/runs").status_code == 200  # the database is back
        for api in (another, one):
            again = api.post(f"{API}/runs", json={}, headers=headers)
            assert (again.status_code, again.json()["order_id"]) == (202, stored["order_id"])
    assert len(orders(fresh)) == 1


def test_the_same_server_executes_a_request_again_that_it_could_not_give_up(
    fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Idempotency-Key": "k"}
    with served(fresh) as api:
        with monkeypatch.context() as patch:
            for name in ("finish", "give_up"):
                patch.setattr(IdempotencyStore, name, _unavailable)
            assert problem(api.post(f"{API}/runs", json={}, headers=headers), 503)
        assert api.post(f"{API}/runs", json={}, headers=headers).status_code == 202
    assert len(orders(fresh)) == 1


def test_a_request_whose_process_died_is_executed_again_and_creates_the_same_order(fresh: Workspace) -> None:
    dead = fresh.context.workers.register()
    store = IdempotencyStore(fresh.context.database, fresh.context.clock)
    with served(fresh) as api:
        first = api.post(f"{API}/runs", json={}, headers={"Idempotency-Key": "k"}).json()
        [row] = everything(fresh.context.database, [schema.idempotency_key])["idempotency_key"]
        store.give_up(row["actor"], "k", row["worker_token"])  # has an answer: stays
        assert len(everything(fresh.context.database, [schema.idempotency_key])["idempotency_key"]) == 1
        record = store.begin(row["actor"], "another", row["request_digest"], dead)
        fresh.orders.create("run", actor=row["actor"], order_id=record.reserved_id)  # it dies here
        builders.Actors.on(fresh.context.database).expire(dead)
        again = api.post(f"{API}/runs", json={}, headers={"Idempotency-Key": "another"}).json()
    assert again["order_id"] == record.reserved_id != first["order_id"]
    assert len(orders(fresh)) == 2


def test_keys_are_kept_for_a_day_and_belong_to_their_actor(fresh: Workspace) -> None:
    store = IdempotencyStore(fresh.context.database, SetClock())
    token = fresh.context.workers.register()
    assert store.begin("kim", "k", "digest", token).is_mine
    store.finish("kim", "k", token, 202, "{}")
    assert store.begin("lee", "k", "other", token).is_mine
    assert not store.begin("kim", "k", "digest", token).is_mine
    later = IdempotencyStore(fresh.context.database, SetClock(builders.NOW + KEPT))
    assert later.begin("kim", "k", "other", token).is_mine


def test_an_error_of_the_server_is_not_kept(fresh: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(fresh) as api:
        with monkeypatch.context() as patch:
            patch.setattr(type(fresh.orders), "create", _unavailable)
            failed = api.post(f"{API}/runs", json={}, headers={"Idempotency-Key": "k"})
            assert "did not respond" in problem(failed, 503)
            assert failed.headers["retry-after"] == "5"
        assert api.post(f"{API}/runs", json={}, headers={"Idempotency-Key": "k"}).status_code == 202


def test_a_request_that_fails_after_its_commit_creates_one_order(
    fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(fresh) as api:
        with monkeypatch.context() as patch:
            patch.setattr(type(fresh.orders), "warning", _unavailable)  # is read after the order is stored
            assert problem(api.post(f"{API}/runs", json={}, headers={"Idempotency-Key": "k"}), 503)
        [stored] = orders(fresh)
        again = api.post(f"{API}/runs", json={}, headers={"Idempotency-Key": "k"})
        assert (again.status_code, again.json()["order_id"]) == (202, stored["order_id"])
        assert len(orders(fresh)) == 1
        other = api.post(f"{API}/runs", json={"reason": "again"}, headers={"Idempotency-Key": "k"})
        assert "belongs to another request" in problem(other, 422)


def test_a_conflict_that_may_pass_is_not_kept(fresh: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def conflict(*_: Any, **__: Any) -> Any:
        raise StateConflict("another process changed the same rows first")

    with served(fresh) as api:
        with monkeypatch.context() as patch:
            patch.setattr(type(fresh.orders), "create", conflict)
            refused = api.post(f"{API}/runs", json={}, headers={"Idempotency-Key": "k"})
            assert "changed the same rows" in problem(refused, 409)
            assert refused.headers["retry-after"] == "5"
        assert api.post(f"{API}/runs", json={}, headers={"Idempotency-Key": "k"}).status_code == 202


def _unavailable(*_: Any, **__: Any) -> Any:
    raise DatabaseUnavailable("the state database did not respond")


def test_an_unexpected_error_shows_no_details(
    fresh: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("postgresql://user:secret@host/db")

    monkeypatch.setattr(type(fresh.orders), "page", broken)
    with served(fresh) as api:
        response = api.get(f"{API}/orders", headers={"X-Request-ID": "mine-1"})
        detail = problem(response, 500)
    assert "secret" not in response.text
    assert "mine-1" in detail
    [record] = [record for record in caplog.records if record.message == "request.broken"]
    assert record.__dict__["facts"] == {"request_id": "mine-1"}


def test_request_ids_are_taken_from_the_caller_if_they_are_safe(api: TestClient) -> None:
    assert api.get("/health/live", headers={"X-Request-ID": "abc-1.2"}).headers["x-request-id"] == "abc-1.2"
    for unsafe in ("a b", "x" * 65, '"}'):
        made = api.get("/health/live", headers={"X-Request-ID": unsafe}).headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{16}", made)


def test_the_access_log_names_the_caller_and_no_query(api: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "penstock.http.access"):
        api.get(f"{API}/partitions?customer=9&token=secret", headers={"Authorization": "Bearer other-secret"})
        api.get(f"{API}/session")
    facts = [record.__dict__["facts"] for record in caplog.records if record.name == "penstock.http.access"]
    assert [(fact["path"], fact["status"]) for fact in facts] == [(f"{API}/partitions", 401), (f"{API}/session", 200)]
    assert facts[1]["actor"]
    assert "secret" not in json.dumps(facts)


# --- actions over HTTP ----------------------------------------------------------------------------------------------


def test_an_action_is_previewed_and_applied_by_its_token(fresh: Workspace) -> None:
    with served(fresh) as api:
        body = {"act": "pause", "selection": {"customers": [key(1).customer_id]}, "reason": "moved"}
        made = api.post(f"{API}/plans", json=body)
        assert made.status_code == 201
        check_response(route_named(f"POST {API}/plans"), made)
        plan = made.json()
        assert (plan["total"], plan["result"], len(plan["items"])) == (2, None, 2)
        done = api.post(f"{API}/plans/{plan['token']}/apply", json={})
        check_response(route_named(f"POST {API}/plans/{{token}}/apply"), done)
        assert done.json()["result"] == {
            "affected": 2, "changed_total": 0, "changed": [], "note": None, "order_id": None, "backfill_id": None,
        }  # fmt: skip
        assert api.get(f"{API}/plans/{plan['token']}").json() == done.json()
        audit = api.get(f"{API}/audit").json()["items"]
        assert [(entry["command"], entry["affected"]) for entry in audit] == [("state pause", 2)]
        assert problem(api.post(f"{API}/plans/{new_ulid()}/apply", json={}), 404)
        assert "unknown customer" in problem(
            api.post(f"{API}/plans", json={**body, "selection": {"customers": ["9"]}}), 400
        )
        assert "takes no reprocess" in problem(api.post(f"{API}/plans", json={**body, "reprocess": True}), 400)


def test_a_plan_of_more_than_ten_thousand_partitions_needs_force(tmp_path: Path) -> None:
    made = Harness(tmp_path)
    workspace = Workspace(made.workspace.settings)  # days up to now: more than ten thousand with these customers
    many = [c.model_copy(update={"id": f"{n}"}) for n, c in enumerate(workspace.settings.customers * 5)]
    workspace = Workspace(workspace.settings.model_copy(update={"customers": tuple(many)}))
    with served(workspace) as api:
        plan = api.post(f"{API}/plans", json={"act": "pause"}).json()
        assert plan["total"] > 10_000
        path = f"{API}/plans/{plan['token']}/apply"
        assert "is more than 10,000" in problem(api.post(path, json={}), 400)
        assert api.post(path, json={"force": True}).json()["result"]["affected"] == plan["total"]
    workspace.close()
    made.workspace.close()


def test_a_changed_subject_is_a_conflict(fresh: Workspace) -> None:
    fresh.operations.pause(Selection(keys=(key(1),)), actor="lee")
    with served(fresh) as api:
        plan = api.post(f"{API}/plans", json={"act": "pause", "selection": {"customers": [key(1).customer_id]}}).json()
        fresh.operations.resume(Selection(keys=(key(1),)), actor="lee")
        assert "preview the action again" in problem(api.post(f"{API}/plans/{plan['token']}/apply", json={}), 409)


def test_orders_are_created_shown_and_cancelled(fresh: Workspace) -> None:
    with served(fresh) as api:
        made = api.post(f"{API}/orders", json={"kind": "compact", "tables": ["demo.campaign_daily"]})
        check_response(route_named(f"POST {API}/orders"), made)
        order = made.json()
        assert (made.status_code, order["state"], order["options"]) == (
            202,
            "queued",
            {"tables": ["demo.campaign_daily"]},
        )
        assert "no control loop was ever started" in order["warning"]
        cancelled = api.post(f"{API}/orders/{order['order_id']}/cancel")
        check_response(route_named(f"POST {API}/orders/{{order_id}}/cancel"), cancelled)
        assert cancelled.json() == {"order_id": order["order_id"], "requested": True}
        assert api.get(f"{API}/orders/{order['order_id']}").json()["state"] == "cancelled"
        assert problem(api.post(f"{API}/orders/{new_ulid()}/cancel"), 404)
        assert "name the run" in problem(api.post(f"{API}/orders", json={"kind": "resume"}), 400)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"kind": "compact", "selection": {"customers": [key(1).customer_id]}}, "kind compact takes no selection"),
        ({"kind": "reconcile", "selection": {"since": DAY}}, "kind reconcile takes no selection"),
        ({"kind": "run", "run_id": "01J0000000000000000000000A"}, "kind run takes no run_id"),
        ({"run_id": "01J0000000000000000000000A"}, "kind run takes no run_id"),
        ({"kind": "validate", "tables": ["demo.campaign_daily"]}, "kind validate takes no tables"),
        ({"kind": "validate", "reprocess": True}, "kind validate takes no reprocess"),
        ({"kind": "resume", "run_id": "01J0000000000000000000000A", "selection": {"source": "demo"}}, "no selection"),
    ],
)
def test_an_order_with_fields_of_another_kind_is_refused(fresh: Workspace, body: dict[str, Any], text: str) -> None:
    with served(fresh) as api:
        assert text in problem(api.post(f"{API}/orders", json=body), 400)
    assert orders(fresh) == []


def test_a_backfill_lists_the_first_failed_partitions_and_counts_all(fresh: Workspace) -> None:
    chosen = Selection(since="2024-01-01")
    new = fresh.backfills.plan(chosen, actor="ada")
    fresh.backfills.create(new, chosen)
    actors = Actors.on(fresh.context.database)
    contract = fresh.context.contracts["campaign_daily"]
    wanted = [
        Planned(
            one, 0, AttemptReason.BACKFILL, contract.fingerprint, contract.schema_version, backfill_id=new.backfill_id
        )
        for one in (key(1, f"2024-0{month}-{day:02}") for month in range(1, 7) for day in range(1, 21))
    ]
    issued, _ = actors.control.issue(new_run_id(), actors.token, 0, wanted)
    verdicts = [rejected(one.attempt, actors.token, record_count=3, payload_digest="d") for one in issued]
    assert len(actors.validator.judge(verdicts).applied) == 120
    with served(fresh) as api:
        found = api.get(f"{API}/backfills/{new.backfill_id}")
        check_response(route_named(f"GET {API}/backfills/{{backfill_id}}"), found)
        page = api.get(f"/backfills/{new.backfill_id}").text
    document = found.json()
    assert (len(document["failed"]), document["failed_total"]) == (100, 120)
    assert document["failed"][0] == str(key(1, "2024-01-01"))
    assert "120 failed partitions" in page


def test_a_page_of_orders_reads_the_state_of_the_loops_once(fresh: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    read = type(fresh.context.orders).last_loop
    reads: list[bool] = []

    def counting(store: Any) -> Any:
        reads.append(True)
        return read(store)

    with served(fresh) as api:
        monkeypatch.setattr(type(fresh.context.orders), "last_loop", counting)
        assert api.get(f"{API}/orders").json()["items"] == []
        created = [fresh.orders.create("reconcile", actor="ada").order_id for _ in range(4)]
        fresh.orders.cancel(created[3], actor="ada")  # the newest one
        items = api.get(f"{API}/orders").json()["items"]
        assert len(reads) == 1
        assert items == [api.get(f"{API}/orders/{order_id}").json() for order_id in reversed(created)]
        assert [item["warning"] is None for item in items] == [True, False, False, False]


def test_the_client_returns_unchanged_documents_as_they_were_sent(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: list[int] = []
    with Client(ADDRESS) as client, monkeypatch.context() as patch:
        patch.setattr(client._transport, "_http", api)
        patch.setattr(api, "event_hooks", {"response": [lambda response: statuses.append(response.status_code)]})
        found = client.sources()
        expected = deepcopy(found)
        for _ in range(2):
            found[0].clear()
            found.pop()
            found = client.sources()
            assert found == expected
    assert statuses == [200, 304, 304]


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/runs", {"reprocess": True}, "reprocessing 2 partitions is more than 1: narrow the filters or set force"),
        ("/orders", {"kind": "run", "reprocess": True}, "reprocessing 2 partitions is more than 1"),
        ("/orders", {"kind": "validate"}, "re-checking 2 partitions is more than 1"),
    ],
)
def test_an_order_that_repeats_many_partitions_needs_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], text: str
) -> None:
    made = Harness(tmp_path)
    made.deliver({key(1): 1, key(2): 1})
    monkeypatch.setattr("penstock.http.api.orders.FORCE_ABOVE", 1)
    with served(made.workspace) as api:
        assert text in problem(api.post(API + path, json=body), 400)
        assert orders(made.workspace) == []
        few = {**body, "selection": {"keys": [str(key(1))]}}
        for accepted in (few, {**body, "force": True}):
            assert api.post(API + path, json=accepted).status_code == 202
        assert [order["options"].get("force") for order in orders(made.workspace)] == [None, None]
        assert api.post(f"{API}/runs", json={}).status_code == 202  # due partitions need no force
    made.workspace.close()


def test_health_says_when_the_database_does_not_respond(fresh: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(fresh) as api:
        assert api.get("/health/ready").json() == {"status": "ok"}
        monkeypatch.setattr(type(fresh.context), "require_schema", _unavailable)
        assert problem(api.get("/health/ready"), 503)
        assert api.get("/health/live").status_code == 200


SECRET_PLACE = "postgresql://penstock:***@db.internal/ads"


@pytest.mark.parametrize(
    ("kind", "status", "text"),
    [
        (DatabaseUnavailable, 503, "the state database does not respond"),
        (ConfigError, 500, "the server cannot be used"),
    ],
)
def test_a_caller_without_a_name_gets_no_details_of_an_error_of_the_server(
    fresh: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[PenstockError],
    status: int,
    text: str,
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise kind(f"the state database {SECRET_PLACE} did not respond")

    _, token = fresh.tokens.create("kim", "viewer")
    with served(fresh) as api:
        monkeypatch.setattr(type(fresh.context), "require_schema", broken)
        monkeypatch.setattr(type(fresh.orders), "page", broken)
        assert SECRET_PLACE in problem(api.get(f"{API}/orders", headers=bearer(token)), status)
        monkeypatch.setattr(type(fresh.tokens), "find", broken)
        answers = [
            api.get("/health/ready"),
            api.get(f"{API}/orders", headers=bearer(token)),
            api.post("/login", json={"token": token}),
        ]
    for response in answers:
        detail = problem(response, status)
        assert detail.startswith(f"{text}: the log of the server has the details")
        assert SECRET_PLACE not in response.text
        assert response.json()["type"] == f"urn:penstock:error:{kind.__name__}"
        facts = [record.__dict__["facts"] for record in caplog.records if record.message == "request.failed"]
        [error] = [one["error"] for one in facts if one["request_id"] == response.json()["request_id"]]
        assert f"the state database {SECRET_PLACE}" in error


def test_a_server_that_starts_prepares_the_first_pages(house: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = load_workspace(house.folder)
    monkeypatch.setattr(StatusService, "current", _unavailable)
    prepare(workspace)  # the request that needs the grid reports the error
    monkeypatch.undo()
    prepare(workspace)
    monkeypatch.setattr(StatusService, "current", _unavailable)
    assert workspace.grids.grid("campaign_daily").codes.content, "the grid is in memory"
    other = load_workspace(house.folder)
    with pytest.raises(DatabaseUnavailable):
        other.grids.grid("campaign_daily")
    for one in (workspace, other):
        one.context.database.close()
