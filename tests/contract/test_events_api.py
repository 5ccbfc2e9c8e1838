"""Readers of `/events` that continue after the last event see every event once, also one that commits late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from penstock.app import Workspace
from penstock.ledger.append import append
from penstock.ledger.events import RunFinished
from penstock.partition import RunId, new_run_id, new_ulid
from support import builders
from support.api import served
from support.harness import Harness

API = "/api/v1"


@pytest.fixture(params=builders.BACKENDS)
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    state, name = None, None
    if request.param == "postgresql":
        state, name = request.getfixturevalue("postgres_url"), f"t_{new_ulid().lower()}"
    made = Harness(tmp_path, state=state, schema=name)
    yield made.workspace
    made.workspace.close()


on_postgresql = pytest.mark.parametrize("workspace", ["postgresql"], indirect=True)


def tell(workspace: Workspace, *runs: RunId) -> None:
    for run in runs:
        workspace.context.database.transact(
            lambda connection, run=run: append(connection, [RunFinished(run, "done")], "control", builders.NOW)  # type: ignore[misc]
        )


@contextmanager
def open_transaction(workspace: Workspace, run: RunId) -> Iterator[Callable[[], None]]:
    """A transaction on a connection of its own that has appended an event. Yields the function that commits it."""
    appended, may_commit = threading.Event(), threading.Event()

    def hold(connection: sa.Connection) -> None:
        append(connection, [RunFinished(run, "done")], "control", builders.NOW)
        appended.set()
        assert may_commit.wait(30)

    thread = threading.Thread(target=lambda: workspace.context.database.transact(hold))
    thread.start()

    def commit() -> None:
        may_commit.set()
        thread.join(30)
        assert not thread.is_alive()

    try:
        assert appended.wait(30)
        yield commit
    finally:
        commit()


def poll(api: TestClient, **asked: Any) -> list[dict[str, Any]]:
    found = api.get(f"{API}/events", params=asked)
    assert found.status_code == 200, found.text
    items: list[dict[str, Any]] = found.json()["items"]
    return items


def runs_of(events: list[dict[str, Any]]) -> list[str]:
    return [event["run_id"] for event in events]


@on_postgresql
@pytest.mark.parametrize("first_call", [{}, {"after": 0}, {"limit": 1}], ids=["newest", "from the start", "one"])
def test_a_poll_after_the_last_event_returns_an_event_that_committed_late(
    workspace: Workspace, first_call: dict[str, int]
) -> None:
    before, slow, quick = new_run_id(), new_run_id(), new_run_id()
    tell(workspace, before)
    with served(workspace) as api:
        with open_transaction(workspace, slow) as commit:
            tell(workspace, quick)  # takes the higher position and commits first
            seen = poll(api, **first_call)
            commit()
        seen += poll(api, after=seen[-1]["position"])
    assert runs_of(seen) == [before, slow, quick]


@on_postgresql
def test_a_cursor_returns_an_event_that_committed_late_with_a_lower_position(workspace: Workspace) -> None:
    """The transaction that began first takes the higher position."""
    early, late = new_run_id(), new_run_id()
    database = workspace.context.database

    def begin_first(connection: sa.Connection) -> None:
        connection.execute(sa.text("SELECT pg_current_xact_id()"))
        tell(workspace, late)  # another connection: a later transaction with a lower position
        append(connection, [RunFinished(early, "done")], "control", builders.NOW)

    database.transact(begin_first)
    with served(workspace) as api:
        page = api.get(f"{API}/events", params={"after": 0, "limit": 1}).json()
        assert runs_of(page["items"]) == [early]
        rest = api.get(f"{API}/events", params={"after": 0, "limit": 1, "cursor": page["next"]}).json()
        assert (runs_of(rest["items"]), rest["next"]) == ([late], None)
        assert rest["items"][0]["position"] < page["items"][0]["position"]
        assert runs_of(poll(api, after=page["items"][0]["position"])) == [late]
        assert poll(api, after=rest["items"][0]["position"]) == []


@on_postgresql
def test_a_position_without_an_event_hides_no_later_event(workspace: Workspace) -> None:
    """A rolled back append leaves a gap in the positions."""

    class Undone(Exception):
        pass

    def undo(connection: sa.Connection) -> None:
        append(connection, [RunFinished(new_run_id(), "done")], "control", builders.NOW)
        raise Undone

    first, second = new_run_id(), new_run_id()
    tell(workspace, first)
    with pytest.raises(Undone):
        workspace.context.database.transact(undo)
    tell(workspace, second)
    with served(workspace) as api:
        [one, two] = poll(api, after=0)
        assert two["position"] == one["position"] + 2
        assert runs_of(poll(api, after=one["position"] + 1)) == [second]
        assert poll(api, after=two["position"]) == poll(api, after=two["position"] + 100) == []


def test_the_newest_events_and_those_after_a_position_are_in_order(workspace: Workspace) -> None:
    runs = [new_run_id() for _ in range(5)]
    tell(workspace, *runs)
    with served(workspace) as api:
        newest = poll(api, limit=2)
        assert runs_of(newest) == runs[3:]
        assert runs_of(poll(api, after=newest[0]["position"])) == runs[4:]
        assert runs_of(poll(api, run=runs[1])) == [runs[1]]
        assert runs_of(poll(api, after=0, type="RunFinished")) == runs
