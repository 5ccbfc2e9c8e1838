"""The pages of runs, orders and backfills."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.flow.graph import Graph
from penstock.http.pages.runs import duration, key_of, shares_of
from penstock.lifecycle import AttemptReason
from penstock.partition import RunId, new_run_id, new_ulid
from penstock.state.records import Planned
from penstock.state.tokens import TokenRole
from support import builders
from support.api import ORIGIN, bearer, served
from support.builders import everything, rejected
from support.page_text import action_names, shown, text_of
from support.workspaces import customer_id, key, open_at, write_workspace

HOSTILE = "<script>alert(1)</script>"
QUERY = {"checks": [{"unique": ["campaign_id"]}]}
FAULT = {"fault": "wrong_type", "customer": customer_id(2), "date": "2024-06-09"}


@pytest.fixture(scope="module")
def workspace() -> Iterator[Workspace]:
    """A run in which one of six partitions fails, and a run without a process with an error of hostile text."""
    with builders.quick_folder() as folder:
        opened = open_at(write_workspace(Path(folder), customers=3, driver_partitions=100, query=QUERY, faults=[FAULT]))
        assert opened.runs.start(Selection(), actor="ada").counts()["rejected"] == 1
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def finished(workspace: Workspace) -> str:
    return str(workspace.status.current().runs_before(None, 10)[0][-1]["run_id"])


@pytest.fixture(scope="module")
def killed(workspace: Workspace, finished: str) -> str:
    """A run of two partitions whose process is gone; one of them was rejected."""
    context = workspace.context
    token, run_id, keys = context.workers.register(), new_run_id(), [key(1), key(3)]
    contract = context.contracts["campaign_daily"]
    context.control.start_run(run_id, token, "ada", {}, 2, Graph(keys).event(run_id))
    planned = [Planned(one, 1, AttemptReason.REPROCESS, contract.fingerprint, contract.schema_version) for one in keys]
    issued, _ = context.control.issue(run_id, token, 0, planned)
    from penstock.state.validator import ValidatorStore

    verdict = rejected(issued[0].attempt, token, HOSTILE, payload_digest="d")
    assert ValidatorStore(context.database, context.now).judge([verdict]).applied
    context.workers.stop(token)
    return str(run_id)


@pytest.fixture(scope="module")
def pages(workspace: Workspace, killed: str) -> Iterator[TestClient]:
    with served(workspace) as client:
        yield client


# --- runs -------------------------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_with_their_tasks_by_state(pages: TestClient, finished: str, killed: str) -> None:
    page = shown(pages, "/runs")
    assert re.findall(r'href="/runs/([0-9A-Z]{26})"', page) == [killed, finished]
    assert "16 succeeded, 1 failed, 1 skipped" in text_of(page)
    assert 'aria-label="16 succeeded, 1 failed, 1 skipped"' in page
    assert "✕ failed" in text_of(page)
    assert "penstock runs list" in page
    assert action_names(page) == {"run"}


def test_the_next_page_of_runs_begins_where_the_first_ends(pages: TestClient, finished: str, killed: str) -> None:
    first = shown(pages, "/runs?limit=1")
    [following] = re.findall(r'rel="next" href="([^"]*)"', first)
    second = shown(pages, "/runs" + html.unescape(following))
    assert finished not in first
    assert finished in second
    assert killed not in second
    assert 'rel="next"' not in second
    assert "is not valid" in text_of(shown(pages, "/runs?cursor=x", 400))


def test_a_run_shows_its_stages_its_failed_tasks_and_what_they_block(pages: TestClient, finished: str) -> None:
    page = shown(pages, f"/runs/{finished}")
    assert re.findall(r"<h3>(\w+)</h3>", page) == ["extract", "validate", "load"]
    assert "5 succeeded, 1 failed" in text_of(page)
    assert f'href="/partitions/{key(2)}"' in page
    assert "data : campaign_id" in text_of(page)  # the message of the attempt
    assert f"load:{key(2)} » skipped validate:{key(2)} ✕ failed" in text_of(page)
    assert "What is left Nothing." in text_of(page)
    assert action_names(page) == set()
    assert "data-live" not in page


def test_a_run_without_a_process_is_live_and_can_be_resumed_or_cancelled(pages: TestClient, killed: str) -> None:
    page = shown(pages, f"/runs/{killed}")
    assert html.escape(HOSTILE) in page
    assert "No process works on this run." in page
    assert action_names(page) == {"cancel-run", "resume-run"}
    assert "data-live" in page
    assert "<progress" in page


def test_a_run_with_a_process_can_be_cancelled_only(pages: TestClient, workspace: Workspace) -> None:
    context = workspace.context
    token, run_id = context.workers.register(), new_run_id()
    context.control.start_run(run_id, token, "ada", {}, 1, Graph([key(1)]).event(run_id))
    page = shown(pages, f"/runs/{run_id}")
    assert "a process works on it" in page
    assert action_names(page) == {"cancel-run"}
    context.workers.stop(token)
    assert action_names(shown(pages, f"/runs/{run_id}")) == {"cancel-run", "resume-run"}
    context.control.request_cancel(RunId(run_id), builders.audit_entry())
    assert "Its cancellation was requested." in shown(pages, f"/runs/{run_id}")


def test_a_run_without_events_has_no_tasks(pages: TestClient, workspace: Workspace) -> None:
    token, run_id = workspace.context.workers.register(), new_run_id()
    workspace.context.control.start_run(run_id, token, "ada", {}, 1)
    workspace.context.control.finish_run(run_id, token, {})
    assert "This run has no tasks." in shown(pages, f"/runs/{run_id}")


def test_a_round_of_the_control_loop_is_shown_and_not_resumed(pages: TestClient, workspace: Workspace) -> None:
    control, run_id = workspace.context.control, new_run_id()
    token = workspace.context.workers.register()
    control.start_run(run_id, token, "control", {"round": True}, 1, Graph([key(2)]).event(run_id))
    assert "act=resume-run" not in shown(pages, f"/runs/{run_id}")
    control.finish_run(run_id, token, {})
    page = shown(pages, f"/runs/{run_id}")
    assert "act=resume-run" not in page
    assert 'id="live"' in page, "the last poll of an open page brings the end of the run"
    assert "hx-trigger" not in page
    workspace.context.workers.stop(token)


def test_unknown_runs_and_orders_are_not_found(pages: TestClient) -> None:
    for path in (f"/runs/{new_ulid()}", f"/runs/orders/{new_ulid()}", f"/backfills/{new_ulid()}"):
        assert "there is no" in text_of(shown(pages, path, 404))
    for path in ("/runs/x", "/runs/orders/x", "/backfills/x"):
        assert "is not valid" in text_of(shown(pages, path, 404))


def test_an_empty_workspace_names_the_commands_that_fill_it(tmp_path: Path) -> None:
    workspace = open_at(write_workspace(tmp_path))
    with served(workspace) as pages:
        assert "There is no run yet." in shown(pages, "/runs")
        assert "penstock control serve" in shown(pages, "/runs/orders")
        assert "There is no backfill yet." in shown(pages, "/backfills")
    workspace.close()


def test_figures_of_runs() -> None:
    assert shares_of({"failed": 1, "succeeded": 3}) == [("succeeded", 3, 75.0), ("failed", 1, 25.0)]
    assert shares_of({"failed": 0}) == []
    began = datetime(2024, 6, 11, tzinfo=UTC)
    spans = {0: "0.0 s", 59: "59.0 s", 61: "1 min 1 s", 3600: "1 h 0 min", 90_000: "25 h 0 min"}
    assert {seconds: duration(began, began + timedelta(seconds=seconds)) for seconds in spans} == spans
    assert (duration(None, began), duration(began, None)) == (None, None)
    assert (key_of(f"load:{key(1)}"), key_of("publish"), key_of("load:a/b")) == (str(key(1)), None, None)


# --- orders -----------------------------------------------------------------------------------------------------------


def test_an_order_is_shown_above_the_runs_with_the_warning_that_no_loop_executes_it(
    pages: TestClient, workspace: Workspace
) -> None:
    order = workspace.orders.create(
        "run", Selection(customers=customer_id(1)), {"reprocess": True}, reason=HOSTILE, actor=f"kim{HOSTILE}"
    )
    above, listed = shown(pages, "/runs"), shown(pages, "/runs/orders")
    page = shown(pages, f"/runs/orders/{order.order_id}")
    for found in (above, listed, page):
        assert "no control loop was ever started" in text_of(found)
        assert order.order_id in found
        assert html.escape(HOSTILE) in found
    assert above.index(order.order_id) < above.index("penstock runs list")
    assert customer_id(1) in page
    assert f"penstock run --customer {customer_id(1)} --reprocess" in page
    assert f'action="/runs/orders/{order.order_id}/cancel"' in page
    older = shown(pages, "/runs?limit=1")
    [following] = re.findall(r'rel="next" href="([^"]*)"', older)
    assert order.order_id not in shown(pages, "/runs" + html.unescape(following))
    workspace.orders.cancel(order.order_id, actor="kim")
    assert order.order_id not in shown(pages, "/runs")


def test_an_unfinished_order_is_shown_however_many_newer_ones_are_over(pages: TestClient, workspace: Workspace) -> None:
    old = workspace.orders.create("reconcile", actor="kim")
    newer = [workspace.orders.create("reconcile", actor="kim").order_id for _ in range(6)]
    for order_id in newer:
        workspace.orders.cancel(order_id, actor="kim")
    for path in ("/", "/runs"):
        page = shown(pages, path)
        assert old.order_id in page
        assert newer[-1] not in page
    workspace.orders.cancel(old.order_id, actor="kim")


def test_an_order_is_cancelled_by_its_form(pages: TestClient, workspace: Workspace) -> None:
    order = workspace.orders.create("reconcile", actor="kim")
    path = f"/runs/orders/{order.order_id}"
    answer = pages.post(f"{path}/cancel", data={"csrf_token": ""}, headers=ORIGIN, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    page = shown(pages, path)
    assert "◼ cancelled" in text_of(page)
    assert "/cancel" not in page
    assert workspace.context.state.audit(1)[0]["command"] == "orders cancel"


def test_work_that_has_begun_is_not_cancelled_and_the_page_says_so(pages: TestClient, workspace: Workspace) -> None:
    order, token = workspace.orders.create("reconcile", actor="kim"), workspace.context.workers.register()
    orders = workspace.context.orders
    claimed = orders.claim(token)
    assert claimed is not None
    assert orders.begin(claimed.claim)
    answer = pages.post(f"/runs/orders/{order.order_id}/cancel", data={"csrf_token": ""}, headers=ORIGIN)
    assert answer.status_code == 409
    assert "its work cannot be cancelled" in text_of(answer.text)
    from penstock.state.orders import OrderState

    orders.finish(claimed.claim, OrderState.FAILED, error=HOSTILE, result={"loaded": 3})
    page = shown(pages, f"/runs/orders/{order.order_id}")
    assert html.escape(HOSTILE) in page
    assert "loaded 3" in text_of(page)


def test_an_order_shows_the_progress_of_its_run(pages: TestClient, workspace: Workspace, finished: str) -> None:
    order, token = workspace.orders.create("resume", None, {"run_id": finished}, actor="kim"), ""
    token = workspace.context.workers.register()
    claimed = workspace.context.orders.claim(token)
    assert claimed is not None
    assert workspace.context.orders.begin(claimed.claim, RunId(finished))
    page = shown(pages, f"/runs/orders/{order.order_id}")
    assert f'href="/runs/{finished}"' in page
    assert "18 of 18 tasks have ended" in text_of(page)
    assert f"penstock runs resume {finished}" in page
    workspace.context.orders.release(claimed.claim)


# --- backfills --------------------------------------------------------------------------------------------------------


def test_a_backfill_shows_its_progress_and_the_actions_that_apply(pages: TestClient, workspace: Workspace) -> None:
    selection = Selection(customers=customer_id(1))
    made = workspace.backfills.plan(selection, reprocess=True, actor=HOSTILE, chunk_size=7, priority=3)
    workspace.backfills.create(made, selection)
    path = f"/backfills/{made.backfill_id}"
    listed, page = shown(pages, "/backfills"), shown(pages, path)
    for found in (listed, page):
        assert re.search(r'<progress max="2" value="0" aria-label="0 of 2', found)
        assert html.escape(HOSTILE) in found
        assert "no control loop" in text_of(found)
    assert "7 partitions each" in text_of(page)
    assert action_names(listed) == {"backfill"}
    assert action_names(page) == {"backfill-pause", "backfill-cancel"}
    workspace.backfills.pause(made.backfill_id, actor="ada")
    assert action_names(shown(pages, path)) == {"backfill-resume", "backfill-cancel"}
    workspace.backfills.cancel(made.backfill_id, actor="ada")
    page = shown(pages, path)
    assert action_names(page) == set()
    assert "data-live" not in page


def test_failed_partitions_of_a_backfill_can_be_retried(pages: TestClient, workspace: Workspace) -> None:
    context, selection = workspace.context, Selection(customers=customer_id(3))
    made = workspace.backfills.plan(selection, reprocess=True, actor="ada")
    workspace.backfills.create(made, selection)
    token, contract = context.workers.register(), context.contracts["campaign_daily"]
    one = Planned(
        key(3, "2024-06-10"),
        1,
        AttemptReason.BACKFILL,
        contract.fingerprint,
        contract.schema_version,
        backfill_id=made.backfill_id,
    )
    issued, _ = context.control.issue(new_run_id(), token, 0, [one])
    from penstock.state.validator import ValidatorStore

    assert ValidatorStore(context.database, context.now).judge([rejected(issued[0].attempt, token)]).applied
    page = shown(pages, f"/backfills/{made.backfill_id}")
    assert "1 failed partition" in text_of(page)
    assert f'href="/partitions/{key(3, "2024-06-10")}"' in page
    assert action_names(page) == {"backfill-pause", "backfill-cancel", "backfill-retry-failed"}


# --- access -----------------------------------------------------------------------------------------------------------


def test_a_viewer_sees_no_actions_and_cannot_cancel(tmp_path: Path) -> None:
    workspace = open_at(write_workspace(tmp_path))
    order = workspace.orders.create("run", actor="kim")
    made = workspace.backfills.plan(Selection(), actor="ada")
    workspace.backfills.create(made, Selection())
    viewer = bearer(workspace.tokens.create("eve", TokenRole.VIEWER, actor="ada")[1])
    operator = bearer(workspace.tokens.create("kim", TokenRole.OPERATOR, actor="ada")[1])
    path = f"/runs/orders/{order.order_id}"
    with served(workspace) as pages:
        before = everything(workspace.context.database)["run_order"]
        for place in ("/runs", "/runs/orders", path, "/backfills", f"/backfills/{made.backfill_id}"):
            page = shown(pages, place, headers=viewer)
            assert action_names(page) == set()
            assert "/cancel" not in page
            assert pages.get(place, follow_redirects=False).headers["location"].startswith("/login")
        assert pages.post(f"{path}/cancel", data={}, headers=viewer).status_code in (403, 415)
        form = {**viewer, "Content-Type": "application/x-www-form-urlencoded"}
        assert pages.post(f"{path}/cancel", content=b"", headers=form).status_code == 403
        assert everything(workspace.context.database)["run_order"] == before
    with served(workspace, read_only=True) as pages:
        assert "/cancel" not in shown(pages, path, headers=operator)
        assert pages.post(f"{path}/cancel", data={"csrf_token": "x"}, headers=operator).status_code == 403
        assert everything(workspace.context.database)["run_order"] == before
    workspace.close()


def test_a_poll_without_changes_is_not_modified(pages: TestClient) -> None:
    for path in ("/runs", "/runs/orders"):
        tag = pages.get(path).headers["etag"]
        assert pages.get(path, headers={"If-None-Match": tag}).status_code == 304
